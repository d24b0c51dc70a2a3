"""Comparison of several runs: a self-contained page, a table as text, and the same numbers as plain data.

Runs whose recipes differ in nothing but their seeds are one combination. Only measures that all of them have are
compared, so runs of both roles can stand beside each other.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np

from sightline.config.loading import flattened
from sightline.config.secrets import masked_document
from sightline.errors import BadInput
from sightline.evaluation.statistics import bootstrap_mean, wilson
from sightline.reports import plots
from sightline.reports.pages import damage, decimal, duration, percent, read_mapping, read_records, whole, write_page
from sightline.runs.folder import RunFolder, check_plain

SWEEP = "sweep.json"
"""Name of the file that makes a folder a sweep."""
MEASURES = {"success_rate": "Success rate", "truthful_replies": "True replies", "return": "Return", "reward": "Reward"}
"""Measures of results that are compared: name -> title."""
_SAME = ("seed", "description")
"""Keys in which the runs of a combination may differ."""
MAX_LABEL = 80
"""Length of a combination's label; a longer one is cut."""
_MOST_NAMED = 3
"""Differing keys that a label names; where more differ, the run folder's name says less and is shorter."""


@dataclass(frozen=True)
class ComparedRun:
    """Run of a comparison, as far as its files can be read.

    Attributes:
        recipe: its keys, flat.
        result: empty if the run has not ended.
    """

    path: Path
    recipe: Mapping[str, Any]
    result: Mapping[str, Any]
    metrics: plots.Metrics

    @property
    def seed(self) -> str:
        return value_text(self.recipe.get("seed"))


@dataclass(frozen=True)
class Estimate:
    """Measure of a combination.

    Attributes:
        mean: over all episodes (rates), or over the seeds.
        low, high: 95 % interval; None if there is none.
        least, most: of the seeds.
        seeds: number of runs that have the measure.
    """

    mean: float
    low: float | None
    high: float | None
    least: float
    most: float
    seeds: int


@dataclass(frozen=True)
class Combination:
    """Runs whose recipes differ in nothing but their seeds."""

    label: str
    runs: Sequence[ComparedRun]

    def estimate(self, measure: str) -> Estimate | None:
        """A measure over the runs that have ended; None if none of them has it.

        The interval of success is Wilson's for the episodes of all seeds together, that of other measures is a
        bootstrap over the seeds; with one seed it is the run's own.
        """
        results = [run.result for run in self.runs if plots.is_number(run.result.get(measure))]
        if not results:
            return None
        values = np.array([float(result[measure]) for result in results])
        low, high, mean = None, None, float(values.mean())
        episodes = [result.get("episodes") for result in results]
        are_counts = all(isinstance(count, int) and count > 0 for count in episodes)
        if measure == "success_rate" and are_counts and values.min() >= 0 and values.max() <= 1:
            trials = sum(count for count in episodes if count)
            won = sum(round(rate * (count or 0)) for rate, count in zip(values.tolist(), episodes, strict=True))
            mean, (low, high) = won / trials, wilson(won, trials)
        elif len(values) > 1:
            low, high = bootstrap_mean(values)
        elif measure == "return":
            ends: list[Any] = [results[0].get(f"return_ci_{side}") for side in ("low", "high")]
            low, high = (float(end) if plots.is_number(end) else None for end in ends)
        return Estimate(mean, low, high, float(values.min()), float(values.max()), len(values))


@dataclass(frozen=True)
class Comparison:
    """Comparison of runs.

    Attributes:
        combinations: in the order of their folders' names.
        differing: key -> its value in each combination, as text; only keys that differ.
        measures: names of the measures that all combinations with results have.
        warnings: what keeps the numbers from being compared.
        damage: damaged files, a line each.
    """

    combinations: Sequence[Combination]
    differing: Mapping[str, Sequence[str]]
    measures: Sequence[str]
    warnings: Sequence[str]
    damage: Sequence[str]


def find_runs(paths: Sequence[Path]) -> list[Path]:
    """The run folders that are named, a sweep's folder standing for all of its cells.

    Raises:
        BadInput: one is neither, is named twice, or holds anything but plain files.
    """
    found: list[Path] = []
    for path in paths:
        if is_sweep(path):
            cells = [file.parent for file in path.glob("*/recipe.yaml") if not file.parent.is_symlink()]
            if not cells:
                raise BadInput(f"no cell of the sweep '{path}' has started yet; give its command again")
            found += sorted(cells, key=lambda cell: _natural(cell.name))
        elif (path / "recipe.yaml").is_file():
            found.append(path)
        else:
            raise BadInput(f"'{path}' is not a run folder: it has no recipe.yaml")
    places = [os.path.realpath(path) for path in found]
    for path, place in zip(found, places, strict=True):
        if places.count(place) > 1:
            raise BadInput(f"'{path}' is named twice; name each run once")
        check_plain(path)
    return found


def is_sweep(path: Path) -> bool:
    """True for the folder of a sweep."""
    return (path / SWEEP).is_file()


def compare(paths: Sequence[Path]) -> Comparison:
    """Compare runs.

    Args:
        paths: run folders and folders of sweeps.

    Raises:
        BadInput: one cannot be read.
    """
    runs = [
        ComparedRun(
            path,
            flattened(masked_document(RunFolder(path).document())),
            read_mapping(path / "result.json"),
            read_records(path),
        )
        for path in find_runs(paths)
    ]
    groups: dict[str, list[ComparedRun]] = {}
    for run in runs:
        rest = {key: value for key, value in run.recipe.items() if key not in _SAME}
        groups.setdefault(json.dumps(rest, sort_keys=True, default=str), []).append(run)
    members = list(groups.values())
    keys = sorted({key for run in runs for key in run.recipe} - set(_SAME))
    texts = {key: [value_text(group[0].recipe.get(key)) for group in members] for key in keys}
    differing = {key: values for key, values in texts.items() if len(set(values)) > 1}
    named = [key for key in _varied_keys(paths) if key in differing] or list(differing)
    labels = [_label(group, index, differing, named) for index, group in enumerate(members)]
    combinations = [Combination(label, group) for label, group in zip(_unique(labels), members, strict=True)]
    damaged = [line for run in runs for line in damage(run.path)]
    return Comparison(combinations, differing, _shared_measures(combinations), _warnings(runs, differing), damaged)


def _varied_keys(paths: Sequence[Path]) -> list[str]:
    """Keys that a sweep varies, which say more about its cells than what was derived from them."""
    if len(paths) != 1 or not is_sweep(paths[0]):
        return []
    varied = read_mapping(paths[0] / SWEEP).get("varied")
    return list(varied) if isinstance(varied, dict) else []


def _label(
    group: Sequence[ComparedRun], index: int, differing: Mapping[str, Sequence[str]], keys: Sequence[str]
) -> str:
    if not keys:
        label = value_text(group[0].recipe.get("env"))
    elif len(keys) <= _MOST_NAMED:
        label = ", ".join(f"{key}={differing[key][index]}" for key in keys)
    else:
        label = group[0].path.resolve().name
    return label if len(label) <= MAX_LABEL else f"{label[: MAX_LABEL - 1]}…"


def _unique(labels: Sequence[str]) -> list[str]:
    """Labels with a number where several are the same."""
    return [
        f"{label} ({labels[: index + 1].count(label)})" if labels.count(label) > 1 else label
        for index, label in enumerate(labels)
    ]


def _shared_measures(combinations: Sequence[Combination]) -> list[str]:
    known = [{name for name in MEASURES if one.estimate(name) is not None} for one in combinations]
    known = [names for names in known if names]
    return [name for name in MEASURES if known and all(name in names for names in known)]


def _warnings(runs: Sequence[ComparedRun], differing: Mapping[str, Sequence[str]]) -> list[str]:
    lines = []
    open_runs = sum(not run.result for run in runs)
    if open_runs:
        lines.append(f"{open_runs} of {len(runs)} runs have no result yet; the table leaves them out.")
    if len({str(run.result["panel"]) for run in runs if run.result.get("panel")}) > 1:
        lines.append("The runs were tested on different episodes: differences may be those of the episodes.")
    rewarding = [key for key in differing if key in ("goal", "baseline") or key.startswith("reward.")]
    if rewarding:
        lines.append("The runs learned from different rewards, which have scales of their own: compare the rest.")
    return lines


def value_text(value: Any) -> str:
    """A recipe's value as text; a dash if the recipe lacks the key."""
    if value is None:
        return "–"
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


def _natural(name: str) -> list[Any]:
    """Sort key of a folder's name, with numbers by their size."""
    parts = re.split(r"(\d+(?:\.\d+)?)", name)
    return [(float(part), "") if index % 2 else (0.0, part) for index, part in enumerate(parts)]


# -- the page ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ResultCell:
    """Measure of a combination, as text; empty if it has none."""

    value: str = ""
    interval: str = ""
    spread: str = ""


def write_comparison(page: Path, comparison: Comparison, title: str, command: str = "") -> Path:
    """Write the page of a comparison. Returns its path.

    Args:
        page: where it goes.
        title: heading of the page.
        command: the command line that made it.
    """
    curves, panels = plots.compared_curves([[run.metrics for run in one.runs] for one in comparison.combinations])
    return write_page(
        page,
        "comparison.html",
        title=title,
        command=command,
        comparison=comparison,
        measures=[MEASURES[name] for name in comparison.measures],
        rows=[
            (one, sum(bool(run.result) for run in one.runs), [_cell(one, name) for name in comparison.measures])
            for one in comparison.combinations
        ],
        styles=[
            (plots.themed(colour), dashes)
            for colour, dashes in map(plots.line_style, range(len(comparison.combinations)))
        ],
        count=sum(len(one.runs) for one in comparison.combinations),
        curves=curves,
        panels=", ".join(panels).lower(),
        runs=[_run_row(run, one.label, page) for one in comparison.combinations for run in one.runs],
    )


def _cell(combination: Combination, measure: str) -> ResultCell:
    found, show = combination.estimate(measure), _format(measure)
    if found is None:
        return ResultCell()
    return ResultCell(
        show(found.mean),
        "" if found.low is None or found.high is None else f"{show(found.low)} – {show(found.high)}",
        f"seeds {show(found.least)} to {show(found.most)}" if found.seeds > 1 else "",
    )


def _format(measure: str) -> Any:
    return percent if measure in ("success_rate", "truthful_replies") else decimal


def _run_row(run: ComparedRun, label: str, page: Path) -> dict[str, str]:
    """Row of the list of runs, with a link to the run's own page."""
    report = run.path / "report.html"
    relative = os.path.relpath(report, page.parent).replace(os.sep, "/") if report.is_file() else ""
    seconds = run.result.get("seconds")
    step = run.result.get("chosen_step")
    return {
        "name": run.path.resolve().name,
        "link": quote(relative),
        "label": label,
        "seed": run.seed,
        "step": whole(step) if isinstance(step, int) else "",
        "time": duration(float(seconds)) if isinstance(seconds, int | float) and plots.is_number(seconds) else "",
        "state": "finished" if run.result else "no result yet",
    }


# -- text and plain data ----------------------------------------------------------------------------------------------


def text_table(comparison: Comparison) -> str:
    """The results as a table of aligned columns, a row for each combination."""
    head = ["", "seeds", *(MEASURES[name].lower() for name in comparison.measures)]
    rows = [head]
    for one in comparison.combinations:
        ended = str(sum(bool(run.result) for run in one.runs))
        rows.append([one.label, ended, *(_in_one_cell(_cell(one, name)) for name in comparison.measures)])
    widths = [max(len(row[column]) for row in rows) for column in range(len(head))]
    return "\n".join(
        "  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )


def _in_one_cell(cell: ResultCell) -> str:
    if not cell.value:
        return "-"
    text = f"{cell.value} [{cell.interval.replace(' – ', ', ')}]" if cell.interval else cell.value
    return text.replace("\u202f", " ").replace("−", "-")


def comparison_document(comparison: Comparison) -> dict[str, Any]:
    """The comparison as plain data."""
    return {
        "combinations": [
            {
                "label": one.label,
                "runs": [str(run.path) for run in one.runs],
                "measures": {
                    name: asdict(found) for name in comparison.measures if (found := one.estimate(name)) is not None
                },
            }
            for one in comparison.combinations
        ],
        "differing": {key: list(values) for key, values in comparison.differing.items()},
        "warnings": list(comparison.warnings),
        "damage": list(comparison.damage),
    }
