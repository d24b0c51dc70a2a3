"""Does the reward rank episodes, and frames, as the truth does?"""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import numpy as np

from sightline.evaluation.statistics import Groups
from sightline.reward_lab.measures.correlation import with_truth
from sightline.reward_lab.measures.resampling import RESAMPLES, estimate
from sightline.reward_lab.measures.result import NO_SUCCESS, Measure, is_constant, undefined
from sightline.reward_lab.measures.success_detection import area_under_curve
from sightline.reward_lab.measures.table import FAILED, HALF_DONE, SUCCESSFUL, UNJUDGED, ScoredFrames

PAIRS = 10_000
BINS = 5


def kendall_tau(frames: ScoredFrames, resamples: int = RESAMPLES) -> Measure:
    """Kendall's tau-b (Kendall, 1945) of an episode's mean reward and its quality: failed, half done, successful.

    `(C - D) / sqrt((P - P_r) (P - P_q))`, with C pairs of episodes ordered alike, D ordered against each other, P all
    pairs, and P_r and P_q those with equal rewards and equal qualities. Details: `ranking_accuracy`, the share of pairs
    of different quality that are ordered alike, a tie counting one half, and `ties`, the share of these. Frames that
    are an episode each do not count.
    """
    reason, values, quality, numbers = _episode_values(frames)
    if reason:
        return undefined(reason, len(values), "episodes", frames.missing)
    of_values = Groups(values)
    of_quality = Groups(quality)

    def statistic(weights: np.ndarray) -> float | None:
        excess = 0.0
        for low, high in itertools.combinations((FAILED, HALF_DONE, SUCCESSFUL), 2):
            excess += _excess(of_values, quality, weights, low, high)
        pairs = _pairs(weights.sum())
        untied = (pairs - _pairs(of_values.weigh(weights))) * (pairs - _pairs(of_quality.weigh(weights)))
        return float(excess / math.sqrt(untied)) if untied > 0 else None

    # Of all pairs of different quality: how many are ordered alike, and how many are ties.
    rises = np.sign(values[:, None] - values) * np.sign(quality[:, None] - quality)
    differ = quality[:, None] != quality
    accuracy = float(np.mean((rises[differ] + 1) / 2))
    ties = float(np.mean(rises[differ] == 0))
    details = {"ranking_accuracy": accuracy, "ties": ties}
    return estimate(statistic, numbers, resamples, "episodes", frames.missing, **details)


def pair_accuracy(frames: ScoredFrames, resamples: int = RESAMPLES) -> Measure:
    """Share of pairs of frames with different truth in which the better one is paid more, a tie counting one half; 0.5
    is blind. Of 10 000 pairs, drawn by a fixed seed.

    Details: `ties`, their share, and `bins`, the same by fifths of the true difference, the hardest first.
    """
    reason, rows, truth = with_truth(frames)
    if reason:
        return undefined(reason, 0, "pairs", frames.missing)
    rng = np.random.default_rng(0)
    first, second = rng.integers(0, len(truth), (2, PAIRS))
    differs = truth[first] != truth[second]
    first = first[differs]
    second = second[differs]
    difference = np.abs(truth[first] - truth[second])
    rises = np.sign(rows.rewards[first] - rows.rewards[second]) * np.sign(truth[first] - truth[second])
    correct = (rises + 1) / 2
    is_within = rows.episode[first] == rows.episode[second]

    def statistic(weights: np.ndarray) -> float | None:
        # A pair of two episodes stands as often as there are combinations of them.
        of_pairs = np.where(is_within, weights[first], weights[first] * weights[second])
        if not of_pairs.sum():
            return None
        return float(np.average(correct, weights=of_pairs))

    edges = np.unique(np.quantile(difference, np.linspace(0, 1, BINS + 1)))
    bin_of_pair = np.clip(np.searchsorted(edges, difference, side="right") - 1, 0, max(len(edges) - 2, 0))
    bins = []
    for number in np.unique(bin_of_pair):
        members = bin_of_pair == number
        middle = float(np.median(difference[members]))
        accuracy = float(correct[members].mean())
        bins.append({"difference": middle, "accuracy": accuracy, "pairs": int(members.sum())})
    details = {"ties": float(np.mean(rises == 0)), "bins": bins}
    measure = estimate(statistic, rows.episode, resamples, "pairs", frames.missing, **details)
    return replace(measure, n=len(first))


def _episode_values(frames: ScoredFrames) -> tuple[str, np.ndarray, np.ndarray, np.ndarray]:
    """Mean reward, quality and number of each episode of several frames; the text says why they cannot be ranked."""
    quality = frames.quality
    if quality is None:
        quality = frames.quality_by_success
    values: list[float] = []
    numbers: list[int] = []
    for number, rows in enumerate(frames.episodes()):
        is_judged = quality[number] != UNJUDGED
        if rows.stop - rows.start > 1 and frames.answered[rows].all() and is_judged:
            values.append(float(frames.rewards[rows].mean()))
            numbers.append(number)
    means = np.array(values)
    chosen = np.array(numbers, int)
    of_chosen = quality[chosen]
    reason = ""
    if frames.quality is None and frames.success is None:
        reason = NO_SUCCESS
    elif not len(means):
        reason = "no episode of several frames has a reward for each of them"
    elif len(np.unique(of_chosen)) < 2:
        reason = "all episodes are of one quality"
    elif is_constant(means):
        reason = "the mean reward of all episodes is equal"
    return reason, means, of_chosen, chosen


def _excess(groups: Groups, quality: np.ndarray, weights: np.ndarray, low: int, high: int) -> float:
    """Pairs of two qualities that are ordered rightly, less those that are ordered wrongly."""
    both = weights * ((quality == low) | (quality == high))
    is_high = (quality == high).astype(np.float64)
    area = area_under_curve(groups, is_high, both)
    if area is None:
        return 0.0
    return float((both @ is_high) * (both @ (1 - is_high)) * (2 * area - 1))


def _pairs(counts: np.ndarray | float) -> float:
    """Number of pairs within groups of these sizes."""
    return float(np.sum(counts * (np.asarray(counts) - 1) / 2))
