"""Credit for each turn by generalised advantage estimation: Schulman et al., "High-Dimensional Continuous Control Using
Generalized Advantage Estimation", ICLR 2016 (arXiv 1506.02438), section 3, as PPO uses it (arXiv 1707.06347, section
5).

A turn is credited with how much better things went from there on than its value said, later surprises counting less by
gamma * lambda for each turn of delay. The step is a turn, not a token (RL4VLM, arXiv 2405.10292, section 4). A
terminated episode is worth nothing after its end; a truncated one is worth what the policy expected to come
(`last_value`).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from sightline.agents.algorithms.returns import RewardKind, is_whole, rewards_of
from sightline.agents.types import Advantages, Group, Trajectory
from sightline.config.agents import PPO

EPSILON = 1e-8
"""Added to the deviation that advantages are divided by."""


def compute_advantages(groups: Sequence[Group], settings: PPO, reward: RewardKind) -> list[list[Advantages | None]]:
    """A credit for each trajectory; None for those that broke or are empty.

    `Advantages.returns` are advantages plus values, before normalisation. With `settings.normalise`, advantages have
    mean 0 and deviation 1 over all turns of all groups: hand in those of all processes together.
    """
    credits = [[_of_episode(episode, settings, reward) for episode in group] for group in groups]
    return _normalised(credits) if settings.normalise else credits


def _of_episode(episode: Trajectory, settings: PPO, reward: RewardKind) -> Advantages | None:
    if not is_whole(episode):
        return None
    values = np.array([turn.value for turn in episode.turns], np.float64)
    advantages = generalised_advantages(
        rewards_of(episode, reward),
        values,
        episode.last_value if episode.truncated else 0.0,
        settings.gamma,
        settings.gae_lambda,
    )
    return Advantages(advantages, advantages + values)


def generalised_advantages(
    rewards: np.ndarray, values: np.ndarray, value_after: float, gamma: float, gae_lambda: float
) -> np.ndarray:
    """float64[turns], from the rewards and values (float64[turns]) of one episode and its value after the last turn."""
    next_values = np.append(values[1:], value_after)
    surprises = rewards + gamma * next_values - values
    advantages = np.zeros(len(rewards))
    following = 0.0
    for i in reversed(range(len(rewards))):
        following = surprises[i] + gamma * gae_lambda * following
        advantages[i] = following
    return advantages


def _normalised(credits: list[list[Advantages | None]]) -> list[list[Advantages | None]]:
    every = [one.advantages for group in credits for one in group if one is not None]
    if not every:
        return credits
    together = np.concatenate(every)
    mean, deviation = together.mean(), together.std()

    def normalise(one: Advantages | None) -> Advantages | None:
        return one and Advantages((one.advantages - mean) / (deviation + EPSILON), one.returns)

    return [[normalise(one) for one in group] for group in credits]
