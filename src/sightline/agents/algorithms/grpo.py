"""Credit for an episode against its group: Shao et al., "DeepSeekMath", 2024 (arXiv 2402.03300), section 4.1.2 (outcome
supervision).

Every turn of an episode is credited alike: with the episode's return, less the mean of the group, divided by the
group's deviation (of the population, plus a small number). `divide_by_deviation=False` leaves the division out: Liu et
al., "Understanding R1-Zero-Like Training" (Dr. GRPO), 2025 (arXiv 2503.20783), section 3: dividing favours tasks that
are nearly always or nearly never solved. Groups whose episodes all ended alike say nothing and are dropped.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from sightline.agents.algorithms.returns import RewardKind, all_alike, is_whole, rewards_of
from sightline.agents.types import Advantages, Group
from sightline.config.agents import GRPO

EPSILON = 1e-6
"""Added to the deviation that advantages are divided by."""


def compute_advantages(groups: Sequence[Group], settings: GRPO, reward: RewardKind) -> list[list[Advantages | None]]:
    """A credit for each trajectory; None for those that broke or are empty, and for groups without differences."""
    return [_of_group(group, settings, reward) for group in groups]


def _of_group(group: Group, settings: GRPO, reward: RewardKind) -> list[Advantages | None]:
    credits: list[Advantages | None] = [None] * len(group)
    whole = [i for i, episode in enumerate(group) if is_whole(episode)]
    returns = np.array([rewards_of(group[i], reward).sum() for i in whole])
    if len(whole) < 2 or all_alike(returns):
        return credits
    for i, advantage in zip(whole, compared(returns, settings.divide_by_deviation), strict=True):
        credits[i] = Advantages(np.full(len(group[i].turns), advantage))
    return credits


def compared(values: np.ndarray, divide_by_deviation: bool) -> np.ndarray:
    """float64[n] -> float64[n]: how far above their mean values are, in deviations if wanted; 0 if all are alike."""
    if all_alike(values):
        return np.zeros(len(values))
    above = values - values.mean()
    deviation = float(values.std()) + EPSILON if divide_by_deviation else 1.0
    return np.asarray(above / deviation)
