"""Returns of an episode, as the advantage estimators see them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from sightline.agents.types import Advantages, Trajectory


def is_complete(trajectory: Trajectory) -> bool:
    """Tell whether an episode has turns and did not break."""
    return trajectory.error is None and bool(trajectory.turns)


def all_equal(values: np.ndarray) -> bool:
    """Tell whether float64[n] are equal up to rounding: zero variance, so relative advantages carry no signal."""
    # Relative to the largest: sums of many rewards differ by more than sums of few.
    return bool(np.ptp(values) <= 1e-9 * max(1.0, float(np.abs(values).max())))


def informative_tasks(episodes: Sequence[Trajectory], advantages: Sequence[Advantages | None]) -> int:
    """Count the task seeds of which at least one episode has something to teach."""
    seeds = set[int]()
    for episode, episode_advantages in zip(episodes, advantages, strict=True):
        if episode_advantages is not None:
            seeds.add(episode.seed)
    return len(seeds)


def discounted_returns(rewards: np.ndarray, gamma: float) -> np.ndarray:
    """float64[turns] -> float64[turns]: discounted return from each turn to the end, the reward-to-go."""
    returns = np.zeros(len(rewards))
    following = 0.0
    # Backwards, so that each turn reuses the sum over all later ones: G_t = r_t + gamma * G_{t+1}.
    for i in reversed(range(len(rewards))):
        following = rewards[i] + gamma * following
        returns[i] = following
    return returns
