"""Correlation with the ground truth."""

from __future__ import annotations

import numpy as np

from sightline.evaluation.statistics import Groups, correlation
from sightline.reward_lab.measures.resampling import RESAMPLES, estimate
from sightline.reward_lab.measures.result import (
    CONSTANT_TRUTH,
    NO_TRUTH,
    Measure,
    is_constant,
    undefined,
    unusable_reward,
)
from sightline.reward_lab.measures.table import ScoredFrames


def pearson(frames: ScoredFrames, resamples: int = RESAMPLES) -> Measure:
    """Pearson's correlation with the ground truth (Pearson, 1895): `cov(r, g) / (std(r) std(g))`, from -1 to 1.

    Blind to scale and shift; 1 only if the reward is a line over the truth.
    """
    reason, rows, truth = with_truth(frames)
    if reason:
        return undefined(reason, len(truth), missing=frames.missing)

    def statistic(weights: np.ndarray) -> float | None:
        return correlation(rows.rewards, truth, weights)

    return estimate(statistic, rows.episode, resamples, missing=frames.missing, coverage=rows.coverage)


def spearman(frames: ScoredFrames, resamples: int = RESAMPLES) -> Measure:
    """Spearman's correlation with the ground truth (Spearman, 1904): Pearson's of the ranks, from -1 to 1.

    Equal values share the mean of their ranks. Blind to every rising change of the scale.
    """
    reason, rows, truth = with_truth(frames)
    if reason:
        return undefined(reason, len(truth), missing=frames.missing)
    of_rewards = Groups(rows.rewards)
    of_truth = Groups(truth)

    def statistic(weights: np.ndarray) -> float | None:
        return correlation(of_rewards.ranks(weights), of_truth.ranks(weights), weights)

    return estimate(statistic, rows.episode, resamples, missing=frames.missing, coverage=rows.coverage)


def with_truth(frames: ScoredFrames) -> tuple[str, ScoredFrames, np.ndarray]:
    """Frames with a reward and a ground truth, and that, float64[M].

    The text says why the two cannot be compared; it is empty if they can.
    """
    if frames.truth is None:
        return NO_TRUTH, frames, np.zeros(0)
    is_known = np.isfinite(frames.truth)
    rows = frames.select(frames.answered & is_known)
    truth = frames.truth[frames.answered & is_known].astype(np.float64)
    if not is_known.any():
        return NO_TRUTH, rows, truth
    reason = unusable_reward(frames.select(is_known), least=3)
    if not reason and is_constant(truth):
        reason = CONSTANT_TRUTH
    return reason, rows, truth
