"""The humanoid's body: MuJoCo's model for evaluation and for learning, and where its limbs are.

The model is Gymnasium's `humanoid.xml` (Tassa, Erez and Todorov, IROS 2012). Two kinds of physics integrate it:

    gymnasium   as Gymnasium has it: Runge-Kutta of fourth order (RK4), steps of 3 ms, projected Gauss-Seidel. This is
                the true physics: results are reported with it.
    fast        implicit integration with steps of 7.5 ms and a few Newton iterations: about five times as many steps
                per second. Policies are learned with it. (Steps of 15 ms would give 1.4 times as many, but what
                balances there falls in the true physics.)

Two kinds of control act on its 17 joints, with the same greatest torques (0.4 of each motor's gear):

    torque      an action in [-1, 1] is a share of the greatest torque, as in Gymnasium
    position    an action in [-1, 1] is a target angle: 0 is the joint's angle while standing, -1 and 1 are its limits
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from sightline.errors import one_of
from sightline_tasks.humanoid.scene import Scene, scene_xml
from sightline_tasks.mujoco_rendering import import_mujoco

if TYPE_CHECKING:
    import mujoco

Physics = Literal["gymnasium", "fast"]
Control = Literal["torque", "position"]

ACTION_SECONDS = 0.03
"""Seconds between two actions, if nothing else is said. In Gymnasium they are half as many."""
TIMESTEP: dict[Physics, float] = {"gymnasium": 0.003, "fast": 0.0075}
"""Seconds of one step of physics."""
TORQUE = 0.4
"""Greatest torque, as a share of a motor's gear."""
STIFFNESS = 6.0
"""Torque of position control per radian from the target, as a multiple of the greatest torque."""
DAMPING = 0.06
"""Torque against a joint's velocity (per rad/s), as a multiple of the stiffness."""
JOINTS = 17
"""Hinges."""
ROOT = 7
"""Numbers of the free joint in front of the hinges in `qpos`: position [3] and quaternion [4]."""

SIDES = ("right", "left")


def make_model(physics: Physics, control: Control, scene: Scene = "original") -> mujoco.MjModel:
    """MuJoCo's model of the humanoid."""
    mujoco = import_mujoco()
    model = mujoco.MjModel.from_xml_string(*scene_xml(scene))
    if physics == "fast":
        # Long steps, which explicit integration does not bear.
        model.opt.integrator = mujoco.mjtIntegrator.mjINT_IMPLICITFAST
        model.opt.solver = mujoco.mjtSolver.mjSOL_NEWTON
        model.opt.iterations = 4
    model.opt.timestep = TIMESTEP[physics]
    if control == "position":
        # The motors become springs with dampers (MuJoCo's position actuators) of the same strength.
        limits = TORQUE * model.actuator_gear[:, 0]
        joints = model.actuator_trnid[:, 0]
        model.actuator_gear[:, 0] = 1
        model.actuator_gainprm[:, 0] = STIFFNESS * limits
        model.actuator_biastype[:] = mujoco.mjtBias.mjBIAS_AFFINE
        model.actuator_biasprm[:, 1] = -STIFFNESS * limits
        model.actuator_biasprm[:, 2] = -DAMPING * STIFFNESS * limits
        model.actuator_forcelimited[:] = 1
        model.actuator_forcerange[:] = np.stack([-limits, limits], axis=1)
        model.actuator_ctrlrange[:] = model.jnt_range[joints]
    return model


def to_control(model: mujoco.MjModel, actions: np.ndarray) -> np.ndarray:
    """Actions [..., 17] in [-1, 1], in the order of the model's actuators, as MuJoCo's controls."""
    low, high = model.actuator_ctrlrange.T
    neutral = np.clip(0.0, low, high)  # knees cannot be quite straight
    actions = np.clip(actions, -1, 1)
    # To each side as far as that side goes: joints are not bent equally far both ways.
    deviations = np.where(actions > 0, actions * (high - neutral), actions * (neutral - low))
    return np.asarray(neutral + deviations)


@dataclass(frozen=True)
class Posture:
    """Where the limbs of N humanoids are. Metres; x is forward, y to the left, z up, where the world says so.

    Attributes:
        joints: [N, 17], angles in radians, in the order of `qpos`.
        up: [N], height of the torso's own upward direction: 1 upright, 0 lying.
        torso: [N, 3], its centre; `frame` [N, 3, 3] has its forward, left and upward directions as columns.
        head, pelvis: [N, 3], centres.
        hands, elbows, hips, knees, feet: [N, 2, 3], right and left.
        clearance: [N, geoms], distance of each geom's lowest point from the floor.
        ends: [N, geoms, 2, 3], both ends of each capsule's axis; equal for spheres.
    """

    joints: np.ndarray
    up: np.ndarray
    torso: np.ndarray
    frame: np.ndarray
    head: np.ndarray
    pelvis: np.ndarray
    hands: np.ndarray
    elbows: np.ndarray
    hips: np.ndarray
    knees: np.ndarray
    feet: np.ndarray
    clearance: np.ndarray
    ends: np.ndarray

    def in_torso(self, points: np.ndarray) -> np.ndarray:
        """Points [N, K, 3] of the world in the torso's frame: forward, left, up of its centre."""
        from_centre = points - self.torso[:, None]
        return np.asarray(np.einsum("nki,nij->nkj", from_centre, self.frame))

    @property
    def key_points(self) -> np.ndarray:
        """[N, 13, 3]: head, torso, pelvis, hands, elbows, hips, knees, feet."""
        trunk = np.stack([self.head, self.torso, self.pelvis], axis=1)
        return np.concatenate([trunk, self.hands, self.elbows, self.hips, self.knees, self.feet], axis=1)


class Skeleton:
    """Forward kinematics of humanoids.

    Attributes:
        geoms: names of the geoms in `Posture.clearance` and `Posture.ends`.
        radii: [geoms], metres.
        joints: names of the joints in `Posture.joints`.
        limits: [17, 2], least and greatest angle of each in radians.
    """

    def __init__(self, model: mujoco.MjModel) -> None:
        mujoco = import_mujoco()
        self._mujoco = mujoco
        self._model = model
        self._data = mujoco.MjData(model)
        # All that is not the world's: the floor is body 0.
        geoms = [geom for geom in range(model.ngeom) if model.geom_bodyid[geom] != 0]
        self._geoms = np.array(geoms)
        self.geoms = tuple(model.geom(geom).name for geom in geoms)
        self.radii = model.geom_size[geoms, 0].copy()
        is_capsule = model.geom_type[geoms] == mujoco.mjtGeom.mjGEOM_CAPSULE
        self._half_lengths = np.where(is_capsule, model.geom_size[geoms, 1], 0.0)
        # Joint 0 is the free joint.
        self.joints = tuple(model.joint(joint).name for joint in range(1, model.njnt))
        self.limits: np.ndarray = model.jnt_range[1:].copy()

    def rest(self) -> np.ndarray:
        """float64[24], `qpos` of Gymnasium's first state: upright, 1.4 m high, arms forward."""
        return np.array(self._model.qpos0)

    def joint(self, name: str) -> int:
        """Place of a joint in `Posture.joints`.

        Raises:
            BadInput: there is no such joint.
        """
        return self.joints.index(one_of("joint", name, self.joints))

    def posture(self, qpos: np.ndarray) -> Posture:
        """Where the limbs are in states `qpos` [N, 24]."""
        model = self._model
        data = self._data
        count = len(qpos)
        bodies = np.empty((count, model.nbody, 3))
        frames = np.empty((count, 9))
        centres = np.empty((count, len(self._geoms), 3))
        axes = np.empty((count, len(self._geoms), 3))
        torso = model.body("torso").id
        for n, state in enumerate(qpos):
            data.qpos[:] = state
            self._mujoco.mj_kinematics(model, data)
            bodies[n] = data.xpos
            frames[n] = data.xmat[torso]
            centres[n] = data.geom_xpos[self._geoms]
            # A capsule lies along the z axis of its frame: the last column of a matrix that is stored by rows.
            axes[n] = data.geom_xmat[self._geoms][:, 2::3]
        frame = frames.reshape(-1, 3, 3)
        # [N, geoms, 2, 3]: half a length to either side of each centre.
        directions = np.array([-1.0, 1.0])[:, None]
        ends = centres[:, :, None] + self._half_lengths[:, None, None] * axes[:, :, None] * directions

        def body(name: str) -> np.ndarray:
            return np.asarray(bodies[:, model.body(name).id])

        def geom(name: str) -> np.ndarray:
            return np.asarray(centres[:, self.geoms.index(name)])

        def both(name: str, place_of: Any = body) -> np.ndarray:
            return np.stack([place_of(f"{side}_{name}") for side in SIDES], axis=1)

        return Posture(
            joints=qpos[:, ROOT:],
            up=frame[:, 2, 2],
            torso=body("torso"),
            frame=frame,
            head=geom("head"),
            pelvis=body("pelvis"),
            hands=both("hand", geom),
            elbows=both("lower_arm"),
            hips=both("thigh"),
            knees=both("shin"),
            feet=both("foot", geom),
            clearance=ends[..., 2].min(axis=2) - self.radii,
            ends=ends,
        )


def observe(qpos: np.ndarray, qvel: np.ndarray) -> np.ndarray:
    """Observations float32[N, 48] of states `qpos` [N, 24] and `qvel` [N, 23].

    The torso's place (x, y, height), its forward direction in the horizontal plane (x, y), its upward direction in its
    own frame (3), 17 joint angles; then its velocity (3) and rotation (3) in its own frame, and 17 joint velocities.
    Metres and radians; velocities are divided by 10 (of the torso's place: by 3), so that all numbers are about 1.
    """
    # The torso's quaternion as a matrix, [N, 3, 3]: its columns are the torso's directions in the world.
    w, x, y, z = qpos[:, 3:7].T / np.linalg.norm(qpos[:, 3:7], axis=1)
    rotation = np.array(
        [
            [1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y)],
            [2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x)],
            [2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)],
        ]
    ).transpose(2, 0, 1)
    # MuJoCo gives a free joint's velocity in the world's frame, and its rotation in the body's own.
    velocity = np.einsum("ni,nij->nj", qvel[:, :3], rotation)
    parts = [
        qpos[:, :3],
        rotation[:, :2, 0],
        rotation[:, 2],
        qpos[:, ROOT:],
        velocity / 3,
        qvel[:, 3:6] / 10,
        qvel[:, 6:] / 10,
    ]
    return np.concatenate(parts, axis=1).astype(np.float32)
