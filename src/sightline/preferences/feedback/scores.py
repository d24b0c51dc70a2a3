"""Feedback by scores: the quality of a segment, from 0 to 1."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np

from sightline.preferences.feedback.base import FeedbackConfig, Learner

if TYPE_CHECKING:
    from torch import Tensor

    from sightline.labels.types import QuestionKind


class ScoresConfig(FeedbackConfig):
    """Scores: the quality of a segment, from 0 to 1."""

    kind: Literal["scores"] = "scores"

    question: ClassVar[QuestionKind] = "score"
    noun: ClassVar[str] = "scores"
    bounded: ClassVar[bool] = True

    def choose(self, learner: Learner, count: int, rng: np.random.Generator) -> np.ndarray:
        return learner.choose_singles(count, rng)

    def label_loss(self, returns: Sequence[Tensor], values: Tensor, segment: int) -> Tensor:
        from sightline.rewards.learned.losses import score_loss

        # Networks are bounded to [0, 1] at every step, and so is their mean over a segment.
        mean_rewards = returns[0] / segment
        return score_loss(mean_rewards, values)
