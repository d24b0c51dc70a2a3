"""Cloth, rope and water: physics that repeats itself, scripts that solve the tasks, play that does not, pictures."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from deformables import ENVS
from deformables import play as play_until_the_end
from sightline.errors import BadInput
from sightline_tasks.deformables.cloth import CLOTHS, FoldCloth
from sightline_tasks.deformables.rope import CEILING, LENGTH, NODES, RADIUS, TAUT, StraightenRope, random_curve
from sightline_tasks.deformables.soft_body import SoftBody
from sightline_tasks.deformables.water import BALLS, TARGET, PassWater

pytestmark = [
    pytest.mark.mujoco4,
    # Not `importorskip`: MuJoCo must not be imported before it was prepared for rendering without a display.
    pytest.mark.skipif(importlib.util.find_spec("mujoco") is None, reason="pip install 'sightline[mujoco]'"),
]


@pytest.fixture(params=sorted(ENVS))
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def make(kind: str) -> Iterator[Callable[..., SoftBody]]:
    made: list[SoftBody] = []

    def build(**options: Any) -> SoftBody:
        made.append(ENVS[kind][0](**options))
        return made[-1]

    yield build
    for env in made:
        env.close()


def play(env: SoftBody, steps: int, seed: int, choose: Callable[[], np.ndarray]) -> tuple[float, bool]:
    """Return, and success at the end, of an episode."""
    rewards, success, diverged = play_until_the_end(env, steps, seed, choose)
    assert not diverged
    return rewards, success


@pytest.mark.when_changed("tasks")
def test_gymnasium_accepts_it(make: Callable[..., SoftBody]) -> None:
    check_env(make(), skip_render_check=True)


@pytest.mark.when_changed("tasks")
def test_the_script_succeeds_and_others_do_not(kind: str, make: Callable[..., SoftBody]) -> None:
    env, steps, rng = make(), ENVS[kind][1], np.random.default_rng(0)
    for seed in range(3):
        solved, success = play(env, steps, seed, env.solution)
        assert success
        for choose in (lambda: rng.uniform(-1, 1, env.action_space.shape), lambda: np.zeros(env.action_space.shape)):
            rewards, success = play(env, steps, seed, choose)
            assert not success and rewards < solved


HARDER: dict[str, list[dict[str, Any]]] = {
    "fold-cloth": [{"side": 0.32, "look": "green"}, {"mass": 0.1, "stiffness": 1.5}],
    "fold-cloth, steps": [{"side": 0.2, "stiffness": 0.8}],
    "straighten-rope": [{"length": 0.4, "look": "red"}, {"mass": 0.1, "stiffness": 0.7}],
    "pass-water": [{"height": 0.2, "mass": 0.002}],
}


@pytest.mark.when_changed("tasks")
def test_other_bodies_can_be_mastered_too(kind: str, make: Callable[..., SoftBody]) -> None:
    for options in HARDER[kind]:
        env = make(**options)
        assert play(env, ENVS[kind][1], 5, env.solution)[1], options


@pytest.mark.when_changed("tasks")
def test_equal_seeds_and_actions_give_equal_numbers(kind: str, make: Callable[..., SoftBody]) -> None:
    first, second = make(), make()
    seen = []
    for env in (first, second):
        rng = np.random.default_rng(1)
        start, _ = env.reset(seed=7)
        numbers = [start]
        for _ in range(min(4, ENVS[kind][1])):
            observation, reward, *_ = env.step(rng.uniform(-1, 1, env.action_space.shape))
            numbers.append(np.append(observation, reward))
        seen.append(numbers)
    for a, b in zip(*seen, strict=True):
        np.testing.assert_array_equal(a, b)
    other, _ = second.reset(seed=8)
    assert not np.array_equal(other, seen[0][0])


@pytest.mark.when_changed("tasks")
def test_a_state_can_be_taken_up_elsewhere(kind: str, make: Callable[..., SoftBody]) -> None:
    first, second = make(), make()
    first.reset(seed=3)
    second.reset(seed=4)
    if kind != "fold-cloth":
        first.step(first.solution())
    second.state = first.state
    action = first.solution()
    np.testing.assert_array_equal(action, second.solution())
    for a, b in zip(first.step(action), second.step(action), strict=True):
        np.testing.assert_array_equal(a, b)
    np.testing.assert_array_equal(first.state, second.state)
    with pytest.raises(BadInput, match="a state of this environment has"):
        second.state = np.zeros(3)


def test_fixed_starts_are_the_same_in_every_episode(make: Callable[..., SoftBody]) -> None:
    env = make(starts="fixed")
    first, _ = env.reset(seed=1)
    again, _ = env.reset(seed=2)
    np.testing.assert_array_equal(first, again)
    with pytest.raises(BadInput, match="starts='often' is unknown"):
        make(starts="often")


@pytest.mark.when_changed("tasks")
def test_physics_that_diverges_ends_the_episode(make: Callable[..., SoftBody]) -> None:
    env = make()
    env.reset(seed=0)
    before = env.data.qpos.copy()
    env.data.qvel[:] = 1e12
    observation, reward, terminated, truncated, info = env.step(np.zeros(env.action_space.shape))
    assert terminated and not truncated and info == {"success": False, "diverged": True}
    assert reward == env.worst and np.isfinite(observation).all()
    # Pictures of it must not show a goal: MuJoCo's own default state of a rope is a straight one.
    np.testing.assert_array_equal(env.data.qpos, before)
    assert not env._judge()[1]
    env.reset(seed=0)
    assert not env.step(env.solution())[4]["diverged"]


def test_the_worst_reward_is_the_worst(kind: str, make: Callable[..., SoftBody]) -> None:
    env, rng = make(), np.random.default_rng(2)
    env.reset(seed=0)
    for _ in range(min(10, ENVS[kind][1])):
        assert env.step(rng.uniform(-1, 1, env.action_space.shape))[1] >= env.worst


def test_bad_options_are_refused() -> None:
    for build, message in (
        (lambda: StraightenRope(length=0), "length=0 must be a number above 0"),
        (lambda: FoldCloth(mass=float("nan")), "mass=nan must be a number above 0"),
        (lambda: FoldCloth(stiffness=9), "stiffness=9 is more than the physics can hold; it may be up to 2.5"),
        (lambda: StraightenRope(look="pink"), "there is no look 'pink'"),
        (lambda: PassWater(camera="beside"), "camera='beside' is unknown"),
        (lambda: PassWater(height=0.1), "height=0.1 is too low: 112 balls lie 0.16 m high"),
        (lambda: FoldCloth(control="fling"), "control='fling' is unknown"),  # type: ignore[arg-type]
    ):
        with pytest.raises(BadInput, match=message):
            build()


# -- each by itself ----------------------------------------------------------------------------------------------------


def test_curves_of_ropes() -> None:
    for seed in range(50):
        curve = random_curve(np.random.default_rng(seed), LENGTH, RADIUS)
        assert curve.shape == (NODES, 3) and (curve[:, 2] == RADIUS).all()
        np.testing.assert_allclose(np.linalg.norm(np.diff(curve, axis=0), axis=1), LENGTH / (NODES - 1))
        assert np.linalg.norm(curve[-1] - curve[0]) < 0.6 * LENGTH
        apart = np.linalg.norm(curve[:, None] - curve[None], axis=2)
        assert apart[np.abs(np.subtract.outer(range(NODES), range(NODES))) > 3].min() > 2 * RADIUS, "it crosses itself"


def test_the_rope_is_not_stretched() -> None:
    """Grippers that pull apart with all their might, run away or jerk leave the rope about as long as it is."""
    env, rng = StraightenRope(), np.random.default_rng(0)
    env.reset(seed=0)
    jerks = np.repeat(rng.choice([-1, 1], (8, 6)), 5, axis=0)
    for action in np.concatenate([[[-1, 0, 0, 1, 0, 0]] * 30, np.ones((30, 6)), jerks]):
        env.step(action)
        assert np.linalg.norm(np.diff(env.data.mocap_pos, axis=0)) <= TAUT * LENGTH + 1e-9
        assert env.data.mocap_pos[:, 2].max() <= CEILING + 1e-9, "what is held higher sags unseen"
        assert env.gap < 1.05 * LENGTH
        assert np.linalg.norm(np.diff(env.points, axis=0), axis=1).sum() < 1.1 * LENGTH


@pytest.mark.parametrize(("height", "straight"), [(0.0, True), (0.04, True), (0.06, False), (0.2, False)])
def test_a_straight_rope_is_straight_between_its_ends_too(height: float, straight: bool) -> None:
    """Ends a length apart are not enough: a rope that was stretched into a tent fails."""
    env = StraightenRope()
    env.reset(seed=0)
    along = np.linspace(-0.5, 0.5, NODES)
    tent = np.column_stack([LENGTH * along, height * (1 - 2 * np.abs(along)), np.full(NODES, RADIUS)])
    env.lay(tent, [0, -1])
    env._mujoco.mj_forward(env.model, env.data)
    reward, success = env._judge()
    assert (env.gap, env.bow, reward) == (pytest.approx(LENGTH), pytest.approx(height), pytest.approx(LENGTH - height))
    assert success is straight


def test_progress_of_a_fold_by_hand() -> None:
    """In a fold, the corner that was held lies on the opposite one, and points of the diagonal stay where they were."""
    env = FoldCloth(starts="fixed")
    env.reset(seed=0)
    assert env.progress == pytest.approx(0, abs=0.02)
    folded = env._folded
    np.testing.assert_allclose(folded[0, :2], env.points[-1, :2], atol=1e-6)
    diagonal = [n * 15 + 14 - n for n in range(15)]
    np.testing.assert_allclose(folded[diagonal], env.points[diagonal], atol=1e-6)
    env.data.qpos[:] = (folded - env._rest).reshape(-1)
    env._mujoco.mj_forward(env.model, env.data)
    assert env.progress == pytest.approx(1, abs=1e-6) and env._judge() == (pytest.approx(0, abs=1e-5), True)


def test_balls_are_counted() -> None:
    env = PassWater(starts="fixed")
    observation, _ = env.reset(seed=0)
    assert env.inside.all() and observation[5] == 1 and observation[6] == 0
    env.data.qpos[1:4] += [0.3, 0, 0]  # one ball beside the glass
    env._mujoco.mj_forward(env.model, env.data)
    assert env.inside.sum() == BALLS - 1
    assert env._judge()[0] == pytest.approx(-10 / BALLS - TARGET, abs=1e-3)


# -- pictures ----------------------------------------------------------------------------------------------------------


@pytest.mark.when_changed("tasks")
@pytest.mark.usefixtures("opengl")
def test_a_cloth_has_two_sides() -> None:
    env = FoldCloth(starts="fixed", render_mode="rgb_array")
    env.reset(seed=0)
    top, bottom, _ = CLOTHS["red"]

    def share(colour: tuple[int, int, int]) -> float:
        """Of the pixels whose colour has the same direction."""
        pixels = env.render().reshape(-1, 3) / 255
        wanted = np.array(colour) / np.linalg.norm(colour)
        lit = pixels @ wanted / np.maximum(np.linalg.norm(pixels, axis=1), 1e-6)
        return float((lit > 0.985).mean())

    flat = share(top)
    assert 0.15 < flat < 0.3 and share(bottom) == 0
    picture = env.render()
    dark = np.argwhere(picture.sum(axis=2) < 150).mean(axis=0)  # the gripper, at the corner on the lower left
    assert dark[0] > 112 + 30 and dark[1] < 112 - 30
    env.step(env.solution())
    assert share(bottom) > 0.3 * flat > share(top)
    env.close()


@pytest.mark.when_changed("tasks")
@pytest.mark.usefixtures("opengl")
def test_what_moves_is_seen(kind: str, make: Callable[..., SoftBody]) -> None:
    env = make(render_mode="rgb_array", render_size=(96, 128))
    env.reset(seed=0)
    before = env.render()
    assert before.shape == (96, 128, 3) and before.dtype == np.uint8 and before.std() > 5
    np.testing.assert_array_equal(before, env.render())
    for _ in range(min(5, ENVS[kind][1])):
        env.step(env.solution())
    assert (env.render() != before).any(axis=2).mean() > 0.01
