"""Episode statistics that are accumulated while episodes run: return, length and success."""

from __future__ import annotations

import numpy as np


class Accounts:
    """Running return, length and success of N episodes.

    Attributes:
        returns: float[N], sums of the environment's rewards.
        lengths: int[N], steps.
        success: bool[N] by rule: whether the episode's states were a success at `every` step, at `any`, at the `end`
            (so far).
        knows_success: whether the environment says what success is.
    """

    def __init__(self, count: int) -> None:
        self.returns = np.zeros(count)
        self.lengths = np.zeros(count, int)
        self.success = {"every": np.ones(count, bool), "any": np.zeros(count, bool), "end": np.zeros(count, bool)}
        self.knows_success = False

    def add(self, episodes: np.ndarray, rewards: np.ndarray, success: np.ndarray | None) -> None:
        """Add one step of some episodes: int[K] indices, float[K] rewards, bool[K] success of the states reached."""
        self.returns[episodes] += rewards
        self.lengths[episodes] += 1
        if success is not None:
            self.knows_success = True
            self.success["every"][episodes] &= success
            self.success["any"][episodes] |= success
            self.success["end"][episodes] = success

    def clear(self, episodes: np.ndarray) -> None:
        """Reset these episodes, int[K], to begin again."""
        fresh = Accounts(len(episodes))
        self.returns[episodes], self.lengths[episodes] = fresh.returns, fresh.lengths
        for rule, values in self.success.items():
            values[episodes] = fresh.success[rule]
