"""Training alarms: warnings about collapse while there is still time to stop the run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sightline.config.agents import AlarmSettings as Limits


class Alarms:
    """Alarms on metrics of updates; each is raised once when its condition has held for `patience` updates in a row.

    Those of too large a step and of a sampler unlike the learner are raised at once. A metric that is missing or None
    leaves its alarm as it is. `patience` 0 is the same as 1.
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
            if line is None:
                self._streaks[name] = 0
                continue
            self._streaks[name] = self._streaks.get(name, 0) + 1
            patience = max(1, self.limits.patience)
            if name in ("kl_old", "mismatch"):
                # Too large a step can ruin the model in a single update, and those after it look small; a model that
                # computes otherwise when it samples never learns from what it has said.
                patience = 1
            # Equal, not more: a problem that lasts is told of once.
            if self._streaks[name] == patience:
                lines.append(line)
        return lines

    def state_dict(self) -> dict[str, Any]:
        """State between updates, as plain data for JSON."""
        return {"most_truthful": self._best_accuracy, "streaks": dict(self._streaks)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` gave."""
        self._best_accuracy = state["most_truthful"]
        self._streaks = dict(state["streaks"])

    def _problems(self, metrics: Mapping[str, float | None]) -> dict[str, str | None]:
        """Problem of each alarm whose metric is known; None if there is none."""
        limits = self.limits
        problems: dict[str, str | None] = {}

        def at_most(metric: str, limit: float, line: str) -> None:
            """An alarm on a metric above a limit; `{}` in its line stands for the metric."""
            value = metrics.get(metric)
            if value is not None:
                name = metric.partition("/")[2]
                problems[name] = line.format(value) if value > limit else None

        # First of all: where replies cannot be read, no other number means what it says.
        at_most(
            "rollout/unparsable",
            limits.unparsable,
            "{:.0%} of all replies are unparsable; warm-start first (warm_start={{}}), or raise replies.penalty",
        )
        at_most("rollout/illegal", limits.illegal, "{:.0%} of all replies are illegal; raise replies.penalty")
        # Perception accuracy: the first thing to go when only success is rewarded.
        accuracy = metrics.get("rollout/truthful")
        if accuracy is not None:
            best = max(accuracy, self._best_accuracy or 0.0)
            self._best_accuracy = best
            problems["truthful"] = None
            if accuracy < best - limits.perception_drop:
                problems["truthful"] = (
                    f"only {accuracy:.0%} of the facts that replies state are true, after {best:.0%} at best; "
                    "raise update.kl_thoughts or lower update.thought_weight"
                )
        # Over all tokens if the learner has scored them; else by the tokens that were sampled.
        entropy = metrics.get("update/entropy")
        if entropy is None:
            entropy = metrics.get("rollout/entropy")
        if entropy is not None:
            problems["entropy"] = None
            if entropy < limits.entropy_floor:
                problems["entropy"] = (
                    f"replies hardly vary any more ({entropy:.2g} nats of entropy per token), so nothing new is "
                    "tried; raise update.entropy or lower update.learning_rate"
                )
        at_most(
            "rollout/repeated_thoughts",
            limits.repeated_thoughts,
            "the same thoughts occur in {:.0%} of all states, whatever they show; raise update.kl_thoughts or lower "
            "update.thought_weight",
        )
        at_most(
            "update/kl_reference",
            limits.kl_ceiling,
            "the model is {:.3g} nats per reply away from what it was before RL; raise update.kl_thoughts or lower "
            "update.learning_rate",
        )
        at_most(
            "update/kl_old",
            limits.kl_step_ceiling,
            "one update took the model {:.3g} nats per reply away from the one that sampled, which is far; lower "
            "update.learning_rate, raise update.minibatch, or, with long replies, set update.ratio=token",
        )
        at_most(
            "update/mismatch",
            limits.mismatch_ceiling,
            "the probabilities that replies were sampled with differ from the learner's by {:.0%} a token, so it "
            "learns from what it would not have said; take another policy.model or policy.sampler",
        )
        # Zero variance: no group (without groups, no two episodes) with different returns, so no advantages.
        zero_variance = metrics.get("rollout/zero_variance")
        deviation = metrics.get("rollout/return_std")
        equal: bool | None = None
        if zero_variance is not None:
            equal = zero_variance >= 1
        elif deviation is not None:
            equal = deviation < 1e-9
        success = metrics.get("rollout/success")
        if equal is not None and success is not None:
            problems["alike"] = None
            if equal and success < 1:
                problems["alike"] = (
                    f"episodes of the same task all end alike ({success:.0%} are won), so there is nothing to learn "
                    "from; warm-start longer, raise rollouts.temperature, or play easier tasks"
                )
        return problems
