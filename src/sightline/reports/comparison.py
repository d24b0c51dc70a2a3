"""Comparison of several runs: a self-contained page, a table as text, and the same numbers as plain data.

Runs whose recipes differ in nothing but their seeds are one combination. Only measures that all of them have are
compared, so runs of both roles can stand beside each other.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
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
MEASURES = {
    "success_rate": "Success rate",
    "clean": "Without mistakes",
    "truthful_replies": "True replies",
    "return": "Return",
    "reward": "Reward",
}
"""Measures of results that are compared: name -> title."""
_SHARES_OF_EPISODES = ("success_rate", "clean")
_SAME = ("seed", "description")
"""Keys in which the runs of a combination may differ."""
MAX_LABEL = 80
"""Length of a combination's label; a longer one is cut."""
_MOST_KEYS = 3
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

        The interval of success, with or without mistakes, is Wilson's for the episodes of all seeds together, that of
        other measures is a bootstrap over the seeds; with one seed that of the return is the run's own; others have
        none.
        """
        results = [run.result for run in self.runs if plots.is_number(run.result.get(measure))]
        if not results:
            return None
        values = np.array([float(result[measure]) for result in results])
        mean = float(values.mean())
        low: float | None = None
        high: float | None = None
        episodes = [result.get("episodes") for result in results]
        # Files may have been changed by hand; what are no counts and no rates is averaged over the seeds.
        are_counts = all(isinstance(count, int) and count > 0 for count in episodes)
        are_rates = values.min() >= 0 and values.max() <= 1
        if measure in _SHARES_OF_EPISODES and are_counts and are_rates:
            successes = 0
            trials = 0
            for rate, count in zip(values.tolist(), episodes, strict=True):
                successes += round(rate * (count or 0))
                trials += count or 0
            # An episode is an episode, whichever seed it is of: all of them are one sample.
            mean = successes / trials
            low, high = wilson(successes, trials)
        elif len(values) > 1:
            low, high = bootstrap_mean(values)
        elif measure == "return":
            # Of a single run, the interval over its episodes.
            low = _number_or_none(results[0].get("return_ci_low"))
            high = _number_or_none(results[0].get("return_ci_high"))
        return Estimate(mean, low, high, float(values.min()), float(values.max()), len(values))

    @property
    def finished(self) -> int:
        """Number of runs that have a result."""
        return sum(bool(run.result) for run in self.runs)


def _number_or_none(value: Any) -> float | None:
    return float(value) if plots.is_number(value) else None


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
    runs: list[Path] = []
    for path in paths:
        if is_sweep(path):
            cells = [file.parent for file in path.glob("*/recipe.yaml") if not file.parent.is_symlink()]
            if not cells:
                raise BadInput(f"no cell of the sweep '{path}' has started yet; give its command again")
            runs += sorted(cells, key=lambda cell: _natural(cell.name))
        elif (path / "recipe.yaml").is_file():
            runs.append(path)
        else:
            raise BadInput(f"'{path}' is not a run folder: it has no recipe.yaml")
    # A run may be named by itself, by its sweep and by a link; counted twice, it would narrow the intervals.
    places = [os.path.realpath(path) for path in runs]
    for path, place in zip(runs, places, strict=True):
        if places.count(place) > 1:
            raise BadInput(f"'{path}' is named twice; name each run once")
        check_plain(path)
    return runs


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
    runs = [_read_run(path) for path in find_runs(paths)]
    groups = _group_by_recipe(runs)
    differing = _differing_keys(groups)
    # A sweep says itself which keys it varies; other keys may differ only because they were derived from these.
    label_keys = [key for key in _varied_keys(paths) if key in differing] or list(differing)
    labels = [_label(group, index, differing, label_keys) for index, group in enumerate(groups)]
    combinations = [Combination(label, group) for label, group in zip(_unique(labels), groups, strict=True)]
    damaged_files = [line for run in runs for line in damage(run.path)]
    return Comparison(
        combinations, differing, _shared_measures(combinations), _warnings(runs, differing), damaged_files
    )


def _read_run(path: Path) -> ComparedRun:
    recipe = flattened(masked_document(RunFolder(path).document()))
    return ComparedRun(path, recipe, read_mapping(path / "result.json"), read_records(path))


def _group_by_recipe(runs: Sequence[ComparedRun]) -> list[list[ComparedRun]]:
    """Runs whose recipes are the same but for their seeds, in order of the first of each group."""
    groups: dict[str, list[ComparedRun]] = {}
    for run in runs:
        compared = {key: value for key, value in run.recipe.items() if key not in _SAME}
        groups.setdefault(json.dumps(compared, sort_keys=True, default=str), []).append(run)
    return list(groups.values())


def _differing_keys(groups: Sequence[Sequence[ComparedRun]]) -> dict[str, list[str]]:
    """Keys that differ between the groups, with the value of each group as text."""
    recipes = [group[0].recipe for group in groups]
    keys = set().union(*recipes) - set(_SAME)
    differing = {}
    for key in sorted(keys):
        values = [value_text(recipe.get(key)) for recipe in recipes]
        if len(set(values)) > 1:
            differing[key] = values
    return differing


def _varied_keys(paths: Sequence[Path]) -> list[str]:
    """Keys that a sweep varies, which say more about its cells than what was derived from them."""
    if len(paths) != 1 or not is_sweep(paths[0]):
        return []
    varied = read_mapping(paths[0] / SWEEP).get("varied")
    if not isinstance(varied, dict):
        return []
    return list(varied)


def _label(
    group: Sequence[ComparedRun], index: int, differing: Mapping[str, Sequence[str]], keys: Sequence[str]
) -> str:
    # Without any difference there is one combination, called by its environment.
    if not keys:
        label = value_text(group[0].recipe.get("env"))
    elif len(keys) <= _MOST_KEYS:
        label = ", ".join(f"{key}={differing[key][index]}" for key in keys)
    else:
        label = group[0].path.resolve().name
    if len(label) > MAX_LABEL:
        return f"{label[: MAX_LABEL - 1]}…"
    return label


def _unique(labels: Sequence[str]) -> list[str]:
    """Labels with a number where several are the same."""
    unique = []
    for index, label in enumerate(labels):
        if labels.count(label) > 1:
            number = labels[: index + 1].count(label)
            unique.append(f"{label} ({number})")
        else:
            unique.append(label)
    return unique


def _shared_measures(combinations: Sequence[Combination]) -> list[str]:
    """Measures that all combinations have; those without any result do not count. Success without mistakes is left out
    where all success is without any."""
    by_combination = []
    for combination in combinations:
        names = {name for name in MEASURES if combination.estimate(name) is not None}
        if names:
            by_combination.append(names)
    if not by_combination:
        return []
    shared = set.intersection(*by_combination)
    results = [run.result for combination in combinations for run in combination.runs if run.result]
    if all(result.get("clean") == result.get("success_rate") for result in results):
        shared.discard("clean")
    return [name for name in MEASURES if name in shared]


def _warnings(runs: Sequence[ComparedRun], differing: Mapping[str, Sequence[str]]) -> list[str]:
    lines = []
    # What would make a reader compare what cannot be compared.
    open_runs = sum(not run.result for run in runs)
    if open_runs:
        lines.append(f"{open_runs} of {len(runs)} runs have no result yet; the table leaves them out.")
    panels = {str(run.result["panel"]) for run in runs if run.result.get("panel")}
    if len(panels) > 1:
        lines.append("The runs were tested on different episodes: differences may be those of the episodes.")
    if any(key in ("goal", "baseline") or key.startswith("reward.") for key in differing):
        lines.append("The runs learned from different rewards, which have scales of their own: compare the rest.")
    return lines


def value_text(value: Any) -> str:
    """A recipe's value as text; a dash if the recipe lacks the key."""
    if value is None:
        return "–"
    if isinstance(value, str):
        return value
    return json.dumps(value, ensure_ascii=False, default=str)


def _natural(name: str) -> list[Any]:
    """Sort key of a folder's name, with numbers by their size."""
    parts = re.split(r"(\d+(?:\.\d+)?)", name)  # text and numbers in turn
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
    combinations = comparison.combinations
    rows = []
    run_rows = []
    for combination in combinations:
        rows.append((combination, combination.finished, _cells(combination, comparison.measures)))
        run_rows += [_run_row(run, combination.label, page) for run in combination.runs]
    metrics = []
    styles = []
    for index, combination in enumerate(combinations):
        metrics.append([run.metrics for run in combination.runs])
        colour, dashes = plots.line_style(index)
        styles.append((plots.themed(colour), dashes))
    curves, panels = plots.compared_curves(metrics)
    return write_page(
        page,
        "comparison.html",
        title=title,
        command=command,
        comparison=comparison,
        measures=[MEASURES[name] for name in comparison.measures],
        rows=rows,
        styles=styles,
        count=len(run_rows),
        curves=curves,
        panels=", ".join(panels).lower(),
        runs=run_rows,
    )


def _cells(combination: Combination, measures: Sequence[str]) -> list[ResultCell]:
    return [_cell(combination, measure) for measure in measures]


def _cell(combination: Combination, measure: str) -> ResultCell:
    estimate = combination.estimate(measure)
    if estimate is None:
        return ResultCell()
    show: Callable[[float | None], str] = decimal
    if measure in (*_SHARES_OF_EPISODES, "truthful_replies"):
        show = percent
    interval = ""
    if estimate.low is not None and estimate.high is not None:
        interval = f"{show(estimate.low)} – {show(estimate.high)}"
    spread = ""
    if estimate.seeds > 1:
        spread = f"seeds {show(estimate.least)} to {show(estimate.most)}"
    return ResultCell(show(estimate.mean), interval, spread)


def _run_row(run: ComparedRun, label: str, page: Path) -> dict[str, str]:
    """Row of the list of runs, with a link to the run's own page."""
    report = run.path / "report.html"
    link = ""
    if report.is_file():
        link = quote(os.path.relpath(report, page.parent).replace(os.sep, "/"))
    seconds = run.result.get("seconds")
    step = run.result.get("chosen_step")
    return {
        "name": run.path.resolve().name,
        "link": link,
        "label": label,
        "seed": run.seed,
        "step": whole(step) if isinstance(step, int) else "",
        "time": duration(_number_or_none(seconds)),
        "state": "finished" if run.result else "no result yet",
    }


# -- text and plain data ----------------------------------------------------------------------------------------------


def text_table(comparison: Comparison) -> str:
    """The results as a table of aligned columns, a row for each combination."""
    rows = [["", "seeds", *(MEASURES[name].lower() for name in comparison.measures)]]
    for combination in comparison.combinations:
        cells = _cells(combination, comparison.measures)
        rows.append([combination.label, str(combination.finished), *map(_cell_text, cells)])
    # As wide as its longest cell: for a terminal, not for a program, which has `--json`.
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        aligned = [text.ljust(width) for text, width in zip(row, widths, strict=True)]
        lines.append("  ".join(aligned).rstrip())
    return "\n".join(lines)


def _cell_text(cell: ResultCell) -> str:
    """A cell in signs that any terminal shows."""
    if not cell.value:
        return "-"
    text = cell.value
    if cell.interval:
        text += f" [{cell.interval.replace(' – ', ', ')}]"
    return text.replace("\u202f", " ").replace("−", "-")


def comparison_document(comparison: Comparison) -> dict[str, Any]:
    """The comparison as plain data."""
    combinations = []
    for combination in comparison.combinations:
        measures = {}
        for name in comparison.measures:
            estimate = combination.estimate(name)
            if estimate is not None:
                measures[name] = asdict(estimate)
        runs = [str(run.path) for run in combination.runs]
        combinations.append({"label": combination.label, "runs": runs, "measures": measures})
    return {
        "combinations": combinations,
        "differing": {key: list(values) for key, values in comparison.differing.items()},
        "warnings": list(comparison.warnings),
        "damage": list(comparison.damage),
    }
