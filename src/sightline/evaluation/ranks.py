"""Rank correlation, for rewards whose scale means nothing."""

from __future__ import annotations

import numpy as np


def ranks(values: np.ndarray) -> np.ndarray:
    """float64[N]: ranks from 0; equal values share the mean of theirs."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts) - 1
    return np.asarray((last - (counts - 1) / 2)[inverse])


def spearman(x: np.ndarray, y: np.ndarray) -> float | None:
    """Spearman's rank correlation of two float[N]; None where one of them is constant or anything is NaN."""
    if len(x) < 2 or np.isnan(x).any() or np.isnan(y).any():
        return None
    a, b = ranks(x), ranks(y)
    if a.std() == 0 or b.std() == 0:
        return None
    return float(np.corrcoef(a, b)[0, 1])
