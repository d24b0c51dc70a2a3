"""The humanoid as an environment, alone and as many at once, and its eight tasks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, get_args

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv

from sightline.envs.frames import Size
from sightline.envs.tasks import Task
from sightline.errors import BadInput, one_of
from sightline_tasks.cameras import Camera, View, view_of
from sightline_tasks.humanoid.body import ACTION_SECONDS, JOINTS, ROOT, TIMESTEP, Control, Physics
from sightline_tasks.humanoid.drawing import LOOKS, draw_humanoid
from sightline_tasks.humanoid.poses import POSES, place
from sightline_tasks.humanoid.scene import Scene
from sightline_tasks.humanoid.simulation import PoseJudge, PoseReward, Simulation, Starts
from sightline_tasks.mujoco_rendering import OffscreenRenderer
from sightline_tasks.registration import HUMANOID_ID

CAMERAS = {
    "front": View((0.0, 0.0, 1.0), 3.5, 180, -10),
    "close": View((0.0, 0.0, 0.95), 2.8, 135, -10),
    "facing": View((0.0, 0.0, 0.95), 2.8, 180, -10),
    "side": View((0.0, 0.0, 0.95), 2.8, 90, -10),
    "track": View((0.0, 0.0, 1.0), 3.5, 180, -10),
}
"""`front` is where the paper's camera stands. `track` stands there too, but moves sideways and back with the torso."""
EPISODE_STEPS = 50
"""1.5 seconds, as in the paper."""
OBSERVATIONS = 48
POSE_NOISE = 0.05
"""Greatest turn of a joint from its place in the example of a pose, where the pose is shown (radians)."""
NO_LIMIT = 2**62


class HumanoidVector(VectorEnv[np.ndarray, np.ndarray, Any]):
    """N humanoids that stand up, kneel, raise their arms and more: Gymnasium's body, eight poses.

    Observation: float32[48], see `sightline_tasks.humanoid.body.observe`. Action: float32[17] in [-1, 1], torques or
    target angles. Reward (the ground truth): nearness to an example of the pose, in [0, 1]; see `PoseReward`. Infos:
    `success`, whether the pose is held; `in_pose`, whether the state is in it; `held <pose>` for each of the eight;
    `diverged`, whether MuJoCo gave up the physics, which terminates the episode. Otherwise only the time limit ends it.

    Args:
        num_envs: N.
        pose: one of `POSES`.
        physics: `gymnasium` or `fast`; see `sightline_tasks.humanoid.body`.
        control: `torque` or `position`.
        starts: how episodes begin: `standing`; or `mixed`, half of them in any posture, for training.
        action_seconds: from one action to the next; a multiple of the steps of the physics (3 ms, or 7.5 ms).
        look: `drawn` by us, `gl` by MuJoCo's renderer, or `blank`: black pictures, for controls.
        scene: `original`, or `textured` with a sky, a stone floor and a metal body.
        camera: one of `CAMERAS`, or a :class:`View` (or its fields); or several, whose views stand side by side in
            each frame.
        render_mode: `"rgb_array"` or None.
        render_size: height and width of the frames in pixels.
        shadows, reflections, samples, slices: of the look `gl`; see `OffscreenRenderer`.
        max_episode_steps: time limit in actions.

    Raises:
        BadInput: an unknown pose, camera or choice.
    """

    metadata = {
        "render_modes": ["rgb_array"],
        "render_fps": round(1 / ACTION_SECONDS),
        "autoreset_mode": AutoresetMode.DISABLED,
    }
    resets_each = True  # see `sightline.envs.native_vector`

    def __init__(
        self,
        num_envs: int = 1,
        pose: str = "kneeling",
        physics: Physics = "gymnasium",
        control: Control = "torque",
        starts: Starts = "standing",
        action_seconds: float = ACTION_SECONDS,
        look: str = "drawn",
        scene: Scene = "original",
        camera: Camera | Sequence[Camera] = "front",
        render_mode: str | None = None,
        render_size: Size = (224, 224),
        shadows: bool = False,
        reflections: bool = False,
        samples: int = 0,
        slices: int | None = None,
        max_episode_steps: int = EPISODE_STEPS,
    ) -> None:
        one_of("pose", pose, POSES)
        one_of("physics", physics, get_args(Physics))
        one_of("control", control, get_args(Control))
        one_of("starts", starts, get_args(Starts))
        one_of("look", look, ("drawn", "gl", "blank"))
        one_of("scene", scene, get_args(Scene))
        _check_action_seconds(action_seconds, physics)
        self.num_envs = num_envs
        self.metadata = type(self).metadata | {"render_fps": round(1 / action_seconds)}
        self.single_observation_space = spaces.Box(-np.inf, np.inf, (OBSERVATIONS,), np.float32)
        self.single_action_space = spaces.Box(-1, 1, (JOINTS,), np.float32)
        self.observation_space = gymnasium.vector.utils.batch_space(self.single_observation_space, num_envs)
        self.action_space = gymnasium.vector.utils.batch_space(self.single_action_space, num_envs)
        self.render_mode = render_mode
        self.render_size = (int(render_size[0]), int(render_size[1]))
        cameras: list[Any] = [camera]
        if isinstance(camera, list | tuple) and camera:
            cameras = list(camera)
        self._views = [(view_of(each, CAMERAS), each == "track") for each in cameras]
        self._simulation = Simulation(num_envs, physics, control, scene, starts, action_seconds)
        self._look = LOOKS[scene] if look == "drawn" else None
        self._blank = look == "blank"
        self._renderer = OffscreenRenderer(
            self._simulation.model, self.render_size, shadows, reflections, samples, slices
        )
        skeleton = self._simulation.skeleton
        self._judge = PoseJudge(num_envs, skeleton, action_seconds)
        self._reward = PoseReward(POSES[pose], skeleton)
        self._pose = list(POSES).index(pose)
        self._limit = max_episode_steps
        self._steps = np.zeros(num_envs, int)
        self._generators = [np.random.default_rng() for _ in range(num_envs)]

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Begin new episodes; `options={"reset_mask": bool[N]}` says of which humanoids, the others go on."""
        mask = (options or {}).get("reset_mask", np.ones(self.num_envs, bool))
        indices = np.flatnonzero(mask).tolist()
        # One number seeds all of them, each by its own; None goes on with the generator that a humanoid has.
        seeds = [seed + i for i in range(self.num_envs)] if isinstance(seed, int) else seed
        for i in indices:
            if seeds is not None and seeds[i] is not None:
                self._generators[i] = np.random.default_rng(seeds[i])
        self._simulation.reset(indices, [self._generators[i] for i in indices])
        self._judge.reset(indices)
        self._steps[indices] = 0
        return self._simulation.observations, {}

    def step(self, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, dict[str, np.ndarray]]:
        diverged = self._simulation.step(actions)
        self._steps += 1
        posture = self._simulation.posture
        # A humanoid whose physics has diverged is in MuJoCo's default state, which may well be a pose.
        is_sound = ~diverged[:, None]
        in_pose, holds = self._judge.step(posture)
        in_pose = in_pose & is_sound
        holds = holds & is_sound
        infos = {"success": holds[:, self._pose], "in_pose": in_pose[:, self._pose], "diverged": diverged}
        for i, name in enumerate(POSES):
            infos[f"held {name}"] = holds[:, i]
        rewards = np.where(diverged, 0.0, self._reward(posture))
        truncated = self._steps >= self._limit
        return self._simulation.observations, rewards, diverged, truncated, infos

    def take_pose(self, generator: np.random.Generator) -> None:
        """Put all humanoids into the pose, each joint of its example turned a little."""
        pose = list(POSES.values())[self._pose]
        example = place(self._simulation.skeleton, pose.angles, pose.lean)
        for i in range(self.num_envs):
            qpos = example.copy()
            qpos[ROOT:] += generator.uniform(-POSE_NOISE, POSE_NOISE, JOINTS)
            self._simulation.put(i, qpos)

    def render(self) -> tuple[np.ndarray, ...]:
        """Render the present states: N times uint8[height, width, 3]; several cameras' views side by side."""
        frames = []
        for i in range(self.num_envs):
            pictures = [self._picture(i, view, tracks) for view, tracks in self._views]
            frames.append(np.concatenate(pictures, axis=1))
        return tuple(frames)

    def _picture(self, i: int, view: View, tracks: bool) -> np.ndarray:
        simulation = self._simulation
        posture = simulation.posture
        if self._blank:
            return np.zeros((*self.render_size, 3), np.uint8)
        if tracks:
            x, y, _ = posture.torso[i].tolist()
            view = replace(view, look_at=(x, y, view.look_at[2]))
        if self._look is not None:
            return draw_humanoid(posture.ends[i], simulation.skeleton.radii, view, self.render_size, self._look)
        return self._renderer.render(simulation.placed(i), view)

    def close(self, **kwargs: Any) -> None:
        """Release OpenGL."""
        self._renderer.close()
        self.closed = True


class Humanoid(gymnasium.Env[np.ndarray, np.ndarray]):
    """One humanoid; see :class:`HumanoidVector` for what it sees, does and is told, and for all options."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": round(1 / ACTION_SECONDS)}

    def __init__(
        self, pose: str = "kneeling", render_mode: str | None = None, render_size: Size = (224, 224), **options: Any
    ) -> None:
        # The time limit is that of the registration.
        options["max_episode_steps"] = NO_LIMIT
        self._vector = HumanoidVector(1, pose, render_mode=render_mode, render_size=render_size, **options)
        self.observation_space = self._vector.single_observation_space
        self.action_space = self._vector.single_action_space
        self.render_mode = render_mode
        self.metadata = self._vector.metadata

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        observations, _ = self._vector.reset(seed=seed)
        return observations[0], {"success": False}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        observations, rewards, terminated, _, infos = self._vector.step(np.asarray(action)[None])
        info = {name: bool(values[0]) for name, values in infos.items()}
        return observations[0], float(rewards[0]), bool(terminated[0]), False, info

    def take_pose(self, generator: np.random.Generator) -> None:
        """Put it into the pose, each joint of its example turned a little."""
        self._vector.take_pose(generator)

    def render(self) -> np.ndarray:
        """Render the present state: uint8[height, width, 3]."""
        return self._vector.render()[0]

    def close(self) -> None:
        self._vector.close()


def _check_action_seconds(action_seconds: float, physics: Physics) -> None:
    steps = 0.0
    if isinstance(action_seconds, int | float):
        steps = action_seconds / TIMESTEP[physics]
    if not (0.5 < steps <= 1000 and abs(steps - round(steps)) < 1e-6):
        raise BadInput(
            f"action_seconds={action_seconds!r:.60} must be a multiple of the physics' steps of {TIMESTEP[physics]} s, "
            "such as 0.015 (Gymnasium's) or 0.03"
        )


_HELD = tuple(f"held {name}" for name in POSES)
TASKS = {
    name: Task(
        name=f"humanoid-{name}",
        env=HUMANOID_ID,
        goal=(pose.goal,),
        baseline=("a humanoid robot",),
        success="end",
        env_options={"pose": name, "control": "torque", "look": "drawn", "scene": "original", "camera": "close"},
        training_options={"physics": "fast"},
        measures=(*_HELD, "diverged"),
        show_goal=Humanoid.take_pose,
        summary=f"Gymnasium's humanoid: {pose.goal.removeprefix('a humanoid robot ')}; success: held at the end.",
    )
    for name, pose in POSES.items()
}
STANDING, ARMS_RAISED, HANDS_ON_HIPS, ARMS_CROSSED, ONE_LEG, KNEELING, SPLITS, LOTUS = TASKS.values()
