"""From what was played to what each turn is credited with; one file for each algorithm."""

from __future__ import annotations

from collections.abc import Sequence

from sightline.agents.algorithms import gigpo, grpo, ppo, rloo
from sightline.agents.algorithms.returns import RewardKind
from sightline.agents.types import Advantages, Group
from sightline.config.agents import GRPO, PPO, Algorithm, GiGPO


def compute_advantages(
    groups: Sequence[Group], settings: Algorithm, reward: RewardKind = "game"
) -> list[list[Advantages | None]]:
    """What each turn of an update is credited with.

    Args:
        groups: all that was played for one update, by all processes; the episodes of a group share their task seed.
        settings: which algorithm, and its settings.
        reward: which rewards count, see `returns.rewards_of`.

    Returns:
        For each group and trajectory a credit with float64[turns]; None where there is nothing to learn: the episode
        broke or is empty, or its group shows no differences.
    """
    if isinstance(settings, PPO):
        return ppo.compute_advantages(groups, settings, reward)
    if isinstance(settings, GRPO):
        return grpo.compute_advantages(groups, settings, reward)
    if isinstance(settings, GiGPO):
        return gigpo.compute_advantages(groups, settings, reward)
    return rloo.compute_advantages(groups, settings, reward)
