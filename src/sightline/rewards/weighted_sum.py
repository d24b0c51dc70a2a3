"""A weighted sum of rewards."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from sightline.config.basics import Strict
from sightline.config.recipe import REWARD, RewardBlock
from sightline.models.encoder_base import Encoder
from sightline.rewards.base import Clip, RewardModel, added_costs, common_scope, common_shrinker
from sightline.rewards.config import CombinedConfig, RewardContext, RewardSetup


class Term(Strict):
    """A term of a weighted sum."""

    weight: float = 1.0
    reward: Annotated[RewardBlock, REWARD] = Field(default_factory=REWARD.make_default)


class WeightedSumConfig(CombinedConfig):
    """A weighted sum of rewards: `terms: [{weight: 1, reward: {kind: zero_shot}}, …]`."""

    kind: Literal["sum"] = "sum"
    terms: Annotated[tuple[Term, ...], Field(min_length=1)]

    def parts(self) -> dict[str, RewardBlock]:
        return {f"terms.{number}": term.reward for number, term in enumerate(self.terms)}

    @property
    def judges_single_frames(self) -> bool:
        return all(term.reward.judges_single_frames for term in self.terms)

    def build(self, context: RewardContext) -> RewardSetup:
        setups = self.build_parts(context)
        model = WeightedSum([setup.model for setup in setups], [term.weight for term in self.terms])
        return self.combined(model, *setups)


class WeightedSum(RewardModel):
    """A weighted sum of reward models.

    Args:
        models: the reward models.
        weights: one for each.
    """

    def __init__(self, models: Sequence[RewardModel], weights: Sequence[float]) -> None:
        self.models = tuple(models)
        self.weights = tuple(weights)
        self.needs = frozenset().union(*(model.needs for model in models))
        self.window = max(model.window for model in models)
        self.scope = common_scope(models)
        self._shrink = common_shrinker(models)

    @property
    def judges_stills(self) -> bool:
        return all(model.judges_stills for model in self.models)

    def shrink_frames(self, frames: np.ndarray) -> np.ndarray:
        return self._shrink(frames)

    def doubts(self, frames: np.ndarray) -> list[str]:
        return [line for model in self.models for line in model.doubts(frames)]

    def compute_elsewhere(self, elsewhere: Callable[[Encoder], Encoder]) -> bool:
        # Of all, and not only of the first that has one.
        moves = [model.compute_elsewhere(elsewhere) for model in self.models]
        return any(moves)

    def costs(self) -> dict[str, float]:
        return added_costs(self.models)

    def reward(self, clip: Clip) -> np.ndarray:
        total = np.zeros(clip.shape, np.float32)
        for model, weight in zip(self.models, self.weights, strict=True):
            rewards = np.asarray(model.reward(clip), np.float32)
            total += np.float32(weight) * rewards
        return total
