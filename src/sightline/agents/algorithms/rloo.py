"""Credit for an episode against the others of its group: Ahmadian et al., "Back to Basics: Revisiting REINFORCE Style
Optimization for Learning from Human Feedback in LLMs", ACL 2024 (arXiv 2402.14740), the section on REINFORCE
Leave-One-Out.

Every turn of an episode is credited alike: with the episode's return, less the mean return of the other episodes. That
mean does not depend on the episode itself, so the gradient is unbiased. Groups whose episodes all ended alike say
nothing and are dropped.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from sightline.agents.algorithms.returns import RewardKind, all_alike, is_whole, rewards_of
from sightline.agents.types import Advantages, Group
from sightline.config.agents import RLOO


def compute_advantages(groups: Sequence[Group], settings: RLOO, reward: RewardKind) -> list[list[Advantages | None]]:
    """A credit for each trajectory; None for those that broke or are empty, and for groups without differences."""
    return [_of_group(group, reward) for group in groups]


def _of_group(group: Group, reward: RewardKind) -> list[Advantages | None]:
    credits: list[Advantages | None] = [None] * len(group)
    whole = [i for i, episode in enumerate(group) if is_whole(episode)]
    returns = np.array([rewards_of(group[i], reward).sum() for i in whole])
    if len(whole) < 2 or all_alike(returns):
        return credits
    others = (returns.sum() - returns) / (len(whole) - 1)
    for i, advantage in zip(whole, returns - others, strict=True):
        credits[i] = Advantages(np.full(len(group[i].turns), advantage))
    return credits
