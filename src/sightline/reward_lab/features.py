"""Features on disk: each frame is embedded once for each encoder, whatever the number of rewards that score it."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Callable
from pathlib import Path

import numpy as np

from sightline.images import pixel_digest
from sightline.rewards.arrays import to_numpy
from sightline.runs.files import write_atomically


class FeatureStore:
    """Content-addressed folder of features: `<what gave them>/<frames>.npy`, so that other words embed nothing anew.

    Only the features of one episode are in memory at a time.

    Attributes:
        embedded: frames that were embedded by now; all others were read from the folder.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.embedded = 0

    def of(self, source: str, frames: np.ndarray, embed: Callable[[], np.ndarray]) -> np.ndarray:
        """Features [T, 1, …] of the T frames of an episode.

        Args:
            source: what gives them, in words (`RewardBlock.feature_source`).
            frames: uint8[T, …], by which they are found again.
            embed: gives them where they are not there.
        """
        folder = self._folder / hashlib.sha256(source.encode()).hexdigest()[:16]
        file = folder / f"{pixel_digest(frames)}.npy"
        stored = _read(file)
        if stored is not None and len(stored) == len(frames):
            return stored
        features = to_numpy(embed())
        self.embedded += len(frames)
        folder.mkdir(parents=True, exist_ok=True)
        content = io.BytesIO()
        np.save(content, features, allow_pickle=False)
        write_atomically(file, content.getvalue())
        return features


def _read(file: Path) -> np.ndarray | None:
    """The array of a file; None if there is none, or a damaged one, which is made again."""
    try:
        return np.asarray(np.load(file, allow_pickle=False))
    except (OSError, ValueError, EOFError):
        return None
