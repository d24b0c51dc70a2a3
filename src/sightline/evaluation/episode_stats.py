"""Episode statistics: return, length and success of running episodes, and the summary of finished ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from sightline.evaluation.statistics import bootstrap_mean, wilson


class EpisodeStats:
    """Running statistics of N episodes, one slot each.

    Collection has a slot for each environment and empties it as its episode ends (`take`); evaluation has a slot for
    each episode of the panel and reads the arrays in the end.

    Args:
        count: N.
        measures: names of truth values to follow beside success.

    Attributes:
        returns: float[N], sums of the environment's rewards.
        lengths: int[N], steps.
        success: bool[N] by rule: whether the episode's states were a success at `every` step, at `any`, at the `end`
            (so far).
        measures: name -> bool[N], whether the truth value held at every step.
        knows_success: whether the environment says what success is.
    """

    def __init__(self, count: int, measures: Sequence[str] = ()) -> None:
        self.returns = np.zeros(count)
        self.lengths = np.zeros(count, int)
        self.success = {"every": np.ones(count, bool), "any": np.zeros(count, bool), "end": np.zeros(count, bool)}
        self.measures = {name: np.ones(count, bool) for name in measures}
        self.knows_success = False

    def add(
        self,
        slots: np.ndarray,
        rewards: np.ndarray,
        success: np.ndarray | None,
        measures: Mapping[str, np.ndarray] | None = None,
    ) -> None:
        """Add one step of some episodes: int[K] slots, float[K] rewards, bool[K] success and measures of the states
        reached. A measure that is not given stays as it is."""
        self.returns[slots] += rewards
        self.lengths[slots] += 1
        if success is not None:
            self.knows_success = True
            self.success["every"][slots] &= success
            self.success["any"][slots] |= success
            self.success["end"][slots] = success
        for name, held in (measures or {}).items():
            self.measures[name][slots] &= held

    def take(self, slots: np.ndarray) -> list[dict[str, float]]:
        """Statistics of the episodes in these slots, int[K], which have ended: `return`, `length`, and success by each
        rule. The slots are empty afterwards."""
        finished = [
            {"return": float(self.returns[i]), "length": int(self.lengths[i])}
            | {rule: bool(held[i]) for rule, held in self.success.items()}
            for i in slots
        ]
        self.returns[slots], self.lengths[slots] = 0.0, 0
        for rule, held in (self.success | self.measures).items():
            held[slots] = rule not in ("any", "end")
        return finished

    def state(self) -> dict[str, Any]:
        """The running statistics, for a checkpoint."""
        return {
            "returns": self.returns,
            "lengths": self.lengths,
            "success": dict(self.success),
            "knows_success": self.knows_success,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take over what `state` gave."""
        self.returns[:], self.lengths[:] = state["returns"], state["lengths"]
        for rule, held in self.success.items():
            held[:] = state["success"][rule]
        self.knows_success = bool(state["knows_success"])


def summarise_episodes(returns: np.ndarray, success: np.ndarray | None) -> dict[str, float | None]:
    """Success rate and mean return of finished episodes, with 95 % confidence intervals.

    Args:
        returns: float[N], N may be 0.
        success: bool[N]; None if the environment does not define success.

    Returns:
        `success_rate` with `ci_low` and `ci_high` (Wilson), `return` with `return_ci_low` and `return_ci_high`
        (bootstrap); None for what is unknown.
    """
    keys = ("success_rate", "ci_low", "ci_high", "return", "return_ci_low", "return_ci_high")
    numbers: dict[str, float | None] = dict.fromkeys(keys)
    if len(returns):
        numbers["return"] = float(returns.mean())
        numbers["return_ci_low"], numbers["return_ci_high"] = bootstrap_mean(returns)
    if success is not None and len(success):
        numbers["success_rate"] = float(success.mean())
        numbers["ci_low"], numbers["ci_high"] = wilson(int(success.sum()), len(success))
    return numbers
