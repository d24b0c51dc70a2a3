"""PPO advantages by GAE: Schulman et al., "High-Dimensional Continuous Control Using Generalized Advantage Estimation",
ICLR 2016 (arXiv 1506.02438), section 3, as PPO uses it (arXiv 1707.06347, section 5).

    delta_t = r_t + gamma * V_{t+1} - V_t
    A_t     = delta_t + gamma * lambda * A_{t+1}

    turn     0        1        2        end
    value    V_0      V_1      V_2      terminated: 0; truncated: `last_value`
    reward       r_0      r_1      r_2

A time step is a turn, not a token (RL4VLM, arXiv 2405.10292, section 4): gamma must not punish long replies. A
terminated episode is worth nothing after its end; for a truncated one the critic bootstraps.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Literal

import numpy as np
from pydantic import NonNegativeFloat, PositiveFloat, PositiveInt

from sightline.agents.algorithms.base import AlgorithmConfig, standardised
from sightline.agents.algorithms.returns import is_complete
from sightline.agents.types import Advantages, Group, Trajectory
from sightline.config.basics import Fraction
from sightline.config.blocks import ValueLoss


class PPO(AlgorithmConfig):
    """A value for each turn and generalised advantages (Schulman et al. 2017, arXiv 1707.06347)."""

    kind: Literal["ppo"] = "ppo"
    group: PositiveInt = 1
    """Episodes with the same task seed."""
    gamma: Fraction = 0.9
    gae_lambda: Fraction = 0.95
    value_coefficient: NonNegativeFloat = 0.5
    value_clip: PositiveFloat | None = None
    """How far a value may move in an update before its loss no longer falls."""
    normalise: bool = True
    """Advantages of an update to mean 0 and deviation 1."""

    title: ClassVar[str] = "PPO"
    needs_values: ClassVar[bool] = True

    @property
    def value_loss(self) -> ValueLoss:
        return ValueLoss(self.value_coefficient, self.value_clip)

    def compute_advantages(self, groups: Sequence[Group]) -> list[list[Advantages | None]]:
        """GAE advantages of each trajectory; None for broken or empty episodes.

        `Advantages.returns` are advantages plus values, before normalisation. With `normalise`, advantages have mean 0
        and standard deviation 1 over all turns of all groups: pass those of all processes together.
        """
        advantages = [[self._episode_advantages(episode) for episode in group] for group in groups]
        if self.normalise:
            return standardised(advantages)
        return advantages

    def _episode_advantages(self, episode: Trajectory) -> Advantages | None:
        if not is_complete(episode):
            return None
        values = np.array([turn.value for turn in episode.turns], np.float64)
        # A terminated episode is worth nothing after its end; one that was cut off would have gone on.
        last_value = episode.last_value if episode.truncated else 0.0
        advantages = generalised_advantages(episode.rewards, values, last_value, self.gamma, self.gae_lambda)
        # The critic's target is the lambda-return: A_t + V_t.
        return Advantages(advantages, advantages + values)


def generalised_advantages(
    rewards: np.ndarray, values: np.ndarray, last_value: float, gamma: float, gae_lambda: float
) -> np.ndarray:
    """float64[turns]: GAE from the rewards and values (float64[turns]) of one episode and the value after its end."""
    # V_{t+1} of the last turn is 0 after a terminated episode and the bootstrap value after a truncated one.
    next_values = np.append(values[1:], last_value)
    deltas = rewards + gamma * next_values - values
    advantages = np.zeros(len(rewards))
    # Backwards, so that each turn reuses the sum over all later ones. lambda=0: one-step TD; lambda=1: Monte Carlo.
    following = 0.0
    for i in reversed(range(len(rewards))):
        following = deltas[i] + gamma * gae_lambda * following
        advantages[i] = following
    return advantages
