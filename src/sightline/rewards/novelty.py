"""Exploration before there is a reward: states are worth what they are far from (PEBBLE, Lee et al., ICML 2021)."""

from __future__ import annotations

import math

import numpy as np

NEIGHBOUR = 5
"""Distances are to the fifth nearest other state."""
AMONG = 10_000
"""States compared with, at most; a random share of more."""
THINNED = 16
"""Pictures are compared by about so many rows and columns."""


class Novelty:
    """The distance of a state to its k-th nearest neighbour, over the running deviation of such distances.

    It grows with a particle estimate of the entropy of the states visited. The mean is not subtracted, so that every
    reward is positive.
    """

    def __init__(self) -> None:
        self.count, self.mean, self.squares = 0, 0.0, 0.0

    def reward(self, states: np.ndarray, among: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """float32[N] rewards.

        Args:
            states: float[N, …], or uint8[N, C, H, W] pictures.
            among: [M, …], all states visited, `states` included.
            rng: chooses which to compare with if there are very many.
        """
        if len(among) > AMONG:
            among = among[rng.choice(len(among), AMONG, replace=False)]
        distances = _to_neighbour(flat(states).astype(np.float64), flat(among).astype(np.float64))
        self._take_in(distances)
        deviation = (self.squares / max(self.count, 1)) ** 0.5
        return np.asarray(distances / max(deviation, 1e-6), np.float32)

    def _take_in(self, values: np.ndarray) -> None:
        """Chan's parallel update: count, mean and sum of squared deviations of all distances so far."""
        count, mean = len(values), float(values.mean())
        total = self.count + count
        delta = mean - self.mean
        self.squares += float(((values - mean) ** 2).sum()) + delta**2 * self.count * count / total
        self.mean += delta * count / total
        self.count = total


def flat(features: np.ndarray) -> np.ndarray:
    """[N, …] -> [N, D], what distances are measured on. Of pictures (uint8 of three axes), every axis is thinned out to
    16 places or so, and they become numbers from 0 to 1."""
    if features.ndim >= 4 and features.dtype == np.uint8:
        a, b, c = (slice(None, None, max(1, size // THINNED)) for size in features.shape[-3:])
        features = features[..., a, b, c].astype(np.float32) / 255
    return features.reshape(len(features), math.prod(features.shape[1:]))


def _to_neighbour(states: np.ndarray, among: np.ndarray) -> np.ndarray:
    """float[N]: distance to the k-th nearest other state; a state's own distance of 0 counts as the nearest."""
    k = min(NEIGHBOUR, len(among) - 1)
    squared = (states**2).sum(1)[:, None] + (among**2).sum(1)[None] - 2 * states @ among.T
    return np.asarray(np.sqrt(np.maximum(np.partition(squared, k, axis=1)[:, k], 0)))
