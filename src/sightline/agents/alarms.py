"""Training alarms: warnings about collapse while there is still time to stop the run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sightline.config.agents import AlarmSettings as Limits


class Alarms:
    """Alarms on metrics of updates; each is raised once when its condition has held for `patience` updates in a row.

    That of too large a step is raised at once. A metric that is missing or None leaves its alarm as it is. `patience` 0
    is the same as 1.
    """

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self._best_accuracy: float | None = None
        self._streaks: dict[str, int] = {}

    def watch(self, metrics: Mapping[str, float | None]) -> list[str]:
        """Update the alarms with one update's metrics; return a line for each that goes off.

        Args:
            metrics: of one update, named as in `metrics.rollout_metrics` and `metrics.update_metrics`.
        """
        lines = []
        for name, line in self._problems(metrics).items():
            self._streaks[name] = self._streaks.get(name, 0) + 1 if line else 0
            # Too large a step can ruin the model in a single update, and those after it look small.
            enough = 1 if name == "kl_old" else max(1, self.limits.patience)
            if self._streaks[name] == enough and line:
                lines.append(line)
        return lines

    def state_dict(self) -> dict[str, Any]:
        """State between updates, as plain data for JSON."""
        return {"most_truthful": self._best_accuracy, "streaks": dict(self._streaks)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` gave."""
        self._best_accuracy, self._streaks = state["most_truthful"], dict(state["streaks"])

    def _problems(self, metrics: Mapping[str, float | None]) -> dict[str, str | None]:
        """Problem of each alarm whose metric is known; None if there is none."""
        limits = self.limits
        found: dict[str, str | None] = {}

        def at_most(limit: float, metric: str, line: str) -> None:
            """An alarm on a metric above a limit; `{}` in its line stands for the metric."""
            value = metrics.get(metric)
            if value is not None:
                found[metric.partition("/")[2]] = _line(value > limit, line.format(value))

        # First of all: where replies cannot be read, no other number means what it says.
        at_most(
            *(limits.unparsable, "rollout/unparsable"),
            "{:.0%} of all replies are unparsable; warm-start first (warm_start={{}}), or raise replies.penalty",
        )
        at_most(limits.illegal, "rollout/illegal", "{:.0%} of all replies are illegal; raise replies.penalty")
        # Perception accuracy: the first thing to go when only success is rewarded.
        accuracy = metrics.get("rollout/truthful")
        if accuracy is not None:
            best = self._best_accuracy = max(accuracy, self._best_accuracy or 0.0)
            found["truthful"] = _line(
                accuracy < best - limits.perception_drop,
                f"only {accuracy:.0%} of what replies state of the pictures is true, after {best:.0%} at best; raise "
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
        at_most(
            *(limits.repeated_thoughts, "rollout/repeated_thoughts"),
            "the same thoughts occur in {:.0%} of all states, whatever they show; raise update.kl_thoughts or lower "
            "update.thought_weight",
        )
        at_most(
            *(limits.kl_ceiling, "update/kl_reference"),
            "the model is {:.3g} nats per reply away from what it was before RL; raise update.kl_thoughts or lower "
            "update.learning_rate",
        )
        at_most(
            *(limits.kl_step_ceiling, "update/kl_old"),
            "one update took the model {:.3g} nats per reply away from the one that sampled, which is far; lower "
            "update.learning_rate, raise update.minibatch, or, with long replies, set update.ratio=token",
        )
        # Zero variance: no group (without groups, no two episodes) with different returns, so no advantages.
        zero_variance, deviation = metrics.get("rollout/zero_variance"), metrics.get("rollout/return_std")
        equal = None if deviation is None else deviation < 1e-9
        if zero_variance is not None:
            equal = zero_variance >= 1
        success = metrics.get("rollout/success")
        if equal is not None and success is not None:
            found["alike"] = _line(
                equal and success < 1,
                f"episodes of the same task all end alike ({success:.0%} are won), so there is nothing to learn from; "
                "warm-start longer, raise rollouts.temperature, or play easier tasks",
            )
        return found


def _line(wrong: bool, line: str) -> str | None:
    return line if wrong else None
