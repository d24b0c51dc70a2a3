"""Novelty reward for exploration before a reward is learned: distance to visited states (PEBBLE, ICML 2021)."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import numpy as np

from sightline.rewards.arrays import to_numpy
from sightline.rewards.base import Clip, Need, RewardModel

NEIGHBOUR = 5
"""The k of the k-th nearest neighbour to which distances are measured."""
AMONG = 10_000
"""States compared with, at most; a random share of more."""
THINNED = 16
"""Rows and columns, about, by which pictures are compared."""


class NoveltyReward(RewardModel):
    """The distance of a state to its k-th nearest neighbour, over the running deviation of such distances.

    It grows with a particle estimate of the entropy of the states visited. The mean is not subtracted, so that every
    reward is positive.

    Args:
        visited: gives all states visited so far, [M, …], those to be judged included.
        seed: of the choice among very many of them.
    """

    needs: frozenset[Need] = frozenset({"states"})

    def __init__(self, visited: Callable[[], np.ndarray], seed: int = 0) -> None:
        # Of all distances so far: how many, their mean, and the sum of their squared deviations from it.
        self.count = 0
        self.mean = 0.0
        self.squares = 0.0
        self._visited = visited
        self._seed = seed

    def score(self, features: np.ndarray, clip: Clip) -> np.ndarray:
        assert clip.states is not None, "a model is given what it needs"
        states = to_numpy(clip.states).reshape(-1, *clip.states.shape[2:])
        visited = self._visited()
        if len(visited) > AMONG:
            # Seeded by the distances so far, so that no generator needs saving.
            rng = np.random.default_rng([self._seed, self.count])
            visited = visited[rng.choice(len(visited), AMONG, replace=False)]
        # In float64: differences of large squares would lose the small distances in float32.
        distances = _neighbour_distances(flat(states).astype(np.float64), flat(visited).astype(np.float64))
        self._update_deviation(distances)
        deviation = (self.squares / max(self.count, 1)) ** 0.5
        return np.asarray(distances / max(deviation, 1e-6), np.float32).reshape(clip.shape)

    def state(self) -> dict[str, float]:
        """The running deviation, for a checkpoint."""
        return {"count": self.count, "mean": self.mean, "squares": self.squares}

    def restore(self, state: Mapping[str, float]) -> None:
        """Take over what `state` gave."""
        self.count = int(state["count"])
        self.mean = state["mean"]
        self.squares = state["squares"]

    def _update_deviation(self, distances: np.ndarray) -> None:
        """Chan's parallel update: count, mean and sum of squared deviations of all distances so far."""
        count = len(distances)
        mean = float(distances.mean())
        squares = float(((distances - mean) ** 2).sum())
        total = self.count + count
        delta = mean - self.mean
        self.squares += squares + delta**2 * self.count * count / total
        self.mean += delta * count / total
        self.count = total


def flat(features: np.ndarray) -> np.ndarray:
    """Flat features [N, …] -> [N, D], between which distances are measured.

    Of pictures (uint8 of three axes), every axis is thinned out to 16 places or so, and values become numbers from 0
    to 1.
    """
    if features.ndim >= 4 and features.dtype == np.uint8:
        rows, columns, layers = (slice(None, None, max(1, size // THINNED)) for size in features.shape[-3:])
        features = features[..., rows, columns, layers].astype(np.float32) / 255
    return features.reshape(len(features), math.prod(features.shape[1:]))


def _neighbour_distances(states: np.ndarray, visited: np.ndarray) -> np.ndarray:
    """float[N]: distance to the k-th nearest other state; a state's own distance of 0 counts as the nearest."""
    k = min(NEIGHBOUR, len(visited) - 1)
    # [N, M], by |x - y|^2 = |x|^2 + |y|^2 - 2 x·y, which rounding may bring a little below 0.
    norms = (states**2).sum(1)[:, None] + (visited**2).sum(1)[None]
    squared = norms - 2 * states @ visited.T
    nearest = np.partition(squared, k, axis=1)[:, k]
    return np.asarray(np.sqrt(np.maximum(nearest, 0)))
