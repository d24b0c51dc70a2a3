"""HTML report on the teachers of a label store: accuracy, agreement, and disputed pairs."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from sightline.errors import BadInput, RunFailed
from sightline.labels.store import LabelStore
from sightline.labels.types import NO_LABEL, ModelCall, Outcome
from sightline.reports import plots
from sightline.reports.pages import NO_BREAK, decimal, duration, money, percent, png_url, whole, write_page

if TYPE_CHECKING:
    from sightline.evaluation.agreement import Dispute, Judgement, Share, Statistics, TeacherStatistics

MAX_FRAMES = 3
"""Maximum number of frames shown of a segment: the first, the last, and one between."""
_COLOURS = (plots.BLUE, plots.ORANGE, "#009E73", "#CC79A7", "#E69F00", "#56B4E9", plots.INK)
"""Line colours: Okabe and Ito's palette."""
_IN_WORDS = {
    Outcome.FIRST: "prefers the left picture",
    Outcome.SECOND: "prefers the right picture",
    Outcome.EQUAL: "says they are equal",
    Outcome.UNSURE: "is unsure",
    Outcome.SKIPPED: "skipped it",
    Outcome.REFUSED: "refused to answer",
    Outcome.UNPARSABLE: "gave a reply that names none or several",
    Outcome.FAILED: "gave no reply",
}


@dataclass(frozen=True)
class Cell:
    """Cell of the table: a number as text; `note` is its interval or what it counts."""

    text: str
    note: str = ""


@dataclass(frozen=True)
class PairPicture:
    """Pictures of one side of a disputed pair: data URLs of its frames, None for one that is missing."""

    title: str
    frames: Sequence[str | None]


@dataclass(frozen=True)
class DisputedAnswer:
    """Answer to a disputed pair, in words; `mark` is `correct`, `wrong` or empty."""

    teacher: str
    answer: str
    mark: str
    notes: str
    exchanges: Sequence[ModelCall]


def table(statistics: Statistics) -> tuple[list[str], list[list[Cell]]]:
    """Table of teachers: headings, and a row for each; columns without any value are left out."""
    columns: list[tuple[str, Callable[[TeacherStatistics], Cell]]] = [
        ("teacher", lambda teacher: Cell(teacher.name)),
        ("labels", lambda teacher: Cell(whole(teacher.labels))),
        ("accuracy", lambda teacher: _share(teacher.accuracy)),
        ("hardest third", lambda teacher: _share(teacher.hardest)),
        ("easiest third", lambda teacher: _share(teacher.easiest)),
        ("equal", lambda teacher: _share_with_count(teacher.equal)),
        ("no label", _no_label),
        ("same if swapped", lambda teacher: _share(teacher.consistency)),
        ("prefers first shown", lambda teacher: _share(teacher.first_shown)),
        ("rank correlation", lambda teacher: Cell(decimal(teacher.rank_correlation))),
        ("calibration error", _calibration),
        ("cost per correct", _cost),
        ("median time", lambda teacher: Cell(duration(teacher.median_seconds))),
    ]
    # Column by column, since a column without any value is left out.
    by_heading: dict[str, list[Cell]] = {}
    for heading, cell_of in columns:
        cells = [cell_of(teacher) for teacher in statistics.teachers]
        if any(cell.text for cell in cells):
            by_heading[heading] = cells
    rows = [list(row) for row in zip(*by_heading.values(), strict=True)]
    return list(by_heading), rows


def write_labels_page(
    file: Path, title: str, statistics: Statistics, disputes: Sequence[Dispute], store: LabelStore
) -> None:
    """Write the self-contained page.

    Args:
        title: the source of the labels, such as a run's name.
        disputes: the pairs to show, with frames from `store`.

    Raises:
        RunFailed: it cannot be written.
    """
    headings, rows = table(statistics)
    goals = {sentence for dispute in disputes for sentence in dispute.goal}
    # A curve of a single bin would say no more than the table.
    has_curve = any(len(teacher.bins) > 1 for teacher in statistics.teachers)
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        write_page(
            file,
            "labels.html",
            title=title,
            labels=whole(statistics.labels),
            goals=sorted(goals),
            headings=headings,
            rows=rows,
            signatures=[(teacher.name, teacher.signature) for teacher in statistics.teachers],
            between=[
                (pair.first, pair.second, _share(pair.same), decimal(pair.kappa) or "–") for pair in statistics.between
            ],
            plot=accuracy_by_difference(statistics) if has_curve else "",
            disputes=[_dispute_values(dispute, store) for dispute in disputes],
        )
    except OSError as error:
        raise RunFailed(f"'{file}' cannot be written: {error.strerror or error}") from error


def accuracy_by_difference(statistics: Statistics) -> str:
    """Plot the accuracy of each teacher over bins of the true difference, as SVG text; chance is the dashed line."""
    with plots.new_figure(4.8, 3.0) as figure:
        axes = figure.subplots()
        teachers = [teacher for teacher in statistics.teachers if teacher.bins]
        middles: list[float] = []
        for index, teacher in enumerate(teachers):
            colour = _COLOURS[index % len(_COLOURS)]
            differences = [pairs.middle for pairs in teacher.bins]
            rates = np.array([pairs.accuracy.rate for pairs in teacher.bins], np.float64)
            low = np.array([pairs.accuracy.low for pairs in teacher.bins])
            high = np.array([pairs.accuracy.high for pairs in teacher.bins])
            axes.errorbar(
                np.array(differences),
                rates,
                np.abs(np.stack([low, high]) - rates),
                label=teacher.name,
                elinewidth=0.9,
                capsize=2,
                color=colour,
                linewidth=1.6,
                **plots.MARKED,
            )
            middles += differences
        axes.axhline(0.5, color=plots.GREY, linestyle=(0, (4, 3)), linewidth=1.1, label="chance")
        # On a linear axis all pairs but the easiest would fall together.
        if max(middles) > 100 * min(middles):
            axes.set_xscale("log")
        axes.set(title="Accuracy", xlabel="difference of the true returns (95 % intervals)")
        plots.as_percentages(axes)
        plots.shared_legend(figure, [axes], columns=2)
        return plots.as_svg(figure)


def _dispute_values(dispute: Dispute, store: LabelStore) -> dict[str, Any]:
    """Template values of a dispute."""
    first_return, second_return = dispute.true_returns
    left, right = dispute.segments
    # The better picture is marked, so that the reader need not compare two numbers.
    return {
        "reasons": dispute.reasons,
        "goal": " / ".join(dispute.goal),
        "pictures": [
            PairPicture(_picture_title("Left", first_return, second_return), _frames(store, left)),
            PairPicture(_picture_title("Right", second_return, first_return), _frames(store, right)),
        ],
        "answers": [_disputed_answer(judgement) for judgement in dispute.judgements],
    }


def _picture_title(side: str, true_return: float, other_return: float) -> str:
    if math.isnan(true_return):
        return side
    better = " (better)" if true_return > other_return else ""
    return f"{side}, true return {decimal(true_return)}{better}"


def _frames(store: LabelStore, digest: str) -> list[str | None]:
    try:
        files = store.frame_files(digest)
    except BadInput:  # the database names none
        return [None]
    # Evenly over the segment, its ends included.
    places = np.unique(np.linspace(0, len(files) - 1, min(MAX_FRAMES, len(files))).round().astype(int))
    return [png_url(files[place]) for place in places] or [None]


def _disputed_answer(judgement: Judgement) -> DisputedAnswer:
    answer = judgement.label.answer
    notes = [duration(answer.seconds or None), answer.reason]
    if answer.confidence is not None:
        notes.insert(0, f"{percent(answer.confidence)} sure")
    return DisputedAnswer(
        judgement.teacher,
        answer=_IN_WORDS.get(judgement.outcome, judgement.outcome.value),
        mark={True: "correct", False: "wrong", None: ""}[judgement.right],
        notes=" · ".join(note for note in notes if note),
        exchanges=answer.exchanges,
    )


def _no_label(teacher: TeacherStatistics) -> Cell:
    counts = {outcome.value: teacher.outcomes.get(outcome.value, 0) for outcome in NO_LABEL}
    by_outcome = ", ".join(f"{count} {name}" for name, count in counts.items() if count)
    return Cell(percent(sum(counts.values()) / teacher.labels), by_outcome)


def _cost(teacher: TeacherStatistics) -> Cell:
    # Nothing was paid: leave the cell empty rather than show 0.
    if not teacher.cost:
        return Cell("")
    return Cell(money(teacher.cost_per_correct), f"{money(teacher.cost)} in all")


def _calibration(teacher: TeacherStatistics) -> Cell:
    if teacher.calibration is None:
        return Cell("")
    return Cell(percent(teacher.calibration.expected_error), f"Brier {teacher.calibration.brier:.3f}")


def _share(share: Share) -> Cell:
    """A share with its interval."""
    if share.rate is None:
        return Cell("")
    return Cell(percent(share.rate), f"{100 * share.low:.0f}{NO_BREAK}–{NO_BREAK}{percent(share.high)}")


def _share_with_count(share: Share) -> Cell:
    """A share with what it counts, where an interval would claim a truth behind it."""
    if share.rate is None:
        return Cell("")
    return Cell(percent(share.rate), f"{whole(share.count)} of {whole(share.of)}".replace(" ", NO_BREAK))
