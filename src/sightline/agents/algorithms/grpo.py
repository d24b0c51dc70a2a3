"""GRPO advantages, relative to the group: Shao et al., "DeepSeekMath", 2024 (arXiv 2402.03300), section 4.1.2 (outcome
supervision).

    task seed 7:  return    1     0     0     1        mean 0.5, sample standard deviation 0.58
    advantage            +.87  -.87  -.87  +.87        the same for every turn of an episode

The group's mean is the baseline, so no critic is needed. `deviation` says what differences are divided by: `sample`,
sqrt(sum of squares / (n - 1)), is what libraries of the field divide by; `population`, with n in place of n - 1, is
what the equation says, 1.07 times as much at a group of 8; `none` leaves the division out (Liu et al., "Understanding
R1-Zero-Like Training" (Dr. GRPO), 2025, arXiv 2503.20783, section 3), for dividing favours tasks that are nearly always
or nearly never solved. Groups whose episodes all have the same return carry no signal and are dropped.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Literal

import numpy as np

from sightline.agents.algorithms.base import AlgorithmConfig, GroupSize, within_groups
from sightline.agents.algorithms.returns import all_equal
from sightline.agents.types import Advantages, Group

EPSILON = 1e-6
"""Added to the standard deviation that advantages are divided by."""
Deviation = Literal["sample", "population", "none"]
"""What differences from a group's mean are divided by."""


class GRPO(AlgorithmConfig):
    """An episode's return against those of the same task (Shao et al. 2024, arXiv 2402.03300)."""

    kind: Literal["grpo"] = "grpo"
    group: GroupSize = 8
    """Episodes with the same task seed."""
    deviation: Deviation = "sample"
    """Standard deviation that advantages are divided by: of a `sample` (n - 1) or a `population` (n); `none` leaves the
    scale of returns alone (Liu et al. 2025, arXiv 2503.20783)."""

    title: ClassVar[str] = "GRPO"

    def compute_advantages(self, groups: Sequence[Group]) -> list[list[Advantages | None]]:
        """GRPO advantages of each trajectory; None for broken or empty episodes, and for groups of equal returns."""
        return within_groups(groups, lambda episodes: episode_advantages(episodes, self.deviation))


def episode_advantages(episodes: Group, deviation: Deviation) -> list[np.ndarray]:
    """float64[turns] for each episode: its return relative to the group's, to all of its turns alike (outcome
    supervision)."""
    # Undiscounted: what counts is the outcome, not how soon it came.
    returns = np.array([episode.rewards.sum() for episode in episodes])
    relative = relative_to_group(returns, deviation)
    return [np.full(len(episode.turns), advantage) for episode, advantage in zip(episodes, relative, strict=True)]


def relative_to_group(returns: np.ndarray, deviation: Deviation) -> np.ndarray:
    """float64[n] -> float64[n]: returns minus their mean, in standard deviations if wanted; 0 if all are equal."""
    if all_equal(returns):
        # Dividing rounding errors by EPSILON would turn them into advantages.
        return np.zeros(len(returns))
    centred = returns - returns.mean()
    if deviation == "none":
        return np.asarray(centred)
    # Bessel's correction: the sample deviation divides by n - 1, as libraries do, not by n, as the equation says.
    correction = 1 if deviation == "sample" else 0
    return np.asarray(centred / (float(returns.std(ddof=correction)) + EPSILON))
