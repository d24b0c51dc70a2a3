"""Scopes: which frames of an episode a reward model is shown for one of its steps.

    steps of an episode    0  1  2  3  4  5  6  7  8  9     0 is the state after the reset, 9 the step that is judged
    frame                                             ●
    window, frames=4                         ●  ●  ●  ●
    prefix, frames=4       ●           ●           ●  ●     every step, every 2nd, 4th, …: the first that are so few
    episode, frames=4      ●           ●           ●  ●     as `prefix`, of the step alone that ends the episode

A model says its scope (`RewardModel.scope`) and asks each clip for the frames (`Clip.shown`). Frames from before a clip
travel with it as its `Past`: where an episode begins, the reset frame; where one goes on, those that were shown for the
step before, since later steps are shown no other old ones. So a run keeps at most `frames` of each environment.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from sightline.errors import BadInput
from sightline.rewards.arrays import concatenated, to_numpy

if TYPE_CHECKING:
    import torch

    Array = np.ndarray | torch.Tensor

ScopeKind = Literal["frame", "window", "prefix", "episode"]


@dataclass(frozen=True)
class Scope:
    """Which frames of an episode a reward model is shown for a step.

    Attributes:
        kind: the `frame` alone; a `window` of the last ones; all since the reset (`prefix`); or the same of whole
            episodes, so that only a step that ends one is judged (`episode`).
        frames: most of them, the present one included. Of a prefix with more, every second, fourth, eighth, … is shown,
            and always the first and the last.

    Raises:
        BadInput: another kind, or too few frames for it.
    """

    kind: ScopeKind = "frame"
    frames: int = 1

    def __post_init__(self) -> None:
        least = {"frame": 1, "window": 1, "prefix": 2, "episode": 2}.get(self.kind)
        if least is None:
            raise BadInput(f"a scope is frame, window, prefix or episode, not {self.kind!r:.40}")
        if not isinstance(self.frames, int | np.integer) or self.frames < least:
            raise BadInput(f"a scope of kind {self.kind} has at least {least} frames, not {self.frames!r:.40}")

    def steps(self, last: int, earliest: int = 0) -> np.ndarray:
        """int[F], the steps of an episode whose frames are shown for step `last`, ascending.

        Args:
            earliest: the first step of which there is a frame; 0 is the reset.
        """
        if self.kind in ("frame", "window"):
            return np.arange(max(earliest, last - self.frames + 1), last + 1)
        stride = 1
        while -(-(last - earliest) // stride) + 1 > self.frames:
            stride *= 2
        return np.append(np.arange(earliest, last, stride), last)


@dataclass(frozen=True, eq=False)
class Past:
    """Frames that came before rows of a clip in their episodes; K of them.

    Attributes:
        rows: int[K], the row of the clip that each came before: one where an episode begins, or 0 where it goes on.
        envs: int[K], its environment.
        steps: int[K], its step in the episode, ascending for each row and environment; 0 is the reset frame.
        frames: uint8[K, H, W, 3], numpy or torch on any device.
    """

    rows: np.ndarray
    envs: np.ndarray
    steps: np.ndarray
    frames: Array

    @classmethod
    def of_resets(cls, row: int, first: np.ndarray, frames: Array) -> Past:
        """The reset frames [K, …] of the K episodes that begin with a row, where `first` (bool[N]) says so."""
        envs = np.flatnonzero(first)
        return cls(np.full(len(envs), row), envs, np.zeros(len(envs), np.int64), frames)

    @classmethod
    def joined(cls, parts: Sequence[Past]) -> Past | None:
        """All of several; None of none."""
        parts = [part for part in parts if len(part.rows)]
        if not parts:
            return None
        rows, envs, steps = (
            np.concatenate([getattr(part, name) for part in parts]) for name in ("rows", "envs", "steps")
        )
        return cls(rows, envs, steps, concatenated([part.frames for part in parts]))

    @classmethod
    def of_arrays(cls, arrays: Mapping[str, Any]) -> Past:
        """The past whose `arrays` these are."""
        return cls(**dict(arrays))

    def arrays(self) -> dict[str, Any]:
        """All arrays, for a checkpoint."""
        return {"rows": self.rows, "envs": self.envs, "steps": self.steps, "frames": to_numpy(self.frames)}

    def before(self, row: int, env: int) -> tuple[np.ndarray, Array]:
        """int[F] steps and uint8[F, H, W, 3] frames that came before a row of an environment."""
        places = np.flatnonzero((self.rows == row) & (self.envs == env))
        return self.steps[places], self.frames[places]

    def of_rows(self, start: int, stop: int) -> Past:
        """The past of some rows, which are counted from the first of them."""
        part = self.picked(np.flatnonzero((self.rows >= start) & (self.rows < stop)))
        return part.moved(part.rows - start)

    def of_env(self, env: int) -> Past:
        """The past of one environment, whose number is 0 then."""
        part = self.picked(np.flatnonzero(self.envs == env))
        return Past(part.rows, np.zeros_like(part.envs), part.steps, part.frames)

    def picked(self, places: np.ndarray) -> Past:
        """Some of the frames, by their places int[k]."""
        return Past(self.rows[places], self.envs[places], self.steps[places], self.frames[places])

    def moved(self, rows: np.ndarray) -> Past:
        """The same before other rows, int[K]."""
        return Past(rows, self.envs, self.steps, self.frames)
