"""When a run says that it is going wrong, while there is still time to stop it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sightline.config.agents import AlarmSettings as Limits


class Alarms:
    """Watches the metrics of updates and says, once for each onset, what has held for `patience` updates in a row.

    A metric that is missing or None leaves its alarm as it is. `patience` 0 is the same as 1.
    """

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self._most_truthful: float | None = None
        self._streaks: dict[str, int] = {}

    def watch(self, metrics: Mapping[str, float | None]) -> list[str]:
        """A line for each alarm that goes off with this update.

        Args:
            metrics: of one update, named as in `metrics.rollout_metrics` and `metrics.update_metrics`.
        """
        patience = max(1, self.limits.patience)
        lines = []
        for name, line in self._complaints(metrics).items():
            self._streaks[name] = self._streaks.get(name, 0) + 1 if line else 0
            if self._streaks[name] == patience and line:
                lines.append(line)
        return lines

    def state_dict(self) -> dict[str, Any]:
        """All that is kept between updates, as plain data for JSON."""
        return {"most_truthful": self._most_truthful, "streaks": dict(self._streaks)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over what `state_dict` gave."""
        self._most_truthful, self._streaks = state["most_truthful"], dict(state["streaks"])

    def _complaints(self, metrics: Mapping[str, float | None]) -> dict[str, str | None]:
        """For each alarm that can be judged: what is wrong now, None if nothing is."""
        limits = self.limits
        found: dict[str, str | None] = {}
        truthful = metrics.get("rollout/truthful")
        if truthful is not None:
            best = self._most_truthful = max(truthful, self._most_truthful or 0.0)
            found["truthful"] = _line(
                truthful < best - limits.truthful_drop,
                f"only {truthful:.0%} of what replies state of the pictures is true, after {best:.0%} at best; raise "
                "update.kl_thoughts or lower update.thought_weight",
            )
        entropy = metrics.get("update/entropy")
        entropy = metrics.get("rollout/entropy") if entropy is None else entropy
        if entropy is not None:
            found["entropy"] = _line(
                entropy < limits.entropy_floor,
                f"replies hardly vary any more ({entropy:.2g} nats of entropy per token), so nothing new is tried; "
                "raise update.entropy or lower update.learning_rate",
            )
        repeated = metrics.get("rollout/repeated_thoughts")
        if repeated is not None:
            found["repeated_thoughts"] = _line(
                repeated > limits.repeated_thoughts,
                f"the same thoughts are had in {repeated:.0%} of all states, whatever they show; raise "
                "update.kl_thoughts or lower update.thought_weight",
            )
        distance = metrics.get("update/kl_reference")
        if distance is not None:
            found["kl_reference"] = _line(
                distance > limits.kl_ceiling,
                f"the model is {distance:.3g} nats per reply away from what it was before RL; raise "
                "update.kl_thoughts or lower update.learning_rate",
            )
        alike, success = _all_alike(metrics), metrics.get("rollout/success")
        if alike is not None and success is not None:
            found["alike"] = _line(
                alike and success < 1,
                f"episodes of the same task all end alike ({success:.0%} are won), so there is nothing to learn from; "
                "warm-start longer, raise rollouts.temperature, or play easier tasks",
            )
        return found


def _all_alike(metrics: Mapping[str, float | None]) -> bool | None:
    """Whether no group of episodes shows any difference; among all episodes where there are no groups."""
    shares, deviation = metrics.get("rollout/zero_variance"), metrics.get("rollout/return_std")
    if shares is not None:
        return shares >= 1
    return None if deviation is None else deviation < 1e-9


def _line(wrong: bool, line: str) -> str | None:
    return line if wrong else None
