"""Rewards and returns of an episode, as the advantage estimators see them."""

from __future__ import annotations

from typing import Literal

import numpy as np

from sightline.agents.types import Trajectory

RewardKind = Literal["game", "success"]


def rewards_of(trajectory: Trajectory, kind: RewardKind) -> np.ndarray:
    """float64[turns]: rewards that an algorithm trains on.

    `game`: the environment's rewards. `success`: 1 on the last turn of a successful episode and 0 everywhere else.
    Both minus penalties.
    """
    if kind == "game":
        return trajectory.rewards
    # Penalties are about the reply, not about the task, so they count whatever the reward is.
    rewards = np.array([-turn.penalty for turn in trajectory.turns], np.float64)
    if trajectory.success:
        rewards[-1:] += 1.0
    return rewards


def is_complete(trajectory: Trajectory) -> bool:
    """Tell whether an episode has turns and did not break."""
    return trajectory.error is None and bool(trajectory.turns)


def all_equal(values: np.ndarray) -> bool:
    """Tell whether float64[n] are equal up to rounding: zero variance, so relative advantages carry no signal."""
    return bool(np.ptp(values) <= 1e-9 * max(1.0, float(np.abs(values).max())))


def discounted_returns(rewards: np.ndarray, gamma: float) -> np.ndarray:
    """float64[turns] -> float64[turns]: discounted return from each turn to the end, the reward-to-go."""
    returns = np.zeros(len(rewards))
    following = 0.0
    for i in reversed(range(len(rewards))):
        # G_t = r_t + gamma * G_{t+1}
        following = rewards[i] + gamma * following
        returns[i] = following
    return returns
