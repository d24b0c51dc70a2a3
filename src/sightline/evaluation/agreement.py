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

from sightline.evaluation.statistics import expected_calibration_error, spearman, wilson
from sightline.labels.store import StoredLabel
from sightline.labels.types import MIRRORED, ModelCall, Outcome

BINS = 10
"""Number of bins, with equal numbers of pairs, for accuracy by difference."""
_DECIDED = (Outcome.FIRST, Outcome.SECOND)
_LABELS = (*_DECIDED, Outcome.EQUAL, Outcome.VALUE)
"""Outcomes that a reward model can learn from."""

Judge = tuple[str, str]
"""Source of an answer: a teacher's signature, and the name of the person behind it, empty for machines."""
ReadReply = Callable[[ModelCall], Outcome | None]
"""Reader of one reply: its outcome for the pair as shown (`first` is the one shown first); None if undecided."""

AsShown = Sequence[tuple[bool, Outcome]]
"""Outcomes of a pair in the orders in which it was shown: (swapped, outcome of the pair as shown)."""


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
    """A teacher's answer about a disputed pair.

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
    by_judge: dict[Judge, list[StoredLabel]] = {judge: [] for judge in names}
    for label in labels:
        by_judge[judge_of(label)].append(label)
    latest = {judge: _latest(labels_of_judge) for judge, labels_of_judge in by_judge.items()}
    pairs = {judge: _checked_pairs(labels_of_judge) for judge, labels_of_judge in latest.items()}
    # Bins of difficulty are those of all teachers' pairs together, so that their curves can be compared.
    differences = np.array([pair.difference for pairs_of_judge in pairs.values() for pair in pairs_of_judge])
    teachers = []
    for judge, name in names.items():
        teachers.append(_teacher(name, by_judge[judge], latest[judge], pairs[judge], differences, read_reply))
    count = sum(teacher.labels for teacher in teachers)
    return Statistics(count, tuple(teachers), tuple(_agreements(labels, names)))


def judge_of(label: StoredLabel) -> Judge:
    """Source of a label's answer."""
    person = label.context.origin.get("who")
    if not isinstance(person, str):
        return label.signature, ""
    return label.signature, " ".join(person.split())


def teacher_names(labels: Iterable[StoredLabel]) -> dict[Judge, str]:
    """Unique name of each judge, in order of appearance."""
    teachers: dict[Judge, str] = {}
    for label in labels:
        teachers[judge_of(label)] = label.teacher
    names = {judge: _full_name(teacher, person=judge[1]) for judge, teacher in teachers.items()}
    unique_names: dict[Judge, str] = {}
    for judge, name in names.items():
        namesakes = [namesake for namesake in names if names[namesake] == name]
        unique_names[judge] = name
        if len(namesakes) > 1:
            unique_names[judge] = f"{name} #{namesakes.index(judge) + 1}"
    return unique_names


def _full_name(teacher: str, person: str) -> str:
    """Name of a judge: `human anna` for the person anna with the teacher `human` or `human anna`; `human` without a
    name."""
    if not person or person in teacher.split():
        return teacher
    return f"{teacher} {person}"


def disputes(labels: Sequence[StoredLabel], limit: int = 12, read_reply: ReadReply | None = None) -> list[Dispute]:
    """Find pairs over which teachers disagree, with each other, with the environment, or with themselves.

    Those with more reasons come first, then those whose true returns differ most.
    """
    names = teacher_names(labels)
    by_pair: dict[tuple[tuple[str, ...], frozenset[str]], list[StoredLabel]] = defaultdict(list)
    for label in labels:
        if label.kind == "compare":
            by_pair[label.goal, frozenset(label.segments)].append(label)
    disputed: list[tuple[tuple[str, ...], list[StoredLabel]]] = []
    for labels_of_pair in by_pair.values():
        reasons = _reasons(labels_of_pair, names, read_reply)
        if reasons:
            disputed.append((reasons, labels_of_pair))

    def severity(pair: tuple[tuple[str, ...], list[StoredLabel]]) -> tuple[int, float]:
        reasons, labels_of_pair = pair
        first, second = labels_of_pair[0].true_returns
        difference = abs(first - second)
        if math.isnan(difference):
            difference = 0.0
        return len(reasons), difference

    most_severe = sorted(disputed, key=severity, reverse=True)[:limit]
    return [_dispute(labels_of_pair, names, reasons) for reasons, labels_of_pair in most_severe]


def cohens_kappa(first: Sequence[object], second: Sequence[object]) -> float | None:
    """Cohen's kappa (Cohen, 1960): agreement of two judges beyond chance, at most 1; None where chance explains all."""
    n = len(first)
    if n == 0:
        return None
    observed = sum(a == b for a, b in zip(first, second, strict=True)) / n
    # Chance: both say a category as often as they do, and without looking.
    counts_of_first = Counter(first)
    counts_of_second = Counter(second)
    by_chance = sum(counts_of_first[category] * counts_of_second[category] for category in counts_of_first) / n**2
    if by_chance == 1.0:
        return None
    return (observed - by_chance) / (1 - by_chance)


def share(values: Iterable[bool]) -> Share:
    """Proportion of these that are true."""
    trials = list(values)
    count = sum(trials)
    rate = count / len(trials) if trials else None
    low, high = wilson(count, len(trials))
    return Share(count, len(trials), rate, low, high)


def _teacher(
    name: str,
    all_labels: Sequence[StoredLabel],
    labels: Sequence[StoredLabel],
    pairs: Sequence[CheckedPair],
    all_differences: np.ndarray,
    read_reply: ReadReply | None,
) -> TeacherStatistics:
    """Statistics of one teacher.

    Args:
        all_labels: what was asked and paid for.
        labels: the latest answer to each question, which alone counts.
        pairs: those of them with a known truth.
        all_differences: float[M], of the true returns of all teachers' pairs.
    """
    outcomes = Counter(label.answer.outcome.value for label in labels)
    judged = [label.answer.outcome for label in labels if label.kind == "compare" and label.answer.outcome in _LABELS]

    # Accuracy, on all pairs with a known truth, and by how much these differ.
    differences = np.array([pair.difference for pair in pairs])
    correct = np.array([pair.is_correct for pair in pairs], bool)
    hard, easy = 0.0, 0.0
    if len(all_differences):
        hard, easy = np.quantile(all_differences, [1 / 3, 2 / 3])

    # Position bias: of each time that a pair was shown, whether the one shown first was preferred.
    shown = [_as_shown(label, read_reply) for label in labels]
    prefers_first = []
    for outcomes_as_shown in shown:
        for _, outcome in outcomes_as_shown:
            if outcome in _DECIDED:
                prefers_first.append(outcome == Outcome.FIRST)

    # What it took.
    cost = sum(label.answer.cost for label in all_labels)
    requests = 0
    for label in all_labels:
        requests += sum(not call.reused for call in label.answer.exchanges)
    seconds = [label.answer.seconds for label in labels]
    return TeacherStatistics(
        name=name,
        signature=labels[0].signature,
        labels=len(labels),
        outcomes=dict(outcomes.most_common()),
        accuracy=share(correct.tolist()),
        hardest=share(correct[differences <= hard].tolist()),
        easiest=share(correct[differences >= easy].tolist()),
        bins=tuple(_bins(differences, correct, all_differences)),
        equal=share(outcome == Outcome.EQUAL for outcome in judged),
        consistency=share(_consistencies(labels, shown)),
        first_shown=share(prefers_first),
        rank_correlation=_rank_correlation(labels),
        calibration=_calibration(pairs),
        cost=cost,
        tokens=sum(label.answer.tokens for label in all_labels),
        requests=requests,
        cost_per_correct=cost / int(correct.sum()) if cost and correct.any() else None,
        median_seconds=float(np.median(seconds)) if any(seconds) else None,
    )


def _latest(labels: Sequence[StoredLabel]) -> list[StoredLabel]:
    """Each question of a judge once: an answer that was bought twice says no more than one."""
    latest: dict[str, StoredLabel] = {}
    for label in labels:
        before = latest.get(label.key)
        # A failure does not take the place of an answer.
        if before is None or label.answer.outcome is not Outcome.FAILED or before.answer.outcome is Outcome.FAILED:
            latest[label.key] = label
    return list(latest.values())


@dataclass(frozen=True)
class CheckedPair:
    """Decided pair whose true returns are known and differ, by `difference` > 0."""

    difference: float
    is_correct: bool
    confidence: float | None


def check_pair(label: StoredLabel) -> CheckedPair | None:
    """Compare an answer with ground truth; None if it decided nothing, or the truth is unknown or equal for both."""
    if label.kind != "compare" or label.answer.outcome not in _DECIDED:
        return None
    difference = label.true_returns[1] - label.true_returns[0]
    if math.isnan(difference) or difference == 0:
        return None
    second_is_better = difference > 0
    is_correct = second_is_better == (label.answer.outcome == Outcome.SECOND)
    return CheckedPair(abs(difference), is_correct, label.answer.confidence)


def _checked_pairs(labels: Iterable[StoredLabel]) -> list[CheckedPair]:
    """All pairs of some labels that can be compared with ground truth."""
    return [pair for pair in map(check_pair, labels) if pair is not None]


def _bins(differences: np.ndarray, correct: np.ndarray, all_differences: np.ndarray) -> Iterator[Bin]:
    """Accuracy by bins of the true difference, the easiest last; bins without any pair are left out.

    Args:
        differences: float[N], those of the teacher's pairs.
        correct: bool[N].
        all_differences: float[M], from which the edges of the bins are made.
    """
    if not len(differences):
        return
    edges = np.unique(np.quantile(all_differences, np.linspace(0, 1, BINS + 1)))
    bin_of_pair = np.clip(np.searchsorted(edges, differences, side="right") - 1, 0, max(len(edges) - 2, 0))
    for index in np.unique(bin_of_pair):
        members = bin_of_pair == index
        low = float(edges[index])
        middle = float(np.median(differences[members]))
        high = float(edges[min(index + 1, len(edges) - 1)])
        yield Bin(low, middle, high, share(correct[members].tolist()))


def _rank_correlation(labels: Sequence[StoredLabel]) -> float | None:
    """Rank correlation of levels and scores with the true return."""
    values = []
    true_returns = []
    for label in labels:
        true_return = label.true_returns[0]
        if label.kind != "compare" and label.answer.value is not None and not math.isnan(true_return):
            values.append(label.answer.value)
            true_returns.append(true_return)
    return spearman(np.array(values, np.float64), np.array(true_returns, np.float64))


def _calibration(pairs: Sequence[CheckedPair]) -> Calibration | None:
    """Calibration on the pairs that were answered with a confidence; None without any."""
    sure = [pair for pair in pairs if pair.confidence is not None]
    if not sure:
        return None
    confidence = np.array([pair.confidence for pair in sure], np.float64)
    correct = np.array([pair.is_correct for pair in sure], np.float64)
    brier = float(np.mean((confidence - correct) ** 2))
    return Calibration(len(sure), expected_calibration_error(confidence, correct), brier)


def _flipped(outcome: Outcome) -> Outcome:
    """The same preference, told of the pair in the other order."""
    return MIRRORED.get(outcome, outcome)


def _as_shown(label: StoredLabel, read_reply: ReadReply | None) -> AsShown:
    """Outcomes of a pair in the orders in which it was shown."""
    if label.kind != "compare":
        return []
    answer = label.answer
    # A chatting model may have been asked several times, in both orders: each of its replies counts.
    if answer.exchanges and read_reply:
        outcomes = []
        for exchange in answer.exchanges:
            outcome = read_reply(exchange)
            if outcome is not None:
                outcomes.append((exchange.swapped, outcome))
        return outcomes
    # Without a reader of replies, an answer that was made of both orders tells of neither.
    if any(exchange.swapped for exchange in answer.exchanges) or answer.outcome not in (*_DECIDED, Outcome.EQUAL):
        return []
    if label.context.origin.get("shown") == "swapped":
        return [(True, _flipped(answer.outcome))]
    return [(False, answer.outcome)]


def _consistencies(labels: Sequence[StoredLabel], shown: Iterable[AsShown]) -> Iterator[bool]:
    """Order consistency: for each time that a pair was judged in both orders, whether the outcome was the same.

    Args:
        shown: outcomes of each label's pair as shown.
    """
    for outcomes_as_shown in shown:
        yield from _consistencies_of_votes(outcomes_as_shown)
    # The same pair may also have been asked as two questions, one in each order.
    outcomes: dict[tuple[tuple[str, ...], tuple[str, ...]], Outcome] = {}
    for label in labels:
        if label.kind == "compare" and label.answer.outcome in (*_DECIDED, Outcome.EQUAL):
            outcomes[label.goal, label.segments] = label.answer.outcome
    for (goal, segments), outcome in outcomes.items():
        reverse = segments[::-1]
        outcome_of_reverse = outcomes.get((goal, reverse))
        if outcome_of_reverse is not None and segments < reverse:  # each two questions once
            yield _flipped(outcome_of_reverse) == outcome


def _consistencies_of_votes(shown: AsShown) -> list[bool]:
    """Order consistency of a question that a model was asked in both orders, vote by vote."""
    as_asked = []
    swapped_back = []
    for swapped, outcome in shown:
        if swapped:
            swapped_back.append(_flipped(outcome))
        else:
            as_asked.append(outcome)
    return [first == second for first, second in zip(as_asked, swapped_back, strict=False)]


def _agreements(labels: Sequence[StoredLabel], names: dict[Judge, str]) -> Iterator[Agreement]:
    """Agreement of every two teachers that judged a common question; each one's latest answer counts."""
    verdicts: dict[Judge, dict[object, object]] = {judge: {} for judge in names}
    for label in labels:
        # Scores are real numbers: no two teachers give the same.
        if label.answer.outcome in _LABELS and label.kind != "score":
            question, verdict = _verdict(label)
            verdicts[judge_of(label)][question] = verdict
    for first_judge, second_judge in itertools.combinations(names, 2):
        first_verdicts = verdicts[first_judge]
        second_verdicts = verdicts[second_judge]
        common = [question for question in first_verdicts if question in second_verdicts]
        if common:
            first = [first_verdicts[question] for question in common]
            second = [second_verdicts[question] for question in common]
            same = share(a == b for a, b in zip(first, second, strict=True))
            yield Agreement(names[first_judge], names[second_judge], same, cohens_kappa(first, second))


def _verdict(label: StoredLabel) -> tuple[object, object]:
    """Question without its order of segments, and the verdict on it: the preferred segment, in the order of their
    digests, or the level (an expectation counts as the nearest one)."""
    segments = tuple(sorted(label.segments))
    question = (label.kind, label.levels, label.goal, segments)
    if label.kind != "compare":
        return question, round(label.answer.value or 0.0)
    return question, _outcome_in_order(label, segments)


def _outcome_in_order(label: StoredLabel, segments: tuple[str, ...]) -> Outcome:
    """Outcome of a pair in the order of these segments."""
    if label.segments == segments:
        return label.answer.outcome
    return _flipped(label.answer.outcome)


def _reasons(labels: Sequence[StoredLabel], names: dict[Judge, str], read_reply: ReadReply | None) -> tuple[str, ...]:
    """Reasons to doubt the labels about a pair, if any."""
    reasons = []
    answers_by_teacher: Counter[str] = Counter()
    # Most pairs of a large store have one label, which contradicts no other.
    if len(labels) > 1:
        answers = _different_answers(labels, names)
        answers_by_teacher.update(teacher for teacher, _ in answers)
        outcomes = {outcome for _, outcome in answers}
        if len(answers_by_teacher) > 1 and len(outcomes) > 1:
            reasons.append("teachers disagree")
    if any(pair is not None and not pair.is_correct for pair in map(check_pair, labels)):
        reasons.append("against the environment")
    if any(_changes_with_the_order(label, read_reply) for label in labels):
        reasons.append("changes with the order")
    if any(count > 1 for count in answers_by_teacher.values()):
        reasons.append("answered differently again")
    return tuple(reasons)


def _different_answers(labels: Sequence[StoredLabel], names: dict[Judge, str]) -> set[tuple[str, Outcome]]:
    """The answers to a pair, each once: the teacher's name, and the outcome in the order of the first label."""
    segments = labels[0].segments
    answers = set()
    for label in labels:
        outcome = _outcome_in_order(label, segments)
        if outcome in _LABELS:
            answers.add((names[judge_of(label)], outcome))
    return answers


def _changes_with_the_order(label: StoredLabel, read_reply: ReadReply | None) -> bool:
    """Whether a model that was shown a pair in both orders did not prefer the same segment each time."""
    if len(label.answer.exchanges) < 2:
        return False
    return not all(_consistencies_of_votes(_as_shown(label, read_reply)))


def _dispute(labels: Sequence[StoredLabel], names: dict[Judge, str], reasons: tuple[str, ...]) -> Dispute:
    """All labels about a pair, oldest first."""
    first, second = labels[0].segments
    judgements = []
    for label in labels:
        pair = check_pair(label)
        is_correct = None if pair is None else pair.is_correct
        outcome = _outcome_in_order(label, (first, second))
        judgements.append(Judgement(names[judge_of(label)], outcome, is_correct, label))
    true_returns = (labels[0].true_returns[0], labels[0].true_returns[1])
    return Dispute(reasons, labels[0].goal, (first, second), true_returns, tuple(judgements))
