"""Sources from files: pictures with a table of what they show, folders of goal and other pictures, videos.

What cannot be used is named and counted: a line goes to `warn`, and the rest is used.
"""

from __future__ import annotations

import csv
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from sightline.config.decoding import decoded
from sightline.datasets.episode import Episode
from sightline.errors import BadInput
from sightline.evaluation.pictures import IMAGE_SUFFIXES
from sightline.images import file_within, read_image, read_video
from sightline.reward_lab.sources import STILLS, Source

SUCCESS_COLUMNS = ("success", "label", "human_label")
"""Columns that say whether a picture shows the goal; the last is that of vlmrm's human evaluation."""
YES = ("1", "1.0", "1.00", "true", "yes")
NO = ("0", "0.0", "0.00", "false", "no")

Warn = Callable[[str], None]


@dataclass(frozen=True)
class PictureRow:
    """A picture in a table: its file, and what is said of it."""

    file: Path
    success: bool | None
    truth: float | None
    episode: str
    step: float


def labelled_pictures(folder: Path, warn: Warn) -> Source:
    """Pictures of a folder with a CSV file, whose columns are `file`, and any of `success` (or `label`), `truth`,
    `episode` and `step`. Without `episode`, each picture stands alone.

    Raises:
        BadInput: there is no such table, or nothing in it can be used.
    """
    table = _table_of(folder)
    rows = list(_rows(folder, table, warn))
    if not rows:
        raise BadInput(f"'{table}' has no row that names a picture in its folder and a label that can be read")
    is_still = all(not row.episode for row in rows)

    def read(*_: object) -> Iterator[Episode]:
        if is_still:
            yield from _stills("pictures", rows, warn)
        else:
            yield from _in_order(rows, warn)

    return Source("pictures", read, plays=False, still=is_still)


def _table_of(folder: Path) -> Path:
    if not folder.is_dir():
        raise BadInput(f"--pictures: there is no folder '{folder}'")
    tables = sorted(folder.glob("*.csv"))
    if len(tables) != 1:
        held = f"{len(tables)} CSV files" if tables else "no CSV file"
        raise BadInput(
            f"--pictures: '{folder}' holds {held}; it needs one, with the columns file and success (or truth)"
        )
    return tables[0]


def _rows(folder: Path, table: Path, warn: Warn) -> Iterator[PictureRow]:
    """Rows of the table whose pictures are there, and whose label can be read."""
    try:
        lines = list(csv.DictReader(decoded(table.read_bytes()).splitlines()))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise BadInput(f"'{table}' cannot be read as a CSV file: {' '.join(str(error).split())[:100]}") from error
    if not lines:
        raise BadInput(f"'{table}' has no rows, or no line before them that names the columns")
    columns = set(lines[0])
    label = next((name for name in SUCCESS_COLUMNS if name in columns), None)
    if "file" not in columns or (label is None and "truth" not in columns):
        raise BadInput(f"'{table}' has no columns file and success (or truth); its first line names the columns")
    absent: list[str] = []
    unlabelled: list[str] = []
    repeated: list[str] = []
    named = set()
    for line in lines:
        name = line["file"] or ""
        file = file_within(folder, name)
        if file is None:
            absent.append(name)
            continue
        if file in named:
            repeated.append(name)
        named.add(file)
        success = _truth_value(line[label]) if label else None
        truth = _number(line.get("truth"))
        if success is None and truth is None:
            unlabelled.append(name)
            continue
        yield PictureRow(file, success, truth, line.get("episode") or "", _number(line.get("step")) or 0.0)
    on_disk = {file.resolve() for file in folder.rglob("*") if file.suffix.lower() in IMAGE_SUFFIXES}
    nameless = sorted(str(file.relative_to(folder.resolve())) for file in on_disk - named)
    _count(warn, absent, f"rows of '{table}' that name no picture in its folder")
    _count(warn, unlabelled, f"pictures of '{table}' that are left out, since no label (yes, no, 1, 0, …) can be read")
    _count(warn, repeated, f"rows of '{table}' that name a picture once more, and count like the others")
    _count(warn, nameless, f"pictures in '{folder}' that are left out, since {table.name} has no row for them")


def _count(warn: Warn, names: Sequence[str], what: str) -> None:
    if names:
        warn(f"{what}: {len(names)}, the first '{names[0][:80]}'")


def _truth_value(text: str | None) -> bool | None:
    word = (text or "").strip().lower()
    if word in YES:
        return True
    return False if word in NO else None


def _number(text: str | None) -> float | None:
    try:
        number = float(text or "")
    except ValueError:
        return None
    return number if np.isfinite(number) else None


def _in_order(rows: Sequence[PictureRow], warn: Warn) -> Iterator[Episode]:
    """Episodes in the order in which the table names them first; their pictures in the order of their steps."""
    for name in dict.fromkeys(row.episode for row in rows):
        members = sorted((row for row in rows if row.episode == name), key=lambda row: row.step)
        episodes = list(_stills("pictures", members, warn))
        if len(episodes) > 1:
            raise BadInput(f"episode '{name}' has pictures of several sizes, or more than {STILLS}; cut it into parts")
        yield from episodes


def _stills(source: str, rows: Sequence[PictureRow], warn: Warn) -> Iterator[Episode]:
    """Pictures, some at a time; those of one array are of one size."""
    unreadable: list[str] = []
    for _, batch in itertools.groupby(_readable(rows, unreadable), key=lambda pair: pair[1].shape):
        pairs = list(batch)
        for start in range(0, len(pairs), STILLS):
            yield _episode(source, pairs[start : start + STILLS])
    _count(warn, unreadable, "pictures that are left out, since they cannot be read")


def _readable(rows: Sequence[PictureRow], unreadable: list[str]) -> Iterator[tuple[PictureRow, np.ndarray]]:
    for row in rows:
        try:
            yield row, read_image(row.file)
        except BadInput:
            unreadable.append(row.file.name)


def _episode(source: str, pairs: Sequence[tuple[PictureRow, np.ndarray]]) -> Episode:
    rows = [row for row, _ in pairs]
    facts: Mapping[str, Any] = {}
    if all(row.success is not None for row in rows):
        facts = {"success": np.array([bool(row.success) for row in rows])}
    truths = [np.nan if row.truth is None else row.truth for row in rows]
    if any(row.truth is not None for row in rows):
        facts = {**facts, "env_reward": np.array(truths, np.float32)}
    return Episode(source, frames=np.stack([frame for _, frame in pairs]), **facts)


def sorted_pictures(folder: Path, option: str, shows_goal: bool, warn: Warn) -> Source:
    """All pictures of a folder, of which all show the goal, or none.

    Raises:
        BadInput: there are none.
    """
    files = sorted(file for file in folder.glob("*") if file.suffix.lower() in IMAGE_SUFFIXES)
    if not files:
        raise BadInput(f"{option}: '{folder}' holds no pictures ({', '.join(IMAGE_SUFFIXES)})")
    rows = [PictureRow(file, shows_goal, None, "", 0.0) for file in files]
    name = "goal" if shows_goal else "other"
    return Source(name, lambda *_: _stills(name, rows, warn), plays=False, still=True)


def video(file: Path) -> Source:
    """The frames of a video as one episode, whose ground truth is progress: the time that has passed.

    Raises:
        BadInput: there is no such file.
    """
    if not file.is_file():
        raise BadInput(f"--video: there is no file '{file}'")

    def read(*_: object) -> Iterator[Episode]:
        frames = read_video(file)
        begun = 0
        while batch := list(itertools.islice(frames, STILLS)):
            progress = np.arange(begun, begun + len(batch), dtype=np.float32)
            yield Episode(file.name, frames=np.stack(batch), env_reward=progress)
            begun += len(batch)

    return Source(file.name, read, plays=False, joined=True)
