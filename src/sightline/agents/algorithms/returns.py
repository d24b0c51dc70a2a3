"""What the rewards of an episode are, and which episodes can be learned from."""

from __future__ import annotations

from typing import Literal

import numpy as np

from sightline.agents.types import Trajectory

RewardKind = Literal["game", "success"]


def rewards_of(trajectory: Trajectory, kind: RewardKind) -> np.ndarray:
    """float64[turns]: the rewards that an algorithm sees.

    `game`: the game's own. `success`: 1 on the last turn of a won episode and 0 everywhere else. Both less penalties.
    """
    if kind == "game":
        return trajectory.rewards
    rewards = np.array([-turn.penalty for turn in trajectory.turns], np.float64)
    if trajectory.success:
        rewards[-1:] += 1.0
    return rewards


def is_whole(trajectory: Trajectory) -> bool:
    """Whether an episode was played at all and nothing broke."""
    return trajectory.error is None and bool(trajectory.turns)


def all_alike(values: np.ndarray) -> bool:
    """Whether float64[n] are equal but for rounding, so that comparing them teaches nothing."""
    return bool(np.ptp(values) <= 1e-9 * max(1.0, float(np.abs(values).max())))


def discounted(rewards: np.ndarray, gamma: float) -> np.ndarray:
    """float64[turns] -> float64[turns]: each turn's reward and all later ones, each turn of delay costing `gamma`."""
    to_come = np.zeros(len(rewards))
    following = 0.0
    for i in reversed(range(len(rewards))):
        following = rewards[i] + gamma * following
        to_come[i] = following
    return to_come
