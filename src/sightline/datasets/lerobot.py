"""Read a LeRobotDataset v3.0, ours or anybody's, without LeRobot; `lerobot_layout.py` says what lies where.

Version 2 has a file of rows and one of each camera for every episode, and lists the episodes in `meta/episodes.jsonl`.
"""

from __future__ import annotations

import functools
import io
import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from sightline.datasets import lerobot_layout as layout
from sightline.datasets.films import FilmReader
from sightline.datasets.lerobot_layout import arrow
from sightline.datasets.stored import StoredEpisode
from sightline.errors import BadInput, Damaged, SightlineWarning
from sightline.images import file_within, read_image, read_png
from sightline.runs.files import parse_json, read_bytes, read_text

ROWS_AT_ONCE = 256
"""Rows of a file that are in memory together, beside those of an episode."""


@dataclass(frozen=True)
class LeRobotInfo:
    """What `meta/info.json` says.

    Attributes:
        features: name -> dtype, shape and the like.
        data_path, video_path: templates of paths in the folder.
        chunks_size: files of a folder, by which version 2 counts.
    """

    folder: Path
    version: str
    fps: float
    episodes: int
    features: dict[str, dict[str, Any]]
    data_path: str
    video_path: str
    chunks_size: int

    @property
    def cameras(self) -> list[str]:
        """Features that are pictures, but for maps of depth."""
        pictures = []
        for name, feature in self.features.items():
            has_depth = feature.get("info", {}).get("video.is_depth_map") or feature.get("info", {}).get("is_depth_map")
            if feature["dtype"] in ("video", "image") and not has_depth:
                pictures.append(name)
        return pictures


def read_info(folder: Path) -> LeRobotInfo:
    """Read `meta/info.json`.

    Raises:
        BadInput: it is missing, or of another version.
        Damaged: it does not say what every data set of LeRobot says.
    """
    file = folder / layout.INFO
    try:
        document = parse_json(read_bytes(file), f"'{file}'")
    except FileNotFoundError:
        if (folder / layout.WRITING).is_dir():
            raise BadInput(
                f"'{folder}' holds no whole episode: its writing was cut off before the first were finished"
            ) from None
        raise BadInput(f"'{folder}' is no data set of LeRobot: it has no {layout.INFO}") from None
    version = document.get("codebase_version") if isinstance(document, dict) else None
    if not isinstance(version, str):
        raise Damaged(f"'{file}' is damaged: it states no codebase_version")
    if not version.startswith(("v2.", "v3.")):
        raise BadInput(
            f"'{folder}' is a LeRobotDataset {version[:20]}, and v2.0 to v3.0 are read{_converted_by(version)}"
        )
    try:
        features = {name: _feature(feature) for name, feature in document["features"].items()}
        info = LeRobotInfo(
            folder,
            version,
            fps=float(document["fps"]),
            episodes=int(document["total_episodes"]),
            features=features,
            data_path=str(document["data_path"]),
            video_path=str(document.get("video_path") or ""),
            chunks_size=int(document.get("chunks_size") or layout.FILES_PER_CHUNK),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise Damaged(f"'{file}' is damaged: {type(error).__name__} at {' '.join(str(error).split())[:80]}") from error
    for name, number in (("fps", info.fps), ("chunks_size", info.chunks_size)):
        if not number > 0:
            raise Damaged(f"'{file}' is damaged: {name} is {number}")
    return info


def _converted_by(version: str) -> str:
    """What to do about a data set of another version, after a semicolon."""
    number = re.match(r"v?(\d+)", version)
    if number is not None and int(number[1]) < 3:
        return "; LeRobot converts it"
    return "; it is newer than this version of Sightline: save it by a LeRobot that writes v3.0, or look for an update"


def read_lerobot(folder: Path, camera: str | None = None, frames: bool = True) -> Iterator[StoredEpisode]:
    """Read the episodes of a LeRobotDataset of version 2 or 3, one in memory at a time.

    LeRobot's rows are of the state before each action, and the state that the last action led to is in data sets of
    ours alone. In those of others the last row's frame and state stand for it, once more.

    Args:
        camera: `observation.images.CAMERA` or `CAMERA`; may be left out where there is one.
        frames: False leaves them out.

    Raises:
        BadInput: pyarrow is not installed; or at the first episode, as `read_info`, or there is no such camera, or none
            at all.
        Damaged: where a file is missing or damaged, or does not hold what others say of it.
    """
    arrow()
    info = read_info(folder)
    key = _camera(info, camera) if frames else None
    rows = _Rows(info, key)
    sentences = functools.cache(lambda: _sentences(info))
    film: FilmReader | None = None
    film_file: Path | None = None
    try:
        for place in _episodes(info):
            table = rows.take(place)
            recorded = None
            if key is not None and info.features[key]["dtype"] == "image":
                recorded = _pictures(table[key], place)
            elif key is not None:
                file = _file(info, info.video_path, place.video(key), key)
                if film is None or file != film_file:
                    if film is not None:
                        film.close()
                    film, film_file = FilmReader(file), file
                begin = round(place.number(f"videos/{key}/from_timestamp") * info.fps)
                recorded = film.take(begin, place.length, room=1)
            if recorded is not None and key is not None:
                _check_size(info, key, recorded, place.name)
                recorded[-1] = _final_frame(place, key, recorded)
            yield _episode(info, place, table, key, recorded, sentences)
    finally:
        if film is not None:
            film.close()


# -- where an episode is -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Place:
    """A row of `meta/episodes`: an episode, and where its rows and frames are."""

    row: dict[str, Any]
    file: Path
    folder: Path

    @property
    def index(self) -> int:
        return int(self.number("episode_index"))

    @property
    def length(self) -> int:
        return int(self.number("length"))

    @property
    def name(self) -> str:
        return f"episode {self.index} of '{self.folder}'"

    def number(self, column: str) -> float:
        value = self.row.get(column)
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise Damaged(f"'{self.file}' is damaged: it states no {column} of an episode")
        return value

    def data(self) -> tuple[int, int]:
        """Chunk and file of its rows."""
        return int(self.number("data/chunk_index")), int(self.number("data/file_index"))

    def video(self, key: str) -> tuple[int, int]:
        """Chunk and file of its film."""
        return int(self.number(f"videos/{key}/chunk_index")), int(self.number(f"videos/{key}/file_index"))


def _episodes(info: LeRobotInfo) -> Iterator[_Place]:
    """The episodes that `info.json` counts, in their order."""
    count = 0
    for place in _listed_by_lines(info) if info.version.startswith("v2.") else _listed_in_tables(info):
        if count == info.episodes:  # of a file that was finished, and not named yet
            return
        yield place
        count += 1
    if count < info.episodes:
        raise Damaged(
            f"'{info.folder}' is damaged: {layout.INFO} counts {info.episodes} episodes, and there are {count}"
        )


def _listed_by_lines(info: LeRobotInfo) -> Iterator[_Place]:
    """The episodes of version 2, each with files of its own, in the terms of version 3."""
    file = info.folder / "meta" / "episodes.jsonl"
    try:
        lines = read_text(file).splitlines()
    except FileNotFoundError:
        raise Damaged(f"'{info.folder}' is damaged: there is no meta/episodes.jsonl") from None
    for line in lines:
        row = parse_json(line, f"'{file}'")
        if not isinstance(row, dict):
            raise Damaged(f"'{file}' is damaged: line {line[:40]!r} is no episode")
        index = _Place(row, file, info.folder).index
        parts = ["data", *(f"videos/{key}" for key in info.cameras)]
        for part in parts:
            row |= {f"{part}/chunk_index": index // info.chunks_size, f"{part}/file_index": index}
        row |= {f"{part}/from_timestamp": 0.0 for part in parts}
        yield _Place(row, file, info.folder)


def _listed_in_tables(info: LeRobotInfo) -> Iterator[_Place]:
    """The episodes of version 3, as rows of Parquet files."""
    files = sorted((info.folder / "meta" / "episodes").glob("*/*.parquet"))
    if not files:
        raise Damaged(f"'{info.folder}' is damaged: there is no file in meta/episodes")
    for file in files:
        with _parquet(file) as opened:
            # Statistics of each episode, which LeRobot keeps beside it, are many columns.
            columns = [name for name in opened.schema_arrow.names if not name.startswith("stats/")]
            for batch in _batches(opened, file, columns):
                for row in batch.to_pylist():
                    yield _Place(row, file, info.folder)


def _file(info: LeRobotInfo, template: str, place: tuple[int, int], key: str = "") -> Path:
    """The file of a template's path, which has to be in the folder."""
    chunk, number = place
    try:
        of_version_2 = {"episode_chunk": chunk, "episode_index": number}
        name = template.format(chunk_index=chunk, file_index=number, video_key=key, **of_version_2)
    except (KeyError, IndexError, ValueError, AttributeError) as error:
        raise Damaged(f"'{info.folder}' is damaged: '{template[:80]}' is no path of its files") from error
    file = file_within(info.folder, name)
    if file is None:
        raise Damaged(f"'{info.folder}' is damaged: there is no file '{name[:120]}'")
    return file


def _camera(info: LeRobotInfo, camera: str | None) -> str:
    """The feature of a camera."""
    cameras = info.cameras
    short = [name.removeprefix(layout.IMAGE) for name in cameras]
    if not cameras:
        raise BadInput(f"'{info.folder}' holds no pictures, but {', '.join(info.features)}")
    if camera is None and len(cameras) > 1:
        raise BadInput(f"'{info.folder}' has {len(cameras)} cameras; say which: {', '.join(short)}")
    if camera is None:
        return cameras[0]
    for key, name in zip(cameras, short, strict=True):
        if camera in (key, name):
            return key
    raise BadInput(f"'{info.folder}' has no camera '{camera[:80]}', but {', '.join(short)}")


# -- rows --------------------------------------------------------------------------------------------------------------


class _Rows:
    """The rows of episodes, read from one file after the other."""

    def __init__(self, info: LeRobotInfo, camera: str | None) -> None:
        self._info = info
        self._camera = camera
        self._file: Path | None = None
        self._batches: Iterator[Any] = iter(())
        self._read: list[Any] = []
        """Batches that hold rows of the next episode."""

    def take(self, place: _Place) -> Any:
        """The rows of an episode, as a table of Arrow.

        Raises:
            Damaged: there are more or fewer of them than its length.
        """
        pyarrow = arrow()
        file = _file(self._info, self._info.data_path, place.data())
        if file != self._file:
            self._file = file
            self._read = []
            self._batches = self._open(file)
        while True:
            parts = [_of_episode(batch, place.index) for batch in self._read]
            found = [part for part in parts if len(part)]
            is_last = bool(self._read) and self._read[-1]["episode_index"][-1].as_py() == place.index
            if found and not is_last:
                break
            batch = next(self._batches, None)
            if batch is None:
                break
            # Rows before this episode's are read no more.
            self._read = [*self._read[-1:], batch] if not found else [*self._read, batch]
        rows = sum(map(len, found))
        if rows != place.length:
            raise Damaged(f"{place.name} has {place.length} steps, and '{file}' holds {rows} of them")
        self._read = self._read[-1:]
        return pyarrow.Table.from_batches(found)

    def _open(self, file: Path) -> Iterator[Any]:
        features = self._info.features
        with _parquet(file) as opened:
            names = opened.schema_arrow.names
            wanted = ["episode_index", "frame_index"]
            for name, feature in features.items():
                is_read = name in (layout.STATE, layout.ACTION, self._camera) or name.startswith("next.")
                if is_read and feature["dtype"] != "video":
                    wanted.append(name)
            if layout.TASK_INDEX in names:
                wanted.append(layout.TASK_INDEX)
            absent = [name for name in wanted if name not in names]
            if absent:
                raise Damaged(f"'{file}' is damaged: it has no column {absent[0]}, which {layout.INFO} declares")
            yield from _batches(opened, file, wanted)


def _of_episode(batch: Any, index: int) -> Any:
    """The rows of a batch that are of an episode."""
    return batch.filter(arrow().compute.equal(batch["episode_index"], index))


def _parquet(file: Path) -> Any:
    """A Parquet file that is opened."""
    pyarrow = arrow()
    try:
        return pyarrow.parquet.ParquetFile(file)
    except (OSError, pyarrow.ArrowException) as error:
        raise Damaged(f"'{file}' is no Parquet file, or damaged: {' '.join(str(error).split())[:160]}") from error


def _batches(opened: Any, file: Path, columns: Sequence[str]) -> Iterator[Any]:
    pyarrow = arrow()
    try:
        yield from opened.iter_batches(ROWS_AT_ONCE, columns=list(columns))
    except (OSError, pyarrow.ArrowException) as error:
        raise Damaged(f"'{file}' is damaged: {' '.join(str(error).split())[:160]}") from error


def _numbers(table: Any, name: str, place: _Place) -> np.ndarray | None:
    """[T] or [T, D] of a column; None where there is none."""
    if name not in table.column_names:
        return None
    column = table[name].combine_chunks()
    is_list = hasattr(column, "flatten") and "list" in str(column.type)
    values = column.flatten() if is_list else column
    if column.null_count or values.null_count:
        raise Damaged(f"{place.name} has empty cells in its column {name}")
    array: np.ndarray = values.to_numpy(zero_copy_only=False)
    if array.dtype.kind not in "biuf":
        raise Damaged(f"the column {name} of {place.name} holds no numbers")
    if not is_list:
        return array
    lengths = arrow().compute.list_value_length(column)
    if len(lengths.unique()) != 1:
        raise Damaged(f"the column {name} of {place.name} has rows of several lengths")
    return array.reshape(place.length, -1)


def _one_a_step(table: Any, name: str, place: _Place) -> np.ndarray | None:
    """[T] of a column of single numbers, which some data sets keep as lists of one; None where there is none."""
    numbers = _numbers(table, name, place)
    if numbers is None or numbers.ndim == 1:
        return numbers
    if numbers.shape[1] != 1:
        raise Damaged(f"the column {name} of {place.name} holds {numbers.shape[1]} numbers a step, and one is read")
    return numbers[:, 0]


def _pictures(column: Any, place: _Place) -> np.ndarray:
    """uint8[T + 1, H, W, 3] of a column of image files, or of their paths in the folder; the last is not filled in."""
    frames: np.ndarray | None = None
    for step, cell in enumerate(column):
        file = _picture_file(cell.as_py(), place.folder)
        if file is None:
            raise Damaged(f"frame {step} of {place.name} is neither in its row nor in the folder")
        frame = read_image(file, f"frame {step} of {place.name}")
        if frames is None:
            frames = np.empty((place.length + 1, *frame.shape), np.uint8)
        if frame.shape != frames.shape[1:]:
            raise Damaged(f"{place.name} has frames of several sizes")
        frames[step] = frame
    assert frames is not None, "an episode has steps"
    return frames


def _picture_file(cell: Any, folder: Path) -> io.BytesIO | Path | None:
    """The image file of a cell: its bytes, by themselves or beside a path, or a path in the folder; None of others."""
    content = cell.get("bytes") if isinstance(cell, dict) else cell
    if isinstance(content, bytes):
        return io.BytesIO(content)
    path = cell.get("path") if isinstance(cell, dict) else cell
    return file_within(folder, path) if isinstance(path, str) else None


def _final_frame(place: _Place, camera: str, before: np.ndarray) -> np.ndarray:
    """uint8[H, W, 3] of the state that the last step led to; where it is not known, the frame before it, once more."""
    content = place.row.get(layout.FINAL + camera)
    if content is None:
        return np.asarray(before[-2])
    final = read_png(io.BytesIO(content), f"the last frame of {place.name}")
    if final.shape != before.shape[1:]:
        raise Damaged(f"the last frame of {place.name} is of another size than those before")
    return final


# -- episodes ----------------------------------------------------------------------------------------------------------


def _episode(
    info: LeRobotInfo,
    place: _Place,
    table: Any,
    camera: str | None,
    recorded: np.ndarray | None,
    sentences: Callable[[], dict[int, str]],
) -> StoredEpisode:
    """The episode of some rows.

    Args:
        camera: the feature of its frames; None if they are not read.
        recorded: uint8[T + 1, H, W, 3], the frames before each action, and the one after the last.
        sentences: gives those of the data set, by their numbers.
    """
    order = _one_a_step(table, "frame_index", place)
    if order is None or not np.array_equal(order, np.arange(place.length)):
        raise Damaged(f"the rows of {place.name} are not in the order of its steps")
    row = place.row
    rewards: dict[str, np.ndarray] = {}
    reset_rewards: dict[str, float] = {}
    prefix = f"{layout.REWARD}."
    for column in table.column_names:
        values = _one_a_step(table, column, place) if column.startswith(prefix) else None
        if values is not None:
            name = column.removeprefix(prefix)
            rewards[name] = values
            reset = row.get(f"reset/{column}")
            if isinstance(reset, float) and np.isfinite(reset):
                reset_rewards[name] = reset
    done = _one_a_step(table, layout.DONE, place)
    truncated = _one_a_step(table, layout.TRUNCATED, place)
    success = _success(place, _one_a_step(table, layout.SUCCESS, place))
    states = _numbers(table, layout.STATE, place)
    reached, reset_state = _reached(states, row.get(layout.FINAL + layout.STATE))
    env_reward = _one_a_step(table, layout.REWARD, place)
    seed = row.get("seed")
    # Of what is read, whatever the last step led to has to be there.
    finals = [] if states is None else [layout.FINAL + layout.STATE]
    if camera is not None:
        finals.append(layout.FINAL + camera)
    return StoredEpisode(
        source=str(row.get("source") or "dataset"),
        frames=None if recorded is None else recorded[1:],
        reset_frame=None if recorded is None else recorded[0],
        states=reached,
        reset_state=reset_state,
        actions=_numbers(table, layout.ACTION, place),
        env_reward=None if env_reward is None else env_reward.astype(np.float32),
        success=success,
        terminated=done is not None and bool(done[-1]) and not (truncated is not None and bool(truncated[-1])),
        instruction=_instruction(place, table, sentences),
        seed=seed if isinstance(seed, int) else None,
        fps=info.fps,
        index=place.index,
        succeeded=row["success"] if isinstance(row.get("success"), bool) else None,
        quality=row["quality_label"] if isinstance(row.get("quality_label"), str) else None,
        rewards=rewards,
        reset_rewards=reset_rewards,
        knows_last_state=all(row.get(name) is not None for name in finals),
    )


def _reached(before: np.ndarray | None, final: Any) -> tuple[np.ndarray | None, np.ndarray | None]:
    """The states reached, [T, …], and that of the reset, from those before each action and the last one's; where that
    is not known, the one before it, once more."""
    if before is None:
        return None, None
    last = before[-1:]
    if final is not None:
        last = np.asarray(final, before.dtype).reshape(before[-1:].shape)
    return np.concatenate([before[1:], last]), before[0]


def _success(place: _Place, by_step: np.ndarray | None) -> np.ndarray | None:
    """bool[T]; where only the episode as a whole is judged, that is said of its last state."""
    if by_step is not None:
        return by_step.astype(bool)
    of_episode = place.row.get("success")
    if not isinstance(of_episode, bool):
        return None
    success = np.zeros(place.length, bool)
    success[-1] = of_episode
    return success


def _sentences(info: LeRobotInfo) -> dict[int, str]:
    """Sentences by their numbers; empty, with a warning, where they cannot be read."""
    file = info.folder / layout.TASKS
    try:
        table = arrow().parquet.read_table(file)
        (column,) = [name for name in table.column_names if name != layout.TASK_INDEX]
        numbers = table[layout.TASK_INDEX].to_pylist()
        return {int(number): str(text) for number, text in zip(numbers, table[column].to_pylist(), strict=True)}
    except (OSError, KeyError, ValueError, TypeError, arrow().ArrowException):
        warnings.warn(
            f"'{info.folder}' names its sentences by numbers, and has no {layout.TASKS} that can be read: its episodes "
            "are read without words",
            SightlineWarning,
            stacklevel=2,
        )
        return {}


def _instruction(place: _Place, table: Any, sentences: Callable[[], dict[int, str]]) -> str | None:
    """The sentence of an episode; None where it has none, or several."""
    stated = place.row.get("tasks")
    # Where an episode does not say its sentences, its rows say their numbers.
    if stated is None:
        numbers = _one_a_step(table, layout.TASK_INDEX, place)
        stated = [] if numbers is None else [sentences().get(int(number), "") for number in np.unique(numbers)]
    tasks = [task for task in stated if isinstance(task, str) and task]
    if len(set(tasks)) > 1:
        warnings.warn(
            f"{place.name} has {len(set(tasks))} tasks; it is read without words", SightlineWarning, stacklevel=2
        )
        return None
    return tasks[0] if tasks else None


def _feature(feature: dict[str, Any]) -> dict[str, Any]:
    """A feature, checked to have dtype and shape."""
    if not isinstance(feature["dtype"], str):
        raise TypeError("dtype")
    shape = [int(side) for side in feature["shape"]]
    info = feature.get("info") or feature.get("video_info") or {}
    return feature | {"shape": shape, "info": info if isinstance(info, dict) else {}}


def _check_size(info: LeRobotInfo, key: str, frames: np.ndarray, name: str) -> None:
    """Refuse frames of another size than the feature's; some data sets name the channels first."""
    height, width = frames.shape[1:3]
    shape = info.features[key]["shape"]
    if shape not in ([height, width, 3], [3, height, width]):
        raise Damaged(f"{name} has frames of {width}x{height}, and {layout.INFO} declares {shape} for {key}")
