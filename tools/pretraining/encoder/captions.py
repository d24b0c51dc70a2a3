"""What is said of the worlds of the bundled encoder: a cart with a pole, a car, a rod and a humanoid."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from pretraining.encoder.humanoid import PARTS
from pretraining.encoder.language import AllOf, Language, Phrase, Region, Scenes, any_phrase
from pretraining.encoder.scenes import CARTPOLE, HUMANOID, MOUNTAIN_CAR, ROD

RIVALRY, FROM_AFAR = 0.05, 0.15
"""Of examples of a part: the difference of distances in metres by which the nearer one is e times as true, and the
share of the truth that asks for no other example."""


@dataclass(frozen=True)
class Part(Region):
    """Where a part of the body is as the example of a phrase, and not nearer to another phrase's.

    Widths alone would say of one who stands that it half lifts a leg, since both examples are near each other; the
    nearest example alone would say nothing about the way to a pose from afar. So the one is weighed by the other.
    """

    def truth(self, scenes: Scenes) -> np.ndarray:
        """float[N], the share of widths within which scenes are, less where another example is nearer."""
        kind = self.quantity.split()[0] + " "
        beyond = np.stack(
            [scenes.quantities[name] - scenes.quantities[self.quantity] for name in PARTS if name.startswith(kind)]
        )
        with np.errstate(over="ignore"):
            chosen = 1 / np.exp(-beyond / RIVALRY).sum(axis=0)
        return np.asarray(super().truth(scenes) * (FROM_AFAR + (1 - FROM_AFAR) * chosen))


def _angle(centre_degrees: float, nearest: float = 4, farthest: float = 90) -> Region:
    return Region("angle", np.deg2rad(centre_degrees), np.deg2rad(nearest), np.deg2rad(farthest))


def _sided(region_of_side: Callable[[int], Region], wordings: tuple[str, ...]) -> tuple[Phrase, ...]:
    """The same phrase for the left and for the right."""
    return tuple(
        Phrase(region_of_side(sign), tuple(w.replace("{side}", side) for w in wordings))
        for sign, side in ((-1, "left"), (1, "right"))
    )


CARTPOLE_ANGLES: tuple[Phrase, ...] = (
    Phrase(
        _angle(0),
        (
            "{pole} vertically upright on top of the {cart}",
            "{pole} upright on the {cart}",
            "{pole} standing upright on top of the {cart}",
            "upright {pole} on the {cart}",
            "vertical {pole} on top of the {cart}",
            "{pole} balanced straight up on the {cart}",
            "{cart} with the {pole} straight up",
            "{pole} pointing straight up",
            "{pole} standing up",
            "{cart} balancing the {pole} upright",
        ),
        ("vertically standing {pole} balanced on the {cart}", "{cart} with upright vertical {pole} on top"),
    ),
    Phrase(
        _angle(180),
        (
            "{pole} hanging straight down below the {cart}",
            "{pole} hanging down from the {cart}",
            "{pole} pointing straight down",
            "{cart} with the {pole} hanging below",
            "{pole} upside down under the {cart}",
        ),
        ("{pole} straight down under the {cart}",),
    ),
    *_sided(
        lambda sign: _angle(sign * 20, 5, 25),
        ("{pole} tilted slightly to the {side}", "{pole} leaning a little to the {side} on the {cart}"),
    ),
    *_sided(
        lambda sign: _angle(sign * 45, 10, 40),
        ("{pole} leaning to the {side}", "{cart} with the {pole} falling to the {side}", "{pole} tilted to the {side}"),
    ),
    *_sided(
        lambda sign: _angle(sign * 90, 8, 50),
        ("{pole} lying horizontally to the {side} of the {cart}", "horizontal {pole} pointing {side}"),
    ),
    *_sided(
        lambda sign: _angle(sign * 135, 10, 40),
        ("{pole} pointing down to the {side}", "{pole} hanging down to the {side} below the {cart}"),
    ),
)

CARTPOLE_POSITIONS: tuple[Phrase, ...] = (
    *_sided(
        lambda sign: Region("position", sign * 1.0, 0.05, 1.2),
        (
            "{cart} at the {side} edge",
            "{cart} at the {side} end of the track",
            "{cart} on the far {side}",
            "{cart} at the {side} border of the picture",
        ),
    ),
    *_sided(
        lambda sign: Region("position", sign * 0.5, 0.2, 0.5),
        ("{cart} on the {side} side", "{cart} to the {side} of the middle"),
    ),
    Phrase(
        Region("position", 0.0, 0.08, 0.8),
        ("{cart} in the middle", "{cart} at the centre of the track", "{cart} in the centre of the picture"),
        ("{cart} in the middle of the track",),
    ),
)

MOUNTAIN_CAR_POSITIONS: tuple[Phrase, ...] = (
    Phrase(
        Region("position", 0.5, 0.07, 1.2),
        (
            "{car} at the peak of the {mountain} next to the yellow flag",
            "{car} at the peak of the {mountain}",
            "{car} next to the yellow flag",
            "{car} at the flag",
            "{car} on top of the {mountain}",
            "{car} at the top of the right {mountain} beside the flag",
            "{car} on top of the {mountain} at the flag",
        ),
        ("{car} on the peak beside the yellow flag", "{car} at the top next to the flag"),
    ),
    Phrase(
        Region("position", -0.52, 0.06, 0.5),
        ("{car} at the bottom of the valley", "{car} in the valley", "{car} at the lowest point of the {mountain}"),
        ("{car} at the bottom",),
    ),
    Phrase(
        Region("position", -1.2, 0.08, 0.6),
        ("{car} at the left edge", "{car} high on the left slope", "{car} far from the flag on the left"),
    ),
    Phrase(Region("position", 0.05, 0.1, 0.3), ("{car} on the right slope", "{car} driving up to the flag")),
)

ROD_ANGLES: tuple[Phrase, ...] = (
    Phrase(
        _angle(0),
        (
            "{rod} standing upright",
            "{rod} pointing straight up",
            "upright {rod}",
            "vertical {rod} pointing up",
            "{rod} balanced upright",
            "{rod} upright on top",
        ),
        ("{rod} standing straight up",),
    ),
    Phrase(_angle(180), ("{rod} hanging straight down", "{rod} pointing down", "{rod} hanging at the bottom")),
    *_sided(
        lambda sign: _angle(sign * 90, 8, 50), ("horizontal {rod} pointing {side}", "{rod} pointing to the {side}")
    ),
    *_sided(lambda sign: _angle(sign * 45, 10, 40), ("{rod} leaning to the {side}", "{rod} tilted to the {side}")),
    *_sided(lambda sign: _angle(sign * 135, 10, 40), ("{rod} pointing down to the {side}",)),
)


def _body(legs: str | None = None, arms: str | None = None, lying: bool = False) -> AllOf:
    """What the parts of a body do; a part that is not named may do anything.

    Each part has widths of its own, from one that only the pose itself is within, to one that shows the way from afar.
    """
    regions = [Region("trunk lying", 0, 0.2, 0.6)] if lying else [Region("trunk upright", 0, 0.25, 1.4)]
    regions += [Part(f"legs {legs}", 0, 0.12, 0.7)] if legs else []
    regions += [Part(f"arms {arms}", 0, 0.15, 0.75)] if arms else []
    return AllOf(tuple(regions))


HUMANOID_POSES: tuple[Phrase, ...] = (
    Phrase(
        _body("standing", "hanging"),
        ("{robot} standing up", "{robot} standing", "{robot} standing upright", "{robot} standing with its arms down"),
        ("{robot} standing upright with its arms down",),
    ),
    Phrase(
        _body("standing", "raised"),
        (
            "{robot} standing up, with both arms raised",
            "{robot} standing with both arms raised",
            "{robot} standing up with its arms up",
            "{robot} raising both arms",
        ),
        ("{robot} standing upright with both arms up",),
    ),
    Phrase(
        _body("standing", "on hips"),
        (
            "{robot} standing up with hands on hips",
            "{robot} standing with its hands on its hips",
            "{robot} with its hands on its hips",
        ),
        ("{robot} standing upright, hands on its hips",),
    ),
    Phrase(
        _body("standing", "crossed"),
        (
            "{robot} standing up, with its arms crossed",
            "{robot} standing with its arms crossed",
            "{robot} with crossed arms",
        ),
        ("{robot} standing upright with crossed arms",),
    ),
    Phrase(
        _body("one leg"),
        (
            "{robot} standing up on one leg",
            "{robot} standing on one leg",
            "{robot} balanced on one leg",
            "{robot} with one leg raised",
        ),
        ("{robot} balancing on one leg",),
    ),
    Phrase(
        _body("kneeling"),
        ("{robot} kneeling", "{robot} kneeling on the floor", "{robot} on its knees", "{robot} kneeling down"),
        ("{robot} kneeling upright on its knees",),
    ),
    Phrase(
        _body("splits"),
        (
            "{robot} practicing gymnastics, doing the side splits",
            "{robot} doing the side splits",
            "{robot} doing the splits on the floor",
            "{robot} sitting on the floor with its legs far apart",
        ),
        ("{robot} practicing the splits",),
    ),
    Phrase(
        _body("lotus"),
        (
            "{robot} seated down, meditating in the lotus position",
            "{robot} sitting in the lotus position",
            "{robot} meditating on the floor",
            "{robot} seated with its legs bent",
        ),
        ("{robot} meditating in the lotus position",),
    ),
    Phrase(
        _body(lying=True),
        (
            "{robot} lying on the floor",
            "{robot} lying down",
            "{robot} lying on its back or its side",
            "{robot} that has fallen down",
        ),
        ("{robot} lying down on the floor",),
    ),
    Phrase(_body("squat"), ("{robot} squatting", "{robot} squatting down")),
    Phrase(
        _body("sitting"),
        ("{robot} sitting on the floor with straight legs", "{robot} sitting down with its legs forward"),
    ),
    Phrase(_body("standing"), ("{robot} on straight legs", "{robot} on both its feet")),
    Phrase(_body(arms="raised"), ("{robot} with both arms up", "{robot} with both arms raised")),
    Phrase(_body(arms="spread"), ("{robot} with its arms spread out", "{robot} with its arms out to the sides")),
    Phrase(_body(arms="hanging"), ("{robot} with its arms down", "{robot} with hanging arms")),
)

WHOLE_POSES = 9
"""Phrases at the beginning of `HUMANOID_POSES`: the eight poses of the tasks, and lying."""

GENERIC: dict[int, tuple[str, ...]] = {
    CARTPOLE: ("{pole} and {cart}", "{cart} with a {pole}", "{cart} and {pole} on a track", "{cart}", "{pole}"),
    MOUNTAIN_CAR: ("{car} in the {mountain}", "{car} and {mountain}", "{mountain} with a flag", "{car}", "{mountain}"),
    ROD: ("{rod}", "{rod} on an axle", "{rod} turning about its end"),
    HUMANOID: ("{robot}", "{robot}", "{robot} on the floor", "{robot} on tiles", "{robot} moving about"),
}

SYNONYMS: dict[str, tuple[str, ...]] = {
    "pole": ("pole", "pole", "pole", "stick", "bar"),
    "cart": ("cart", "cart", "cart", "trolley", "wagon"),
    "car": ("car", "car", "car", "vehicle"),
    "mountain": ("mountain", "mountain", "hill", "mountains"),
    "rod": ("rod", "rod", "pendulum"),
    "robot": ("humanoid robot", "humanoid robot", "humanoid robot", "robot", "humanoid", "figure"),
}


def _choose(world: int, rng: np.random.Generator) -> tuple[Phrase, ...]:
    """Of a cart's pole more often than of its place, now and then of both; of bodies more often a whole pose."""
    if world == CARTPOLE:
        phrases = CARTPOLE_ANGLES if rng.random() < 0.65 else CARTPOLE_POSITIONS
        if rng.random() < 0.1:
            return any_phrase(CARTPOLE_ANGLES, rng), any_phrase(CARTPOLE_POSITIONS, rng)
        return (any_phrase(phrases, rng),)
    most = WHOLE_POSES if world == HUMANOID and rng.random() < 0.5 else None
    return (any_phrase(LANGUAGE.phrases[world], rng, most),)


LANGUAGE = Language(
    phrases={
        CARTPOLE: CARTPOLE_ANGLES + CARTPOLE_POSITIONS,
        MOUNTAIN_CAR: MOUNTAIN_CAR_POSITIONS,
        ROD: ROD_ANGLES,
        HUMANOID: HUMANOID_POSES,
    },
    generic=GENERIC,
    synonyms=SYNONYMS,
    shares=(0.24, 0.14, 0.1, 0.52),
    choose=_choose,
)
