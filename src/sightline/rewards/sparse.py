"""The sparse reward: 1 in states that the environment calls a success, otherwise 0."""

from __future__ import annotations

import numpy as np

from sightline.errors import BadInput
from sightline.rewards.base import Clip, Need, RewardModel


class SparseReward(RewardModel):
    """Success as a reward."""

    needs: frozenset[Need] = frozenset()

    def score(self, features: np.ndarray, clip: Clip) -> np.ndarray:
        if clip.success is None:
            raise BadInput("this environment states no success (info['success']); reward.kind=sparse needs it")
        return np.asarray(clip.success, np.float32)
