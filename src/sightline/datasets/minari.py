"""Read data sets of Minari, Farama's collection of recorded episodes, from their HDF5 files; Minari is not needed.

    data/metadata.json       the environment, and the format of the data
    data/main_data.hdf5      episode_0: observations and infos [T + 1], actions, rewards, terminations, truncations [T]

Of several parts of an observation, pictures are cameras, `observation` is the state, and `mission` the sentence.
"""

from __future__ import annotations

import io
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, UnidentifiedImageError

from sightline.datasets.stored import StoredEpisode
from sightline.errors import BadInput, Damaged, SightlineWarning
from sightline.runs.files import parse_json, read_bytes

FILE = "main_data.hdf5"
METADATA = "metadata.json"
_JPEG = b"\xff\xd8\xff"
_SENTENCES = ("mission", "instruction", "task")


def minari_folder(folder: Path) -> Path | None:
    """The folder that holds the data of a data set; None where it is none of Minari's."""
    for place in (folder / "data", folder):
        if (place / FILE).is_file() or (place / METADATA).is_file():
            return place
    return None


def read_minari(folder: Path, camera: str | None = None, frames: bool = True) -> Iterator[StoredEpisode]:
    """Read the episodes of a data set of Minari, one in memory at a time.

    Args:
        folder: that holds `data/`, or `data/` itself.
        camera: the part of its observations that are the pictures; may be left out where there is one.
        frames: False leaves them out.

    Raises:
        BadInput: h5py is not installed; the data are in another format; or there is no such camera, or none at all.
        Damaged: at an episode that does not hold T + 1 observations of T steps, or cannot be read.
    """
    try:
        import h5py
    except ImportError as error:
        raise BadInput("Minari's data sets need h5py; pip install 'sightline[datasets]'") from error
    place = minari_folder(folder)
    if place is None:
        raise BadInput(f"'{folder}' is no data set of Minari: it has no {FILE}")
    file = place / FILE
    if not file.is_file():
        kind = parse_json(read_bytes(place / METADATA), f"'{place / METADATA}'").get("data_format")
        raise BadInput(
            f"'{folder}' holds its data as {kind}, and {FILE} is read; Minari writes it by data_format='hdf5'"
        )
    try:
        with h5py.File(file, "r") as opened:
            numbers = sorted(int(name.removeprefix("episode_")) for name in opened if name.startswith("episode_"))
            endless = 0
            for index in numbers:
                group = opened[f"episode_{index}"]
                endless += not _is_ended(group)
                yield _episode(group, index, f"episode {index} of '{file}'", camera, frames)
        if endless:
            warnings.warn(
                f"'{file}': {endless} of {len(numbers)} episodes do not say that they ended, and count as cut off",
                SightlineWarning,
                stacklevel=2,
            )
    except (OSError, KeyError, RuntimeError, ValueError) as error:
        raise Damaged(f"'{file}' is damaged: {' '.join(str(error).split())[:160]}") from error


def _is_ended(group: Any) -> bool:
    """Whether the last step of an episode is flagged as its end, of either kind."""
    flags = [np.asarray(group[name], bool)[-1:] for name in ("terminations", "truncations") if name in group]
    return any(bool(flag.any()) for flag in flags)


def _episode(group: Any, index: int, where: str, camera: str | None, with_frames: bool) -> StoredEpisode:
    rewards = np.asarray(group["rewards"], np.float32)
    steps = len(rewards)
    parts = _parts(group["observations"])
    for name, part in parts.items():
        if len(part) != steps + 1:
            raise Damaged(
                f"{where} has {steps} steps and {len(part)} observations ({name}); there are to be {steps + 1}"
            )
    pictures = {name: part for name, part in parts.items() if _are_pictures(part)}
    seen = None
    if with_frames:
        seen = _decoded(pictures[_camera(pictures, camera, where)], where)
    states = _states({name: part for name, part in parts.items() if name not in pictures})
    terminations = np.asarray(group["terminations"], bool)
    return StoredEpisode(
        source="minari",
        frames=None if seen is None else seen[1:],
        reset_frame=None if seen is None else seen[0],
        states=None if states is None else states[1:],
        reset_state=None if states is None else states[0],
        actions=_actions(group, steps, where),
        env_reward=rewards,
        success=_success(group, steps),
        terminated=bool(steps and terminations[-1]),
        instruction=_instruction(group, parts),
        seed=int(group.attrs["seed"]) if "seed" in group.attrs else None,
        index=index,
        succeeded=bool(group.attrs["success"]) if "success" in group.attrs else None,
    )


def _parts(observations: Any) -> dict[str, Any]:
    """The parts of observations by their names; those in one array are called `observation`."""
    if not hasattr(observations, "keys"):
        return {"observation": observations}
    return {name: part for name, part in observations.items() if not hasattr(part, "keys")}


def _are_pictures(part: Any) -> bool:
    """Whether an array holds pictures: as pixels, or as a JPEG file for each."""
    if part.dtype == np.uint8 and part.ndim == 4:
        return bool(part.shape[-1] == 3)
    # Files of several lengths have a type of their own.
    is_bytes = part.dtype == object or (part.dtype == np.uint8 and part.ndim == 2)
    return is_bytes and len(part) > 0 and isinstance(part[0], np.ndarray) and part[0].tobytes()[:3] == _JPEG


def _camera(pictures: dict[str, Any], camera: str | None, where: str) -> str:
    if not pictures:
        raise BadInput(f"{where} holds no pictures; Minari keeps them only where they are observations")
    if camera is None and len(pictures) > 1:
        raise BadInput(f"{where} has {len(pictures)} cameras; say which: {', '.join(pictures)}")
    name = camera or next(iter(pictures))
    if name not in pictures:
        raise BadInput(f"{where} has no camera '{name[:80]}', but {', '.join(pictures)}")
    return name


def _decoded(part: Any, where: str) -> np.ndarray:
    """uint8[T + 1, H, W, 3] of an array of pictures."""
    if part.dtype == np.uint8 and part.ndim == 4:
        return np.asarray(part)
    warnings.warn(f"the pictures of {where} are JPEGs, which differ from those drawn", SightlineWarning, stacklevel=2)
    try:
        return np.stack([np.asarray(Image.open(io.BytesIO(cell.tobytes())).convert("RGB")) for cell in part])
    except (UnidentifiedImageError, Image.DecompressionBombError) as error:
        raise Damaged(f"a picture of {where} cannot be read") from error


def _states(parts: dict[str, Any]) -> np.ndarray | None:
    """[T + 1, …] of the part `observation`, or of the only one that is of numbers; None where there are several."""
    numbers = {name: part for name, part in parts.items() if part.dtype.kind in "biuf"}
    if "observation" in numbers:
        return np.asarray(numbers["observation"])
    if len(numbers) == 1:
        return np.asarray(next(iter(numbers.values())))
    return None


def _actions(group: Any, steps: int, where: str) -> np.ndarray | None:
    """[T, …]; None where they are of several parts."""
    actions = group["actions"]
    if hasattr(actions, "keys"):
        return None
    if len(actions) != steps:
        raise Damaged(f"{where} has {steps} steps and {len(actions)} actions")
    return np.asarray(actions)


def _success(group: Any, steps: int) -> np.ndarray | None:
    """bool[T] of the infos; of the whole episode's, where only that is stated, as said of its last state."""
    infos = group.get("infos")
    for name in ("success", "is_success"):
        if infos is not None and name in infos and not hasattr(infos[name], "keys"):
            flags = np.asarray(infos[name])
            if flags.shape in ((steps,), (steps + 1,)):
                return flags[-steps:].astype(bool) if steps else np.zeros(0, bool)
    if "success" not in group.attrs:
        return None
    success = np.zeros(steps, bool)
    success[-1:] = bool(group.attrs["success"])
    return success


def _instruction(group: Any, parts: dict[str, Any]) -> str | None:
    """The episode's sentence: of its metadata, or of its first observation."""
    for name in _SENTENCES:
        value = group.attrs.get(name)
        if isinstance(value, str) and value:
            return value
    for name in _SENTENCES:
        if name in parts and parts[name].dtype.kind == "O" and len(parts[name]):
            text = parts[name][0]
            return text.decode("utf-8", "replace") if isinstance(text, bytes) else str(text)
    return None
