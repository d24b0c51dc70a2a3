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
    """Renders after every step and keeps the frame, for whoever steps the environment in the same process.

    The last observation of an episode is a copy: some simulators write all of them into one array, and the vector's
    reset would overwrite it.

    Args:
        renders: False only copies.

    Attributes:
        frame: a copy of what `render()` returned after the last step.
    """

    def __init__(self, env: gymnasium.Env[Any, Any], renders: bool = True) -> None:
        RecordConstructorArgs.__init__(self)
        gymnasium.Wrapper.__init__(self, env)
        self.frame: Any = None
        self._renders = renders

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
        super().__init__(env)
        # Vector environments hand their environments' metadata on to the parent, so `wrap` knows without a step.
        self.metadata = {**env.metadata, RECORDS_FRAME: True}

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        observation, info = self.env.reset(seed=seed, options=options)
        return observation, {**info, "frame": _rendered(self.env)}

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
