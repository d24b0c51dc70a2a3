"""Advantage estimators, one file for each algorithm: GAE (PPO), GRPO, RLOO, GiGPO.

Their unit is the turn: one advantage for one reply, whatever its number of tokens. `losses` spreads it over the tokens.
"""

from __future__ import annotations

from collections.abc import Sequence

from sightline.agents.algorithms.gigpo import gigpo_advantages
from sightline.agents.algorithms.grpo import grpo_advantages
from sightline.agents.algorithms.ppo import ppo_advantages
from sightline.agents.algorithms.returns import RewardKind
from sightline.agents.algorithms.rloo import rloo_advantages
from sightline.agents.types import Advantages, Group
from sightline.config.agents import GRPO, PPO, Algorithm, GiGPO


def compute_advantages(
    groups: Sequence[Group], settings: Algorithm, reward: RewardKind = "game"
) -> list[list[Advantages | None]]:
    """Compute the advantages of one update with the recipe's algorithm.

    Args:
        groups: all episodes of the update, of all processes; the episodes of a group share their task seed.
        settings: algorithm and its hyperparameters.
        reward: which rewards count, see `returns.rewards_of`.

    Returns:
        Advantages for each group and trajectory; None where there is nothing to learn: the episode broke or is empty,
        or all returns of its group are equal.
    """
    # PPO alone compares with a critic; the others compare the episodes of a group with each other, without one.
    if isinstance(settings, PPO):
        return ppo_advantages(groups, settings, reward)
    if isinstance(settings, GRPO):
        return grpo_advantages(groups, settings, reward)
    if isinstance(settings, GiGPO):
        return gigpo_advantages(groups, settings, reward)
    # the only one left of the union
    return rloo_advantages(groups, settings, reward)
