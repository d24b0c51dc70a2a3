"""Frames on disk, each distinct one once: PNG files named by the SHA-256 of their pixels."""

from __future__ import annotations

import hashlib
import io
import zlib
from pathlib import Path

import numpy as np
from PIL import Image, UnidentifiedImageError

from sightline.errors import BadInput, RunFailed
from sightline.runs.folder import write_atomically

MAX_PIXELS = 64_000_000
"""Larger pictures are refused: no frame of a simulator is that large, but a hostile file may claim to be."""
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
        frame = read_picture(self.file(name))
        if name_of(frame) != name:
            raise BadInput(f"'{self.file(name)}' is damaged: it is not the frame that was stored there")
        return frame

    def file(self, name: str) -> Path:
        """Where the frame of that name is, or would be."""
        return self._folder / name[:2] / f"{name}.png"


def name_of(frame: np.ndarray) -> str:
    """Hexadecimal SHA-256 of shape and pixels."""
    return hashlib.sha256(repr(frame.shape).encode() + np.ascontiguousarray(frame).tobytes()).hexdigest()


def read_picture(file: Path | io.BytesIO, name: str = "") -> np.ndarray:
    """uint8[H, W, 3] of a PNG on disk or in memory.

    Args:
        name: what to call it in a complaint; default: the file's name.

    Raises:
        BadInput: it is no PNG, damaged, or claims to be larger than any frame.
    """
    name = name or f"'{file}'"
    try:
        with Image.open(file, formats=["PNG"]) as picture:
            if picture.width * picture.height > MAX_PIXELS:
                raise BadInput(f"{name} claims {picture.width}x{picture.height} pixels; that is no frame")
            return np.asarray(picture.convert("RGB"))
    except UnidentifiedImageError as error:
        raise BadInput(f"{name} is missing or damaged: it is no PNG") from error
    except (OSError, ValueError, SyntaxError, zlib.error, *_BOMBS) as error:
        raise BadInput(f"{name} is missing or damaged: {' '.join(str(error).split())}") from error
