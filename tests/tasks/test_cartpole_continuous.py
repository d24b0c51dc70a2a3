"""CartPole with a free force: its physics by hand, its limits, its reward, and what its picture hides."""

from __future__ import annotations

import math

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from hypothesis import given, settings
from hypothesis import strategies as st

from sightline.envs.making import EnvMaker
from sightline.envs.tasks import find_task
from sightline.errors import BadInput
from sightline_tasks.control.cartpole_continuous import LEAN, TRACK, CartPoleContinuous

GRAVITY, CART, POLE, HALF_LENGTH, TICK = 9.8, 1.0, 0.1, 0.5, 0.02
ENV = find_task("cartpole-continuous").env


def at(*state: float) -> CartPoleContinuous:
    env = CartPoleContinuous(render_mode="rgb_array")
    env.reset(seed=0)
    env.state = np.array(state, np.float64)
    return env


def push(env: CartPoleContinuous, force: float) -> tuple[np.ndarray, float, bool]:
    state, reward, terminated, truncated, info = env.step(np.array([force], np.float32))
    assert not terminated
    assert not truncated
    assert info == {"success": abs(env.state[2]) <= math.radians(5)}
    return state, reward, info["success"]


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_gymnasium_accepts_it() -> None:
    check_env(gymnasium.make(ENV, render_mode="rgb_array").unwrapped, skip_render_check=False)
    check_env(CartPoleContinuous(render_mode="rgb_array"), skip_render_check=True)


@pytest.mark.parametrize("force", [-1.0, -0.25, 0.0, 0.6])
def test_one_step_of_euler_by_hand(force: float) -> None:
    """The equations of Barto, Sutton and Anderson (1983), solved here for both accelerations as a linear system:
    (M + m) x'' + m l cos(a) a'' = F + m l sin(a) a'^2 and m l cos(a) x'' + 4/3 m l^2 a'' = m g l sin(a)."""
    x, v, a, w = 0.3, -0.4, 0.2, 0.7
    masses = [
        [CART + POLE, POLE * HALF_LENGTH * math.cos(a)],
        [POLE * HALF_LENGTH * math.cos(a), 4 / 3 * POLE * HALF_LENGTH**2],
    ]
    forces = [
        10 * force + POLE * HALF_LENGTH * math.sin(a) * w**2,
        POLE * GRAVITY * HALF_LENGTH * math.sin(a),
    ]
    faster, spinning = np.linalg.solve(masses, forces)
    expected = [x + TICK * v, v + TICK * faster, a + TICK * w, w + TICK * spinning]
    state, reward, _ = push(at(x, v, a, w), force)
    assert state.dtype == np.float32
    np.testing.assert_allclose(state, expected, rtol=1e-6)
    assert reward == pytest.approx(-math.degrees(a + TICK * w))


def test_forces_beyond_the_limits_are_the_limits() -> None:
    for beyond, limit in ((7.0, 1.0), (-3.0, -1.0)):
        np.testing.assert_array_equal(push(at(0, 0, 0.1, 0), beyond)[0], push(at(0, 0, 0.1, 0), limit)[0])


def test_positions_are_held_at_the_ends_and_velocities_are_not() -> None:
    state, reward, _ = push(at(1.91, 2.0, math.radians(29.9), 3.0), 0.0)
    np.testing.assert_allclose(state[[0, 2]], [1.92, math.radians(30)], rtol=1e-6)
    assert state[1] > 1.5
    assert state[3] > 3.0, "gravity goes on pulling"
    assert reward == pytest.approx(-30)
    state, reward, _ = push(at(-1.91, -2.0, math.radians(-29.9), -3.0), 0.0)
    np.testing.assert_allclose(state[[0, 2]], [-1.92, math.radians(-30)], rtol=1e-6)
    assert reward == pytest.approx(-30)


@settings(deadline=None, max_examples=50)
@given(st.lists(st.floats(-2, 2), min_size=1, max_size=60), st.integers(0, 1000))
def test_it_stays_within_its_spaces_and_pays_the_angle(forces: list[float], seed: int) -> None:
    env = CartPoleContinuous()
    env.reset(seed=seed)
    for force in forces:
        state, reward, success = push(env, force)
        assert env.observation_space.contains(state)
        assert abs(state[0]) <= TRACK + 1e-6
        assert abs(state[2]) <= LEAN + 1e-6
        assert reward == pytest.approx(-abs(math.degrees(float(state[2]))), abs=1e-4)
        assert success == (reward >= -5)


@pytest.mark.parametrize(("degrees", "success"), [(0, True), (4.99, True), (-4.99, True), (5.01, False), (-9, False)])
def test_success_is_five_degrees(degrees: float, success: bool) -> None:
    assert push(at(0, 0, math.radians(degrees), 0), 0.0)[2] == success, "from rest nothing moves within one tick"
    assert at(0, 0, math.radians(degrees), 0)._info()["success"] == success


def test_equal_seeds_give_equal_episodes() -> None:
    def episode(seed: int) -> np.ndarray:
        env, rng = CartPoleContinuous(), np.random.default_rng(1)
        states = [env.reset(seed=seed)[0]]
        states += [env.step(rng.uniform(-1, 1, 1).astype(np.float32))[0] for _ in range(30)]
        return np.stack(states)

    np.testing.assert_array_equal(episode(3), episode(3))
    assert not np.array_equal(episode(3), episode(4))
    starts = np.stack([CartPoleContinuous().reset(seed=seed)[0] for seed in range(200)])
    assert np.abs(starts).max() <= 0.05
    assert (np.abs(starts.mean(axis=0)) < 0.01).all()
    assert (starts.std(axis=0) > 0.02).all()


def test_a_hundred_steps_and_no_end_but_the_clock() -> None:
    env = gymnasium.make(ENV)
    env.reset(seed=0)
    ends = [env.step(np.array([1.0], np.float32))[2:4] for _ in range(100)]
    assert not any(terminated for terminated, _ in ends)
    assert [truncated for _, truncated in ends] == [False] * 99 + [True]


def test_the_picture_shows_the_angle_and_nothing_else() -> None:
    middle = at(0, 0, 0.1, 0).render()
    assert middle.shape == (200, 200, 3)
    np.testing.assert_array_equal(middle, at(1.5, 2, 0.1, -3).render())
    assert not np.array_equal(middle, at(0, 0, 0.2, 0).render())
    upright = at(1.2, 0, 0, 0).render().astype(int)
    assert np.abs(upright - upright[:, ::-1]).mean() < 1, "the cart is in the middle"
    left, right = at(0, 0, -0.4, 0).render().astype(int), at(0, 0, 0.4, 0).render().astype(int)
    assert np.abs(left - right[:, ::-1]).mean() < 1
    assert np.abs(left - right).mean() > 2


def test_the_published_picture_has_the_published_sizes() -> None:
    """RL-VLM-F: a cart of 50 x 30 pixels on a line at height 40 of 200, a pole of 10 x 125 from below its axle."""
    env = CartPoleContinuous(render_mode="rgb_array", view="rlvlmf")
    env.reset(seed=0)
    env.state = np.zeros(4)
    picture = env.render()
    pole = np.argwhere((picture == (202, 152, 101)).all(-1))
    np.testing.assert_allclose(np.ptp(pole, axis=0) + 1, (125, 10), atol=1)
    assert pole.mean(axis=0)[1] == pytest.approx(99.5, abs=0.5)
    black = (picture == 0).all(-1)
    cart = np.flatnonzero(black[:, 80])
    assert (len(cart), cart.mean()) == (pytest.approx(30, abs=1), pytest.approx(160, abs=1))
    assert black[150].sum() == pytest.approx(50 - 10, abs=2), "a pole of 10 pixels is before it"
    assert black[:, 0].sum() == black[:, 199].sum() == 1, "one pixel of ground"
    with pytest.raises(BadInput, match="'rlvlmf'"):
        CartPoleContinuous(view="rl")


@pytest.mark.parametrize("size", [(64, 64), (48, 96)])
def test_frames_have_the_size_asked_for(size: tuple[int, int]) -> None:
    env = EnvMaker(ENV, {}, None, size, True, False, ())()
    env.reset(seed=0)
    assert np.asarray(env.render()).shape == (*size, 3)
