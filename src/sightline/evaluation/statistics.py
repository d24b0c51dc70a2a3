"""Statistics: 95 % confidence intervals, and rank correlation for rewards of arbitrary scale.

Rates have Wilson intervals, returns bootstrap intervals: of evaluations (`episode_stats.py`), comparisons of runs
(`reports/comparison.py`), teachers (`agreement.py`) and fits to labels (`preferences/fit.py`).
"""

from __future__ import annotations

import math

import numpy as np

Z95 = 1.959963984540054


def wilson(successes: int, trials: int) -> tuple[float, float]:
    """Wilson's score interval for a rate (Wilson, 1927): sensible also at 0 and at 1.

    Returns:
        (low, high), both in [0, 1]; (0, 1) without trials.
    """
    if trials == 0:
        return 0.0, 1.0
    rate = successes / trials
    z2 = Z95**2
    shrinkage = 1 + z2 / trials
    centre = (rate + z2 / (2 * trials)) / shrinkage
    half = Z95 / shrinkage * math.sqrt(rate * (1 - rate) / trials + z2 / (4 * trials**2))
    # Rounding may put an end a little beyond the rate, or beyond 0 or 1.
    low = max(0.0, min(centre - half, rate))
    high = min(1.0, max(centre + half, rate))
    return low, high


def bootstrap_mean(values: np.ndarray, resamples: int = 2000) -> tuple[float, float]:
    """Percentile bootstrap interval of a mean (Efron, 1979), with a fixed seed of its own.

    Args:
        values: float[N], N >= 1.
    """
    rng = np.random.default_rng(0)
    samples = values[rng.integers(0, len(values), (resamples, len(values)))]  # with replacement
    means = samples.mean(axis=1)
    low, high = np.percentile(means, [2.5, 97.5])
    return float(low), float(high)


def ranks(values: np.ndarray) -> np.ndarray:
    """Ranks from 0, float64[N]; equal values share the mean of theirs."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts) - 1  # rank of the last of each group of equal values
    mean = last - (counts - 1) / 2
    return np.asarray(mean[inverse])


def spearman(x: np.ndarray, y: np.ndarray) -> float | None:
    """Spearman's rank correlation of two float[N]; None where one of them is constant or anything is NaN."""
    if len(x) < 2 or np.isnan(x).any() or np.isnan(y).any():
        return None
    ranks_x = ranks(x)
    ranks_y = ranks(y)
    if ranks_x.std() == 0 or ranks_y.std() == 0:
        return None
    return float(np.corrcoef(ranks_x, ranks_y)[0, 1])
