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
from sightline.labels.types import Outcome
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
    rounds = [line for line in metrics if plots.is_number(line.get("labels/asked"))]
    if not rounds:
        return None
    reward, teaching = block(recipe, "reward"), reward_block.teaching
    segment = reward.get("segment")
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
    asked, kept = plots.last_value(rounds, "labels/asked") or 0, plots.last_value(rounds, "labels/kept")
    paid = [(plots.last_value(rounds, f"labels/{what}"), what) for what in ("requests", "tokens")]
    waited, seconds = plots.values_of(rounds, "time/waiting_for_teacher"), plots.values_of(rounds, "labels/seconds")
    tallies = [
        Tally("Labels", whole(round(asked)), f"{len(rounds)} round{'' if len(rounds) == 1 else 's'} of questions"),
        Tally("Usable", percent(kept / asked) if asked and kept is not None else "", _without_use(rounds)),
        Tally("Accuracy", percent(_accuracy(rounds)), f"of decided pairs, by ground truth{_harder(labels)}"),
        Tally(
            "Cost",
            money(plots.last_value(rounds, "labels/cost")),
            ", ".join(f"{whole(round(count))} {what}" for count, what in paid if count) or "no requests",
        ),
        Tally(
            "Waited for teacher",
            duration(sum(waited)) if waited else "",
            f"{duration(fmean(seconds))} for an answer" if seconds else "",
        ),
    ]
    return [tally for tally in tallies if tally.value]


def _accuracy(rounds: plots.Metrics) -> float | None:
    """Accuracy over all rounds: the share of decided pairs on which the teacher agrees with ground truth."""
    right, decided = 0.0, 0.0
    for line, counts in zip(rounds, _outcomes(rounds), strict=True):
        if plots.is_number(line.get("labels/accuracy")):
            count = counts[Outcome.FIRST] + counts[Outcome.SECOND]
            right, decided = right + count * line["labels/accuracy"], decided + count
    return right / decided if decided else None


def _harder(labels: Sequence[StoredLabel]) -> str:
    """Why accuracy fell, where it did: pairs became alike. Empty where it did not, or where truth is unknown."""
    told = []
    for label in labels:
        if label.answer.outcome in (Outcome.FIRST, Outcome.SECOND):
            difference = label.true_returns[1] - label.true_returns[0]
            if difference:
                told.append((abs(difference), (difference > 0) == (label.answer.outcome is Outcome.SECOND)))
    third = len(told) // 3
    if third < FEW or any(isnan(gap) for gap, _ in told):
        return ""
    (gap, right), (late_gap, late_right) = (
        (median(gap for gap, _ in part), fmean(right for _, right in part)) for part in (told[:third], told[-third:])
    )
    if late_right > right - 0.05 or late_gap > gap / 2:
        return ""
    return (
        f"; {percent(right)} in the first third and {percent(late_right)} in the last, as pairs became alike: their "
        f"true returns differ by {late_gap:.2g} instead of {gap:.2g} (median)"
    )


def _without_use(rounds: plots.Metrics) -> str:
    """Number of answers without a label, by outcome: "3 unsure, 1 refused"."""
    reasons = (Outcome.UNSURE, Outcome.SKIPPED, Outcome.REFUSED, Outcome.UNPARSABLE, Outcome.FAILED)
    counts = {reason: round(sum(of_round[reason] for of_round in _outcomes(rounds))) for reason in reasons}
    return ", ".join(f"{whole(count)} {reason.value}" for reason, count in counts.items() if count)


def _outcomes(rounds: plots.Metrics) -> list[dict[Outcome, float]]:
    """Number of answers of each outcome, per round."""
    asked = [float(line["labels/asked"]) for line in rounds]
    new = [max(after - before, 0.0) for before, after in pairwise([0.0, *asked])]
    return [
        {outcome: count * sum(plots.values_of([line], f"labels/{outcome}")) for outcome in Outcome}
        for line, count in zip(rounds, new, strict=True)
    ]
