"""Plots as SVG text or PNG bytes: learning curves, reward landscapes, the reward along a video.

Figures are made without pyplot, so nothing global changes and no display is needed. SVG text stays text: the page that
holds a plot chooses the font.
"""

from __future__ import annotations

import io
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import reduce
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Metrics = Sequence[Mapping[str, Any]]
"""Metrics, the lines of `metrics.jsonl`: each has "step" and any of the other keys."""
Series = tuple[np.ndarray, np.ndarray]
"""Data series, steps and values: float64[N] each."""
Band = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]
"""Steps, and the mean, lowest and highest value at each: float64[N] each."""
Line = tuple[str, str, str]
"""Line of a panel: its metric, its name in the legend, its colour."""

# Okabe and Ito's palette, which colour-blind readers can tell apart.
BLUE = "#0072B2"
ORANGE = "#D55E00"
INK = "#334155"
GREY = "#A3AEBB"
PLOT = (3.0, 2.7)
"""Width and height of a plot in inches; pages set several side by side, or below each other where they are narrow."""
MARKED: dict[str, Any] = {"marker": "o", "markersize": 3.6}
STYLE: dict[Any, Any] = {
    "font.family": "DejaVu Sans",
    "font.size": 8.5,
    "text.color": INK,
    "figure.facecolor": "none",
    "axes.facecolor": "none",
    "axes.edgecolor": "#CBD5E1",
    "axes.labelcolor": INK,
    "axes.titlesize": 9,
    "axes.titlelocation": "left",
    "axes.titlepad": 8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.formatter.useoffset": False,
    "grid.color": "#E9EEF3",
    "grid.linewidth": 0.8,
    "xtick.color": "#CBD5E1",
    "ytick.color": "#CBD5E1",
    "xtick.labelcolor": "#64748B",
    "ytick.labelcolor": "#64748B",
    "legend.frameon": False,
    "lines.solid_capstyle": "round",
    "lines.solid_joinstyle": "round",
    "image.cmap": "viridis",
    "text.parse_math": False,  # words may contain dollars
    "svg.fonttype": "none",
    "svg.hashsalt": "sightline",  # equal data give equal files
}


VARIABLES = {
    BLUE: "accent",
    ORANGE: "orange",
    INK: "ink",
    GREY: "faint",
    "#64748B": "muted",
    "#94A3B8": "muted",
    "#CBD5E1": "line",
    "#E9EEF3": "line",
    "#009E73": "right",
}
"""Colour -> the page's variable that replaces it, so that plots follow light and dark."""


def learning_curves(
    metrics: Metrics, chosen_step: int | None = None, reward_name: str = "Reward under the words"
) -> str:
    """Plot reward, success and ground-truth return over training, a plot each.

    Without any success, or any evaluated reward, there is no such plot. An agent's true replies share that of success:
    one that is rewarded for winning alone may learn to win while its statements turn into noise. Missing keys leave
    gaps; values that are not finite are left out.

    Args:
        metrics: `rollout/…` are drawn as thin lines, `evaluation/…` with markers.
        chosen_step: marked by a dashed line.
        reward_name: the name of the reward that the learner was trained on.

    Returns:
        SVG text, one document after the other.
    """

    def draw_reward(axes: Axes) -> None:
        _draw_curve(axes, reward_name, metrics, ("rollout/reward", "evaluation/reward"))

    def draw_success(axes: Axes) -> None:
        band = ("evaluation/ci_low", "evaluation/ci_high")
        _draw_curve(axes, "Success rate", metrics, ("rollout/success", "evaluation/success_rate"), band)
        if _has_values(metrics, "evaluation/truthful_replies"):
            axes.set_title("Success rate, and true replies")
            steps, shares = _series(metrics, "evaluation/truthful_replies")
            axes.plot(steps, shares, color=ORANGE, linewidth=1.6, label="true replies", **MARKED | {"marker": "s"})
        as_percentages(axes)

    def draw_return(axes: Axes) -> None:
        band = ("evaluation/return_ci_low", "evaluation/return_ci_high")
        _draw_curve(axes, "Ground-truth return", metrics, ("rollout/return", "evaluation/return"), band)

    panels = []
    if _has_values(metrics, "rollout/reward", "evaluation/reward"):
        panels.append(draw_reward)
    if _has_values(metrics, "rollout/success", "evaluation/success_rate"):
        panels.append(draw_success)
    panels.append(draw_return)
    plots = []
    # A figure each, since the page sets them side by side or below each other by its width.
    for draw in panels:
        with new_figure(*PLOT) as figure:
            axes = figure.subplots()
            draw(axes)
            axes.set_xlim(0, _last_step(metrics) * 1.02)
            if chosen_step is not None:
                axes.axvline(chosen_step, color=ORANGE, linestyle=(0, (4, 3)), linewidth=1.1, label="chosen checkpoint")
            shared_legend(figure, [axes], columns=2)
            plots.append(as_svg(figure))
    return "".join(plots)


COMPARED = {
    "success_rate": "Success rate",
    "reward": "Reward",
    "return": "Ground-truth return",
}
"""Measures whose curves are compared: name -> title."""
_COMPARED_COLOURS = (BLUE, ORANGE, "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#7F8A98")
_COMPARED_DASHES = ((), (6.0, 2.0), (2.0, 1.5))


def line_style(index: int) -> tuple[str, tuple[float, ...]]:
    """Colour and dashes of the curve with this index in a comparison, for plots and for their legends in pages."""
    colours, dashes = len(_COMPARED_COLOURS), len(_COMPARED_DASHES)
    return _COMPARED_COLOURS[index % colours], _COMPARED_DASHES[index // colours % dashes]


def compared_curves(combinations: Sequence[Sequence[Metrics]]) -> tuple[str, list[str]]:
    """Plot evaluated success, reward and return of several combinations over training, each in a panel.

    A line is the mean over a combination's runs, the band is from the lowest to the highest of them. A panel is drawn
    if every combination has its measure. The legend is left to the page (`line_style`).

    Args:
        combinations: the metrics of the runs of each.

    Returns:
        SVG text, one document after the other, empty if there is nothing to compare; and the titles of the panels.
    """
    plots = []
    titles = []
    for measure, title in COMPARED.items():
        curves = [_compared_curve(runs, measure) for runs in combinations]
        # A curve for some of them would invite to compare what was not measured alike.
        every_curve_has_values = all(len(steps) for steps, *_ in curves)
        if curves and every_curve_has_values:
            plots.append(_compared_panel(curves, title, as_rate=measure == "success_rate"))
            titles.append(title)
    return "".join(plots), titles


def _compared_panel(curves: Sequence[Band], title: str, as_rate: bool) -> str:
    """Plot the curves of several combinations as SVG text."""
    with new_figure(*PLOT) as figure:
        panel = figure.subplots()
        last_step = 1.0
        for index, (steps, mean, low, high) in enumerate(curves):
            colour, dashes = line_style(index)
            line: Any = (0, dashes) if dashes else "solid"
            panel.fill_between(steps, low, high, color=colour, alpha=0.14, linewidth=0)
            panel.plot(steps, mean, color=colour, linestyle=line, linewidth=1.6, marker="o", markersize=2.6)
            last_step = max(last_step, float(steps[-1]))
        _finish(panel, title)
        panel.set_xlim(0, last_step * 1.02)
        if as_rate:
            as_percentages(panel)
        return as_svg(figure)


def _compared_curve(runs: Sequence[Metrics], measure: str) -> Band:
    return _band([_evaluated(metrics, measure) for metrics in runs])


def _evaluated(metrics: Metrics, measure: str) -> Series:
    """Series of a measure as it was evaluated; of a run without evaluations of it, as training saw it."""
    # Training plays with exploration, and scores are noisier; better than no curve.
    steps, values = _series(metrics, f"evaluation/{measure}")
    if not len(steps):
        return _series(metrics, f"rollout/{measure.removesuffix('_rate')}")
    return steps, values


def _band(runs: Sequence[Series]) -> Band:
    """Steps that all runs with any value share, and the mean, lowest and highest value at each: float64[N] each."""
    # Seeds are evaluated at the same steps, as far as each has come; the mean is over all of them, or none.
    measured = [(steps, values) for steps, values in runs if len(steps)]
    shared = np.array([])
    if measured:
        shared = reduce(np.intersect1d, [steps for steps, _ in measured])
    if not len(shared):
        return np.array([]), np.array([]), np.array([]), np.array([])
    by_run = np.stack([values[np.isin(steps, shared)] for steps, values in measured])  # float[runs, steps]
    return shared, by_run.mean(axis=0), by_run.min(axis=0), by_run.max(axis=0)


def teaching_curves(metrics: Metrics) -> str:
    """Plot the labels of a teacher, its accuracy, and the fit of the reward model, side by side over the run.

    A panel without any value is left out.

    Args:
        metrics: `labels/…` and `reward/…` of each round of questions; the last step of all ends the axis.

    Returns:
        SVG text; empty if there was no round.
    """
    panels: dict[str, list[Line]] = {
        "Questions": [("labels/asked", "asked", GREY), ("labels/kept", "usable answers", BLUE)],
        "Accuracy": [
            ("labels/accuracy", "labels, by ground truth", ORANGE),
            ("reward/held_out_accuracy", "learned reward, held-out labels", BLUE),
        ],
        "Rank correlation with ground truth": [("reward/rank_correlation", "learned reward", BLUE)],
    }
    plots = []
    for title, lines in panels.items():
        if not _has_values(metrics, *(key for key, _, _ in lines)):
            continue
        with new_figure(*PLOT) as figure:
            panel = figure.subplots()
            for key, name, colour in lines:
                steps, values = _series(metrics, key)
                style = {"linewidth": 1.6, **MARKED}
                if key == "labels/asked":
                    # This curve lies under that of usable labels and is often hidden by it: it is drawn wider.
                    style |= {"linewidth": 4.5, "markersize": 7.0}
                if len(steps):
                    panel.plot(steps, values, color=colour, label=name, **style)
            _finish(panel, title)
            panel.set_xlim(0, _last_step(metrics) * 1.02)
            if title == "Questions":
                panel.set_ylim(bottom=0)
            elif title == "Accuracy":
                as_percentages(panel)
            else:
                panel.set_ylim(min(0.0, panel.get_ylim()[0]) - 0.03, 1.03)
            shared_legend(figure, [panel], columns=1)
            plots.append(as_svg(figure))
    return "".join(plots)


def agent_vitals(metrics: Metrics) -> str:
    """Plot diagnostics of an agent's training, side by side; a panel without any value is left out.

    Returns:
        SVG text; empty if nothing of this was recorded.
    """
    panels: dict[str, list[Line]] = {
        "KL divergence, nats per reply": [
            ("update/kl_reference", "from the model before RL", BLUE),
            ("update/kl_old", "from the model that played", GREY),
        ],
        "Entropy, nats": [
            ("update/entropy", "per token", BLUE),
            ("update/choice_entropy", "among legal actions", ORANGE),
        ],
        "Replies without a legal action": [
            ("rollout/illegal", "illegal", ORANGE),
            ("rollout/unparsable", "unparsable", BLUE),
        ],
        "Tokens per reply": [("rollout/reply_tokens", "mean", BLUE)],
        "Learning rate": [("update/learning_rate", "of the optimiser", GREY)],
    }
    plots = []
    for title, lines in panels.items():
        if not _has_values(metrics, *(key for key, _, _ in lines)):
            continue
        with new_figure(*PLOT) as figure:
            panel = figure.subplots()
            for key, name, colour in lines:
                steps, values = _series(metrics, key)
                if len(steps):
                    panel.plot(steps, values, color=colour, linewidth=1.4, marker="o", markersize=2.2, label=name)
            _finish(panel, title)
            panel.set_xlim(0, _last_step(metrics) * 1.02)
            panel.set_xlabel("turns played")
            # Zero belongs to the axis, so that small changes do not look large.
            if title == "Replies without a legal action":
                panel.set_ylim(-0.01, max(0.1, panel.get_ylim()[1]))
                panel.yaxis.set_major_formatter(_percent_ticks())
            elif title != "Tokens per reply":
                panel.set_ylim(bottom=min(0.0, panel.get_ylim()[0]))
            if title == "Learning rate":
                panel.ticklabel_format(axis="y", style="sci", scilimits=(-2, 3))
            shared_legend(figure, [panel], columns=1)
            plots.append(as_svg(figure))
    return "".join(plots)


def landscape(data: Mapping[str, Any]) -> str:
    """Plot the reward over states of the environment: a curve over one axis, a heat map over two.

    Args:
        data: `{"axes": [{"name", "unit", "values": [A]}, …], "reward": nested list}`; the first axis is horizontal, the
            second vertical, and `reward[i][j]` belongs to the i-th value of the first and the j-th of the second.

    Returns:
        SVG text.
    """
    axes = [np.asarray(axis["values"], np.float64) for axis in data["axes"]]
    reward = np.asarray(data["reward"], np.float64)
    if len(axes) not in (1, 2) or reward.shape != tuple(len(axis) for axis in axes):
        raise ValueError(f"a landscape of {len(axes)} axes and reward of shape {reward.shape} cannot be drawn")
    labels = [_axis_label(axis) for axis in data["axes"]]
    if len(axes) == 1:
        return _reward_curve(axes[0], labels[0], reward)
    return _heat_map(axes, labels, reward)


def _reward_curve(states: np.ndarray, label: str, reward: np.ndarray) -> str:
    """Plot float[A] rewards over one axis of states, with a dot at the highest."""
    with new_figure(5.6, 2.6) as figure:
        plot = figure.subplots()
        plot.set_xlabel(label)
        plot.plot(states, reward, color=BLUE, linewidth=1.8)
        plot.set_ylabel("reward")
        if np.isfinite(reward).any():
            best = int(np.nanargmax(reward))
            plot.plot(states[best], reward[best], "o", color=ORANGE, markersize=5.5)
        plot.margins(x=0.01)
        return as_svg(figure)


def _heat_map(axes: Sequence[np.ndarray], labels: Sequence[str], reward: np.ndarray) -> str:
    """Plot float[A, B] rewards over two axes of states, with a ring around the highest."""
    with new_figure(5.6, 3.6) as figure:
        plot = figure.subplots()
        plot.set_xlabel(labels[0])
        plot.set_ylabel(labels[1])
        plot.grid(False)
        # As pixels: thousands of vector cells would make the page slow and show seams.
        image = plot.pcolormesh(axes[0], axes[1], reward.T, shading="nearest", rasterized=True)
        bar = figure.colorbar(image, ax=plot, pad=0.02, aspect=28)
        bar.outline.set_visible(False)
        bar.set_label("reward")
        if np.isfinite(reward).any():
            i, j = np.unravel_index(int(np.nanargmax(reward)), reward.shape)
            plot.plot(axes[0][i], axes[1][j], "o", markersize=7, markerfacecolor="none", markeredgecolor="white")
        return as_svg(figure)


def score_curve(rewards: np.ndarray, title: str) -> bytes:
    """Plot the reward of each frame of a video.

    Args:
        rewards: float[T].

    Returns:
        A PNG, 1280 pixels wide.
    """
    from matplotlib.ticker import MaxNLocator

    marker = "o" if len(rewards) == 1 else ""  # a line through one point would be invisible
    with new_figure(6.4, 2.8) as figure:
        plot = figure.subplots()
        plot.plot(np.arange(len(rewards)), rewards, color=BLUE, linewidth=1.6, marker=marker)
        plot.set(title=title, xlabel="frame", ylabel="reward")
        plot.xaxis.set_major_locator(MaxNLocator(integer=True, steps=[1, 2, 5, 10]))
        plot.margins(x=0.01)
        return _saved(figure, "png", dpi=200)


def _draw_curve(
    axes: Axes, title: str, metrics: Metrics, keys: tuple[str, str], band: tuple[str, str] | None = None
) -> None:
    """Draw a measure over training.

    Args:
        keys: its metrics in training and in evaluation.
        band: the metrics of its interval's ends in evaluation.
    """
    in_training, in_evaluation = keys
    # Training first: its curve is many thin points, which the evaluations are to lie upon.
    if _has_values(metrics, in_training):
        steps, values = _series(metrics, in_training)
        axes.plot(steps, values, color=GREY, linewidth=0.9, label="training")
    if band is not None:
        steps, low = _series(metrics, band[0])
        steps_of_high, high = _series(metrics, band[1])
        if len(steps) and np.array_equal(steps, steps_of_high):
            axes.fill_between(steps, low, high, color=BLUE, alpha=0.16, linewidth=0, label="95 % interval")
    if _has_values(metrics, in_evaluation):
        steps, values = _series(metrics, in_evaluation)
        axes.plot(steps, values, color=BLUE, linewidth=1.6, label="evaluation", **MARKED)
    _finish(axes, title)
    if not _has_values(metrics, in_training, in_evaluation):
        axes.set_yticks([])
        axes.text(0.5, 0.5, "not recorded", transform=axes.transAxes, ha="center", va="center", color="#94A3B8")


def _finish(axes: Axes, title: str) -> None:
    """Set the title, and ticks over steps."""
    from matplotlib.ticker import EngFormatter, MaxNLocator

    axes.set(title=title, xlabel="step")
    axes.xaxis.set_major_locator(MaxNLocator(4, steps=[1, 2, 5, 10]))
    axes.yaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 5, 10]))
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))


def as_percentages(axes: Axes) -> None:
    from matplotlib.ticker import MultipleLocator

    axes.set_ylim(-0.03, 1.03)
    axes.yaxis.set_major_locator(MultipleLocator(0.25))
    axes.yaxis.set_major_formatter(_percent_ticks())


def _percent_ticks() -> Any:
    from matplotlib.ticker import PercentFormatter

    return PercentFormatter(1.0, decimals=0, symbol=" %")


def shared_legend(figure: Figure, panels: Sequence[Axes], columns: int | None = None) -> None:
    """Add one legend below all panels, with each kind of line once."""
    entries: dict[str, Any] = {}  # label -> the first line that has it
    for panel in panels:
        for handle, label in zip(*panel.get_legend_handles_labels(), strict=True):
            entries.setdefault(label, handle)
    handles, labels = list(entries.values()), list(entries)
    figure.legend(handles, labels, loc="outside lower center", ncols=columns or len(entries), handlelength=1.8)


def values_of(metrics: Metrics, key: str) -> list[float]:
    """All values of a metric, in the order in which they were written."""
    return [line[key] for line in metrics if is_number(line.get(key))]


def last_value(metrics: Metrics, key: str) -> float | None:
    """Latest value of a metric; None if there is none."""
    values = values_of(metrics, key)
    if not values:
        return None
    return values[-1]


def points(metrics: Metrics, key: str) -> list[tuple[float, float]]:
    """(step, value) of a metric in order of steps."""
    steps, values = _series(metrics, key)
    return list(zip(steps.tolist(), values.tolist(), strict=True))


def _series(metrics: Metrics, key: str) -> Series:
    """Series of one metric in order of steps; where a resumed run wrote a step again, the later line counts."""
    by_step = {}
    for line in metrics:
        if is_number(line.get("step")) and is_number(line.get(key)):
            by_step[float(line["step"])] = float(line[key])
    steps = sorted(by_step)
    return np.array(steps), np.array([by_step[step] for step in steps])


def _has_values(metrics: Metrics, *keys: str) -> bool:
    """True if any of these metrics has a value at any step."""
    return any(is_number(line.get("step")) and is_number(line.get(key)) for line in metrics for key in keys)


def _last_step(metrics: Metrics) -> float:
    """Right end of the axis of steps; 1 without any step."""
    steps = [float(line["step"]) for line in metrics if is_number(line.get("step"))]
    return max(steps, default=1.0) or 1.0


def is_number(value: Any) -> bool:
    """Test that a metric is present and finite."""
    return isinstance(value, (int, float)) and math.isfinite(value)


def _axis_label(axis: Mapping[str, Any]) -> str:
    if axis.get("unit"):
        return f"{axis['name']} ({axis['unit']})"
    return str(axis["name"])


@contextmanager
def new_figure(width: float, height: float) -> Iterator[Figure]:
    """Open an empty figure of that size in inches; the plot style applies until the context ends."""
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context(STYLE):
        yield Figure(figsize=(width, height), layout="constrained")


def as_svg(figure: Figure) -> str:
    metadata = dict.fromkeys(("Date", "Creator", "Format", "Type"))
    text = _saved(figure, "svg", dpi=200, metadata=metadata).decode()
    # Neither the prologue nor ids that name nothing may stand in a page that holds several plots.
    text = re.sub(r'<g id="[^"]*"', "<g", text[text.index("<svg") :])
    for colour in VARIABLES:
        text = text.replace(colour.lower(), themed(colour))
    return text


def themed(colour: str) -> str:
    """The colour as a page's style writes it: in light and in dark what plots show it as."""
    if colour not in VARIABLES:
        return colour
    return f"var(--{VARIABLES[colour]}, {colour})"


def _saved(figure: Figure, kind: str, **options: Any) -> bytes:
    buffer = io.BytesIO()
    figure.savefig(buffer, format=kind, **options)
    return buffer.getvalue()
