"""Recipe blocks of feedback: the query, and how a reward model learns from its answers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import numpy as np

from sightline.config.basics import Strict
from sightline.errors import blamed
from sightline.labels.types import Outcome, QuestionKind
from sightline.preferences.pool import SegmentPool
from sightline.preferences.sampling import AskedPairs, PoolView
from sightline.rewards.learned.config import FittingConfig, RewardNetConfig

if TYPE_CHECKING:
    from torch import Tensor

    from sightline.rewards.learned.reward import LearnedReward


class Learner(Protocol):
    """Interface of the preference learner to a kind of feedback (`sightline.preferences.rounds.PreferenceLearner`).

    Attributes:
        pool: segments of the recent past to ask about.
        reward: what is shaped.
        memory: what `FeedbackConfig.memory` gave.
        asked: digests of the segments of every question so far.
    """

    pool: SegmentPool
    memory: Any
    asked: list[tuple[str, ...]]

    @property
    def reward(self) -> LearnedReward: ...

    def view(self) -> PoolView:
        """The pool, and the returns that each network predicts for its segments."""
        ...

    def choose_singles(self, count: int, rng: np.random.Generator) -> np.ndarray:
        """int[K, 1]: places of segments that were not asked about yet."""
        ...

    def asked_pairs(self, with_features: bool) -> AskedPairs:
        """Pairs that were asked before."""
        ...

    def fit(self) -> dict[str, float | None]:
        """Fit the reward's networks to all labels so far; gives metrics."""
        ...


class FeedbackConfig(Strict):
    """Base of all feedback blocks: the queries to a teacher, and how the reward model learns from its answers."""

    kind: str
    question: ClassVar[QuestionKind] = "compare"
    noun: ClassVar[str] = "questions"
    """Plural of what is asked about."""
    bounded: ClassVar[bool] = False
    """True if the reward networks' outputs are bounded to [0, 1]."""
    orders: ClassVar[bool] = False
    """True if a label orders two segments (a preference), so that accuracy can be measured."""

    @property
    def question_levels(self) -> int:
        """Levels of a rating; 0 for other questions."""
        return 0

    def check(self, network: RewardNetConfig, segment: int) -> None:
        """Refuse a reward network, or steps in a segment, that do not go with this feedback.

        Raises:
            ValueError: in one line.
        """

    def facts(self) -> str:
        """The feedback in a few words."""
        return self.kind

    def build_reward(self, network: RewardNetConfig, fitting: FittingConfig, **options: Any) -> LearnedReward:
        """Reward model for this feedback, before the first answer; options are those of `EnsembleReward`."""
        from sightline.rewards.learned.reward import EnsembleReward

        return EnsembleReward(network, fitting, bounded=self.bounded, **options)

    def memory(self) -> Any:
        """State that a learner keeps for this feedback beside labels: an object with `state` and `restore`, or None."""
        return None

    def choose(self, learner: Learner, count: int, rng: np.random.Generator) -> np.ndarray:
        """int[K, segments of a question]: places in the learner's pool to ask about, at most `count` rows."""
        raise NotImplementedError

    def compose(
        self, learner: Learner, count: int, rng: np.random.Generator
    ) -> list[tuple[tuple[Any, ...], tuple[np.ndarray, ...]]]:
        """The segments of each question and their features, [L, …] each."""
        questions = []
        with blamed(self, "choose"):
            chosen = self.choose(learner, count, rng)
        for places in chosen:
            segments = tuple(learner.pool.segment(i) for i in places)
            # Copies: the pool overwrites its rows, and these are kept as training examples.
            features = tuple(learner.pool.features[i].copy() for i in places)
            questions.append((segments, features))
        return questions

    def teaches(self, outcome: Outcome) -> bool:
        """True if an answer with this outcome is learned from."""
        return True

    def learn(
        self, learner: Learner, labels: Sequence[tuple[Any, tuple[np.ndarray, ...], float]]
    ) -> dict[str, float | None]:
        """Shape the learner's reward by all labels so far; `labels` are this round's (question, features, value)."""
        return learner.fit()

    def batches(self, values: np.ndarray, indices: np.ndarray, size: int, rng: np.random.Generator) -> list[np.ndarray]:
        """Minibatches of one pass over the labels with these indices, as indices."""
        order = rng.permutation(indices)
        return [order[start : start + size] for start in range(0, len(order), size)]

    def strata(self, values: np.ndarray, indices: np.ndarray) -> list[np.ndarray]:
        """The labels with these indices, in groups that count equally when the loss is averaged."""
        return [indices]

    def label_loss(self, returns: Sequence[Tensor], values: Tensor, segment: int) -> Tensor:
        """float[M]: each network's loss, averaged over B labels.

        Args:
            returns: for each segment of a question, float[M, B]: the networks' rewards, summed over its steps.
            values: float[B], the labels.
            segment: steps in a segment.
        """
        raise NotImplementedError
