"""Turn-level GRPO: each turn against the same turn of the group's other episodes. Zeng et al., "Reinforcing Multi-Turn
Reasoning in LLM Agents via Turn-Level Credit Assignment", 2025 (arXiv 2505.11821), section 4.

    advantage of turn t = outcome_weight * advantage of the episode's return + advantage of what came from turn t on

    turn        0     1     2     3
    episode 1   G_0   G_1   G_2   G_3          G_t = r_t + gamma * G_{t+1}
    episode 2   G_0   G_1   G_2
    episode 3   G_0   G_1                      compared down the columns, within the group

GRPO gives all turns of an episode one advantage, also those before its mistake. Here a turn that was well played keeps
its credit; what is compared are episodes with the same task, so the columns are alike as long as episodes are. A turn
that one episode alone has reached has nothing to be compared with, and only its episode's advantage.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Literal

import numpy as np
from pydantic import NonNegativeFloat

from sightline.agents.algorithms.base import AlgorithmConfig, GroupSize, within_groups
from sightline.agents.algorithms.grpo import Deviation, episode_advantages, relative_to_group
from sightline.agents.algorithms.returns import discounted_returns
from sightline.agents.types import Advantages, Group
from sightline.config.basics import Fraction


class TurnGRPO(AlgorithmConfig):
    """Each turn's return against the same turn of the group's other episodes (Zeng et al. 2025, arXiv 2505.11821)."""

    kind: Literal["turn_grpo"] = "turn_grpo"
    group: GroupSize = 8
    """Episodes with the same task seed."""
    gamma: Fraction = 0.95
    outcome_weight: NonNegativeFloat = 1.0
    """Weight of the advantage of the whole episode beside that of the turn."""
    deviation: Deviation = "sample"
    """As of GRPO."""

    title: ClassVar[str] = "turn-level GRPO"

    def compute_advantages(self, groups: Sequence[Group]) -> list[list[Advantages | None]]:
        """Advantages of each trajectory; None for broken or empty episodes, and for groups without differences."""
        return within_groups(groups, self._compare)

    def _compare(self, episodes: Group) -> list[np.ndarray]:
        returns = [discounted_returns(episode.rewards, self.gamma) for episode in episodes]
        outcomes = episode_advantages(episodes, self.deviation)
        advantages = [self.outcome_weight * outcome for outcome in outcomes]
        # Column by column: only episodes that lasted as long have a return from turn t on.
        for t in range(max(map(len, returns))):
            lasting = [i for i, episode_returns in enumerate(returns) if len(episode_returns) > t]
            column = np.array([returns[i][t] for i in lasting])
            # A turn that one episode alone has reached is compared with itself: 0.
            relative = relative_to_group(column, self.deviation)
            for i, advantage in zip(lasting, relative, strict=True):
                advantages[i][t] += advantage
        return advantages
