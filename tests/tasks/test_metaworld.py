"""Meta-World's tasks: what is seen, what is random, what is hidden, and what counts as done."""

from __future__ import annotations

import importlib.util
import os
import pickle
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from sightline.envs.frame_vector import FrameVectorEnv, episode_seeds
from sightline.envs.making import EnvMaker
from sightline.errors import BadInput, RunFailed
from sightline_tasks.control.metaworld import VIEWS, MetaWorld, View
from sightline_tasks.registration import METAWORLD_ID

TASKS = ("drawer-open", "sweep-into", "soccer")
# Not `importorskip`: OpenGL must not be loaded before `EnvMaker` has prepared for it.
needs_metaworld = pytest.mark.skipif(
    importlib.util.find_spec("metaworld") is None, reason="pip install 'sightline[metaworld]'"
)


def make(task: str = "drawer-open", frames: bool = False, size: int = 64, **options: Any) -> gymnasium.Env[Any, Any]:
    return EnvMaker(
        METAWORLD_ID, {"task": task} | options, frame_size=(size, size) if frames else None, render=frames
    )()


def inner(env: gymnasium.Env[Any, Any]) -> Any:
    return env.unwrapped._inner  # type: ignore[attr-defined]


def physics(env: gymnasium.Env[Any, Any]) -> np.ndarray:
    """All that moves, and where what does not move stands."""
    data = inner(env).data
    return np.concatenate([data.qpos, data.qvel, data.mocap_pos.ravel(), data.xpos.ravel(), inner(env)._target_pos])


def some_actions(count: int, seed: int = 0) -> np.ndarray:
    """Float32[count, 4]: random, but kept for a while, so that something is reached."""
    return np.repeat(np.random.default_rng(seed).uniform(-1, 1, (count // 10 + 1, 4)), 10, 0)[:count].astype(np.float32)


def without_metaworld(code: str) -> str:
    """The last line on stderr of a process that cannot import Meta-World."""
    blocked = f"import sys; sys.modules['metaworld'] = None\n{code}"
    path = os.pathsep.join(sys.path)
    command = [sys.executable, "-c", blocked]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ | {"PYTHONPATH": path})
    return done.stderr.strip().splitlines()[-1]


def test_without_the_package_one_line_says_what_to_install() -> None:
    code = f"from sightline.envs.making import EnvMaker; EnvMaker('{METAWORLD_ID}', {{'task': 'soccer'}})()"
    said = without_metaworld(code)
    assert said.startswith(f"{RunFailed.__module__}.RunFailed")
    assert "pip install 'sightline[metaworld]'" in said


# -- seeds ------------------------------------------------------------------------------------------------------------


@needs_metaworld
@pytest.mark.when_changed("tasks")
@pytest.mark.parametrize("task", TASKS)
def test_the_seed_decides_everything(task: str) -> None:
    """Also after another episode in the same environment, and in another environment."""
    first, second = make(task), make(task)
    seen = []
    for env, seed in ((first, 7), (first, 8), (first, 7), (second, 7)):
        start, info = env.reset(seed=seed)
        assert info == {"success": False}
        steps = [env.step(action) for action in some_actions(60)]
        seen.append((start, physics(env), [step[0] for step in steps], [step[1] for step in steps]))
    for other in seen[2:]:
        for one, same in zip(seen[0], other, strict=True):
            np.testing.assert_array_equal(one, same)
    assert not np.array_equal(seen[0][0], seen[1][0])
    assert not np.array_equal(seen[0][1], seen[1][1])


@needs_metaworld
def test_numpys_own_random_numbers_are_left_alone() -> None:
    env = make("soccer")
    np.random.seed(3)
    expected = np.random.RandomState(3).random_sample(4)
    env.reset(seed=5)
    env.step(np.zeros(4))
    np.testing.assert_array_equal(np.random.random_sample(4), expected)


@needs_metaworld
@pytest.mark.when_changed("tasks")
@pytest.mark.parametrize("task", TASKS)
def test_random_starts_fill_their_range_and_fixed_ones_do_not_move(task: str) -> None:
    places = {}
    for starts in ("random", "fixed"):
        env = make(task, starts=starts)
        places[starts] = np.stack([env.reset(seed=seed)[0][4:7] for seed in range(20)])
    x = places["random"][:, 0]
    assert x.min() < -0.07
    assert x.max() > 0.07
    assert np.abs(x).max() <= 0.1 + 1e-6
    assert np.ptp(places["fixed"], axis=0).max() == 0
    np.testing.assert_allclose(places["fixed"][0, 0], 0, atol=1e-6)


@needs_metaworld
def test_resets_without_a_seed_go_on_from_the_last_one() -> None:
    def starts(env: gymnasium.Env[Any, Any]) -> list[np.ndarray]:
        return [env.reset(seed=4)[0], env.reset()[0], env.reset()[0]]

    once, again = starts(make("sweep-into")), starts(make("sweep-into"))
    np.testing.assert_array_equal(once, again)
    assert len({tuple(start) for start in once}) == 3


@needs_metaworld
def test_fixed_starts_where_the_middle_is_not_allowed() -> None:
    """There the two objects would stand in each other, and Meta-World would ask for other places for ever."""
    env = make("coffee-push", starts="fixed")
    np.testing.assert_array_equal(env.reset(seed=0)[0], env.reset(seed=1)[0])


@needs_metaworld
@pytest.mark.when_changed("tasks")
@pytest.mark.parametrize("task", TASKS)
def test_unfinished_episodes_are_brought_back_by_their_actions(task: str) -> None:
    maker = EnvMaker(METAWORLD_ID, {"task": task}, episode_steps=40, render=False)
    before = FrameVectorEnv(maker, 2, episode_seeds(3), frames=False)
    before.reset()
    for action in some_actions(65):
        states = before.step(np.stack([action, -action])).states
    after = FrameVectorEnv(pickle.loads(pickle.dumps(maker)), 2, episode_seeds(3), frames=False)
    assert after.restore(before.episodes, before.actions, before.drawn, states)
    for action in some_actions(30, seed=1):  # beyond the end of the episode
        actions = np.stack([action, action])
        np.testing.assert_array_equal(before.step(actions).states, after.step(actions).states)


# -- what is observed and what is a success ---------------------------------------------------------------------------


@needs_metaworld
@pytest.mark.when_changed("tasks")
@pytest.mark.filterwarnings("ignore:.*Box observation space.*")
@pytest.mark.parametrize("task", TASKS)
def test_gymnasiums_checker_is_content(task: str) -> None:
    check_env(make(task).unwrapped, skip_render_check=True)


@needs_metaworld
def test_the_goal_is_hidden_unless_it_is_asked_for() -> None:
    for show_goal in (False, True):
        env = make("soccer", show_goal=show_goal)
        for observation in (env.reset(seed=0)[0], env.step(np.zeros(4, np.float32))[0]):
            expected = inner(env)._target_pos if show_goal else np.zeros(3)
            np.testing.assert_allclose(observation[36:], expected, atol=1e-6)
            assert np.abs(observation[:36]).max() > 0.5, "the rest is still there"


@needs_metaworld
@pytest.mark.parametrize("task", TASKS)
def test_the_first_observation_is_of_the_first_state(task: str) -> None:
    """Meta-World's own is older: it still shows the object of the episode before."""
    env = make(task)
    import mujoco

    body = {"drawer-open": "drawer_link", "sweep-into": "obj", "soccer": "soccer_ball"}[task]
    handle = np.array([0, -0.16, 0]) if task == "drawer-open" else np.zeros(3)
    for seed in range(3):
        start, _ = env.reset(seed=seed)
        data = inner(env).data
        mujoco.mj_forward(inner(env).model, data)
        np.testing.assert_array_equal(start[:3], data.body("hand").xpos.astype(np.float32))
        np.testing.assert_allclose(start[4:7], data.body(body).xpos + handle, atol=1e-6)
        np.testing.assert_array_equal(start[:18], start[18:36])
        following, *_ = env.step(np.zeros(4, np.float32))
        np.testing.assert_array_equal(following[18:36], start[:18])
        np.testing.assert_allclose(following[4:7], start[4:7], atol=0.01)


@needs_metaworld
def test_the_drawer_is_closed_at_first_and_stays_closed_by_itself() -> None:
    env = make("drawer-open")
    for seed in range(5):
        env.reset(seed=seed)
        assert abs(inner(env).data.joint("goal_slidey").qpos.item()) < 1e-9
        for _ in range(20):
            *_, info = env.step(np.array([0, 0, 0, -1], np.float32))
            assert info["distance"] == pytest.approx(0.16 + 0.03, abs=1e-3), (
                "all its travel, and what is left at its stop"
            )
            assert info["success"] is False


@needs_metaworld
@pytest.mark.parametrize(("opening", "expected"), [(0.0, False), (0.14, False), (0.158, True), (0.16, True)])
def test_a_drawer_that_is_all_the_way_out_is_open(opening: float, expected: bool) -> None:
    env = make("drawer-open")
    env.reset(seed=0)
    inner(env).data.joint("goal_slidey").qpos = -opening
    said = {env.step(np.zeros(4, np.float32))[4]["success"] for _ in range(50)}
    assert said == {expected}


@needs_metaworld
@pytest.mark.when_changed("tasks")
@pytest.mark.parametrize("task", TASKS)
def test_chance_does_not_succeed(task: str) -> None:
    env = make(task)
    for seed in range(4):
        env.reset(seed=seed)
        env.action_space.seed(seed)
        for _ in range(150):
            *_, info = env.step(env.action_space.sample())
            assert not info["success"]


def expert_success(task: str, seeds: range) -> Iterator[bool]:
    """Whether Meta-World's scripted policy ever succeeds in our episodes of these seeds."""
    env = make(task, show_goal=True)
    from metaworld.policies import ENV_POLICY_MAP

    policy = ENV_POLICY_MAP[f"{task}-v3"]()
    for seed in seeds:
        state, _ = env.reset(seed=seed)
        succeeded, ended = False, False
        while not (ended or succeeded):
            state, _, terminated, ended, info = env.step(policy.get_action(state.astype(np.float64)))
            succeeded = info["success"]
            assert not terminated
        yield succeeded


@needs_metaworld
@pytest.mark.when_changed("tasks")
@pytest.mark.filterwarnings("ignore:Constant")
@pytest.mark.parametrize("task", TASKS)
def test_an_expert_succeeds_from_random_starts(task: str) -> None:
    assert sum(expert_success(task, range(6))) >= 5, "its soccer is not perfect"


@needs_metaworld
def test_time_limits() -> None:
    env = make()
    env.reset(seed=0)
    still = np.zeros(4, np.float32)
    assert [env.step(still)[2:4] for _ in range(500)] == [(False, False)] * 499 + [(False, True)]
    longer = EnvMaker(METAWORLD_ID, {"task": "soccer"}, episode_steps=503, render=False)()
    longer.reset(seed=0)
    assert [longer.step(still)[3] for _ in range(503)] == [False] * 502 + [True]


# -- pictures ---------------------------------------------------------------------------------------------------------


def project(point: np.ndarray, view: View, size: int) -> np.ndarray:
    """Row and column of a point in space, by a pinhole camera worked out from the view alone."""
    azimuth, elevation = np.radians(view.azimuth), np.radians(view.elevation)
    level = np.array([np.cos(azimuth), np.sin(azimuth), 0.0])
    up = np.array([0.0, 0.0, 1.0])
    sight = np.cos(elevation) * level + np.sin(elevation) * up
    right = np.cross(sight, up)
    right /= np.linalg.norm(right)
    away = point - (np.array(view.look_at) - view.distance * sight)
    scale = size / 2 / np.tan(np.radians(view.field_of_view / 2)) / (away @ sight)
    return np.array([size / 2 - scale * (away @ np.cross(right, sight)), size / 2 + scale * (away @ right)])


def green(picture: np.ndarray) -> np.ndarray:
    red, green, blue = np.moveaxis(picture.astype(int), 2, 0)
    return (green > red + 60) & (green > blue + 60)


ASKEW = View((0.05, 0.7, 0.05), 0.9, -35, -40, 50.0)


@needs_metaworld
@pytest.mark.when_changed("tasks")
@pytest.mark.usefixtures("opengl")
@pytest.mark.parametrize("view", [VIEWS["sweep-into"], ASKEW, View((0, 0.7, 0), 0.8, 140, -60)])
def test_pictures_are_upright_and_unmirrored(view: View) -> None:
    """The cube is where a camera without roll and without mirror must see it."""
    env = make("sweep-into", frames=True, size=160, camera=view, robot="hidden")
    for seed in range(4):
        env.reset(seed=seed)
        expected = project(inner(env).data.body("obj").xpos, view, 160)
        rows, columns = np.nonzero(green(env.render()))
        assert len(rows) > 20
        np.testing.assert_allclose([rows.mean(), columns.mean()], expected, atol=2.5)
    env.close()


@needs_metaworld
@pytest.mark.when_changed("tasks")
@pytest.mark.usefixtures("opengl")
def test_meta_worlds_own_cameras_are_turned_upright() -> None:
    """Mounted upside down or not, what lies higher is drawn higher, and the cube is seen."""
    for name in ("topview", "corner", "corner2", "corner3", "corner4"):
        env = make("sweep-into", frames=True, size=240, camera=name, robot="hidden")
        env.reset(seed=1)
        data = inner(env).data
        middles = []
        for lift in (0.0, 0.1):
            data.qpos[9:12] = 0.0, 0.65, 0.07 + lift
            import mujoco

            mujoco.mj_forward(inner(env).model, data)
            rows, columns = np.nonzero(green(env.render()))
            assert len(rows) > 5, name
            middles.append((rows.mean(), columns.mean()))
        (row, column), (lifted, beside) = middles
        if name != "topview":
            assert lifted < row - 3, name
            assert abs(beside - column) < abs(lifted - row), name
        env.close()


@needs_metaworld
@pytest.mark.usefixtures("opengl")
@pytest.mark.parametrize("size", [300, 96])
def test_the_published_picture_shows_the_cube_where_the_published_camera_sees_it(size: int) -> None:
    """RL-VLM-F: a camera at (0, 1.1, 0.75), turned by -0.5 rad about x; 480 pixels of 45 degrees, turned over by rows,
    of which 100 to 400 are kept."""
    env = make("sweep-into", frames=True, size=size, view="rlvlmf")
    env.reset(seed=3)
    away = inner(env).data.body("obj").xpos - np.array([0.0, 1.1, 0.75])
    cos, sin = np.cos(-0.5), np.sin(-0.5)
    right, up, depth = away[0], cos * away[1] + sin * away[2], sin * away[1] - cos * away[2]
    focal = 240 / np.tan(np.radians(22.5))
    row, column = 239.5 + focal * up / depth, 239.5 + focal * right / depth  # rows of a picture that is turned over
    expected = (np.array([row, column]) - 100) * size / 300
    rows, columns = np.nonzero(green(env.render()))
    np.testing.assert_allclose([rows.mean(), columns.mean()], expected, atol=size / 60)
    env.close()


@needs_metaworld
@pytest.mark.parametrize(
    ("task", "hand", "thing"),
    [
        ("drawer-open", (0, 0.75, 0.15), (0, 0.73, 0.09)),
        ("sweep-into", (0, 0.53, 0.05), (0, 0.65, 0.07)),
        ("soccer", (0, 0.56, 0.05), (0, 0.65, 0.03)),
    ],
)
def test_published_starts_are_always_the_same(task: str, hand: Any, thing: Any) -> None:
    env = make(task, view="rlvlmf")
    first, second = env.reset(seed=0)[0], env.reset(seed=1)[0]
    np.testing.assert_array_equal(first, second)
    np.testing.assert_allclose(first[:3], hand, atol=0.05)
    np.testing.assert_allclose(first[4:7], thing, atol=0.02)


@needs_metaworld
@pytest.mark.when_changed("tasks")
@pytest.mark.usefixtures("opengl")
@pytest.mark.parametrize("task", TASKS)
def test_hiding_the_robot_changes_the_picture_and_nothing_else(task: str) -> None:
    shown, hidden = (make(task, frames=True, size=224, robot=robot) for robot in ("shown", "hidden"))
    states = [env.reset(seed=2)[0] for env in (shown, hidden)]
    np.testing.assert_array_equal(*states)
    for action in some_actions(30):
        np.testing.assert_array_equal(shown.step(action)[0], hidden.step(action)[0])
    with_robot, without = shown.render(), hidden.render()
    different = (with_robot != without).any(axis=2)  # type: ignore[operator]
    assert 0.01 < different.mean() < 0.5
    for body in ("right_hand", "rightclaw", "leftclaw"):
        row, column = project(inner(shown).data.body(body).xpos, VIEWS[task], 224)
        if 0 <= row < 224 and 0 <= column < 224:
            assert different[int(row), int(column)], body
    reddish = without[..., 0].astype(int) > without[..., 1].astype(int) + 60  # type: ignore[index]
    assert not reddish.any(), "no piece of the red arm is left"
    shown.close()
    hidden.close()


@needs_metaworld
@pytest.mark.when_changed("tasks")
@pytest.mark.usefixtures("opengl")
@pytest.mark.parametrize("task", TASKS)
def test_our_cameras_see_the_object_and_its_target_wherever_they_stand(task: str) -> None:
    env = make(task, frames=True, robot="hidden", size=224)
    place = inner(env).data.qpos[9:10] if task == "drawer-open" else inner(env).data.qpos[9:12]
    import mujoco

    for seed in range(8):
        start, _ = env.reset(seed=seed)
        before = env.render()
        for point in (start[4:7], inner(env)._target_pos):
            assert (project(point, VIEWS[task], 224) > 12).all()
            assert (project(point, VIEWS[task], 224) < 212).all()
        place += -0.03 if task == "drawer-open" else np.array([0, 0.03, 0])
        mujoco.mj_forward(inner(env).model, inner(env).data)
        moved = (before != env.render()).any(axis=2)  # type: ignore[operator]
        assert moved.sum() > 40
        middle = np.argwhere(moved).mean(axis=0)
        assert np.linalg.norm(middle - project(start[4:7], VIEWS[task], 224)) < 50, "it is the object that moved"
    env.close()


@needs_metaworld
@pytest.mark.when_changed("tasks")
@pytest.mark.usefixtures("opengl")
def test_pictures_are_made_as_asked() -> None:
    pictures = {}
    for name, options in {
        "plain": {},
        "again": {},
        "marked": {"show_goal": True},
        "shaded": {"shadows": True},
        "by fields": {"camera": {"look_at": (0, 0.7, 0), "distance": 1, "azimuth": 0, "elevation": -20}},
    }.items():
        env = EnvMaker(METAWORLD_ID, {"task": "soccer"} | options, frame_size=(48, 80))()
        env.reset(seed=3)
        pictures[name] = np.asarray(env.render())
        assert pictures[name].shape == (48, 80, 3)
        assert pictures[name].dtype == np.uint8
        env.close()
    np.testing.assert_array_equal(pictures["plain"], pictures["again"])
    for name in ("marked", "shaded", "by fields"):
        assert (pictures[name] != pictures["plain"]).any(), name


@needs_metaworld
@pytest.mark.when_changed("tasks")
@pytest.mark.usefixtures("opengl")
def test_frames_of_several_environments_at_once() -> None:
    """Each has an OpenGL context of its own, and they do not get in each other's way."""
    maker = EnvMaker(METAWORLD_ID, {"task": "sweep-into"}, frame_size=(48, 48))
    together = FrameVectorEnv(maker, 3, lambda env, episode: 10 + env)
    together.reset()
    frames = together.step(np.zeros((3, 4), np.float32)).frames
    assert frames is not None
    frames = frames.copy()
    together.close()
    for env, frame in enumerate(frames):
        alone = maker()
        alone.reset(seed=10 + env)
        alone.step(np.zeros(4, np.float32))
        np.testing.assert_array_equal(alone.render(), frame)
        alone.close()
    assert (frames[0] != frames[1]).any()


@needs_metaworld
def test_an_action_that_is_held_is_the_same_action_again_and_again() -> None:
    held, single = make("drawer-open", frame_skip=4), make("drawer-open")
    held.reset(seed=3)
    single.reset(seed=3)
    for action in some_actions(5):
        steps = [single.step(action) for _ in range(4)]
        observation, reward, _, _, info = held.step(action)
        np.testing.assert_array_equal(observation, steps[-1][0])
        assert reward == pytest.approx(np.mean([step[1] for step in steps]))
        assert info == steps[-1][4]
    assert held.unwrapped.metadata["render_fps"] == 20


# -- wrong input ------------------------------------------------------------------------------------------------------


@needs_metaworld
@pytest.mark.when_changed("tasks")
@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"task": "draw-open"}, "'drawer-open'"),
        ({"starts": "fix"}, "'fixed'"),
        ({"robot": "hiden"}, "'hidden'"),
        ({"camera": "corner9"}, "'corner"),
        ({"camera": {"look_at": (0, 0, 0)}}, "distance"),
        ({"colour": "red"}, "colour"),
        ({"view": "rl-vlm-f"}, "'rlvlmf'"),
        ({"frame_skip": 0}, "at least 1"),
        ({"frame_skip": 2.5}, "frame_skip=2.5"),
        ({"task": "door-open", "view": "rlvlmf"}, "the task of view=rlvlmf"),
        ({"render_size": (64, 96), "view": "rlvlmf"}, "not 64x96; say render_size=[300,300]"),
    ],
)
def test_wrong_options_are_said_in_one_line(options: dict[str, Any], expected: str) -> None:
    with pytest.raises(BadInput) as caught:
        EnvMaker(METAWORLD_ID, options)()
    assert expected in str(caught.value)
    assert "\n" not in str(caught.value)


@needs_metaworld
@pytest.mark.parametrize("task", ["reach", "door-open-v3", "peg-insert-side"])
def test_other_tasks_can_be_played_as_well(task: str) -> None:
    env = MetaWorld(task)
    env.reset(seed=0)
    assert env.step(env.action_space.sample())[0].shape == (39,)
    env.close()
