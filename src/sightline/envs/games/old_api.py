"""Environments of words that are none of Gymnasium's, such as TextWorld's: the API of the old gym, or less of it.

    reset() -> text                        or (text, info), or a state
    step(command) -> text, reward, done, info      or (state, score, done)

A state is a mapping that holds the text as `feedback`, and whatever else an info would.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import gymnasium

from sightline.envs.games.contract import ActionText, AnyText
from sightline.errors import BadInput

TEXT = "feedback"
"""Where a state of TextWorld's has the text."""


class OldTextEnv(gymnasium.Env[Any, str]):
    """Gymnasium environment around one that is none, but has `reset` and `step`.

    It is seeded by its `seed` method, or by `reset(seed=…)`, if it has either. What TextWorld's environments return as
    reward is the score so far; here the reward is what a step has added.

    Args:
        env: the environment.

    Raises:
        BadInput: it has no `reset` or `step`, or later, they return something else than they should.
    """

    def __init__(self, env: Any) -> None:
        if not (callable(getattr(env, "reset", None)) and callable(getattr(env, "step", None))):
            raise BadInput(f"text_game: make gave a {type(env).__name__}, which has no reset() and step()")
        self.inner = env
        self.observation_space: Any = AnyText()
        self.action_space: Any = ActionText()
        self._adds_up = type(env).__module__.split(".")[0] == "textworld"
        self._score = 0.0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._score = 0.0
        if seed is not None and callable(getattr(self.inner, "seed", None)):
            # The old gym's way; an environment has one of the two.
            self.inner.seed(seed)
            seed = None
        options_of_reset = {"seed": seed} if _takes_seed(self.inner.reset) else {}
        returned = self.inner.reset(**options_of_reset)
        if isinstance(returned, tuple) and len(returned) == 2:
            return returned[0], dict(returned[1] or {})
        return _text_and_info(returned)

    def step(self, action: str) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        returned = self.inner.step(action)
        parts = 1
        if isinstance(returned, tuple | list):
            parts = len(returned)
        if parts == 5:
            observation, reward, terminated, truncated, info = returned
        elif parts == 4:
            observation, reward, terminated, info = returned
            truncated = bool((info or {}).get("TimeLimit.truncated"))
        elif parts == 3:
            state, reward, terminated = returned
            observation, info = _text_and_info(state)
            truncated = False
        else:
            raise BadInput(
                f"text_game: step() of {type(self.inner).__name__} returned a {type(returned).__name__} of {parts}; it "
                "must return (observation, reward, terminated, truncated, info)"
            )
        # Total score so far -> what this step has added.
        if self._adds_up:
            score = reward
            reward = score - self._score
            self._score = float(score)
        return observation, reward, bool(terminated) and not truncated, bool(truncated), dict(info or {})

    def render(self) -> Any:
        return self.inner.render()

    def close(self) -> None:
        if callable(getattr(self.inner, "close", None)):
            self.inner.close()


def _takes_seed(reset: Any) -> bool:
    try:
        return "seed" in inspect.signature(reset).parameters
    except ValueError:  # written in C, without a signature
        return False


def _text_and_info(state: Any) -> tuple[Any, dict[str, Any]]:
    """Text and info of a state, or of an observation that comes alone."""
    if isinstance(state, Mapping) and TEXT in state:
        return state[TEXT], dict(state)
    return state, {}
