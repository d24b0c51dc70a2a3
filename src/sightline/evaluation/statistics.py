"""Statistics: 95 % confidence intervals, and rank correlation for rewards of arbitrary scale.

Rates have Wilson intervals, returns bootstrap intervals: of evaluations (`episode_stats.py`), comparisons of runs
(`reports/comparison.py`), teachers (`agreement.py`) and fits to labels (`preferences/fit.py`). Intervals of rewards
(`lab/measures/resampling.py`) are of values that count several times: `Groups`, `correlation`, `quantile`.
"""

from __future__ import annotations

import math

import numpy as np

Z95 = 1.959963984540054
CONFIDENCE_BINS = 10
"""Number of bins of equal width for calibration."""


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


def expected_calibration_error(confidence: np.ndarray, correct: np.ndarray, weights: np.ndarray | None = None) -> float:
    """Mean gap between confidence and accuracy over ten bins of confidence (Naeini et al., 2015), each weighted by its
    size.

    Args:
        confidence: float[N], N >= 1, from 0 to 1.
        correct: float[N], 1 where it was right, otherwise 0.
        weights: float[N], how often each counts; None for once.
    """
    if weights is None:
        weights = np.ones(len(confidence))
    bin_of_row = np.clip((confidence * CONFIDENCE_BINS).astype(int), 0, CONFIDENCE_BINS - 1)
    gaps = np.bincount(bin_of_row, weights * (correct - confidence))
    return float(np.abs(gaps).sum() / weights.sum())


class Groups:
    """Equal values of float[N], in ascending order; looked for once, and used with many weights.

    Weights, float64[N], say how often each value counts; whole ones give what as many repetitions would.

    Attributes:
        values: float[G], ascending.
        of_row: int64[N], the group of each value.
    """

    def __init__(self, values: np.ndarray) -> None:
        self.values, self.of_row = np.unique(values, return_inverse=True)

    def weigh(self, weights: np.ndarray) -> np.ndarray:
        """float64[G], the weight of each group."""
        return np.bincount(self.of_row, weights, minlength=len(self.values))

    def ranks(self, weights: np.ndarray) -> np.ndarray:
        """float64[N], ranks up to a constant; equal values share the mean of theirs."""
        weight = self.weigh(weights)
        middle = np.cumsum(weight) - weight / 2
        return np.asarray(middle[self.of_row])

    def quantile(self, weights: np.ndarray, level: float) -> float:
        """The value below which the share `level` of all weight lies, between 0 and 1; between two values their mean
        (Hyndman and Fan, 1996, definition 2)."""
        weight = np.cumsum(self.weigh(weights))
        target = level * weight[-1]
        first = int(np.searchsorted(weight, target))
        next_one = min(int(np.searchsorted(weight, target, side="right")), len(weight) - 1)
        return float((self.values[first] + self.values[next_one]) / 2)


def correlation(x: np.ndarray, y: np.ndarray, weights: np.ndarray) -> float | None:
    """Pearson's correlation (Pearson, 1895) of two float[N] that count as often as float[N] weights say; None where one
    of them is constant."""
    total = weights.sum()
    x = x - weights @ x / total
    y = y - weights @ y / total
    variance = (weights @ (x * x)) * (weights @ (y * y))
    if not variance > 0:
        return None
    # Rounding may lead a little beyond 1.
    return float(np.clip(weights @ (x * y) / math.sqrt(variance), -1, 1))
