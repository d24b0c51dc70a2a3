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

    def batches(self, values: np.ndarray, chosen: np.ndarray, size: int, rng: np.random.Generator) -> list[np.ndarray]:
        from sightline.rewards.learned.fitting import stratified_batches

        levels = values[chosen].round().astype(int)
        return [chosen[batch] for batch in stratified_batches(levels, size, rng)]

    def strata(self, values: np.ndarray, chosen: np.ndarray) -> list[np.ndarray]:
        levels = values[chosen].round()
        return [chosen[levels == level] for level in np.unique(levels)]

    def label_loss(self, returns: Sequence[Tensor], values: Tensor, segment: int) -> Tensor:
        from sightline.rewards.learned.losses import rating_loss

        return rating_loss(returns[0] / segment, values, self.levels)
