"""The humanoid: its two kinds of physics and control, geometric checks of poses, pictures, and many of them at once."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import psutil
import pytest

from sightline.envs.frame_vector import FrameVectorEnv, episode_seeds
from sightline.envs.making import EnvMaker
from sightline.envs.rendering import is_software
from sightline.errors import BadInput, RunFailed
from sightline.runs.metrics import read_metrics
from sightline_tasks.cameras import View
from sightline_tasks.humanoid.body import (
    ACTION_SECONDS,
    ROOT,
    TIMESTEP,
    Skeleton,
    make_model,
    observe,
    to_control,
)
from sightline_tasks.humanoid.drawing import LOOKS, draw_humanoid
from sightline_tasks.humanoid.env import CAMERAS, TASKS, Humanoid, HumanoidVector
from sightline_tasks.humanoid.poses import POSES, place
from sightline_tasks.humanoid.simulation import PoseJudge, PoseReward
from sightline_tasks.mujoco_rendering import import_mujoco
from sightline_tasks.registration import HUMANOID_ID

mujoco = import_mujoco()


@pytest.fixture(scope="module")
def skeleton() -> Skeleton:
    return Skeleton(make_model("gymnasium", "position"))


# -- body --------------------------------------------------------------------------------------------------------------


def test_true_physics_with_torques_is_gymnasiums() -> None:
    """The same actions lead Gymnasium's Humanoid-v5 and ours through the same states."""
    reference = gymnasium.make("Humanoid-v5", terminate_when_unhealthy=False, frame_skip=10).unwrapped
    reference.reset(seed=3)
    ours = Humanoid(physics="gymnasium", control="torque")
    ours.reset(seed=0)
    data = ours._vector._simulation.data[0]
    data.qpos[:], data.qvel[:] = reference.data.qpos, reference.data.qvel
    rng = np.random.default_rng(0)
    for _ in range(20):
        action = rng.uniform(-1, 1, 17)
        reference.step(0.4 * action)
        ours.step(action)
        np.testing.assert_allclose(data.qpos, reference.data.qpos, atol=1e-9)


def test_both_kinds_of_physics_take_the_same_control_step() -> None:
    for physics, steps in (("gymnasium", 10), ("fast", 4)):
        assert steps * make_model(physics, "torque").opt.timestep == pytest.approx(ACTION_SECONDS)  # type: ignore[arg-type]


@pytest.mark.parametrize("physics", list(TIMESTEP))
def test_two_short_actions_are_one_long_one(physics: Any) -> None:
    long, short = (HumanoidVector(2, physics=physics, action_seconds=seconds) for seconds in (0.03, 0.015))
    assert (long.metadata["render_fps"], short.metadata["render_fps"]) == (33, 67)
    for env in (long, short):
        env.reset(seed=0)
    rng = np.random.default_rng(0)
    for _ in range(5):
        actions = rng.uniform(-1, 1, (2, 17))
        short.step(actions)
        assert np.array_equal(long.step(actions)[0], short.step(actions)[0])


@pytest.mark.parametrize("seconds", [0.02, 0.0, -0.03, "fast", float("nan"), 0.01])
def test_actions_last_whole_steps_of_physics(seconds: Any) -> None:
    with pytest.raises(BadInput, match="multiple of the physics' steps") as refused:
        HumanoidVector(1, physics="fast", action_seconds=seconds)
    assert "\n" not in str(refused.value)


def test_blank_pictures_show_nothing() -> None:
    env = HumanoidVector(2, look="blank", camera=["close", "side"], render_mode="rgb_array", render_size=(8, 8))
    env.reset(seed=0)
    frames = np.stack(env.render())
    assert frames.shape == (2, 8, 16, 3)
    assert not frames.any()


@pytest.mark.when_changed("tasks")
def test_mixed_starts_are_in_any_posture_and_repeat() -> None:
    standing, mixed, again = (HumanoidVector(64, starts=starts) for starts in ("standing", "mixed", "mixed"))  # type: ignore[arg-type]
    first = {name: env.reset(seed=5)[0] for name, env in (("standing", standing), ("mixed", mixed), ("again", again))}
    assert np.array_equal(first["mixed"], first["again"])
    bent = np.abs(first["mixed"][:, 8:25] - first["standing"][:, 8:25]).max(axis=1) > 0.1
    assert 16 < bent.sum() < 48
    heights = mixed._simulation.posture.clearance.min(axis=1)[bent]
    assert np.abs(heights).max() < 0.03  # they are put on the floor, but for the noise of every start
    assert not np.any([mixed.step(np.zeros((64, 17)))[2] for _ in range(50)])


def test_position_control_goes_from_one_limit_over_the_neutral_angle_to_the_other() -> None:
    model = make_model("fast", "position")
    joints = model.actuator_trnid[:, 0]
    np.testing.assert_allclose(to_control(model, -np.ones(17)), model.jnt_range[joints, 0])
    np.testing.assert_allclose(to_control(model, np.ones(17)), model.jnt_range[joints, 1])
    neutral = to_control(model, np.zeros(17))
    knees = [model.joint(int(joint)).name.endswith("knee") for joint in joints]
    assert (neutral[~np.array(knees)] == 0).all()
    np.testing.assert_allclose(neutral[knees], np.radians(-2))
    np.testing.assert_array_equal(to_control(model, np.full(17, 5.0)), to_control(model, np.ones(17)))


def test_position_control_is_as_strong_as_the_motors() -> None:
    torques, targets = make_model("fast", "torque"), make_model("fast", "position")
    limits = 0.4 * torques.actuator_gear[:, 0]
    np.testing.assert_allclose(targets.actuator_forcerange, np.stack([-limits, limits], axis=1))
    data = mujoco.MjData(targets)
    data.ctrl[:] = to_control(targets, np.ones(17))
    mujoco.mj_forward(targets, data)
    expected = np.clip(6 * limits * (data.ctrl - data.qpos[targets.actuator_trnid[:, 0] + 6]), -limits, limits)
    np.testing.assert_allclose(data.actuator_force, expected, atol=1e-9)


def test_observations_by_mujoco(skeleton: Skeleton) -> None:
    """Directions and velocities in the torso's frame are those that MuJoCo computes."""
    model = make_model("gymnasium", "torque")
    data = mujoco.MjData(model)
    rng = np.random.default_rng(2)
    data.qpos[:] = rng.normal(0, 0.5, 24)
    data.qpos[3:7] /= np.linalg.norm(data.qpos[3:7])
    data.qvel[:] = rng.normal(0, 1, 23)
    mujoco.mj_forward(model, data)
    seen = observe(data.qpos[None].copy(), data.qvel[None].copy())[0]
    rotation = data.body("torso").xmat.reshape(3, 3)
    velocity = np.zeros(6)
    mujoco.mj_objectVelocity(model, data, mujoco.mjtObj.mjOBJ_XBODY, model.body("torso").id, velocity, 1)
    np.testing.assert_allclose(seen[:3], data.qpos[:3], atol=1e-6)
    np.testing.assert_allclose(seen[3:5], rotation[:2, 0], atol=1e-6)
    np.testing.assert_allclose(seen[5:8], rotation[2], atol=1e-6)
    np.testing.assert_allclose(seen[8:25], data.qpos[7:], atol=1e-6)
    np.testing.assert_allclose(seen[25:28] * 3, velocity[3:], atol=1e-5)
    np.testing.assert_allclose(seen[28:31] * 10, velocity[:3], atol=1e-5)


# -- poses -------------------------------------------------------------------------------------------------------------


def legs(**angles: float) -> dict[str, float]:
    return {f"{side}_{name}": angle for name, angle in angles.items() for side in ("right", "left")}


def arms(shoulder1: float, shoulder2: float, elbow: float) -> dict[str, float]:
    right = {"right_shoulder1": shoulder1, "right_shoulder2": shoulder2, "right_elbow": elbow}
    return right | {"left_shoulder1": -shoulder1, "left_shoulder2": -shoulder2, "left_elbow": elbow}


STRAIGHT, DOWN = legs(knee=-3), arms(45, -35, -80)
IN_POSE: dict[str, list[Mapping[str, float]]] = {
    "standing": [
        STRAIGHT | DOWN,
        STRAIGHT,
        legs(knee=-15, hip_y=-8) | DOWN,
        legs(knee=-6, hip_x=-8) | arms(-30, 10, -40),
        STRAIGHT | arms(-2, 12, -33),
    ],
    "arms-raised": [
        STRAIGHT | arms(-83, 12, -82),
        STRAIGHT | arms(-79, -2, -72),
        STRAIGHT | arms(-82, 22, -58),
        legs(knee=-12, hip_y=-6) | arms(-84, 15, -89),
        STRAIGHT | arms(-70, 10, -85),
    ],
    "hands-on-hips": [
        STRAIGHT | arms(54, -77, -2),
        STRAIGHT | arms(51, -76, 1),
        STRAIGHT | arms(58, -70, -8),
        legs(knee=-12, hip_y=-6) | arms(54, -80, 1),
        STRAIGHT | arms(50, -80, 4),
    ],
    "arms-crossed": [
        STRAIGHT | arms(-53, 59, -8),
        STRAIGHT | arms(-46, 59, -8),
        STRAIGHT | arms(-52, 58, -6),
        STRAIGHT | arms(-50, 60, -10),
        legs(knee=-12, hip_y=-6) | arms(-55, 58, -7),
    ],
    "one-leg": [
        STRAIGHT | DOWN | {"right_hip_y": -66, "right_knee": -95},
        STRAIGHT | DOWN | {"left_hip_y": -66, "left_knee": -95},
        STRAIGHT | DOWN | {"right_knee": -80},
        STRAIGHT | {"left_hip_y": -60},
        STRAIGHT | arms(-57, -60, -18) | {"right_hip_y": -100, "right_knee": -140},
    ],
    "kneeling": [
        legs(knee=-90) | DOWN,
        legs(knee=-90),
        legs(knee=-88) | arms(-83, 12, -82),
        legs(knee=-90, hip_x=-8),
        legs(knee=-120, hip_y=-32) | DOWN,
    ],
    "splits": [
        legs(hip_x=-15, hip_z=-60, hip_y=-85, knee=-6) | arms(-57, -60, -18),
        legs(hip_x=-5, hip_z=-58, hip_y=-88, knee=-4),
        legs(hip_x=-20, hip_z=-55, hip_y=-86, knee=-10),
        legs(hip_x=-10, hip_z=-60, hip_y=-96, knee=-20),
        legs(hip_x=-10, hip_z=-60, hip_y=-88, knee=-3) | arms(20, -30, -40),
    ],
    "lotus": [
        {"abdomen_y": -55.0} | legs(hip_x=-2, hip_z=-45, hip_y=-105, knee=-147),
        {"abdomen_y": -58.0} | legs(hip_x=1, hip_z=-53, hip_y=-108, knee=-147),
        {"abdomen_y": -59.0} | legs(hip_x=-9, hip_z=-45, hip_y=-104, knee=-149),
        {"abdomen_y": -55.0} | legs(hip_x=-11, hip_z=-49, hip_y=-104, knee=-147) | arms(20, -30, -40),
        {"abdomen_y": -57.0} | legs(hip_x=2, hip_z=-41, hip_y=-103, knee=-142),
    ],
}
UPRIGHT = {"standing", "arms-raised", "hands-on-hips", "arms-crossed"}


@pytest.mark.parametrize("pose", list(POSES))
def test_a_pose_passes_its_own_check_and_no_other(pose: str, skeleton: Skeleton) -> None:
    posture = skeleton.posture(np.stack([place(skeleton, angles) for angles in IN_POSE[pose]]))
    for name, other in POSES.items():
        holds = other.holds(posture, skeleton)
        # Whoever stands with raised arms is also standing.
        expected = name == pose or (name == "standing" and pose in UPRIGHT)
        assert (holds == expected).all(), f"{pose} as {name}: {holds}"


def test_a_pose_that_the_joints_do_not_allow_is_refused(skeleton: Skeleton) -> None:
    with pytest.raises(BadInput, match="right_knee can be bent from -160 to -2 degrees, not by 500"):
        place(skeleton, {"right_knee": 500})
    with pytest.raises(BadInput, match="joint='right_nee' is unknown; did you mean 'right_knee'"):
        place(skeleton, {"right_nee": -20})


@pytest.mark.parametrize("pose", list(POSES))
def test_near_misses_do_not_pass(pose: str, skeleton: Skeleton) -> None:
    own = IN_POSE[pose][0]
    straight_up = place(skeleton, own)
    lifted, lying, tilted = straight_up.copy(), straight_up.copy(), straight_up.copy()
    lifted[2] += 0.3
    lying[3:7] = np.cos(np.pi / 4), 0, np.sin(np.pi / 4), 0
    tilted[3:7] = np.cos(np.pi / 6), np.sin(np.pi / 6), 0, 0
    misses = [lifted, lying, tilted]
    for other, angles in (("standing", STRAIGHT | DOWN), ("kneeling", legs(knee=-90)), ("lying", {})):
        if other != pose:
            qpos = place(skeleton, angles)
            if other == "lying":
                qpos[3:7] = np.cos(np.pi / 4), 0, -np.sin(np.pi / 4), 0
                qpos[2] = 0.1
            misses.append(qpos)
    holds = POSES[pose].holds(skeleton.posture(np.stack(misses)), skeleton)
    assert not holds.any()


def test_a_pose_is_held_if_it_is_true_now_and_most_of_the_last_steps(skeleton: Skeleton) -> None:
    kneeling = skeleton.posture(place(skeleton, IN_POSE["kneeling"][0])[None])
    standing = skeleton.posture(place(skeleton, IN_POSE["standing"][0])[None])
    index = list(POSES).index("kneeling")

    def held(*postures: tuple[int, object]) -> bool:
        judge = PoseJudge(1, skeleton)
        said = False
        for count, posture in postures:
            for _ in range(count):
                said = bool(judge.step(posture)[1][0, index])  # type: ignore[arg-type]
        return said

    assert not held((15, kneeling))  # too early: 0.6 seconds are 20 steps
    assert held((16, kneeling))
    assert held((4, standing), (16, kneeling))
    assert not held((5, standing), (15, kneeling))
    assert held((30, kneeling), (4, standing), (1, kneeling))
    assert not held((30, kneeling), (1, standing))


@pytest.mark.parametrize("pose", list(POSES))
def test_the_ground_truth_is_highest_in_the_pose(pose: str, skeleton: Skeleton) -> None:
    reward = PoseReward(POSES[pose], skeleton)
    examples = skeleton.posture(np.stack([place(skeleton, other.angles, other.lean) for other in POSES.values()]))
    rewards = reward(examples)
    assert int(np.argmax(rewards)) == list(POSES).index(pose)
    assert rewards.max() == pytest.approx(1.0, abs=0.01)
    # Neither where it is nor where it faces changes anything.
    turned = place(skeleton, POSES[pose].angles, POSES[pose].lean)
    turned[:2] += 3
    half = np.radians(120) / 2
    w, _, y, _ = turned[3:ROOT]
    turned[3:ROOT] = w * np.cos(half), -y * np.sin(half), y * np.cos(half), w * np.sin(half)
    np.testing.assert_allclose(reward(skeleton.posture(turned[None])), 1.0, atol=1e-3)


# -- the environment ---------------------------------------------------------------------------------------------------


def test_many_at_once_are_what_each_is_alone() -> None:
    actions = np.random.default_rng(1).uniform(-1, 1, (12, 3, 17))
    together = HumanoidVector(3, "standing", "fast")
    together.reset(seed=[7, 8, 9])
    steps = [together.step(action) for action in actions]
    for i in range(3):
        alone = Humanoid("standing", physics="fast")
        alone.reset(seed=7 + i)
        for action, (states, rewards, _, _, infos) in zip(actions[:, i], steps, strict=True):
            state, reward, _, _, info = alone.step(action)
            np.testing.assert_array_equal(state, states[i])
            assert reward == rewards[i]
            assert info == {name: bool(values[i]) for name, values in infos.items()}


def test_unfinished_episodes_of_many_are_restored_exactly() -> None:
    maker = EnvMaker(HUMANOID_ID, {"physics": "fast"}, episode_steps=6, render=False)
    envs = FrameVectorEnv(maker, 3, episode_seeds(4), frames=False)
    envs.reset()
    rng = np.random.default_rng(0)
    for t in range(8):
        if t == 3:  # so that their episodes are not of one age
            envs._native._envs._steps[1] = 6
        step = envs.step(rng.uniform(-1, 1, (3, 17)).astype(np.float32))
    assert sorted(map(len, envs.actions)) == [2, 2, 4]
    again = FrameVectorEnv(maker, 3, episode_seeds(4), frames=False)
    assert again.restore(envs.episodes, envs.actions, envs.drawn, step.states)
    action = rng.uniform(-1, 1, (3, 17)).astype(np.float32)
    one, other = envs.step(action), again.step(action)
    np.testing.assert_array_equal(one.states, other.states)
    np.testing.assert_array_equal(one.rewards, other.rewards)


def test_physics_that_diverges_ends_its_episode_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    envs = HumanoidVector(2, "standing", "fast")
    envs.reset(seed=[1, 2])
    envs._simulation.data[0].qvel[:] = 1e12
    states, rewards, terminated, truncated, infos = envs.step(np.zeros((2, 17)))
    assert terminated.tolist() == [True, False] and not truncated.any()
    assert infos["diverged"].tolist() == [True, False] and rewards[0] == 0.0
    assert np.isfinite(states).all()
    envs.reset(seed=[3, None], options={"reset_mask": terminated})
    assert not envs.step(np.zeros((2, 17)))[2].any()
    assert not list(tmp_path.iterdir()), "MuJoCo leaves no log behind"


@pytest.mark.parametrize("name", list(TASKS))
def test_tasks_are_made_with_frames_and_a_time_limit(name: str) -> None:
    task = TASKS[name]
    env = EnvMaker(task.env, task.env_options, frame_size=(48, 48))()
    env.reset(seed=0)
    steps = 0
    ended = False
    while not ended:
        _, _, terminated, ended, info = env.step(np.zeros(17, np.float32))
        assert not terminated
        steps += 1
    assert steps == 50
    assert set(task.measures) <= set(info)
    assert env.render().shape == (48, 48, 3)  # type: ignore[union-attr]


AHEAD = {"look_at": [0, 0, 1], "distance": 3, "azimuth": 0, "elevation": 0}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"pose": "kneel"}, "did you mean 'kneeling'"),
        ({"physics": "exact"}, "physics='exact' is unknown"),
        ({"control": "muscle"}, "control='muscle' is unknown"),
        ({"look": "raytraced"}, "look='raytraced' is unknown"),
        ({"scene": "moon"}, "scene='moon' is unknown"),
        ({"camera": "frnt"}, "did you mean 'front'"),
        ({"camera": ["front", "bcak"]}, "camera='bcak' is unknown"),
        ({"camera": []}, "camera must be a name"),
        ({"camera": {"distance": 3}}, "camera must be a name or have look_at"),
        ({"camera": {"look_at": [0, 0, 1], "distance": 3, "azimuth": 0, "elevation": 0, "roll": 1}}, "camera must be"),
        ({"camera": AHEAD | {"look_at": [0, 0]}}, "camera must be a name or have look_at"),
        ({"camera": AHEAD | {"look_at": "above"}}, "camera must be a name or have look_at"),
        ({"camera": AHEAD | {"distance": float("nan")}}, "camera must be a name or have look_at"),
        ({"camera": AHEAD | {"distance": "3"}}, "camera must be a name or have look_at"),
        ({"camera": AHEAD | {"distance": -3}}, "camera must be a name or have look_at"),
        ({"camera": AHEAD | {"field_of_view": 0}}, "camera must be a name or have look_at"),
    ],
)
def test_wrong_choices_are_refused_in_one_line(options: dict[str, object], message: str) -> None:
    with pytest.raises(BadInput, match=message) as caught:
        EnvMaker(HUMANOID_ID, dict(options), render=False)()
    assert "\n" not in str(caught.value)


# -- pictures ----------------------------------------------------------------------------------------------------------


def orange(picture: np.ndarray) -> np.ndarray:
    """bool[H, W], where the body is in the original scene: nothing else there is orange."""
    return np.asarray(picture[:, :, 0].astype(int) - picture[:, :, 2] > 25)


def test_pictures_are_upright_and_seen_from_the_front() -> None:
    """The head is above the feet; the robot's right hand, stretched out, is on the left side of the picture."""
    env = Humanoid("standing", render_mode="rgb_array", render_size=(96, 96))
    env.reset(seed=0)
    skeleton = env._vector._simulation.skeleton
    qpos = place(skeleton, STRAIGHT | {"right_shoulder1": -54, "right_shoulder2": -63, "right_elbow": -14})
    posture = skeleton.posture(qpos[None])
    seen = CAMERAS["front"].project(np.stack([posture.head[0], posture.feet[0, 0], posture.hands[0, 0]]))
    head, foot, hand = seen[:, :2]
    assert head[1] < foot[1] and hand[0] < head[0] - 0.1
    look = LOOKS["original"]
    picture = draw_humanoid(posture.ends[0], skeleton.radii, CAMERAS["front"], (96, 96), look)
    body = orange(picture)
    for x, y in (head, foot, hand):
        assert body[round(y * 96), round(x * 96)]
    assert not body[round(hand[1] * 96), 95 - round(hand[0] * 96)]


def test_the_drawn_look_shows_what_opengl_shows(skeleton: Skeleton) -> None:
    """Limbs are at the same pixels in both looks."""
    bodies = {}
    for look in ("drawn", "gl"):
        env = Humanoid("standing", render_mode="rgb_array", render_size=(128, 128), look=look)
        env.reset(seed=0)
        simulation = env._vector._simulation
        simulation.qpos[0] = simulation.data[0].qpos[:] = place(skeleton, POSES["arms-raised"].angles)
        simulation.posture = skeleton.posture(simulation.qpos)
        try:
            bodies[look] = orange(env.render())
        except RunFailed as error:
            pytest.skip(f"no OpenGL here: {error}")
        finally:
            env.close()
    assert (bodies["drawn"] & bodies["gl"]).sum() / (bodies["drawn"] | bodies["gl"]).sum() > 0.7


def test_the_tracking_camera_follows_the_body() -> None:
    env = Humanoid("standing", render_mode="rgb_array", render_size=(64, 64), camera="track")
    env.reset(seed=0)
    simulation = env._vector._simulation
    for x, y in ((0.0, 0.0), (5.0, -3.0)):
        simulation.qpos[0, :2] = x, y
        simulation.posture = simulation.skeleton.posture(simulation.qpos)
        body = orange(env.render())
        assert body.any()
        assert abs(float(np.flatnonzero(body.any(axis=0)).mean()) - 31.5) < 3


def test_several_cameras_stand_side_by_side() -> None:
    cameras: list[str] = ["front", "side"]
    pictures = []
    for camera in (*cameras, cameras):
        env = Humanoid("standing", render_mode="rgb_array", render_size=(48, 64), camera=camera)
        env.reset(seed=0)
        pictures.append(env.render())
    assert np.array_equal(np.concatenate(pictures[:2], axis=1), pictures[2])
    assert not np.array_equal(pictures[0], pictures[1])


def test_a_views_projection_by_hand() -> None:
    view = View((0.0, 0.0, 1.0), 2.0, 180, 0, field_of_view=90)
    np.testing.assert_allclose(view.place, [2, 0, 1], atol=1e-12)
    # Half a metre up, a metre before the camera: its slope is 0.5 of at most 1.
    np.testing.assert_allclose(view.project(np.array([1.0, 0.0, 1.5])), [0.5, 0.25, 1.0], atol=1e-12)
    np.testing.assert_allclose(view.project(np.array([1.0, 0.5, 1.0])), [0.75, 0.5, 1.0], atol=1e-12)


def test_software_opengl_is_named() -> None:
    """By its own name for itself, where MuJoCo has made a context; the drawn look makes none."""
    script = (
        "from sightline_tasks.humanoid.env import Humanoid\n"
        "from sightline.envs.rendering import is_software, opengl_renderer\n"
        "for look in ('drawn', 'gl'):\n"
        "    env = Humanoid('standing', render_mode='rgb_array', look=look)\n"
        "    env.reset(seed=0)\n"
        "    env.render()\n"
        "    print(opengl_renderer())\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"no OpenGL here: {done.stderr[-200:]}")
    drawn, renderer = done.stdout.splitlines()
    assert drawn == "None"
    assert renderer != "None"
    assert is_software("llvmpipe (LLVM 15.0.6, 256 bits)") and not is_software("NVIDIA H100/PCIe/SSE2")


@pytest.mark.when_changed("tasks")
def test_without_opengl_one_line_says_so(sightline_process: Callable[..., Any], tmp_path: Path) -> None:
    """GLFW needs a display, and warns of its absence in many lines."""
    options = ("env_options.look=gl", "steps=64", "envs=2", "--run-dir", tmp_path / "run")
    process = sightline_process("train", "env=humanoid-kneeling", *options, MUJOCO_GL="glfw", DISPLAY="")
    out, err = process.communicate(timeout=120)
    assert (process.returncode, out, err.count("\n")) == (1, "", 1), err
    assert "there is no OpenGL to draw with, MUJOCO_GL=glfw (" in err
    assert err.endswith("'sightline doctor' says what works here\n")
    assert not (tmp_path / "run").exists()


@pytest.mark.usefixtures("opengl")
def test_the_first_picture_of_an_episode_is_lit_as_all_others() -> None:
    env = Humanoid("standing", render_mode="rgb_array", render_size=(64, 64), look="gl")
    env.reset(seed=0)
    first = env.render().mean()
    env.step(np.zeros(17, np.float32))
    assert first == pytest.approx(env.render().mean(), rel=0.1)
    env.close()


@pytest.mark.when_changed("tasks")
def test_an_encoder_may_be_loaded_after_a_picture() -> None:
    """Two libraries with an LLVM each; the process would die if OpenGL's came first."""
    script = (
        "from sightline_tasks.humanoid.env import Humanoid\n"
        "env = Humanoid('standing', render_mode='rgb_array', render_size=(64, 64), look='gl')\n"
        "env.reset(seed=0)\n"
        "picture = env.render()\n"
        "from sightline import ZeroShotReward\n"
        "print(ZeroShotReward('a humanoid robot')(picture[None]).shape)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    if done.returncode == 1:
        pytest.skip(f"no OpenGL here: {done.stderr[-200:]}")
    assert (done.returncode, done.stdout) == (0, "(1,)\n"), done.stderr[-500:]


# -- recipes for machines that are not here, in little -----------------------------------------------------------------

SMALL = (
    *(
        "reward.encoder=bundled",
        "reward.batch_size=16",
        "envs=2",
        "steps=40",
        "episode_steps=20",
        "learner.chunk=10",
        "videos=false",
    ),
    *("learner.batch_size=20", "evaluation.episodes=1", "evaluation.test_episodes=1", "tensorboard=false"),
)
SMALL_SAC = (
    "learner.learning_starts=16",
    "learner.gradient_steps=2",
    "learner.buffer_size=200",
    "learner.hidden=[8,8]",
)


KNEELING = ("goal=a humanoid robot kneeling", "baseline=a humanoid robot")


@pytest.mark.usefixtures("opengl")
@pytest.mark.parametrize(
    "arguments",
    [
        pytest.param(("humanoid-kneeling-vlmrm", *SMALL_SAC), id="vlmrm", marks=pytest.mark.when_changed("tasks")),
        pytest.param(("humanoid-kneeling-one-gpu",), id="one GPU"),
        pytest.param(("env=Humanoid-v5", *KNEELING, *SMALL_SAC), id="v5", marks=pytest.mark.when_changed("tasks")),
    ],
)
def test_recipes_for_large_encoders_train_with_a_small_one(
    train_run: Callable[..., Path], arguments: tuple[str, ...]
) -> None:
    run = train_run(*arguments, *SMALL)
    records = read_metrics(run / "metrics.jsonl")
    assert [r["rollout/reward"] for r in records if "rollout/reward" in r], "scored by the words"
    result = json.loads((run / "result.json").read_text())
    assert np.isfinite(result["reward"])
    assert ("held kneeling" in result["measures"]) is not arguments[0].startswith("env=")


# -- what is left behind -----------------------------------------------------------------------------------------------

RENDERING = (
    *("env=humanoid-kneeling", "env_options.look=gl", "workers=processes", "envs=2", "goal=a pole", "baseline=[]"),
    *("reward.alpha=null", "learner.algorithm=PPO", "learner.chunk=8", "learner.batch_size=16", "episode_steps=10"),
    *("evaluation.episodes=1", "evaluation.test_episodes=1", "videos=false", "tensorboard=false"),
)


@pytest.mark.parametrize(
    "how",
    [
        "interrupt",
        pytest.param("end", marks=pytest.mark.when_changed("tasks")),
        pytest.param("crash", marks=pytest.mark.when_changed("tasks")),
    ],
)
def test_nothing_is_left_of_a_run_that_renders(sightline_process: Callable[..., Any], tmp_path: Path, how: str) -> None:
    """No process, no shared memory, no temporary file; an OpenGL context ends with the process that has it."""
    temporary, run = tmp_path / "temporary", tmp_path / "run"
    temporary.mkdir()
    shared: set[str] = set()
    steps = "steps=32" if how == "end" else "steps=100000"
    process = sightline_process("train", *RENDERING, steps, "--run-dir", run, TMPDIR=str(temporary))
    children: dict[int, psutil.Process] = {}
    while process.poll() is None:
        with contextlib.suppress(psutil.Error, OSError):
            children |= {child.pid: child for child in psutil.Process(process.pid).children(recursive=True)}
            # Other tests have shared memory at the same time: only what this run's processes have mapped counts.
            for each in [psutil.Process(process.pid), *children.values()]:
                shared |= {mapped.path for mapped in each.memory_maps() if mapped.path.startswith("/dev/shm/")}
        metrics = run / "metrics.jsonl"
        if how != "end" and metrics.is_file() and metrics.read_text().count("rollout/reward") >= 2:
            # Ctrl-C reaches the whole group; a crash only the process itself.
            os.killpg(process.pid, signal.SIGINT) if how == "interrupt" else process.kill()
            break
        time.sleep(0.05)
    _, err = process.communicate(timeout=60)
    if "could not render" in err:
        pytest.skip(f"no OpenGL here: {err[-200:]}")
    assert process.returncode == {"end": 0, "interrupt": 130, "crash": -signal.SIGKILL}[how], err
    assert len(children) >= 2
    _, alive = psutil.wait_procs(children.values(), timeout=30)
    assert not alive
    assert not [path for path in shared if Path(path).exists()]
    if how != "crash":
        assert "Traceback" not in err and "Error" not in err
        assert not [path for path in temporary.iterdir() if not path.name.startswith("torchinductor")]  # torch's cache


@pytest.mark.parametrize("name", list(POSES))
def test_the_goal_that_is_shown_is_the_pose(name: str) -> None:
    env = gymnasium.make(HUMANOID_ID, pose=name, render_mode="rgb_array", render_size=(32, 32))
    env.reset(seed=0)
    standing = np.asarray(env.render())
    shown: Any = env.unwrapped
    holds = []
    for seed in range(8):
        TASKS[name].show_goal(shown, np.random.default_rng(seed))  # type: ignore[misc]
        simulation = shown._vector._simulation
        holds.append(POSES[name].holds(simulation.posture, simulation.skeleton)[0])
    assert np.mean(holds) >= 0.5
    assert name == "standing" or not np.array_equal(np.asarray(env.render()), standing)
    env.close()
