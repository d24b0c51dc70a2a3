"""Environments of a user's own, for tests: small enough to know what every frame, state and reward must be."""

from __future__ import annotations

import os
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from sightline.envs.record_frame import RecordFrame


class Clock(gymnasium.Env[np.ndarray, np.int64]):
    """Shows its own time: the number of steps since the reset is in its state, and in every pixel, `shade` times.

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
        shade: int = 1,
    ) -> None:
        self.render_mode, self.render_size, self.shade = render_mode, render_size, shade
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
        return np.full((*self.render_size, 3), self.shade * self.time, np.uint8)

    def _state(self) -> np.ndarray:
        return np.array([self.time, self.length, self.taken], np.float32)


class Wide(Clock):
    """Draws 20x30 pictures, whatever is wanted."""

    def __init__(self, render_mode: str | None = None) -> None:
        super().__init__(render_mode, (20, 30))


class Diverging(Clock):
    """Its physics diverges at its second step, in every other episode."""

    episodes = 0

    def step(self, action: np.int64) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        state, reward, ended, truncated, info = super().step(action)
        diverged = self.time == 2 and self.episodes % 2 == 0
        self.episodes += int(ended or diverged)
        return state, reward, ended or diverged, truncated, info | {"diverged": diverged}


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

    def render(self) -> Any:
        raise NotImplementedError


class Unasked(Clock):
    """Draws pictures without having been asked for any, and says nothing of itself."""

    metadata: Any = None

    def __init__(self) -> None:
        super().__init__()


class Grey(Clock):
    """Renders pictures without colour channels."""

    def render(self) -> np.ndarray:
        return super().render()[:, :, 0]


class Heat(Clock):
    """Renders numbers that are no colours: degrees, as floats."""

    def render(self) -> np.ndarray:
        return super().render() + 20.5


class InParts(Clock):
    """Observes a dictionary."""

    def __init__(self, render_mode: str | None = None) -> None:
        super().__init__(render_mode)
        self.observation_space = spaces.Dict(
            {"place": spaces.Box(-1, 1, (2, 2), np.float32), "mode": spaces.Discrete(3)}
        )

    def _state(self) -> Any:
        return {"place": np.full((2, 2), 0.5, np.float32), "mode": self.time % 3}


class Pictures(Clock):
    """Observes pictures, channels last: a grey of the time, under a row of the actions so far."""

    def __init__(self, render_mode: str | None = None, size: int = 36, shortest: int = 3, longest: int = 9) -> None:
        super().__init__(render_mode, shortest=shortest, longest=longest)
        self.observation_space = spaces.Box(0, 255, (size, size, 3), np.uint8)

    def _state(self) -> np.ndarray:
        picture = np.full(self.observation_space.shape, 20 * self.time, np.uint8)
        picture[0] = int(self.taken) % 256
        picture[..., 1] = np.arange(picture.shape[1])
        return picture


class Failing(Clock):
    """Goes wrong in one way from its second step on, or, where the way says so, when it is reset."""

    def __init__(self, render_mode: str | None = None, how: str = "") -> None:
        super().__init__(render_mode)
        self.how = how

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        state, info = super().reset(seed=seed)
        if self.how == "reset":
            raise KeyError("no map")
        if self.how == "reset NaN":
            state[0] = np.nan
        return state, info

    def step(self, action: np.int64) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        state, reward, ended, truncated, info = super().step(action)
        if self.time == 2:
            state = {"NaN": state * np.nan, "infinite": state / 0.0, "shape": state[:2], "text": "here"}.get(
                self.how, state
            )
            reward = {"reward NaN": np.nan, "reward infinite": -np.inf, "no reward": None}.get(self.how, reward)
        return state, reward, ended, truncated, info

    def render(self) -> np.ndarray:
        size = 20 if self.how == "frame" and self.time == 2 else 16
        return np.zeros((size, 16, 3), np.uint8)


class FromOne(Clock):
    """Numbers its actions from 1."""

    def __init__(self, render_mode: str | None = None) -> None:
        super().__init__(render_mode)
        self.action_space = spaces.Discrete(2, start=1)

    def step(self, action: np.int64) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        assert action in (1, 2), f"action {action}"
        return super().step(action)


class Odd(Clock):
    """Has spaces that no learner takes, or observations that its space does not know."""

    def __init__(self, render_mode: str | None = None, what: str = "") -> None:
        super().__init__(render_mode)
        self.what = what
        given: dict[str, Any] = {
            "text": spaces.Text(20),
            "sequence": spaces.Sequence(spaces.Discrete(3)),
        }
        self.observation_space = given.get(what, self.observation_space)
        plans: dict[str, Any] = {"plan": spaces.Sequence(spaces.Discrete(3))}
        self.action_space = plans.get(what, self.action_space)

    def _state(self) -> Any:
        said: dict[str, Any] = {"text": "a door", "string": "a door", "none": None, "shape": np.zeros((2, 3))}
        return said.get(self.what, super()._state())


class Fickle(Clock):
    """Takes a seed and does as it likes."""

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        self.np_random = np.random.default_rng()
        return super().reset(options=options)


class Unseeded(Clock):
    """Cannot be told a seed."""

    def reset(self) -> Any:  # type: ignore[override]
        return super().reset()


class Undrawn(Clock):
    """Forgets to return its picture."""

    def render(self) -> Any:
        super().render()


class Canvas(Clock):
    """Draws every picture on one and the same canvas."""

    def __init__(self, render_mode: str | None = None) -> None:
        super().__init__(render_mode)
        self.canvas = np.zeros((16, 16, 3), np.uint8)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        result = super().reset(seed=seed, options=options)
        self.render()
        return result

    def render(self) -> np.ndarray:
        self.canvas[:] = self.time
        return self.canvas


def recorded_clock() -> RecordFrame:
    return RecordFrame(Clock("rgb_array"))


def clock_by_function(render_mode: str | None = None, longest: int = 5) -> Clock:
    return Clock(render_mode, longest=longest)


def no_environment() -> str:
    return "this is text"


class Deadly(Clock):
    """Its process ends with the second step."""

    def step(self, action: np.int64) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        if self.time == 1:
            os._exit(1)
        return super().step(action)


class Unrepeatable(Clock):
    """Its states hold a number that no seed decides."""

    def _state(self) -> np.ndarray:
        return np.array([self.time, self.length, int.from_bytes(os.urandom(3))], np.float32)


class Large(Clock):
    """Draws 300x400 pictures, whatever is wanted."""

    def __init__(self, render_mode: str | None = None) -> None:
        super().__init__(render_mode, (300, 400))


class Telling(Clock):
    """Its frames say which device of EGL its process was told to draw with: its number and one, or black."""

    def render(self) -> np.ndarray:
        device = int(os.environ.get("MUJOCO_EGL_DEVICE_ID", "-1"))
        return np.full((*self.render_size, 3), device + 1, np.uint8)
