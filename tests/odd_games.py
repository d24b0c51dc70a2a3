"""Environments as strangers bring them, to be played by agents: what they state, pay and allow, and in which form."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

import sightline as sl
from sightline.envs.games.contract import Game


class Coins(gymnasium.Env[int, Any]):
    """Three steps; the action `high` pays 1. The picture's grey is the step.

    Args:
        states: when success, all three coins, is stated: `never`, `end`, `won`, `always`.
        reward: form of the reward.
        info: what else the infos hold.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 2}

    def __init__(
        self, render_mode: str | None = None, states: str = "never", reward: str = "number", info: str = ""
    ) -> None:
        self.render_mode, self.states, self.reward, self.info = render_mode, states, reward, info
        self.observation_space: Any = spaces.Discrete(4)
        self.action_space: Any = spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.time, self.coins, self.shade = 0, 0, int(self.np_random.integers(50))
        return 0, self._info()

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        self.time += 1
        coin = self.is_high(action)
        self.coins += coin
        return self.time, self._paid(coin), self.time == 3, False, self._info()

    def is_high(self, action: Any) -> bool:
        return bool(action == 1)

    def render(self) -> np.ndarray:
        return np.full((32, 32, 3), 50 * self.time + self.shade, np.uint8)

    def _paid(self, coin: bool) -> Any:
        forms: dict[str, Any] = {"array": np.array([float(coin)]), "none": None, "vector": np.array([coin, 1.0])}
        return forms.get(self.reward, float(coin))

    def _info(self) -> dict[str, Any]:
        won = self.coins == 3
        is_stated = {"end": self.time == 3, "won": won, "always": True}.get(self.states, False)
        odd: dict[str, Any] = {
            "mask": {"action_mask": np.array([0, 1], np.int8)},
            "three": {"action_mask": np.array([1, 1, 0], bool)},
            "long mask": {"action_mask": np.ones(5, bool)},
            "truths": {"legal_actions": np.array([True, False])},
            "text": {"legal_actions": "high"},
            "numbers": {"legal_actions": np.array([1])},
            "wrong number": {"legal_actions": [7]},
            "no list": {"legal_actions": 3},
            "nothing": {"legal_actions": None, "success": None},
            "function": {"simulator": lambda: None, "nan": float("nan"), "deep": {"of": [self.render_mode, np.nan]}},
            "words": {"success": "False"},
        }
        return ({"success": won} if is_stated else {}) | odd.get(self.info, {})


class Meanings(Coins):
    """Says what its actions mean, as Atari's environments do; an attribute of ours means nothing to it."""

    action_names = None

    def get_action_meanings(self) -> list[str]:
        return ["NOOP", "FIRE"]


class Levers(Coins):
    """Acts in a space of another kind."""

    def __init__(self, render_mode: str | None = None, kind: str = "") -> None:
        super().__init__(render_mode, info="three" if kind == "from 1" else "")
        parts = {"grip": spaces.Discrete(2), "move": spaces.Box(-1, 1, (2,), np.float32)}
        self.action_space = {
            "MultiDiscrete": spaces.MultiDiscrete([2, 3]),
            "MultiBinary": spaces.MultiBinary(2),
            "Box": spaces.Box(-0.4, 0.4, (1,), np.float32),
            "whole": spaces.Box(0, 5, (2,), np.int64),
            "Dict": spaces.Dict(parts),
            "Tuple": spaces.Tuple(tuple(parts.values())),
            "from 1": spaces.Discrete(3, start=1),
        }[kind]

    def is_high(self, action: Any) -> bool:
        assert self.action_space.contains(action), action
        self.taken = action
        return True


class Angry(Coins):
    """Breaks in a step, or in reset."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        if self.states == "reset":
            raise KeyError("no map")
        return super().reset(seed=seed)

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        raise ZeroDivisionError("the pole is too short")


class HalfAnOracle(Game):
    """A row of cells to walk along; its oracle knows the way from the first ones only, or from none."""

    action_names = ("left", "right")

    def __init__(self, known: int = 2, **options: Any) -> None:
        super().__init__((32, 32), **options)
        self.known, self.place, self.steps = known, 0, 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        # Every second episode begins where the oracle knows nothing.
        self.place, self.steps = 3 * int(self.np_random.integers(2)), 0
        return self._observation(), self._info(False)

    def step(self, action: Any) -> Any:
        self.steps += 1
        self.place = max(self.place + (1 if action == 1 else -1), 0)
        return self._observation(), 0.0, self.place == 5, self.steps == 30, self._info(self.place == 5)

    def text(self) -> str:
        return "Walk to the right end."

    def draw(self) -> np.ndarray:
        return np.full((32, 32, 3), 128 + self.place, np.uint8)

    def facts(self) -> dict[str, str]:
        return {}

    def legal_actions(self) -> tuple[str, ...]:
        return self.action_names

    def oracle(self) -> str | None:
        return "right" if self.place < self.known else None

    def caption(self) -> str:
        return f"Cell {self.place}."


# -- in words ----------------------------------------------------------------------------------------------------------


class OldWords:
    """The API of the old gym: a seed of its own, no info at reset, four results of a step."""

    def __init__(self) -> None:
        self.given: int | None = None

    def seed(self, seed: int) -> None:
        self.given = seed

    def reset(self) -> Any:
        self.time, self.way = 0, ("north", "south")[np.random.default_rng(self.given).integers(2)]
        return f"You hear water in the {self.way}."

    def step(self, command: str) -> Any:
        self.time += 1
        hit = command == self.way
        return "You walk.", float(hit), hit or self.time == 9, {"won": hit, "TimeLimit.truncated": self.time == 9}


class NewWords(OldWords):
    """The same with an info at reset, as TextWorld's environment for gym has it."""

    def reset(self) -> Any:
        return super().reset(), {"won": False}


class Scores(OldWords):
    """As TextWorld's own environment: states that are mappings, and the score so far in place of a reward."""

    def reset(self) -> Any:
        self.score = 0
        return {"feedback": super().reset(), "won": False}

    def step(self, command: str) -> Any:
        text, reward, over, info = super().step(command)
        self.score += 1 + int(reward)
        return {"feedback": text, "won": info["won"]}, self.score, over


Scores.__module__ = "textworld.somewhere"


def old_words() -> gymnasium.Env[Any, Any]:
    return sl.text_game(OldWords, commands=["north", "south"])


class Spoken(gymnasium.Env[str, Any]):
    """Observes words, with numbered or worded actions, without saying where the words are."""

    def __init__(self, render_mode: str | None = None, acts: str = "words") -> None:
        self.observation_space: Any = spaces.Text(100)
        self.action_space: Any = spaces.Text(20) if acts == "words" else spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        super().reset(seed=seed)
        self.door = int(self.np_random.integers(2))
        return f"Door {self.door} is open.", {}

    def step(self, action: Any) -> tuple[str, float, bool, bool, dict[str, Any]]:
        return "It is over.", float(action == self.door), True, False, {}


def spoken_numbers() -> gymnasium.Env[Any, Any]:
    """Commands of each state become numbers; any other text raises."""
    numbers = {"door 0": 0, "door 1": 1}
    return sl.text_game(
        lambda: Spoken(acts="numbers"), commands=lambda text, info: sorted(numbers), send=numbers.__getitem__
    )
