"""Feedback by ratings: the quality of a segment, on a few levels (ERL-VLM, Luu et al., ICML 2025)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np
from pydantic import Field

from sightline.preferences.feedback.base import FeedbackConfig, Learner

if TYPE_CHECKING:
    from torch import Tensor

    from sightline.labels.types import QuestionKind


class RatingsConfig(FeedbackConfig):
    """Ratings: the quality of a segment, on a few levels (ERL-VLM, Luu et al., ICML 2025)."""

    kind: Literal["ratings"] = "ratings"
    levels: int = Field(default=3, ge=2, le=5)

    question: ClassVar[QuestionKind] = "rate"
    noun: ClassVar[str] = "ratings"
    bounded: ClassVar[bool] = True

    @property
    def question_levels(self) -> int:
        return self.levels

    def facts(self) -> str:
        return f"ratings, {self.levels} levels"

    def choose(self, learner: Learner, count: int, rng: np.random.Generator) -> np.ndarray:
        return learner.choose_singles(count, rng)

    def batches(self, values: np.ndarray, indices: np.ndarray, size: int, rng: np.random.Generator) -> list[np.ndarray]:
        from sightline.rewards.learned.fitting import stratified_batches

        levels = values[indices].round().astype(int)
        return [indices[batch] for batch in stratified_batches(levels, size, rng)]

    def strata(self, values: np.ndarray, indices: np.ndarray) -> list[np.ndarray]:
        # By level: good segments are rare at first, and would hardly count.
        levels = values[indices].round()
        return [indices[levels == level] for level in np.unique(levels)]

    def label_loss(self, returns: Sequence[Tensor], values: Tensor, segment: int) -> Tensor:
        from sightline.rewards.learned.losses import rating_loss

        # Networks are bounded to [0, 1] at every step, and so is their mean over a segment.
        mean_rewards = returns[0] / segment
        return rating_loss(mean_rewards, values, self.levels)
