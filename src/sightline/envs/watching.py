"""Watching the first pictures of environments for those that no reward can be read from.

This module imports little, and does not know where the pictures come from.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np

from sightline.envs.frames import to_array

REMEDY = (
    "look at some of them; a renderer may need another display driver (MUJOCO_GL=egl, SDL_VIDEODRIVER=offscreen, "
    "PYGLET_HEADLESS=1, set before it is imported), a camera, or something to draw"
)
NOISE = 1e-5
"""Rewards of an encoder that differ by no more are the same: those of one picture differ by this between batches."""
MOVES = 4
"""Changes of what is observed, after which a picture of an episode should have changed, too."""

Flaw = Literal["blank", "still", "frozen"]


class PictureWatch:
    """Compares the pictures of N environments, step by step, with the first of each.

    Attributes:
        steps: how many were seen.
    """

    def __init__(self) -> None:
        self.steps = 0
        self._pictures: list[Any] = []
        self._opening: list[Any] = []  # the first picture of each present episode
        self._observed: Any = None
        # bool[N]: whether the picture differed from the first of all, and from the first of its episode.
        self._drawn = np.zeros(0, bool)
        self._redrawn = np.zeros(0, bool)
        # How often what is observed has changed, and how often without the start of an episode.
        self._moves = 0
        self._moves_within = 0

    def see(
        self, pictures: Sequence[Any] | np.ndarray, observed: Any, begins: Sequence[bool] | np.ndarray = ()
    ) -> None:
        """Look at one step.

        Args:
            pictures: uint8[H, W, 3] of each environment, of numpy or torch, whose pictures stay on their device.
            observed: what the environments observed in the states that the pictures show, in any form.
            begins: bool[N], where an episode has begun since the step before; empty if that is not known.
        """
        self.steps += 1
        if self.steps == 1:
            self._pictures = [_copied(picture) for picture in pictures]
            self._opening = list(self._pictures)
            self._observed = copy.deepcopy(observed)
            self._drawn = np.zeros(len(pictures), bool)
            self._redrawn = np.zeros(len(pictures), bool)
            return
        for i, picture in enumerate(pictures):
            self._drawn[i] = self._drawn[i] or not _same(self._pictures[i], picture)
            if len(begins) and begins[i]:
                self._opening[i] = _copied(picture)
            else:
                self._redrawn[i] = self._redrawn[i] or not _same(self._opening[i], picture)
        # Comparing what is observed costs time, and is needed only while pictures are suspect.
        if not self.is_content and not equal(self._observed, observed):
            self._moves += 1
            self._moves_within += not (len(begins) and all(begins))
            self._observed = copy.deepcopy(observed)

    @property
    def is_content(self) -> bool:
        """True once every environment has changed its picture within an episode: no flaw is left to be noticed."""
        return self.steps > 1 and bool(self._redrawn.all())

    @property
    def flaw(self) -> Flaw | None:
        """What is wrong with the pictures so far; None if nothing is.

        `blank`: all of one environment are of one colour. `still`: all are the same, though what is observed changes.
        `frozen`: they change when an episode begins, and never within one. Pictures of one colour that changes are not
        blamed, since they tell states apart. Nor are pictures that stay the same while nothing moves.
        """
        if self._blank():
            return "blank"
        if self._moves and not self._drawn.any():
            return "still"
        if self._moves_within >= MOVES and not self._redrawn.any():
            return "frozen"
        return None

    @property
    def trouble(self) -> str | None:
        """What is wrong with the pictures so far, and what to do, in one line; None if nothing is."""
        return self.trouble_with(f"all pictures of the first {self.steps} steps")

    def trouble_with(self, pictures: str) -> str | None:
        """As `trouble`, by other words for the pictures that were seen."""
        flaw = self.flaw
        if flaw == "blank":
            blank = self._blank()
            count = len(self._pictures)
            colour = tuple(self._pictures[blank[0]][0, 0].tolist())
            owner = ""
            if len(blank) < count:
                owner = f" of environment {blank[0] + 1} of {count}"
            return f"{pictures}{owner} are of one colour, {colour}; {REMEDY}"
        if flaw == "still":
            return f"{pictures} are the same, though what is observed changes; {REMEDY}"
        if flaw == "frozen":
            return (
                f"{pictures} stay as they were when their episode began, though what is observed changes; render() "
                "must draw the present state"
            )
        return None

    def _blank(self) -> list[int]:
        """Environments whose pictures are all of one colour."""
        if self.steps == 0:
            return []
        unchanged = np.flatnonzero(~self._drawn).tolist()
        return [i for i in unchanged if (self._pictures[i] == self._pictures[i][0, 0]).all()]


def _copied(picture: Any) -> Any:
    return picture.clone() if hasattr(picture, "clone") else np.array(picture)


def _same(first: Any, second: Any) -> bool:
    return first.shape == second.shape and bool((first == second).all())


def equal(first: Any, second: Any, tolerance: float = 0.0) -> bool:
    """Whether two observations are the same: arrays, numbers, text, and dictionaries or tuples of them.

    Args:
        tolerance: greatest difference of numbers, as a share of them or in itself.
    """
    if isinstance(first, Mapping) and isinstance(second, Mapping):
        return first.keys() == second.keys() and all(equal(first[key], second[key], tolerance) for key in first)
    if isinstance(first, tuple | list) and isinstance(second, tuple | list):
        return len(first) == len(second) and all(equal(a, b, tolerance) for a, b in zip(first, second, strict=True))
    array = to_array(first)
    other_array = to_array(second)
    are_floats = array.dtype.kind in "fc" and other_array.dtype.kind in "fc"
    if tolerance and array.shape == other_array.shape and are_floats:
        return bool(np.allclose(array, other_array, tolerance, tolerance, equal_nan=True))
    return bool(np.array_equal(array, other_array))
