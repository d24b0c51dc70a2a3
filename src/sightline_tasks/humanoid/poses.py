"""Eight poses of the humanoid: a sentence, a geometric check, and an example of each.

The sentences are those of the paper on zero-shot rewards by vision-language models (Rocamonde et al., ICLR 2024). The
checks look at heights, angles and contacts alone, so that no person and no model has to judge a picture:

    standing        torso upright, head above 1.25 m, pelvis above 0.72 m; only the feet touch the floor
    arms raised     standing, both hands more than 5 cm above the middle of the head
    hands on hips   standing, each hand within 16 cm of its hip, elbows out
    arms crossed    standing, forearms in front of the chest, each hand on the other side of its middle
    one leg         torso upright, head above 1.2 m; only one foot touches the floor, the other is 12 cm higher or more
    kneeling        torso upright, both knees and shins on the floor, shins pointing back, pelvis between 25 and 62 cm
    splits          sitting on the floor, torso upright, thighs more than 95 degrees apart, knees nearly straight
    lotus           sitting on the floor, torso upright, knees bent by more than 80 degrees, below 42 cm and apart, feet
                    closer than 45 cm

Limits of this body: its hips turn outward by 60 degrees and spread by 25, so that shins cannot cross over thighs (what
can be reached is a seat with crossed legs) and legs cannot spread sideways by 180 degrees.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from sightline.errors import BadInput
from sightline_tasks.humanoid.body import ROOT, SIDES, Posture, Skeleton

TOUCH = 0.03
"""Greatest distance from the floor that counts as touching it, metres."""
FEET = tuple(f"{side}_foot" for side in SIDES)


@dataclass(frozen=True)
class Pose:
    """A pose.

    Attributes:
        name: in commands, such as `arms-raised`.
        goal: the paper's sentence.
        holds: whether postures of N humanoids are in this pose, bool[N].
        angles: joint -> degrees in an example of the pose; other joints are at 0. Knees: 0 is straight, negative bends.
        lean: of the torso in the example, degrees forward.
    """

    name: str
    goal: str
    holds: Callable[[Posture, Skeleton], np.ndarray]
    angles: Mapping[str, float]
    lean: float = 0.0


def _touching(posture: Posture, skeleton: Skeleton) -> dict[str, np.ndarray]:
    return {name: posture.clearance[:, i] < TOUCH for i, name in enumerate(skeleton.geoms)}


def _only_feet(posture: Posture, skeleton: Skeleton) -> np.ndarray:
    besides_feet = [touches for name, touches in _touching(posture, skeleton).items() if name not in FEET]
    return np.asarray(~np.any(besides_feet, axis=0))


def _upright(posture: Posture, least: float) -> np.ndarray:
    return np.asarray(posture.up > least)


def stands(posture: Posture, skeleton: Skeleton) -> np.ndarray:
    """Whether both feet, and nothing else, are on the floor, and the body above them."""
    touching = _touching(posture, skeleton)
    is_tall = (posture.head[:, 2] > 1.25) & (posture.pelvis[:, 2] > 0.72)
    on_both_feet = touching["right_foot"] & touching["left_foot"]
    return np.asarray(_upright(posture, 0.9) & is_tall & on_both_feet & _only_feet(posture, skeleton))


def raises_arms(posture: Posture, skeleton: Skeleton) -> np.ndarray:
    """Whether it stands with both hands above its head."""
    high = posture.hands[:, :, 2] > posture.head[:, None, 2] + 0.05
    return np.asarray(stands(posture, skeleton) & high.all(axis=1))


def holds_hips(posture: Posture, skeleton: Skeleton) -> np.ndarray:
    """Whether it stands with its hands on its hips."""
    # In the torso's frame, which leans and turns with it: right and left.
    hips = np.array([[0.0, -0.15, -0.3], [0.0, 0.15, -0.3]])
    hands = posture.in_torso(posture.hands)
    elbows = posture.in_torso(posture.elbows)
    near = np.linalg.norm(hands - hips, axis=2) < 0.16
    out = np.abs(elbows[:, :, 1]) > 0.22
    return np.asarray(stands(posture, skeleton) & near.all(axis=1) & out.all(axis=1))


def crosses_arms(posture: Posture, skeleton: Skeleton) -> np.ndarray:
    """Whether it stands with its arms crossed in front of its chest."""
    hands = posture.in_torso(posture.hands)
    forward = hands[:, :, 0]
    in_front = (forward > 0.05) & (forward < 0.35) & (hands[:, :, 2] < 0.3)
    # To the left is positive: the right hand is on the left, the left hand on the right.
    right_hand_left = hands[:, 0, 1] > -0.03
    left_hand_right = hands[:, 1, 1] < 0.03
    crossed = right_hand_left & left_hand_right
    return np.asarray(stands(posture, skeleton) & in_front.all(axis=1) & crossed)


def stands_on_one_leg(posture: Posture, skeleton: Skeleton) -> np.ndarray:
    """Whether one foot, and nothing else, is on the floor, and the other one well above it."""
    touching = _touching(posture, skeleton)
    on_one_foot = touching["right_foot"] ^ touching["left_foot"]
    heights = posture.feet[:, :, 2]
    is_lifted = heights.max(axis=1) - heights.min(axis=1) > 0.12
    is_tall = (posture.head[:, 2] > 1.2) & (posture.pelvis[:, 2] > 0.7)
    return np.asarray(_upright(posture, 0.85) & is_tall & on_one_foot & is_lifted & _only_feet(posture, skeleton))


def kneels(posture: Posture, skeleton: Skeleton) -> np.ndarray:
    """Whether it stands on its knees."""
    touching = _touching(posture, skeleton)
    shins = touching["right_shin1"] & touching["left_shin1"]
    low = (posture.knees[:, :, 2] < 0.16) & (posture.feet[:, :, 2] < 0.22)
    # Shins lie: they may point down by 30 degrees at most.
    direction = posture.feet - posture.knees
    level = direction[:, :, 2] / np.linalg.norm(direction, axis=2) > -0.5
    pelvis = posture.pelvis[:, 2]
    height = (pelvis > 0.25) & (pelvis < 0.62)
    return np.asarray(_upright(posture, 0.85) & shins & low.all(axis=1) & level.all(axis=1) & height)


def _sits(posture: Posture, skeleton: Skeleton) -> np.ndarray:
    touches = _touching(posture, skeleton)["butt"]
    return np.asarray((posture.pelvis[:, 2] < 0.22) & touches & _upright(posture, 0.8))


def _between_thighs(posture: Posture) -> np.ndarray:
    """Angle between the thighs in degrees, [N]."""
    thighs = posture.knees - posture.hips
    thighs /= np.linalg.norm(thighs, axis=2, keepdims=True)
    cosines = (thighs[:, 0] * thighs[:, 1]).sum(axis=1)
    # Rounding may take a cosine past 1.
    return np.asarray(np.degrees(np.arccos(np.clip(cosines, -1, 1))))


def _knees(posture: Posture, skeleton: Skeleton) -> np.ndarray:
    """Angles of the knees in degrees, [N, 2]: 0 is straight, -160 is fully bent."""
    knees = [skeleton.joint(f"{side}_knee") for side in SIDES]
    return np.asarray(np.degrees(posture.joints[:, knees]))


def does_splits(posture: Posture, skeleton: Skeleton) -> np.ndarray:
    """Whether it sits with straight legs far apart."""
    straight = (_knees(posture, skeleton) > -35).all(axis=1)
    return np.asarray(_sits(posture, skeleton) & (_between_thighs(posture) > 95) & straight)


def sits_in_lotus(posture: Posture, skeleton: Skeleton) -> np.ndarray:
    """Whether it sits with bent legs, knees out and feet together."""
    bent = (_knees(posture, skeleton) < -80).all(axis=1)
    low = (posture.knees[:, :, 2] < 0.42).all(axis=1)
    together = np.linalg.norm(posture.feet[:, 0] - posture.feet[:, 1], axis=1) < 0.45
    apart = _between_thighs(posture) > 60
    return np.asarray(_sits(posture, skeleton) & bent & apart & low & together)


def _both(**angles: float) -> dict[str, float]:
    """The same angle for a joint of both legs."""
    both: dict[str, float] = {}
    for name, angle in angles.items():
        for side in SIDES:
            both[f"{side}_{name}"] = angle
    return both


def _arms(shoulder1: float, shoulder2: float, elbow: float) -> dict[str, float]:
    """Angles of the right arm, and of the left one as in a mirror."""
    return {
        "right_shoulder1": shoulder1,
        "right_shoulder2": shoulder2,
        "right_elbow": elbow,
        "left_shoulder1": -shoulder1,
        "left_shoulder2": -shoulder2,
        "left_elbow": elbow,
    }


STANDING = _both(knee=-4)
HANGING = _arms(49, -37, -85)
RAISED = _arms(-85, 10, -85)
ON_HIPS = _arms(55, -78, 0)
CROSSED = _arms(-55, 60, -7)

POSES = {
    pose.name: pose
    for pose in (
        Pose("standing", "a humanoid robot standing up", stands, STANDING | HANGING),
        Pose(
            "arms-raised",
            "a humanoid robot standing up, with both arms raised",
            raises_arms,
            STANDING | RAISED,
        ),
        Pose("hands-on-hips", "a humanoid robot standing up with hands on hips", holds_hips, STANDING | ON_HIPS),
        Pose("arms-crossed", "a humanoid robot standing up, with its arms crossed", crosses_arms, STANDING | CROSSED),
        Pose(
            "one-leg",
            "a humanoid robot standing up on one leg",
            stands_on_one_leg,
            STANDING | HANGING | {"right_hip_y": -70, "right_knee": -90},
        ),
        Pose("kneeling", "a humanoid robot kneeling", kneels, _both(knee=-90) | HANGING),
        Pose(
            "splits",
            "a humanoid robot practicing gymnastics, doing the side splits",
            does_splits,
            _both(hip_x=-15, hip_z=-60, hip_y=-85, knee=-6) | _arms(-54, -63, -14),
        ),
        Pose(
            "lotus",
            "a humanoid robot seated down, meditating in the lotus position",
            sits_in_lotus,
            {"abdomen_y": -55} | _both(hip_x=-2, hip_z=-45, hip_y=-105, knee=-147) | _arms(20, -30, -40),
        ),
    )
}
"""The paper's eight tasks by name."""


def place(skeleton: Skeleton, angles: Mapping[str, float], lean: float = 0.0) -> np.ndarray:
    """State `qpos` [24] of a humanoid with the given angles (degrees; other joints at 0) that just touches the floor.

    Args:
        lean: of the torso, degrees forward.

    Raises:
        BadInput: there is no such joint, or it does not allow that angle.
    """
    qpos = skeleton.rest()
    qpos[ROOT:] = 0.0
    for name, angle in angles.items():
        joint = skeleton.joint(name)
        low, high = np.degrees(skeleton.limits[joint])
        # Limits are kept in radians: in degrees they are a little off.
        if not low - 1e-6 <= angle <= high + 1e-6:
            raise BadInput(f"{name} can be bent from {low:.0f} to {high:.0f} degrees, not by {angle:g}")
        qpos[ROOT + joint] = np.radians(angle)
    # A quaternion: a turn about the axis to the left.
    half = np.radians(lean) / 2
    qpos[3:ROOT] = np.cos(half), 0.0, np.sin(half), 0.0
    qpos[2] -= skeleton.posture(qpos[None]).clearance.min()
    return qpos
