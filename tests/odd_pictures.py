"""Environments whose pictures, seeds or rewards show nothing, each in its own way, and some that only look like it."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

Step = tuple[np.ndarray, float, bool, bool, dict[str, Any]]


class Walk(gymnasium.Env[np.ndarray, np.ndarray]):
    """A point that walks on a line. It is drawn as a white bar, in one of many ways.

    Args:
        draws: `bar`, as it should be; `black`; `grey`; `sky`, a gradient in which the point is never seen; `start`, the
            bar where the episode began; `undrawn`, black until the first reset; `rarely`, anew at every tenth step;
            `flash`, one colour that changes with the state; `seldom`, where the point is only told apart by halves.
        pays: the own reward: `place`, `nothing`, `vector`, `none`.
        states: whether infos state success.
        length: steps of an episode.
        seeded: False draws the start from no seed.
        slow: factor of every move.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 10}

    def __init__(
        self,
        render_mode: str | None = None,
        draws: str = "bar",
        pays: str = "place",
        states: bool = False,
        length: int = 40,
        seeded: bool = True,
        slow: float = 1.0,
    ) -> None:
        self.render_mode, self.draws, self.pays, self.states = render_mode, draws, pays, states
        self.length, self.seeded, self.slow = length, seeded, slow
        self.observation_space = spaces.Box(-1, 1, (2,), np.float32)
        self.action_space = spaces.Box(-1, 1, (1,), np.float32)
        self.begun = False

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        chance = self.np_random if self.seeded else np.random.default_rng()
        self.start = self.place = float(chance.uniform(-1, 1))
        self.time, self.begun = 0, True
        self.shown = self.place
        return self._state(), self._info()

    def step(self, action: np.ndarray) -> Step:
        self.time += 1
        self.place = float(np.clip(self.place + 0.2 * self.slow * float(action[0]), -1, 1))
        if self.time % 10 == 0:
            self.shown = self.place
        paid: Any = {"nothing": 0.0, "vector": np.array([1.0, 2.0]), "none": None}.get(self.pays, self.place)
        return self._state(), paid, False, self.time >= self.length, self._info()

    def render(self) -> np.ndarray:
        picture = np.zeros((32, 32, 3), np.uint8)
        if self.draws == "black" or (self.draws == "undrawn" and not self.begun):
            return picture
        if self.draws == "grey":
            return picture + np.uint8(90)
        if self.draws == "sky":
            picture[:] = np.arange(0, 128, 4, dtype=np.uint8)[:, None, None]
            return picture
        if self.draws == "flash":
            return picture + np.uint8(100 + 100 * self.place)
        place = {"start": self.start, "rarely": self.shown}.get(self.draws, self.place)
        at = round((place + 1) / 2 * 29)
        picture[8:24, at : at + 3] = 255
        return picture

    def _state(self) -> np.ndarray:
        return np.array([self.place, self.time / self.length], np.float32)

    def _info(self) -> dict[str, Any]:
        return {"success": self.place > 0.9} if self.states else {}


class Bandit(Walk):
    """Every episode is one step."""

    def __init__(self, render_mode: str | None = None, draws: str = "bar") -> None:
        super().__init__(render_mode, draws, length=1)
