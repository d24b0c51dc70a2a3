"""The environment's own reward, as a reward model like every other: the control of every experiment."""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np
from pydantic import Field

from sightline.config.blocks import RewardWording
from sightline.errors import BadInput
from sightline.rewards.base import Clip, Need, RewardModel
from sightline.rewards.config import RewardConfig, RewardContext, RewardSetup


class GroundTruthConfig(RewardConfig):
    """The environment's own reward, through the same path as every other."""

    kind: Literal["ground_truth"] = "ground_truth"
    scale: float = Field(default=1.0, gt=0)
    """Factor of the rewards that the learner gets; reported rewards are not scaled."""

    wording: ClassVar[RewardWording] = RewardWording(
        "Environment reward",
        "What the environment rewards",
        "the environment pays more",
        "Its reward is what you want",
    )

    @property
    def needs_frames(self) -> bool:
        return False

    @property
    def reads_own_reward(self) -> bool:
        return True

    def build(self, context: RewardContext) -> RewardSetup:
        return RewardSetup(GroundTruthReward(self.scale), frames=False)


class GroundTruthReward(RewardModel):
    """The environment's own reward times a scale."""

    needs: frozenset[Need] = frozenset()

    def __init__(self, scale: float = 1.0) -> None:
        self.scale = scale

    def score(self, features: np.ndarray, clip: Clip) -> np.ndarray:
        if clip.env_reward is None:
            raise BadInput("these clips hold no reward of the environment's own (Clip.env_reward)")
        return np.asarray(clip.env_reward * self.scale, np.float32)
