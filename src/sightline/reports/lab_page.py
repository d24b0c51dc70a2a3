"""The lab's page: which of these rewards is worth training on, and what each of them sees; one self-contained file."""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from sightline.errors import RunFailed
from sightline.reports import plots
from sightline.reports.labels_page import Cell
from sightline.reports.pages import NO_BREAK, by_text, data_url, decimal, percent, whole, write_page
from sightline.reports.verdicts import Verdict

LEAST_AUROC = 0.9
"""Least AUROC of a reward that is trained on, here and in the check before training."""
LEAST_CORRELATION = 0.5
SAME_EPIC = 0.05
"""Distance up to which a reward is the ground truth, which is learned from even where it marks no frame of the goal."""
CONSTANT = "the reward is constant"
"""As measures say it (`reward_lab/measures/result.py`), which know nothing of pages."""
MOST_FOOLED = 0.05
MOST_NOISE = 0.5
LEAST_AFTER = 0.9
"""What makes a doubt: other frames paid more than the goal, noise, and what is left of the reward after success."""
WORTH, DOUBTFUL, WEAK, BLIND = "worth training on", "doubtful", "weak", "blind"
OPPOSITE, UNKNOWN = "pays the opposite", "not judged"
MOST_LANDSCAPES = 12
MOST_CURVES = 6
TRUTH = "ground truth"

COLUMNS: Mapping[str, tuple[str, str]] = {
    "auroc": ("AUROC", "1, blind 0.5"),
    "spearman": ("Spearman", "1, blind 0"),
    "pearson": ("Pearson", "1, blind 0"),
    "epic": ("EPIC", "0, blind 0.71"),
    "epic_of_transitions": ("EPIC, transitions", "0, blind 0.71"),
    "pair_accuracy": ("Pairs in order", "1, blind 0.5"),
    "preference_accuracy": ("Judged pairs", "1, blind 0.5"),
    "auroc_last": ("AUROC, last", "1, blind 0.5"),
    "auroc_max": ("AUROC, highest", "1, blind 0.5"),
    "auprc": ("AUPRC", "1"),
    "value_order": ("Value order", "1, blind 0"),
    "kendall_tau": ("Kendall’s τ", "1, blind 0"),
    "fooling": ("Fooled", "0, blind 0.5"),
    "after_success": ("After success", "1"),
    "roughness": ("Roughness", "0"),
    "noise": ("Noise", "0"),
    "calibration_error": ("Calibration error", "0"),
}
"""Measures in the order of the table: heading, and what the best and a blind reward have."""
CONTROLS = {"nonsense": "meaningless goal", "shuffled": "shuffled frames", "blank": "blank frames"}
SMALL_CHANGES = ("same", "shifted", "jpeg", "halved")
"""Small changes of frames in the order of their columns."""
ALTERATIONS = {"paraphrases": "other words", "views": "another view"}
KINDS = {
    "best": "Paid best",
    "median": "In the middle",
    "worst": "Paid worst",
    "fooling": "Most fooling: paid best of those beside the goal",
}
"""Kinds of frames that are shown of a reward -> title."""


@dataclass(frozen=True)
class RewardShots:
    """Frames of a reward: title -> data URLs."""

    name: str
    kinds: Mapping[str, Sequence[str]]


def write_lab_page(
    file: Path,
    title: str,
    document: Mapping[str, Any],
    figures: Mapping[str, Any],
    pictures: Mapping[int, np.ndarray],
) -> Path:
    """Write the page; returns its path.

    Args:
        title: of the task.
        document: the content of `lab.json`.
        figures: as `reward_lab/figures.py` makes them, which are too large to be kept.
        pictures: row -> frame uint8[H, W, 3] of those that the figures show, as far as there are any.

    Raises:
        RunFailed: it cannot be written.
    """
    rewards: Mapping[str, Any] = document["rewards"]
    headings, rows = table(rewards)
    verdicts = [verdict_on(name, reward) for name, reward in rewards.items()]
    try:
        return write_page(
            file,
            "lab.html",
            title=title,
            summary=summary(verdicts, rewards),
            warnings=document.get("warnings", ()),
            verdicts=verdicts,
            facts=_facts(document),
            headings=headings,
            rows=rows,
            reasons=list(_reasons(rewards)),
            controls=_controls(rewards),
            changes=changes(rewards),
            alterations=alterations(rewards),
            coverage=list(_coverage(rewards)),
            ranking=[_ranked(row) for row in document.get("ranking", ())],
            landscapes=landscapes(figures["landscapes"], rewards),
            progress=progress(figures["progress"]),
            progress_facts=figures["progress"],
            strip=_strip(figures["strip"], pictures),
            shots=_shots(figures["frames"], pictures),
        )
    except OSError as error:
        raise RunFailed(f"'{file}' cannot be written: {error.strerror or error}") from error


# -- verdicts ----------------------------------------------------------------------------------------------------------


def summary(verdicts: Sequence[Verdict], rewards: Mapping[str, Any]) -> str:
    """The page's first sentence: the reward to train on, if there is one."""
    good = [verdict.question for verdict in verdicts if verdict.good]
    if good:
        best = max(good, key=lambda name: round(_chief(rewards[name])[1], 2))  # of equal ones the first
        others = {1: "", 2: ", and so is one other"}.get(len(good), f", and so are {len(good) - 1} others")
        return f"“{best}” is worth training on{others}"
    doubtful = [verdict.question for verdict in verdicts if verdict.answer == DOUBTFUL]
    if doubtful:
        best = max(doubtful, key=lambda name: round(_chief(rewards[name])[1], 2))
        return f"“{best}” may be worth training on, with doubts"
    if all(verdict.answer == UNKNOWN for verdict in verdicts):
        return "Nothing can be said of these rewards yet" if len(verdicts) > 1 else "Nothing can be said of it yet"
    return "None of these rewards is worth training on" if len(verdicts) > 1 else "This reward is not worth training on"


def verdict_on(name: str, reward: Mapping[str, Any]) -> Verdict:
    """Whether a reward is worth training on, with the numbers behind it."""
    if reward.get("failure"):
        return Verdict(name, UNKNOWN, str(reward["failure"]), False)
    chief, value = _chief(reward)
    if not chief:
        reasons = [_value(reward, measure, "undefined") for measure in ("auroc", "spearman")]
        if CONSTANT in reasons:
            return Verdict(name, BLIND, "It pays the same for all frames.", False)
        because = "; ".join(dict.fromkeys(reason for reason in reasons if reason)) or "no measure was taken"
        return Verdict(name, UNKNOWN, f"{because[:1].upper()}{because[1:]}.", False)
    distance = _value(reward, "epic", "high")
    if distance is not None and distance <= SAME_EPIC:
        because = f"It is the ground truth but for scale and shift: EPIC {_with_interval(reward['epic'])}."
        return Verdict(name, WORTH, because, True)
    of_frames = f"{COLUMNS[chief][0]} {_with_interval(reward[chief])}"
    low = reward[chief]["low"]
    high = reward[chief]["high"]
    chance = 0.0 if chief == "spearman" else 0.5
    if high is not None and high < chance:
        return Verdict(name, OPPOSITE, f"It pays other frames more than those of the goal: {of_frames}.", False)
    if value <= chance or (low is not None and low <= chance):
        return Verdict(name, BLIND, f"It tells the goal no better than chance: {of_frames}.", False)
    equal = _equal_control(reward)
    if equal:
        return Verdict(name, BLIND, f"{of_frames}, and with {equal} it does as well: it does not see the goal.", False)
    if value < (LEAST_CORRELATION if chief == "spearman" else LEAST_AUROC):
        return Verdict(name, WEAK, f"It tells the goal better than chance, and not well: {of_frames}.", False)
    doubts = list(_doubts(reward, chief))
    if doubts:
        return Verdict(name, DOUBTFUL, f"{of_frames}, but {'; '.join(doubts)}.", False)
    return Verdict(name, WORTH, f"{_praise(chief, value)}: {of_frames}.", True)


def _chief(reward: Mapping[str, Any]) -> tuple[str, float]:
    """The measure that decides, and its value: by success, by judged pairs, or by the ground truth, the first that is
    defined; an empty name where none is."""
    for name in ("auroc", "preference_accuracy", "spearman"):
        value = _value(reward, name, "value")
        if value is not None:
            return name, float(value)
    return "", float("-inf")


def _praise(chief: str, value: float) -> str:
    if chief == "auroc":
        return f"A frame of the goal is paid more than another one in {percent(value)} of pairs"
    if chief == "preference_accuracy":
        return f"What was preferred is paid more in {percent(value)} of pairs"
    return "It rises with the ground truth"


def _equal_control(reward: Mapping[str, Any]) -> str:
    """The control that does as well as the reward itself; empty if none does."""
    for name, words in CONTROLS.items():
        difference = _block(_block(reward, "controls"), name).get("difference")
        if not difference or difference["value"] is None:
            continue
        low = difference["low"]
        if difference["value"] <= 0 or (low is not None and low <= 0):
            return words if name != "nonsense" else f"a {words}"
    return ""


def _doubts(reward: Mapping[str, Any], chief: str) -> Iterator[str]:
    if reward[chief]["low"] is None:
        yield f"nobody knows how far that is chance: {reward[chief].get('no_interval') or 'it has no interval'}"
    fooled = _value(reward, "fooling", "value")
    if fooled is not None and fooled > MOST_FOOLED:
        yield f"{percent(fooled)} of the frames beside the goal are paid more than the goal’s median"
    noise = _value(reward, "noise", "value")
    if noise is not None and noise > MOST_NOISE:
        yield f"moving a frame by one pixel changes the reward by {decimal(noise)} of its spread"
    after = _value(reward, "after_success", "value")
    if after is not None and after < LEAST_AFTER:
        yield f"after success {percent(after)} of the reward is left"


# -- tables ------------------------------------------------------------------------------------------------------------


def table(rewards: Mapping[str, Any]) -> tuple[list[Cell], list[list[Cell]]]:
    """Table of rewards by measures: headings, and a row for each; measures that no reward has are left out."""
    names = [name for name in COLUMNS if any(_value(reward, name, "value") is not None for reward in rewards.values())]
    headings = [Cell("reward"), *(Cell(COLUMNS[name][0], f"best {COLUMNS[name][1]}") for name in names)]
    rows = [[Cell(name), *(_cell(reward.get(measure)) for measure in names)] for name, reward in rewards.items()]
    return headings, rows


def _cell(measure: Mapping[str, Any] | None) -> Cell:
    if measure is None:
        return Cell("")
    if measure["value"] is None:
        return Cell("–", "undefined")
    note = "no interval"
    if measure["low"] is not None:
        note = f"{_two(measure['low'])} to {_two(measure['high'])}".replace(" ", NO_BREAK)
    return Cell(_two(measure["value"]), note)


def _reasons(rewards: Mapping[str, Any]) -> Iterator[str]:
    """A line for each reason why a measure is undefined, and for rewards that are missing."""
    undefined: list[tuple[str, str]] = []
    for name, reward in rewards.items():
        for measure, (heading, _) in COLUMNS.items():
            reason = _value(reward, measure, "undefined")
            if reason:
                undefined.append((name, f"{heading} is undefined: {reason}"))
        missing = _value(reward, "auroc", "missing")
        if missing:
            undefined.append((name, f"{whole(missing)} frames have no reward, and are left out"))
    return by_text(undefined)


def _controls(rewards: Mapping[str, Any]) -> list[list[Cell]]:
    """Rows of the table of controls: the reward's own AUROC, and how much lower that of each control is."""
    rows = []
    for name, reward in rewards.items():
        controls = _block(reward, "controls")
        cells = [_cell(_block(controls, control).get("difference")) for control in CONTROLS]
        if any(cell.text not in ("", "–") for cell in cells):
            rows.append([Cell(name), _cell(reward.get("auroc")), *cells])
    return rows


def changes(rewards: Mapping[str, Any]) -> list[list[Cell]]:
    """Rows of the table of small changes: how much each reward changes by each, in units of its spread."""
    rows = []
    for name, reward in rewards.items():
        measures = {"shifted": _block(reward, "noise"), **_block(reward, "sensitivity")}
        cells = [_number(measures.get(change, {})) for change in SMALL_CHANGES]
        if any(cell.text != "–" for cell in cells):
            rows.append([Cell(name), *cells])
    return rows


def alterations(rewards: Mapping[str, Any]) -> list[list[Cell]]:
    """Rows of the table of paraphrases and views: of each reward, each alteration and what comes of it."""
    rows = []
    for name, reward in rewards.items():
        of_reward = []
        for kind, title in ALTERATIONS.items():
            block = _block(reward, kind)
            each = _block(block, "each")
            for label, found in each.items():
                cells = [_number(found[measure]) for measure in ("change", "spearman", "auroc")]
                of_reward.append([Cell(str(label), title), *cells])
            if len(each) > 1:
                area = block["auroc"]
                span = "–"
                if area["low"] is not None:
                    span = f"{_two(area['low'])} to {_two(area['high'])}"
                of_reward.append([Cell("all of them", title), _number(block["spread"]), Cell(""), Cell(span)])
        # Its name stands at the first row alone.
        headings = [name, *[""] * len(of_reward)]
        rows += [[Cell(heading), *cells] for heading, cells in zip(headings, of_reward, strict=False)]
    return rows


def _number(measure: Mapping[str, Any]) -> Cell:
    """A measure without its interval."""
    value = measure.get("value")
    return Cell("–") if value is None else Cell(_two(value))


def _coverage(rewards: Mapping[str, Any]) -> Iterator[str]:
    """What each EPIC distance was taken over: it is of that alone."""
    lines: list[tuple[str, str]] = []
    for name, reward in rewards.items():
        for measure, unit in (("epic", "states reached"), ("epic_of_transitions", "transitions")):
            block = _block(reward, measure)
            details = _block(block, "details")
            if block.get("value") is None or "coverage" not in details:
                continue
            line = f"{COLUMNS[measure][0]} over {whole(block['n'])} {unit} of {details['coverage']}"
            if "discount" in details:
                line += f", background {details['background']}, discount {details['discount']:g}"
            lines.append((name, line))
    return by_text(lines)


def _ranked(row: Mapping[str, Any]) -> list[Cell]:
    return [Cell(str(row["reward"])), _cell(row["chosen_by"]), _cell(row["held_out"])]


def _facts(document: Mapping[str, Any]) -> dict[str, str]:
    sources = ", ".join(f"{name} {whole(count)}" for name, count in document["sources"].items())
    return {
        "Frames": whole(document["frames"]),
        "Episodes": whole(document["episodes"]),
        "From": sources,
        "Rewards": whole(len(document["rewards"])),
    }


# -- figures -----------------------------------------------------------------------------------------------------------


def landscapes(data: Mapping[str, Any] | None, rewards: Mapping[str, Any]) -> str:
    """Plot the reward over the task's states, a map for each reward, the ground truth first; the goal is outlined."""
    if data is None:
        return ""
    maps = dict(list(data["rewards"].items())[:MOST_LANDSCAPES])
    if data["truth"] is not None:
        maps = {TRUTH: data["truth"], **maps}
    axes = [np.asarray(axis["values"], np.float64) for axis in data["axes"]]
    labels = [f"{axis['name']} ({axis['unit']})" if axis["unit"] else str(axis["name"]) for axis in data["axes"]]
    goal = None if data["goal"] is None else np.asarray(data["goal"], bool)
    svgs = []
    for name, nested in maps.items():
        values = np.asarray(nested, np.float64)
        epic = _value(rewards.get(name, {}), "epic", "value")
        title = _short(name) if epic is None else f"{_short(name)} · EPIC {_two(epic)}"
        draw = _curve_of_states if len(axes) == 1 else _map_of_states
        svgs.append(draw(axes, labels, values, goal, title))
    return "".join(svgs)


def _map_of_states(
    axes: Sequence[np.ndarray], labels: Sequence[str], values: np.ndarray, goal: np.ndarray | None, title: str
) -> str:
    with plots.new_figure(*plots.PLOT) as figure:
        panel = figure.subplots()
        panel.grid(False)
        image = panel.pcolormesh(axes[0], axes[1], values.T, shading="nearest", rasterized=True)
        figure.colorbar(image, ax=panel, pad=0.02, aspect=24).outline.set_visible(False)
        if goal is not None and goal.any() and not goal.all():
            panel.contour(axes[0], axes[1], goal.T.astype(float), levels=[0.5], colors=[plots.ORANGE], linewidths=1.6)
        panel.set(title=title, xlabel=labels[0], ylabel=labels[1])
        return plots.as_svg(figure)


def _curve_of_states(
    axes: Sequence[np.ndarray], labels: Sequence[str], values: np.ndarray, goal: np.ndarray | None, title: str
) -> str:
    with plots.new_figure(*plots.PLOT) as figure:
        panel = figure.subplots()
        panel.plot(axes[0], values, color=plots.BLUE, linewidth=1.6)
        if goal is not None and goal.any():
            panel.plot(axes[0][goal], values[goal], "o", color=plots.ORANGE, markersize=3.2, label="goal")
        panel.set(title=title, xlabel=labels[0], ylabel="reward")
        panel.margins(x=0.01)
        return plots.as_svg(figure)


def progress(data: Mapping[str, Any] | None) -> str:
    """Plot each reward over per cent of the expert's episodes, a panel each, the ground truth first: mean, and band."""
    if data is None:
        return ""
    svgs = []
    for name, curve in list(data["curves"].items())[: MOST_CURVES + 1]:
        with plots.new_figure(*plots.PLOT) as figure:
            panel = figure.subplots()
            colour = plots.INK if name == TRUTH else plots.BLUE
            along = np.linspace(0, 100, len(curve["mean"]))
            panel.fill_between(along, curve["low"], curve["high"], color=colour, alpha=0.16, linewidth=0)
            panel.plot(along, curve["mean"], color=colour, linewidth=1.6)
            panel.set(title=_short(name), xlabel="% of the episode", ylim=(-0.03, 1.03), xlim=(0, 100))
            svgs.append(plots.as_svg(figure))
    return "".join(svgs)


def _strip(data: Mapping[str, Any] | None, pictures: Mapping[int, np.ndarray]) -> dict[str, Any] | None:
    """Template values of the film strip, with all rewards over the same episode below it."""
    if data is None:
        return None
    with plots.new_figure(6.4, 2.6) as figure:
        panel = figure.subplots()
        for index, (name, values) in enumerate(list(data["curves"].items())[: MOST_CURVES + 1]):
            colour, dashes = plots.line_style(index - 1)
            style: dict[str, Any] = {"color": colour, "linestyle": (0, dashes) if dashes else "solid"}
            if name == TRUTH:
                style = {"color": plots.INK, "linestyle": "dotted"}
            heights = np.array([np.nan if value is None else value for value in values], np.float64)
            panel.plot(np.arange(len(heights)), heights, linewidth=1.5, label=_short(name), **style)
        for step in data["steps"]:
            panel.axvline(step - data["steps"][0], color=plots.GREY, linewidth=0.7, linestyle=(0, (2, 3)))
        panel.set(xlabel="step", ylim=(-0.03, 1.03))
        panel.margins(x=0.01)
        plots.shared_legend(figure, [panel], columns=4)
        curve = plots.as_svg(figure)
    shots = [
        {"picture": png(pictures[row]), "step": step}
        for row, step in zip(data["rows"], data["steps"], strict=True)
        if row in pictures
    ]
    return {"source": data["source"], "shots": shots, "curve": curve}


def _shots(frames: Mapping[str, Any], pictures: Mapping[int, np.ndarray]) -> list[RewardShots]:
    """Frames of each reward, as far as there are pictures."""
    shots = []
    for name, rows_by_kind in frames.items():
        kinds = {}
        for kind, title in KINDS.items():
            rows = [row for row in rows_by_kind.get(kind, ()) if row in pictures]
            if rows:
                kinds[title] = [png(pictures[row]) for row in rows]
        if kinds:
            shots.append(RewardShots(name, kinds))
    return shots


def png(frame: np.ndarray) -> str:
    """A frame uint8[H, W, 3] as a data URL."""
    from PIL import Image

    buffer = io.BytesIO()
    Image.fromarray(frame).save(buffer, "PNG", optimize=True)
    return data_url(buffer.getvalue())


# -- texts -------------------------------------------------------------------------------------------------------------


def _value(reward: Mapping[str, Any], measure: str, key: str) -> Any:
    """A number or text of a measure; None if it was not taken."""
    return _block(reward, measure).get(key)


def _block(values: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    block = values.get(name)
    return block if isinstance(block, Mapping) else {}


def _with_interval(measure: Mapping[str, Any]) -> str:
    if measure["low"] is None:
        return _two(measure["value"])
    return f"{_two(measure['value'])} (95{NO_BREAK}% interval {_two(measure['low'])} to {_two(measure['high'])})"


def _two(value: float) -> str:
    return f"{value:.2f}".replace("-", "−")


def _short(name: str) -> str:
    return name if len(name) <= 34 else f"{name[:33]}…"
