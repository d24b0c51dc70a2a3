"""What is asked, and what is learned from the answers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from sightline.config import LadderConfig, LearnedConfig, PairsConfig, RatingsConfig
from sightline.evaluation.statistics import spearman
from sightline.labels.types import Answer, Outcome, Question, QuestionKind, Segment, true_preference
from sightline.preferences.pool import SegmentPool
from sightline.preferences.sampling import AskedPairs, PoolView, choose_pairs, choose_singles
from sightline.rewards.learned.fitting import Examples, Fit, fit
from sightline.rewards.learned.ladder import Candidate, Ladder
from sightline.rewards.learned.reward import EnsembleReward, LadderReward
from sightline.rewards.novelty import flat
from sightline.runs.archive import Archives

KINDS: dict[str, QuestionKind] = {"pairs": "compare", "ladder": "compare", "ratings": "rate", "scores": "score"}
"""What is asked for each kind of feedback."""
REMEMBERED = 1_000
"""Pairs asked before that a k-center choice keeps its distance from: the latest."""


@dataclass(frozen=True)
class QueryRound:
    """Questions asked together.

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
    """Composes questions from a pool of segments, and shapes a reward by the answers.

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
    """

    def __init__(
        self,
        config: LearnedConfig,
        reward: EnsembleReward | LadderReward,
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
        feedback = config.feedback
        self._ladder = Ladder(feedback.size, feedback.k_factor) if isinstance(feedback, LadderConfig) else None
        self._on_ladder: dict[str, Segment] = {}

    def compose(self, count: int, due: int) -> QueryRound:
        """Choose what to ask; fewer questions come back if there is less to ask about."""
        rng = np.random.default_rng([self._seed, self.questions])
        feedback = self.config.feedback
        if self._ladder is not None:
            return self._matches(self._ladder, count, due, rng)
        if isinstance(feedback, PairsConfig):
            chosen = choose_pairs(
                feedback.sampler, count, self._view(), rng, feedback.candidates, self._asked_pairs(feedback)
            )
        else:
            chosen = choose_singles(count, self._view(), rng, {digest for (digest,) in self.asked})[:, None]
        levels = feedback.levels if isinstance(feedback, RatingsConfig) else 0
        features = self.pool.features
        return QueryRound(
            due,
            [
                Question(KINDS[feedback.kind], tuple(self.pool.segment(i) for i in places), self._goal, levels)
                for places in chosen
            ],
            [tuple(features[i].copy() for i in places) for places in chosen],
        )

    def learn(self, asked: QueryRound, answers: Sequence[Answer | None]) -> dict[str, float | None]:
        """Shape the reward by a round's answers, None where none was given; returns how it went, for the metrics."""
        told = [(q, f, a) for q, f, a in zip(asked.questions, asked.features, answers, strict=True) if a is not None]
        done = [question for question, _, answer in told if answer.outcome is not Outcome.FAILED]
        self.questions += len(done)
        self.asked += [tuple(segment.digest for segment in question.segments) for question in done]
        usable = [(q, f, a.value) for q, f, a in told if a.value is not None and self._teaches(a.outcome)]
        self.kept += len(usable)
        numbers = self._count([(question, answer) for question, _, answer in told])
        for _, features, value in usable:
            self.examples.add(features, value)
        if self._ladder is not None:
            self._play(self._ladder, usable)
        elif self.kept:
            assert isinstance(self.reward, EnsembleReward)
            numbers |= _numbers_of(fit(self.reward, self.examples, self._seed + self.questions))
        if self.kept:
            # All that was ever judged, from the first stumbling on: the recent past alone is too much alike in the end.
            self.reward.fit_normalizer(self.examples.steps())
            steps = self.pool.features.reshape(-1, *self.reward.feature_shape)
            returns = self.reward.rewards_of(steps).reshape(len(self.pool), -1).sum(axis=1)
            numbers["reward/rank_correlation"] = spearman(returns, self.pool.true_returns)
        return numbers

    def state(self, archives: Archives) -> dict[str, Any]:
        """Everything asked and learned, for a checkpoint; segments and labels are appended to archives."""
        self.pool.archive_to(archives["segments"])
        self.examples.archive_to(archives["examples"])
        return {
            "added": self.pool.added,
            "counts": (self.questions, self.kept),
            "asked": self.asked,
            "reward": self.reward.state_dict(),
            "ladder": self._ladder.state() if self._ladder else None,
            "on_ladder": {digest: segment.state() for digest, segment in self._on_ladder.items()},
        }

    def restore(self, state: dict[str, Any], archives: Archives) -> None:
        """Take over what `state` gave, and what was archived before it."""
        self.pool.restore(int(state["added"]), archives["segments"])
        self.examples.restore(archives["examples"])
        self.asked = [tuple(digests) for digests in state["asked"]]
        self.questions, self.kept = state["counts"]
        self.reward.load_state_dict(state["reward"])
        if self._ladder is not None:
            self._ladder.restore(state["ladder"])
            self._on_ladder = {digest: Segment.of(segment) for digest, segment in state["on_ladder"].items()}

    # -- pairs and single segments -------------------------------------------------------------------------------

    def _view(self) -> PoolView:
        features = self.pool.features
        returns = None
        if isinstance(self.reward, EnsembleReward) and self.reward.ready:
            steps = self.reward.members(features.reshape(-1, *self.reward.feature_shape))
            returns = steps.reshape(len(steps), len(features), -1).sum(axis=2)
        return PoolView(self.pool.digests, _flat(features), returns)

    def _asked_pairs(self, feedback: PairsConfig) -> AskedPairs:
        digests = [(pair[0], pair[1]) for pair in self.asked]
        if not feedback.sampler.startswith("k_center") or not len(self.examples):
            return AskedPairs(digests)
        latest = self.examples.features[-REMEMBERED:]
        return AskedPairs(digests, np.stack([_flat(np.stack(pair)) for pair in latest]))

    def _teaches(self, outcome: Outcome) -> bool:
        feedback = self.config.feedback
        return outcome != Outcome.EQUAL or not isinstance(feedback, PairsConfig) or feedback.ties

    def _count(self, told: list[tuple[Question, Answer]]) -> dict[str, float | None]:
        outcomes = Counter(answer.outcome.value for _, answer in told)
        numbers: dict[str, float | None] = {"labels/asked": self.questions, "labels/kept": self.kept}
        numbers |= {f"labels/{outcome}": outcomes[outcome.value] / len(told) for outcome in Outcome if told}
        judged = [
            answer.value == truth
            for question, answer in told
            if question.kind == "compare" and answer.outcome in (Outcome.FIRST, Outcome.SECOND)
            for truth in [true_preference(question.segments[0], question.segments[1])]
            if truth in (0.0, 1.0)
        ]
        numbers["labels/accuracy"] = float(np.mean(judged)) if judged else None
        seconds = [answer.seconds for _, answer in told if answer.exchanges]
        numbers["labels/seconds"] = float(np.mean(seconds)) if seconds else None
        return numbers

    # -- the ladder ----------------------------------------------------------------------------------------------

    def _matches(self, ladder: Ladder, count: int, due: int, rng: np.random.Generator) -> QueryRound:
        features = self.pool.features
        places = {digest: i for i, digest in enumerate(self.pool.digests)}
        newcomers = [Candidate(digest, _flat(features[i : i + 1])[0]) for digest, i in places.items()]
        matches = ladder.propose(count, newcomers, rng, {frozenset(pair) for pair in self.asked})

        def shown(candidate: Candidate) -> Segment:
            known = self._on_ladder.get(candidate.digest)
            return known or self.pool.segment(places[candidate.digest])

        questions = [Question("compare", (shown(a), shown(b)), self._goal) for a, b in matches]
        return QueryRound(due, questions, [(a.embedding[None], b.embedding[None]) for a, b in matches])

    def _play(self, ladder: Ladder, told: list[tuple[Question, tuple[np.ndarray, ...], float]]) -> None:
        seen = dict(self._on_ladder)
        for question, features, value in told:
            a, b = (
                Candidate(segment.digest, embedding[0])
                for segment, embedding in zip(question.segments, features, strict=True)
            )
            seen |= {segment.digest: segment for segment in question.segments}
            ladder.record(a, b, value)
        self._on_ladder = {entry.candidate.digest: seen[entry.candidate.digest] for entry in ladder.entries}
        assert isinstance(self.reward, LadderReward)
        self.reward.top = ladder.top()


def _flat(features: np.ndarray) -> np.ndarray:
    """[N, L, …] features -> float32[N, D], what distances are measured on."""
    return flat(features).astype(np.float32)


def _numbers_of(fitted: Fit) -> dict[str, float | None]:
    numbers = {
        "reward/epochs": float(fitted.epochs),
        "reward/loss": fitted.loss,
        "reward/held_out_loss": fitted.held_out_loss,
        "reward/accuracy": fitted.accuracy,
        "reward/held_out_accuracy": fitted.held_out_accuracy,
    }
    return {name: None if np.isnan(value) else value for name, value in numbers.items()}
