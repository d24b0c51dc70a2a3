"""What may be said of a scene: sentences in many wordings, each with a rule that tells of which scenes it is true.

Words such as "upright" have no sharp edge. Every time such a sentence is drawn, the width of its region is drawn too,
from a few degrees to a right angle, on a logarithmic scale. Averaged over many draws, "upright" is therefore *more*
true the closer the pole is to the vertical, and that is what the encoder learns and what makes a usable reward.

Sentences of unknown words are said of every picture alike: they carry no information, so they must give no reward.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from pretraining.encoder.scenes import CARTPOLE, MOUNTAIN_CAR, ROD, Scenes

UNKNOWN = "[UNK]"


@dataclass(frozen=True)
class Region:
    """Where a phrase is true: within some distance of a centre, along the angle or the position.

    The distance is drawn log-uniformly from [nearest, farthest].
    """

    quantity: str
    centre: float
    nearest: float
    farthest: float

    def draw(self, rng: np.random.Generator) -> Callable[[Scenes], np.ndarray]:
        width = float(np.exp(rng.uniform(np.log(self.nearest), np.log(self.farthest))))

        def inside(scenes: Scenes) -> np.ndarray:
            distance = np.abs(getattr(scenes, self.quantity) - self.centre)
            if self.quantity == "angle":
                distance = np.minimum(distance, 2 * np.pi - distance)
            return np.asarray(distance <= width)

        return inside


@dataclass(frozen=True)
class Phrase:
    """One meaning in several wordings; those of `held_out` are never trained on."""

    region: Region | None
    wordings: tuple[str, ...]
    held_out: tuple[str, ...] = ()


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

GENERIC: dict[int, tuple[str, ...]] = {
    CARTPOLE: ("{pole} and {cart}", "{cart} with a {pole}", "{cart} and {pole} on a track", "{cart}", "{pole}"),
    MOUNTAIN_CAR: ("{car} in the {mountain}", "{car} and {mountain}", "{mountain} with a flag", "{car}", "{mountain}"),
    ROD: ("{rod}", "{rod} on an axle", "{rod} turning about its end"),
}

SYNONYMS: dict[str, tuple[str, ...]] = {
    "pole": ("pole", "pole", "pole", "stick", "bar"),
    "cart": ("cart", "cart", "cart", "trolley", "wagon"),
    "car": ("car", "car", "car", "vehicle"),
    "mountain": ("mountain", "mountain", "hill", "mountains"),
    "rod": ("rod", "rod", "pendulum"),
}

PREFIXES = ("", "", "", "", "a picture of ", "a drawing of ", "an image of ", "this is ")
FUNCTION_WORDS = ("a", "the", "of", "on", "in", "with", "and", "at", "to")


@dataclass(frozen=True)
class Caption:
    """A sentence and the rule that tells of which scenes it is true: `holds(scenes) -> bool[N]`."""

    text: str
    holds: Callable[[Scenes], np.ndarray]


def sample_captions(count: int, rng: np.random.Generator) -> list[Caption]:
    """Random training captions."""
    return [_sample_caption(rng) for _ in range(count)]


def _sample_caption(rng: np.random.Generator) -> Caption:
    kind = rng.random()
    if kind < 0.06:
        return _nonsense(rng)
    world = int(rng.choice([CARTPOLE, MOUNTAIN_CAR, ROD], p=[0.5, 0.28, 0.22]))
    if kind < 0.16:
        return Caption(_say(_pick(GENERIC[world], rng), rng), _all_of(world))
    if world == CARTPOLE:
        phrases = CARTPOLE_ANGLES if rng.random() < 0.65 else CARTPOLE_POSITIONS
        if rng.random() < 0.1:
            return _both(_phrase(CARTPOLE_ANGLES, rng), _phrase(CARTPOLE_POSITIONS, rng), rng)
    else:
        phrases = MOUNTAIN_CAR_POSITIONS if world == MOUNTAIN_CAR else ROD_ANGLES
    phrase = _phrase(phrases, rng)
    return Caption(_say(_pick(phrase.wordings, rng), rng), _all_of(world, _region(phrase).draw(rng)))


def _phrase(phrases: tuple[Phrase, ...], rng: np.random.Generator) -> Phrase:
    """The first phrase is the goal that people ask for most; it is said a third of the time."""
    return phrases[0] if rng.random() < 0.2 else phrases[int(rng.integers(len(phrases)))]


def _both(angle: Phrase, position: Phrase, rng: np.random.Generator) -> Caption:
    first, second = _pick(angle.wordings, rng), _pick(position.wordings, rng)
    by_angle, by_position = _region(angle).draw(rng), _region(position).draw(rng)
    return Caption(
        _say(f"{first} and {second}", rng),
        _all_of(CARTPOLE, lambda scenes: by_angle(scenes) & by_position(scenes)),
    )


def _all_of(world: int, inside: Callable[[Scenes], np.ndarray] | None = None) -> Callable[[Scenes], np.ndarray]:
    def holds(scenes: Scenes) -> np.ndarray:
        of_world = scenes.world == world
        return np.asarray(of_world if inside is None else of_world & inside(scenes))

    return holds


def _nonsense(rng: np.random.Generator) -> Caption:
    """Unknown words between a few common ones: true of everything."""
    words = [UNKNOWN if rng.random() < 0.6 else _pick(FUNCTION_WORDS, rng) for _ in range(int(rng.integers(1, 9)))]
    words[int(rng.integers(len(words)))] = UNKNOWN
    return Caption(" ".join(words), lambda scenes: np.ones(len(scenes.world), bool))


def _say(wording: str, rng: np.random.Generator) -> str:
    """Fill in synonyms, articles and a prefix; now and then a word is not understood."""
    text = wording
    for noun, synonyms in SYNONYMS.items():
        text = text.replace("{" + noun + "}", _pick(synonyms, rng), 1)
        text = text.replace("{" + noun + "}", synonyms[0])
    text = _pick(PREFIXES, rng) + _pick(("", "a ", "the "), rng) + text
    if rng.random() < 0.3:
        text = text.replace(" the ", " a ") if rng.random() < 0.5 else text.replace(" the ", " ")
    if rng.random() < 0.03:
        words = text.split()
        words.insert(int(rng.integers(len(words) + 1)), UNKNOWN)
        text = " ".join(words)
    return text


def _pick(options: tuple[str, ...], rng: np.random.Generator) -> str:
    return options[int(rng.integers(len(options)))]


def _region(phrase: Phrase) -> Region:
    assert phrase.region is not None
    return phrase.region


ALL_PHRASES: dict[int, tuple[Phrase, ...]] = {
    CARTPOLE: CARTPOLE_ANGLES + CARTPOLE_POSITIONS,
    MOUNTAIN_CAR: MOUNTAIN_CAR_POSITIONS,
    ROD: ROD_ANGLES,
}


def plain_wording(wording: str) -> str:
    """A wording with its most common nouns: `"{pole} and {cart}"` becomes `"pole and cart"`."""
    return re.sub(r"\{(\w+)\}", lambda match: SYNONYMS[match.group(1)][0], wording)


def vocabulary() -> list[str]:
    """Every word of every training sentence, sorted."""
    sentences = [w for phrases in ALL_PHRASES.values() for phrase in phrases for w in phrase.wordings]
    sentences += [w for wordings in GENERIC.values() for w in wordings]
    sentences += [*PREFIXES, *FUNCTION_WORDS, "a the", *(s for synonyms in SYNONYMS.values() for s in synonyms)]
    return sorted({word for s in sentences for word in re.findall(r"[a-z]+", re.sub(r"\{\w+\}", "", s))})
