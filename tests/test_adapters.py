"""Adapters of other people's simulators, driven by stand-ins with those packages' interfaces.

`tools/lanes/simulators.sh` runs them with the packages themselves.
"""

from __future__ import annotations

import enum
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from sightline import adapters
from sightline.envs.games.making import GameMaker
from sightline.envs.making import EnvMaker
from sightline.errors import BadInput, RunFailed


def module(monkeypatch: pytest.MonkeyPatch, name: str, **members: Any) -> None:
    """Put a module of these members in the place of a package."""
    stand_in = ModuleType(name)
    vars(stand_in).update(members)
    monkeypatch.setitem(sys.modules, name, stand_in)


@pytest.mark.parametrize(
    ("adapter", "package", "installed_by"),
    [
        ("crafter", "crafter", "pip install crafter"),
        ("robosuite", "robosuite", "pip install robosuite h5py 'mujoco<3.10'"),
        ("nethack", "nle", "pip install 'nle>=1.2'"),
    ],
)
def test_a_missing_package_is_named(
    adapter: str, package: str, installed_by: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(RunFailed, match=f"{package}.*; {installed_by}") as failure:
        EnvMaker(f"sightline.adapters:{adapter}")()
    assert "\n" not in str(failure.value)


# -- crafter: the old API of gym ---------------------------------------------------------------------------------------


class OldCrafter:
    """The interface of `crafter.Env`; two animals wait in a set, and a night is drawn with the world's numbers."""

    action_names = ("noop", "move_left")
    metadata = None

    def __init__(self, length: int = 3, deadly: bool = False) -> None:
        self._length, self._deadly, self._seed, self._episode = length, deadly, None, 0
        self.observation_space = SimpleNamespace(shape=(8, 8, 3))
        self._world: Any = None

    def reset(self) -> np.ndarray:
        self._episode += 1
        random = np.random.RandomState(hash((self._seed, self._episode)) % 2**31)
        animals = ["cow", "zombie"]
        chunks = {(0, 0): set(animals)}
        self._world = SimpleNamespace(random=random, objects=animals, chunks=chunks, _chunks=chunks)
        self._time = 0
        return self.render()

    def step(self, action: int) -> tuple[np.ndarray, float, bool, dict[str, Any]]:
        assert isinstance(action, int)
        self._time += 1
        dead = self._deadly and self._time == 2
        return self.render(), 0.1, dead or self._time >= self._length, {"discount": 1 - float(dead)}

    def render(self, size: Any = None) -> np.ndarray:
        width, height = size or (8, 8)
        return np.full((height, width, 3), self._world.random.randint(256), np.uint8)


def test_crafter_repeats_itself_from_its_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    module(monkeypatch, "crafter", Env=OldCrafter)

    def played(env: gymnasium.Env[Any, Any], looks: bool) -> list[int]:
        shades = [int(env.reset(seed=5)[0][0, 0, 0])]
        for _ in range(3):
            if looks:
                env.render()
            shades.append(int(env.step(np.int64(1))[0][0, 0, 0]))
        return shades

    env = adapters.crafter("rgb_array")
    first = played(env, looks=False)
    assert played(env, looks=True) == first == played(adapters.crafter("rgb_array"), looks=False)
    assert len(set(first)) > 1


def test_crafter_keeps_its_animals_in_the_order_in_which_they_came(monkeypatch: pytest.MonkeyPatch) -> None:
    module(monkeypatch, "crafter", Env=OldCrafter)
    env: Any = adapters.crafter()
    env.reset(seed=0)
    chunk = env._env._world._chunks[0, 0]
    chunk.remove("cow")
    chunk.add("cow")
    assert list(chunk) == ["zombie", "cow"]


@pytest.mark.parametrize(("deadly", "ends"), [(True, (True, False)), (False, (False, True))])
def test_crafter_tells_death_from_the_end_of_time(
    deadly: bool, ends: tuple[bool, bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    module(monkeypatch, "crafter", Env=OldCrafter)
    env = adapters.crafter(deadly=deadly)
    env.reset(seed=0)
    steps = [env.step(np.int64(0)) for _ in range(2 if deadly else 3)]
    assert [step[2:4] for step in steps] == [(False, False)] * (len(steps) - 1) + [ends]


def test_crafter_is_drawn_at_the_size_that_is_asked_for_and_names_its_actions(monkeypatch: pytest.MonkeyPatch) -> None:
    module(monkeypatch, "crafter", Env=OldCrafter)
    env = EnvMaker("sightline.adapters:crafter", frame_size=(20, 30)).as_it_is()
    env.reset(seed=0)
    frame: Any = env.render()
    assert frame.shape == (20, 30, 3)
    assert env.get_wrapper_attr("action_names") == ("noop", "move_left")


# -- robosuite ---------------------------------------------------------------------------------------------------------


class Arm:
    """The interface of a task of robosuite that the adapter uses: a camera that counts rows from below, and an OpenGL
    context that is current for one of them at a time."""

    current: Any = None

    def __init__(self, horizon: int = 2, **options: Any) -> None:
        self.horizon, self.options, self.rng = horizon, options, np.random.default_rng()
        self.sampler_rng = self.rng  # of those who place objects: made once, and kept
        context = SimpleNamespace(gl_ctx=SimpleNamespace(make_current=self.make_current))
        self.sim = SimpleNamespace(
            model=SimpleNamespace(camera_names=("agentview",)),
            render=self.picture,
            _render_context_offscreen=context,
        )
        self.place = 0.0

    def make_current(self) -> None:
        Arm.current = self

    def picture(self, camera_name: str, height: int, width: int) -> np.ndarray:
        assert Arm.current is self, "OpenGL would draw nothing, and the picture be what stood in memory"
        picture = np.zeros((height, width, 3), np.uint8)
        picture[0] = 255
        return picture

    def _check_success(self) -> np.bool_:
        return np.bool_(self.time == self.horizon)


class ArmWrapper:
    """The interface of robosuite's `GymWrapper`: an end is the horizon, seeds go to numpy's own generator."""

    metadata = None
    render_mode = None

    def __init__(self, env: Arm, keys: list[str] | None = None) -> None:
        self.env = env
        self.observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float32)
        self.action_space = spaces.Box(-1, 1, (1,), np.float32)

    def reset(self, seed: int | None = None) -> tuple[np.ndarray, dict[str, Any]]:
        self.env.time = 0
        return np.array([self.env.sampler_rng.uniform(), np.random.uniform()]), {}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self.env.time += 1
        return np.zeros(2), 0.5, self.env.time >= self.env.horizon, False, {}


@pytest.fixture
def _robosuite(monkeypatch: pytest.MonkeyPatch) -> None:
    module(monkeypatch, "robosuite", ALL_ENVIRONMENTS={"Lift", "Door"}, make=lambda task, **options: Arm(**options))
    module(monkeypatch, "robosuite.wrappers", GymWrapper=ArmWrapper)


@pytest.mark.usefixtures("_robosuite")
def test_robosuite_has_pictures_that_stand_upright() -> None:
    env = EnvMaker("sightline.adapters:robosuite", frame_size=(4, 6))()
    env.reset(seed=0)
    frame: Any = env.render()
    assert frame.shape == (4, 6, 3)
    assert frame[-1].min() == 255 and frame[:-1].max() == 0
    other = EnvMaker("sightline.adapters:robosuite", frame_size=(4, 6))()
    other.reset(seed=0)
    assert np.array_equal(other.render(), frame) and np.array_equal(env.render(), frame)


@pytest.mark.usefixtures("_robosuite")
def test_robosuite_heeds_seeds_and_leaves_the_numbers_of_others_alone() -> None:
    np.random.seed(3)
    expected = np.random.uniform()
    np.random.seed(3)
    env, other = adapters.robosuite(), adapters.robosuite()
    first = env.reset(seed=1)[0]
    assert first.dtype == np.float32
    assert (env.reset(seed=1)[0] == first).all() and (other.reset(seed=1)[0] == first).all()
    assert (env.reset(seed=2)[0] != first).all()
    assert np.random.uniform() == expected


@pytest.mark.usefixtures("_robosuite")
def test_robosuite_states_success_and_its_horizon_is_a_time_limit() -> None:
    env = adapters.robosuite(horizon=2)
    _, info = env.reset(seed=0)
    assert info == {"success": False}
    ends = [env.step(np.zeros(1, np.float32))[2:] for _ in range(2)]
    assert ends == [(False, False, {"success": False}), (False, True, {"success": True})]


@pytest.mark.usefixtures("_robosuite")
@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({"task": "Fold"}, "robosuite has no task 'Fold', but Door, Lift"),
        ({"camera": "above"}, "robosuite's 'Lift' has no camera 'above', but agentview"),
    ],
)
def test_robosuite_names_what_there_is(options: dict[str, str], line: str) -> None:
    with pytest.raises(BadInput, match=line):
        EnvMaker("sightline.adapters:robosuite", options)()


# -- NetHack -----------------------------------------------------------------------------------------------------------


class CompassDirection(enum.IntEnum):
    N = ord("k")


class CompassDirectionLonger(enum.IntEnum):
    SE = ord("N")


class Command(enum.IntEnum):
    PICK_UP = ord(",")


class Status(enum.IntEnum):
    RUNNING = 0
    TASK_SUCCESSFUL = 2


class OldNetHack(gymnasium.Env[Any, Any]):
    """The interface of NLE: the same arrays at each step, seeds by a method of its own, no pictures."""

    actions = (CompassDirection.N, CompassDirectionLonger.SE, Command.PICK_UP)

    def __init__(self, observation_keys: tuple[str, ...] = (), won_at: int = 99, limit: int = 99) -> None:
        shapes = {"chars": (2, 3), "blstats": (4,), "tty_chars": (2, 3), "tty_colors": (2, 3), "tty_cursor": (2,)}
        self._arrays = {key: np.zeros(shapes[key], np.uint8) for key in observation_keys}
        self.observation_space = spaces.Dict(
            {key: spaces.Box(0, 255, shapes[key], np.uint8) for key in observation_keys}
        )
        self.action_space = spaces.Discrete(3)
        self.won_at, self.limit = won_at, limit
        self.seeds: list[tuple[int, int, bool]] = []

    def seed(self, core: int, disp: int, reseed: bool = False) -> None:
        self.seeds.append((core, disp, reseed))

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self.time = 0
        for array in self._arrays.values():
            array[:] = 0
        self._arrays["tty_chars"][0, 1], self._arrays["tty_colors"][0, 1] = ord("@"), 15
        return self._arrays, {"end_status": Status.RUNNING, "is_ascended": False}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.time += 1
        self._arrays["blstats"][:] = self.time
        won, late = self.time == self.won_at, self.time == self.limit
        status = Status.TASK_SUCCESSFUL if won else Status.RUNNING
        return self._arrays, 1.0, won or late, late, {"end_status": status, "is_ascended": False}


@pytest.fixture
def _nle(monkeypatch: pytest.MonkeyPatch) -> Any:
    module(monkeypatch, "nle")
    module(monkeypatch, "nle.env", NLE=OldNetHack)
    gymnasium.register("NetHackScore-v0", "nle.env:NLE")
    yield
    del gymnasium.registry["NetHackScore-v0"]


def test_an_nle_of_the_old_gym_is_too_old(monkeypatch: pytest.MonkeyPatch) -> None:
    module(monkeypatch, "nle")
    with pytest.raises(BadInput, match=r"this nle registers nothing with Gymnasium; pip install 'nle>=1.2'"):
        adapters.nethack()


@pytest.mark.usefixtures("_nle")
def test_nethack_is_drawn_as_its_terminal() -> None:
    env = EnvMaker("sightline.adapters:nethack").as_it_is()
    env.reset(seed=0)
    frame: Any = env.render()
    assert frame.shape == (2 * 11, 3 * 6, 3) and frame.dtype == np.uint8
    at_sign = frame[:11, 6:12]
    assert (at_sign.reshape(-1, 3).max(0) == 255).all()
    assert frame.sum() == at_sign.sum() > 0


@pytest.mark.usefixtures("_nle")
def test_nethack_gives_its_seeds_to_the_game_and_copies_what_it_returns() -> None:
    env = adapters.nethack()
    game: Any = env._env.unwrapped  # type: ignore[attr-defined]
    first, _ = env.reset(seed=4)
    second = env.step(np.int64(0))[0]
    assert first["blstats"].max() == 0 and second["blstats"].min() == 1
    assert set(first) == {"chars", "blstats"}
    env.reset(seed=4)
    env.reset(seed=5)
    assert game.seeds[0] == game.seeds[1] != game.seeds[2]
    assert all(reseed is False for *_, reseed in game.seeds)


@pytest.mark.usefixtures("_nle")
def test_nethack_states_success_names_its_actions_and_tells_its_limit_from_an_end() -> None:
    env: Any = adapters.nethack(won_at=2)
    env.reset(seed=0)
    assert env.action_names == ("north", "far southeast", "pick up")
    ends = [env.step(np.int64(0))[2:] for _ in range(2)]
    assert [(terminated, truncated, info["success"]) for terminated, truncated, info in ends] == [
        (False, False, False),
        (True, False, True),
    ]
    env = adapters.nethack(limit=1)
    env.reset(seed=0)
    assert env.step(np.int64(0))[2:4] == (False, True)


@pytest.mark.usefixtures("_nle")
def test_nethack_names_its_tasks() -> None:
    with pytest.raises(BadInput, match="nle has no task 'NetHackWin', but NetHackScore-v0"):
        EnvMaker("sightline.adapters:nethack", {"task": "NetHackWin"})()


# -- TextWorld ---------------------------------------------------------------------------------------------------------


class Story:
    """The interface of a game that `textworld.start` begins: it is won by a command that is its file's name."""

    def __init__(self, file: str) -> None:
        self.goal, self.closed = Path(file).stem, False

    def reset(self) -> Any:
        return self._state("\n  You are in a kitchen. \n", won=False)

    def step(self, command: str) -> tuple[Any, int, bool]:
        won = command == self.goal
        return self._state("Well done!" if won else "Nothing happens.", won), 3 if won else 1, won

    def close(self) -> None:
        self.closed = True

    def _state(self, told: str, won: bool) -> Any:
        commands = None if won else ["look", self.goal]
        return SimpleNamespace(feedback=told, admissible_commands=commands, won=won)


@pytest.fixture
def stories(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    module(
        monkeypatch,
        "textworld",
        EnvInfos=lambda **wanted: wanted,
        start=lambda file, request_infos: Story(file),
    )
    for name in ("eat.z8", "sleep.z8", "eat.json"):
        (tmp_path / name).touch()
    return tmp_path


def test_textworld_is_a_game_for_agents(stories: Path) -> None:
    env = GameMaker("sightline.adapters:textworld", {"game": str(stories / "eat.z8")})()
    observation, info = env.reset(seed=0)
    assert observation.text.startswith("You are in a kitchen.")
    assert info["legal_actions"] == ("look", "eat")
    _, reward, terminated, truncated, info = env.step("look")
    assert (reward, terminated, truncated, info["success"]) == (1, False, False, False)
    _, reward, terminated, _, info = env.step("eat")
    assert (reward, terminated, info["success"]) == (2, True, True)


def test_the_seed_chooses_the_game_of_a_folder(stories: Path) -> None:
    env = adapters.textworld(str(stories))
    drawn = [env.reset(seed=seed)[1]["legal_actions"][1] for seed in range(20)]
    assert set(drawn) == {"eat", "sleep"}
    assert drawn == [env.reset(seed=seed)[1]["legal_actions"][1] for seed in range(20)]


@pytest.mark.parametrize("game", ["", "nowhere.z8"])
def test_a_missing_game_is_told_how_to_be_made(game: str, stories: Path) -> None:
    with pytest.raises(BadInput, match=f"textworld: there is no game '{game}'.*env_options.game.*tw-make custom"):
        GameMaker("sightline.adapters:textworld", {"game": game})()
