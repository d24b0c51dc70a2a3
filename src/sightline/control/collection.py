"""Rollout collection: our environments as Stable-Baselines3's vector environments, and the frames beside them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from gymnasium import spaces
from stable_baselines3.common.vec_env import VecEnv

from sightline.envs.vector import FrameVectorEnv
from sightline.evaluation.episode_stats import EpisodeStats
from sightline.evaluation.episodes import stacked, step_clip
from sightline.rewards.base import Clip


class SpacesVecEnv(VecEnv):
    """Vector environment with spaces and nothing to step, for building a learner that only acts.

    Args:
        count: number of environments.
        state_space, action_space: of one of them.
    """

    def __init__(self, count: int, state_space: spaces.Space[Any], action_space: spaces.Space[Any]) -> None:
        super().__init__(count, state_space, action_space)

    def reset(self) -> np.ndarray:
        raise NotImplementedError

    def step_async(self, actions: np.ndarray) -> None:
        raise NotImplementedError

    def step_wait(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, list[dict[str, Any]]]:
        raise NotImplementedError

    def close(self) -> None:
        return None

    # The rest of SB3's interface reaches into single environments, which nothing here needs.
    def get_attr(self, attr_name: str, indices: Any = None) -> list[Any]:
        if attr_name == "render_mode":
            return [None] * self.num_envs
        raise AttributeError(attr_name)

    def set_attr(self, attr_name: str, value: Any, indices: Any = None) -> None:
        raise NotImplementedError

    def env_method(self, method_name: str, *args: Any, indices: Any = None, **kwargs: Any) -> list[Any]:
        raise NotImplementedError

    def env_is_wrapped(self, wrapper_class: Any, indices: Any = None) -> list[bool]:
        return [False] * self.num_envs

    def seed(self, seed: int | None = None) -> Sequence[int | None]:
        """Do nothing: episodes have their own seeds."""
        return [None] * self.num_envs


class CollectingVecEnv(SpacesVecEnv):
    """Adapter of a `FrameVectorEnv` to SB3 that keeps the present chunk as a clip.

    Two chunks' worth of frames are allocated once: one is filled while the other is being embedded.

    Args:
        envs: what is stepped.
        chunk: vector steps in a chunk.
        frames: whether frames are wanted.
    """

    def __init__(self, envs: FrameVectorEnv, chunk: int, frames: bool) -> None:
        self.envs = envs
        self.stats = EpisodeStats(envs.count)
        self.finished: list[dict[str, float]] = []
        self._frames = (
            [np.zeros((chunk, envs.count, *envs.frame_shape), np.uint8) for _ in range(2)] if frames else None
        )
        self._every_env = np.arange(envs.count)
        self._turn = 0
        self._steps: list[dict[str, np.ndarray]] = []
        self._actions = np.empty(0)
        super().__init__(envs.count, envs.state_space, envs.action_space)

    def take_clip(self) -> Clip:
        """The steps since the last call; their frames are valid until the call after the next."""
        steps, self._steps = self._steps, []
        arrays = stacked(steps)
        if self._frames is not None:
            arrays["frames"] = self._frames[self._turn][: len(steps)]
            self._turn = 1 - self._turn
        return Clip.of_arrays(arrays)

    def take_finished(self) -> list[dict[str, float]]:
        """The episodes that ended since the last call."""
        finished, self.finished = self.finished, []
        return finished

    def reset(self) -> np.ndarray:
        return self.envs.reset()

    def step_async(self, actions: np.ndarray) -> None:
        self._actions = actions

    def step_wait(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, list[dict[str, Any]]]:
        step = self.envs.step(self._actions)
        if self._frames is not None and step.frames is not None:
            self._frames[self._turn][len(self._steps)] = step.frames
        self._steps.append({name: array for name, array in step_clip(step).items() if name != "frames"})
        ended = step.ended
        self.stats.add(self._every_env, step.rewards, step.success)
        self.finished += self.stats.take(np.flatnonzero(ended))
        infos: list[dict[str, Any]] = [{} for _ in range(self.num_envs)]
        for i in np.flatnonzero(ended):
            infos[i] = {
                "terminal_observation": step.final_states[i],
                "TimeLimit.truncated": bool(step.truncated[i] and not step.terminated[i]),
            }
        return step.states, step.rewards.astype(np.float32), ended, infos

    def close(self) -> None:
        self.envs.close()
