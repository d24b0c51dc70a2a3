"""Sources from files: pictures with a table of what they show, folders of goal and other pictures, videos.

What cannot be used is named and counted: a line goes to `warn`, and the rest is used.
"""

from __future__ import annotations

import csv
import io
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from sightline.config.decoding import decoded
from sightline.datasets.episode import Episode
from sightline.datasets.tables import read_table, truth_value
from sightline.errors import BadInput, reason_of, why_unreadable
from sightline.evaluation.pictures import IMAGE_SUFFIXES
from sightline.images import file_within, read_image, read_video
from sightline.reward_lab.sources import STILLS, Source

SUCCESS_COLUMNS = ("success", "label", "human_label")
"""Columns that say whether a picture shows the goal; the last is that of vlmrm's human evaluation."""

LABELS = "yes, no, 1, 0, …"
"""What such a column may say, in a few words."""

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
    tables = sorted(file for file in folder.iterdir() if file.suffix.lower() == ".csv")
    if len(tables) != 1:
        held = f"{len(tables)} CSV files" if tables else "no CSV file"
        raise BadInput(
            f"--pictures: '{folder}' holds {held}; it needs one, with the columns file and success (or truth)"
        )
    return tables[0]


def _rows(folder: Path, table: Path, warn: Warn) -> Iterator[PictureRow]:
    """Rows of the table whose pictures are there, and whose label can be read."""
    columns, lines = _lines(table)
    labels = [name for name in SUCCESS_COLUMNS if name in columns]
    label = labels[0] if labels else None
    if len(labels) > 1:
        warn(f"'{table}' says success in {len(labels)} columns, of which {label} counts ({', '.join(labels)})")
    has_episodes = "episode" in columns and any(line["episode"] for line in lines)
    if "step" in columns and not has_episodes:
        warn(f"'{table}' has steps, and no column that names the episode: each picture stands alone")
    noticed = _Noticed()
    named: set[Path] = set()
    places: set[tuple[str, float]] = set()
    for line in lines:
        name = (line["file"] or "").strip()
        file = file_within(folder, name)
        if file is None:
            noticed.absent.append(name)
            continue
        if file in named:
            noticed.repeated.append(name)
        named.add(file)
        success = truth_value(line[label]) if label else None
        truth = _number(line.get("truth"))
        if truth is None and line.get("truth"):
            noticed.no_truth.append(name)
        if success is None and truth is None:
            noticed.unlabelled.append(name)
            continue
        if success is None and label and line[label]:
            noticed.no_success.append(name)
        episode = line.get("episode") or ""
        step = _number(line.get("step")) if "step" in columns else 0.0
        if has_episodes and (not episode or step is None):
            noticed.placeless.append(name)
            continue
        # Without steps the order of the table is that of the episode.
        if has_episodes and "step" in columns:
            if (episode, step or 0.0) in places:
                noticed.same_step.append(name)
            places.add((episode, step or 0.0))
        yield PictureRow(file, success, truth, episode, step or 0.0)
    on_disk = {file.resolve() for file in folder.rglob("*") if file.suffix.lower() in IMAGE_SUFFIXES}
    noticed.nameless += sorted(str(file.relative_to(folder.resolve())) for file in on_disk - named)
    noticed.say(warn, folder, table)


def _lines(table: Path) -> tuple[list[str], list[dict[str, str]]]:
    """The columns of a table, and its rows.

    Raises:
        BadInput: it cannot be read, has no rows, or lacks a column that is needed.
    """
    try:
        content = read_table(io.StringIO(decoded(table.read_bytes()), newline=""), f"{table}", any_case=True)
        lines = list(content.rows)
    except UnicodeDecodeError as error:
        raise BadInput(f"'{table}' is no text in UTF-8: {reason_of(error)[:100]}; save it as CSV in UTF-8") from error
    except (OSError, csv.Error) as error:
        raise BadInput(f"'{table}' cannot be read as a CSV file: {why_unreadable(error)[:100]}") from error
    if not lines:
        raise BadInput(f"'{table}' has no rows, or no line before them that names the columns")
    columns = content.columns
    if "file" not in columns or not {*SUCCESS_COLUMNS, "truth"} & set(columns):
        raise BadInput(
            f"'{table}' has no columns file and success (or truth), but {content.described()}; its first line names "
            "the columns"
        )
    return columns, lines


@dataclass
class _Noticed:
    """Names of pictures in a table of which something is to be said."""

    absent: list[str] = field(default_factory=list)
    unlabelled: list[str] = field(default_factory=list)
    no_success: list[str] = field(default_factory=list)
    no_truth: list[str] = field(default_factory=list)
    placeless: list[str] = field(default_factory=list)
    same_step: list[str] = field(default_factory=list)
    repeated: list[str] = field(default_factory=list)
    nameless: list[str] = field(default_factory=list)

    def say(self, warn: Warn, folder: Path, table: Path) -> None:
        """One line for each kind."""
        of_table = f"of '{table}'"
        _count(warn, self.absent, f"rows {of_table} that name no picture in its folder")
        _count(warn, self.unlabelled, f"pictures {of_table} that are left out, since no label ({LABELS}) can be read")
        _count(warn, self.no_success, f"pictures {of_table} whose success ({LABELS}) cannot be read, and is unknown")
        _count(warn, self.no_truth, f"pictures {of_table} whose truth is no finite number, and is unknown")
        _count(warn, self.placeless, f"pictures {of_table} that are left out, since no episode and step can be read")
        _count(warn, self.same_step, f"pictures {of_table} with the step of another one of their episode")
        _count(warn, self.repeated, f"rows {of_table} that name a picture once more, and count like the others")
        _count(warn, self.nameless, f"pictures in '{folder}' that are left out, since {table.name} has no row for them")


def _count(warn: Warn, names: Sequence[str], what: str) -> None:
    if names:
        warn(f"{what}: {len(names)}, the first '{names[0][:80]}'")


def _number(text: str | None) -> float | None:
    try:
        number = float(text or "")
    except ValueError:
        return None
    # What float32 holds: ground truths are kept in it.
    return number if abs(number) <= float(np.finfo(np.float32).max) else None


def _in_order(rows: Sequence[PictureRow], warn: Warn) -> Iterator[Episode]:
    """Episodes in the order in which the table names them first; their pictures in the order of their steps."""
    for name in dict.fromkeys(row.episode for row in rows):
        members = sorted((row for row in rows if row.episode == name), key=lambda row: row.step)
        if len({row.success is None for row in members}) > 1:
            warn(f"episode '{name}': the success of some pictures is unknown, and counts as unknown of all")
            members = [replace(row, success=None) for row in members]
        episodes = list(_stills("pictures", members, warn))
        if len(episodes) > 1:
            raise BadInput(f"episode '{name}' has pictures of several sizes, or more than {STILLS}; cut it into parts")
        yield from episodes


def _stills(source: str, rows: Sequence[PictureRow], warn: Warn) -> Iterator[Episode]:
    """Pictures, some at a time; those of one array are of one size."""
    unreadable: list[str] = []
    pictures = _readable(rows, unreadable)
    # Nor are pictures of known success put together with those of unknown, which would make it unknown of all.
    for _, batch in itertools.groupby(pictures, key=lambda pair: (pair[1].shape, pair[0].success is None)):
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
    if not folder.is_dir():
        raise BadInput(f"{option}: there is no folder '{folder}'")
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
