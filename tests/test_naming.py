"""How environments are found by name, made, and held to Gymnasium's API: rightly, or refused in one line."""

from __future__ import annotations

import os
import subprocess
import sys
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import SyncVectorEnv

from sightline.envs.constructing import parameters_of, size_options
from sightline.envs.frame_vector import FrameVectorEnv
from sightline.envs.making import DEFAULT_EPISODE_STEPS, EnvMaker
from sightline.errors import BadInput, RunFailed
from small_envs import Clock, Unasked


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str, str], None]]:
    """`module(name, program)`: a file of a user's in the working folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    registered, imported = dict(gymnasium.registry), set(sys.modules)

    def write(name: str, program: str) -> None:
        (tmp_path / f"{name}.py").write_text(program)

    yield write
    gymnasium.registry.clear()
    gymnasium.registry.update(registered)
    for name in set(sys.modules) - imported:
        if getattr(sys.modules[name], "__file__", None) and Path(str(sys.modules[name].__file__)).parent == tmp_path:
            del sys.modules[name]


def line(maker: EnvMaker, kind: type[Exception] = BadInput) -> str:
    with pytest.raises(kind) as caught:
        maker.as_it_is()
    said = str(caught.value)
    assert "\n" not in said
    return said


# -- ids ---------------------------------------------------------------------------------------------------------------


def test_an_id_without_a_version_is_the_newest_one_as_for_gymnasium() -> None:
    env = EnvMaker("CartPole").as_it_is()
    assert env.spec is not None and env.spec.id == "CartPole-v1"
    assert EnvMaker("registers_clock:registered/Clock").as_it_is().unwrapped.__class__ is Clock


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("FlappyBird-v0", "pip install 'flappy-bird-gymnasium', then say env=flappy_bird_gymnasium:FlappyBird-v0"),
        ("ALE/Pong-v5", "say env=ale_py:ALE/Pong-v5"),
        ("PongNoFrameskip-v4", "one of ale-py"),
        ("FetchReach-v4", "say env=gymnasium_robotics:FetchReach-v4"),
        ("dm_control/humanoid-stand-v0", "pip install 'shimmy[dm-control]'"),
        ("NetHackScore-v0", "env=sightline.adapters:nethack"),
        ("pkg/env.py:Rel", "there is no file 'pkg/env.py'"),
        ("/elsewhere/env.py:Rel", "there is no file '/elsewhere/env.py'"),
        (
            "small_envs:CartPole-v1",
            "module 'small_envs' registers no 'CartPole-v1' with Gymnasium, which has one of its own",
        ),
        ("miniwob/click-test-v1", "say env=miniwob env_options.page=click-test"),
        ("miniwob:miniwob/click-shades", "say env=miniwob env_options.page=click-shades"),
        ("Crafter", "env=sightline.adapters:crafter"),
        ("Zzyzx-v0", "an id that a package registers is named with its module: env=module:Zzyzx-v0"),
        ("Pendulm-v1", "did you mean 'Pendulum-v1'"),
        (":", "env=':' names no environment; say an id, module:id, module:Class, or file.py:Class"),
        ("", "env is empty; say a task"),
    ],
)
def test_an_unknown_id_is_answered_by_what_to_say(name: str, said: str) -> None:
    assert said in line(EnvMaker(name))


def test_packages_built_on_gymnasium_are_named_where_an_id_is_unknown() -> None:
    pytest.importorskip("minigrid")
    assert "minigrid" in line(EnvMaker("Zzyzx-v0"))


REGISTERING = """
import gymnasium, os
{how}
    gymnasium.register("Toy/Walk-v3", entry_point="small_envs:Clock")
    gymnasium.register("Toy/Run-v1", entry_point="small_envs:Clock")
"""


def test_ids_that_an_import_registers_are_found_and_suggested(module: Callable[[str, str], None]) -> None:
    module("toy_walks", REGISTERING.format(how="if True:"))
    assert EnvMaker("toy-walks:Toy/Walk").as_it_is().unwrapped.__class__ is Clock
    assert "did you mean 'Toy/Walk-v3'" in line(EnvMaker("toy_walks:Toy/Wlak-v3"))


def test_a_wrong_version_is_answered_with_the_ids_just_registered(module: Callable[[str, str], None]) -> None:
    module("toy_runs", REGISTERING.format(how="if True:"))
    said = line(EnvMaker("toy_runs:Toy/Walk-v9"))
    assert said.startswith("module 'toy_runs' has no 'Toy/Walk-v9'; did you mean 'Toy/Walk-v3'")


def test_a_module_that_registers_by_a_call_is_called(module: Callable[[str, str], None]) -> None:
    module("toy_calls", REGISTERING.format(how="def register_envs():"))
    assert EnvMaker("toy_calls:Toy/Run-v1").as_it_is().unwrapped.__class__ is Clock


@pytest.mark.parametrize(
    ("program", "said"),
    [
        ("import h5pyy\n", "the module 'toy' needs 'h5pyy', which is not installed: pip install h5pyy"),
        ("x = 1 / 0\n", "cannot import 'toy': ZeroDivisionError: division by zero (toy.py:1)"),
        ("import sys\nsys.exit(3)\n", "cannot import 'toy': SystemExit: 3 (toy.py:2)"),
        ("def f(:\n", "cannot import 'toy': SyntaxError: invalid syntax (toy.py, line 1)"),
        ("class Reacher: pass\n", "module 'toy' has no 'Lift', nor any environment class"),
    ],
)
def test_a_module_that_cannot_be_used_says_why_and_where(
    program: str, said: str, module: Callable[[str, str], None]
) -> None:
    module("toy", program)
    assert said in line(EnvMaker("toy:Lift"))


def test_a_module_that_is_not_there_is_told_from_one_that_lacks_a_package() -> None:
    assert "no such module, neither installed nor in the working folder" in line(EnvMaker("no_such_module:Clock"))
    assert "pip install 'panda-gym'" in line(EnvMaker("panda_gym:PandaReach-v3"))


# -- vectors -----------------------------------------------------------------------------------------------------------


def many_clocks(num_envs: int, **options: Any) -> Any:
    return SyncVectorEnv([Clock] * num_envs)


@pytest.fixture
def registered() -> Iterator[None]:
    """Ids registered as packages of many simulations at once do."""
    before = dict(gymnasium.registry)
    gymnasium.register("toy/Both-v0", entry_point=Clock, vector_entry_point=many_clocks, max_episode_steps=7)
    gymnasium.register("toy/Many-v0", vector_entry_point=many_clocks)
    yield
    gymnasium.registry.clear()
    gymnasium.registry.update(before)


@pytest.mark.parametrize("env_id", ["CartPole-v1", "CartPole-v0", "toy/Both-v0"])
def test_vector_entry_points_of_others_are_never_used(env_id: str, registered: None) -> None:
    envs = FrameVectorEnv(EnvMaker(env_id), 3, lambda env, episode: env, frames=False)
    assert envs.reset().shape == (3, 4 if "CartPole" in env_id else 3)
    step = envs.step(np.zeros(3, np.int64))
    assert step.rewards.shape == (3,)
    envs.close()


def test_what_has_a_vector_entry_point_alone_is_refused(registered: None) -> None:
    said = line(EnvMaker("toy/Many-v0", render=False))
    assert said.startswith("'toy/Many-v0' is registered for vectors of environments only")


def test_our_own_humanoids_are_simulated_at_once() -> None:
    pytest.importorskip("mujoco")
    assert EnvMaker("sightline/Humanoid-v0", render=False).native_vector(2, False) is not None


# -- constructors ------------------------------------------------------------------------------------------------------


class Panda(Clock):
    def __init__(self, render_mode: str | None = None, render_width: int = 720, render_height: int = 480) -> None:
        super().__init__(render_mode, (render_height, render_width))


class Aloha(Clock):
    def __init__(
        self,
        render_mode: str | None = None,
        observation_width: int = 640,
        observation_height: int = 480,
        visualization_width: int = 640,
        visualization_height: int = 480,
    ) -> None:
        super().__init__(render_mode, (visualization_height, visualization_width))


class AlohaTask(Aloha):
    def __init__(self, task: str = "cube", **options: Any) -> None:
        super().__init__(**options)


class Canvas800(Clock):
    def __init__(self, render_mode: str | None = None, width: int = 800, height: int = 600) -> None:
        super().__init__(render_mode, (height, width))


class Maze(Clock):
    """Its `height` and `width` are cells."""

    def __init__(self, render_mode: str | None = None, width: int = 8, height: int = 8) -> None:
        super().__init__(render_mode, (10 * height, 10 * width))


class MujocoRobotEnv(Unasked):
    """Takes the size among what it does not name, as that of gymnasium-robotics does."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.render_mode = options.get("render_mode")
        self.render_size = (options.get("height", 480), options.get("width", 480))


class Fetch(MujocoRobotEnv):
    pass


@pytest.mark.parametrize("kind", [Panda, Aloha, AlohaTask, Canvas800, Fetch, Clock])
def test_pictures_are_drawn_at_the_size_that_is_read_under_the_usual_names(kind: type[Clock]) -> None:
    env = EnvMaker("it", frame_size=(160, 192), build=kind).as_it_is()
    env.reset(seed=0)
    assert np.shape(env.render()) == (160, 192, 3)


@pytest.mark.parametrize(
    ("kind", "drawn"),
    [(Clock, (48, 32)), (Fetch, (48, 32)), (Panda, (128, 128)), (Aloha, (128, 128)), (Canvas800, (128, 128))],
)
def test_others_are_not_drawn_so_small_that_their_lines_have_no_pixel(
    kind: type[Clock], drawn: tuple[int, int]
) -> None:
    env = EnvMaker("it", frame_size=(48, 32), build=kind).as_it_is()
    env.reset(seed=0)
    assert np.shape(env.render()) == (*drawn, 3)


def test_a_size_of_the_users_counts_before_that_which_is_read() -> None:
    env = EnvMaker("it", {"render_width": 90}, frame_size=(48, 32), build=Panda).as_it_is()
    env.reset(seed=0)
    assert np.shape(env.render()) == (128, 90, 3)


def test_cells_of_a_grid_are_no_pixels() -> None:
    assert size_options(Maze, (48, 32)) == {}
    assert "observation_width" not in size_options(Aloha, (48, 32))


def test_parameters_of_base_classes_count_where_they_are_passed_on() -> None:
    assert {"task", "**", "visualization_width"} <= parameters_of(AlohaTask)
    assert "**" not in parameters_of(Panda)


def test_an_environment_that_draws_unasked_is_taken() -> None:
    env = EnvMaker("it", build=Unasked)()
    env.reset(seed=0)
    assert env.render_mode == "rgb_array"
    assert np.shape(env.render()) == (16, 16, 3)
    envs = FrameVectorEnv(EnvMaker("it", build=Unasked), 2, lambda env, episode: env)
    envs.reset()
    assert envs.step(np.zeros(2, np.int64)).frames is not None
    envs.close()


class NeedsTask(Clock):
    def __init__(self, task: str, render_mode: str | None = None) -> None:
        super().__init__(render_mode)


class OwnTypeError(Clock):
    def __init__(self, render_mode: str | None = None) -> None:
        super().__init__(render_mode)
        len(3)  # type: ignore[arg-type]


class Leaves(Clock):
    def __init__(self, render_mode: str | None = None) -> None:
        sys.exit("no licence")


class NeedsPackage(Clock):
    def __init__(self, render_mode: str | None = None) -> None:
        import h5pyy  # type: ignore[import-not-found]  # noqa: F401


class Asserts(Clock):
    def __init__(self, render_mode: str | None = None) -> None:
        raise AssertionError


def passing_on(**options: Any) -> gymnasium.Env[Any, Any]:
    return Unasked(**options)


CONSTRUCTORS: list[tuple[Any, dict[str, Any], type[Exception], str]] = [
    (NeedsTask, {}, BadInput, "environment 'it' needs options that are not given: env_options.task=…"),
    (NeedsTask, {"task": "a", "taks": "b"}, BadInput, "env_options.taks; did you mean 'task'?"),
    (OwnTypeError, {}, RunFailed, "cannot be built: TypeError: object of type 'int' has no len() (test_naming.py:"),
    (Leaves, {}, RunFailed, "environment 'it' cannot be built: its constructor left by SystemExit: no licence"),
    (NeedsPackage, {}, RunFailed, "pip install h5pyy"),
    (Asserts, {}, RunFailed, "cannot be built: AssertionError (test_naming.py:"),
]


@pytest.mark.parametrize(("build", "options", "kind", "said"), CONSTRUCTORS)
def test_what_a_constructor_raises_is_said_with_its_class_place_and_remedy(
    build: Any, options: dict[str, Any], kind: type[Exception], said: str
) -> None:
    assert said in line(EnvMaker("it", options, build=build), kind)


def test_a_function_that_passes_everything_on_to_what_takes_nothing_is_called_without() -> None:
    assert EnvMaker("it", build=passing_on).as_it_is().render_mode == "rgb_array"


def test_only_environments_without_a_limit_get_ours() -> None:
    def limit(env: gymnasium.Env[Any, Any]) -> list[int]:
        limits = []
        while isinstance(env, gymnasium.Wrapper):
            if isinstance(env, gymnasium.wrappers.TimeLimit):
                limits.append(env._max_episode_steps)
            env = env.env
        return limits

    assert limit(EnvMaker("it", build=Clock).as_it_is()) == [DEFAULT_EPISODE_STEPS]
    long = EnvMaker("it", build=lambda render_mode: gymnasium.wrappers.TimeLimit(Clock(render_mode), 5000))
    assert limit(long.as_it_is()) == [5000]
    assert limit(EnvMaker("CartPole-v1").as_it_is()) == [500]
    assert limit(EnvMaker("CartPole-v1", episode_steps=9).as_it_is()) == [9]


# -- Gymnasium's API ---------------------------------------------------------------------------------------------------


class OldGym:
    """As environments of gym were written."""

    observation_space, action_space = spaces.Discrete(3), spaces.Discrete(2)

    def reset(self) -> int:
        return 0

    def step(self, action: int) -> tuple[int, float, bool, dict[str, Any]]:
        return 0, 0.0, False, {}


class FourTuple(Clock):
    def step(self, action: Any) -> Any:
        return super().step(action)[:4]


class SixTuple(Clock):
    def step(self, action: Any) -> Any:
        return (*super().step(action), 0.0)


class NoInfoAtReset(Clock):
    def reset(self, **options: Any) -> Any:
        return super().reset(**options)[0]


class InfoOfText(Clock):
    def step(self, action: Any) -> Any:
        return (*super().step(action)[:4], "fine")


class ManyEnds(Clock):
    def step(self, action: Any) -> Any:
        state, reward, _, _, info = super().step(action)
        return state, reward, np.array([False, True]), False, info


class NoInfo(Clock):
    """Its infos are None, and its ends arrays."""

    def reset(self, **options: Any) -> Any:
        return super().reset(**options)[0], None

    def step(self, action: Any) -> Any:
        state, reward, terminated, truncated, _ = super().step(action)
        return state, reward, np.array([terminated]), np.bool_(truncated), None


class NoSpaces(gymnasium.Env[Any, Any]):
    render_mode = "rgb_array"

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        return np.zeros(2), {}


class OldSpaces(Clock):
    def __init__(self, render_mode: str | None = None) -> None:
        super().__init__(render_mode)
        self.observation_space = types.SimpleNamespace(shape=(3,))  # type: ignore[assignment]


@pytest.mark.parametrize(
    ("build", "said"),
    [
        (FourTuple, "step() of 'it' returned a tuple of 4"),
        (SixTuple, "step() of 'it' returned a tuple of 6"),
        (NoInfoAtReset, "reset() of 'it' returned a ndarray; it must return (observation, info)"),
        (InfoOfText, "'it' returned an info that is a str; it must be a dictionary"),
        (ManyEnds, "terminated=array([False,  True]); it must be True or False"),
    ],
)
def test_what_keeps_to_another_api_is_refused_at_its_first_step(build: Any, said: str) -> None:
    env = EnvMaker("it", build=build).as_it_is()

    def begin() -> None:
        env.reset(seed=0)
        env.step(0)

    with pytest.raises(BadInput) as caught:
        begin()
    assert said in str(caught.value)


def test_the_old_api_is_named_with_what_converts_it() -> None:
    env = EnvMaker("it", build=FourTuple).as_it_is()
    env.reset(seed=0)
    with pytest.raises(BadInput, match=r"old API of gym.*shimmy"):
        env.step(0)
    assert "shimmy" in line(EnvMaker(f"{__name__}:OldGym"))
    assert "shimmy" in line(EnvMaker("it", build=OldGym))  # type: ignore[arg-type]


def test_infos_of_none_are_empty_and_ends_become_truth_values() -> None:
    env = EnvMaker("it", build=NoInfo).as_it_is()
    assert env.reset(seed=0)[1] == {}
    _, _, terminated, truncated, info = env.step(0)
    assert (terminated, truncated, info) == (False, False, {})


@pytest.mark.parametrize(
    ("build", "said"),
    [
        (NoSpaces, "'it' must have an observation_space of gymnasium.spaces, and has none"),
        (OldSpaces, "and has a types.SimpleNamespace"),
        (lambda: SyncVectorEnv([Clock]), "'it' simulates several environments at once (SyncVectorEnv)"),
        (lambda: "text", "'it' returned a str, not a gymnasium.Env"),
    ],
)
def test_what_is_no_single_environment_with_spaces_is_refused(build: Any, said: str) -> None:
    assert said in line(EnvMaker("it", build=build))


@pytest.mark.parametrize("env", ["Humanoid-v5", "sightline/Humanoid-v0"])
def test_variables_that_contradict_each_other_are_no_missing_package(env: str) -> None:
    pytest.importorskip("mujoco")
    program = f"from sightline.envs.making import EnvMaker; EnvMaker({env!r})()"
    variables = os.environ | {"MUJOCO_GL": "egl", "PYOPENGL_PLATFORM": "osmesa"}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=variables, check=False)
    said = done.stderr.splitlines()[-1]
    assert "MUJOCO_GL and PYOPENGL_PLATFORM contradict each other" in said and "not installed" not in said


def test_wrappers_of_old_environments_are_not_suggested() -> None:
    assert "GymV2" not in line(EnvMaker("MyEnv-v0"))
