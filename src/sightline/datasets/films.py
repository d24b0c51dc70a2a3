"""Films of data sets: H.264 files that hold the frames of many episodes, one after the other."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Generator
from pathlib import Path
from typing import Any

import numpy as np

from sightline.errors import BadInput, Damaged, RunFailed

CODEC = "h264"
PIXELS = "yuv420p"
# Every second frame stands for itself (g), so that loaders find any frame quickly.
_SETTINGS = {
    "crf": "16",
    "g": "2",
    "bf": "0",
    "preset": "veryfast",
    "movflags": "+faststart",
    "threads": "1",
    "f": "mp4",
}
_ENCODING = [word for name, value in _SETTINGS.items() for word in (f"-{name}", value)]


class FilmWriter:
    """Writer of one film.

    Args:
        file: the film; a file of that name is replaced.
        shape: (H, W, 3) of its frames; both sides are even.
        fps: frames a second.

    Raises:
        BadInput: a side is odd, which H.264 with colours of two by two pixels cannot hold.
    """

    def __init__(self, file: Path, shape: tuple[int, ...], fps: int) -> None:
        import imageio_ffmpeg

        height, width = shape[:2]
        if height % 2 or width % 2:
            raise BadInput(
                f"frames of {width}x{height} make no film, whose sides are even; keep them as pictures: --lossless"
            )
        self._file = file
        self._ffmpeg: Any = imageio_ffmpeg.write_frames(
            os.path.abspath(file),
            (width, height),
            fps=fps,
            codec="libx264",
            pix_fmt_out=PIXELS,
            quality=None,
            macro_block_size=1,
            ffmpeg_log_level="error",
            output_params=_ENCODING,
        )
        self._ffmpeg.send(None)

    def add(self, frames: np.ndarray) -> None:
        """Append frames uint8[N, H, W, 3].

        Raises:
            RunFailed: FFmpeg has ended, as it does on a full disk.
        """
        for frame in frames:
            try:
                self._ffmpeg.send(np.ascontiguousarray(frame))
            except (OSError, StopIteration) as error:
                raise RunFailed(f"the film '{self._file}' cannot be written; is the disk full?") from error

    def finish(self, count: int) -> None:
        """Finish the film, which should hold so many frames.

        Raises:
            RunFailed: it does not, since FFmpeg could not write it.
        """
        import imageio_ffmpeg

        self.close()
        written = 0
        with contextlib.suppress(OSError, RuntimeError, ValueError):
            written = imageio_ffmpeg.count_frames_and_secs(os.path.abspath(self._file))[0]
        if written != count:
            raise RunFailed(f"the film '{self._file}' holds {written} of {count} frames; is the disk full?")

    def close(self) -> None:
        """End FFmpeg."""
        self._ffmpeg.close()


class FilmReader:
    """Reader of one film, from its beginning to its end; only the frames that are asked for are kept."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._frames: Generator[Any] | None = None
        self._next = 0
        """Index of the frame that comes next."""
        self._shape: tuple[int, int, int] = (0, 0, 3)

    def take(self, first: int, count: int, room: int = 0) -> np.ndarray:
        """uint8[count + room, H, W, 3], the frames from `first` on, and room for some more, which are not filled in.

        Raises:
            Damaged: the film cannot be read, or ends before.
        """
        if self._frames is None or first < self._next:
            self._open()
        while self._next < first:
            self._read(first + count)
        taken = np.empty((count + room, *self._shape), np.uint8)
        for frame in taken[:count]:
            frame[:] = np.frombuffer(self._read(first + count), np.uint8).reshape(self._shape)
        return taken

    def close(self) -> None:
        """End FFmpeg."""
        if self._frames is not None:
            self._frames.close()
            self._frames = None

    def _open(self) -> None:
        import imageio_ffmpeg

        self.close()
        if not self._file.is_file():
            raise Damaged(f"there is no film '{self._file}'")
        frames: Any = imageio_ffmpeg.read_frames(os.path.abspath(self._file))
        try:
            width, height = next(frames)["size"]
        except (OSError, RuntimeError, ValueError, KeyError, StopIteration) as error:
            frames.close()
            raise Damaged(f"'{self._file}' cannot be read as a film") from error
        self._frames = frames
        self._next = 0
        self._shape = (height, width, 3)

    def _read(self, wanted: int) -> Any:
        assert self._frames is not None
        frame = None
        with contextlib.suppress(OSError, RuntimeError):
            frame = next(self._frames, None)
        if frame is None:
            raise Damaged(f"the film '{self._file}' ends after {self._next} frames, and {wanted} are wanted of it")
        self._next += 1
        return frame
