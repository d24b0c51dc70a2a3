"""Query rounds: compose queries from the pool of segments, and fit the reward model to the answers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from sightline.evaluation.statistics import spearman
from sightline.labels.types import Answer, Lesson, Outcome, Question, Segment, true_preference
from sightline.preferences.pool import SegmentPool
from sightline.preferences.sampling import AskedPairs, PoolView, choose_singles
from sightline.preferences.settings import LearnedSettings
from sightline.rewards.learned.fitting import Examples, Fit, fit
from sightline.rewards.learned.reward import EnsembleReward, LearnedReward
from sightline.rewards.novelty import flat
from sightline.runs.archive import Archives

REMEMBERED = 1_000
"""Latest pairs asked from which a k-center choice keeps its distance."""


@dataclass(frozen=True)
class QueryRound:
    """A round of queries, asked together.

    Attributes:
        due: the step at which the answers are needed.
        questions: what is asked.
        features: of each question's segments, [L, …] each.
    """

    due: int
    questions: list[Question]
    features: list[tuple[np.ndarray, ...]]

    def state(self) -> dict[str, Any]:
        """Plain data, for a checkpoint."""
        questions = [
            {"kind": q.kind, "segments": [s.state() for s in q.segments], "goal": list(q.goal), "levels": q.levels}
            for q in self.questions
        ]
        return {"due": self.due, "questions": questions, "features": self.features}

    @classmethod
    def of(cls, state: dict[str, Any]) -> QueryRound:
        """The round that `state` was taken from."""
        questions = [
            Question(q["kind"], tuple(map(Segment.of, q["segments"])), tuple(q["goal"]), int(q["levels"]))
            for q in state["questions"]
        ]
        return cls(int(state["due"]), questions, [tuple(features) for features in state["features"]])


class PreferenceLearner:
    """Preference learner: composes questions from a pool of segments, and fits a reward model to the answers.

    Args:
        config: the recipe's block.
        reward: what is shaped.
        goal: the words that the teacher is given.
        frame_shape: (H, W, 3) of the frames that it is shown.
        seed: of everything drawn here.

    Attributes:
        questions: how many were asked so far and replied to, in whatever way.
        kept: how many of the answers taught something.
        asked: digests of the segments of every question that need not be asked again.
        pool: segments of the recent past to ask about.
        examples: labels so far, with the features of their segments.
        memory: what the kind of feedback remembers beside them.
    """

    def __init__(
        self,
        config: LearnedSettings,
        reward: LearnedReward,
        goal: tuple[str, ...],
        frame_shape: tuple[int, ...],
        seed: int,
    ) -> None:
        self.config, self.reward = config, reward
        self.pool = SegmentPool(config.pool, config.segment, frame_shape, reward.feature_shape, reward.feature_dtype)
        self.examples = Examples()
        self.questions, self.kept = 0, 0
        self.asked: list[tuple[str, ...]] = []
        self._goal, self._seed = goal, seed
        self.memory: Any = config.feedback.memory()

    def compose(self, count: int, due: int) -> QueryRound:
        """Choose the questions of a round; fewer come back if there is less to ask about."""
        # Seeded by the questions so far: a resumed run composes the same round, and no generator needs saving.
        rng = np.random.default_rng([self._seed, self.questions])
        feedback = self.config.feedback
        composed = feedback.compose(self, count, rng)
        questions = [
            Question(feedback.question, segments, self._goal, feedback.question_levels) for segments, _ in composed
        ]
        return QueryRound(due, questions, [features for _, features in composed])

    def learn(self, asked: QueryRound, answers: Sequence[Answer | None]) -> dict[str, float | None]:
        """Shape the reward by a round's answers, None where none was given; returns how it went, for the metrics."""
        told = [(q, f, a) for q, f, a in zip(asked.questions, asked.features, answers, strict=True) if a is not None]
        # A failed question counts as never asked: it costs no budget, and its segments may be asked about again.
        done = [question for question, _, answer in told if answer.outcome is not Outcome.FAILED]
        self.questions += len(done)
        self.asked += [tuple(segment.digest for segment in question.segments) for question in done]
        usable = [
            (q, f, a.value) for q, f, a in told if a.value is not None and self.config.feedback.teaches(a.outcome)
        ]
        self.kept += len(usable)
        numbers = self._count([(question, answer) for question, _, answer in told])
        for _, features, value in usable:
            self.examples.add(features, value)
        return numbers | self._shape(usable) if len(self.examples) else numbers

    def learn_lessons(self, lessons: Sequence[Lesson]) -> dict[str, float | None]:
        """Shape the reward by labels that exist, which cost no question; their pairs are not asked about again."""
        for lesson in lessons:
            self.examples.add(lesson.features, lesson.value)
            self.asked.append(lesson.segments)
        return {"labels/existing": len(lessons)} | self._shape([])

    def _shape(self, usable: Sequence[tuple[Question, tuple[np.ndarray, ...], float]]) -> dict[str, float | None]:
        numbers = self.config.feedback.learn(self, usable)
        # All segments ever labelled: in the end the recent past alone is too uniform to set a scale.
        self.reward.fit_normalizer(self.examples.steps())
        steps = self.pool.features.reshape(-1, *self.reward.feature_shape)
        returns = self.reward.rewards_of(steps).reshape(len(self.pool), self.config.segment).sum(axis=1)
        return numbers | {"reward/rank_correlation": spearman(returns, self.pool.true_returns)}

    def fit(self) -> dict[str, float | None]:
        """Fit the reward's networks to all labels so far; gives metrics."""
        assert isinstance(self.reward, EnsembleReward)
        return _numbers_of(
            fit(self.reward, self.examples, self.config.feedback, self.config.segment, self._seed + self.questions)
        )

    def state(self, archives: Archives) -> dict[str, Any]:
        """Everything asked and learned, for a checkpoint; segments and labels are appended to archives."""
        self.pool.archive_to(archives["segments"])
        self.examples.archive_to(archives["examples"])
        return {
            "added": self.pool.added,
            "counts": (self.questions, self.kept),
            "asked": self.asked,
            "reward": self.reward.state_dict(),
            "memory": None if self.memory is None else self.memory.state(),
        }

    def restore(self, state: dict[str, Any], archives: Archives) -> None:
        """Take over what `state` gave, and what was archived before it."""
        self.pool.restore(int(state["added"]), archives["segments"])
        self.examples.restore(archives["examples"])
        self.asked = [tuple(digests) for digests in state["asked"]]
        self.questions, self.kept = state["counts"]
        self.reward.load_state_dict(state["reward"])
        if self.memory is not None:
            self.memory.restore(state["memory"])

    # -- pairs and single segments -------------------------------------------------------------------------------

    def view(self) -> PoolView:
        """The pool, and what each network says of its segments, for choosing pairs."""
        features = self.pool.features
        returns = None
        if isinstance(self.reward, EnsembleReward) and self.reward.ready:
            steps = self.reward.members(features.reshape(-1, *self.reward.feature_shape))
            returns = steps.reshape(len(steps), len(features), -1).sum(axis=2)
        return PoolView(self.pool.digests, _flat(features), returns)

    def choose_singles(self, count: int, rng: np.random.Generator) -> np.ndarray:
        """int[K, 1]: places of segments that were not asked about yet."""
        return choose_singles(count, self.view(), rng, {digest for (digest,) in self.asked})[:, None]

    def asked_pairs(self, with_features: bool) -> AskedPairs:
        """Pairs that were asked before, with the features of the latest if wanted."""
        digests = [(pair[0], pair[1]) for pair in self.asked]
        if not with_features or not len(self.examples):
            return AskedPairs(digests)
        latest = self.examples.features[-REMEMBERED:]
        return AskedPairs(digests, np.stack([_flat(np.stack(pair)) for pair in latest]))

    def _count(self, told: list[tuple[Question, Answer]]) -> dict[str, float | None]:
        outcomes = Counter(answer.outcome.value for _, answer in told)
        numbers: dict[str, float | None] = {"labels/asked": self.questions, "labels/kept": self.kept}
        numbers |= {f"labels/{outcome}": outcomes[outcome.value] / len(told) for outcome in Outcome if told}
        # Only decided answers about pairs that the ground truth decides as well: ties say nothing about accuracy.
        judged = [
            answer.value == truth
            for question, answer in told
            if question.kind == "compare" and answer.outcome in (Outcome.FIRST, Outcome.SECOND)
            for truth in [true_preference(question.segments[0], question.segments[1])]
            if truth in (0.0, 1.0)
        ]
        numbers["labels/accuracy"] = float(np.mean(judged)) if judged else None
        # The time of model calls alone: an answer without an exchange was not asked of a model.
        seconds = [answer.seconds for _, answer in told if answer.exchanges]
        numbers["labels/seconds"] = float(np.mean(seconds)) if seconds else None
        return numbers


def _flat(features: np.ndarray) -> np.ndarray:
    """Flat features [N, L, …] -> float32[N, D], between which distances are measured."""
    return flat(features).astype(np.float32)


def _numbers_of(fitted: Fit) -> dict[str, float | None]:
    numbers = {
        "reward/epochs": float(fitted.epochs),
        "reward/loss": fitted.loss,
        "reward/held_out_loss": fitted.held_out_loss,
        "reward/accuracy": fitted.accuracy,
        "reward/held_out_accuracy": fitted.held_out_accuracy,
    }
    # JSON has no NaN; nothing held out, or no decided pair, is a missing value.
    return {name: None if np.isnan(value) else value for name, value in numbers.items()}
