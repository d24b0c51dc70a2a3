"""Frames of the states that steps lead to, taken before a vector environment can reset them.

This module imports little: it is what the worker processes of vector environments load.
"""

from __future__ import annotations

import copy
from typing import Any

import gymnasium
from gymnasium.utils import RecordConstructorArgs

from sightline.envs.frames import rendered_by, to_array

RECORDS_FRAME = "records_frame"
"""Key of an environment's metadata: its infos hold `frame`."""


class Camera(gymnasium.Wrapper[Any, Any, Any, Any], RecordConstructorArgs):
    """Renders after every step, and after a reset if asked to, and keeps the frames, for whoever steps the environment
    in the same process.

    The last observation of an episode is a copy: some simulators write all of them into one array, and the vector's
    reset would overwrite it.

    Args:
        renders: False only copies.
        resets: render after a reset, too.

    Attributes:
        frame: a copy of what `render()` returned after the last step.
        reset_frame: the same after the last reset.
    """

    def __init__(self, env: gymnasium.Env[Any, Any], renders: bool = True, resets: bool = False) -> None:
        RecordConstructorArgs.__init__(self)
        gymnasium.Wrapper.__init__(self, env)
        self.frame: Any = None
        self.reset_frame: Any = None
        self._renders = renders
        self._renders_resets = resets

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        observation, info = self.env.reset(seed=seed, options=options)
        if self._renders_resets:
            self.reset_frame = _rendered(self.env)
        return observation, info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        observation, reward, terminated, truncated, info = self.env.step(action)
        if self._renders:
            self.frame = _rendered(self.env)
        if terminated or truncated:
            observation = copy.deepcopy(observation)
        return observation, reward, terminated, truncated, info


class RecordFrame(Camera):
    """Puts the frame of each state reached, and of each first state, into `info["frame"]`.

    For vector environments whose worker processes reset by themselves: by the time the parent could ask for a picture,
    the last state of an episode is gone.

    >>> envs = gymnasium.make_vec(
    ...     "CartPole-v1", 4, "async", {"autoreset_mode": "SameStep"}, wrappers=[RecordFrame], render_mode="rgb_array"
    ... )
    >>> envs = SubprocVecEnv([lambda: RecordFrame(gymnasium.make("CartPole-v1", render_mode="rgb_array"))] * 4)

    Args:
        env: an environment made with `render_mode="rgb_array"`.
    """

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        super().__init__(env, resets=True)
        # Vector environments hand their environments' metadata on to the parent, so `wrap` knows without a step.
        self.metadata = {**env.metadata, RECORDS_FRAME: True}

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        observation, info = super().reset(seed=seed, options=options)
        return observation, {**info, "frame": self.reset_frame}

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        observation, reward, terminated, truncated, info = super().step(action)
        return observation, reward, terminated, truncated, {**info, "frame": self.frame}


def _rendered(env: gymnasium.Env[Any, Any]) -> Any:
    # Some environments draw on one canvas all the time, and the reset that follows would draw over this frame.
    # Its form is checked where it is read: an exception here would end a worker process.
    frame = rendered_by(env)
    if frame is None:
        return None
    return to_array(frame).copy()
