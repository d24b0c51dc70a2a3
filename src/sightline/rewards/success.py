"""The success reward: 1 at the end of an episode that succeeded, otherwise 0."""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np

from sightline.config.blocks import RewardWording
from sightline.errors import BadInput
from sightline.rewards.base import Clip, Need, RewardModel
from sightline.rewards.building import RewardConfig, RewardContext, RewardSetup


class SuccessConfig(RewardConfig):
    """1 at the end of an episode that succeeded, otherwise 0."""

    kind: Literal["success"] = "success"

    wording: ClassVar[RewardWording] = RewardWording(
        "Success of the episode",
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
        return RewardSetup(SuccessReward(), frames=False)


class SuccessReward(RewardModel):
    """Success at the end of an episode as its only reward."""

    needs: frozenset[Need] = frozenset()

    def score(self, features: np.ndarray, clip: Clip) -> np.ndarray:
        if clip.success is None or clip.ended is None:
            raise BadInput("this environment states no success (info['success']); reward.kind=success needs it")
        return np.asarray(clip.success & clip.ended, np.float32)
