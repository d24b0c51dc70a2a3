"""Does the reward tell frames, and episodes, that reach the goal from the rest?"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from sightline.evaluation.statistics import Groups, expected_calibration_error
from sightline.reward_lab.measures.resampling import RESAMPLES, estimate
from sightline.reward_lab.measures.result import NO_SUCCESS, Measure, undefined, unusable_classes, unusable_reward
from sightline.reward_lab.measures.table import ScoredFrames


def auroc(frames: ScoredFrames, resamples: int = RESAMPLES) -> Measure:
    """Area under the ROC curve by frame (Hanley and McNeil, 1982): the chance that a frame of the goal has a higher
    reward than another frame, a tie counting one half. From 0 to 1; 0.5 is blind."""
    reason, rows, success = with_success(frames)
    if reason:
        return undefined(reason, len(success), missing=frames.missing)
    return _auroc(rows.rewards, success, rows, frames.missing, resamples, "frames")


def auroc_last(frames: ScoredFrames, resamples: int = RESAMPLES) -> Measure:
    """Area under the ROC curve by episode: by the reward of its last frame, whether the goal was reached at any."""
    return _auroc_by_episode(frames, resamples, lambda rewards: rewards[-1])


def auroc_max(frames: ScoredFrames, resamples: int = RESAMPLES) -> Measure:
    """Area under the ROC curve by episode: by the highest reward of its frames, whether the goal was reached at any."""
    return _auroc_by_episode(frames, resamples, np.max)


def auprc(frames: ScoredFrames, resamples: int = RESAMPLES) -> Measure:
    """Average precision by frame, the area under the curve of precision over recall: `sum_k (R_k - R_{k-1}) P_k` over
    falling thresholds. From 0 to 1; the share of frames of the goal, in the details, is blind."""
    reason, rows, success = with_success(frames)
    if reason:
        return undefined(reason, len(success), missing=frames.missing)
    falling = Groups(-rows.rewards)

    def statistic(weights: np.ndarray) -> float | None:
        # At each threshold, from the highest reward down: how many are called the goal, and how many are.
        called = np.cumsum(falling.weigh(weights))
        right = np.cumsum(falling.weigh(weights * success))
        if not right[-1]:
            return None
        precision = right / np.maximum(called, 1)
        return float(np.diff(right, prepend=0) @ precision / right[-1])

    share = float(success.mean())
    return estimate(statistic, rows.episode, resamples, missing=frames.missing, share_of_goal=share)


def calibration_error(frames: ScoredFrames, resamples: int = RESAMPLES) -> Measure:
    """Expected calibration error of a reward that is the probability of success (Naeini et al., 2015): the mean gap
    between reward and share of goal frames over ten bins of reward. From 0, the best, to 1."""
    reason, rows, success = with_success(frames)
    if not reason and (rows.rewards.min() < 0 or rows.rewards.max() > 1):
        reason = "the reward is no probability: it leaves the range from 0 to 1"
    if reason:
        return undefined(reason, len(success), missing=frames.missing)

    def statistic(weights: np.ndarray) -> float:
        return expected_calibration_error(rows.rewards, success, weights)

    brier = float(np.mean((rows.rewards - success) ** 2))
    return estimate(statistic, rows.episode, resamples, missing=frames.missing, brier=brier)


def with_success(frames: ScoredFrames) -> tuple[str, ScoredFrames, np.ndarray]:
    """Frames with a reward of which it is stated whether they show the goal, and that, float64[M].

    The text says why reward and success cannot be compared; it is empty if they can.
    """
    if frames.success is None:
        return NO_SUCCESS, frames, np.zeros(0)
    stated = frames.select(frames.is_stated)
    rows = stated.select(stated.answered)
    assert rows.success is not None, "it is stated of some"
    reason = unusable_reward(stated) or unusable_classes(rows.success)
    return reason, rows, rows.success.astype(np.float64)


def area_under_curve(groups: Groups, positive: np.ndarray, weights: np.ndarray) -> float | None:
    """Area under the ROC curve: Mann and Whitney's U by the number of pairs, ties counting one half; None where a class
    is missing.

    Args:
        groups: of float[N] rewards.
        positive: float[N], 1 for the goal, otherwise 0.
        weights: float[N], how often each row counts.
    """
    positives = groups.weigh(weights * positive)
    negatives = groups.weigh(weights * (1 - positive))
    pairs = positives.sum() * negatives.sum()
    if not pairs:
        return None
    below = np.cumsum(negatives) - negatives / 2
    return float(positives @ below / pairs)


def _auroc_by_episode(frames: ScoredFrames, resamples: int, value: Callable[[np.ndarray], float]) -> Measure:
    """Area under the ROC curve of one value for each episode; episodes whose value is NaN are left out."""
    if frames.success is None:
        return undefined(NO_SUCCESS, unit="episodes", missing=frames.missing)
    values = np.array([value(frames.rewards[rows]) for rows in frames.episodes()], np.float64)
    # An episode of which nothing is stated is no failure.
    stated = np.array([frames.is_stated[rows].any() for rows in frames.episodes()], bool)
    numbers = np.arange(len(values))
    by_episode = ScoredFrames(
        values, numbers, np.zeros_like(numbers), frames.sources, success=frames.successful, stated=stated
    )
    reason, rows, success = with_success(by_episode)
    if reason:
        return undefined(reason.replace("frame", "episode"), len(success), "episodes", frames.missing)
    return _auroc(rows.rewards, success, rows, frames.missing, resamples, "episodes")


def _auroc(
    rewards: np.ndarray, success: np.ndarray, rows: ScoredFrames, missing: int, resamples: int, unit: str
) -> Measure:
    groups = Groups(rewards)

    def statistic(weights: np.ndarray) -> float | None:
        return area_under_curve(groups, success, weights)

    return estimate(statistic, rows.episode, resamples, unit, missing)
