"""What every reward model offers, wherever its numbers come from."""

from __future__ import annotations

from typing import Literal, Protocol

import numpy as np


class RewardModel(Protocol):
    """Rewards states by what can be seen of them.

    Attributes:
        reads: `frames`, uint8[N, H, W, 3], or `states`, float[N, D]; of the states that steps led to.
    """

    @property
    def reads(self) -> Literal["frames", "states"]: ...

    def embed(self, seen: np.ndarray) -> np.ndarray:
        """What is read -> features [N, …], all that is worth keeping of it."""
        ...

    def score(self, features: np.ndarray) -> np.ndarray:
        """Features [N, …] -> float32[N] rewards."""
        ...

    def reward(self, seen: np.ndarray) -> np.ndarray:
        """What is read -> float32[N] rewards; any N, also 0."""
        ...
