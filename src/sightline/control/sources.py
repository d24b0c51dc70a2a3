"""Where the rewards of collected transitions come from."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np

from sightline.control.replay import CommittedReplayBuffer
from sightline.rewards.base import RewardModel
from sightline.runs.archive import Archives

Aside = dict[str, np.ndarray]
"""What a source keeps of a chunk until its rewards are due."""


class Source:
    """Pays for transitions, in three moments: when a chunk ends something may be set aside; then the chunk is read, in
    the background; and one chunk later it is paid for.

    This one pays what the environment itself says (or whether the task is done, if that is what was collected).

    Args:
        buffer: whose rows are paid for.
        scale: factor on the environment's reward.

    Attributes:
        reads: what `read` is given: the `frames` of the states that were reached, those `states`, or `nothing`.
    """

    reads: Literal["frames", "states", "nothing"] = "nothing"

    def __init__(self, buffer: CommittedReplayBuffer, scale: float = 1.0) -> None:
        self.buffer = buffer
        self._scale = scale

    def set_aside(self, frames: np.ndarray | None, rows: np.ndarray) -> Aside:
        """Called at the end of a chunk; frames are uint8[T, N, H, W, 3] and rows int[T]."""
        return {}

    def read(self, seen: np.ndarray) -> np.ndarray:
        """[T·N, …] -> features [T·N, …]; runs in the background and must change nothing."""
        return np.zeros((len(seen), 0), np.float32)

    def pay(self, features: np.ndarray, rows: np.ndarray, aside: Aside) -> np.ndarray:
        """Features [T, N, …] of a chunk -> float32[T, N] rewards."""
        return np.asarray(self.buffer.true_rewards[rows] * self._scale, np.float32)

    def state(self, archives: Archives) -> dict[str, Any]:
        """What must be in a checkpoint; what only grows is appended to an archive instead."""
        return {}

    def restore(self, state: dict[str, Any], archives: Archives) -> None:
        """Take over what `state` gave, and what was archived before it."""


class ModelSource(Source):
    """Pays what a reward model says."""

    def __init__(self, buffer: CommittedReplayBuffer, model: RewardModel) -> None:
        super().__init__(buffer)
        self.model = model
        self.reads = model.reads

    def read(self, seen: np.ndarray) -> np.ndarray:
        return self.model.embed(seen)

    def pay(self, features: np.ndarray, rows: np.ndarray, aside: Aside) -> np.ndarray:
        steps, envs = features.shape[:2]
        return self.model.score(features.reshape(steps * envs, *features.shape[2:])).reshape(steps, envs)
