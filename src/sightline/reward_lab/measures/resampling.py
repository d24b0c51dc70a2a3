"""Bootstrap intervals over episodes: frames of one episode resemble each other, so that episodes are drawn, not frames.

A draw of episodes is told by weights: how often each episode, and with it each of its frames, counts. The order of the
frames by their reward, and whatever else a measure needs to know of them, is so found once and not in every draw.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from sightline.reward_lab.measures.result import Measure, undefined

RESAMPLES = 1000
MIN_EPISODES = 5
"""Fewer episodes have no interval: of four there are 35 different draws, too few for what 2.5 % of them exceed."""
MOST_UNDEFINED = 0.05
"""Share of draws that may have no value, since they hold no success for instance, before there is no interval."""

Statistic = Callable[[np.ndarray], float | None]
"""A measure of N rows that count as often as float64[N] weights say; None where it is undefined."""
Interval = tuple[float | None, float | None, str]
"""Lower and upper end; and if there are none, why."""


def estimate(
    statistic: Statistic,
    episode: np.ndarray,
    resamples: int = RESAMPLES,
    unit: str = "frames",
    missing: int = 0,
    **details: Any,
) -> Measure:
    """A measure of N rows with its 95 % interval.

    Args:
        episode: int64[N], the number of each row's episode.
        resamples: number of draws; with 0 there is no interval.
        unit: what a row is.
    """
    value = statistic(np.ones(len(episode)))
    if value is None:
        return undefined("its parts are too small for the arithmetic", len(episode), unit, missing)
    low, high, no_interval = bootstrap_interval(statistic, episode, resamples)
    return Measure(value, low, high, len(episode), unit, missing, no_interval=no_interval, details=details)


def bootstrap_interval(statistic: Statistic, episode: np.ndarray, resamples: int) -> Interval:
    """Percentile bootstrap interval (Efron, 1979) over whole episodes (Field and Welsh, 2007), with a fixed seed."""
    if not resamples:
        return None, None, "none was asked for"
    episodes, number = np.unique(episode, return_inverse=True)
    if len(episodes) < MIN_EPISODES:
        return None, None, f"an interval needs {MIN_EPISODES} episodes, and this rests on {len(episodes)}"
    values = [statistic(weights[number]) for weights in draws(len(episodes), resamples)]
    return percentiles(values)


def percentiles(values: list[float | None]) -> Interval:
    """Ends of the interval by the values of all draws."""
    defined = [value for value in values if value is not None]
    if len(values) - len(defined) > MOST_UNDEFINED * len(values):
        share = 1 - len(defined) / len(values)
        return None, None, f"too few episodes of a kind: {share:.0%} of all draws of episodes have no value"
    low, high = np.percentile(defined, [2.5, 97.5])
    return float(low), float(high), ""


def draws(episodes: int, resamples: int) -> Iterator[np.ndarray]:
    """Weights float64[E] of episodes drawn with replacement, one draw at a time, so that memory stays flat."""
    rng = np.random.default_rng(0)
    for _ in range(resamples):
        members = rng.integers(0, episodes, episodes)
        yield np.bincount(members, minlength=episodes).astype(np.float64)
