"""EPIC of transitions, canonically shaped: for a ground truth that depends on more than the state reached.

It asks for the ground truth of transitions that nobody made, from one state to another that was reached elsewhere. An
environment pays those that it makes alone, so that the ground truth has to be given as a function.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from sightline.config.named_code import code_at
from sightline.errors import BadInput, reason_of
from sightline.reward_lab.measures.epic import TransitionReward, TransitionSample, epic_of_transitions
from sightline.reward_lab.measures.resampling import RESAMPLES
from sightline.reward_lab.measures.result import Measure, undefined
from sightline.reward_lab.scoring import LabScores
from sightline.rewards.base import RewardModel

MOST_TRANSITIONS = 4096
BACKGROUND = 64
"""Transitions whose actions and next states stand for what might be done from any state."""
TOLERANCE = 1e-3
"""Difference from the environment's own reward, relative to the largest of them, that is more than rounding."""


@dataclass(frozen=True)
class TrueReward:
    """The ground truth of any transition: states [K, …], actions [K, …], next states [K, …] -> float[K].

    Attributes:
        name: as the user named it.
    """

    name: str
    function: TransitionReward

    @classmethod
    def of(cls, source: str | TransitionReward) -> TrueReward:
        """A function, or the one at `module:function` or `file.py:function`.

        Raises:
            BadInput: there is none.
        """
        function = code_at(source) if isinstance(source, str) else source
        name = source if isinstance(source, str) else getattr(source, "__name__", "true_reward")
        if not callable(function):
            raise BadInput(f"--true-reward: '{name}' is no function of states, actions and next states")
        return cls(name, function)

    def __call__(self, states: np.ndarray, actions: np.ndarray, next_states: np.ndarray) -> np.ndarray:
        """float64[K].

        Raises:
            BadInput: the function fails, or returns another number of values, or one that is not finite.
        """
        try:
            values = np.asarray(self.function(states, actions, next_states), np.float64)
        except Exception as error:
            raise BadInput(f"--true-reward: '{self.name}' fails: {reason_of(error)}") from error
        if values.shape != (len(states),):
            raise BadInput(
                f"--true-reward: '{self.name}' returns the shape {list(values.shape)} for {len(states)} transitions; "
                f"it must be [{len(states)}], a reward for each"
            )
        if not np.isfinite(values).all():
            raise BadInput(f"--true-reward: '{self.name}' returns numbers that are not finite")
        return values


def epic_by_transitions(
    model: RewardModel, name: str, scores: LabScores, truth: TrueReward, discount: float, resamples: int = RESAMPLES
) -> Measure:
    """EPIC distance of a reward from a ground truth of transitions, over the steps whose states and action are known.

    Of a reward that depends on the state reached alone, any transition to a state of the episodes has that state's
    reward.

    Args:
        model: the reward, called `name` in the scores.
        discount: of both rewards.
    """
    seen = scores.transitions
    if seen is None:
        reason = "no episode tells the states before and after its steps, and its actions"
        return undefined(reason, unit="transitions")
    if model.window > 1 or model.sees_past or not model.needs:
        reason = "the reward depends on more than the state reached, and says nothing of transitions that nobody made"
        return undefined(reason, len(seen.rows), "transitions")
    frames = scores.of(name)
    rewards = frames.rewards[seen.rows]
    known = np.flatnonzero(np.isfinite(rewards))
    if not len(known):
        return undefined("no transition has a reward", len(seen.rows), "transitions", len(seen.rows))
    rng = np.random.default_rng(0)
    chosen = np.sort(rng.permutation(known)[:MOST_TRANSITIONS])
    actions, targets = rng.choice(known, (2, BACKGROUND))
    # States are given by their numbers: those before all steps first, those after them behind.
    count = len(seen.rows)
    states = np.concatenate([seen.states, seen.next_states])
    reward_at = np.concatenate([np.full(count, np.nan), rewards])

    def true_reward(before: np.ndarray, acted: np.ndarray, after: np.ndarray) -> np.ndarray:
        return truth(states[before], seen.actions[acted], states[after])

    def reward(before: np.ndarray, acted: np.ndarray, after: np.ndarray) -> np.ndarray:
        return np.asarray(reward_at[after])

    return epic_of_transitions(
        reward,
        true_reward,
        TransitionSample(chosen, chosen, chosen + count),
        TransitionSample(actions, actions, targets + count),
        frames.episode[seen.rows[chosen]],
        discount,
        frames.select(np.isin(np.arange(len(frames.rewards)), seen.rows[chosen])).coverage,
        resamples,
    )


def check_against_own(truth: TrueReward, scores: LabScores, warn: Callable[[str], None]) -> None:
    """Warn of steps whose own reward, as the environment paid it, is another than the function says."""
    seen = scores.transitions
    own = scores.frames.truth
    if seen is None or own is None:
        return
    paid = own[seen.rows]
    difference = np.abs(truth(seen.states, seen.actions, seen.next_states) - paid)
    differs = difference > TOLERANCE * np.nanmax(np.abs(paid), initial=1e-9)
    if differs.any():
        warn(
            f"--true-reward '{truth.name}' differs from what the environment paid in {np.count_nonzero(differs)} of "
            f"{len(paid)} steps, by up to {np.nanmax(difference):.3g}"
        )
