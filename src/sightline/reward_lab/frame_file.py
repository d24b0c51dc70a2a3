"""Frames on disk, for the few that are shown: which these are is known only when all of them have their rewards."""

from __future__ import annotations

import zlib
from array import array
from pathlib import Path

import numpy as np


class FrameFile:
    """File to which frames are appended, each compressed without loss, and from which any of them is read.

    In memory there are sixteen bytes a frame.
    """

    def __init__(self, file: Path) -> None:
        self._file = file.open("w+b")
        self._ends = array("Q")
        """Where each frame ends in the file."""
        self._kinds = array("L")
        """Which of the shapes each frame has."""
        self._shapes: dict[tuple[int, ...], int] = {}

    def __len__(self) -> int:
        return len(self._ends)

    def append(self, frames: np.ndarray) -> None:
        """Add frames uint8[T, H, W, 3]."""
        kind = self._shapes.setdefault(frames.shape[1:], len(self._shapes))
        self._file.seek(self._ends[-1] if self._ends else 0)
        for frame in frames:
            self._file.write(zlib.compress(frame.tobytes(), 1))
            self._ends.append(self._file.tell())
            self._kinds.append(kind)

    def __getitem__(self, number: int) -> np.ndarray:
        """uint8[H, W, 3], the frame of that number; the rows of `ScoredFrames` are numbered alike."""
        start = self._ends[number - 1] if number else 0
        self._file.seek(start)
        pixels = zlib.decompress(self._file.read(self._ends[number] - start))
        shape = list(self._shapes)[self._kinds[number]]
        return np.frombuffer(pixels, np.uint8).reshape(shape)

    def close(self) -> None:
        """Release the file."""
        self._file.close()
