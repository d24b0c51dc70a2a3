"""Scored frames: what every measure reads."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from sightline.errors import BadInput

UNJUDGED, FAILED, HALF_DONE, SUCCESSFUL = range(-1, 3)
"""Qualities of an episode, the best last; the first is that of an episode of which nobody says it."""


@dataclass(frozen=True, eq=False)
class ScoredFrames:
    """N frames of E episodes with the rewards of one model, an episode after the other, each in the order of its steps.

    Frames that do not follow each other, such as a grid of states or a folder of pictures, are an episode each.

    Attributes:
        rewards: float64[N]; NaN, or any other number that is not finite, where the model gave no answer.
        episode: int64[N], the number of the frame's episode, from 0 to E - 1.
        step: int64[N], the number of the step that led to the frame; it rises within an episode.
        sources: where each of the E episodes is from, such as "random" or "expert".
        truth: float64[N], the reward of the ground truth; NaN where it is unknown, None where it is everywhere.
        success: bool[N], whether the frame shows the goal; None where it is stated of none.
        stated: bool[N], of which frames that is stated; None: of all. Others are no failures, and count nowhere.
        quality: int64[E], FAILED, HALF_DONE, SUCCESSFUL or UNJUDGED; None where only `success` tells them apart.

    Raises:
        BadInput: the arrays do not belong together.
    """

    rewards: np.ndarray
    episode: np.ndarray
    step: np.ndarray
    sources: Sequence[str]
    truth: np.ndarray | None = None
    success: np.ndarray | None = None
    quality: np.ndarray | None = None
    stated: np.ndarray | None = None

    def __post_init__(self) -> None:
        frames = len(self.rewards)
        for name in ("rewards", "episode", "step", "truth", "success", "stated"):
            array = getattr(self, name)
            if array is not None and np.shape(array) != (frames,):
                raise BadInput(f"{name} has the shape {list(np.shape(array))}, and there are {frames} frames")
        if self.quality is not None and np.shape(self.quality) != (len(self.sources),):
            raise BadInput(f"quality is of {len(self.quality)} episodes, and there are {len(self.sources)} sources")
        if frames and (np.min(self.episode) < 0 or np.max(self.episode) >= len(self.sources)):
            raise BadInput(f"episodes are numbered from 0 to {len(self.sources) - 1}, one number for each source")
        # Measures along an episode read its rows as they stand.
        is_within = np.diff(self.episode) == 0
        if np.any(np.diff(self.episode) < 0) or np.any(np.diff(self.step)[is_within] <= 0):
            raise BadInput("frames must stand episode after episode, each in the order of its steps")

    @cached_property
    def answered(self) -> np.ndarray:
        """bool[N], whether the model gave the frame a reward."""
        return np.asarray(np.isfinite(self.rewards))

    @cached_property
    def is_stated(self) -> np.ndarray:
        """bool[N], whether it is stated if the frame shows the goal."""
        if self.success is None:
            return np.zeros(len(self.rewards), bool)
        if self.stated is None:
            return np.ones(len(self.rewards), bool)
        return self.stated

    @property
    def missing(self) -> int:
        """Number of frames without a reward."""
        return int(np.count_nonzero(~self.answered))

    @property
    def coverage(self) -> str:
        """Names of the sources in order of appearance, such as "random + expert"."""
        return " + ".join(dict.fromkeys(self.sources))

    @cached_property
    def successful(self) -> np.ndarray:
        """bool[E], whether the goal was reached at any step; nowhere if it is not stated."""
        reached = np.zeros(len(self.sources), bool)
        if self.success is not None:
            reached[self.episode[self.success.astype(bool)]] = True
        return reached

    @property
    def quality_by_success(self) -> np.ndarray:
        """int64[E]: SUCCESSFUL or FAILED, and UNJUDGED where success is not stated of any frame."""
        is_stated = np.zeros(len(self.sources), bool)
        is_stated[self.episode[self.is_stated]] = True
        return np.where(is_stated, np.where(self.successful, SUCCESSFUL, FAILED), UNJUDGED)

    def with_rewards(self, rewards: np.ndarray) -> ScoredFrames:
        """The same frames with the rewards of another model, float[N]."""
        return replace(self, rewards=np.asarray(rewards, np.float64))

    def select(self, rows: np.ndarray) -> ScoredFrames:
        """Some of the frames, bool[N], and of the episodes those that have any."""
        episodes, episode = np.unique(self.episode[rows], return_inverse=True)
        arrays: dict[str, Any] = {}
        for name in ("rewards", "step", "truth", "success", "stated"):
            array = getattr(self, name)
            arrays[name] = None if array is None else array[rows]
        sources = [self.sources[number] for number in episodes]
        quality = None if self.quality is None else self.quality[episodes]
        return ScoredFrames(episode=episode, sources=sources, quality=quality, **arrays)

    def of_source(self, source: str) -> ScoredFrames:
        """The frames of one source."""
        is_of_source = np.array([name == source for name in self.sources], bool)
        return self.select(is_of_source[self.episode])

    def episodes(self) -> list[slice]:
        """Rows of each of the E episodes."""
        ends = np.searchsorted(self.episode, np.arange(len(self.sources) + 1))
        return [slice(int(start), int(end)) for start, end in itertools.pairwise(ends)]
