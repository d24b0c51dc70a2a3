"""Statistics of features as LeRobot keeps them in `meta/stats.json`, by which its policies normalise."""

from __future__ import annotations

import numpy as np

QUANTILES = {"q01": 0.01, "q10": 0.10, "q50": 0.50, "q90": 0.90, "q99": 0.99}
_FRAMES = 8
"""Frames of an episode that the statistics of its pictures are taken from."""
_PIXELS = 4096
"""Pixels of a frame that they are taken from, about."""


class FeatureStatistics:
    """Statistics of one feature, from one episode after the other.

    Range, mean and standard deviation are exact. Quantiles are the mean of those of the episodes, weighted by their
    lengths, as LeRobot's own are. Values that are not finite do not count.
    """

    def __init__(self) -> None:
        self._rows = 0
        """Rows, or frames, as `count` states them."""
        self._count: np.ndarray = np.zeros(1)
        """float64[D], finite values so far."""
        self._mean: np.ndarray = np.zeros(1)
        self._squares: np.ndarray = np.zeros(1)
        """float64[D], sums of squared distances from the mean."""
        self._low: np.ndarray = np.full(1, np.inf)
        self._high: np.ndarray = np.full(1, -np.inf)
        self._quantiles: np.ndarray = np.zeros((len(QUANTILES), 1))

    def add(self, values: np.ndarray) -> None:
        """Count an episode's values, [T] or [T, D]."""
        self._add(values.reshape(len(values), -1).astype(np.float64), len(values))

    def add_frames(self, frames: np.ndarray) -> None:
        """Count some pixels of some frames uint8[T, H, W, 3], each channel for itself, from 0 to 1."""
        some = frames[:: max(1, len(frames) // _FRAMES)]
        pixels = some.reshape(len(some), -1, 3)
        pixels = pixels[:, :: max(1, pixels.shape[1] // _PIXELS)]
        self._add(pixels.reshape(-1, 3) / 255.0, len(some))

    def document(self, is_picture: bool) -> dict[str, list[object]] | None:
        """The statistics as plain lists, of shape [3, 1, 1] for pictures; None where a column had no finite value."""
        if not self._count.all():
            return None
        spread = np.sqrt(self._squares / self._count)
        numbers = {"min": self._low, "max": self._high, "mean": self._mean, "std": spread}
        numbers |= dict(zip(QUANTILES, self._quantiles, strict=True))
        shape = (3, 1, 1) if is_picture else (-1,)
        document: dict[str, list[object]] = {name: array.reshape(shape).tolist() for name, array in numbers.items()}
        return document | {"count": [self._rows]}

    def _add(self, values: np.ndarray, rows: int) -> None:
        """Count float64[M, D] that come from so many rows."""
        is_finite = np.isfinite(values)
        count = is_finite.sum(axis=0)
        self._rows += rows
        if not count.any():
            return
        # Columns without a finite value in this episode keep what they have.
        values = np.where(is_finite, values, np.nan)
        is_known = count > 0
        safe = np.where(is_known, values, 0.0)
        mean = np.nanmean(safe, axis=0)
        squares = np.nansum((safe - mean) ** 2, axis=0)
        quantiles = np.nanquantile(safe, list(QUANTILES.values()), axis=0)
        # Two sets of values joined (Chan, Golub and LeVeque, 1983).
        total = self._count + count
        share = np.divide(count, total, out=np.zeros_like(mean), where=total > 0)
        step = mean - self._mean
        self._squares = self._squares + np.where(is_known, squares + step**2 * self._count * share, 0.0)
        self._mean = self._mean + step * share
        self._quantiles = self._quantiles + (quantiles - self._quantiles) * share
        self._low = np.minimum(self._low, np.where(is_known, np.nanmin(safe, axis=0), np.inf))
        self._high = np.maximum(self._high, np.where(is_known, np.nanmax(safe, axis=0), -np.inf))
        self._count = total
