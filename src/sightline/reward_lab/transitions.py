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
        function: object = source
        name = getattr(source, "__name__", "true_reward")
        if isinstance(source, str):
            function = code_at(source)
            name = source
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
    steps = scores.transitions
    if steps is None:
        reason = "no episode tells the states before and after its steps, and its actions"
        return undefined(reason, unit="transitions")
    if model.window > 1 or model.sees_past or not model.needs:
        reason = "the reward depends on more than the state reached, and says nothing of transitions that nobody made"
        return undefined(reason, len(steps.rows), "transitions")
    frames = scores.of(name)
    rewards = frames.rewards[steps.rows]
    answered = np.flatnonzero(np.isfinite(rewards))
    if not len(answered):
        return undefined("no transition has a reward", len(steps.rows), "transitions", len(steps.rows))
    rng = np.random.default_rng(0)
    sample = np.sort(rng.permutation(answered)[:MOST_TRANSITIONS])
    actions, targets = rng.choice(answered, (2, BACKGROUND))
    # States are given by their numbers: those before all steps first, those after them behind.
    count = len(steps.rows)
    states = np.concatenate([steps.states, steps.next_states])
    reward_at = np.concatenate([np.full(count, np.nan), rewards])

    def true_reward(before: np.ndarray, acted: np.ndarray, after: np.ndarray) -> np.ndarray:
        return truth(states[before], steps.actions[acted], states[after])

    def reward(before: np.ndarray, acted: np.ndarray, after: np.ndarray) -> np.ndarray:
        return np.asarray(reward_at[after])

    return epic_of_transitions(
        reward,
        true_reward,
        TransitionSample(sample, sample, sample + count),
        TransitionSample(actions, actions, targets + count),
        frames.episode[steps.rows[sample]],
        discount,
        frames.select(np.isin(np.arange(len(frames.rewards)), steps.rows[sample])).coverage,
        resamples,
    )


def check_against_own(truth: TrueReward, scores: LabScores, warn: Callable[[str], None]) -> None:
    """Warn of steps whose own reward, as the environment paid it, is another than the function says."""
    steps = scores.transitions
    own = scores.frames.truth
    if steps is None or own is None:
        return
    own_rewards = own[steps.rows]
    difference = np.abs(truth(steps.states, steps.actions, steps.next_states) - own_rewards)
    differs = difference > TOLERANCE * np.nanmax(np.abs(own_rewards), initial=1e-9)
    if differs.any():
        warn(
            f"--true-reward '{truth.name}' differs from what the environment paid in {np.count_nonzero(differs)} of "
            f"{len(own_rewards)} steps, by up to {np.nanmax(difference):.3g}"
        )
