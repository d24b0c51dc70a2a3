"""The sparse reward: 1 in states that the environment calls a success, otherwise 0."""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np

from sightline.config.blocks import RewardWording
from sightline.errors import BadInput
from sightline.rewards.base import Clip, Need, RewardModel
from sightline.rewards.building import RewardConfig, RewardContext, RewardSetup


class SparseConfig(RewardConfig):
    """1 in states that the environment calls a success, otherwise 0."""

    kind: Literal["sparse"] = "sparse"

    wording: ClassVar[RewardWording] = RewardWording(
        "Success as reward",
        "What counts as success",
        "the environment calls it a success",
        "It is what you want",
    )

    @property
    def needs_frames(self) -> bool:
        return False

    @property
    def reads_success(self) -> bool:
        return True

    def build(self, context: RewardContext) -> RewardSetup:
        return RewardSetup(SparseReward(), frames=False)


class SparseReward(RewardModel):
    """Success as a reward."""

    needs: frozenset[Need] = frozenset()

    def score(self, features: np.ndarray, clip: Clip) -> np.ndarray:
        if clip.success is not None:
            return np.asarray(clip.success, np.float32)
        # Some environments state it only when an episode ends; one of these has ended where another begins.
        if clip.first[1:].any():
            raise BadInput("this environment states no success (info['success']); reward.kind=sparse needs it")
        return np.zeros(clip.shape, np.float32)
