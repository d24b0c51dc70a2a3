"""Frames on disk, each distinct one once: PNG files named by the SHA-256 of their pixels."""

from __future__ import annotations

import hashlib
import io
import re
import zlib
from collections.abc import Iterable
from pathlib import Path

import numpy as np
from PIL import Image, UnidentifiedImageError

from sightline.errors import BadInput, RunFailed
from sightline.runs.files import write_atomically

MAX_PIXELS = 64_000_000
"""Larger pictures, and segments with more than this in all, are refused: a hostile file may claim to be of any size."""
_LEAST = 1_000
"""A frame counts as so many pixels at least, for it takes memory beside them."""
_NAME = re.compile(r"[0-9a-f]{64}")
_BOMBS = (Image.DecompressionBombError, Image.DecompressionBombWarning)


class FrameFiles:
    """A folder of frames, `ab/abcd….png`. Threads and processes may share it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def add(self, frame: np.ndarray) -> str:
        """Keep uint8[H, W, 3], if it is not there yet; gives its name.

        Raises:
            RunFailed: it cannot be written.
        """
        name = name_of(frame)
        file = self.file(name)
        if not file.is_file():
            png = io.BytesIO()
            Image.fromarray(frame).save(png, "PNG")
            try:
                file.parent.mkdir(exist_ok=True)
                if file.parent.is_symlink():
                    raise BadInput(f"'{file.parent}' is a link; a label store holds plain folders")
                write_atomically(file, png.getvalue())
            except OSError as error:
                raise RunFailed(
                    f"the label store cannot keep a frame ({error.strerror or error}); make room"
                ) from error
        return name

    def read(self, name: str) -> np.ndarray:
        """uint8[H, W, 3] of that name.

        Raises:
            BadInput: it is missing, or not what was kept.
        """
        frame: np.ndarray = self.read_all([name])[0]
        return frame

    def read_all(self, names: Iterable[str]) -> np.ndarray:
        """uint8[L, H, W, 3], the frames of a segment by their names.

        Raises:
            BadInput: one is missing, or not what was kept; they are of several sizes, or too large together.
        """
        files = [self.file(name) for name in names]
        for file in files:
            if file.is_symlink() or (file.exists() and not file.is_file()):
                raise BadInput(f"'{file}' is damaged: it is no regular file")
        frames = read_pictures(((file, f"'{file}'") for file in files), f"a segment in '{self._folder}'")
        for file, frame in zip(files, frames, strict=True):
            if name_of(frame) != file.stem:
                raise BadInput(f"'{file}' is damaged: it is not the frame that was stored there")
        return frames

    def file(self, name: str) -> Path:
        """Where the frame of that name is, or would be.

        Raises:
            BadInput: it is no name of a frame; a database of a stranger may say anything.
        """
        if not (isinstance(name, str) and _NAME.fullmatch(name)):
            raise BadInput(f"the label store of '{self._folder}' is damaged: it names a frame {str(name)[:80]!r}")
        return self._folder / name[:2] / f"{name}.png"


def name_of(frame: np.ndarray) -> str:
    """Hexadecimal SHA-256 of shape and pixels."""
    return hashlib.sha256(repr(frame.shape).encode() + np.ascontiguousarray(frame).tobytes()).hexdigest()


def read_pictures(pictures: Iterable[tuple[Path | io.BytesIO, str]], whole: str) -> np.ndarray:
    """uint8[L, H, W, 3] of PNGs of one size, at least one of them.

    Each is looked at before it is decoded, and only when those before it are known to leave room: many frames fill the
    memory as well as a large one.

    Args:
        pictures: each with what to call it in a complaint; taken one by one.
        whole: what to call all of them together.

    Raises:
        BadInput: as `read_picture`; or they are of several sizes, or more than `MAX_PIXELS` together.
    """
    frames: list[np.ndarray] = []
    room = MAX_PIXELS
    for picture, name in pictures:
        frames.append(read_picture(picture, name, room))
        room -= max(frames[-1].shape[0] * frames[-1].shape[1], _LEAST)
        if frames[-1].shape != frames[0].shape:
            raise BadInput(f"{whole} has frames of several sizes; that is no segment")
    try:
        return np.stack(frames)
    except ValueError as error:
        raise BadInput(f"{whole} has no frames") from error
    except MemoryError as error:
        raise BadInput(f"{whole} does not fit into memory") from error


def read_picture(file: Path | io.BytesIO, name: str = "", room: int = MAX_PIXELS) -> np.ndarray:
    """uint8[H, W, 3] of a PNG on disk or in memory.

    Args:
        name: what to call it in a complaint; default: the file's name.
        room: pixels that there is room for; what its header claims is compared with it before anything is decoded.

    Raises:
        BadInput: it is no PNG, damaged, or claims to be larger than any frame, or than there is room for.
    """
    name = name or f"'{file}'"
    try:
        with Image.open(file, formats=["PNG"]) as picture:
            size = f"{picture.width}x{picture.height}"
            if picture.width * picture.height > MAX_PIXELS:
                raise BadInput(f"{name} claims {size} pixels; that is no frame")
            if picture.width * picture.height > room:
                raise BadInput(f"{name} claims {size} pixels; with those before it, that is no segment")
            return np.asarray(picture.convert("RGB"))
    except MemoryError as error:
        raise BadInput(f"{name} does not fit into memory") from error
    except UnidentifiedImageError as error:
        raise BadInput(f"{name} is missing or damaged: it is no PNG") from error
    except (OSError, ValueError, SyntaxError, zlib.error, *_BOMBS) as error:
        raise BadInput(f"{name} is missing or damaged: {' '.join(str(error).split())}") from error
