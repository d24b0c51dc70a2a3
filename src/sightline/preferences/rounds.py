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
        due_step: the step at which the answers are needed.
        questions: what is asked.
        features: of each question's segments, [L, …] each.
    """

    due_step: int
    questions: list[Question]
    features: list[tuple[np.ndarray, ...]]

    def state(self) -> dict[str, Any]:
        """Plain data, for a checkpoint."""
        questions = []
        for question in self.questions:
            segments = [segment.state() for segment in question.segments]
            goal = list(question.goal)
            questions.append({"kind": question.kind, "segments": segments, "goal": goal, "levels": question.levels})
        return {"due": self.due_step, "questions": questions, "features": self.features}

    @classmethod
    def of(cls, state: dict[str, Any]) -> QueryRound:
        """The round that `state` was taken from."""
        questions = []
        for entry in state["questions"]:
            segments = tuple(map(Segment.of, entry["segments"]))
            questions.append(Question(entry["kind"], segments, tuple(entry["goal"]), int(entry["levels"])))
        features = [tuple(arrays) for arrays in state["features"]]
        return cls(int(state["due"]), questions, features)


@dataclass(frozen=True)
class _Labelled:
    """A question of a round with its answer, and the features of its segments, [L, …] each."""

    question: Question
    features: tuple[np.ndarray, ...]
    answer: Answer


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
        usable_answers: how many of the answers taught something.
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
        self.config = config
        self.reward = reward
        self.pool = SegmentPool(config.pool, config.segment, frame_shape, reward.feature_shape, reward.feature_dtype)
        self.examples = Examples()
        self.questions = 0
        self.usable_answers = 0
        self.asked: list[tuple[str, ...]] = []
        self.memory: Any = config.feedback.memory()
        self._goal = goal
        self._seed = seed

    def compose(self, count: int, due_step: int) -> QueryRound:
        """Choose the questions of a round; fewer come back if there is less to ask about."""
        # Seeded by the questions so far: a resumed run composes the same round, and no generator needs saving.
        rng = np.random.default_rng([self._seed, self.questions])
        feedback = self.config.feedback
        query_round = QueryRound(due_step, [], [])
        for segments, features in feedback.compose(self, count, rng):
            question = Question(feedback.question, segments, self._goal, feedback.question_levels)
            query_round.questions.append(question)
            query_round.features.append(features)
        return query_round

    def learn(self, query_round: QueryRound, answers: Sequence[Answer | None]) -> dict[str, float | None]:
        """Shape the reward by a round's answers.

        Args:
            query_round: what was asked.
            answers: one for each question, None where none was given.

        Returns:
            How it went, for the metrics.
        """
        labelled = []
        for question, features, answer in zip(query_round.questions, query_round.features, answers, strict=True):
            if answer is not None:
                labelled.append(_Labelled(question, features, answer))

        # A failed question counts as never asked: it costs no budget, and its segments may be asked about again.
        for label in labelled:
            if label.answer.outcome is not Outcome.FAILED:
                self.questions += 1
                self.asked.append(tuple(segment.digest for segment in label.question.segments))

        # Some answers teach nothing: "I cannot say", or a tie where the feedback sets ties aside.
        usable = []
        for label in labelled:
            value = label.answer.value
            if value is not None and self.config.feedback.teaches(label.answer.outcome):
                usable.append((label.question, label.features, value))
                self.examples.add(label.features, value)
        self.usable_answers += len(usable)

        metrics = self._label_metrics(labelled)
        if len(self.examples):
            metrics |= self._shape_reward(usable)
        return metrics

    def learn_lessons(self, lessons: Sequence[Lesson]) -> dict[str, float | None]:
        """Shape the reward by labels that exist, which cost no question; their pairs are not asked about again."""
        for lesson in lessons:
            self.examples.add(lesson.features, lesson.value)
            self.asked.append(lesson.segments)
        return {"labels/existing": len(lessons)} | self._shape_reward([])

    def fit(self) -> dict[str, float | None]:
        """Fit the reward's networks to all labels so far; gives metrics."""
        assert isinstance(self.reward, EnsembleReward)
        # Another order of the minibatches in every round, and the same one in a resumed run.
        seed = self._seed + self.questions
        return _fit_metrics(fit(self.reward, self.examples, self.config.feedback, self.config.segment, seed))

    def state(self, archives: Archives) -> dict[str, Any]:
        """Everything asked and learned, for a checkpoint; segments and labels are appended to archives."""
        self.pool.archive_to(archives["segments"])
        self.examples.archive_to(archives["examples"])
        return {
            "added": self.pool.added,
            "counts": (self.questions, self.usable_answers),
            "asked": self.asked,
            "reward": self.reward.state_dict(),
            "memory": None if self.memory is None else self.memory.state(),
        }

    def restore(self, state: dict[str, Any], archives: Archives) -> None:
        """Take over what `state` gave, and what was archived before it."""
        self.pool.restore(int(state["added"]), archives["segments"])
        self.examples.restore(archives["examples"])
        self.asked = [tuple(digests) for digests in state["asked"]]
        self.questions, self.usable_answers = state["counts"]
        self.reward.load_state_dict(state["reward"])
        if self.memory is not None:
            self.memory.restore(state["memory"])

    # -- what kinds of feedback choose questions from --------------------------------------------------------------

    def view(self) -> PoolView:
        """The pool, and the returns that each network predicts for its segments, for choosing pairs."""
        features = self.pool.features
        returns = None
        if isinstance(self.reward, EnsembleReward) and self.reward.ready:
            # [N, L, …] -> rewards of all steps [M, N * L] -> returns [M, N]
            rewards = self.reward.members(features.reshape(-1, *self.reward.feature_shape))
            returns = rewards.reshape(len(rewards), len(features), -1).sum(axis=2)
        return PoolView(self.pool.digests, _flat(features), returns)

    def choose_singles(self, count: int, rng: np.random.Generator) -> np.ndarray:
        """int[K, 1]: places of segments that were not asked about yet."""
        digests = {digest for (digest,) in self.asked}
        return choose_singles(count, self.view(), rng, digests)[:, None]

    def asked_pairs(self, with_features: bool) -> AskedPairs:
        """Pairs that were asked before, with the features of the latest if wanted."""
        digests = [(pair[0], pair[1]) for pair in self.asked]
        if not with_features or not len(self.examples):
            return AskedPairs(digests)
        latest = self.examples.features[-REMEMBERED:]
        return AskedPairs(digests, np.stack([_flat(np.stack(pair)) for pair in latest]))

    # -- shaping the reward, and the metrics -----------------------------------------------------------------------

    def _shape_reward(
        self, usable: Sequence[tuple[Question, tuple[np.ndarray, ...], float]]
    ) -> dict[str, float | None]:
        """Have the feedback learn from all labels, of which `usable` are new, and set the scale of the reward."""
        metrics = dict(self.config.feedback.learn(self, usable))

        # The scale comes from all segments ever labelled: in the end the recent past alone is too uniform to set one.
        self.reward.fit_normalizer(self.examples.steps())

        # Does the reward order the segments of the recent past as the environment's own reward does?
        steps = self.pool.features.reshape(-1, *self.reward.feature_shape)
        rewards = self.reward.rewards_of(steps).reshape(len(self.pool), self.config.segment)
        metrics["reward/rank_correlation"] = spearman(rewards.sum(axis=1), self.pool.true_returns)
        return metrics

    def _label_metrics(self, labelled: Sequence[_Labelled]) -> dict[str, float | None]:
        """Metrics of a round's labels."""
        metrics: dict[str, float | None] = {"labels/asked": self.questions, "labels/kept": self.usable_answers}

        # Shares of the outcomes.
        counts = Counter(label.answer.outcome.value for label in labelled)
        if labelled:
            for outcome in Outcome:
                metrics[f"labels/{outcome}"] = counts[outcome.value] / len(labelled)

        # Accuracy is of answers that decide a pair which the ground truth decides as well: ties say nothing about it.
        agreements = []
        for label in labelled:
            if label.question.kind == "compare" and label.answer.outcome in (Outcome.FIRST, Outcome.SECOND):
                truth = true_preference(label.question.segments[0], label.question.segments[1])
                if truth in (0.0, 1.0):
                    agreements.append(label.answer.value == truth)
        metrics["labels/accuracy"] = float(np.mean(agreements)) if agreements else None

        # Seconds are those of model calls alone: an answer without an exchange was not asked of a model.
        seconds = [label.answer.seconds for label in labelled if label.answer.exchanges]
        metrics["labels/seconds"] = float(np.mean(seconds)) if seconds else None
        return metrics


def _flat(features: np.ndarray) -> np.ndarray:
    """Flat features [N, L, …] -> float32[N, D], between which distances are measured."""
    return flat(features).astype(np.float32)


def _fit_metrics(result: Fit) -> dict[str, float | None]:
    """Metrics of a fit. JSON has no NaN: where nothing was held out, or no pair is decided, a value is None."""
    values = {
        "reward/epochs": float(result.epochs),
        "reward/loss": result.loss,
        "reward/held_out_loss": result.held_out_loss,
        "reward/accuracy": result.accuracy,
        "reward/held_out_accuracy": result.held_out_accuracy,
    }
    metrics: dict[str, float | None] = {}
    for name, value in values.items():
        metrics[name] = None if np.isnan(value) else value
    return metrics
