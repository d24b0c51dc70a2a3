"""MiniWoB++ (Shi et al., ICML 2017; Liu et al., ICLR 2018): small web pages with a task each, in a headless browser.

The pages are Farama's package `miniwob` (extra `sightline[miniwob]`), unchanged. Chromium shows them, driven by
Playwright, and they are served on the loopback address; nothing else is reached.

    page ◄── http on 127.0.0.1 ── the package's files        one server and one browser per process,
      │ screenshot                                           one page per game
      ▼
    agent ──► "click 80 120", "type hello", "press Enter" ──► real mouse and keyboard
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import re
import shutil
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from io import BytesIO
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import gymnasium
import numpy as np
from PIL import Image

from sightline.envs.frames import Size
from sightline.envs.games.contract import ActionText, Game, Observation
from sightline.envs.tasks import Task
from sightline.errors import BadInput, RunFailed, nearest

WIDTH = 160
HEIGHT = 210
"""Size of every page in pixels; clicks are said in these."""
CLICKS = tuple(f"click {x} {y}" for y, x in itertools.product(range(5, HEIGHT, 10), range(5, WIDTH, 10)))
"""What play at random does."""
PATIENCE = 5_000
"""Milliseconds until a page that does not answer is given up."""
SETTLING = 60
"""Milliseconds that a page has to react to an action, before it is looked at."""
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
ENDLESS = 10**9
"""Milliseconds of an episode; the number of steps limits it instead of the clock."""

_NUMBER = r"(\d{1,3})"
_COMMANDS = {
    "click": re.compile(rf"click {_NUMBER}[ ,]+{_NUMBER}", re.IGNORECASE),
    "double": re.compile(rf"double click {_NUMBER}[ ,]+{_NUMBER}", re.IGNORECASE),
    "drag": re.compile(rf"drag {_NUMBER}[ ,]+{_NUMBER}(?: to)? {_NUMBER}[ ,]+{_NUMBER}", re.IGNORECASE),
    "type": re.compile(r"type (.{1,200})", re.IGNORECASE | re.DOTALL),
    "press": re.compile(r"press (\w{1,20}(?:\+\w{1,20})?)", re.IGNORECASE),
    "scroll": re.compile(rf"scroll (up|down) {_NUMBER}[ ,]+{_NUMBER}", re.IGNORECASE),
}
RULES = (
    f"A web page of {WIDTH} x {HEIGHT} pixels. Say one of: click X Y; double click X Y; drag X Y to X Y; type TEXT; "
    "press KEY; scroll up X Y; scroll down X Y. X counts pixels from the left and Y from the top. "
)
# The pages draw by chance and by the clock; both are fixed before an episode. A blinking caret is no state.
_BEGIN = """([seed, endless]) => {
  core.EPISODE_MAX_TIME = endless;
  core.endEpisode(0);
  Math.seedrandom(seed);
  core.startEpisodeReal();
}"""
_STATE = "() => [WOB_DONE_GLOBAL, WOB_RAW_REWARD_GLOBAL]"
_QUIET = "* { caret-color: transparent !important; transition: none !important; animation: none !important; }"


class MiniWoB(Game):
    """One of MiniWoB++'s pages. The task is in words, and at the top of the picture.

    Actions are words (see `RULES`); those that mean nothing change nothing, and are counted in the info `mistakes`.
    Reward: the page's own without its penalty for time, -1 to 1; success is a positive one. A page that is left ends
    the episode without success. The time limit of the registration (20 steps) truncates.

    Args:
        page: name of the page, such as `click-test`.
        render_size: height and width of the pictures; the page itself keeps its size.
        render_mode: `rgb_array` or None.

    Raises:
        BadInput: there is no such page.
        RunFailed: there is no browser, or the page does not answer.
        gymnasium.error.DependencyNotInstalled: `miniwob` or `playwright` is missing.
    """

    action_names = ()

    def __init__(
        self,
        page: str = "click-test",
        render_size: Size = (HEIGHT, WIDTH),
        render_mode: str | None = "rgb_array",
    ) -> None:
        super().__init__(render_size, render_mode)
        self.action_space = ActionText(examples=CLICKS)
        folder = _pages()
        pages = sorted(file.stem for file in (folder / "miniwob").glob("*.html"))
        if page not in pages:
            raise BadInput(f"there is no page '{page}'{nearest(page, pages)}")
        self._browser = _Browser.of_this_process(folder)
        self._url = f"{self._browser.address}/miniwob/{page}.html"
        self._page = self._browser.open(self._url)
        self._utterance = ""
        self._mistakes = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        super().reset(seed=seed)
        if not self._browser.is_alive():  # killed from outside, perhaps since memory ran out
            self._browser.close(self._page)
            self._browser = _Browser.of_this_process(_pages())
            self._url = f"{self._browser.address}{urlsplit(self._url).path}"
            self._page = self._browser.open(self._url)
        utterance = self._browser.ask(self._begin, str(int(self.np_random.integers(2**31))))
        if isinstance(utterance, dict):
            utterance = utterance["utterance"]
        self._utterance = " ".join(str(utterance).split())
        if not self._utterance:
            raise RunFailed(f"the page {self._url.rpartition('/')[2]} states no task")
        self._mistakes = 0
        return self._observation(), self._info_with_mistakes(False)

    def _begin(self, seed: str) -> Any:
        """Begin an episode in the page; gives its task."""
        # A fresh load: what an episode left in the page, or where it led, is gone.
        self._page.goto(self._url)
        self._page.add_style_tag(content=_QUIET)
        self._page.evaluate(_BEGIN, [seed, ENDLESS])
        self._page.wait_for_function("() => WOB_TASK_READY", timeout=PATIENCE)
        self._page.wait_for_timeout(SETTLING)
        return self._page.evaluate("() => core.getUtterance()")

    def step(self, action: Any) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        is_command, over, reward = self._browser.ask(self._step_page, str(action))
        # A mistake costs a turn, and nothing else.
        self._mistakes += not is_command
        return self._observation(), reward, over, False, self._info_with_mistakes(reward > 0)

    def _step_page(self, action: str) -> tuple[bool, bool, float]:
        """Act in the page: whether the action is a command, whether the episode is over, the reward."""
        is_command = self._act(action)
        self._page.wait_for_timeout(SETTLING)
        if self._page.url.partition("#")[0] != self._url:  # the page was left
            return is_command, True, 0.0
        over, reward = self._page.evaluate(_STATE)
        if not over:
            return is_command, False, 0.0
        return is_command, True, float(reward)

    def _act(self, action: str) -> bool:
        """Do what an action says; False if it is no command."""
        for verb, pattern in _COMMANDS.items():
            command = pattern.fullmatch(action.strip())
            if command is None:
                continue
            if verb == "type":
                self._page.keyboard.type(command[1])
                return True
            if verb == "press":
                return self._press(command[1])
            # Columns and rows in turn.
            numbers = [int(number) for number in command.groups() if number.isdigit()]
            if any(x >= WIDTH for x in numbers[::2]) or any(y >= HEIGHT for y in numbers[1::2]):
                return False
            self._point(verb, numbers, command)
            return True
        return False

    def _point(self, verb: str, numbers: list[int], command: re.Match[str]) -> None:
        mouse = self._page.mouse
        if verb == "click":
            mouse.click(*numbers)
        elif verb == "double":
            mouse.dblclick(*numbers)
        elif verb == "drag":
            mouse.move(*numbers[:2])
            mouse.down()
            mouse.move(*numbers[2:], steps=5)
            mouse.up()
        else:
            mouse.move(*numbers)
            mouse.wheel(0, 60 if command[1].lower() == "down" else -60)

    def _press(self, key: str) -> bool:
        from playwright.sync_api import Error

        try:
            self._page.keyboard.press(key)
        except Error:  # of no such key
            return False
        return True

    def text(self) -> str:
        return f"{RULES}Your task: {self._utterance}"

    def draw(self) -> np.ndarray:
        screenshot = self._browser.ask(lambda: self._page.screenshot(animations="disabled", caret="hide"))
        with Image.open(BytesIO(screenshot)) as image:
            picture = image.convert("RGB")
        size = (self.render_size[1], self.render_size[0])
        if picture.size != size:
            picture = picture.resize(size, Image.Resampling.BICUBIC)
        return np.asarray(picture)

    def facts(self) -> dict[str, str]:
        return {}

    def legal_actions(self) -> tuple[str, ...]:
        return ()

    def caption(self) -> str:
        """The words on the page."""
        words = self._browser.ask(lambda: self._page.inner_text("#area"))
        return " ".join(str(words or "").split()) or "A page without words."

    def close(self) -> None:
        self._browser.close(self._page)

    def _info_with_mistakes(self, success: bool) -> dict[str, Any]:
        return self._info(success) | {"mistakes": self._mistakes}


class _Browser:
    """A headless Chromium and a server of the package's files, shared by all games of a process.

    Playwright has an event loop, which would keep any other from running in its thread. So it has a thread of its own,
    and everything that concerns pages is asked of that.
    """

    _shared: _Browser | None = None

    def __init__(self, folder: Path) -> None:
        handler = functools.partial(_Quiet, directory=str(folder))
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        threading.Thread(target=self._server.serve_forever, name="miniwob pages", daemon=True).start()
        self.address = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._pages: list[Any] = []
        self._closed = False
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="miniwob browser")
        self.ask(self._start)

    @classmethod
    def of_this_process(cls, folder: Path) -> _Browser:
        """The browser of this process; another one if it has died."""
        if cls._shared is None or not cls._shared.is_alive():
            cls._shared = cls(folder)
        return cls._shared

    def is_alive(self) -> bool:
        """Tell whether the browser still runs."""
        return not self._closed and bool(self._thread.submit(self._browser.is_connected).result())

    def ask(self, work: Callable[..., Any], *arguments: Any) -> Any:
        """The result of work that is done in the browser's thread.

        Raises:
            RunFailed: the browser has ended.
        """
        try:
            return self._thread.submit(work, *arguments).result()
        except Exception as error:
            if not type(error).__module__.startswith("playwright") or self.is_alive():
                raise
            raise RunFailed("the browser of the pages was ended from outside, perhaps since memory ran out") from error

    def _start(self) -> None:
        from playwright.sync_api import Error, sync_playwright

        self._playwright = sync_playwright().start()
        # That of the system, or else the one that Playwright has installed.
        program = next(filter(None, map(shutil.which, BROWSERS)), None)
        try:
            self._browser = self._playwright.chromium.launch(
                executable_path=program, args=["--font-render-hinting=none"]
            )
        except Error as error:
            self._playwright.stop()
            self._server.shutdown()
            self._server.server_close()
            raise RunFailed(
                "no Chromium could be started; install one: apt-get install chromium, or playwright install chromium "
                f"({' '.join(str(error).split())[:100]})"
            ) from error

    def open(self, url: str) -> Any:
        """A new page, in a context of its own: it shares no cookies or storage with others."""
        return self.ask(self._opened, url)

    def _opened(self, url: str) -> Any:
        context = self._browser.new_context(viewport={"width": WIDTH, "height": HEIGHT}, device_scale_factor=1)
        # Whatever a page asks for beyond the loopback server is refused.
        # The slash matters: in `http://127.0.0.1:80@elsewhere/` the host is elsewhere.
        context.route(re.compile(rf"^(?!{re.escape(self.address)}/)"), lambda route: route.abort())
        context.route_web_socket(re.compile(""), lambda socket: socket.close())
        page = context.new_page()
        page.set_default_timeout(PATIENCE)
        page.on("dialog", lambda dialog: dialog.dismiss())
        page.goto(url)
        self._pages.append(page)
        return page

    def close(self, page: Any) -> None:
        """Close a page; with the last one the browser ends."""
        if page not in self._pages:
            return
        from playwright.sync_api import Error

        self._pages.remove(page)
        with contextlib.suppress(Error, RunFailed):  # of a browser that has died
            self.ask(page.context.close)
        if self._pages:
            return
        if _Browser._shared is self:
            _Browser._shared = None
        with contextlib.suppress(Error, RunFailed):
            self.ask(self._browser.close)
        self._closed = True
        self.ask(self._playwright.stop)
        self._thread.shutdown()
        self._server.shutdown()
        self._server.server_close()


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""


def _pages() -> Path:
    """The folder of the package's pages.

    Raises:
        gymnasium.error.DependencyNotInstalled: a package is missing.
    """
    try:
        import miniwob
        import playwright  # noqa: F401 (it is needed next)
    except ImportError as error:
        raise gymnasium.error.DependencyNotInstalled(f"{error}; pip install 'sightline[miniwob]'") from error
    return Path(miniwob.__file__).parent / "html"


TASK = Task(
    name="miniwob",
    env="sightline/MiniWoB-v0",
    goal=("the task of the page is done",),
    baseline=("a small web page",),
    success="end",
    is_game=True,
    text_actions=True,
    summary="MiniWoB++: a small web page with a task, in a headless browser.",
)
