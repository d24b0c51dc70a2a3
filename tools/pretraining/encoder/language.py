"""What an encoder is taught: scenes with pictures, and sentences with a rule that tells of which scenes each is true.

    Scenes    pictures, the world that each shows, and quantities of its state
    Phrase    one meaning in several wordings, true in a Region of some quantities (or in AllOf several)
    Language  all that is said of the worlds of one encoder; draws Captions

Words such as "upright" have no sharp edge. Who says them may mean a few degrees, or anything up to a right angle. A
sentence is as true of a scene as the share of such widths, on a logarithmic scale, within which the scene is: "upright"
is *more* true the closer the pole is to the vertical, and that is what the encoder learns and what makes a usable
reward.

Sentences of unknown words are said of every picture alike: they carry no information, so they must give no reward.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from PIL import Image

UNKNOWN = "[UNK]"
PREFIXES = ("", "", "", "", "a picture of ", "a drawing of ", "an image of ", "this is ")
FUNCTION_WORDS = ("a", "the", "of", "on", "in", "with", "and", "at", "to")


@dataclass(frozen=True)
class Scenes:
    """A batch of N pictures with the states that they show.

    Attributes:
        world: int[N], which of an encoder's worlds each is of.
        quantities: name -> float[N], what sentences speak of; of other worlds, any value.
        frames: uint8[N, S, S, 3].
    """

    world: np.ndarray
    quantities: Mapping[str, np.ndarray]
    frames: np.ndarray

    def chosen(self, indices: np.ndarray) -> Scenes:
        """Some of the scenes."""
        quantities = {name: values[indices] for name, values in self.quantities.items()}
        return Scenes(self.world[indices], quantities, self.frames[indices])

    def replace(self, indices: np.ndarray, new: Scenes) -> None:
        """Put new scenes in the place of some."""
        self.world[indices], self.frames[indices] = new.world, new.frames
        for name, values in self.quantities.items():
            values[indices] = new.quantities[name]


def fit(frame: np.ndarray, image_size: int) -> np.ndarray:
    """Squash a frame to the encoder's size as its preprocessing does (bicubic)."""
    if frame.shape[:2] == (image_size, image_size):
        return frame
    return np.asarray(Image.fromarray(frame).resize((image_size, image_size), Image.Resampling.BICUBIC))


@dataclass(frozen=True)
class Region:
    """Where a phrase is true: within some distance of a centre, along one quantity of a scene.

    Within the nearest distance it is quite true, beyond the farthest quite false.
    """

    quantity: str
    centre: float
    nearest: float
    farthest: float

    def truth(self, scenes: Scenes) -> np.ndarray:
        """float[N], the share of widths from nearest to farthest (log-uniform) within which scenes are."""
        beyond = np.log(np.maximum(self._distance(scenes), self.nearest) / self.nearest)
        return np.asarray(np.maximum(0.0, 1 - beyond / np.log(self.farthest / self.nearest)))

    def middle(self, scenes: Scenes) -> np.ndarray:
        """bool[N], whether scenes are within the middle width."""
        return np.asarray(self._distance(scenes) <= np.sqrt(self.nearest * self.farthest))

    def _distance(self, scenes: Scenes) -> np.ndarray:
        distance = np.abs(scenes.quantities[self.quantity] - self.centre)
        return np.asarray(np.minimum(distance, 2 * np.pi - distance) if self.quantity == "angle" else distance)


@dataclass(frozen=True)
class AllOf:
    """Where several regions meet; the width of each is meant by itself."""

    regions: tuple[Region, ...]

    def truth(self, scenes: Scenes) -> np.ndarray:
        """float[N]; see `Region.truth`."""
        return np.asarray(np.prod([region.truth(scenes) for region in self.regions], axis=0))

    def middle(self, scenes: Scenes) -> np.ndarray:
        """bool[N], whether scenes are within the middle widths."""
        return np.asarray(np.all([region.middle(scenes) for region in self.regions], axis=0))


@dataclass(frozen=True)
class Phrase:
    """One meaning in several wordings; those of `held_out` are never trained on."""

    region: Region | AllOf
    wordings: tuple[str, ...]
    held_out: tuple[str, ...] = ()


@dataclass(frozen=True)
class Caption:
    """A sentence and the rule that tells how true it is of scenes: `truth(scenes) -> float[N]` in [0, 1]."""

    text: str
    truth: Callable[[Scenes], np.ndarray]


@dataclass(frozen=True)
class Language:
    """All that is said of the worlds of one encoder.

    Attributes:
        phrases: world -> phrases about its state.
        generic: world -> sentences that are true of all of its scenes.
        synonyms: word in braces -> words that are said for it; the first is the plain one.
        shares: of the worlds among the captions.
        choose: draw what is said of a world: one phrase, or several that are joined by "and".
    """

    phrases: Mapping[int, tuple[Phrase, ...]]
    generic: Mapping[int, tuple[str, ...]]
    synonyms: Mapping[str, tuple[str, ...]]
    shares: tuple[float, ...]
    choose: Callable[[int, np.random.Generator], tuple[Phrase, ...]]

    def sample(self, count: int, rng: np.random.Generator, shares: tuple[float, ...] | None = None) -> list[Caption]:
        """Random training captions, shares of them about each world."""
        return [self._caption(rng, shares or self.shares) for _ in range(count)]

    def plain(self, wording: str) -> str:
        """A wording with its plain nouns: `"{pole} and {cart}"` becomes `"pole and cart"`."""
        return re.sub(r"\{(\w+)\}", lambda match: self.synonyms[match.group(1)][0], wording)

    def vocabulary(self) -> list[str]:
        """Every word of every training sentence, sorted."""
        sentences = [w for phrases in self.phrases.values() for phrase in phrases for w in phrase.wordings]
        sentences += [w for wordings in self.generic.values() for w in wordings]
        sentences += [*PREFIXES, *FUNCTION_WORDS, *(s for synonyms in self.synonyms.values() for s in synonyms)]
        return sorted({word for s in sentences for word in re.findall(r"[a-z]+", re.sub(r"\{\w+\}", "", s))})

    def _caption(self, rng: np.random.Generator, shares: tuple[float, ...]) -> Caption:
        kind = rng.random()
        if kind < 0.06:
            return _nonsense(rng)
        world = int(rng.choice(len(shares), p=shares))
        if kind < 0.16:
            return Caption(self._say(pick(self.generic[world], rng), rng), _of(world, ()))
        said = self.choose(world, rng)
        wording = " and ".join(pick(phrase.wordings, rng) for phrase in said)
        return Caption(self._say(wording, rng), _of(world, said))

    def _say(self, wording: str, rng: np.random.Generator) -> str:
        """Fill in synonyms, articles and a prefix; now and then a word is not understood."""
        text = wording
        for noun, synonyms in self.synonyms.items():
            text = text.replace("{" + noun + "}", pick(synonyms, rng), 1)
            text = text.replace("{" + noun + "}", synonyms[0])
        text = pick(PREFIXES, rng) + pick(("", "a ", "the "), rng) + text
        if rng.random() < 0.3:
            text = text.replace(" the ", " a ") if rng.random() < 0.5 else text.replace(" the ", " ")
        if rng.random() < 0.03:
            words = text.split()
            words.insert(int(rng.integers(len(words) + 1)), UNKNOWN)
            text = " ".join(words)
        return text


def any_phrase(phrases: tuple[Phrase, ...], rng: np.random.Generator, most: int | None = None) -> Phrase:
    """Any phrase, or any of the first `most`; the very first, which is what people ask for most, more often."""
    return phrases[0] if rng.random() < 0.2 else phrases[int(rng.integers(most or len(phrases)))]


def pick(options: tuple[str, ...], rng: np.random.Generator) -> str:
    """Any of some texts."""
    return options[int(rng.integers(len(options)))]


def _of(world: int, said: tuple[Phrase, ...]) -> Callable[[Scenes], np.ndarray]:
    def truth(scenes: Scenes) -> np.ndarray:
        true: np.ndarray = (scenes.world == world).astype(float)
        for phrase in said:
            true *= phrase.region.truth(scenes)
        return true

    return truth


def _nonsense(rng: np.random.Generator) -> Caption:
    """Unknown words between a few common ones: true of everything."""
    words = [UNKNOWN if rng.random() < 0.6 else pick(FUNCTION_WORDS, rng) for _ in range(int(rng.integers(1, 9)))]
    words[int(rng.integers(len(words)))] = UNKNOWN
    return Caption(" ".join(words), lambda scenes: np.ones(len(scenes.world)))
