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
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Metrics = Sequence[Mapping[str, Any]]
"""Metrics, the lines of `metrics.jsonl`: each has "step" and any of the other keys."""
Series = tuple[np.ndarray, np.ndarray]
"""Data series, steps and values: float64[N] each."""

# Okabe and Ito's palette, which colour-blind readers can tell apart.
BLUE, ORANGE, INK, GREY = "#0072B2", "#D55E00", "#334155", "#A3AEBB"
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

    def has(*keys: str) -> bool:
        return any(len(_series(metrics, key)[0]) for key in keys)

    def reward(axes: Axes) -> None:
        _panel(axes, reward_name, metrics, ("rollout/reward", "evaluation/reward"))

    def success(axes: Axes) -> None:
        band = ("evaluation/ci_low", "evaluation/ci_high")
        _panel(axes, "Success rate", metrics, ("rollout/success", "evaluation/success_rate"), band)
        if has("evaluation/truthful_replies"):
            axes.set_title("Success rate, and true replies")
            truth = _series(metrics, "evaluation/truthful_replies")
            axes.plot(*truth, color=ORANGE, linewidth=1.6, label="true replies", **MARKED | {"marker": "s"})
        as_percentages(axes)

    def returned(axes: Axes) -> None:
        band = ("evaluation/return_ci_low", "evaluation/return_ci_high")
        _panel(axes, "Ground-truth return", metrics, ("rollout/return", "evaluation/return"), band)

    drawn = [reward] * has("rollout/reward", "evaluation/reward")
    drawn += [success] * has("rollout/success", "evaluation/success_rate") + [returned]
    plots = []
    for draw in drawn:
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
    drawn = []
    for measure, title in COMPARED.items():
        curves = [_band([_evaluated(metrics, measure) for metrics in runs]) for runs in combinations]
        if curves and all(len(curve[0]) for curve in curves):
            drawn.append((measure, title, curves))
    if not drawn:
        return "", []
    panels = []
    for measure, title, curves in drawn:
        with new_figure(*PLOT) as figure:
            panel, last = figure.subplots(), 1.0
            for index, (steps, mean, low, high) in enumerate(curves):
                colour, dashes = line_style(index)
                panel.fill_between(steps, low, high, color=colour, alpha=0.14, linewidth=0)
                style: Any = (0, dashes) if dashes else "solid"
                panel.plot(steps, mean, color=colour, linestyle=style, linewidth=1.6, marker="o", markersize=2.6)
                last = max(last, float(steps[-1]))
            _finish(panel, title)
            panel.set_xlim(0, last * 1.02)
            if measure == "success_rate":
                as_percentages(panel)
            panels.append(as_svg(figure))
    return "".join(panels), [title for _, title, _ in drawn]


def _evaluated(metrics: Metrics, measure: str) -> Series:
    """Series of a measure as it was evaluated; of a run without evaluations of it, as training saw it."""
    found = _series(metrics, f"evaluation/{measure}")
    return found if len(found[0]) else _series(metrics, f"rollout/{measure.removesuffix('_rate')}")


def _band(runs: Sequence[Series]) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Steps that all runs with any value share, and the mean, lowest and highest value at each: float64[N] each."""
    known = [dict(zip(steps.tolist(), values.tolist(), strict=True)) for steps, values in runs if len(steps)]
    shared = sorted(set.intersection(*map(set, known))) if known else []
    values = np.array([[run[step] for step in shared] for run in known]).reshape(len(known), len(shared))
    if not shared:
        return np.array([]), np.array([]), np.array([]), np.array([])
    return np.array(shared), values.mean(axis=0), values.min(axis=0), values.max(axis=0)


def teaching_curves(metrics: Metrics) -> str:
    """Plot the labels of a teacher, its accuracy, and the fit of the reward model, side by side over the run.

    A panel without any value is left out.

    Args:
        metrics: `labels/…` and `reward/…` of each round of questions; the last step of all ends the axis.

    Returns:
        SVG text; empty if there was no round.
    """
    panels: list[tuple[str, list[tuple[str, str, str]]]] = [
        ("Questions", [("labels/asked", "asked", GREY), ("labels/kept", "usable answers", BLUE)]),
        (
            "Accuracy",
            [
                ("labels/accuracy", "labels, by ground truth", ORANGE),
                ("reward/held_out_accuracy", "learned reward, held-out labels", BLUE),
            ],
        ),
        ("Rank correlation with ground truth", [("reward/rank_correlation", "learned reward", BLUE)]),
    ]
    known = [(title, lines) for title, lines in panels if any(len(_series(metrics, key)[0]) for key, _, _ in lines)]
    if not known:
        return ""
    plots = []
    for title, lines in known:
        with new_figure(*PLOT) as figure:
            panel = figure.subplots()
            for key, name, colour in lines:
                steps, values = _series(metrics, key)
                # The curve of questions lies under that of usable labels and is often hidden by it: it is drawn wider.
                wide = {"linewidth": 4.5, "markersize": 7.0} if key == "labels/asked" else {}
                if len(steps):
                    panel.plot(steps, values, color=colour, label=name, **{"linewidth": 1.6, **MARKED, **wide})
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
    panels: list[tuple[str, list[tuple[str, str, str]]]] = [
        (
            "KL divergence, nats per reply",
            [
                ("update/kl_reference", "from the model before RL", BLUE),
                ("update/kl_old", "from the model that played", GREY),
            ],
        ),
        (
            "Entropy, nats",
            [("update/entropy", "per token", BLUE), ("update/choice_entropy", "among legal actions", ORANGE)],
        ),
        (
            "Replies without a legal action",
            [("rollout/illegal", "illegal", ORANGE), ("rollout/unparsable", "unparsable", BLUE)],
        ),
        ("Tokens per reply", [("rollout/reply_tokens", "mean", BLUE)]),
        ("Learning rate", [("update/learning_rate", "of the optimiser", GREY)]),
    ]
    drawn = [
        (title, [(name, colour, line) for key, name, colour in lines if len((line := _series(metrics, key))[0])])
        for title, lines in panels
    ]
    known = [(title, lines) for title, lines in drawn if lines]
    if not known:
        return ""
    plots = []
    for title, lines in known:
        with new_figure(*PLOT) as figure:
            panel = figure.subplots()
            for name, colour, (steps, values) in lines:
                panel.plot(steps, values, color=colour, linewidth=1.4, marker="o", markersize=2.2, label=name)
            _finish(panel, title)
            _over_turns(panel, metrics)
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


def _over_turns(axes: Axes, metrics: Metrics) -> None:
    axes.set_xlim(0, _last_step(metrics) * 1.02)
    axes.set_xlabel("turns played")


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
    with new_figure(5.6, 2.6 if len(axes) == 1 else 3.6) as figure:
        plot = figure.subplots()
        plot.set_xlabel(_axis_label(data["axes"][0]))
        if len(axes) == 1:
            plot.plot(axes[0], reward, color=BLUE, linewidth=1.8)
            plot.set_ylabel("reward")
            if np.isfinite(reward).any():
                best = int(np.nanargmax(reward))
                plot.plot(axes[0][best], reward[best], "o", color=ORANGE, markersize=5.5)
            plot.margins(x=0.01)
        else:
            plot.set_ylabel(_axis_label(data["axes"][1]))
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

    with new_figure(6.4, 2.8) as figure:
        plot = figure.subplots()
        plot.plot(np.arange(len(rewards)), rewards, color=BLUE, linewidth=1.6, marker="o" if len(rewards) == 1 else "")
        plot.set(title=title, xlabel="frame", ylabel="reward")
        plot.xaxis.set_major_locator(MaxNLocator(integer=True, steps=[1, 2, 5, 10]))
        plot.margins(x=0.01)
        return _saved(figure, "png", dpi=200)


def _panel(
    axes: Axes, title: str, metrics: Metrics, keys: tuple[str, str], band: tuple[str, str] | None = None
) -> None:
    rollout, evaluation = (_series(metrics, key) for key in keys)
    if len(rollout[0]):
        axes.plot(*rollout, color=GREY, linewidth=0.9, label="training")
    if band is not None:
        low, high = (_series(metrics, key) for key in band)
        if len(low[0]) and np.array_equal(low[0], high[0]):
            axes.fill_between(low[0], low[1], high[1], color=BLUE, alpha=0.16, linewidth=0, label="95 % interval")
    if len(evaluation[0]):
        axes.plot(*evaluation, color=BLUE, linewidth=1.6, label="evaluation", **MARKED)
    _finish(axes, title)
    if not len(rollout[0]) and not len(evaluation[0]):
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
    entries: dict[str, Any] = {}
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
    return next(iter(values_of(metrics, key)[::-1]), None)


def points(metrics: Metrics, key: str) -> list[tuple[float, float]]:
    """(step, value) of a metric in order of steps."""
    steps, values = _series(metrics, key)
    return list(zip(steps.tolist(), values.tolist(), strict=True))


def _series(metrics: Metrics, key: str) -> Series:
    """Series of one metric in order of steps; where a resumed run wrote a step again, the later line counts."""
    points = {
        float(line["step"]): float(line[key])
        for line in metrics
        if is_number(line.get("step")) and is_number(line.get(key))
    }
    steps = sorted(points)
    return np.array(steps), np.array([points[step] for step in steps])


def _last_step(metrics: Metrics) -> float:
    return max((float(line["step"]) for line in metrics if is_number(line.get("step"))), default=1.0) or 1.0


def is_number(value: Any) -> bool:
    """Test that a metric is present and finite."""
    return isinstance(value, (int, float)) and math.isfinite(value)


def _axis_label(axis: Mapping[str, Any]) -> str:
    return f"{axis['name']} ({axis['unit']})" if axis.get("unit") else str(axis["name"])


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
    return f"var(--{VARIABLES[colour]}, {colour})" if colour in VARIABLES else colour


def _saved(figure: Figure, kind: str, **options: Any) -> bytes:
    buffer = io.BytesIO()
    figure.savefig(buffer, format=kind, **options)
    return buffer.getvalue()
