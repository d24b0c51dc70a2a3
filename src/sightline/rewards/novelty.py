"""Novelty reward for exploration before a reward is learned: distance to visited states (PEBBLE, ICML 2021)."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import numpy as np

from sightline.rewards.base import Clip, Need, RewardModel, to_numpy

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
        self.count, self.mean, self.squares = 0, 0.0, 0.0
        self._visited, self._seed = visited, seed

    def score(self, features: np.ndarray, clip: Clip) -> np.ndarray:
        assert clip.states is not None, "a model is given what it needs"
        states = to_numpy(clip.states).reshape(-1, *clip.states.shape[2:])
        among = self._visited()
        if len(among) > AMONG:
            rng = np.random.default_rng([self._seed, self.count])
            among = among[rng.choice(len(among), AMONG, replace=False)]
        distances = _to_neighbour(flat(states).astype(np.float64), flat(among).astype(np.float64))
        self._take_in(distances)
        deviation = (self.squares / max(self.count, 1)) ** 0.5
        return np.asarray(distances / max(deviation, 1e-6), np.float32).reshape(clip.shape)

    def state(self) -> dict[str, float]:
        """The running deviation, for a checkpoint."""
        return {"count": self.count, "mean": self.mean, "squares": self.squares}

    def restore(self, state: Mapping[str, float]) -> None:
        """Take over what `state` gave."""
        self.count, self.mean, self.squares = int(state["count"]), state["mean"], state["squares"]

    def _take_in(self, values: np.ndarray) -> None:
        """Chan's parallel update: count, mean and sum of squared deviations of all distances so far."""
        count, mean = len(values), float(values.mean())
        total = self.count + count
        delta = mean - self.mean
        self.squares += float(((values - mean) ** 2).sum()) + delta**2 * self.count * count / total
        self.mean += delta * count / total
        self.count = total


def flat(features: np.ndarray) -> np.ndarray:
    """Flat features [N, …] -> [N, D], between which distances are measured.

    Of pictures (uint8 of three axes), every axis is thinned out to 16 places or so, and values become numbers from 0
    to 1.
    """
    if features.ndim >= 4 and features.dtype == np.uint8:
        a, b, c = (slice(None, None, max(1, size // THINNED)) for size in features.shape[-3:])
        features = features[..., a, b, c].astype(np.float32) / 255
    return features.reshape(len(features), math.prod(features.shape[1:]))


def _to_neighbour(states: np.ndarray, among: np.ndarray) -> np.ndarray:
    """float[N]: distance to the k-th nearest other state; a state's own distance of 0 counts as the nearest."""
    k = min(NEIGHBOUR, len(among) - 1)
    squared = (states**2).sum(1)[:, None] + (among**2).sum(1)[None] - 2 * states @ among.T
    return np.asarray(np.sqrt(np.maximum(np.partition(squared, k, axis=1)[:, k], 0)))
