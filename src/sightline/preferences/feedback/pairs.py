"""Feedback in pairs: a preference for the segment that is nearer to the goal (Christiano et al., NeurIPS 2017)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np
from pydantic import Field, PositiveInt

from sightline.preferences.feedback.base import FeedbackConfig, Learner
from sightline.preferences.sampling import PairSampler, choose_pairs

if TYPE_CHECKING:
    from torch import Tensor

    from sightline.labels.types import Outcome


class PairsConfig(FeedbackConfig):
    """Preferences between two segments: the one nearer to the goal (Christiano et al., 2017)."""

    kind: Literal["pairs"] = "pairs"
    sampler: PairSampler = "uniform"
    candidates: PositiveInt = 10
    """Candidate pairs per question, from which the active samplers choose."""
    loss: Literal["cross_entropy", "noise_aware", "symmetric"] = "cross_entropy"
    """`noise_aware` assumes that a share `noise` of the labels is wrong; `symmetric` adds reverse cross-entropy."""
    noise: float = Field(default=0.2, gt=0, lt=0.5)
    """Share of wrong labels that `noise_aware` assumes."""
    ties: bool = True
    """Learn from pairs that were called equal (target one half); otherwise they are set aside."""

    noun: ClassVar[str] = "pairs"
    orders: ClassVar[bool] = True

    def facts(self) -> str:
        return f"pairs, {self.sampler.replace('_', ' ')}"

    def choose(self, learner: Learner, count: int, rng: np.random.Generator) -> np.ndarray:
        # Only k-center samplers measure how far a pair is from those that were asked before.
        previous = learner.asked_pairs(with_features=self.sampler.startswith("k_center"))
        return choose_pairs(self.sampler, count, learner.view(), rng, self.candidates, previous)

    def teaches(self, outcome: Outcome) -> bool:
        return self.ties or outcome.value != "equal"

    def label_loss(self, returns: Sequence[Tensor], values: Tensor, segment: int) -> Tensor:
        from sightline.rewards.learned.losses import preference_loss

        return preference_loss(returns[0], returns[1], values, self.loss, self.noise)
