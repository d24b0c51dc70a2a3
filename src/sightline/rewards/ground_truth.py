"""The environment's own reward, as a reward model like every other: the control of every experiment."""

from __future__ import annotations

import numpy as np

from sightline.errors import BadInput
from sightline.rewards.base import Clip, Need, RewardModel


class GroundTruthReward(RewardModel):
    """The environment's own reward times a scale."""

    needs: frozenset[Need] = frozenset()

    def __init__(self, scale: float = 1.0) -> None:
        self.scale = scale

    def score(self, features: np.ndarray, clip: Clip) -> np.ndarray:
        if clip.env_reward is None:
            raise BadInput("these clips hold no reward of the environment's own (Clip.env_reward)")
        return np.asarray(clip.env_reward * self.scale, np.float32)
