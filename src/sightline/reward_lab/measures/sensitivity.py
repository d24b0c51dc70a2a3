"""Does the reward hold still where what is to be seen is the same?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from sightline.reward_lab.measures.correlation import spearman
from sightline.reward_lab.measures.result import CONSTANT_REWARD, Measure, is_constant, undefined
from sightline.reward_lab.measures.table import ScoredFrames

NOT_CHANGED = "no frame was changed: the reward reads none, or several at once"


def relative_change(frames: ScoredFrames, changed: np.ndarray) -> Measure:
    """Median change of the reward between a frame and what should be paid the same, in units of the rewards'
    interquartile range: `median |r' - r| / (q75 - q25)`. From 0, the best.

    Args:
        changed: float[N], rewards of the changed frames; NaN where a frame was not changed.
    """
    both = frames.answered & np.isfinite(changed)
    if not both.any():
        return undefined(NOT_CHANGED)
    return _in_spreads(frames, np.abs(changed[both] - frames.rewards[both]))


def spread_of_variants(frames: ScoredFrames, variants: Sequence[np.ndarray]) -> Measure:
    """Standard deviation of a frame's reward over variants of one reward, itself among them: its median over frames, in
    units of the rewards' interquartile range. From 0, the best.

    Args:
        variants: float[N] each, such as rewards by other words for the same goal.
    """
    values = np.stack([frames.rewards, *variants])
    is_known = np.isfinite(values).all(axis=0)
    if not is_known.any():
        return undefined("no frame has a reward by all of them")
    return _in_spreads(frames, values[:, is_known].std(axis=0))


def rank_agreement(frames: ScoredFrames, changed: np.ndarray) -> Measure:
    """Spearman's correlation of a reward with a variant of it, from -1 to 1, the best: 1 where both order all frames
    alike, however far apart their numbers are."""
    finite = changed[np.isfinite(changed)]
    if len(finite) and is_constant(finite):
        return undefined("the variant is constant", len(finite))
    return spearman(replace(frames, truth=changed), resamples=0)


def _in_spreads(frames: ScoredFrames, changes: np.ndarray) -> Measure:
    """The median of float[M] changes in units of the rewards' interquartile range."""
    low, high = np.percentile(frames.rewards[frames.answered], [25, 75])
    if high == low:
        return undefined(CONSTANT_REWARD, len(changes))
    return Measure(float(np.median(changes) / (high - low)), n=len(changes), no_interval="none was asked for")
