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
        rule: of measures, which are truth values beside success: whether they count if true at `every` step, at `any`,
            or at the `end`.

    Attributes:
        returns: float[N], sums of the environment's rewards.
        lengths: int[N], steps.
        success: bool[N] by rule: whether the episode's states were a success at `every` step, at `any`, at the `end`
            (so far).
        measures: name -> bool[N], whether the truth value held, by the rule; of those that any step has stated.
        knows_success: whether the environment says what success is.
    """

    def __init__(self, count: int, rule: str = "every") -> None:
        self.returns = np.zeros(count)
        self.lengths = np.zeros(count, int)
        self.success = {"every": np.ones(count, bool), "any": np.zeros(count, bool), "end": np.zeros(count, bool)}
        self._rule = rule
        self.measures: dict[str, np.ndarray] = {}
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
        for name, values in (measures or {}).items():
            # What no environment states, such as a mistyped name, stays unknown.
            measure = self.measures.setdefault(name, np.full(len(self.returns), self._rule == "every"))
            # A rule of `end` takes the values as they are.
            before = measure[slots]
            if self._rule == "every":
                values = before & values
            elif self._rule == "any":
                values = before | values
            measure[slots] = values

    def take(self, slots: np.ndarray) -> list[dict[str, float]]:
        """Statistics of the episodes in these slots, int[K], which have ended: `return`, `length`, and success by each
        rule. The slots are empty afterwards."""
        episodes = []
        for slot in slots:
            episode: dict[str, float] = {"return": float(self.returns[slot]), "length": int(self.lengths[slot])}
            for rule, success in self.success.items():
                episode[rule] = bool(success[slot])
            episodes.append(episode)
        self.returns[slots] = 0.0
        self.lengths[slots] = 0
        # What must hold in every state holds until one contradicts; all else does not, until one shows it.
        for rule, success in self.success.items():
            success[slots] = rule == "every"
        for measure in self.measures.values():
            measure[slots] = self._rule == "every"
        return episodes

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
        self.returns[:] = state["returns"]
        self.lengths[:] = state["lengths"]
        for rule, success in self.success.items():
            success[:] = state["success"][rule]
        self.knows_success = bool(state["knows_success"])


def success_by_rule(
    states: Sequence[bool | None], stated: bool = False, forfeited: bool = False
) -> dict[str, bool | None]:
    """Success of an episode by each rule, from that of the states that its steps led to.

    Args:
        states: None where the environment does not say; beside states of which it does, such as the last, that is no
            success.
        stated: whether the environment has said anything beside, such as in the state that the episode began with.
        forfeited: whether the episode was given up, which is no success.

    Returns:
        None by each rule if the environment never says: then success is unknown.
    """
    # An environment that never speaks of success does not say that there was none.
    if not stated and all(success is None for success in states):
        return dict.fromkeys(("every", "any", "end"))
    successes = [bool(success) for success in states]
    if not successes or forfeited:
        return dict.fromkeys(("every", "any", "end"), False)
    return {"every": all(successes), "any": any(successes), "end": successes[-1]}


def known_success(episodes: Sequence[bool | None]) -> np.ndarray | None:
    """bool[N] of the success of episodes; None if it is unknown of all. Where it is known of some, it is none of the
    others: environments may state success only where there is one."""
    if all(success is None for success in episodes):
        return None
    return np.array([bool(success) for success in episodes])


def summarise_episodes(
    returns: np.ndarray, lengths: np.ndarray, success: Mapping[str, np.ndarray], rule: str
) -> dict[str, float | None]:
    """Success rate, mean return and mean length of finished episodes, with 95 % confidence intervals.

    Args:
        returns: float[N], N may be 0.
        lengths: int[N], steps or turns.
        success: bool[N] by rule; empty if the environment does not define success.
        rule: the rule that decides: `every`, `any` or `end`.

    Returns:
        `success_rate` with `ci_low` and `ci_high` (Wilson), `success_any` and `success_end`, the rates by those rules;
        `return` with `return_ci_low` and `return_ci_high` (bootstrap); `length`; None for what is unknown.
    """
    keys = ("success_rate", "ci_low", "ci_high", "success_any", "success_end")
    numbers: dict[str, float | None] = dict.fromkeys((*keys, "return", "return_ci_low", "return_ci_high", "length"))
    if len(returns):
        numbers["return"] = float(returns.mean())
        numbers["return_ci_low"], numbers["return_ci_high"] = bootstrap_mean(returns)
        numbers["length"] = float(lengths.mean())
    if success and len(returns):
        won = success[rule]
        numbers["success_rate"] = float(won.mean())
        numbers["ci_low"], numbers["ci_high"] = wilson(int(won.sum()), len(won))
        numbers["success_any"] = float(success["any"].mean())
        numbers["success_end"] = float(success["end"].mean())
    return numbers


UNREADABLE = 0.02
"""Share of unreadable or illegal replies from which on a line begins with them: the rest means little then."""


def describe(numbers: Mapping[str, Any]) -> str:
    """Format a summary of episodes, of a policy or an agent, as one line. What is unknown is left out."""
    if not numbers["episodes"]:
        line = f"all {numbers['errors']} episodes broke"
        if numbers.get("error"):
            line += f": {numbers['error']}"
        return line
    results = _describe_results(numbers)
    faults = _describe_faults(numbers)
    # Numbers of an agent whose replies cannot be read say little: then its faults come first.
    worst = max(numbers.get(name) or 0.0 for name in ("unparsable", "illegal", "replaced"))
    parts = [*faults, *results] if worst >= UNREADABLE else [*results, *faults]
    return ", ".join(parts)


def describe_kind(numbers: Mapping[str, Any]) -> str:
    """Format the numbers of one kind of tasks in words, such as "success 50 % of 12 episodes, 25 % without a mistake".

    Args:
        numbers: `episodes`, and `success_rate` and `clean` from 0 to 1, or None where success is not stated.
    """
    if numbers["success_rate"] is None:
        return f"{numbers['episodes']} episodes, success not stated"
    line = f"success {_percent(numbers['success_rate'])} of {numbers['episodes']} episodes"
    if numbers["clean"] is not None:
        line += f", {_percent(numbers['clean'])} without a mistake"
    return line


def _describe_results(numbers: Mapping[str, Any]) -> list[str]:
    """Success, return and reward of a summary in words."""
    parts = []
    if numbers["success_rate"] is not None:
        parts += _describe_success(numbers)
    if numbers.get("truthful_replies") is not None:
        parts.append(f"true replies {_percent(numbers['truthful_replies'])}")
    # The return of an environment that pays nothing is left out, unless nothing else is known.
    is_all_unknown = not parts and numbers.get("reward") is None
    if is_paid(numbers) or is_all_unknown:
        interval = f"[{numbers['return_ci_low']:.2f}, {numbers['return_ci_high']:.2f}]"
        parts.append(f"return {numbers['return']:.2f} {interval}")
    if numbers.get("reward") is not None:
        parts.append(f"reward {numbers['reward']:.3f}")
    if numbers.get("errors"):
        broken = f"{numbers['errors']} episodes broke"
        if numbers.get("error"):
            broken += f" (the first: {numbers['error']})"
        parts.append(broken)
    return parts


def _describe_success(numbers: Mapping[str, Any]) -> list[str]:
    """Success rates of a summary in words, by the task's rule first."""
    rate = numbers["success_rate"]
    at_end = numbers.get("success_end")
    if at_end is None:
        at_end = rate
    # Where the two differ, what success means is told by which is less: in all states of an episode, or in any.
    rule = ""
    if rate < at_end:
        rule = " in every state"
    elif rate > at_end:
        rule = " in some state"
    parts = [f"success{rule} {_percent(rate)} [{100 * numbers['ci_low']:.0f}, {100 * numbers['ci_high']:.0f}]"]
    if rate != at_end:
        parts.append(f"in the last one {_percent(at_end)}")
    if numbers.get("clean", rate) != rate:
        parts.append(f"without mistakes {_percent(numbers['clean'])}")
    return parts


def _describe_faults(numbers: Mapping[str, Any]) -> list[str]:
    """Shares of replies that could not be used, in words."""
    parts = []
    if numbers.get("replaced"):
        replies = "moves" if numbers.get("unparsable") is None else "replies"
        parts.append(f"random moves in place of {_percent(numbers['replaced'])} of its {replies}")
    parts += [f"{name} {_percent(numbers[name])}" for name in ("unparsable", "illegal") if numbers.get(name)]
    return parts


def is_paid(numbers: Mapping[str, Any]) -> bool:
    """Whether any episode of a summary had a return: the environments of many tasks pay nothing of their own."""
    return any(numbers.get(key) for key in ("return", "return_ci_low", "return_ci_high"))


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"
