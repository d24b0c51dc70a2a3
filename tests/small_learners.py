"""Learners of a user's own, for tests."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from stable_baselines3 import PPO


@dataclass(frozen=True)
class Update:
    """What an update learned from: arrays [T, N, …] of the rollout buffer, and the policy before it."""

    arrays: dict[str, np.ndarray]
    policy: Any


class Recorded(PPO):
    """PPO that keeps what each of its updates learns from."""

    updates: ClassVar[list[Update]] = []

    def train(self) -> None:
        names = ("observations", "actions", "rewards", "episode_starts", "values", "advantages", "returns")
        arrays = {name: getattr(self.rollout_buffer, name).copy() for name in names}
        self.updates.append(Update(arrays, copy.deepcopy(self.policy)))
        super().train()
