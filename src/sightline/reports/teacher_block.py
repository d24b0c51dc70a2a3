"""Block of a run's page about the teacher of a learned reward: its labels, their accuracy and cost, some answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import isnan
from pathlib import Path
from statistics import fmean, median
from typing import Any

from sightline.config.recipe import RewardBlock
from sightline.labels.store import StoredLabel
from sightline.labels.types import NO_LABEL, Outcome
from sightline.reports import plots
from sightline.reports.examples import Example, labels_and_examples
from sightline.reports.pages import block, duration, money, percent, whole

FEW = 10
"""Decided pairs below which a share of them says little."""


@dataclass(frozen=True)
class Tally:
    """Number about the labels, as text; `note` qualifies it."""

    name: str
    value: str
    note: str = ""


@dataclass(frozen=True)
class TeacherSection:
    """Section about the teacher of a learned reward.

    Attributes:
        scripted: True if it answers from the environment's own reward.
        curves: SVG text.
        examples: some of its answers; None if they cannot be read.
        segment: number of steps of a segment.
        page: True if the page about the labels is beside the report.
    """

    tallies: Sequence[Tally]
    scripted: bool
    curves: str
    examples: Sequence[Example] | None
    segment: int
    page: bool


def teacher_block(
    run: Path, recipe: Mapping[str, Any], reward_block: RewardBlock, metrics: plots.Metrics
) -> TeacherSection | None:
    """Section about the teacher; None if no teacher was asked anything."""
    # A round of questions is a record that counts them.
    rounds = [line for line in metrics if plots.is_number(line.get("labels/asked"))]
    if not rounds:
        return None
    teaching = reward_block.teaching
    segment = block(recipe, "reward").get("segment")
    labels, examples = labels_and_examples(run)
    return TeacherSection(
        tallies=_tallies(rounds, labels),
        scripted=teaching is not None and teaching.teacher.knows_truth,
        curves=plots.teaching_curves(metrics),
        examples=examples,
        segment=segment if isinstance(segment, int) else 1,
        page=(run / "labels.html").is_file(),
    )


def _tallies(rounds: plots.Metrics, labels: Sequence[StoredLabel]) -> list[Tally]:
    """Known numbers about the labels of all rounds together."""
    questions = plots.last_value(rounds, "labels/asked") or 0
    # A number that is unknown has no value, and is left out.
    plural = "" if len(rounds) == 1 else "s"
    tallies = [
        Tally("Labels", whole(round(questions)), f"{len(rounds)} round{plural} of questions"),
        Tally("Usable", percent(_usable_share(rounds)), _unusable_answers(rounds)),
        Tally("Accuracy", percent(_accuracy(rounds)), f"of decided pairs, by ground truth{_why_harder(labels)}"),
        Tally("Cost", money(plots.last_value(rounds, "labels/cost")), _consumption(rounds)),
        _waiting_time(rounds),
    ]
    return [tally for tally in tallies if tally.value]


def _usable_share(rounds: plots.Metrics) -> float | None:
    """Share of the answers that became labels; None if it is unknown."""
    questions = plots.last_value(rounds, "labels/asked")
    labels = plots.last_value(rounds, "labels/kept")
    if not questions or labels is None:
        return None
    return labels / questions


def _consumption(rounds: plots.Metrics) -> str:
    """Requests and tokens of a chat model, as text."""
    parts = []
    for unit in ("requests", "tokens"):
        count = plots.last_value(rounds, f"labels/{unit}")
        if count:
            parts.append(f"{whole(round(count))} {unit}")
    return ", ".join(parts) or "no requests"


def _waiting_time(rounds: plots.Metrics) -> Tally:
    waiting_time = ""
    waits = plots.values_of(rounds, "time/waiting_for_teacher")
    if waits:
        waiting_time = duration(sum(waits))
    note = ""
    seconds = plots.values_of(rounds, "labels/seconds")
    if seconds:
        note = f"{duration(fmean(seconds))} for an answer"
    return Tally("Waited for teacher", waiting_time, note)


def _accuracy(rounds: plots.Metrics) -> float | None:
    """Accuracy over all rounds: the share of decided pairs on which the teacher agrees with ground truth."""
    correct = 0.0
    decided = 0.0
    for line, counts in zip(rounds, _outcomes(rounds), strict=True):
        # Each round counts by its decided pairs, which alone its accuracy is about.
        if plots.is_number(line.get("labels/accuracy")):
            count = counts[Outcome.FIRST] + counts[Outcome.SECOND]
            correct += count * line["labels/accuracy"]
            decided += count
    if not decided:
        return None
    return correct / decided


def _why_harder(labels: Sequence[StoredLabel]) -> str:
    """Why accuracy fell, where it did: pairs became alike. Empty where it did not, or where truth is unknown."""
    gaps: list[float] = []  # differences of the true returns of decided pairs, in order of time
    are_correct: list[bool] = []
    for label in labels:
        if label.answer.outcome in (Outcome.FIRST, Outcome.SECOND):
            difference = label.true_returns[1] - label.true_returns[0]
            if difference:
                gaps.append(abs(difference))
                are_correct.append((difference > 0) == (label.answer.outcome is Outcome.SECOND))
    # The first third against the last: enough pairs in each, and apart in time.
    third = len(gaps) // 3
    if third < FEW or any(map(isnan, gaps)):
        return ""
    early_gap = median(gaps[:third])
    late_gap = median(gaps[-third:])
    early_accuracy = fmean(are_correct[:third])
    late_accuracy = fmean(are_correct[-third:])
    # Pairs explain it only if their gap has halved at least.
    if late_accuracy > early_accuracy - 0.05 or late_gap > early_gap / 2:
        return ""
    return (
        f"; {percent(early_accuracy)} in the first third and {percent(late_accuracy)} in the last, as pairs became "
        f"alike: their true returns differ by {late_gap:.2g} instead of {early_gap:.2g} (median)"
    )


def _unusable_answers(rounds: plots.Metrics) -> str:
    """Number of answers without a label, by outcome: "3 unsure, 1 refused"."""
    by_round = _outcomes(rounds)
    parts = []
    for outcome in NO_LABEL:
        count = round(sum(counts[outcome] for counts in by_round))
        if count:
            parts.append(f"{whole(count)} {outcome.value}")
    return ", ".join(parts)


def _outcomes(rounds: plots.Metrics) -> list[dict[Outcome, float]]:
    """Number of answers of each outcome, per round.

    The metrics count questions from the run's beginning, and say which share of a round's had an outcome.
    """
    totals = [float(line["labels/asked"]) for line in rounds]
    by_round = []
    for line, (before, after) in zip(rounds, pairwise([0.0, *totals]), strict=True):
        questions = max(after - before, 0.0)
        by_round.append({outcome: questions * sum(plots.values_of([line], f"labels/{outcome}")) for outcome in Outcome})
    return by_round
