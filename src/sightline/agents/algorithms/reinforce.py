"""REINFORCE with reward-to-go and a baseline for each turn: Williams, "Simple Statistical Gradient-Following Algorithms
for Connectionist Reinforcement Learning", Machine Learning 8, 1992; baselines that depend on time are treated by Peters
and Schaal, "Reinforcement Learning of Motor Skills with Policy Gradients", Neural Networks 21, 2008, section 3.2.

    G_t = r_t + gamma * G_{t+1}
    A_t = G_t - mean of G_t over the other episodes of the update

    turn        0     1     2     3
    episode 1   G_0   G_1   G_2   G_3
    episode 2   G_0   G_1   G_2
    episode 3   G_0   G_1                  compared down the columns

For rewards that come every turn, where an episode's return says little about a single turn, and where a critic has not
learned yet what states are worth. No critic is needed. Where episodes differ much from the start, PPO's critic knows
more; where only the end is rewarded, GRPO compares like with like.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Literal

import numpy as np
from pydantic import PositiveInt

from sightline.agents.algorithms.base import EPSILON, AlgorithmConfig
from sightline.agents.algorithms.returns import discounted_returns, is_complete
from sightline.agents.types import Advantages, Group, Trajectory
from sightline.config.basics import Fraction


class Reinforce(AlgorithmConfig):
    """Reward-to-go against that of other episodes at the same turn (Williams 1992; Peters and Schaal 2008)."""

    kind: Literal["reinforce"] = "reinforce"
    group: PositiveInt = 1
    """Episodes with the same task seed."""
    gamma: Fraction = 0.95
    normalise: bool = True
    """Advantages of an update to standard deviation 1."""

    title: ClassVar[str] = "REINFORCE"

    def compute_advantages(self, groups: Sequence[Group]) -> list[list[Advantages | None]]:
        """Advantages of each trajectory; None for broken or empty episodes. A turn that only one episode has reached
        has nothing to be compared with, and an advantage of 0."""
        episodes = list[Trajectory]()
        for group in groups:
            episodes += [episode for episode in group if is_complete(episode)]
        returns = [discounted_returns(episode.rewards, self.gamma) for episode in episodes]
        # Down the columns: the sum and the number of all returns from the same turn on.
        longest = max((len(episode_returns) for episode_returns in returns), default=0)
        totals = np.zeros(longest)
        counts = np.zeros(longest)
        for episode_returns in returns:
            totals[: len(episode_returns)] += episode_returns
            counts[: len(episode_returns)] += 1

        def relative_to_others(own: np.ndarray) -> np.ndarray:
            # Without the episode's own return the baseline does not depend on its actions; the gradient is unbiased:
            # G - (total - G) / (n - 1) = (n * G - total) / (n - 1).
            n = counts[: len(own)]
            total = totals[: len(own)]
            return np.where(n > 1, (n * own - total) / np.maximum(n - 1, 1), 0.0)

        relative = [relative_to_others(episode_returns) for episode_returns in returns]
        deviation = 1.0
        if self.normalise and relative:
            # Not centred again: the baseline has done that, turn by turn.
            deviation = float(np.concatenate(relative).std()) + EPSILON
        scaled = iter([Advantages(turn_advantages / deviation) for turn_advantages in relative])
        # Back into groups, with None for the episodes that broke.
        return [[next(scaled) if is_complete(episode) else None for episode in group] for group in groups]
