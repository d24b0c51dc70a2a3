"""Figures of a comparison of rewards, as plain data, and which frames they show.

Everything here is of one set of frames, so that what differs between two curves or two maps is the reward alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from sightline.envs.tasks import Task
from sightline.reward_lab.measures.fooling import most_fooling
from sightline.reward_lab.measures.table import ScoredFrames
from sightline.reward_lab.scoring import LabScores
from sightline.reward_lab.sources import Source

MOST_REWARDS = 6
"""Rewards whose frames are shown."""
SHOWN = 5
"""Frames that are paid best, those in the middle, and those that are paid worst: this many of each."""
IN_STRIP = 8
PERCENTS = 51
"""Points of a curve over an episode, from 0 to 100 %."""
TRUTH = "ground truth"


def figures(scores: LabScores, names: Sequence[str], task: Task, sources: Sequence[Source]) -> dict[str, Any]:
    """All figures that the frames allow, as plain data."""
    shown = {name: _shown_frames(scores.of(name)) for name in names[:MOST_REWARDS]}
    expert = _expert_episodes(scores.frames, sources)
    return {
        "landscapes": _landscapes(scores, names, task),
        "progress": _progress(scores, names, expert),
        "strip": _strip(scores, names, expert),
        "frames": shown,
    }


def frame_rows(figures: dict[str, Any]) -> list[int]:
    """Rows of all frames that the figures show, ascending."""
    rows: set[int] = set()
    for kinds in figures["frames"].values():
        for members in kinds.values():
            rows.update(members)
    if figures["strip"] is not None:
        rows.update(figures["strip"]["rows"])
    return sorted(rows)


def _landscapes(scores: LabScores, names: Sequence[str], task: Task) -> dict[str, Any] | None:
    """Rewards over the task's grid; None without a grid of one or two axes that was scored in full."""
    if task.state_at is None or len(task.axes) > 2:
        return None
    shape = [axis.points for axis in task.axes]
    is_state = np.array([source == "states" for source in scores.frames.sources])[scores.frames.episode]
    if np.count_nonzero(is_state) != np.prod(shape):
        return None

    def grid(values: np.ndarray | None) -> list[Any] | None:
        if values is None:
            return None
        nested: list[Any] = _plain(values[is_state]).reshape(shape).tolist()
        return nested

    axes = []
    for axis in task.axes:
        values = np.linspace(axis.low, axis.high, axis.points)
        axes.append({"name": axis.name, "unit": axis.unit, "values": values.tolist()})
    return {
        "axes": axes,
        "truth": grid(scores.frames.truth),
        "goal": grid(scores.frames.success),
        "rewards": {name: grid(scores.rewards[name]) for name in names},
    }


def _expert_episodes(frames: ScoredFrames, sources: Sequence[Source]) -> list[int]:
    """Numbers of the episodes that show how the goal is reached: of the first source that plays to win, the successful
    ones; all of it where success is not stated."""
    for source in sources:
        if source.still or source.name == "random":
            continue
        lengths = [rows.stop - rows.start for rows in frames.episodes()]
        members = [number for number, name in enumerate(frames.sources) if name == source.name and lengths[number] > 1]
        if frames.success is not None:
            members = [number for number in members if frames.successful[number]] or members
        if members:
            return members
    return []


def _progress(scores: LabScores, names: Sequence[str], expert: Sequence[int]) -> dict[str, Any] | None:
    """Mean and spread of each reward over per cent of the expert's episodes, the ground truth first."""
    if not expert:
        return None
    frames = scores.frames
    episodes = frames.episodes()
    curves = {}
    for name, values in _scaled_by_name(scores, names).items():
        along = []
        for number in expert:
            rows = values[episodes[number]]
            is_known = np.isfinite(rows)
            if is_known.any():
                percent = np.linspace(0, 100, len(rows))
                along.append(np.interp(np.linspace(0, 100, PERCENTS), percent[is_known], rows[is_known]))
        if along:
            low, high = np.percentile(along, [10, 90], axis=0)
            mean = np.mean(along, axis=0)
            curves[name] = {"mean": mean.tolist(), "low": low.tolist(), "high": high.tolist()}
    return {"source": frames.sources[expert[0]], "episodes": len(expert), "curves": curves}


def _strip(scores: LabScores, names: Sequence[str], expert: Sequence[int]) -> dict[str, Any] | None:
    """Frames along the first of the expert's episodes, and every reward over it."""
    if not expert:
        return None
    rows = scores.frames.episodes()[expert[0]]
    places = np.unique(np.linspace(rows.start, rows.stop - 1, IN_STRIP).round().astype(int))
    curves = {}
    for name, values in _scaled_by_name(scores, names).items():
        curves[name] = [float(value) if np.isfinite(value) else None for value in values[rows]]
    return {
        "source": scores.frames.sources[expert[0]],
        "rows": places.tolist(),
        "steps": scores.frames.step[places].tolist(),
        "curves": curves,
    }


def _scaled_by_name(scores: LabScores, names: Sequence[str]) -> dict[str, np.ndarray]:
    """Ground truth and rewards, float64[N], each from 0, its lowest of all frames, to 1; constant ones are left out."""
    candidates = {name: scores.rewards[name] for name in names}
    if scores.frames.truth is not None:
        candidates = {TRUTH: scores.frames.truth, **candidates}
    scaled = {}
    for name, values in candidates.items():
        finite = values[np.isfinite(values)]
        if len(finite) and np.ptp(finite) > 0:
            scaled[name] = (values - finite.min()) / np.ptp(finite)
    return scaled


def _shown_frames(frames: ScoredFrames) -> dict[str, list[int]]:
    """Rows of the frames that are paid best, in the middle and worst, of different episodes; and of those that fool."""
    rows = np.flatnonzero(frames.answered)
    order = rows[np.argsort(frames.rewards[rows], kind="stable")]
    middle = order[np.argsort(np.abs(np.arange(len(order)) - len(order) // 2), kind="stable")]
    shown = {
        "best": _of_different_episodes(frames, order[::-1]),
        "median": _of_different_episodes(frames, middle),
        "worst": _of_different_episodes(frames, order),
    }
    if frames.success is not None and frames.success.any():
        shown["fooling"] = most_fooling(frames)
    return shown


def _of_different_episodes(frames: ScoredFrames, rows: np.ndarray) -> list[int]:
    """The first of these rows, no two of them of one episode."""
    _, places = np.unique(frames.episode[rows], return_index=True)
    return [int(row) for row in rows[np.sort(places)][:SHOWN]]


def _plain(values: np.ndarray) -> np.ndarray:
    """The values as JSON holds them: None where they are not finite."""
    if values.dtype == bool:
        return values
    plain = values.astype(object)
    plain[~np.isfinite(values)] = None
    return plain
