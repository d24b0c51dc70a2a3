"""N humanoids simulated together, and how well each of them holds a pose.

    actions [N, 17] ──► MuJoCo, one state after the other ──► qpos, qvel ──► limbs (Posture) ──► eight checks, a reward

All that is not physics is computed for N humanoids at once, since for one of them NumPy's calls would take longer than
the physics does.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

import numpy as np

from sightline_tasks.humanoid.body import (
    ACTION_SECONDS,
    ROOT,
    TIMESTEP,
    Control,
    Physics,
    Posture,
    Skeleton,
    make_model,
    observe,
    to_control,
)
from sightline_tasks.humanoid.poses import POSES, Pose, place
from sightline_tasks.humanoid.scene import Scene
from sightline_tasks.mujoco_rendering import import_mujoco

if TYPE_CHECKING:
    import mujoco

Starts = Literal["standing", "mixed"]
NOISE = 0.01
"""Greatest deviation of a start from Gymnasium's first state, in every number (as there)."""
HELD_SECONDS = 0.6
HELD_SHARE = 0.8
"""A pose is held if it was true for this share of the last `HELD_SECONDS`, and is true now."""
WIDE = 0.5
"""Width in metres of the part of the ground truth that shows the way from afar."""
NARROW = 0.15
"""Width in metres of the part of the ground truth that rewards exactness."""


class Simulation:
    """N humanoids.

    Attributes:
        qpos, qvel: float64[N, 24] and [N, 23], states.
        posture: where the limbs are.
        model, data: MuJoCo's, for renderers.

    Args:
        scene: what renderers show around them.
        action_seconds: between two actions; a multiple of the physics' steps.
        starts: `standing`, as Gymnasium has it; or `mixed`, half of them in any posture; see `random_posture`.
    """

    def __init__(
        self,
        count: int,
        physics: Physics,
        control: Control,
        scene: Scene = "original",
        starts: Starts = "standing",
        action_seconds: float = ACTION_SECONDS,
    ) -> None:
        self._mujoco = import_mujoco()
        self.model = make_model(physics, control, scene)
        self.data = [self._mujoco.MjData(self.model) for _ in range(count)]
        self.skeleton = Skeleton(self.model)
        self._substeps = round(action_seconds / TIMESTEP[physics])
        self._mixed = starts == "mixed"
        self.qpos = np.tile(self.model.qpos0, (count, 1))
        self.qvel = np.zeros((count, self.model.nv))
        self.posture: Posture = self.skeleton.posture(self.qpos)

    def reset(self, indices: Sequence[int], generators: Sequence[np.random.Generator]) -> None:
        """Put some humanoids into first states, each drawn from its own generator."""
        for i, generator in zip(indices, generators, strict=True):
            data = self.data[i]
            self._mujoco.mj_resetData(self.model, data)
            if self._mixed and generator.random() < 0.5:
                data.qpos[:] = random_posture(self.model, self.skeleton, generator)
            data.qpos += generator.uniform(-NOISE, NOISE, self.model.nq)
            data.qvel += generator.uniform(-NOISE, NOISE, self.model.nv)
            # A quaternion of another length than 1 is normalised by the first step; here, what is observed is too.
            self._mujoco.mj_normalizeQuat(self.model, data.qpos)
            self.qpos[i] = data.qpos
            self.qvel[i] = data.qvel
        self.posture = self.skeleton.posture(self.qpos)

    def put(self, i: int, qpos: np.ndarray) -> None:
        """Put a humanoid into a state `qpos` [24], at rest."""
        self.data[i].qpos[:] = qpos
        self.data[i].qvel[:] = 0.0
        self._mujoco.mj_normalizeQuat(self.model, self.data[i].qpos)
        self.qpos[i] = self.data[i].qpos
        self.qvel[i] = 0.0
        self.posture = self.skeleton.posture(self.qpos)

    def step(self, actions: np.ndarray) -> np.ndarray:
        """Take one control step.

        Args:
            actions: [N, 17] in [-1, 1].

        Returns:
            bool[N], where the physics has diverged; that humanoid is in MuJoCo's default state and must be reset.
        """
        controls = to_control(self.model, np.asarray(actions, np.float64))
        diverged = np.zeros(len(self.data), bool)
        for i, data in enumerate(self.data):
            data.ctrl[:] = controls[i]
            self._mujoco.mj_step(self.model, data, self._substeps)
            self.qpos[i] = data.qpos
            self.qvel[i] = data.qvel
            diverged[i] = data.warning.number.any()
        self.posture = self.skeleton.posture(self.qpos)
        return diverged

    def placed(self, i: int) -> mujoco.MjData:
        """One humanoid's data with its limbs where its state says, for a renderer."""
        # A step leaves the places of the limbs as they were before it.
        self._mujoco.mj_kinematics(self.model, self.data[i])
        self._mujoco.mj_comPos(self.model, self.data[i])
        self._mujoco.mj_camlight(self.model, self.data[i])  # or the lights of a fresh episode shine nowhere
        return self.data[i]

    @property
    def observations(self) -> np.ndarray:
        """float32[N, 48]; see `observe`."""
        return observe(self.qpos, self.qvel)


def random_posture(model: mujoco.MjModel, skeleton: Skeleton, generator: np.random.Generator) -> np.ndarray:
    """State `qpos` [24] in any posture: bent at random, leaning by up to 45 degrees, any part of it on the floor.

    Who begins only upright must fall before it learns what it can do on the floor, and a policy that has learned to
    stand falls no more: that is why sitting poses are not found. Nothing of any pose is told here.
    """
    qpos = skeleton.rest()
    low, high = model.jnt_range[1:].T
    # All joints between straight and their limits, by a common share: from upright to folded up.
    qpos[ROOT:] = np.sqrt(generator.random()) * generator.uniform(low, high)
    lean = generator.uniform(0, np.pi / 4)
    towards = generator.uniform(0, 2 * np.pi)
    yaw = generator.normal(0, 0.3)
    # Quaternions: a turn about the vertical, times a tilt to one side, which has no part along z.
    c = np.cos(lean / 2)
    s = np.sin(lean / 2)
    w, x, y, z = np.array([c, -s * np.sin(towards), s * np.cos(towards), 0.0])
    turn_w = np.cos(yaw / 2)
    turn_z = np.sin(yaw / 2)
    qpos[3:ROOT] = (
        turn_w * w - turn_z * z,
        turn_w * x - turn_z * y,
        turn_w * y + turn_z * x,
        turn_w * z + turn_z * w,
    )
    # Down to the floor, or up from it.
    qpos[2] -= skeleton.posture(qpos[None]).clearance.min()
    return qpos


class PoseJudge:
    """Judge of which poses N humanoids hold: true in 80 % of the last 0.6 seconds, and now.

    Args:
        skeleton: of the humanoids.
        action_seconds: between two states that are judged.
    """

    def __init__(self, count: int, skeleton: Skeleton, action_seconds: float = ACTION_SECONDS) -> None:
        self._skeleton = skeleton
        self._steps = round(HELD_SECONDS / action_seconds)
        # [steps, N, poses]: which poses each was in, in a ring of the last 0.6 seconds.
        self._past = np.zeros((self._steps, count, len(POSES)), bool)
        self._time = 0

    def reset(self, indices: Sequence[int]) -> None:
        """Forget what some humanoids did."""
        self._past[:, indices] = False

    def step(self, posture: Posture) -> tuple[np.ndarray, np.ndarray]:
        """Judge the states that a step has led to.

        Returns:
            bool[N, 8], which poses each is in; and bool[N, 8], which it holds.
        """
        now = np.stack([pose.holds(posture, self._skeleton) for pose in POSES.values()], axis=1)
        self._past[self._time % self._steps] = now
        self._time += 1
        is_lasting = self._past.mean(axis=0) >= HELD_SHARE
        return now, now & is_lasting


class PoseReward:
    """Ground truth of a pose: how near the limbs are to those of its example, in [0, 1].

    Thirteen points of the body are compared in a frame that turns and walks with the torso, heights as they are:

        0.4 exp(-(d / 0.5 m)^2) + 0.4 exp(-(d / 0.15 m)^2) + 0.2 up        d: root of the mean squared distance
    """

    def __init__(self, pose: Pose, skeleton: Skeleton) -> None:
        example = skeleton.posture(place(skeleton, pose.angles, pose.lean)[None])
        self._example = _heading_frame(example)[0]

    def __call__(self, posture: Posture) -> np.ndarray:
        """float64[N]."""
        deviations = _heading_frame(posture) - self._example
        distance = np.sqrt((deviations**2).sum(axis=2).mean(axis=1))
        near = 0.4 * np.exp(-((distance / WIDE) ** 2)) + 0.4 * np.exp(-((distance / NARROW) ** 2))
        return np.asarray(near + 0.2 * np.clip(posture.up, 0, 1))


def _heading_frame(posture: Posture) -> np.ndarray:
    """Key points [N, 13, 3] from the pelvis: forward and left of where the torso faces, and height."""
    # The torso's forward direction on the floor; a torso that lies has hardly any.
    forward = posture.frame[:, :2, 0]
    forward = forward / np.maximum(np.linalg.norm(forward, axis=1, keepdims=True), 1e-6)
    points = posture.key_points
    x, y = (points[:, :, axis] - posture.pelvis[:, None, axis] for axis in (0, 1))
    ahead = x * forward[:, None, 0] + y * forward[:, None, 1]
    aside = y * forward[:, None, 0] - x * forward[:, None, 1]
    return np.stack([ahead, aside, points[:, :, 2]], axis=2)
