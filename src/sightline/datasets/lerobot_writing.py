"""Write episodes as a LeRobotDataset v3.0, without LeRobot; `lerobot_layout.py` says what lies where.

Files hold some thousand steps each. They are written in a folder of their own, moved to their places when they are
whole, and only then named in `meta/info.json`. So a process that is killed leaves a data set of the episodes before.
"""

from __future__ import annotations

import json
import math
import re
import shutil
import warnings
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np

from sightline.datasets import lerobot_layout as layout
from sightline.datasets.films import CODEC, PIXELS, FilmWriter
from sightline.datasets.lerobot_layout import arrow, arrow_type
from sightline.datasets.lerobot_statistics import FeatureStatistics
from sightline.datasets.stored import StoredEpisode, row_numbers
from sightline.errors import BadInput, RunFailed, SightlineWarning
from sightline.images import encode_png
from sightline.runs.files import write_atomically

STEPS_PER_FILE = 4096
"""Steps after which a file is finished: what a process that is killed may lose."""
USUAL_FPS = 30
"""Frames a second where nobody says."""
_PANDAS: dict[str, Any] = {
    "index_columns": ["task"],
    "column_indexes": [],
    "columns": [
        {"name": name, "field_name": name, "pandas_type": kind, "numpy_type": dtype, "metadata": None}
        for name, kind, dtype in (("task_index", "int64", "int64"), ("task", "unicode", "object"))
    ],
    "pandas_version": "2.0.0",
}
"""Metadata by which pandas tells the index of `meta/tasks.parquet`."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")


class LeRobotWriter:
    """Writer of a LeRobotDataset v3.0.

    >>> with LeRobotWriter(Path("kneeling")) as writer:
    ...     for episode in episodes:
    ...         writer.add(StoredEpisode.of(episode, rewards={"words": rewards}))

    Args:
        folder: new, or empty.
        pictures: keep frames as PNGs in the rows, without loss, instead of films.
        camera: name of the camera in `observation.images.CAMERA`.
        robot: the data set's `robot_type`.

    Raises:
        BadInput: pyarrow is not installed, or the folder holds something.
    """

    def __init__(self, folder: Path, pictures: bool = False, camera: str = "main", robot: str = "sightline") -> None:
        arrow()
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise BadInput(f"'{folder}' is there already; name a folder that is new or empty")
        _check_name("camera", camera)
        self.folder = folder
        self.episodes = 0
        """Episodes that are finished: those that the data set holds at this moment."""
        self._camera = layout.IMAGE + camera
        self._pictures = pictures
        self._robot = robot
        self._features: dict[str, dict[str, Any]] = {}
        self._fps = USUAL_FPS
        self._tasks: dict[str, int] = {}
        self._statistics: dict[str, FeatureStatistics] = defaultdict(FeatureStatistics)
        self._reward_names: tuple[str, ...] = ()
        self._steps = 0
        self._files = 0
        # Of the files that are being written.
        self._film: FilmWriter | None = None
        self._data: Any = None
        """Writer of the steps; None before the first."""
        self._steps_in_file = 0
        self._rows: list[dict[str, Any]] = []
        self._is_broken = False
        """Whether they were cut off in the middle of an episode, so that they are lost."""

    def __enter__(self) -> LeRobotWriter:
        return self

    def __exit__(self, *unused: object) -> None:
        self.close()

    def add(self, episode: StoredEpisode) -> None:
        """Write one more episode.

        Raises:
            BadInput: its first frame or state is not known; it holds other things, or frames of another size, than the
                first episode did; or a name is none.
            RunFailed: it cannot be written.
        """
        columns = self._columns(episode)
        features = self._features_of(episode, columns)
        if not self._features:
            self._begin(episode, features)
        if features != self._features:
            raise BadInput(f"episode {episode.index}: {_difference(self._features, features)}")
        try:
            self._write(episode, columns)
            if self._steps_in_file >= STEPS_PER_FILE:
                self._finish_files()
        except BaseException as error:
            self._is_broken = True
            if isinstance(error, OSError):
                raise RunFailed(f"'{self.folder}' cannot be written: {error.strerror or error}") from error
            raise

    def close(self) -> None:
        """Finish the data set, with the episodes that are whole.

        Raises:
            RunFailed: it cannot be written.
        """
        try:
            if self._rows and not self._is_broken:
                self._finish_files()
            if self._film is not None:
                self._film.close()
                self._film = None
            if self._data is not None:
                self._data.close()
                self._data = None
            shutil.rmtree(self.folder / layout.WRITING, ignore_errors=True)
            for name in self._reward_names:
                self._write_progress(name)
        except OSError as error:
            raise RunFailed(f"'{self.folder}' cannot be written: {error.strerror or error}") from error

    # -- what an episode holds ---------------------------------------------------------------------------------------

    def _columns(self, episode: StoredEpisode) -> dict[str, np.ndarray]:
        """The features of an episode's rows, [T, …] each; frames are among them."""
        steps = episode.steps
        columns: dict[str, np.ndarray] = {}
        if episode.frames is not None:
            columns[self._camera] = _before(episode.frames, episode.reset_frame, "frame")
        states = row_numbers(episode.states, "states")
        if states is not None:
            reset = episode.reset_state
            if reset is not None:
                reset = np.asarray(reset, states.dtype).reshape(states.shape[1:])
            columns[layout.STATE] = _before(states, reset, "state")
        actions = row_numbers(episode.actions, "actions")
        if actions is not None:
            columns[layout.ACTION] = actions
        if episode.env_reward is not None:
            columns[layout.REWARD] = np.asarray(episode.env_reward, np.float32)
        for name, rewards in episode.rewards.items():
            _check_name("reward", name)
            columns[f"{layout.REWARD}.{name}"] = np.asarray(rewards, np.float32)
        is_last = np.arange(steps) == steps - 1
        columns[layout.DONE] = is_last
        columns[layout.TRUNCATED] = is_last & (not episode.terminated)
        if episode.success is not None:
            columns[layout.SUCCESS] = np.asarray(episode.success, bool)
        for name, column in columns.items():
            if len(column) != steps:
                raise BadInput(f"episode {episode.index} has {steps} steps and {len(column)} rows of {name}")
        return columns

    def _features_of(self, episode: StoredEpisode, columns: dict[str, np.ndarray]) -> dict[str, dict[str, Any]]:
        """The features that `info.json` declares: a column that it does not declare is refused by LeRobot."""
        features: dict[str, dict[str, Any]] = {}
        for name, column in columns.items():
            shape = list(column.shape[1:]) or [1]
            features[name] = {"dtype": str(column.dtype), "shape": shape, "names": None}
            if name == self._camera:
                kind = "image" if self._pictures else "video"
                features[name] |= {"dtype": kind, "names": ["height", "width", "channels"]}
        return features | layout.DEFAULT_FEATURES

    def _begin(self, episode: StoredEpisode, features: dict[str, dict[str, Any]]) -> None:
        """Take over the form of the first episode, which is that of all."""
        self._features = features
        # LeRobot counts frames a second in whole numbers.
        self._fps = max(1, round(episode.fps or USUAL_FPS))
        if episode.fps is not None and self._fps != episode.fps:
            line = f"{episode.fps:g} frames a second are written as {self._fps}: LeRobot counts whole numbers"
            warnings.warn(line, SightlineWarning, stacklevel=2)
        self._reward_names = tuple(name for name in episode.rewards if name in episode.reset_rewards)
        (self.folder / layout.WRITING).mkdir(parents=True, exist_ok=True)

    # -- writing -----------------------------------------------------------------------------------------------------

    def _write(self, episode: StoredEpisode, columns: dict[str, np.ndarray]) -> None:
        pyarrow = arrow()
        steps = episode.steps
        task = self._tasks.setdefault(episode.instruction or "", len(self._tasks))
        number = self.episodes + len(self._rows)
        columns = columns | {
            "timestamp": (np.arange(steps) / self._fps).astype(np.float32),
            "frame_index": np.arange(steps),
            "episode_index": np.full(steps, number),
            "index": np.arange(self._steps, self._steps + steps),
            "task_index": np.full(steps, task),
        }
        row = self._episode_row(episode, number)
        frames = columns.get(self._camera)
        if frames is not None and not self._pictures:
            row |= self._write_frames(columns.pop(self._camera))
        table = pyarrow.table({name: _arrow_array(self._features[name], column) for name, column in columns.items()})
        # Each episode is a row group, so that loaders find it quickly; none stays in memory.
        if self._data is None:
            self._data = pyarrow.parquet.ParquetWriter(self._being_written("data.parquet"), table.schema)
        self._data.write_table(table)
        # From here on the episode counts: nothing below fails.
        for name, column in columns.items():
            if name != self._camera:
                self._statistics[name].add(column)
        if frames is not None:
            self._statistics[self._camera].add_frames(frames)
        self._steps_in_file += steps
        self._rows.append(row)
        self._steps += steps

    def _write_frames(self, frames: np.ndarray) -> dict[str, Any]:
        """Append frames to the film; gives the columns that say where an episode's are."""
        begin = self._steps_in_file
        if self._film is None:
            self._film = FilmWriter(self._being_written("film.mp4"), frames.shape[1:], self._fps)
        self._film.add(frames)
        prefix = f"videos/{self._camera}/"
        return {
            prefix + "chunk_index": self._files // layout.FILES_PER_CHUNK,
            prefix + "file_index": self._files % layout.FILES_PER_CHUNK,
            prefix + "from_timestamp": begin / self._fps,
            prefix + "to_timestamp": (begin + len(frames)) / self._fps,
        }

    def _episode_row(self, episode: StoredEpisode, number: int) -> dict[str, Any]:
        """An episode's row in `meta/episodes`, but for where its frames are."""
        place = {
            "chunk_index": self._files // layout.FILES_PER_CHUNK,
            "file_index": self._files % layout.FILES_PER_CHUNK,
        }
        row: dict[str, Any] = {
            "episode_index": number,
            "tasks": [episode.instruction or ""],
            "length": episode.steps,
            "dataset_from_index": self._steps,
            "dataset_to_index": self._steps + episode.steps,
            "source": episode.source,
            "seed": episode.seed,
        }
        for part in ("data", "meta/episodes"):
            row |= {f"{part}/{name}": value for name, value in place.items()}
        # LeRobot has no place for these. `quality_label` is Robometer's.
        row["success"] = episode.succeeded
        by_success = {None: None, True: "successful", False: "failure"}
        row["quality_label"] = episode.quality or by_success[episode.succeeded]
        if episode.frames is not None:
            row[layout.FINAL + self._camera] = encode_png(episode.frames[-1])
        if episode.states is not None and layout.STATE in self._features:
            row[layout.FINAL + layout.STATE] = np.atleast_1d(episode.states[-1]).astype(float).tolist()
        for name in self._reward_names:
            row[f"reset/{layout.REWARD}.{name}"] = episode.reset_rewards.get(name, math.nan)
        return row

    def _finish_files(self) -> None:
        """Finish the files that are being written, and name their episodes in the data set."""
        pyarrow = arrow()
        place = {
            "chunk_index": self._files // layout.FILES_PER_CHUNK,
            "file_index": self._files % layout.FILES_PER_CHUNK,
        }
        data, self._data = self._data, None
        data.close()
        episodes = self._being_written("episodes.parquet")
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(self._rows, self._episode_schema()), episodes)
        if self._film is not None:
            film, self._film = self._film, None
            film.finish(self._steps_in_file)
            self._move(self._being_written("film.mp4"), layout.VIDEOS.format(video_key=self._camera, **place))
        self._move(self._being_written("data.parquet"), layout.DATA.format(**place))
        self._move(episodes, layout.EPISODES.format(**place))
        self.episodes += len(self._rows)
        self._files += 1
        self._steps_in_file = 0
        self._rows.clear()
        self._write_meta()

    def _episode_schema(self) -> Any:
        """Types of the columns of episodes; those without a value in the first rows have a type, too."""
        pyarrow = arrow()
        kinds: dict[str, Any] = {
            "tasks": pyarrow.list_(pyarrow.string()),
            "source": pyarrow.string(),
            "quality_label": pyarrow.string(),
            "success": pyarrow.bool_(),
            layout.FINAL + self._camera: pyarrow.binary(),
            layout.FINAL + layout.STATE: pyarrow.list_(pyarrow.float32()),
        }
        fields = []
        for name in self._rows[0]:
            kind = pyarrow.int64()
            if name in kinds:
                kind = kinds[name]
            elif name.endswith("_timestamp"):
                kind = pyarrow.float64()
            elif name.startswith("reset/"):
                kind = pyarrow.float32()
            fields.append((name, kind))
        return pyarrow.schema(fields)

    def _write_meta(self) -> None:
        """Write the files about all episodes; `info.json`, which says how many there are, comes last."""
        pyarrow = arrow()
        tasks = pyarrow.table({"task_index": list(self._tasks.values()), "task": list(self._tasks)})
        # The sentence is the index of a table of pandas. Without this LeRobot takes the row's number for the sentence.
        tasks = tasks.replace_schema_metadata({"pandas": json.dumps(_PANDAS)})
        pyarrow.parquet.write_table(tasks, self._being_written("tasks.parquet"))
        self._move(self._being_written("tasks.parquet"), layout.TASKS)

        statistics: dict[str, Any] = {}
        for name, numbers in self._statistics.items():
            document = numbers.document(is_picture=name == self._camera)
            if document is not None:
                statistics[name] = document
        self._write_json(layout.STATS, statistics)
        self._write_json(layout.INFO, self._info())

    def _info(self) -> dict[str, Any]:
        features = {name: dict(feature) for name, feature in self._features.items()}
        has_film = self._camera in features and not self._pictures
        if has_film:
            height, width, channels = features[self._camera]["shape"]
            features[self._camera]["info"] = {
                "video.height": height,
                "video.width": width,
                "video.channels": channels,
                "video.codec": CODEC,
                "video.pix_fmt": PIXELS,
                "video.fps": self._fps,
                "video.is_depth_map": False,
                "has_audio": False,
            }
        return {
            "codebase_version": layout.VERSION,
            "robot_type": self._robot,
            "total_episodes": self.episodes,
            "total_frames": self._steps,
            "total_tasks": len(self._tasks),
            "chunks_size": layout.FILES_PER_CHUNK,
            "data_files_size_in_mb": 100,
            "video_files_size_in_mb": 200,
            "fps": self._fps,
            "splits": {"train": f"0:{self.episodes}"},
            "data_path": layout.DATA,
            "video_path": layout.VIDEOS if has_film else None,
            "features": features,
        }

    def _write_progress(self, name: str) -> None:
        """Write a reward as LeRobot's progress: of the state of each row, which is the one before its action."""
        if not self.episodes:
            return
        pyarrow = arrow()
        own = f"{layout.REWARD}.{name}"
        schema = pyarrow.schema(
            [
                *((column, pyarrow.int64()) for column in ("index", "episode_index", "frame_index")),
                ("progress_sparse", pyarrow.float32()),
            ]
        )
        part = self.folder / f".{name}{layout.PROGRESS}.writing"
        with pyarrow.parquet.ParquetWriter(part, schema) as writer:
            for file in range(self._files):
                place = {"chunk_index": file // layout.FILES_PER_CHUNK, "file_index": file % layout.FILES_PER_CHUNK}
                columns = ["index", "episode_index", "frame_index", own]
                data = pyarrow.parquet.read_table(self.folder / layout.DATA.format(**place), columns=columns)
                resets = pyarrow.parquet.read_table(
                    self.folder / layout.EPISODES.format(**place), columns=[f"reset/{own}"]
                )
                # One row later than the reward of the step that led there; the first is the reset's.
                is_first = data["frame_index"].to_numpy() == 0
                progress = np.roll(data[own].to_numpy(), 1)
                progress[is_first] = resets[f"reset/{own}"].to_numpy()
                writer.write_table(data.drop_columns([own]).append_column(schema.field(3), [progress]))
        part.replace(self.folder / f"{name}{layout.PROGRESS}")

    def _being_written(self, name: str) -> Path:
        return self.folder / layout.WRITING / name

    def _move(self, file: Path, place: str) -> None:
        target = self.folder / place
        target.parent.mkdir(parents=True, exist_ok=True)
        file.replace(target)

    def _write_json(self, place: str, document: dict[str, Any]) -> None:
        target = self.folder / place
        target.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(target, f"{json.dumps(document, indent=4, allow_nan=False)}\n".encode())


def _check_name(what: str, name: str) -> None:
    """Refuse a name that is no part of a column's name, such as one with a slash."""
    if not _NAME.fullmatch(name):
        raise BadInput(f"the {what} '{name[:80]}' needs a name of letters, digits, '_', '.' and '-'")


def _before(reached: np.ndarray, reset: np.ndarray | None, what: str) -> np.ndarray:
    """[T, …] of the states before each step, from those reached and that of the reset.

    Raises:
        BadInput: the reset's is not known.
    """
    if reset is None:
        raise BadInput(
            f"LeRobot's rows are of the states before each action, and the {what} before the first is not known"
        )
    return np.concatenate([np.asarray(reset)[None], reached[:-1]])


def _arrow_array(feature: dict[str, Any], column: np.ndarray) -> Any:
    pyarrow = arrow()
    kind = arrow_type(feature)
    if feature["dtype"] == "image":
        pictures = [{"bytes": encode_png(frame), "path": None} for frame in column]
        return pyarrow.array(pictures, kind)
    if column.ndim == 1:
        return pyarrow.array(column, kind)
    return pyarrow.FixedSizeListArray.from_arrays(pyarrow.array(column.reshape(-1)), column.shape[1])


def _difference(before: dict[str, dict[str, Any]], now: dict[str, dict[str, Any]]) -> str:
    """What tells an episode's features from those of the first, in words."""
    for name in before:
        if name not in now:
            return f"it has no {name}, which the episodes before have"
        if before[name] != now[name]:
            return (
                f"its {name} is {now[name]['dtype']}{now[name]['shape']}, and that of the episodes before "
                f"{before[name]['dtype']}{before[name]['shape']}"
            )
    (more, *_) = set(now) - set(before)
    return f"it has {more}, which the episodes before have not"
