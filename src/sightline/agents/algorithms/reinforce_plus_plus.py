"""REINFORCE++ advantages: Hu, Liu and Shen, "REINFORCE++: Stabilizing Critic-Free Policy Optimization with Global
Advantage Normalization", 2025 (arXiv 2501.03262), section 3.

    return of episode i        R_i   = r_0 + r_1 + ...
    compared with its group    R'_i  = R_i - mean of R over the group          (only with `group` of 2 or more)
    advantage of its turns     A_i   = (R'_i - mean) / standard deviation      over all turns of the update

Unlike GRPO's, the divisor is that of the whole update: no group is blown up because its episodes hardly differ, and a
group of one is enough. The KL term against the model before RL is in the loss (`update.kl_thoughts`,
`update.kl_actions`) instead of in the reward.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Literal

import numpy as np
from pydantic import PositiveInt

from sightline.agents.algorithms.base import AlgorithmConfig, standardised, within_groups
from sightline.agents.algorithms.grpo import episode_advantages
from sightline.agents.algorithms.returns import is_complete
from sightline.agents.types import Advantages, Group, Trajectory


class ReinforcePlusPlus(AlgorithmConfig):
    """An episode's return in standard deviations of the whole update (Hu et al. 2025, arXiv 2501.03262)."""

    kind: Literal["reinforce_plus_plus"] = "reinforce_plus_plus"
    group: PositiveInt = 1
    """Episodes with the same task seed; from 2 on, returns are first compared with the group's mean."""

    title: ClassVar[str] = "REINFORCE++"

    def compute_advantages(self, groups: Sequence[Group]) -> list[list[Advantages | None]]:
        """Advantages of each trajectory; None for broken or empty episodes, and for groups of two or more whose returns
        are all the same."""
        if self.group < 2:
            # One episode a task: only the whole update can say what is more than usual.
            return standardised([[_return_for_every_turn(episode) for episode in group] for group in groups])
        relative = within_groups(groups, lambda episodes: episode_advantages(episodes, "none"))
        # Episodes of equal returns teach nothing, but their zeros count in the mean and in what is divided by.
        zeros = list[Advantages | None]()
        for group, group_advantages in zip(groups, relative, strict=True):
            for episode, advantages in zip(group, group_advantages, strict=True):
                if advantages is None and is_complete(episode):
                    zeros.append(Advantages(np.zeros(len(episode.turns))))
        return standardised(relative, among=[*relative, zeros])


def _return_for_every_turn(episode: Trajectory) -> Advantages | None:
    """The episode's return, for each of its turns (outcome supervision); None if it broke."""
    if not is_complete(episode):
        return None
    return Advantages(np.full(len(episode.turns), episode.rewards.sum()))
