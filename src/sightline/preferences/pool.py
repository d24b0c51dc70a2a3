"""A pool of recent segments from which queries are made.

A random share of all segments is kept, frames and all, in a ring: memory does not grow with the run, and no frame of
the replay buffer needs to be kept for the teacher's sake.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from sightline.labels.types import Segment
from sightline.models.device import check_room
from sightline.runs.archive import Archive


class SegmentPool:
    """A ring buffer of segments.

    Args:
        size: segments kept at most.
        length: steps in a segment.
        frame_shape: (H, W, 3).
        feature_shape, feature_dtype: of what the reward model keeps of one step.
    """

    def __init__(
        self, size: int, length: int, frame_shape: tuple[int, ...], feature_shape: tuple[int, ...], feature_dtype: Any
    ) -> None:
        self.size = size
        self.length = length
        self.added = 0
        height, width = frame_shape[:2]
        check_room(
            size * length * math.prod(frame_shape),
            f"the pool of segments ({size:,} of {length} frames of {height}x{width} pixels)",
            "lower reward.pool or reward.segment, or let smaller frames be rendered (reward.frame_size, env_options)",
        )
        self._frames = np.zeros((size, length, *frame_shape), np.uint8)
        self._features = np.zeros((size, length, *feature_shape), feature_dtype)
        self._true_rewards = np.zeros((size, length), np.float32)
        self._digests: list[str] = [""] * size

    def __len__(self) -> int:
        return min(self.added, self.size)

    def add(self, frames: np.ndarray, features: np.ndarray, true_rewards: np.ndarray) -> None:
        """Add segments: uint8[K, L, H, W, 3], features [K, L, …], float32[K, L]. The oldest make room."""
        places = (self.added + np.arange(len(frames))) % self.size
        self._frames[places] = frames
        self._features[places] = features
        self._true_rewards[places] = true_rewards
        for place in places.tolist():
            self._digests[place] = self._digest(place)
        self.added += len(frames)

    @property
    def digests(self) -> list[str]:
        """Digests of the segments held: segments with equal ones look the same."""
        return self._digests[: len(self)]

    @property
    def looks(self) -> int:
        """Segments held that look different from each other."""
        return len(set(self.digests))

    @property
    def features(self) -> np.ndarray:
        """Features [N, L, …] of the segments held; a view."""
        return self._features[: len(self)]

    @property
    def true_returns(self) -> np.ndarray:
        """float32[N] returns of the segments under the environment's own reward."""
        returns: np.ndarray = self._true_rewards[: len(self)].sum(axis=1)
        return returns

    def segment(self, index: int) -> Segment:
        """A segment as the teacher sees it; a copy, because the ring overwrites its rows."""
        return Segment(self._frames[index].copy(), self._true_rewards[index].copy())

    def archive_to(self, archive: Archive) -> None:
        """Append the segments that are not archived yet: a checkpoint costs what is new."""
        archive.append_ring(self._arrays(), self.added, self.added - len(self))

    def restore(self, added: int, archive: Archive) -> None:
        """Take over what was archived when `added` segments had been added.

        Raises:
            ValueError, KeyError: it does not fit this pool.
            Damaged: a file of the archive is.
        """
        self.added = added
        reached = archive.read_ring(self._arrays(), added - len(self))
        if reached != added:
            raise ValueError(f"segments {reached} to {added} are missing")
        for place in range(len(self)):
            self._digests[place] = self._digest(place)

    def _digest(self, place: int) -> str:
        return Segment(self._frames[place], np.zeros(0)).digest

    def _arrays(self) -> dict[str, np.ndarray]:
        return {"frames": self._frames, "features": self._features, "true_rewards": self._true_rewards}


def whole_segments(ended: np.ndarray, length: int, count: int, rng: np.random.Generator) -> np.ndarray:
    """Choose segments of a chunk that lie within one episode each.

    Args:
        ended: bool[T, N], whether an episode ended with a step.
        length: steps in a segment.
        count: how many to choose; fewer come back if the chunk holds fewer.

    Returns:
        int[K, 2]: first step and environment of each, without repetition.
    """
    steps, envs = ended.shape
    if steps < length:
        return np.zeros((0, 2), np.int64)
    # Ends before each step, [T + 1, N]: a difference of two rows counts the ends between two steps.
    nothing = np.zeros((1, envs), np.int64)
    ends_before = np.vstack([nothing, np.cumsum(ended, axis=0)])
    # An end is allowed with the last step of a segment, and not before it.
    inner_ends = ends_before[length - 1 : steps] - ends_before[: steps - length + 1]
    candidates = np.argwhere(inner_ends == 0)
    rows = rng.choice(len(candidates), min(count, len(candidates)), replace=False)
    # In the order of the chunk, so that frames are read from front to back.
    return candidates[np.sort(rows)]
