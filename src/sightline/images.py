"""Pictures: one class for them, one digest of pixels, one store of PNG files, and readers of image and video files."""

from __future__ import annotations

import base64
import hashlib
import io
import re
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageOps, ImageSequence, UnidentifiedImageError

from sightline.errors import BadInput
from sightline.runs.files import write_atomically

MAX_PIXELS = 64_000_000
"""Larger pictures, and segments with more than this in all, are refused: a hostile file may claim to be of any size."""
_LEAST = 1_000
"""A frame counts as so many pixels at least, for it takes memory beside them."""
_SHORT = 16
"""Hexadecimal digits of a short digest: enough to tell the pictures of one run apart."""
_BOMBS = (Image.DecompressionBombError, Image.DecompressionBombWarning)


# -- pictures in memory ------------------------------------------------------------------------------------------------


def pixel_digest(pixels: np.ndarray) -> str:
    """Hexadecimal SHA-256 of shape and pixels, of a picture or of several in one array."""
    return hashlib.sha256(repr(pixels.shape).encode() + np.ascontiguousarray(pixels).tobytes()).hexdigest()


@dataclass(frozen=True, eq=False)
class Picture:
    """A picture for a model: uint8[H, W, 3]. Equal pictures have equal digests."""

    pixels: np.ndarray

    @classmethod
    def reference(cls, digest: str) -> Picture:
        """A picture that is elsewhere: its digest, without its pixels."""
        picture = cls(np.zeros((0, 0, 3), np.uint8))
        picture.__dict__["digest"] = digest  # where cached_property looks first
        return picture

    def packed(self) -> Picture:
        """The same picture, as a PNG file in memory: its pixels are unpacked whenever they are asked for."""
        return _Packed(self)

    @cached_property
    def digest(self) -> str:
        """Short digest: the first 16 digits of `pixel_digest`."""
        return pixel_digest(self.pixels)[:_SHORT]

    @cached_property
    def png(self) -> bytes:
        """PNG file for sending: no loss, and every provider reads it. Made once, quickly rather than small."""
        return encode_png(self.pixels, compress_level=1)

    @property
    def base64(self) -> str:
        return base64.b64encode(self.png).decode()


class _Packed(Picture):
    """A picture that is kept to be shown some day; screens of simulators take a hundredth of their pixels so."""

    def __init__(self, picture: Picture) -> None:
        # Where cached_property looks first.
        self.__dict__.update(digest=picture.digest, png=encode_png(picture.pixels, compress_level=1))

    @property
    def pixels(self) -> np.ndarray:
        with Image.open(io.BytesIO(self.png)) as image:
            return np.array(image)


def encode_png(pixels: np.ndarray, compress_level: int = 6) -> bytes:
    """PNG file of uint8[H, W, 3]."""
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG", compress_level=compress_level)
    return file.getvalue()


def too_large(shape: Sequence[int]) -> bool:
    """True for a segment [L, H, W, 3] with more pixels than are read back from its files; see `MAX_PIXELS`."""
    length, height, width = shape[:3]
    return (length - 1) * max(height * width, _LEAST) + height * width > MAX_PIXELS


# -- pictures in a folder ----------------------------------------------------------------------------------------------


class PictureFiles:
    """Content-addressed folder of PNG files, each distinct picture once. Threads and processes may share it.

    Args:
        flat: files are `<short digest>.png`, for the few pictures of demonstrations and trajectories. Otherwise
            `ab/<digest>.png`, since a label store has so many frames that one folder would be slow to list.
    """

    def __init__(self, folder: Path, flat: bool = False) -> None:
        self._folder = folder
        self._flat = flat
        self._digits = _SHORT if flat else 64

    def add(self, pixels: np.ndarray) -> str:
        """Store uint8[H, W, 3] unless it is there already; returns its name.

        Raises:
            BadInput: its place is behind a link.
            OSError: it cannot be written.
        """
        name = pixel_digest(pixels)[: self._digits]
        file = self.file(name)
        if not file.is_file():
            file.parent.mkdir(exist_ok=True)
            if not self._flat and file.parent.is_symlink():
                raise BadInput(f"'{file.parent}' is a link; a label store holds plain folders")
            write_atomically(file, encode_png(pixels))
        return name

    def read(self, name: str, where: str = "") -> np.ndarray:
        """uint8[H, W, 3] of that name.

        Args:
            where: place that names it, for complaints.

        Raises:
            BadInput: it is missing, or not what was stored.
        """
        frame: np.ndarray = self.read_all([name], where)[0]
        return frame

    def read_all(self, names: Iterable[str], where: str = "") -> np.ndarray:
        """uint8[L, H, W, 3], the frames of a segment by their names.

        Raises:
            BadInput: one is missing, or not what was stored; they are of several sizes, or too large together.
        """
        files = [self.file(name, where) for name in names]
        for file in files:
            # The flat folders are also downloaded as data sets, and the caches of hubs are made of links.
            if (file.is_symlink() and not self._flat) or (file.exists() and not file.is_file()):
                raise BadInput(f"'{file}' is damaged: it is no regular file")
        suffix = f" ({where})" if where else ""
        labels = [f"'{file}'{suffix}" for file in files]  # for complaints
        frames = read_pngs(zip(files, labels, strict=True), f"a segment in '{self._folder}'")
        for file, label, frame in zip(files, labels, frames, strict=True):
            if pixel_digest(frame)[: self._digits] != file.stem:
                raise BadInput(f"{label} is damaged: it is not the picture that was stored there")
        return frames

    def file(self, name: str, where: str = "") -> Path:
        """Path of the picture of that name, stored or not.

        Raises:
            BadInput: it is no name of a picture; the files of a stranger may say anything.
        """
        # Anything but digits might lead out of the folder.
        if not (isinstance(name, str) and re.fullmatch(f"[0-9a-f]{{{self._digits}}}", name)):
            where = where or f"the index of '{self._folder}'"
            raise BadInput(f"{where} is damaged: {str(name)[:80]!r} is no name of a picture")
        if self._flat:
            return self._folder / f"{name}.png"
        return self._folder / name[:2] / f"{name}.png"


# -- files of strangers: PNGs, bounded ---------------------------------------------------------------------------------


def read_pngs(pictures: Iterable[tuple[Path | io.BytesIO, str]], whole: str) -> np.ndarray:
    """uint8[L, H, W, 3] of PNGs of one size, at least one of them.

    Each is looked at before it is decoded, and only when those before it are known to leave room: many frames fill the
    memory as well as a large one.

    Args:
        pictures: each with its name for complaints; taken one by one.
        whole: name of all of them together.

    Raises:
        BadInput: as `read_png`; or they are of several sizes, or more than `MAX_PIXELS` together.
    """
    frames: list[np.ndarray] = []
    room = MAX_PIXELS
    for picture, name in pictures:
        frame = read_png(picture, name, room)
        frames.append(frame)
        room -= max(frame.shape[0] * frame.shape[1], _LEAST)
        if frame.shape != frames[0].shape:
            raise BadInput(f"{whole} has frames of several sizes; that is no segment")
    try:
        return np.stack(frames)
    except ValueError as error:
        raise BadInput(f"{whole} has no frames") from error
    except MemoryError as error:
        raise BadInput(f"{whole} does not fit into memory") from error


def read_png(file: Path | io.BytesIO, name: str = "", room: int = MAX_PIXELS) -> np.ndarray:
    """uint8[H, W, 3] of a PNG on disk or in memory.

    Args:
        name: for complaints; default: the file's name.
        room: pixels that there is room for; what its header claims is compared with it before anything is decoded.

    Raises:
        BadInput: it is no PNG, damaged, or claims to be larger than any frame, or than there is room for.
    """
    name = name or f"'{file}'"
    try:
        with Image.open(file, formats=["PNG"]) as picture:
            # So far only the header is read.
            size = f"{picture.width}x{picture.height}"
            pixels = picture.width * picture.height
            if pixels > MAX_PIXELS:
                raise BadInput(f"{name} claims {size} pixels; that is no frame")
            if pixels > room:
                raise BadInput(f"{name} claims {size} pixels; with those before it, that is no segment")
            return as_rgb(picture)
    except MemoryError as error:
        raise BadInput(f"{name} does not fit into memory") from error
    except UnidentifiedImageError as error:
        raise BadInput(f"{name} is missing or damaged: it is no PNG") from error
    except (OSError, ValueError, SyntaxError, zlib.error, *_BOMBS) as error:
        raise BadInput(f"{name} is missing or damaged: {' '.join(str(error).split())}") from error


# -- files of the user: images and videos of any format ----------------------------------------------------------------


def file_within(folder: Path, name: Any) -> Path | None:
    """The file that a stranger's list calls so, if it is one and lies in this folder or below it; else None."""
    file = (folder / str(name)).resolve()
    if not file.is_file() or not file.is_relative_to(folder.resolve()):
        return None
    return file


def read_image(file: Path | io.BytesIO, name: str = "") -> np.ndarray:
    """uint8[H, W, 3] of an image file on disk or in memory, or of the first picture in it; see `as_rgb`.

    Args:
        name: for complaints; default: the file's name.

    Raises:
        BadInput: it cannot be read as a picture, or would take absurd amounts of memory.
    """
    name = name or f"'{file}'"
    if isinstance(file, Path) and file.exists() and not file.is_file():
        raise BadInput(f"{name} is no regular file, and cannot be read as a picture")  # a pipe would be waited for
    try:
        with Image.open(file) as opened:
            return as_rgb(opened)
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise BadInput(f"{name} cannot be read as a picture: {' '.join(str(error).split())}") from error


def as_rgb(picture: Image.Image) -> np.ndarray:
    """uint8[H, W, 3] of a picture as it is meant to be seen.

    It is turned upright; greyscale is spread over the channels, and transparency is laid on white.

    Raises:
        ValueError: its numbers have no known white, as those of measurements.
    """
    image = _upright(picture)
    # Older versions of Pillow read PNGs of 16 bits into 32.
    if image.mode.startswith("I;16") or (image.mode == "I" and picture.format == "PNG"):
        eight_bits = (np.asarray(image) >> 8).astype(np.uint8)
        return np.repeat(eight_bits[:, :, None], 3, axis=2)
    if image.mode in ("I", "F"):  # whether 1, 255 or 65535 is white would be a guess
        raise ValueError("its pixels have 32 bits, of which none says what is white; save it with 8 bits")
    if image.has_transparency_data:
        rgba = image.convert("RGBA")
        white = Image.new("RGBA", rgba.size, "white")
        return np.asarray(Image.alpha_composite(white, rgba).convert("RGB"))
    return np.asarray(image.convert("RGB"))


def _upright(picture: Image.Image) -> Image.Image:
    """The picture that a camera stored lying down, which its EXIF data say."""
    try:
        return ImageOps.exif_transpose(picture)
    except Exception:  # damaged EXIF data raise exceptions of any type; the picture itself may be sound
        return picture


def read_video(file: Path) -> Iterator[np.ndarray]:
    """Frames of a video file or an animated picture, one after the other.

    Yields:
        uint8[H, W, 3], RGB.

    Raises:
        BadInput: at the first frame, if there is no such file or it is no video; later, if it breaks off.
    """
    if not file.is_file():
        raise BadInput(f"there is no video '{file}'")
    # FFmpeg would repeat or drop frames of a GIF to make its rate constant.
    is_animation = file.suffix.lower() == ".gif" or is_animated(file)
    frames = _animation_frames(file) if is_animation else _ffmpeg_frames(file)
    count = 0
    try:
        for frame in frames:
            yield frame
            count += 1
    except ImportError as error:
        raise BadInput(f"'{file}' cannot be read as a video: {error}; pip install imageio-ffmpeg") from error
    except (OSError, RuntimeError, ValueError, SyntaxError) as error:
        raise BadInput(f"'{file}' cannot be read as a video (after {count} frames)") from error
    if count == 0:
        raise BadInput(f"'{file}' holds no frames")


def is_animated(file: Path) -> bool:
    """Whether an image file is a film. The further pictures of others are previews, or pages."""
    if not file.is_file():  # a pipe would be waited for
        return False
    try:
        with Image.open(file, formats=["GIF", "PNG", "WEBP"]) as image:
            return bool(getattr(image, "is_animated", False))
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError):
        return False


def _animation_frames(file: Path) -> Iterator[np.ndarray]:
    with Image.open(file) as image:
        for frame in ImageSequence.Iterator(image):
            yield as_rgb(frame)


def _ffmpeg_frames(file: Path) -> Iterator[np.ndarray]:
    import imageio.v2 as imageio

    reader: Any = imageio.get_reader(file, format="FFMPEG")
    with closing(reader):
        for frame in reader:
            yield np.asarray(frame, np.uint8)
