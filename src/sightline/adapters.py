"""Simulators that need a few lines to be Gymnasium environments with pictures: `env=sightline.adapters:crafter`.

Each function makes one environment, imports its package when it is called, and names what to install if that is
missing. What the packages leave out is done here: frames, seeds, the difference between an end and a time limit, names
of actions.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import importlib
import logging
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from sightline.envs.frames import Size
from sightline.envs.games.contract import ActionText, AnyText
from sightline.envs.games.text_game import TextGame, text_game
from sightline.envs.rendering import prepare_rendering
from sightline.errors import BadInput
from sightline.requirements import wheel_of

ADAPTERS = {
    "sightline.adapters:robosuite": (("control",), "robosuite's arms, by its own task: env_options.task=Door."),
    "sightline.adapters:crafter": (("control", "agent"), "Crafter: a small world to survive in."),
    "sightline.adapters:nethack": (("control", "agent"), "NetHack by NLE, drawn as its terminal."),
    "sightline.adapters:textworld": (("agent",), "TextWorld's games, in words: env_options.game=FILE.z8."),
}
"""What to say in `env=` -> who can act there, and one line for lists; each needs a package that others make."""

ROBOSUITE = "robosuite h5py 'mujoco<3.10'"
"""What pip installs for robosuite: it imports h5py, which it does not require, and 1.5.2 fails from MuJoCo 3.10 on."""


def crafter(render_mode: str | None = None, render_size: Size = (64, 64), **options: Any) -> gymnasium.Env[Any, Any]:
    """Crafter (Hafner, ICLR 2022), a small world to survive in; `pip install crafter`.

    Observations are its pictures, uint8[64, 64, 3]; actions have names, for agents. Death ends an episode, its `length`
    cuts it off. No success is stated; infos hold `achievements`.

    Args:
        render_mode: `rgb_array` or None.
        render_size: height and width of frames in pixels.
        options: arguments of `crafter.Env`: `area`, `view`, `size`, `reward`, `length`.

    Raises:
        gymnasium.error.DependencyNotInstalled: `crafter` is missing.
    """
    return Crafter(_package("crafter", "crafter").Env(**options), render_mode, render_size)


def robosuite(
    task: str = "Lift",
    robots: str = "Panda",
    camera: str = "agentview",
    render_mode: str | None = None,
    render_size: Size = (256, 256),
    keys: list[str] | None = None,
    **options: Any,
) -> gymnasium.Env[Any, Any]:
    """A robot arm of robosuite (Zhu et al., 2020); `pip install robosuite h5py 'mujoco<3.10'`.

    Observations are the state of robot and objects, one vector; the horizon cuts an episode off; success is stated.

    Args:
        task: name of robosuite's environment.
        robots: the arm.
        camera: what looks: `agentview`, `frontview`, `sideview`, `birdview`.
        render_mode: `rgb_array` or None.
        render_size: height and width of frames in pixels.
        keys: of robosuite's observations that are part of the vector; default: those that its own wrapper takes.
        options: further arguments of `robosuite.make`: `horizon`, `control_freq`, `reward_shaping`.

    Raises:
        BadInput: there is no such task or camera.
        gymnasium.error.DependencyNotInstalled: `robosuite` is missing.
    """
    prepare_rendering(render_mode is not None)
    package = _package("robosuite", ROBOSUITE)
    logging.getLogger("robosuite_logs").setLevel(logging.ERROR)  # it tells of its configuration at every reset
    if task not in package.ALL_ENVIRONMENTS:
        raise BadInput(f"robosuite has no task '{task}', but {', '.join(sorted(package.ALL_ENVIRONMENTS))}")
    # Its own picture goes into observations; ours is drawn when it is asked for, so that nobody pays for it twice.
    env = package.make(
        task,
        robots=robots,
        has_renderer=False,
        has_offscreen_renderer=render_mode is not None,
        use_camera_obs=False,
        **options,
    )
    if camera not in env.sim.model.camera_names:
        raise BadInput(f"robosuite's '{task}' has no camera '{camera}', but {', '.join(env.sim.model.camera_names)}")
    return Robosuite(env, camera, render_mode, render_size, keys)


def nethack(task: str = "NetHackScore-v0", render_mode: str | None = None, **options: Any) -> gymnasium.Env[Any, Any]:
    """NetHack (Küttler et al., NeurIPS 2020); `pip install 'nle>=1.2'`.

    Observations are the map's characters and the bottom line's numbers; a frame is the terminal, uint8[264, 480, 3].
    Actions have names, for agents. Success is the task's own, or an ascension.

    Args:
        task: id of NLE's.
        render_mode: `rgb_array` or None.
        options: further arguments of NLE: `character`, `max_episode_steps`.

    Raises:
        BadInput: there is no such task.
        gymnasium.error.DependencyNotInstalled: `nle` is missing.
    """
    _package("nle", "'nle>=1.2'")
    tasks = [name for name, spec in gymnasium.registry.items() if str(spec.entry_point).startswith("nle.env")]
    if not tasks:  # before 1.1 it was one of the old gym
        raise BadInput("this nle registers nothing with Gymnasium; pip install 'nle>=1.2'")
    if task not in tasks:
        raise BadInput(f"nle has no task '{task}', but {', '.join(sorted(tasks))}")
    keys = ("chars", "blstats", "tty_chars", "tty_colors", "tty_cursor")
    env = gymnasium.make(task, disable_env_checker=True, observation_keys=keys, **options)
    return NetHack(env, render_mode)


def textworld(game: str = "") -> TextGame:
    """Games of TextWorld (Côté et al., 2018), for agents; `pip install textworld`.

    The admissible commands of a state are its actions. A won game is a success; the reward is the gain in score.

    Args:
        game: a game's file (`.z8`, `.ulx`), or a folder of such files, of which the seed takes one.

    Raises:
        BadInput: there is no such game.
        gymnasium.error.DependencyNotInstalled: `textworld` is missing.
    """
    return text_game(lambda: TextWorld(game), commands="admissible_commands", success="won")


def _package(name: str, requirement: str) -> Any:
    """Import a simulator's package.

    Raises:
        gymnasium.error.DependencyNotInstalled: it, or something that it needs, is missing.
    """
    try:
        return importlib.import_module(name)
    except ImportError as error:
        # What is missing may be something that the package needs and does not say.
        if error.name is not None and error.name.split(".")[0] != name:
            requirement = wheel_of(error.name)
        raise gymnasium.error.DependencyNotInstalled(f"{error}; pip install {requirement}") from error


class Crafter(gymnasium.Env[np.ndarray, np.int64]):
    """`crafter.Env`, which has the API of the old gym, no seeds and no time limit of its own; see `crafter`."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 10}

    def __init__(self, env: Any, render_mode: str | None, render_size: Size) -> None:
        self._env = env
        self.render_mode = render_mode
        self.render_size = render_size
        self.action_names: tuple[str, ...] = tuple(env.action_names)
        self.observation_space = spaces.Box(0, 255, env.observation_space.shape, np.uint8)
        self.action_space = spaces.Discrete(len(self.action_names))

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        # It makes the seed of a world of its own seed and the number of its episode.
        self._env._seed = int(self.np_random.integers(2**31))
        self._env._episode = 0
        first = self._env.reset()
        self._keep_order()
        return first, {}

    def step(self, action: np.int64) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        observation, reward, over, info = self._env.step(int(action))
        died = info["discount"] == 0
        return observation, float(reward), died, bool(over and not died), info

    def render(self) -> np.ndarray | None:
        if self.render_mode is None:
            return None
        # Its night is drawn with random numbers of the world: a look must not change what happens next.
        numbers = self._env._world.random
        before = numbers.get_state()
        height, width = self.render_size
        frame: np.ndarray = self._env.render((width, height))
        numbers.set_state(before)
        return frame

    def _keep_order(self) -> None:
        """Keep each chunk's objects in the order in which they came; a set keeps them by their address in memory, and
        that order decides which animal disappears."""
        world = self._env._world
        chunks: defaultdict[Any, Any] = defaultdict(_InOrder)
        for key, members in world.chunks.items():
            chunks[key] = _InOrder.fromkeys(member for member in world.objects if member in members)
        world._chunks = chunks


class _InOrder(dict[Any, None]):
    """A set that is iterated over in the order in which its members came."""

    def add(self, member: Any) -> None:
        self[member] = None

    def remove(self, member: Any) -> None:
        del self[member]


class Robosuite(gymnasium.Env[np.ndarray, np.ndarray]):
    """A task of robosuite by its `GymWrapper`, which takes no pictures and no seeds of its own; see `robosuite`."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 20}

    def __init__(
        self, env: Any, camera: str, render_mode: str | None, render_size: Size, keys: list[str] | None
    ) -> None:
        wrappers = _package("robosuite.wrappers", ROBOSUITE)
        self._task = env
        self._env = wrappers.GymWrapper(env, keys=keys)
        self._camera = camera
        self.render_mode = render_mode
        self.render_size = render_size
        self.observation_space = self._env.observation_space
        self.action_space = self._env.action_space

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        number = int(self.np_random.integers(2**31))
        # Its samplers share this generator, so it stays the same object; older versions draw from numpy's own.
        self._task.rng.bit_generator.state = np.random.default_rng(number).bit_generator.state
        old_context = getattr(self._task.sim, "_render_context_offscreen", None)
        with _numpy_seeded(number):
            observation, _ = self._env.reset()
        # Each reset builds the simulation anew. What the old one has in OpenGL is freed in its own context, or buffers
        # of the same numbers would be freed in the new one's.
        if old_context is not None and self._task.sim._render_context_offscreen is not old_context:
            old_context.gl_ctx.make_current()
            old_context.con.free()
            old_context.gl_ctx.free()
        # Half a gigabyte in circles of references would stay.
        del old_context
        gc.collect()
        return self._in_space(observation), {"success": self._success()}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        # It ends episodes at its horizon only, which is a time limit.
        observation, reward, over, _, info = self._env.step(action)
        return self._in_space(observation), float(reward), False, bool(over), {**info, "success": self._success()}

    def render(self) -> np.ndarray | None:
        if self.render_mode is None:
            return None
        height, width = self.render_size
        # Its renderer takes it that its context is still the current one; another simulation's, made or freed since,
        # ends that, and the picture would be whatever stood in memory.
        self._task.sim._render_context_offscreen.gl_ctx.make_current()
        picture = self._task.sim.render(camera_name=self._camera, height=height, width=width)
        return np.ascontiguousarray(picture[::-1])  # OpenGL counts rows from below

    def close(self) -> None:
        self._env.close()

    def _in_space(self, observation: Any) -> np.ndarray:
        return np.asarray(observation, self.observation_space.dtype)

    def _success(self) -> bool:
        return bool(self._task._check_success())


@contextlib.contextmanager
def _numpy_seeded(seed: int) -> Iterator[None]:
    """Numpy's global generator begins at `seed` within, and goes on afterwards where it was."""
    before = np.random.get_state()
    np.random.seed(seed)
    try:
        yield
    finally:
        np.random.set_state(before)


TERMINAL_COLOURS = [
    "#000000",  # black
    "#aa0000",  # red
    "#00aa00",  # green
    "#aa5500",  # brown
    "#3c3cdc",  # blue
    "#aa00aa",  # magenta
    "#00aaaa",  # cyan
    "#bebebe",  # grey
    "#5a5a5a",  # dark grey
    "#ff5555",  # light red
    "#55ff55",  # light green
    "#ffff55",  # yellow
    "#6e6eff",  # light blue
    "#ff55ff",  # light magenta
    "#55ffff",  # light cyan
    "#ffffff",  # white
]
"""Colours of a terminal, by number."""


class NetHack(gymnasium.Env[dict[str, np.ndarray], np.int64]):
    """NLE with pictures of its terminal and seeds that are heeded; see `nethack`."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 10}

    def __init__(self, env: gymnasium.Env[Any, Any], render_mode: str | None) -> None:
        self._env = env
        self.render_mode = render_mode
        game: Any = env.unwrapped
        self.action_names: tuple[str, ...] = tuple(_words(action) for action in game.actions)
        parts = env.observation_space
        assert isinstance(parts, spaces.Dict)
        self.observation_space: Any = spaces.Dict({key: parts[key] for key in ("chars", "blstats")})
        self.action_space: Any = spaces.Discrete(len(self.action_names))
        self._screen: dict[str, np.ndarray] = {}

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        super().reset(seed=seed)
        core, display = self.np_random.integers(2**31, size=2).tolist()
        game: Any = self._env.unwrapped
        game.seed(core, display, reseed=False)
        observation, info = self._env.reset()
        return self._map_and_numbers(observation), _with_success(info)

    def step(self, action: np.int64) -> tuple[dict[str, np.ndarray], float, bool, bool, dict[str, Any]]:
        observation, reward, terminated, truncated, info = self._env.step(int(action))
        # At its limit of steps it says both.
        over = bool(terminated and not truncated)
        return self._map_and_numbers(observation), float(reward), over, bool(truncated), _with_success(info)

    def render(self) -> np.ndarray | None:
        if self.render_mode is None:
            return None
        palette = _palette()
        letters = _letters()[self._screen["tty_chars"]]  # [24, 80, 11, 6]
        colours = palette[self._screen["tty_colors"] % len(palette)]  # [24, 80, 3]
        cells = letters[..., None] * colours[:, :, None, None, :]
        rows, columns, height, width, channels = cells.shape
        frame: np.ndarray = cells.swapaxes(1, 2).reshape(rows * height, columns * width, channels)
        return frame

    def close(self) -> None:
        self._env.close()

    def _map_and_numbers(self, observation: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """What learners read of an observation; its screen is kept for `render`."""
        # Copies: NLE fills the same arrays at each step.
        copies = {key: np.array(part) for key, part in observation.items()}
        self._screen = {key: copies[key] for key in ("tty_chars", "tty_colors")}
        return {key: copies[key] for key in self.observation_space}


COMPASS = {"n": "north", "e": "east", "s": "south", "w": "west"}


def _words(action: Any) -> str:
    """Name of an action of NLE, an enumeration's member; directions that are gone in as far as possible are `far`."""
    kind = type(action).__name__
    name = action.name.lower()
    if not kind.startswith("CompassDirection"):
        return str(name.replace("_", " "))
    direction = "".join(COMPASS[letter] for letter in name)
    if kind.endswith("Longer"):
        return f"far {direction}"
    return direction


def _with_success(info: dict[str, Any]) -> dict[str, Any]:
    status = getattr(info.get("end_status"), "name", "")
    return {**info, "end_status": status, "success": bool(info["is_ascended"] or status == "TASK_SUCCESSFUL")}


@functools.cache
def _palette() -> np.ndarray:
    """Colours of a terminal by number, uint8[16, 3], RGB."""
    return np.array([tuple(bytes.fromhex(colour[1:])) for colour in TERMINAL_COLOURS], np.uint8)


@functools.cache
def _letters() -> np.ndarray:
    """Pictures of the 256 characters, uint8[256, 11, 6], of 0 and 1."""
    from PIL import Image, ImageDraw, ImageFont

    font = ImageFont.load_default_imagefont()
    start, top, end, bottom = font.getbbox("W")
    height = int(bottom - top)
    width = int(end - start)
    sheet = np.zeros((256, height, width), np.uint8)
    for code in range(33, 256):
        cell = Image.new("1", (width, height))
        ImageDraw.Draw(cell).text((0, 0), bytes([code]), fill=1, font=font)
        sheet[code] = np.asarray(cell)
    return sheet


class TextWorld(gymnasium.Env[str, str]):
    """Games of TextWorld, of which the seed takes one, as an environment that is played in words; see `textworld`."""

    def __init__(self, game: str) -> None:
        package = _package("textworld", "textworld")
        path = Path(game)
        self._files = [path]
        if game and path.is_dir():
            self._files = sorted([*path.glob("*.z8"), *path.glob("*.ulx")])
        if not self._files or not self._files[0].is_file():
            raise BadInput(
                f"textworld: there is no game {game!r}; name a file or a folder in env_options.game, and make one by: "
                "tw-make custom --output games/first.z8"
            )
        self._package = package
        self._requested_infos = package.EnvInfos(admissible_commands=True, won=True, score=True)
        self._game: Any = None
        self._score = 0.0
        self.observation_space: Any = AnyText()
        self.action_space: Any = ActionText()

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        super().reset(seed=seed)
        self.close()
        file = self._files[int(self.np_random.integers(len(self._files)))]
        self._game = self._package.start(str(file), request_infos=self._requested_infos)
        state = self._game.reset()
        self._score = 0.0
        return state.feedback.strip(), _infos(state)

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        state, score, over = self._game.step(action)
        gain = score - self._score
        self._score = float(score)
        return state.feedback.strip(), float(gain), bool(over), False, _infos(state)

    def close(self) -> None:
        if self._game is not None:
            self._game.close()
            self._game = None


def _infos(state: Any) -> dict[str, Any]:
    return {"admissible_commands": list(state.admissible_commands or ()), "won": bool(state.won)}
