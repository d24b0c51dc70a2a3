"""Pictures of a humanoid in random postures, and how near each part of its body is to what words say.

A body is drawn part by part: legs, arms and trunk each come from a range between two examples, with noise, or bend
anywhere within the joints' limits, and the whole is put on the floor, above it, falling, or lying. So the pictures hold
every mixture of what the sentences tell apart, and not only whole poses: what no picture shows, a policy would find and
be paid for. Distances are of key points, in metres, part by part:

    legs    hips, knees and feet from the pelvis, turned to where the pelvis faces, and the pelvis' height
    arms    elbows and hands in the torso's frame
    trunk   how far the torso's upward direction is from the vertical (the distance of their tips, a metre away)

The checks of the poses (`sightline_tasks.humanoid.poses`) are not used here, nor the postures that test them.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

import numpy as np

from sightline.envs.rendering import prepare_rendering
from sightline_tasks.cameras import View
from sightline_tasks.drawing import Colour
from sightline_tasks.humanoid.body import ROOT, SIDES, Posture, Skeleton, make_model
from sightline_tasks.humanoid.drawing import LOOKS, HumanoidLook, draw_humanoid
from sightline_tasks.humanoid.env import CAMERAS
from sightline_tasks.humanoid.scene import Scene
from sightline_tasks.mujoco_rendering import OffscreenRenderer

Angles = Mapping[str, float]


def _both(**angles: float) -> dict[str, float]:
    return {f"{side}_{name}": angle for name, angle in angles.items() for side in SIDES}


LEGS: dict[str, tuple[Angles, ...]] = {
    "standing": (_both(knee=-5), _both(knee=-10, hip_y=-6), _both(knee=-4, hip_x=-7)),
    "kneeling": (_both(knee=-92), _both(knee=-105, hip_y=-14), _both(knee=-130, hip_y=-40), _both(knee=-92, hip_x=-10)),
    "splits": (
        _both(hip_x=-15, hip_z=-58, hip_y=-86, knee=-7),
        _both(hip_x=-6, hip_z=-60, hip_y=-88, knee=-5),
        _both(hip_x=-22, hip_z=-52, hip_y=-88, knee=-12),
    ),
    "lotus": (
        {"abdomen_y": -56.0} | _both(hip_x=-4, hip_z=-46, hip_y=-105, knee=-147),
        {"abdomen_y": -52.0} | _both(hip_x=0, hip_z=-52, hip_y=-108, knee=-142),
    ),
    "one leg": (
        {"right_hip_y": -70.0, "right_knee": -90.0, "left_knee": -5.0},
        {"left_hip_y": -70.0, "left_knee": -90.0, "right_knee": -5.0},
        {"right_knee": -85.0, "left_knee": -5.0},
        {"left_knee": -85.0, "right_knee": -5.0},
        {"right_hip_y": -55.0, "right_knee": -10.0, "left_knee": -5.0},
        {"left_hip_y": -55.0, "left_knee": -10.0, "right_knee": -5.0},
    ),
    "squat": (_both(hip_y=-95, knee=-120), _both(hip_y=-60, knee=-90)),
    "sitting": (_both(hip_y=-90, knee=-6), _both(hip_y=-88, knee=-60)),
}
"""Examples of what legs do: what the words mean, and ranges to draw from."""
ARMS: dict[str, tuple[tuple[float, float, float], ...]] = {
    "hanging": ((49, -37, -85), (45, -30, -70), (-2, 12, -33), (0, 0, 0)),
    "raised": ((-85, 10, -85), (-80, 2, -70), (-84, 19, -62)),
    "on hips": ((55, -78, 0), (52, -74, 2), (58, -82, -4)),
    "crossed": ((-55, 60, -7), (-47, 58, -9)),
    "spread": ((-54, -63, -14), (-50, -66, -10)),
}
"""Examples of what an arm does: shoulder1, shoulder2 and elbow of the right one in degrees; the left one mirrors it."""
ANY = "any"
PRESETS = ("front", "close", "side")
LEGS_SHARES = (0.34, 0.11, 0.1, 0.1, 0.11, 0.045, 0.045, 0.15)
ARMS_SHARES = (0.17, 0.16, 0.15, 0.14, 0.08, 0.3)
"""How often each is drawn, and last any angles. Half of the poses are told apart by the arms of one who stands."""
VARIETY = 16
"""Random looks and cameras in a batch of drawn pictures."""
GL_SHARE = 0.15
"""Of the pictures, those that MuJoCo's renderer makes (a few milliseconds each)."""
PARTS = tuple([f"legs {name}" for name in LEGS] + [f"arms {name}" for name in ARMS] + ["trunk upright", "trunk lying"])
"""Names of the distances."""


@cache
def skeleton() -> Skeleton:
    """Kinematics of the body."""
    prepare_rendering()
    return Skeleton(make_model("gymnasium", "position"))


@cache
def _limits(*parts: str) -> dict[str, tuple[float, float]]:
    """Least and greatest angle in degrees of the joints that belong to parts of the body."""
    model = make_model("gymnasium", "position")
    limits = {model.joint(n).name: np.degrees(model.jnt_range[n]) for n in range(1, model.njnt)}
    return {name: (low, high) for name, (low, high) in limits.items() if any(part in name for part in parts)}


def sample_bodies(count: int, rng: np.random.Generator) -> np.ndarray:
    """Random states `qpos` [count, 24]."""
    bones = skeleton()
    qpos = np.tile(bones.rest(), (count, 1))
    qpos[:, ROOT:] = 0.0
    low, high = np.radians(-160), np.radians(90)
    for n in range(count):
        one, other = _leg_angles(rng), _leg_angles(rng)
        legs = _between(one, other, rng)
        arms = _between(_arm_angles(rng), _arm_angles(rng), rng)
        noise = np.radians(rng.choice([3.0, 6.0, 12.0]))
        for name, angle in (legs | arms).items():
            qpos[n, ROOT + bones.joint(name)] = np.radians(angle)
        qpos[n, ROOT:] = np.clip(qpos[n, ROOT:] + noise * rng.normal(size=17), low, high)
        kind = rng.random()
        tilt = abs(rng.normal(0, 10)) if kind < 0.75 else rng.uniform(20, 75) if kind < 0.9 else rng.uniform(75, 105)
        yaw = rng.normal(0, 15) if rng.random() < 0.85 else rng.uniform(-180, 180)
        qpos[n, 3:ROOT] = _tilted(np.radians(tilt), rng.uniform(0, 2 * np.pi), np.radians(yaw))
    qpos[:, :2] = rng.normal(0, 0.12, (count, 2))
    above = np.where(rng.random(count) < 0.2, rng.uniform(0, 0.25, count), 0.0)
    qpos[:, 2] -= bones.posture(qpos).clearance.min(axis=1) - above
    return qpos


def _leg_angles(rng: np.random.Generator) -> Angles:
    """Angles of both legs, and of the trunk where they bend it: of an example, or any."""
    name = str(rng.choice([*LEGS, ANY], p=LEGS_SHARES))
    if name == ANY:
        # By a common share of the limits: from straight to folded up.
        share = np.sqrt(rng.random())
        return {name: share * rng.uniform(low, high) for name, (low, high) in _limits("abdomen", "hip", "knee").items()}
    return LEGS[name][int(rng.integers(len(LEGS[name])))]


def _arm_angles(rng: np.random.Generator) -> dict[str, float]:
    """Angles of both arms: mostly of the same kind on both sides."""
    kinds = [*ARMS, ANY]
    chosen = [str(rng.choice(kinds, p=ARMS_SHARES))] * 2
    if rng.random() < 0.25:
        chosen[1] = str(rng.choice(kinds, p=ARMS_SHARES))
    anything = rng.uniform(*zip(*_limits("right_shoulder", "right_elbow").values(), strict=True))
    angles: dict[str, float] = {}
    for side, name in zip(SIDES, chosen, strict=True):
        if name == ANY:
            shoulder1, shoulder2, elbow = anything + rng.normal(0, 10, 3)
        else:
            shoulder1, shoulder2, elbow = ARMS[name][int(rng.integers(len(ARMS[name])))]
        sign = 1 if side == "right" else -1
        angles |= {f"{side}_shoulder1": sign * shoulder1, f"{side}_shoulder2": sign * shoulder2}
        angles[f"{side}_elbow"] = elbow
    return angles


def _between(one: Angles, other: Angles, rng: np.random.Generator) -> dict[str, float]:
    """Angles of an example, or on the way to another, more often near its ends than in its middle."""
    share = 0.0 if rng.random() < 0.5 else float(rng.beta(0.5, 0.7))
    return {name: (1 - share) * one.get(name, 0.0) + share * other.get(name, 0.0) for name in {*one, *other}}


def _tilted(tilt: float, towards: float, yaw: float) -> np.ndarray:
    """Quaternion of a body that faces `yaw` and leans by `tilt` towards a direction, radians."""
    lean = np.array([np.cos(tilt / 2), *(np.sin(tilt / 2) * np.array([-np.sin(towards), np.cos(towards), 0]))])
    w, x, y, z = lean
    c, s = np.cos(yaw / 2), np.sin(yaw / 2)
    return np.array([w * c - z * s, x * c + y * s, y * c - x * s, w * s + z * c])


def to_actions(model: Any, controls: np.ndarray) -> np.ndarray:
    """Inverse of `to_control` for position control.

    Args:
        model: MuJoCo's.
        controls: target angles in radians, [..., 17], in the order of the model's actuators; those beyond a joint's
            limits become its limits.

    Returns:
        The actions [..., 17] that ask for them.
    """
    low, high = model.actuator_ctrlrange.T
    neutral = np.clip(0.0, low, high)
    beyond = np.clip(controls, low, high) - neutral
    return np.asarray(np.where(beyond > 0, beyond / np.maximum(high - neutral, 1e-6), beyond / (neutral - low)))


def distances(posture: Posture) -> dict[str, np.ndarray]:
    """How far the parts of N bodies are from each example, float64[N] in metres, by the names of `PARTS`."""
    found: dict[str, np.ndarray] = {}
    legs, arms = _legs(posture), _arms(posture)
    for name, points in _examples()[0].items():
        found[f"legs {name}"] = _nearest(legs, points)
    for name, points in _examples()[1].items():
        found[f"arms {name}"] = _nearest(arms, points)
    found["trunk upright"] = np.sqrt(np.maximum(0.0, 2 - 2 * posture.up))
    # Lying: the torso level, and near the floor.
    found["trunk lying"] = np.maximum(np.abs(posture.up), np.maximum(0.0, posture.torso[:, 2] - 0.2))
    return found


def _nearest(points: np.ndarray, examples: np.ndarray) -> np.ndarray:
    """Root of the mean squared distance of points [N, K, 3] to the nearest of examples [E, K, 3]."""
    apart = np.sqrt(((points[:, None] - examples) ** 2).sum(axis=3).mean(axis=2))
    return np.asarray(apart.min(axis=1))


def _legs(posture: Posture) -> np.ndarray:
    """Hips, knees, feet and the pelvis' height, [N, 7, 3]."""
    across = posture.hips[:, 1, :2] - posture.hips[:, 0, :2]  # from right to left
    across = across / np.maximum(np.linalg.norm(across, axis=1, keepdims=True), 1e-6)
    points = np.concatenate([posture.hips, posture.knees, posture.feet, posture.pelvis[:, None]], axis=1)
    x, y = (points[:, :, axis] - posture.pelvis[:, None, axis] for axis in (0, 1))
    left = x * across[:, None, 0] + y * across[:, None, 1]
    ahead = x * across[:, None, 1] - y * across[:, None, 0]
    return np.stack([ahead, left, points[:, :, 2]], axis=2)


def _arms(posture: Posture) -> np.ndarray:
    """Elbows and hands in the torso's frame, [N, 4, 3]."""
    return np.concatenate([posture.in_torso(posture.elbows), posture.in_torso(posture.hands)], axis=1)


@cache
def _examples() -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Key points of the examples: of legs [E, 7, 3] and of arms [E, 4, 3], by name."""
    from sightline_tasks.humanoid.poses import place

    bones = skeleton()
    legs = {
        name: _legs(bones.posture(np.stack([place(bones, angles) for angles in examples])))
        for name, examples in LEGS.items()
    }
    arms = {}
    for name, examples in ARMS.items():
        states = []
        for shoulder1, shoulder2, elbow in examples:
            right = {"right_shoulder1": shoulder1, "right_shoulder2": shoulder2, "right_elbow": elbow}
            left = {"left_shoulder1": -shoulder1, "left_shoulder2": -shoulder2, "left_elbow": elbow}
            states.append(place(bones, right | left))
        arms[name] = _arms(bones.posture(np.stack(states)))
    return legs, arms


def random_view(rng: np.random.Generator) -> View:
    """A camera near one of our presets, or, now and then, farther around."""
    preset = CAMERAS[str(rng.choice(PRESETS))]
    azimuth = preset.azimuth + (rng.normal(0, 12) if rng.random() < 0.8 else rng.uniform(-70, 70))
    x, y, z = preset.look_at
    return View(
        (x + rng.normal(0, 0.05), y + rng.normal(0, 0.05), z + rng.normal(0, 0.05)),
        preset.distance * float(np.exp(rng.normal(0, 0.08))),
        float(azimuth),
        preset.elevation + float(rng.normal(0, 3)),
    )


def random_look(rng: np.random.Generator) -> HumanoidLook:
    """Random colours; the body is told from floor and sky by its lightness or colour."""

    def colour(low: int = 0, high: int = 256) -> Colour:
        r, g, b = rng.integers(low, high, 3)
        return int(r), int(g), int(b)

    tile = colour(20, 220)
    other = tuple(int(np.clip(part + rng.integers(-60, 61), 0, 255)) for part in tile)
    while True:
        body = colour()
        if np.linalg.norm(np.subtract(body, tile)) > 100:
            break
    return HumanoidLook(
        colour(20), colour(60), (tile, (other[0], other[1], other[2])), body, float(rng.uniform(0.3, 1.0)),
        float(rng.choice([0, 0, 10])), float(rng.uniform(0.1, 0.6)), int(rng.integers(40)),
    )  # fmt: skip


def picture_bodies(qpos: np.ndarray, image_size: int, rng: np.random.Generator, standard_look: float) -> np.ndarray:
    """Pictures uint8[N, S, S, 3]; a share of `standard_look` in the looks and from the cameras of our tasks."""
    bones = skeleton()
    frames = np.empty((len(qpos), image_size, image_size, 3), np.uint8)
    # Sky and floor take longer to draw than the body: some pictures of a batch share them.
    scenes = [(random_look(rng), random_view(rng)) for _ in range(VARIETY)]
    ends = bones.posture(qpos).ends
    for n in range(len(qpos)):
        standard, by_gl = rng.random() < standard_look, rng.random() < GL_SHARE
        look, view = LOOKS[str(rng.choice(list(LOOKS)))], CAMERAS[str(rng.choice(PRESETS))]
        if not standard:
            look, view = scenes[int(rng.integers(VARIETY))]
        if by_gl:
            renderer = body_renderer("original" if rng.random() < 0.5 else "textured", image_size)
            frames[n] = renderer.render(qpos[n], view, None if standard else rng)
        else:
            frames[n] = draw_humanoid(ends[n], bones.radii, view, (image_size, image_size), look)
    return frames


class BodyRenderer:
    """MuJoCo's renderer for bodies in any state, in the scene's own colours and light or in random ones."""

    def __init__(self, scene: Scene, image_size: int) -> None:
        import mujoco

        self._mujoco, self._model = mujoco, make_model("gymnasium", "position", scene)
        self._data = mujoco.MjData(self._model)
        self._own = self._model.geom_rgba.copy(), self._model.mat_rgba.copy(), self._model.light_diffuse.copy()
        self._renderer = OffscreenRenderer(self._model, (image_size, image_size), samples=0, slices=8)

    def render(self, qpos: np.ndarray, view: View, colours: np.random.Generator | None = None) -> np.ndarray:
        """Render a state, uint8[S, S, 3]; in random colours, if `colours` draws them."""
        model = self._model
        model.geom_rgba[:], model.mat_rgba[:], model.light_diffuse[:] = self._own
        if colours is not None:
            model.geom_rgba[:, :3] = colours.uniform(0.3, 1, 3)
            model.mat_rgba[:, :3] = colours.uniform(0.2, 1, (len(model.mat_rgba), 3))
            model.light_diffuse[:] = colours.uniform(0.5, 1)
        self._data.qpos[:] = qpos
        self._mujoco.mj_kinematics(model, self._data)
        self._mujoco.mj_comPos(model, self._data)
        self._mujoco.mj_camlight(model, self._data)
        return self._renderer.render(self._data, view)


@cache
def body_renderer(scene: Scene, image_size: int) -> BodyRenderer:
    """One renderer for each scene and size."""
    return BodyRenderer(scene, image_size)
