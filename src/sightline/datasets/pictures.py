"""Data sets of pictures: a PNG file for each state, and a table that says what was done and what came of it.

    unlabelled_data.csv      a row for each state; its first columns are those of vlmrm
    dataset.csv              the same with a column `human_label`, once people have labelled it
    img/NAME_3_17.png        the frame that step 17 of episode 3 led to; step -1 is the reset

Columns: checkpoint, rollout, step, image_file_name, obs_0 …, action (or action_0 …), reward, success, ended,
instruction, seed, fps, episode_success, quality_label, reward.NAME …, human_label. Only the first four have to be
there, as in vlmrm's own tables. An episode is whole once its last row says how it `ended`.
"""

from __future__ import annotations

import csv
import io
import itertools
import math
import os
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path, PureWindowsPath
from typing import Any

import numpy as np

from sightline.datasets.stored import StoredEpisode, row_numbers
from sightline.datasets.tables import read_table, truth_value
from sightline.errors import BadInput, Damaged, RunFailed, SightlineWarning, reason_of
from sightline.images import encode_png, file_within, read_image
from sightline.runs.files import write_atomically

UNLABELLED = "unlabelled_data.csv"
LABELLED = "dataset.csv"
IMAGES = "img"
KEYS = ("checkpoint", "rollout", "step", "image_file_name")
"""Columns of every table."""
ENDS = ("terminated", "truncated")
"""How an episode may have ended."""
RESET = -1
"""Step of the state before the first step."""


class PictureWriter:
    """Writer of a data set of pictures.

    Args:
        folder: new, or empty.

    Raises:
        BadInput: the folder holds something.
    """

    def __init__(self, folder: Path) -> None:
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise BadInput(f"'{folder}' is there already; name a folder that is new or empty")
        self.folder = folder
        self.episodes = 0
        """Episodes that are finished."""
        self._columns: list[str] = []

    def __enter__(self) -> PictureWriter:
        return self

    def __exit__(self, *unused: object) -> None:
        self.close()

    def add(self, episode: StoredEpisode) -> None:
        """Write one more episode: its pictures, and then its rows at once.

        Raises:
            BadInput: it has no frames, or holds other things than the first episode did.
            RunFailed: it cannot be written.
        """
        if episode.frames is None:
            raise BadInput("a data set of pictures needs frames, and this episode has none")
        rows = _rows(episode, self.episodes)
        columns = list(rows[-1])
        if self._columns and columns != self._columns:
            (name, *_) = set(columns) ^ set(self._columns)
            raise BadInput(f"episode {episode.index}: only some of the episodes have {name}")
        try:
            images = self.folder / IMAGES
            images.mkdir(parents=True, exist_ok=True)
            frames = [*([] if episode.reset_frame is None else [episode.reset_frame]), *episode.frames]
            for row, frame in zip(rows, frames, strict=True):
                (images / row["image_file_name"]).write_bytes(encode_png(frame, compress_level=1))
            text = io.StringIO()
            table = csv.DictWriter(text, columns, restval="", lineterminator="\n")
            if not self._columns:
                table.writeheader()
            table.writerows(rows)
            with (self.folder / UNLABELLED).open("ab") as file:
                file.write(text.getvalue().encode())
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise RunFailed(f"'{self.folder}' cannot be written: {error.strerror or error}") from error
        self._columns = columns
        self.episodes += 1

    def close(self) -> None:
        """Nothing is left to be done: every episode was finished by itself."""


def _rows(episode: StoredEpisode, number: int) -> list[dict[str, Any]]:
    """The rows of an episode; that of the reset comes first, where its frame is known."""
    checkpoint = re.sub(r"[^A-Za-z0-9.-]+", "-", episode.source) or "episode"
    steps = episode.steps
    states = row_numbers(episode.states, "states")
    actions = row_numbers(episode.actions, "actions")
    rows: list[dict[str, Any]] = []
    for step in range(RESET if episode.reset_frame is not None else 0, steps):
        state: Any = None
        if states is not None:
            state = episode.reset_state if step == RESET else states[step]
        row: dict[str, Any] = {
            "checkpoint": checkpoint,
            "rollout": number,
            "step": step,
            "image_file_name": f"{checkpoint}_{number}_{step}.png",
            **_numbered("obs", state, always=True),
        }
        if step != RESET:
            row |= _numbered("action", None if actions is None else actions[step])
            if episode.env_reward is not None:
                row["reward"] = episode.env_reward[step]
            if episode.success is not None:
                row["success"] = int(episode.success[step])
            row["ended"] = ""
            if step == steps - 1:
                row["ended"] = "terminated" if episode.terminated else "truncated"
        row |= {"instruction": episode.instruction or "", "seed": episode.seed, "fps": episode.fps}
        row["episode_success"] = "" if episode.succeeded is None else int(episode.succeeded)
        row["quality_label"] = episode.quality or ""
        for name, rewards in episode.rewards.items():
            row[f"reward.{name}"] = episode.reset_rewards.get(name, "") if step == RESET else rewards[step]
        rows.append(row)
    return rows


def _numbered(name: str, values: Any, always: bool = False) -> dict[str, Any]:
    """Columns of a step's values: `name_0` and so on, or `name` alone for a single one."""
    if values is None:
        return {}
    values = np.asarray(values)
    if values.ndim == 0 and not always:
        return {name: values.item()}
    return {f"{name}_{place}": value for place, value in enumerate(values.reshape(-1))}


def read_pictures(folder: Path, frames: bool = True) -> Iterator[StoredEpisode]:
    """Read the episodes of a data set of pictures, ours or vlmrm's, one in memory at a time.

    Args:
        frames: False leaves them out.

    Raises:
        BadInput: at the first episode, if there is no table or it lacks one of the first columns.
        Damaged: where a row or a picture is.
    """
    file = table_of(folder)
    if file is None:
        raise BadInput(f"'{folder}' holds neither {LABELLED} nor {UNLABELLED}")
    try:
        # Tables that other programs have saved may begin with a mark of their encoding, and part cells otherwise.
        with file.open(encoding="utf-8-sig", newline="") as opened:
            table = read_table(opened, f"{file}")
            absent = [name for name in KEYS if name not in table.columns]
            if absent:
                raise BadInput(f"'{file}' has no column {' and no column '.join(absent)}, but {table.described()}")
            episodes = itertools.groupby(table.rows, key=_episode_of)
            for number, ((checkpoint, _), rows) in enumerate(episodes):
                episode = _read_episode(folder, f"{file}", checkpoint, number, list(rows), frames)
                if episode is not None:
                    yield episode
    except UnicodeDecodeError as error:
        raise Damaged(f"'{file}' is no text in UTF-8: {reason_of(error)[:100]}; save it as CSV in UTF-8") from error
    except (OSError, csv.Error) as error:
        raise Damaged(f"'{file}' cannot be read: {' '.join(str(error).split())[:120]}") from error


def has_episodes(folder: Path) -> bool:
    """Whether a folder holds a table whose columns are those of a data set of pictures."""
    file = table_of(folder)
    if file is None:
        return False
    with file.open(encoding="utf-8-sig", errors="replace", newline="") as opened:
        try:
            columns = read_table(opened, f"{file}").columns
        except csv.Error:
            return False
    return set(KEYS) <= set(columns)


def write_labelled_table(folder: Path, labels: Mapping[tuple[int, int], float]) -> None:
    """Write `dataset.csv`: the table with a column `human_label`, empty where nobody says.

    Args:
        labels: (episode, step) -> the label; episodes are counted in the order of the table.

    Raises:
        OSError: it cannot be written.
    """
    text = io.StringIO()
    with (folder / UNLABELLED).open(encoding="utf-8-sig", newline="") as opened:
        table = read_table(opened, UNLABELLED)
        labelled = csv.DictWriter(text, [*table.columns, "human_label"], lineterminator="\n")
        labelled.writeheader()
        for number, (_, rows) in enumerate(itertools.groupby(table.rows, key=_episode_of)):
            for row in rows:
                labelled.writerow(row | {"human_label": labels.get((number, int(row["step"])), "")})
    write_atomically(folder / LABELLED, text.getvalue().encode())


def _episode_of(row: dict[str, Any]) -> tuple[str, str]:
    """What tells the episodes of a table apart."""
    return row["checkpoint"], row["rollout"]


def table_of(folder: Path) -> Path | None:
    """The table of a data set of pictures, the one with labels if there is one; None where there is none."""
    for name in (LABELLED, UNLABELLED):
        if (folder / name).is_file():
            return folder / name
    return None


def _read_episode(
    folder: Path, where: str, checkpoint: str, number: int, rows: Sequence[dict[str, Any]], with_frames: bool
) -> StoredEpisode | None:
    """The episode of its rows; None with a warning where it was cut off."""
    where = f"episode {number} of '{where}'"
    last = rows[-1]
    if None in last.values() or last.get("ended") == "":
        warnings.warn(f"{where} was cut off, and is left out", SightlineWarning, stacklevel=2)
        return None
    steps = [_finite(row["step"], "step", where) for row in rows]
    if steps != list(range(int(steps[0]), int(steps[0]) + len(steps))):
        raise Damaged(f"the rows of {where} are not in the order of its steps")
    # The first row may be that of the reset, which is no step.
    has_reset = steps[0] == RESET
    played = rows[1:] if has_reset else rows
    frames = _read_frames(folder, rows, where) if with_frames else None
    reset_frame, frames = _apart(frames, has_reset)
    reset_state, states = _apart(_columns(rows, "obs", where), has_reset)

    rewards: dict[str, np.ndarray] = {}
    reset_rewards: dict[str, float] = {}
    for column in last:
        if not column.startswith("reward."):
            continue
        name = column.removeprefix("reward.")
        reset_reward, rewards[name] = _apart(_column(rows, column, where), has_reset)
        if reset_reward is not None and math.isfinite(reset_reward):
            reset_rewards[name] = float(reset_reward)

    # What vlmrm's own tables do not have is not known.
    columns = {name: _column(played, name, where) for name in ("reward", "human_label") if name in last}
    said = columns.get("human_label", np.zeros(0))
    if ((said < 0) | (said > 1)).any():
        raise Damaged(f"{where}: human_label is {said[(said < 0) | (said > 1)][0]:g}, and not from 0 to 1")
    facts = {name: _finite(last[name], name, where) for name in ("seed", "fps") if last.get(name)}
    if last.get("ended") not in (None, *ENDS):
        raise Damaged(f"{where} ended as {last['ended'][:40]!r}, and not as {' or '.join(ENDS)}")
    return StoredEpisode(
        source=checkpoint,
        frames=frames,
        reset_frame=reset_frame,
        states=states,
        reset_state=reset_state,
        actions=_columns(played, "action", where),
        env_reward=columns.get("reward"),
        success=_success(played, where),
        terminated=last.get("ended") == "terminated",
        instruction=last.get("instruction") or None,
        seed=int(facts["seed"]) if "seed" in facts else None,
        fps=facts.get("fps"),
        index=number,
        succeeded=_yes_or_no(last, "episode_success", where),
        quality=last.get("quality_label") or None,
        rewards=rewards,
        reset_rewards=reset_rewards,
        human=columns.get("human_label"),
    )


def _success(rows: Sequence[dict[str, Any]], where: str) -> np.ndarray | None:
    """bool[T] of the column `success`; None where it says nothing.

    Raises:
        Damaged: a cell says neither yes nor no, or only some cells say so.
    """
    values = [_yes_or_no(row, "success", where) for row in rows]
    known = [value for value in values if value is not None]
    if not known:
        return None
    if len(known) < len(values):
        raise Damaged(f"{where} says success of {len(known)} of its {len(values)} steps; say it of all, or of none")
    return np.array(known, bool)


def _yes_or_no(row: dict[str, Any], name: str, where: str) -> bool | None:
    """What a cell says; None where it is empty, or there is none."""
    cell = row.get(name)
    value = truth_value(cell)
    if value is None and cell:
        raise Damaged(f"{where}: {name} is {cell[:40]!r}, and not 1 or 0")
    return value


def _apart(array: Any, has_reset: bool) -> tuple[Any, Any]:
    """The row of the reset, if there is one, and those of the steps."""
    if array is None or not has_reset:
        return None, array
    return array[0], array[1:]


def _read_frames(folder: Path, rows: Sequence[dict[str, Any]], where: str) -> np.ndarray:
    """uint8[N, H, W, 3] of the pictures that rows name, beside the table or in `img/`."""
    frames: np.ndarray | None = None
    for place, row in enumerate(rows):
        name = row["image_file_name"]
        file = _picture_file(folder, name)
        if file is None:
            raise Damaged(f"{where}: there is no picture '{name[:120]}'")
        frame = read_image(file)
        if frames is None:
            frames = np.empty((len(rows), *frame.shape), np.uint8)
        if frame.shape != frames.shape[1:]:
            raise Damaged(f"{where} has pictures of several sizes")
        frames[place] = frame
    assert frames is not None, "an episode has rows"
    return frames


def _picture_file(folder: Path, name: str) -> Path | None:
    """The picture of a name: in `img/` or beside the table; of a path on another machine, the file of its last part."""
    path = PureWindowsPath(name)  # which reads slashes of both kinds
    places = [path.as_posix(), path.name]
    for place in dict.fromkeys(places):
        for inside in (f"{IMAGES}/{place}", place):
            file = file_within(folder, inside)
            if file is not None:
                return file
    return None


def _columns(rows: Sequence[dict[str, Any]], name: str, where: str) -> np.ndarray | None:
    """[N] of a column, or [N, D] of numbered ones: int64 if all are whole numbers without a point, else float32."""
    names = [column for column in rows[-1] if re.fullmatch(rf"{name}_\d+", column)]
    names.sort(key=lambda column: int(column.removeprefix(f"{name}_")))
    if not names and name not in rows[-1]:
        return None
    cells = [row[column] for row in rows for column in names or [name]]
    # Actions that are numbered stay whole; states are always numbers with a point.
    is_whole = name == "action" and all(re.fullmatch(r"-?\d+", cell or "") for cell in cells)
    dtype = np.int64 if is_whole else np.float32
    array = np.array([_number(cell, name, where) for cell in cells], dtype)
    if not names:
        return array
    return array.reshape(len(rows), -1)


def _column(rows: Sequence[dict[str, Any]], name: str, where: str) -> np.ndarray:
    """float32[N] of a column, NaN where a cell is empty."""
    return np.array([_number(row[name], name, where) if row[name] else math.nan for row in rows], np.float32)


def _finite(cell: Any, name: str, where: str) -> float:
    number = _number(cell, name, where)
    if not math.isfinite(number):
        raise Damaged(f"{where}: {name} is {number}, which is no finite number")
    return number


def _number(cell: Any, name: str, where: str) -> float:
    try:
        return float(cell)
    except (TypeError, ValueError):
        raise Damaged(f"{where}: {name} is {str(cell)[:40]!r}, which is no number") from None
