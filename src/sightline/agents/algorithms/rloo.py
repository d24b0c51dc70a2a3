"""RLOO advantages, relative to the rest of the group: Ahmadian et al., "Back to Basics: Revisiting REINFORCE Style
Optimization for Learning from Human Feedback in LLMs", ACL 2024 (arXiv 2402.14740), the section on REINFORCE
Leave-One-Out.

    advantage_i = return_i - mean of the other returns of the group

The baseline does not depend on the episode itself, so the gradient is unbiased (GRPO's mean includes it). Every turn of
an episode has the same advantage. Groups whose episodes all have the same return carry no signal and are dropped.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Literal

import numpy as np

from sightline.agents.algorithms.base import AlgorithmConfig, GroupSize, within_groups
from sightline.agents.algorithms.returns import all_equal
from sightline.agents.types import Advantages, Group


class RLOO(AlgorithmConfig):
    """An episode's return against the mean of the others of its group (Ahmadian et al. 2024, arXiv 2402.14740)."""

    kind: Literal["rloo"] = "rloo"
    group: GroupSize = 8
    """Episodes with the same task seed."""

    title: ClassVar[str] = "RLOO"

    def compute_advantages(self, groups: Sequence[Group]) -> list[list[Advantages | None]]:
        """RLOO advantages of each trajectory; None for broken or empty episodes, and for groups of equal returns."""
        return within_groups(groups, _against_the_others)


def _against_the_others(episodes: Group) -> list[np.ndarray]:
    returns = np.array([episode.rewards.sum() for episode in episodes])
    # Mean of the others = (sum - own) / (n - 1): without its own return, a baseline does not bias the gradient.
    baselines = (returns.sum() - returns) / (len(episodes) - 1)
    advantages = returns - baselines
    if all_equal(returns):
        # Exactly zero, not a rounding error: the group is dropped.
        advantages = np.zeros(len(returns))
    return [np.full(len(episode.turns), advantage) for episode, advantage in zip(episodes, advantages, strict=True)]
