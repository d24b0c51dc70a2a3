"""Does a video get the highest reward under its own instruction?"""

from __future__ import annotations

from typing import Any

import numpy as np

from sightline.reward_lab.measures.resampling import RESAMPLES, estimate
from sightline.reward_lab.measures.result import ROUNDING, Measure, undefined

PERMUTATIONS = 2000


def confusion_margin(rewards: np.ndarray, own: np.ndarray, resamples: int = RESAMPLES) -> Measure:
    """Instruction-confusion margin: `mean_i M[i, own_i] - mean_{i, j != own_i} M[i, j]`, with each row of M scaled to
    run from 0 to 1. From -1 to 1; 0 is a reward that does not read its instruction.

    Details: `p`, the share of permutations of `own` among the videos with at least this margin (Phipson and Smyth,
    2010), which a reward that favours one instruction for all videos does not lower; `constant_rows` and
    `unanswered_rows`, which are left out.

    Args:
        rewards: float[V, I], of each video under each instruction.
        own: int64[V], the number of the video's own instruction.
    """
    is_answered = np.isfinite(rewards).all(axis=1)
    low = np.min(rewards, axis=1, keepdims=True, initial=np.inf, where=is_answered[:, None])
    high = np.max(rewards, axis=1, keepdims=True, initial=-np.inf, where=is_answered[:, None])
    varies = is_answered & (high - low > ROUNDING * np.maximum(np.abs(high), np.abs(low)))[:, 0]
    constant = int(np.count_nonzero(is_answered & ~varies))
    details: dict[str, Any] = {"constant_rows": constant, "unanswered_rows": int(np.count_nonzero(~is_answered))}
    if rewards.shape[1] < 2:
        return undefined("one instruction cannot be confused", 0, "videos", **details)
    if not varies.any():
        return undefined("no video has different rewards under the instructions", 0, "videos", **details)
    scaled = (rewards[varies] - low[varies]) / (high[varies] - low[varies])
    of_own = own[varies]
    margins = _margins(scaled, of_own)
    rng = np.random.default_rng(0)
    as_large = 0
    for _ in range(PERMUTATIONS):
        as_large += bool(_margins(scaled, rng.permutation(of_own)).mean() >= margins.mean() - 1e-12)
    details["p"] = (as_large + 1) / (PERMUTATIONS + 1)

    def statistic(weights: np.ndarray) -> float:
        return float(np.average(margins, weights=weights))

    return estimate(statistic, np.arange(len(margins)), resamples, "videos", **details)


def _margins(scaled: np.ndarray, own: np.ndarray) -> np.ndarray:
    """float64[V], reward under the own instruction less the mean under all others."""
    videos, instructions = scaled.shape
    of_own = scaled[np.arange(videos), own]
    return np.asarray(of_own - (scaled.sum(axis=1) - of_own) / (instructions - 1))
