"""Read a data set, whichever of the known layouts it has."""

from __future__ import annotations

import functools
import hashlib
import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from sightline.datasets import lerobot_layout as layout
from sightline.datasets.human_labels import FILE as HUMAN_LABELS
from sightline.datasets.human_labels import read_human_labels, with_human_labels
from sightline.datasets.lerobot import read_lerobot
from sightline.datasets.minari import FILE, minari_folder, read_minari
from sightline.datasets.pictures import LABELLED, UNLABELLED, read_pictures, table_of
from sightline.datasets.stored import StoredEpisode
from sightline.errors import BadInput, SightlineWarning


def is_dataset(folder: Path) -> bool:
    """Whether a folder has one of the known layouts."""
    is_lerobot = (folder / layout.INFO).is_file() or (folder / layout.WRITING).is_dir()
    return is_lerobot or table_of(folder) is not None or minari_folder(folder) is not None


LABELS = "labels"
"""Folder of a data set's label store."""


def dataset_digest(folder: Path) -> str:
    """SHA-256 over the files of a data set and their names, hexadecimal; what people say of it does not count.

    Files are read once in a process, unless their sizes or times of change differ from before.

    Raises:
        BadInput: a file cannot be read, or the folder is no data set.
    """
    if not is_dataset(folder):
        raise _unknown(folder)
    of_people = {folder / HUMAN_LABELS}
    if (folder / UNLABELLED).is_file():
        of_people.add(folder / LABELLED)
    files: list[tuple[Path, int, int]] = []
    for file in sorted(folder.rglob("*")):
        parts = file.relative_to(folder).parts
        is_hidden = any(part.startswith(".") for part in parts)
        if is_hidden or parts[0] == LABELS or file in of_people or not file.is_file():
            continue
        status = file.stat()
        files.append((file, status.st_size, status.st_mtime_ns))
    return _digest(folder, tuple(files))


# A run asks when its recipe is completed, and again when it fills its replay buffer.
@functools.lru_cache(maxsize=1)
def _digest(folder: Path, files: tuple[tuple[Path, int, int], ...]) -> str:
    """The digest of files, with their sizes and times of change, which tell whether it is known."""
    digest = hashlib.sha256()
    for file, size, _ in files:
        place = file.relative_to(folder).as_posix()
        digest.update(f"{place}\0{size}\0".encode("utf-8", "surrogateescape"))
        try:
            with file.open("rb") as opened:
                while block := opened.read(2**20):
                    digest.update(block)
        except OSError as error:
            raise BadInput(f"'{file}' cannot be read: {error.strerror or error}") from error
    return digest.hexdigest()


def read_dataset(folder: Path, camera: str | None = None, frames: bool = True) -> Iterator[StoredEpisode]:
    """Read the episodes of a data set, one in memory at a time, with what people said of them.

    Args:
        folder: of a LeRobotDataset v3, of Minari, or of pictures with a table.
        camera: which of several; pictures with a table have one.
        frames: False leaves them out.

    Raises:
        BadInput: at once, where the folder is no data set; and as the reader of its layout says.
    """
    episodes = _with_rewards_looked_at(_read(folder, camera, frames), folder)
    labels = read_human_labels(folder)
    return with_human_labels(episodes, labels) if labels else episodes


def _read(folder: Path, camera: str | None, frames: bool) -> Iterator[StoredEpisode]:
    """The same without what people said."""
    if (folder / layout.INFO).is_file() or (folder / layout.WRITING).is_dir():
        return read_lerobot(folder, camera, frames)
    if table_of(folder) is not None:
        if camera is not None:
            raise BadInput(f"'{folder}' holds pictures of one camera, which has no name; leave out the camera")
        return read_pictures(folder, frames)
    if minari_folder(folder) is not None:
        return read_minari(folder, camera, frames)
    raise _unknown(folder)


def _with_rewards_looked_at(episodes: Iterator[StoredEpisode], folder: Path) -> Iterator[StoredEpisode]:
    """The same episodes; once all are read, a warning counts rewards of the environment that are no finite numbers."""
    unknown = 0
    steps = 0
    first = ""
    for episode in episodes:
        if episode.env_reward is not None:
            is_unknown = ~np.isfinite(episode.env_reward)
            steps += episode.steps
            unknown += int(is_unknown.sum())
            if is_unknown.any() and not first:
                first = f"step {is_unknown.argmax()} of episode {episode.index}"
        yield episode
    if unknown:
        warnings.warn(
            f"'{folder}': the reward of {unknown} of {steps} steps is no finite number, and counts as unknown; the "
            f"first is {first}",
            SightlineWarning,
            stacklevel=1,
        )


def _unknown(folder: Path) -> BadInput:
    if not folder.is_dir():
        return BadInput(f"there is no folder '{folder}'")
    return BadInput(
        f"'{folder}' is no data set that is known: it holds neither {layout.INFO} (LeRobot) nor {LABELLED} or "
        f"{UNLABELLED} (pictures) nor data/{FILE} (Minari)"
    )
