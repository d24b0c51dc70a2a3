"""What people say of a data set's frames or episodes, as a table beside it: `human_labels.csv`.

A row is one answer, with columns of vlmrm's and more: checkpoint, rollout, step, human_label (1 where the goal is
reached, 0 where it is not, empty where the person is unsure), unit (frame or episode), rater, again, seconds, success
(1 or 0 as the environment states it of the same frame or episode, empty where it does not).
"""

from __future__ import annotations

import csv
import io
import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from sightline.datasets.stored import StoredEpisode
from sightline.datasets.tables import read_table
from sightline.errors import Damaged
from sightline.runs.files import read_text, write_atomically

FILE = "human_labels.csv"
COLUMNS = ("checkpoint", "rollout", "step", "human_label", "unit", "rater", "again", "seconds", "success")


@dataclass(frozen=True)
class HumanLabel:
    """Answer of a person.

    Attributes:
        source: of the episode.
        episode, step: which frame; of an episode its last step.
        value: 1.0 reached, 0.0 not; None: unsure.
        is_episode: whether the whole episode was judged.
        rater: the person's name.
        again: whether the same was asked before, to see whether the person says the same.
        success: what the environment states of the same; None where it does not.
    """

    source: str
    episode: int
    step: int
    value: float | None
    is_episode: bool
    rater: str
    again: bool
    seconds: float
    success: bool | None = None


def write_human_labels(folder: Path, labels: Sequence[HumanLabel]) -> Path:
    """Write the table, atomically.

    Raises:
        OSError: it cannot be written.
    """
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(COLUMNS)
    for label in labels:
        value = "" if label.value is None else label.value
        unit = "episode" if label.is_episode else "frame"
        place = [label.source, label.episode, label.step]
        success = "" if label.success is None else int(label.success)
        table.writerow([*place, value, unit, label.rater, int(label.again), round(label.seconds, 1), success])
    write_atomically(folder / FILE, text.getvalue().encode())
    return folder / FILE


def read_human_labels(folder: Path) -> list[HumanLabel]:
    """Read the table of a data set; empty where there is none.

    Raises:
        Damaged: a row is none.
    """
    try:
        text = read_text(folder / FILE)
    except FileNotFoundError:
        return []
    labels: list[HumanLabel] = []
    table = read_table(io.StringIO(text.removeprefix("\ufeff"), newline=""), f"{folder / FILE}")
    try:
        for row in table.rows:
            labels.append(_label(row))  # noqa: PERF401 - the row that is none is counted
    except (KeyError, TypeError, ValueError, csv.Error) as error:
        raise Damaged(f"'{folder / FILE}' is damaged: row {len(labels) + 1} is no label") from error
    return labels


def _label(row: dict[str, Any]) -> HumanLabel:
    value = float(row["human_label"]) if row["human_label"] else None
    if value is not None and not 0 <= value <= 1:
        raise ValueError(f"{value} is not between 0 and 1")
    flag = row.get("success")  # tables of older versions do not have it
    return HumanLabel(
        source=row["checkpoint"],
        episode=int(row["rollout"]),
        step=int(row["step"]),
        value=value,
        is_episode=row["unit"] == "episode",
        rater=row["rater"],
        again=row["again"] == "1",
        seconds=float(row["seconds"]),
        success={"1": True, "0": False}[flag] if flag else None,
    )


def labels_by_frame(labels: Sequence[HumanLabel]) -> dict[tuple[int, int], list[float]]:
    """(episode, step) -> what people say of it, without those who are unsure.

    What was asked again does not count twice, and an episode that was judged as a whole is judged at its last step.
    """
    said: dict[tuple[int, int], list[float]] = defaultdict(list)
    for label in labels:
        if label.value is not None and not label.again:
            said[label.episode, label.step].append(label.value)
    return dict(said)


def with_human_labels(episodes: Iterator[StoredEpisode], labels: Sequence[HumanLabel]) -> Iterator[StoredEpisode]:
    """Episodes with what people say of their frames (`StoredEpisode.human`), on average."""
    said = labels_by_frame(labels)
    judged = {episode for episode, _ in said}
    for episode in episodes:
        if episode.index not in judged:
            yield episode
            continue
        human = [np.mean(said.get((episode.index, step), math.nan)) for step in range(episode.steps)]
        yield replace(episode, human=np.array(human, np.float32))
