"""Teacher statistics: accuracy against the environment, agreement with other teachers, and self-consistency.

People who share a teacher's signature are distinguished by their names, as the label page records them.

The environment's own reward is the truth here; where it is unknown, or equal for both segments, nothing is counted.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from sightline.evaluation.statistics import spearman, wilson
from sightline.labels.store import StoredLabel
from sightline.labels.types import ModelCall, Outcome

BINS = 10
"""Number of bins: with equal numbers of pairs for accuracy by difference, and of equal width for calibration."""
_FLIPPED = {Outcome.FIRST: Outcome.SECOND, Outcome.SECOND: Outcome.FIRST}
_DECIDED = (Outcome.FIRST, Outcome.SECOND)
_TAUGHT = (*_DECIDED, Outcome.EQUAL, Outcome.VALUE)

Judge = tuple[str, str]
"""Source of an answer: a teacher's signature, and the name of the person behind it, empty for machines."""
ReadReply = Callable[[ModelCall], Outcome | None]
"""Reader of one reply: its outcome for the pair as shown (`first` is the one shown first); None if undecided."""


@dataclass(frozen=True)
class Share:
    """Proportion: `count` of `of`, with its rate and Wilson's 95 % interval; the rate is None if `of` is 0."""

    count: int
    of: int
    rate: float | None
    low: float
    high: float


@dataclass(frozen=True)
class Bin:
    """Accuracy on pairs whose true returns differ by `low` to `high`; `middle` is their median difference."""

    low: float
    middle: float
    high: float
    accuracy: Share


@dataclass(frozen=True)
class Calibration:
    """Calibration of a teacher's confidence.

    Attributes:
        answers: decided pairs with a confidence and a known truth.
        expected_error: mean gap between confidence and accuracy over ten bins of confidence (Naeini et al., 2015).
        brier: mean squared distance of the confidence from being right, 1 or 0 (Brier, 1950).
    """

    answers: int
    expected_error: float
    brier: float


@dataclass(frozen=True)
class TeacherStatistics:
    """Statistics of one teacher's answers.

    Attributes:
        name: the teacher's, with the person's behind it, or with a number if several share it.
        labels: number of questions; of several answers to one, the latest counts, and a failure only if it is all.
        outcomes: number of these answers of each outcome.
        accuracy: share of correct answers on the decided pairs whose true returns differ.
        hardest, easiest: the same, on the third of all such pairs with the smallest and largest difference.
        bins: the same, by that difference; the edges are those of all teachers' pairs together.
        equal: pairs that were called equal, of those judged.
        consistency: pairs judged the same in both orders, of those shown in both.
        first_shown: how often the segment that was shown first was preferred; far from one half is a position bias.
        rank_correlation: Spearman's, of levels or scores with the true return; None where it is undefined.
        cost, tokens, requests: of everything that was asked.
        cost_per_correct: cost by right answers; None if nothing was paid or nothing was right.
        median_seconds: None if no answer took time.
    """

    name: str
    signature: str
    labels: int
    outcomes: dict[str, int]
    accuracy: Share
    hardest: Share
    easiest: Share
    bins: tuple[Bin, ...]
    equal: Share
    consistency: Share
    first_shown: Share
    rank_correlation: float | None
    calibration: Calibration | None
    cost: float
    tokens: int
    requests: int
    cost_per_correct: float | None
    median_seconds: float | None


@dataclass(frozen=True)
class Agreement:
    """Agreement of two teachers on what both judged: the share of equal answers, and Cohen's kappa (Cohen, 1960), None
    where chance alone would make them agree."""

    first: str
    second: str
    same: Share
    kappa: float | None


@dataclass(frozen=True)
class Statistics:
    """Statistics of all teachers of a label store."""

    labels: int
    teachers: tuple[TeacherStatistics, ...]
    between: tuple[Agreement, ...]


@dataclass(frozen=True)
class Judgement:
    """One teacher's answer about a disputed pair.

    Attributes:
        outcome: in the order of the dispute's segments.
        label: the label as stored, perhaps in the other order.
    """

    teacher: str
    outcome: Outcome
    right: bool | None
    label: StoredLabel


@dataclass(frozen=True)
class Dispute:
    """Disputed pair: teachers disagree about it, or one contradicts the environment or itself.

    Attributes:
        reasons: reasons for the dispute, in words.
        segments: digests of the two segments.
        judgements: every answer about them, oldest first.
    """

    reasons: tuple[str, ...]
    goal: tuple[str, ...]
    segments: tuple[str, str]
    true_returns: tuple[float, float]
    judgements: tuple[Judgement, ...]


def statistics(labels: Sequence[StoredLabel], read_reply: ReadReply | None = None) -> Statistics:
    """Compute the statistics of the teachers of these labels.

    Args:
        read_reply: reads single replies of a model; without it, consistency and position bias of chatting teachers are
            known only where an answer was asked for in one order.
    """
    names = teacher_names(labels)
    of_judges = {judge: [label for label in labels if judge_of(label) == judge] for judge in names}
    counted = [label for of_one in of_judges.values() for label in _latest(of_one)]
    differences = np.array([d for d, _ in map(_against_truth, counted) if d is not None])
    teachers = tuple(_teacher(names[judge], of_one, differences, read_reply) for judge, of_one in of_judges.items())
    return Statistics(sum(teacher.labels for teacher in teachers), teachers, tuple(_agreements(labels, names)))


def judge_of(label: StoredLabel) -> Judge:
    """Source of a label's answer."""
    who = label.context.origin.get("who")
    return label.signature, " ".join(who.split()) if isinstance(who, str) else ""


def teacher_names(labels: Iterable[StoredLabel]) -> dict[Judge, str]:
    """Unique name of each judge, in order of appearance."""
    called = {judge_of(label): _called(label.teacher, judge_of(label)[1]) for label in labels}
    names: dict[Judge, str] = {}
    for judge, name in called.items():
        namesakes = [other for other in called if called[other] == name]
        names[judge] = name if len(namesakes) == 1 else f"{name} #{namesakes.index(judge) + 1}"
    return names


def _called(teacher: str, who: str) -> str:
    """Name of a judge: `human anna` for the person anna with the teacher `human` or `human anna`; `human` without a
    name."""
    return teacher if not who or who in teacher.split() else f"{teacher} {who}"


def disputes(labels: Sequence[StoredLabel], limit: int = 12, read_reply: ReadReply | None = None) -> list[Dispute]:
    """Find pairs over which teachers disagree, with each other, with the environment, or with themselves.

    Those with more reasons come first, then those whose true returns differ most.
    """
    names = teacher_names(labels)
    by_pair: dict[tuple[tuple[str, ...], frozenset[str]], list[StoredLabel]] = defaultdict(list)
    for label in labels:
        if label.kind == "compare":
            by_pair[label.goal, frozenset(label.segments)].append(label)
    found = [_dispute(same_pair, names, read_reply) for same_pair in by_pair.values()]

    def how_bad(dispute: Dispute) -> tuple[int, float]:
        first, second = dispute.true_returns
        return len(dispute.reasons), 0.0 if math.isnan(first - second) else abs(first - second)

    return sorted((dispute for dispute in found if dispute.reasons), key=how_bad, reverse=True)[:limit]


def cohens_kappa(first: Sequence[object], second: Sequence[object]) -> float | None:
    """Cohen's kappa (Cohen, 1960): agreement of two judges beyond chance, at most 1; None where chance explains all."""
    n = len(first)
    if n == 0:
        return None
    observed = sum(a == b for a, b in zip(first, second, strict=True)) / n
    counts_1, counts_2 = Counter(first), Counter(second)
    by_chance = sum(counts_1[category] * counts_2[category] for category in counts_1) / n**2
    return None if by_chance == 1.0 else (observed - by_chance) / (1 - by_chance)


def share(found: Iterable[bool]) -> Share:
    """Proportion of these that are true."""
    values = list(found)
    count = sum(values)
    return Share(count, len(values), count / len(values) if values else None, *wilson(count, len(values)))


def _teacher(
    name: str, all_labels: list[StoredLabel], all_differences: np.ndarray, read_reply: ReadReply | None
) -> TeacherStatistics:
    labels = _latest(all_labels)
    judged = [(d, right, label) for label in labels for d, right in [_against_truth(label)] if d is not None]
    differences = np.array([d for d, _, _ in judged])
    right = np.array([r for _, r, _ in judged], bool)
    hard, easy = np.quantile(all_differences, [1 / 3, 2 / 3]) if len(all_differences) else (0.0, 0.0)
    cost = sum(label.answer.cost for label in all_labels)
    seconds = [label.answer.seconds for label in labels]
    compared = [label.answer.outcome for label in labels if label.kind == "compare"]
    return TeacherStatistics(
        name,
        labels[0].signature,
        len(labels),
        dict(Counter(label.answer.outcome.value for label in labels).most_common()),
        share(right.tolist()),
        share(right[differences <= hard].tolist()),
        share(right[differences >= easy].tolist()),
        tuple(_bins(differences, right, all_differences)),
        share(outcome == Outcome.EQUAL for outcome in compared if outcome in _TAUGHT),
        share(_consistencies(labels, read_reply)),
        share(said == Outcome.FIRST for label in labels for _, said in _shown(label, read_reply) if said in _DECIDED),
        _graded(labels),
        _calibration([(label.answer.confidence, r) for _, r, label in judged]),
        cost,
        sum(label.answer.tokens for label in all_labels),
        sum(not call.reused for label in all_labels for call in label.answer.exchanges),
        cost / int(right.sum()) if cost and right.any() else None,
        float(np.median(seconds)) if any(seconds) else None,
    )


def _latest(labels: Sequence[StoredLabel]) -> list[StoredLabel]:
    """Each question of one judge once: an answer that was bought twice says no more than one."""
    latest: dict[str, StoredLabel] = {}
    for label in labels:
        before = latest.get(label.key)
        if before is None or label.answer.outcome is not Outcome.FAILED or before.answer.outcome is Outcome.FAILED:
            latest[label.key] = label
    return list(latest.values())


def _against_truth(label: StoredLabel) -> tuple[float | None, bool]:
    """Difference of the true returns of a decided pair, and whether the answer was correct; (None, False) where that is
    unknown."""
    if label.kind != "compare" or label.answer.outcome not in _DECIDED:
        return None, False
    difference = label.true_returns[1] - label.true_returns[0]
    if math.isnan(difference) or difference == 0:
        return None, False
    return abs(difference), (difference > 0) == (label.answer.outcome == Outcome.SECOND)


def _bins(differences: np.ndarray, right: np.ndarray, all_differences: np.ndarray) -> Iterator[Bin]:
    if not len(differences):
        return
    edges = np.unique(np.quantile(all_differences, np.linspace(0, 1, BINS + 1)))
    place = np.clip(np.searchsorted(edges, differences, side="right") - 1, 0, max(len(edges) - 2, 0))
    for i in np.unique(place):
        here = place == i
        high = edges[min(i + 1, len(edges) - 1)]
        yield Bin(float(edges[i]), float(np.median(differences[here])), float(high), share(right[here].tolist()))


def _graded(labels: Sequence[StoredLabel]) -> float | None:
    """Rank correlation of levels and scores with the true return."""
    graded = [
        (label.answer.value, label.true_returns[0])
        for label in labels
        if label.kind != "compare" and label.answer.value is not None and not math.isnan(label.true_returns[0])
    ]
    return spearman(*np.array(graded, np.float64).T) if graded else None


def _calibration(answers: Sequence[tuple[float | None, bool]]) -> Calibration | None:
    known = [(confidence, right) for confidence, right in answers if confidence is not None]
    if not known:
        return None
    confidence = np.array([c for c, _ in known], np.float64)
    right = np.array([r for _, r in known], np.float64)
    place = np.clip((confidence * BINS).astype(int), 0, BINS - 1)
    gaps = [abs(float(np.sum(right[place == i] - confidence[place == i]))) for i in np.unique(place)]
    return Calibration(len(known), sum(gaps) / len(known), float(np.mean((confidence - right) ** 2)))


def _shown(label: StoredLabel, read_reply: ReadReply | None) -> list[tuple[bool, Outcome]]:
    """Outcomes of a pair in the orders in which it was shown: (swapped, outcome)."""
    if label.kind != "compare":
        return []
    answer = label.answer
    if answer.exchanges and read_reply:
        read = [(exchange.swapped, read_reply(exchange)) for exchange in answer.exchanges]
        return [(swapped, said) for swapped, said in read if said is not None]
    swapped = label.context.origin.get("shown") == "swapped"
    if any(exchange.swapped for exchange in answer.exchanges) or answer.outcome not in (*_DECIDED, Outcome.EQUAL):
        return []
    return [(swapped, _FLIPPED.get(answer.outcome, answer.outcome) if swapped else answer.outcome)]


def _consistencies(labels: Sequence[StoredLabel], read_reply: ReadReply | None) -> Iterator[bool]:
    """Order consistency: for each time that a pair was judged in both orders, whether the outcome was the same."""
    for label in labels:
        yield from _consistent(label, read_reply)
    asked: dict[tuple[tuple[str, ...], tuple[str, ...]], Outcome] = {}
    for label in labels:
        if label.kind == "compare" and label.answer.outcome in (*_DECIDED, Outcome.EQUAL):
            asked[label.goal, label.segments] = label.answer.outcome
    for (goal, segments), outcome in asked.items():
        other = asked.get((goal, segments[::-1]))
        if other is not None and segments < segments[::-1]:
            yield _FLIPPED.get(other, other) == outcome


def _consistent(label: StoredLabel, read_reply: ReadReply | None) -> list[bool]:
    """Order consistency of one question that a model was asked in both orders, vote by vote."""
    shown = _shown(label, read_reply)
    as_asked = [said for swapped, said in shown if not swapped]
    opposite = [_FLIPPED.get(said, said) for swapped, said in shown if swapped]
    return [a == b for a, b in zip(as_asked, opposite, strict=False)]


def _agreements(labels: Sequence[StoredLabel], names: dict[Judge, str]) -> Iterator[Agreement]:
    """Agreement of every two teachers that judged a common question; each one's latest answer counts."""
    verdicts: dict[Judge, dict[object, object]] = {judge: {} for judge in names}
    for label in labels:
        if label.answer.outcome in _TAUGHT and label.kind != "score":
            about, verdict = _verdict(label)
            verdicts[judge_of(label)][about] = verdict
    for a, b in itertools.combinations(names, 2):
        both = [about for about in verdicts[a] if about in verdicts[b]]
        if both:
            first, second = [verdicts[a][about] for about in both], [verdicts[b][about] for about in both]
            same = share(x == y for x, y in zip(first, second, strict=True))
            yield Agreement(names[a], names[b], same, cohens_kappa(first, second))


def _verdict(label: StoredLabel) -> tuple[object, object]:
    """Question without its order of segments, and the verdict on it: the preferred segment, in the order of their
    digests, or the level (an expectation counts as the nearest one)."""
    segments = tuple(sorted(label.segments))
    about = (label.kind, label.levels, label.goal, segments)
    if label.kind != "compare":
        return about, round(label.answer.value or 0.0)
    outcome = label.answer.outcome
    return about, outcome if label.segments == segments else _FLIPPED.get(outcome, outcome)


def _dispute(labels: list[StoredLabel], names: dict[Judge, str], read_reply: ReadReply | None) -> Dispute:
    first, second = labels[0].segments
    judgements = tuple(
        Judgement(
            names[judge_of(label)],
            label.answer.outcome
            if label.segments == (first, second)
            else _FLIPPED.get(label.answer.outcome, label.answer.outcome),
            right if difference is not None else None,
            label,
        )
        for label in labels
        for difference, right in [_against_truth(label)]
    )
    said = {(judgement.teacher, judgement.outcome) for judgement in judgements if judgement.outcome in _TAUGHT}
    by_teacher = Counter(teacher for teacher, _ in said)
    reasons = {
        "teachers disagree": len(by_teacher) > 1 and len({outcome for _, outcome in said}) > 1,
        "against the environment": any(judgement.right is False for judgement in judgements),
        "changes with the order": any(not same for label in labels for same in _consistent(label, read_reply)),
        "answered differently again": any(count > 1 for count in by_teacher.values()),
    }
    true_returns = (labels[0].true_returns[0], labels[0].true_returns[1])
    found = tuple(reason for reason, holds in reasons.items() if holds)
    return Dispute(found, labels[0].goal, (first, second), true_returns, judgements)
