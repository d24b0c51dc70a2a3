"""Environments as strangers have them, for `wrap`: goals, rewards that are no numbers, infos that are none."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from small_envs import Clock


class Reach(gymnasium.Env[Any, Any]):
    """A goal environment: its own reward is -1 away from the goal, and it can say so of any other goal."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 30}

    def __init__(self, render_mode: str | None = None) -> None:
        self.render_mode = render_mode
        place = spaces.Box(-1, 1, (2,), np.float32)
        self.observation_space = spaces.Dict({"observation": place, "achieved_goal": place, "desired_goal": place})
        self.action_space = spaces.Box(-1, 1, (2,), np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.time = 0
        self.place, self.goal = self.np_random.uniform(-1, 1, (2, 2)).astype(np.float32)
        return self._observed(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.time += 1
        self.place = np.clip(self.place + 0.1 * np.asarray(action, np.float32), -1, 1)
        reward = float(self.compute_reward(self.place, self.goal, {}))
        return self._observed(), reward, False, self.time == 10, {"is_success": reward == 0}

    def compute_reward(self, achieved_goal: Any, desired_goal: Any, info: Any) -> Any:
        return -(np.linalg.norm(achieved_goal - desired_goal, axis=-1) > 0.2).astype(np.float32)

    def render(self) -> np.ndarray:
        frame = np.full((16, 16, 3), 255, np.uint8)
        row, column = ((self.place + 1) / 2 * 12).astype(int)
        frame[row : row + 4, column : column + 4] = 0
        return frame

    def _observed(self) -> dict[str, Any]:
        return {"observation": self.place.copy(), "achieved_goal": self.place.copy(), "desired_goal": self.goal.copy()}


class Paid(Clock):
    """Its own reward is whatever it is made with."""

    def __init__(self, own: Any = None) -> None:
        super().__init__("rgb_array")
        self.own = own

    def step(self, action: Any) -> Any:
        state, _, ended, truncated, info = super().step(action)
        return state, self.own, ended, truncated, info


class Uninformed(Clock):
    """Its infos are whatever it is made with."""

    def __init__(self, info: Any = None) -> None:
        super().__init__("rgb_array")
        self.info = info

    def reset(self, **given: Any) -> Any:
        return super().reset(**given)[0], self.info

    def step(self, action: Any) -> Any:
        return (*super().step(action)[:4], self.info)


class Reused(Clock):
    """Writes every observation into one array. An episode has three steps."""

    def __init__(self) -> None:
        super().__init__("rgb_array", shortest=3, longest=3)
        self.state = np.zeros(3, np.float32)

    def _state(self) -> np.ndarray:
        self.state[:] = super()._state()
        return self.state


class Painted(Clock):
    """Draws what it is told to: a colour, or the same two colours in every picture, whatever happens."""

    def __init__(self, how: str = "black", moves: bool = True) -> None:
        super().__init__("rgb_array")
        self.how, self.moves = how, moves

    def render(self) -> np.ndarray:
        frame = np.zeros((16, 16, 3), np.uint8)
        if self.how == "still":
            frame[4:8] = 200
        if self.how == "flicker":  # less than any reward can see
            frame[4:8], frame[0, 0] = 200, self.time % 2
        if self.how == "opening":
            frame[4:8] = self.length
        return frame

    def _state(self) -> np.ndarray:
        return super()._state() if self.moves else np.zeros(3, np.float32)


class Undrawable(Clock):
    """Has no display to draw on, in the words of a library."""

    def __init__(self, error: type[Exception] = RuntimeError, words: str = "") -> None:
        super().__init__("rgb_array")
        self.error, self.words = error, words

    def render(self) -> np.ndarray:
        raise self.error(self.words)


class NoSuchDisplayException(Exception):
    """As pyglet names it."""


class ManyInOne(Clock):
    """Simulates several at once, as one environment."""

    def __init__(self, num_envs: int = 4, says: bool = True) -> None:
        super().__init__("rgb_array")
        self.many = num_envs
        if says:
            self.num_envs = num_envs

    def step(self, action: Any) -> Any:
        state, reward, ended, truncated, info = super().step(action)
        many = [np.repeat(np.asarray(one)[None], self.many, 0) for one in (state, reward, ended, truncated)]
        return (*many, info)


class Tensors(VectorEnv[Any, Any, Any]):
    """Clocks in tensors of torch, that reset in the same step and keep what was reached as ManiSkill does."""

    def __init__(self, num_envs: int = 3) -> None:
        self.metadata = {"autoreset_mode": AutoresetMode.SAME_STEP, "records_frame": True}
        self.num_envs, self.render_mode = num_envs, "rgb_array"
        self.single_observation_space = Clock().observation_space
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.single_action_space = Clock().action_space
        self.action_space = batch_space(self.single_action_space, num_envs)

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        self.times = torch.arange(self.num_envs) % 3
        return self._observed(), {}

    def step(self, actions: Any) -> Any:
        self.times = self.times + 1
        reached, times = self._observed(), self.times
        ended = times == 5
        infos = self._infos()
        if ended.any():
            last = self._infos()
            self.times = torch.where(ended, 0, times)
            infos = {**self._infos(), "final_observation": reached, "final_info": last, "_final_info": ended}
        return self._observed(), times.float(), ended, torch.zeros_like(ended), infos

    def _infos(self) -> dict[str, Any]:
        frames = self.times.to(torch.uint8)[:, None, None, None].expand(-1, 16, 16, 3)
        return {"frame": frames, "success": self.times == 5}

    def _observed(self) -> Any:
        return torch.stack([self.times, torch.full_like(self.times, 5), self.times], 1).float()


class Pool(VectorEnv[Any, Any, Any], gymnasium.Env[Any, Any]):  # type: ignore[misc]
    """An environment and a vector of them at the same time, whose spaces are those of one, as envpool's are."""

    metadata = {"render_modes": ["rgb_array"], "autoreset_mode": AutoresetMode.NEXT_STEP}
    num_envs, render_mode, spec = 3, "rgb_array", None
    single_observation_space = observation_space = Clock().observation_space
    single_action_space = action_space = Clock().action_space

    def __init__(self, told: int = 3) -> None:
        self.told = told

    @property
    def unwrapped(self) -> Any:
        return self

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        self.times = np.arange(3) % 2
        return self._observed(), {"env_id": np.arange(3)}

    def step(self, actions: Any) -> Any:
        self.times = np.where(self.times == 5, 0, self.times + 1)
        ended = (self.times == 5)[: self.told]
        return (
            self._observed(),
            self.times.astype(np.float32)[: self.told],
            ended,
            np.zeros_like(ended),
            {"env_id": np.arange(3)},
        )

    def render(self) -> Any:
        return np.stack([np.full((16, 16, 3), time, np.uint8) for time in self.times])

    def _observed(self) -> np.ndarray:
        return np.stack([self.times, np.full(3, 5), self.times], axis=1).astype(np.float32)
