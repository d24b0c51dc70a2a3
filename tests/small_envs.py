"""Environments of a user's own, for tests: small enough to know what every frame, state and reward must be."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces


class Clock(gymnasium.Env[np.ndarray, np.int64]):
    """Shows its own time: state and every pixel are the number of steps since the reset.

    The state is (time, length of the episode, hash of the actions so far). An episode lasts a random number of steps
    between `shortest` and `longest` and then terminates.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 30}

    def __init__(
        self,
        render_mode: str | None = None,
        render_size: tuple[int, int] = (16, 16),
        shortest: int = 3,
        longest: int = 9,
    ) -> None:
        self.render_mode, self.render_size = render_mode, render_size
        self.shortest, self.longest = shortest, longest
        self.observation_space = spaces.Box(0, np.inf, (3,), np.float32)
        self.action_space = spaces.Discrete(2)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self.time, self.taken = 0, 0.0
        self.length = int(self.np_random.integers(self.shortest, self.longest + 1))
        return self._state(), {"success": False}

    def step(self, action: np.int64) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self.time += 1
        self.taken = (self.taken * 3 + float(action) + 1) % 1009
        ended = self.time >= self.length
        return self._state(), float(self.time), ended, False, {"success": ended}

    def render(self) -> np.ndarray:
        return np.full((*self.render_size, 3), self.time, np.uint8)

    def _state(self) -> np.ndarray:
        return np.array([self.time, self.length, self.taken], np.float32)


class Raising(Clock):
    """Breaks at its third step."""

    def step(self, action: np.int64) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        if self.time == 2:
            raise ValueError("the simulator exploded")
        return super().step(action)


class Blind(Clock):
    """Has no pictures."""

    metadata: dict[str, Any] = {"render_modes": []}

    def __init__(self) -> None:
        super().__init__()


class Grey(Clock):
    """Renders pictures without colour channels."""

    def render(self) -> np.ndarray:
        return super().render()[:, :, 0]


class InParts(Clock):
    """Observes a dictionary."""

    def __init__(self, render_mode: str | None = None) -> None:
        super().__init__(render_mode)
        self.observation_space = spaces.Dict(
            {"place": spaces.Box(-1, 1, (2, 2), np.float32), "mode": spaces.Discrete(3)}
        )

    def _state(self) -> Any:
        return {"place": np.full((2, 2), 0.5, np.float32), "mode": self.time % 3}


def clock_by_function(render_mode: str | None = None, longest: int = 5) -> Clock:
    return Clock(render_mode, longest=longest)


def no_environment() -> str:
    return "this is text"
