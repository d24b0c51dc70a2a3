"""Watching the first pictures of environments for those that no reward can be read from.

This module imports little, and knows nothing of how the pictures were come by.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from sightline.envs.frames import to_array

REMEDY = (
    "look at some of them; a renderer may need another display driver (MUJOCO_GL=egl, SDL_VIDEODRIVER=offscreen, "
    "PYGLET_HEADLESS=1, set before it is imported), a camera, or something to draw"
)


class PictureWatch:
    """Compares the pictures of N environments, step by step, with the first of each.

    Attributes:
        steps: how many were seen.
    """

    def __init__(self) -> None:
        self.steps = 0
        self._pictures: list[np.ndarray] = []
        self._observed: Any = None
        self._drawn = np.zeros(0, bool)
        self._moved = False

    def see(self, pictures: Sequence[np.ndarray] | np.ndarray, observed: Any) -> None:
        """Look at one step.

        Args:
            pictures: uint8[H, W, 3] of each environment.
            observed: what the environments observed in the states that the pictures show, in any form.
        """
        self.steps += 1
        if self.steps == 1:
            self._pictures = [np.array(picture) for picture in pictures]
            self._observed = copy.deepcopy(observed)
            self._drawn = np.zeros(len(pictures), bool)
            return
        for i, (first, picture) in enumerate(zip(self._pictures, pictures, strict=True)):
            self._drawn[i] = self._drawn[i] or not np.array_equal(first, picture)
        self._moved = self._moved or not _equal(self._observed, observed)

    @property
    def trouble(self) -> str | None:
        """What is wrong with the pictures so far, and what to do, in one line; None if nothing is.

        Pictures of one colour that changes are not blamed, since they tell states apart. Nor are pictures that stay the
        same while nothing moves, unless they are of one colour.
        """
        blank = [i for i in np.flatnonzero(~self._drawn) if (self._pictures[i] == self._pictures[i][0, 0]).all()]
        if blank:
            colour = tuple(self._pictures[blank[0]][0, 0].tolist())
            count = len(self._pictures)
            owner = "" if len(blank) == count else f" of environment {blank[0] + 1} of {count}"
            return f"all pictures of the first {self.steps} steps{owner} are of one colour, {colour}; {REMEDY}"
        if self._moved and not self._drawn.any():
            return (
                f"all pictures of the first {self.steps} steps are the same, though what is observed changes; {REMEDY}"
            )
        return None


def _equal(one: Any, other: Any) -> bool:
    """Whether two observations are the same: arrays, numbers, text, and dictionaries or tuples of them."""
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return one.keys() == other.keys() and all(_equal(one[key], other[key]) for key in one)
    if isinstance(one, tuple | list) and isinstance(other, tuple | list):
        return len(one) == len(other) and all(map(_equal, one, other))
    return np.array_equal(to_array(one), to_array(other))
