"""An environment with any spaces, for tests: it checks every action that reaches it."""

from __future__ import annotations

import copy
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces


class Mission(spaces.Space[str]):
    """A space of its own for text, which Gymnasium cannot flatten."""

    def __init__(self) -> None:
        super().__init__(dtype=str)

    def sample(self, mask: Any = None, probability: Any = None) -> str:
        return "go to the green ball"

    def contains(self, x: Any) -> bool:
        return isinstance(x, str)


def picture(*shape: int) -> spaces.Box[Any]:
    return spaces.Box(0, 255, shape, np.uint8)


def numbers(*shape: int, low: float = -1, high: float = 1, dtype: Any = np.float32) -> spaces.Box[Any]:
    return spaces.Box(low, high, shape, dtype)


STATE = numbers(2)
OBSERVED: dict[str, spaces.Space[Any]] = {
    "state": STATE,
    "camera": spaces.Dict({"image": picture(40, 40, 3), "state": STATE}),
    "nested": spaces.Dict(
        {
            "eyes": spaces.Tuple([picture(3, 40, 44), numbers(40, 40, 3, low=0)]),
            "robot": spaces.Dict({"mode": spaces.Discrete(3, start=1), "joints": numbers(2, 2, dtype=np.float64)}),
            "task": spaces.Text(8),
        }
    ),
    "two cameras": spaces.Dict({"left": picture(40, 40, 3), "right": picture(36, 50, 1)}),
    "grid": spaces.Dict({"image": picture(7, 7, 3), "direction": spaces.Discrete(4), "mission": Mission()}),
    "grid alone": spaces.Dict({"image": picture(7, 7, 3), "mission": Mission()}),
    "type": spaces.Dict({"type": picture(40, 40, 3), "a.b": STATE}),
    "numbers": spaces.Dict({"place": numbers(2, 2), "mode": spaces.Discrete(3)}),
    "stack": picture(4, 40, 40, 3),
    "stacked last": picture(40, 40, 3, 4),
    "grey": picture(40, 40),
    "channels": picture(40, 40, 12),
    "fractions": numbers(40, 40, 3, low=0),
    "halves": numbers(40, 40, 3, low=0, dtype=np.float16),
    "signed": numbers(3, 40, 40),
    "bright": numbers(40, 40, 3, low=0, high=255),
    "whole": numbers(40, 40, 3, low=0, high=255, dtype=np.int64),
    "small bright": numbers(9, 9, 3, low=0, high=255),
    "table": numbers(40, 40),
    "scalar": numbers(),
    "empty": numbers(0),
    "float16": numbers(3, dtype=np.float16),
    "float64": numbers(3, dtype=np.float64),
    "int64": numbers(3, low=-5, high=5, dtype=np.int64),
    "bool": spaces.Box(0, 1, (3,), bool),
    "multi discrete": spaces.MultiDiscrete([2, 3]),
    "multi binary": spaces.MultiBinary([2, 2]),
    "text": spaces.Text(8),
    "mission": Mission(),
    "graph": spaces.Dict({"graph": spaces.Graph(STATE, None), "state": STATE}),
    "sequence": spaces.Dict({"sequence": spaces.Sequence(STATE), "state": STATE}),
    "only a sequence": spaces.Sequence(STATE),
    "nothing": spaces.Dict({}),
    "huge": spaces.Discrete(10**9),
    "depth": spaces.Dict({"depth": numbers(40, 40, low=0), "state": STATE}),
    "constant": spaces.Box(np.array([0, 1], np.float32), np.array([1, 1], np.float32)),
}
ACTED: dict[str, spaces.Space[Any]] = {
    "one": spaces.Discrete(3),
    "from five": spaces.Discrete(3, start=5),
    "few": spaces.MultiDiscrete([2, 3]),
    "many": spaces.MultiDiscrete([5, 5, 5]),
    "shifted": spaces.MultiDiscrete([[2, 3]], start=[[1, -1]]),
    "int32": spaces.MultiDiscrete([2, 3], dtype=np.int32),
    "switches": spaces.MultiBinary(3),
    "switchboard": spaces.MultiBinary([2, 2]),
    "many switches": spaces.MultiBinary(9),
    "float32": numbers(2),
    "float16": numbers(2, dtype=np.float16, low=-0.1, high=0.1),
    "float64": numbers(2, dtype=np.float64, low=-0.1, high=0.1),
    "int64": numbers(2, low=-2, high=3, dtype=np.int64),
    "uint8": picture(2),
    "scalar": numbers(),
    "fixed": spaces.Box(np.array([-1, 0.5, 0], np.float32), np.array([1, 0.5, 2], np.float32)),
    "dict of boxes": spaces.Dict({"arm": numbers(2, dtype=np.float64), "hand": numbers(1, 2)}),
    "tuple of choices": spaces.Tuple(
        [spaces.Discrete(2, start=1), spaces.MultiBinary(2), spaces.MultiDiscrete([2, 2])]
    ),
    "nested choices": spaces.Dict(
        {"a": spaces.Tuple([spaces.Discrete(2), spaces.Discrete(3)]), "b": spaces.Discrete(2)}
    ),
    "mixed": spaces.Dict({"arm": numbers(2), "grip": spaces.Discrete(2)}),
    "all fixed": spaces.Box(1, 1, (2,), np.float32),
    "infinite": spaces.Box(-np.inf, np.inf, (2,), np.float32),
    "huge": spaces.Box(-3.4e38, 3.4e38, (2,), np.float32),
    "empty": numbers(0),
    "words": spaces.Text(8),
    "sequence": spaces.Sequence(spaces.Discrete(2)),
}


class Odd(gymnasium.Env[Any, Any]):
    """Observes and does what two names say; an action that its space does not hold, or of another dtype, is an error.

    Observations are drawn from their space, by the episode's seed; an episode ends after ten steps, every third one by
    its end and the others by a time limit.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 30}

    def __init__(self, observes: str = "state", acts: str = "one", render_mode: str | None = None) -> None:
        # Copies, since spaces hold the generators that they draw from.
        self.observation_space, self.action_space = copy.deepcopy(OBSERVED[observes]), copy.deepcopy(ACTED[acts])
        self.render_mode, self.time = render_mode, 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.observation_space.seed(seed)
        self.time, self.ends = 0, bool(self.np_random.integers(3) == 0)
        return self._seen(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert self.action_space.contains(action), f"{action!r} is not in {self.action_space}"
        if isinstance(self.action_space, spaces.Box | spaces.MultiBinary | spaces.MultiDiscrete):
            assert action.dtype == self.action_space.dtype, action.dtype
        self.time += 1
        is_over = self.time == 10
        return self._seen(), float(self.time % 3), is_over and self.ends, is_over and not self.ends, {}

    def render(self) -> np.ndarray:
        return np.full((16, 16, 3), 20 * self.time, np.uint8)

    def _seen(self) -> Any:
        return self.observation_space.sample()


class Faulty(Odd):
    """Leaves the right way with its second observation, in one part of a dictionary."""

    def __init__(self, fault: str, render_mode: str | None = None) -> None:
        super().__init__("depth" if fault == "range" else "camera", render_mode=render_mode)
        self.fault = fault

    def _seen(self) -> Any:
        seen = super()._seen()
        if self.time < 1:
            return seen
        faults = {
            "shape": {"image": np.zeros((40, 41, 3), np.uint8)},
            "nan": {"state": np.array([np.nan, 0], np.float32)},
            "range": {"depth": np.linspace(0, 200, 1600, dtype=np.float32).reshape(40, 40)},
            "dtype": {"image": np.zeros((40, 40, 3), np.float32)},
        }
        if self.fault == "missing":
            del seen["state"]
            return seen
        return [seen] if self.fault == "list" else {**seen, **faults[self.fault]}
