"""Success as a reward, as the environment states it: at every step (`sparse`), or at an episode's end (`success`).

success of the states of an episode   0  0  1  1  0  1   (the last one ends it)
sparse                                0  0  1  1  0  1
success                               0  0  0  0  0  1
"""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np

from sightline.config.blocks import RewardWording
from sightline.errors import BadInput
from sightline.rewards.base import Clip, Need, RewardModel
from sightline.rewards.config import RewardConfig, RewardContext, RewardSetup


class _StatedSuccessConfig(RewardConfig):
    """What both kinds have in common: they read the environment's statements, and no frames."""

    @property
    def needs_frames(self) -> bool:
        return False

    @property
    def reads_success(self) -> bool:
        return True


def _wording(name: str) -> RewardWording:
    return RewardWording(name, "What counts as success", "the environment calls it a success", "It is what you want")


class SparseConfig(_StatedSuccessConfig):
    """1 in states that the environment calls a success, otherwise 0."""

    kind: Literal["sparse"] = "sparse"

    wording: ClassVar[RewardWording] = _wording("Success as reward")

    def build(self, context: RewardContext) -> RewardSetup:
        return RewardSetup(SparseReward(), frames=False)


class SuccessConfig(_StatedSuccessConfig):
    """1 at the end of an episode that succeeded, otherwise 0."""

    kind: Literal["success"] = "success"

    wording: ClassVar[RewardWording] = _wording("Success of the episode")

    def build(self, context: RewardContext) -> RewardSetup:
        return RewardSetup(SuccessReward(), frames=False)


class SparseReward(RewardModel):
    """Success of the state reached as a reward: 1 or 0 at every step."""

    needs: frozenset[Need] = frozenset()

    def score(self, features: np.ndarray, clip: Clip) -> np.ndarray:
        if clip.success is not None:
            return np.asarray(clip.success, np.float32)
        # Some environments state success only when an episode ends. If a later step begins an episode, then one has
        # ended in this clip without a statement, so the environment makes none.
        if clip.first[1:].any():
            raise BadInput("this environment states no success (info['success']); reward.kind=sparse needs it")
        return np.zeros(clip.shape, np.float32)


class SuccessReward(RewardModel):
    """Success at the end of an episode as its only reward."""

    needs: frozenset[Need] = frozenset()

    def score(self, features: np.ndarray, clip: Clip) -> np.ndarray:
        if clip.success is None or clip.ended is None:
            raise BadInput("this environment states no success (info['success']); reward.kind=success needs it")
        return np.asarray(clip.success & clip.ended, np.float32)
