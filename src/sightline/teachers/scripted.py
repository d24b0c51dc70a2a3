"""Scripted teacher: answers from the environment's own reward, with simulated human errors.

Method: B-Pref, Lee, Smith, Dragan and Abbeel, "B-Pref: Benchmarking Preference-Based Reinforcement Learning", NeurIPS
2021 (Datasets and Benchmarks). With R the return of a segment of H steps, and W its return with step t weighted by
gamma^(H - 1 - t), a pair goes through four stages in this order:

1. skip: neither R exceeds `skip` times the average return of such a segment;
2. choice: the larger W, or with `beta` a Boltzmann choice, P(second) = 1 / (1 + exp(beta * (W_first - W_second)));
3. mistake: the opposite, with probability `mistake`;
4. equal: overrules choice and mistake where the two R differ by less than `equal` times the average return's size.

Unlike there, a rational teacher calls pairs with exactly the same W equal, rather than preferring the first: with
sparse rewards most pairs are of that kind. The share `skip` is meant for rewards that are not negative.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Generator, Iterable, Sequence
from typing import ClassVar, Literal

import numpy as np
from pydantic import Field

from sightline.config.blocks import checked_block
from sightline.labels.types import Answer, Outcome, Question, QuestionKind, Scale, Segment, Teacher, preference
from sightline.teachers.base import TeacherConfig, TeacherContext


class ScriptedTeacherConfig(TeacherConfig):
    """Recipe block of the scripted teacher, with the simulated human errors of B-Pref (Lee et al., NeurIPS 2021)."""

    kind: Literal["scripted"] = "scripted"
    beta: float | None = Field(default=None, gt=0)
    """Rationality of a Boltzmann choice; None always prefers the larger return."""
    gamma: float = Field(default=1.0, gt=0, le=1)
    """Discount factor: below 1 the teacher is myopic, and later steps of a segment count more."""
    skip: float = Field(default=0.0, ge=0)
    """Threshold of skipping, for pairs in which neither return exceeds this fraction of the average segment return."""
    equal: float = Field(default=0.0, ge=0)
    """Threshold of equality, for pairs whose returns differ by less than this fraction of the average return."""
    mistake: float = Field(default=0.0, ge=0, le=1)
    """Probability of the opposite answer."""

    knows_truth: ClassVar[bool] = True
    needs_words: ClassVar[bool] = False

    def check(self, question: QuestionKind) -> None:
        if question != "compare" and self.skip:
            raise ValueError("teacher.skip is about pairs; leave it out with feedback.kind=ratings or scores")

    def build(self, context: TeacherContext) -> ScriptedTeacher:
        return ScriptedTeacher(context.seed, **self.model_dump(exclude={"kind"}))


class ScriptedTeacher(Teacher):
    """Scripted teacher: answers at once, from `Segment.true_rewards`; a question about unknown rewards fails.

    Random draws depend on the seed and on the question alone, not on other questions or their order: a resumed run
    gets the same labels, and teachers that differ in one kind of error agree in all others.

    Args:
        seed: seed of all random draws.
        beta, gamma, skip, equal, mistake: kinds and strengths of errors; see above and `ScriptedTeacherConfig`.

    Attributes:
        average_segment_return: the return that `skip` and `equal` are fractions of. Its owner keeps it up to date;
            where it is None, it is the mean over the segments of the questions asked together.
        return_range: the lowest and the highest return of a segment, the ends of the scale for `rate` and `score`.
            Where it is None, those of the segments asked together.

    Raises:
        BadInput: a kind of error is too strong, or negative.
    """

    name = "scripted"

    def __init__(
        self,
        seed: int = 0,
        *,
        beta: float | None = None,
        gamma: float = 1.0,
        skip: float = 0.0,
        equal: float = 0.0,
        mistake: float = 0.0,
    ) -> None:
        failings = {"beta": beta, "gamma": gamma, "skip": skip, "equal": equal, "mistake": mistake}
        config = checked_block(ScriptedTeacherConfig, failings)
        self.seed = seed
        self.beta = config.beta
        self.gamma = config.gamma
        self.skip = config.skip
        self.equal = config.equal
        self.mistake = config.mistake
        self.average_segment_return: float | None = None
        self.return_range: tuple[float, float] | None = None
        settings = " ".join(f"{name}={getattr(self, name)}" for name in failings)
        self.signature = f"scripted {settings} seed={seed}"

    def measure_scale(self, questions: Sequence[Question], returns: np.ndarray) -> Scale:
        lowest = float(np.nanmin(returns))
        highest = float(np.nanmax(returns))
        return float(np.nanmean(returns)), (lowest, highest)

    def use_scale(self, scale: Scale) -> None:
        self.average_segment_return, self.return_range = scale

    def answers(self, questions: Iterable[Question]) -> Generator[tuple[int, Answer]]:
        """Yield (index, answer) in the order of the questions."""
        questions = list(questions)
        average, scale = self._references(questions)
        for index, question in enumerate(questions):
            if any(math.isnan(segment.true_return) for segment in question.segments):
                yield index, Answer(Outcome.FAILED, reason="the environment's own reward of a segment is unknown")
            elif question.kind == "compare":
                yield index, self._compare(question, average)
            else:
                yield index, Answer(Outcome.VALUE, self._value(question, scale))

    def _references(self, questions: Sequence[Question]) -> tuple[float, tuple[float, float]]:
        """Average return and range of returns that answers are relative to."""
        returns: list[float] = []
        for question in questions:
            returns += [segment.true_return for segment in question.segments]
        # NaN alone where no reward is known: nothing is answered from it then.
        returns = [value for value in returns if not math.isnan(value)] or [math.nan]
        average = self.average_segment_return
        if average is None:
            average = float(np.mean(returns))
        return average, self.return_range or (min(returns), max(returns))

    def _compare(self, question: Question, average: float) -> Answer:
        """Answer to a pair: B-Pref's four stages. The last is decided early, for it overrules the two before."""
        first, second = question.segments
        chance, slip = self._draws(question)
        if self.skip and max(first.true_return, second.true_return) <= self.skip * average:
            return Answer(Outcome.SKIPPED, reason="neither segment shows enough")
        if abs(first.true_return - second.true_return) < self.equal * abs(average):
            return preference(0.5)
        # A myopic teacher weighs late steps more: in its choice, not in what it skips or calls equal.
        choice = self._choice(weighted_return(first, self.gamma), weighted_return(second, self.gamma), chance)
        if slip < self.mistake:
            choice = 1.0 - choice
        return preference(choice)

    def _choice(self, first: float, second: float, chance: float) -> float:
        if self.beta is not None:
            return float(chance < boltzmann(first, second, self.beta))
        if first == second:
            return 0.5
        return float(second > first)

    def _value(self, question: Question, scale: tuple[float, float]) -> float:
        """Level or score; a mistaken level is any other, a mistaken score its opposite."""
        (segment,) = question.segments
        chance, slip = self._draws(question)
        position = _position(segment, self.gamma, scale)
        is_mistake = slip < self.mistake
        if question.kind == "score":
            if is_mistake:
                return 1.0 - position
            return position
        # The best position is the end of the last level, not a level of its own.
        level = min(int(position * question.levels), question.levels - 1)
        if is_mistake:
            # 1 to `levels` - 1 further, round and round: every other level is as probable.
            level = (level + 1 + int(chance * (question.levels - 1))) % question.levels
        return float(level)

    def _draws(self, question: Question) -> tuple[float, float]:
        """Draw two uniform numbers for this question: one for the choice, one for the mistake."""
        # From the question alone: a resumed run, and one that asks in another order, draws the same.
        entropy = hashlib.sha256(f"{self.seed} {question.key('scripted')}".encode()).digest()
        chance, slip = np.random.default_rng(int.from_bytes(entropy, "big")).random(2)
        return float(chance), float(slip)


def weighted_return(segment: Segment, gamma: float) -> float:
    """Discounted return of a myopic teacher: the last step counts fully, each earlier one `gamma` times the next."""
    return float(_weights(len(segment.true_rewards), gamma) @ segment.true_rewards.astype(np.float64))


def boltzmann(first: float, second: float, beta: float) -> float:
    """Probability that a teacher of this rationality prefers the second of two returns."""
    return float(np.exp(-np.logaddexp(0.0, beta * (first - second))))


def _position(segment: Segment, gamma: float, scale: tuple[float, float]) -> float:
    """Position of a segment between the ends of the scale, from 0 to 1; 0.5 on a scale without length."""
    low, high = scale
    if not high > low:  # also where they are unknown
        return 0.5
    # Scaled to the weight of an unweighted return, as the ends of the scale are.
    steps = len(segment.true_rewards)
    value = weighted_return(segment, gamma) * steps / _weights(steps, gamma).sum()
    return float(np.clip((value - low) / (high - low), 0.0, 1.0))


def _weights(steps: int, gamma: float) -> np.ndarray:
    """Weight of each step, float64[L]: gamma^(L - 1), …, gamma, 1."""
    return gamma ** np.arange(steps - 1, -1, -1, dtype=np.float64)
