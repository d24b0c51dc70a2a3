"""HTML report on the teachers of a label store: accuracy, agreement, and disputed pairs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from sightline.errors import BadInput, RunFailed
from sightline.labels.store import LabelStore
from sightline.labels.types import ModelCall, Outcome
from sightline.reports import plots
from sightline.reports.pages import NO_BREAK, decimal, duration, money, percent, png_url, whole, write_page

if TYPE_CHECKING:
    from sightline.evaluation.agreement import Dispute, Judgement, Share, Statistics, TeacherStatistics

MAX_FRAMES = 3
"""Maximum number of frames shown of a segment: the first, the last, and one between."""
_COLOURS = (plots.BLUE, plots.ORANGE, "#009E73", "#CC79A7", "#E69F00", "#56B4E9", plots.INK)
"""Line colours: Okabe and Ito's palette."""
_NO_LABEL = (Outcome.UNSURE, Outcome.SKIPPED, Outcome.REFUSED, Outcome.UNPARSABLE, Outcome.FAILED)
_SAID = {
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
class Saying:
    """Answer to a disputed pair; `mark` is `correct`, `wrong` or empty."""

    teacher: str
    said: str
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
        ("equal", lambda teacher: _share(teacher.equal, interval=False)),
        ("no label", _no_label),
        ("same if swapped", lambda teacher: _share(teacher.consistency)),
        ("prefers first shown", lambda teacher: _share(teacher.first_shown)),
        ("rank correlation", lambda teacher: Cell(decimal(teacher.rank_correlation))),
        ("calibration error", _calibration),
        ("cost per correct", lambda teacher: _cost(teacher)),
        ("median time", lambda teacher: Cell(duration(teacher.median_seconds))),
    ]
    rows = {heading: [cell(teacher) for teacher in statistics.teachers] for heading, cell in columns}
    rows = {heading: cells for heading, cells in rows.items() if any(cell.text for cell in cells)}
    return list(rows), [list(row) for row in zip(*rows.values(), strict=True)]


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
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        write_page(
            file,
            "labels.html",
            title=title,
            labels=whole(statistics.labels),
            goals=sorted({sentence for dispute in disputes for sentence in dispute.goal}),
            headings=headings,
            rows=rows,
            signatures=[(teacher.name, teacher.signature) for teacher in statistics.teachers],
            between=[(a.first, a.second, _share(a.same), decimal(a.kappa) or "–") for a in statistics.between],
            plot=accuracy_by_difference(statistics) if any(len(t.bins) > 1 for t in statistics.teachers) else "",
            disputes=[_shown(dispute, store) for dispute in disputes],
        )
    except OSError as error:
        raise RunFailed(f"'{file}' cannot be written: {error.strerror or error}") from error


def accuracy_by_difference(statistics: Statistics) -> str:
    """Plot the accuracy of each teacher over bins of the true difference, as SVG text; chance is the dashed line."""
    with plots.new_figure(4.8, 3.0) as figure:
        axes = figure.subplots()
        known = [teacher for teacher in statistics.teachers if teacher.bins]
        for i, teacher in enumerate(known):
            x = np.array([found.middle for found in teacher.bins])
            rates = np.array([found.accuracy.rate for found in teacher.bins], np.float64)
            reach = np.array([[f.accuracy.low for f in teacher.bins], [f.accuracy.high for f in teacher.bins]])
            style: dict[str, Any] = {
                "color": _COLOURS[i % len(_COLOURS)],
                "linewidth": 1.6,
                "marker": "o",
                "markersize": 3.6,
            }
            axes.errorbar(x, rates, np.abs(reach - rates), elinewidth=0.9, capsize=2, label=teacher.name, **style)
        axes.axhline(0.5, color=plots.GREY, linestyle=(0, (4, 3)), linewidth=1.1, label="chance")
        middles = [found.middle for teacher in known for found in teacher.bins]
        if max(middles) > 100 * min(middles):
            axes.set_xscale("log")
        axes.set(title="Accuracy", xlabel="difference of the true returns (95 % intervals)")
        plots.as_percentages(axes)
        plots.shared_legend(figure, [axes], columns=2)
        return plots.as_svg(figure)


def _shown(dispute: Dispute, store: LabelStore) -> dict[str, Any]:
    """Template values of a dispute."""
    first, second = dispute.true_returns
    better = np.sign(second - first)  # nan where unknown
    titles = [
        f"{side}, true return {decimal(value)}{' (better)' if better == sign else ''}" if value == value else side
        for side, value, sign in (("Left", first, -1), ("Right", second, 1))
    ]
    return {
        "reasons": dispute.reasons,
        "goal": " / ".join(dispute.goal),
        "pictures": [
            PairPicture(title, _frames(store, digest)) for title, digest in zip(titles, dispute.segments, strict=True)
        ],
        "sayings": [_saying(judgement) for judgement in dispute.judgements],
    }


def _frames(store: LabelStore, digest: str) -> list[str | None]:
    try:
        files = store.frame_files(digest)
    except BadInput:  # the database names none
        return [None]
    chosen = np.unique(np.linspace(0, len(files) - 1, min(MAX_FRAMES, len(files))).round().astype(int))
    return [png_url(files[i]) for i in chosen] or [None]


def _saying(judgement: Judgement) -> Saying:
    answer = judgement.label.answer
    notes = [
        f"{percent(answer.confidence)} sure" if answer.confidence is not None else "",
        duration(answer.seconds or None),
        answer.reason,
    ]
    mark = {True: "correct", False: "wrong", None: ""}[judgement.right]
    said = _SAID.get(judgement.outcome, judgement.outcome.value)
    return Saying(judgement.teacher, said, mark, " · ".join(note for note in notes if note), answer.exchanges)


def _no_label(teacher: TeacherStatistics) -> Cell:
    counts = {outcome.value: teacher.outcomes.get(outcome.value, 0) for outcome in _NO_LABEL}
    named = ", ".join(f"{count} {name}" for name, count in counts.items() if count)
    return Cell(percent(sum(counts.values()) / teacher.labels), named)


def _cost(teacher: TeacherStatistics) -> Cell:
    # Nothing was paid: leave the cell empty rather than show 0.
    if not teacher.cost:
        return Cell("")
    return Cell(money(teacher.cost_per_correct), f"{money(teacher.cost)} in all")


def _calibration(teacher: TeacherStatistics) -> Cell:
    if teacher.calibration is None:
        return Cell("")
    return Cell(percent(teacher.calibration.expected_error), f"Brier {teacher.calibration.brier:.3f}")


def _share(share: Share, interval: bool = True) -> Cell:
    if share.rate is None:
        return Cell("")
    between = f"{100 * share.low:.0f}{NO_BREAK}–{NO_BREAK}{percent(share.high)}"
    counted = f"{whole(share.count)} of {whole(share.of)}".replace(" ", NO_BREAK)
    return Cell(percent(share.rate), between if interval else counted)
