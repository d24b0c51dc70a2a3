"""Base of an agent's RL algorithms: a recipe block that computes advantages."""

from __future__ import annotations

from collections.abc import Sequence

from sightline.agents.types import Advantages, Group
from sightline.config.blocks import AlgorithmBlock


class AlgorithmConfig(AlgorithmBlock):
    """Base of all blocks of an agent's RL algorithm."""

    def compute_advantages(self, groups: Sequence[Group]) -> list[list[Advantages | None]]:
        """Advantages of every turn.

        Args:
            groups: all that was played for one update, by all processes; the episodes of a group share their task seed.

        Returns:
            For each group and trajectory float64[turns]; None where there is nothing to learn: the episode broke or is
            empty, or its group shows no differences.
        """
        raise NotImplementedError
