"""MiniWoB++ in a real browser: what is seen, clicks and keys, pages that lead away or hang, nothing that is left."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import sys
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import gymnasium
import numpy as np
import psutil
import pytest

from sightline.envs.games.making import GameMaker
from sightline.envs.games.miniwob import BROWSERS, MiniWoB
from sightline.errors import BadInput, RunFailed

pytest.importorskip("miniwob")
pytest.importorskip("playwright")
if not any(map(shutil.which, BROWSERS)):
    pytest.skip("there is no Chromium", allow_module_level=True)


_OPEN: list[MiniWoB] = []
"""A game that nobody plays: it keeps the browser for the next test."""


@pytest.fixture
def browser() -> None:
    if not _OPEN:
        _OPEN.append(MiniWoB("click-test"))


@pytest.fixture
def no_browser() -> None:
    while _OPEN:
        _OPEN.pop().close()


@pytest.fixture(scope="module", autouse=True)
def _nothing_is_left() -> Iterator[None]:
    yield
    while _OPEN:
        _OPEN.pop().close()


@pytest.fixture
def game(browser: None) -> Iterator[MiniWoB]:
    made = MiniWoB("click-test")
    yield made
    made.close()


def in_page(game: MiniWoB, work: Callable[[Any], Any]) -> Any:
    return game._browser.ask(work, game._page)


def middle(game: MiniWoB, selector: str) -> str:
    box = in_page(game, lambda page: page.locator(selector).bounding_box())
    return f"{int(box['x'] + box['width'] / 2)} {int(box['y'] + box['height'] / 2)}"


def test_a_button_is_clicked(game: MiniWoB) -> None:
    observation, info = game.reset(seed=0)
    assert game.observation_space.contains(observation)
    assert observation.text.endswith("Your task: Click the button.") and info["success"] is False
    assert observation.images[0].shape == (210, 160, 3) and np.ptp(observation.images[0]) > 100
    _, reward, terminated, _, info = game.step(f"click {middle(game, '#subbtn')}")
    assert (reward, terminated, info["success"], info["mistakes"]) == (1.0, True, True, 0)


def test_equal_seeds_give_equal_pages_and_others_other_ones(game: MiniWoB) -> None:
    first, again, other = (game.reset(seed=seed)[0].images[0] for seed in (1, 1, 2))
    assert (first == again).all() and (first != other).any()


def test_words_are_typed_into_a_field(browser: None) -> None:
    game = MiniWoB("enter-text")
    observation, _ = game.reset(seed=1)
    wanted = observation.text.split('"')[1]
    before = game.draw()
    game.step(f"click {middle(game, '#tt')}")
    observation, *_ = game.step(f"type {wanted}")
    assert (observation.images[0] != before).any(), "what is typed is seen"
    _, reward, *_ = game.step(f"click {middle(game, '#subbtn')}")
    assert reward == 1.0
    game.close()


def test_other_commands_move_the_mouse_and_press_keys(browser: None) -> None:
    game = MiniWoB("drag-box")
    game.reset(seed=1)
    before = game.draw()
    small = "40 100"
    observation, *_ = game.step(f"drag {small} to 120 180")
    assert game._mistakes == 0
    for command in ("double click 5 5", "scroll down 80 100", "press Tab", "press Control+a"):
        *_, info = game.step(command)
        assert info["mistakes"] == 0, command
    assert observation.images[0].shape == before.shape
    game.close()


def test_what_means_nothing_is_counted_and_changes_nothing(game: MiniWoB) -> None:
    before = game.reset(seed=0)[0].images[0]
    for number, command in enumerate(("dance", "click 10", "click 500 10", "press NoSuchKey", ""), 1):
        observation, reward, terminated, _, info = game.step(command)
        assert (info["mistakes"], reward, terminated) == (number, 0.0, False), command
    assert (observation.images[0] == before).all()


def test_a_page_that_leads_away_ends_the_episode(game: MiniWoB) -> None:
    game.reset(seed=0)
    in_page(game, lambda page: page.evaluate("() => { location.href = 'click-link.html'; }"))
    in_page(game, lambda page: page.wait_for_timeout(300))
    _, reward, terminated, _, info = game.step("click 1 1")
    assert (reward, terminated, info["success"]) == (0.0, True, False)
    assert game.reset(seed=0)[0].text.endswith("Click the button."), "the next episode is back on the page"


def test_nothing_beyond_the_loopback_server_is_reached(game: MiniWoB) -> None:
    game.reset(seed=0)
    ask = "() => fetch('http://example.com/').then(() => 'reached', () => 'refused')"
    fetched = in_page(game, lambda page: page.evaluate(ask))
    assert fetched == "refused"


@pytest.mark.parametrize("form", ["http://{own}@{other}/", "http://{other}/"])
def test_another_server_of_this_machine_is_not_reached_by_any_address(game: MiniWoB, form: str) -> None:
    """Whatever stands before an @ is no host: `http://127.0.0.1:80@elsewhere/` is elsewhere."""
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.send_response(200)
            self.end_headers()

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        own = game._browser.address.removeprefix("http://")
        address = form.format(own=own, other=f"127.0.0.1:{server.server_port}")
        game.reset(seed=0)
        ask = (
            "url => new Promise(done => { const i = new Image(); i.onload = i.onerror = () => done(1); i.src = url; })"
        )
        in_page(game, lambda page: page.evaluate(ask, address))
        socket = address.replace("http:", "ws:")
        ask = "url => new Promise(done => { const s = new WebSocket(url); s.onclose = s.onerror = () => done(1); })"
        with contextlib.suppress(Exception):  # some of these are refused as no address
            in_page(game, lambda page: page.evaluate(ask, socket))
        server.shutdown()
    assert not asked


def test_a_page_that_hangs_is_given_up(game: MiniWoB, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sightline.envs.games.miniwob.PATIENCE", 300)
    monkeypatch.setattr("sightline.envs.games.miniwob._BEGIN", "() => { WOB_TASK_READY = false; }")
    with pytest.raises(Exception, match="Timeout"):
        game.reset(seed=0)


def test_other_event_loops_run_beside_it(game: MiniWoB) -> None:
    """As those of chat models do, which play such a game."""

    async def two() -> int:
        return 2

    game.reset(seed=0)
    assert asyncio.run(two()) == 2


def test_no_process_is_left(no_browser: None) -> None:
    def browsers() -> list[psutil.Process]:
        return [child for child in psutil.Process().children(recursive=True) if "chrom" in child.name()]

    games = [MiniWoB("click-test"), MiniWoB("click-button")]
    assert browsers()
    for game in games:
        game.close()
        game.close()
    assert not browsers()


def test_a_browser_that_dies_ends_its_episodes_only(no_browser: None) -> None:
    """The next game has another browser; those of the dead one can be closed."""
    first, second = MiniWoB("click-test"), MiniWoB("click-test")
    for child in psutil.Process().children(recursive=True):
        if "chrom" in child.name():
            child.kill()
    with pytest.raises(RunFailed, match="the browser of the pages was ended from outside"):
        first.step("click 5 5")
    assert first.reset(seed=0)[0].images[0].shape == (210, 160, 3), "it is started again"
    first.close()
    third = MiniWoB("click-test")
    assert third.reset(seed=0)[0].images[0].shape == (210, 160, 3)
    second.close()
    assert third.reset(seed=1)[1]["success"] is False
    third.close()


@pytest.mark.parametrize(
    ("options", "expected"), [({"page": "click-tset"}, "'click-test'"), ({"render_size": (8, 8)}, "too small")]
)
def test_wrong_options_are_said_in_one_line(options: dict[str, Any], expected: str) -> None:
    with pytest.raises(BadInput) as caught:
        GameMaker("miniwob", options)()
    assert expected in str(caught.value) and "\n" not in str(caught.value)


def test_without_a_package_or_a_browser_one_line_says_what_to_install(
    no_browser: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "miniwob", None)
        with pytest.raises(RunFailed, match=r"pip install 'sightline\[miniwob\]'"):
            GameMaker("miniwob")()
        with pytest.raises(gymnasium.error.DependencyNotInstalled):
            MiniWoB()
    monkeypatch.setattr("shutil.which", lambda name: "/nowhere/chromium")
    with pytest.raises(RunFailed, match="no Chromium could be started"):
        MiniWoB()
