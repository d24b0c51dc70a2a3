"""Our environments against Gymnasium's, their pictures, and environments of a user's own."""

from __future__ import annotations

import math
import pickle
import re
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from conftest import our_names, our_tasks
from sightline import registry
from sightline.envs.making import EnvMaker
from sightline.envs.spaces import adapted_to_learners
from sightline.errors import BadInput, RunFailed
from sightline_tasks.control.cartpole import LOOKS as CARTPOLE_LOOKS
from sightline_tasks.control.cartpole import CartPole
from sightline_tasks.control.mountain_car import LOOKS as MOUNTAIN_CAR_LOOKS
from sightline_tasks.control.mountain_car import MountainCar
from sightline_tasks.registration import CARTPOLE_ID, METAWORLD_ID, MOUNTAIN_CAR_ID

BOTH: list[type[gymnasium.Env[Any, Any]]] = [CartPole, MountainCar]


@pytest.mark.parametrize("kind", BOTH)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_gymnasium_accepts_them(kind: Callable[..., gymnasium.Env[Any, Any]]) -> None:
    check_env(kind(render_mode="rgb_array"), skip_render_check=True)


OURS = sorted({registry.find("env", name).env for name in our_names()} - {"Pendulum-v1"})


NEEDING = (METAWORLD_ID, "sightline/Questions-v0", "sightline/HouseholdThor-v0", "sightline/MiniWoB-v0")
"""Those that need a package, data of the user's, or a browser; their own tests check them."""


@pytest.mark.parametrize("env_id", [env_id for env_id in OURS if env_id not in NEEDING])
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_registered_ones_pass_the_whole_check(env_id: str) -> None:
    """With Gymnasium's own checks inside and outside; games observe a text and pictures, and pass them all the same."""
    env = gymnasium.make(env_id, render_mode="rgb_array")
    check_env(env.unwrapped)
    env.reset(seed=0)
    env.step(env.action_space.sample())


def test_importing_the_package_of_environments_registers_them_all() -> None:
    program = (
        "import gymnasium, sys; level = gymnasium.logger.min_level\n"
        "gymnasium.make('sightline.envs:sightline/NumberLine-v0').reset(seed=0)\n"
        "print(*sorted(name for name in gymnasium.registry if name.startswith('sightline/')))\n"
        "print('torch' in sys.modules, gymnasium.logger.min_level == level)"
    )
    done = subprocess.run([sys.executable, "-W", "error", "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [" ".join(OURS), "False True"]
    assert done.stderr == ""


@pytest.mark.parametrize("env_id", [CARTPOLE_ID, MOUNTAIN_CAR_ID])
def test_equal_seeds_give_equal_episodes(env_id: str) -> None:
    first, second = EnvMaker(env_id)(), EnvMaker(env_id)()
    assert np.array_equal(first.reset(seed=5)[0], second.reset(seed=5)[0])
    assert not np.array_equal(first.reset(seed=6)[0], second.reset(seed=5)[0])
    first.reset(seed=5)
    first.action_space.seed(0)
    for _ in range(50):
        action = first.action_space.sample()
        one, other = first.step(action), second.step(action)
        assert np.array_equal(one[0], other[0])
        assert one[1:4] == other[1:4]
        assert one[4] == other[4]
        assert np.array_equal(first.render(), second.render())


@pytest.mark.parametrize("env_id", [CARTPOLE_ID, MOUNTAIN_CAR_ID])
def test_only_the_clock_ends_an_episode(env_id: str) -> None:
    env = EnvMaker(env_id)()
    env.reset(seed=0)
    env.action_space.seed(0)
    ends = [env.step(env.action_space.sample())[2:4] for _ in range(200)]
    assert ends == [(False, False)] * 199 + [(False, True)]


# -- CartPole ---------------------------------------------------------------------------------------------------------


def test_cartpole_moves_as_gymnasiums_does() -> None:
    ours, theirs = CartPole(), gymnasium.make("CartPole-v1").unwrapped
    rng, compared = np.random.default_rng(0), 0
    for episode in range(20):
        ours.reset(seed=episode)
        theirs.reset(seed=episode)
        start = rng.uniform([-2, -1, -0.2, -1], [2, 1, 0.2, 1])
        ours.state, theirs.state = start.copy(), tuple(start)  # type: ignore[attr-defined]
        done = False
        while not done:
            action = np.int64(rng.integers(2))
            state = ours.step(action)[0]
            expected, _, done, _, _ = theirs.step(action)
            if abs(expected[0]) <= 2.4:
                np.testing.assert_allclose(state, expected, rtol=1e-6, atol=1e-7)
                compared += 1
    assert compared > 300


def test_cartpole_golden_step() -> None:
    """From rest and upright, by hand: a = F/1.1 - 0.05/1.1 theta_acc, theta_acc = -(F/1.1) / (0.5 (4/3 - 0.1/1.1))."""
    env = CartPole()
    env.reset(seed=0)
    env.state = np.zeros(4)
    theta_acc = -(10 / 1.1) / (0.5 * (4 / 3 - 0.1 / 1.1))
    first = env.step(np.int64(1))[0]
    np.testing.assert_allclose(first, [0, 0.02 * (10 / 1.1 - 0.05 / 1.1 * theta_acc), 0, 0.02 * theta_acc], rtol=1e-6)
    np.testing.assert_allclose(first, [0, 0.1951220, 0, -0.2926829], rtol=1e-6)


def test_cartpole_angle_wraps_and_the_cart_stops_at_the_ends() -> None:
    env = CartPole()
    env.reset(seed=0)
    env.state = np.array([2.39, 3.0, math.pi - 1e-3, 4.0])
    state, _, terminated, truncated, info = env.step(np.int64(1))
    assert state[0] == np.float32(2.4)
    assert -math.pi <= state[2] < -3
    assert not terminated
    assert not truncated
    assert info == {"success": False, "away_from_wall": False}
    env.state = np.array([-2.39, -3.0, -math.pi + 1e-3, -4.0])
    state, *_ = env.step(np.int64(0))
    assert state[0] == np.float32(-2.4)
    assert 3 < state[2] < math.pi
    for _ in range(500):
        state, *_ = env.step(np.int64(0))
        assert abs(state[0]) <= np.float32(2.4)
        assert -math.pi <= env.state[2] < math.pi


@pytest.mark.parametrize(("degrees", "success"), [(0, True), (11.9, True), (-11.9, True), (12.1, False), (180, False)])
def test_cartpole_success_is_twelve_degrees(degrees: float, success: bool) -> None:
    env = CartPole()
    env.reset(seed=0)
    env.state = np.array([0, 0, math.radians(degrees), 0])
    _, reward, _, _, info = env.step(np.int64(0))  # positions move one step later than speeds
    assert info["success"] is success
    assert reward == float(success)


# -- MountainCar ------------------------------------------------------------------------------------------------------


def test_mountain_car_moves_as_gymnasiums_does() -> None:
    ours, theirs = MountainCar(), gymnasium.make("MountainCarContinuous-v0").unwrapped
    rng, compared = np.random.default_rng(0), 0
    for episode in range(20):
        ours.reset(seed=episode)
        theirs.reset(seed=episode)
        start = rng.uniform([-1.2, -0.07], [0.4, 0.07]).astype(np.float32)
        ours.state, theirs.state = start.astype(float), start.copy()  # type: ignore[attr-defined]
        for _ in range(100):
            action = rng.uniform(-1.5, 1.5, 1).astype(np.float32)
            state, reward, *_ = ours.step(action)
            expected, _, done, *_ = theirs.step(action)
            np.testing.assert_allclose(state, expected, rtol=0, atol=2e-5)
            compared += 1
            if done:
                break
            assert reward == pytest.approx(-0.1 * min(max(action[0], -1), 1) ** 2, abs=1e-6)
            theirs.state = np.asarray(state)  # type: ignore[attr-defined]
    assert compared > 500


def drive_to_the_flag(env: MountainCar) -> list[tuple[float, bool]]:
    steps, velocity = [], 0.0
    for _ in range(200):
        state, reward, _, _, info = env.step(np.array([1.0 if velocity >= 0 else -1.0], np.float32))
        velocity = state[1]
        steps.append((reward, info["success"]))
    return steps


def test_mountain_car_pays_once_and_a_reset_clears_success() -> None:
    env = MountainCar()
    for episode in range(3):
        assert env.reset(seed=episode)[1]["success"] is False
        steps = drive_to_the_flag(env)
        rewards, success = np.array([reward for reward, _ in steps]), np.array([s for _, s in steps])
        (paid,) = np.flatnonzero(rewards > 50)
        assert rewards[paid] == pytest.approx(99.9)
        assert rewards.sum() == pytest.approx(100 - 0.1 * 200)
        assert not success[:paid].any()
        assert success[paid:].all()
        assert 20 < paid < 199
        env.reset(seed=episode)
        assert env.step(np.zeros(1, np.float32))[4]["success"] is False


def test_mountain_car_cannot_pass_the_peak_after_the_flag() -> None:
    env = MountainCar()
    env.reset(seed=0)
    drive_to_the_flag(env)
    env.state = np.array([0.44, 0.07])
    assert env.step(np.ones(1, np.float32))[0][0] == np.float32(0.45)
    env.reset(seed=0)
    env.state = np.array([0.44, 0.07])
    assert env.step(np.ones(1, np.float32))[0][0] > 0.5


# -- pictures ---------------------------------------------------------------------------------------------------------

LOOKS = [(CartPole, look) for look in CARTPOLE_LOOKS] + [(MountainCar, look) for look in MOUNTAIN_CAR_LOOKS]


@pytest.mark.parametrize(("kind", "look"), LOOKS)
@pytest.mark.parametrize("size", [(64, 64), (256, 256), (33, 50), (224, 336)])
def test_frames_have_the_size_asked_for_and_show_the_state(kind: Any, look: str, size: tuple[int, int]) -> None:
    env = kind(render_mode="rgb_array", render_size=size, look=look)
    env.reset(seed=0)
    first = env.render()
    assert first.dtype == np.uint8
    assert first.shape == (*size, 3)
    assert np.array_equal(first, env.render())
    assert len(np.unique(first.reshape(-1, 3), axis=0)) > 3
    env.state[0] += 0.3
    assert np.abs(env.render().astype(int) - first).max() > 60
    if kind is CartPole:
        upright = env.render()
        env.state[2] += 0.5
        assert np.abs(env.render().astype(int) - upright).max() > 60


@pytest.mark.parametrize("kind", BOTH)
def test_looks_differ(kind: Any) -> None:
    looks = CARTPOLE_LOOKS if kind is CartPole else MOUNTAIN_CAR_LOOKS
    assert len(looks) == 2
    frames = []
    for look in looks:
        env = kind("rgb_array", (64, 64), look)
        env.reset(seed=0)
        frames.append(env.render())
    assert (frames[0] != frames[1]).any(axis=2).mean() > 0.5


def test_the_cart_and_the_pole_are_where_the_state_says() -> None:
    env = CartPole("rgb_array", (100, 100))
    env.reset(seed=0)
    columns = []
    for position in (-2.4, 0.0, 2.4):
        env.state = np.array([position, 0, 0, 0])
        dark = (env.render()[66] < 50).all(axis=1)  # the cart is black and reaches below the rail
        columns.append(np.flatnonzero(dark).mean())
    assert columns[0] < 20
    assert columns[1] == pytest.approx(49.5, abs=1)
    assert columns[2] > 80
    env.state = np.array([0, 0, math.radians(60), 0])
    pole = (np.abs(env.render().astype(int) - (202, 152, 101)) < 20).all(axis=2)
    assert np.argwhere(pole)[:, 1].mean() > 55


# -- any environment --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("task", [task for task in our_tasks() if task.axes], ids=lambda task: task.name)
def test_every_task_with_axes_can_be_made_and_swept(task: Any) -> None:
    env = EnvMaker(task.env, dict(task.env_options), frame_size=(48, 48))()
    env.reset(seed=0)
    middle = task.state_at(*((axis.low + axis.high) / 2 for axis in task.axes))
    end = task.state_at(*(axis.high for axis in task.axes))
    frames = []
    for state in (middle, end):
        env.unwrapped.state = np.array(state)  # type: ignore[attr-defined]
        frames.append(np.asarray(env.render()))
    env.close()
    assert frames[0].dtype == np.uint8
    assert (frames[0] != frames[1]).any()


def test_module_and_attribute() -> None:
    env = EnvMaker("small_envs:Clock", {"shortest": 4, "longest": 4}, frame_size=(20, 30))()
    env.reset(seed=0)
    assert env.render().shape == (20, 30, 3)  # type: ignore[union-attr]
    assert [env.step(0)[2] for _ in range(4)] == [False, False, False, True]


def test_a_function_that_makes_environments() -> None:
    env = EnvMaker("small_envs:clock_by_function", {"longest": 3}, episode_steps=2)()
    env.reset(seed=0)
    assert [env.step(0)[3] for _ in range(2)] == [False, True]


def test_makers_can_be_pickled() -> None:
    maker = pickle.loads(pickle.dumps(EnvMaker("small_envs:Clock", {"longest": 3})))
    assert maker().unwrapped.longest == 3


def test_a_time_limit_replaces_the_environments_own() -> None:
    env = EnvMaker(CARTPOLE_ID, episode_steps=3, render=False)()
    env.reset(seed=0)
    assert [env.step(0)[2:4] for _ in range(3)] == [(False, False), (False, False), (False, True)]


def test_dictionaries_of_observations_are_flattened() -> None:
    env = EnvMaker("small_envs:InParts")()
    state, _ = env.reset(seed=0)
    assert env.observation_space.shape == state.shape == (7,)
    np.testing.assert_allclose(np.sort(state), [0, 0, 0.5, 0.5, 0.5, 0.5, 1])
    env = EnvMaker("FrozenLake-v1")()
    assert env.reset(seed=0)[0].sum() == 1
    assert env.observation_space.shape == (16,)
    env.close()


@pytest.mark.parametrize("size", [(32, 32), None])
def test_environments_that_render_as_they_like(size: tuple[int, int] | None) -> None:
    env = EnvMaker("Pendulum-v1", frame_size=size)()
    env.reset(seed=0)
    assert np.asarray(env.render()).shape == (500, 500, 3)
    env.close()


@pytest.mark.parametrize(
    ("maker", "expected"),
    [
        (EnvMaker("Pendulm-v1"), "'Pendulum-v1'"),
        (EnvMaker("cartpol", also_known=("cartpole",)), "'cartpole'"),
        (EnvMaker("CartPole-v99"), "CartPole"),
        (EnvMaker("small_envs:Blind"), "rgb_array"),
        (EnvMaker("small_envs:Clok"), "'Clock'"),
        (EnvMaker("no_such_module:Clock"), "no_such_module"),
        (EnvMaker("small_envs:no_environment"), "annotated to return one"),
        (EnvMaker("Pendulum-v1", {"gravityy": 3}), "gravityy"),
        (EnvMaker("small_envs:Clock", {"shortestt": 3}), "shortestt"),
        (EnvMaker("no_such_module:Clock-v0"), "no_such_module"),
        (EnvMaker("no_such/Env-v0"), "no_such/Env-v0"),
        (EnvMaker(CARTPOLE_ID, {"look": "plian"}), "'plain'"),
        (EnvMaker("small_envs:Odd", {"what": "plan"}), "are of the kind Sequence; learners take Discrete, Box"),
        (EnvMaker("small_envs:Odd", {"what": "text"}), "'small_envs:Odd' are text"),
        (EnvMaker("small_envs:Odd", {"what": "sequence"}), "of the kind Sequence"),
        (EnvMaker("small_envs:Unseeded"), "reset(self, *, seed=None, options=None)"),
        (EnvMaker("small_envs:Pictures", rescale=True), "leave out rescale_observations"),
    ],
)
def test_what_cannot_be_made_is_said_in_one_line(maker: EnvMaker, expected: str) -> None:
    with pytest.raises((BadInput, RunFailed)) as caught:
        maker()
    assert expected in str(caught.value)
    assert "\n" not in str(caught.value)
    assert isinstance(caught.value, BadInput), "the user can fix it by writing something else"


def test_no_opengl_says_how_to_mend_it(monkeypatch: pytest.MonkeyPatch) -> None:
    import small_envs

    def no_display(*_: Any, **__: Any) -> None:
        raise ImportError("Cannot initialize an EGL device display")

    monkeypatch.setattr(small_envs.Clock, "__init__", no_display)
    with pytest.raises(RunFailed, match="sightline doctor") as caught:
        EnvMaker("small_envs:Clock")()
    assert "\n" not in str(caught.value)


def test_a_blind_environment_is_fine_where_nothing_looks() -> None:
    env = EnvMaker("small_envs:Blind", render=False)()
    assert env.reset(seed=0)[0].shape == (3,)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ((36, 40, 3), (3, 36, 40)),
        ((3, 36, 40), (3, 36, 40)),
        ((1, 9, 9), (1, 9, 9)),
        ((9, 9, 1), (1, 9, 9)),
        ((9, 2, 3), (2, 9, 3)),
        ((2, 2, 3), (2, 2, 3)),
    ],
)
@pytest.mark.filterwarnings("ignore:Treating image space as channels-last")
def test_learners_find_nothing_to_transpose_in_pictures(given: tuple[int, ...], expected: tuple[int, ...]) -> None:
    from stable_baselines3.common.preprocessing import is_image_space, is_image_space_channels_first

    import small_envs

    class Any3(small_envs.Pictures):
        def __init__(self) -> None:
            super().__init__()
            self.observation_space = gymnasium.spaces.Box(0, 255, given, np.uint8)

        def _state(self) -> np.ndarray:
            return np.arange(np.prod(given), dtype=np.uint8).reshape(given)

    env = adapted_to_learners(Any3(), "it", rescale=False)
    state, _ = env.reset(seed=0)
    assert env.observation_space.shape == state.shape == expected
    assert state.dtype == np.uint8
    assert np.array_equal(np.sort(state.ravel()), np.sort(Any3()._state().ravel()))
    assert is_image_space(env.observation_space)
    assert is_image_space_channels_first(env.observation_space)  # type: ignore[arg-type]


def test_pictures_have_their_channels_first() -> None:
    env, plain = EnvMaker("small_envs:Pictures")(), EnvMaker("small_envs:Pictures").as_it_is()
    for one, other in (
        (env.reset(seed=0)[0], plain.reset(seed=0)[0]),
        (env.step(1)[0], plain.step(1)[0]),
    ):
        assert np.array_equal(one, other.transpose(2, 0, 1))


def test_actions_count_from_zero_for_learners() -> None:
    env = EnvMaker("small_envs:FromOne")()
    assert env.action_space == gymnasium.spaces.Discrete(2)
    plain = EnvMaker("small_envs:FromOne").as_it_is()
    assert plain.action_space == gymnasium.spaces.Discrete(2, start=1)
    env.reset(seed=0)
    plain.reset(seed=0)
    for action in (0, 1):
        assert np.array_equal(env.step(np.int64(action))[0], plain.step(np.int64(action + 1))[0])


@pytest.mark.parametrize(
    ("env_id", "options"),
    [
        ("sightline/Sokoban-v0", {"boxes": "x"}),
        ("sightline/FrozenLake-v0", {"size": "big"}),
        ("sightline/CartPole-v0", {"render_size": 5}),
    ],
)
def test_values_of_a_wrong_kind_for_our_own_environments(env_id: str, options: dict[str, Any]) -> None:
    """Their code is ours, wherever it lies: the user's value is named, and no line of ours."""
    ((name, value),) = options.items()
    expected = f"environment '{env_id}' cannot be built with env_options.{name}={value!r}: that is no value of its kind"
    with pytest.raises(BadInput, match=f"^{re.escape(expected)}$"):
        EnvMaker(env_id, options)()
