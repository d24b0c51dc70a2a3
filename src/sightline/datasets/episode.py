"""An episode as it was played or recorded.

    reset ──► s_0 ──action 1──► s_1 ──action 2──► s_2 … s_T
              │                 │                 │
              reset_state       states[0]         states[1]      row t is of the state that step t led to
              reset_frame       frames[0]         frames[1]

Data sets of other packages mostly keep s_t beside the action that was chosen there, one row earlier than here.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sightline.errors import BadInput
from sightline.rewards.base import Clip
from sightline.rewards.scopes import Past

PER_STEP = ("frames", "states", "actions", "env_reward", "success")
"""Arrays of an episode that have a row for each step."""


@dataclass(frozen=True, eq=False)
class Episode:
    """One episode of T steps, T >= 1. Row t of every array is of step t, and of the state that it led to.

    Attributes:
        source: where the episode is from, such as `random`; sets of episodes are compared by it.
        frames: uint8[T, H, W, 3]; None where nothing was drawn.
        reset_frame: uint8[H, W, 3], before the first step; None where it is not known.
        states: [T, …], observations; None where they are not known, or are not one array.
        reset_state: […], the observation before the first step.
        actions: [T, …].
        env_reward: float32[T], the environment's own reward.
        success: bool[T], whether the environment calls the state a success; None where it does not say.
        terminated: whether the last state is terminal; otherwise a limit cut the episode off.
        instruction: the goal in words, where an episode has one of its own.
        seed: with which its environment was reset.
        fps: frames per second.

    Raises:
        BadInput: the arrays are not of one number of steps.
    """

    source: str
    frames: np.ndarray | None = None
    reset_frame: np.ndarray | None = None
    states: np.ndarray | None = None
    reset_state: np.ndarray | None = None
    actions: np.ndarray | None = None
    env_reward: np.ndarray | None = None
    success: np.ndarray | None = None
    terminated: bool = False
    instruction: str | None = None
    seed: int | None = None
    fps: float | None = None

    def __post_init__(self) -> None:
        lengths = {}
        for name in PER_STEP:
            array = getattr(self, name)
            if array is not None:
                lengths[name] = len(array)
        if len(set(lengths.values())) > 1:
            listed = ", ".join(f"{length} {name}" for name, length in lengths.items())
            raise BadInput(f"an episode of '{self.source}' has {listed}; each step needs one of each")
        if not any(lengths.values()):
            raise BadInput(f"an episode of '{self.source}' has no steps")

    @property
    def steps(self) -> int:
        """T."""
        arrays = (getattr(self, name) for name in PER_STEP)
        return next(len(array) for array in arrays if array is not None)

    def clip(self) -> Clip:
        """The episode as a reward model sees it, [T, 1], after its reset frame where that is known."""
        first = np.zeros((self.steps, 1), bool)
        first[0] = True
        ended = np.zeros((self.steps, 1), bool)
        ended[-1] = True
        arrays = {}
        for name in ("frames", "states", "env_reward", "success"):
            array = getattr(self, name)
            if array is not None:
                arrays[name] = array[:, None]
        terminated = ended & self.terminated
        past = None
        if self.reset_frame is not None and self.frames is not None:
            past = Past.of_resets(0, first[0], self.reset_frame[None])
        return Clip(first, ended=ended, terminated=terminated, instruction=self.instruction, past=past, **arrays)
