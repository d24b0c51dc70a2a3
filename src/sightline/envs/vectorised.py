"""Environments that simulate many of themselves at once, with frames, as `FrameVectorEnv` steps them.

An environment offers this by Gymnasium's own means: a `vector_entry_point` in its registration, which makes a
`gymnasium.vector.VectorEnv` with autoreset disabled. It must keep to what `SyncVectorEnv` does then: `reset` takes one
seed for each environment, and `options={"reset_mask": bool[N]}`, which says of which.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from gymnasium import spaces
from gymnasium.vector import VectorEnv

from sightline.envs.frames import checked_frame
from sightline.envs.observations import misfit
from sightline.errors import BadInput, RunFailed, reason_of


class VectorisedFrames:
    """Frames beside the observations of a vectorised environment, `{"state": [N, …], "frame": uint8[N, H, W, 3]}`.

    It does for N environments at once what `sightline.envs.vector.FrameAndState` does for one, with the same
    checks, and has those methods of Gymnasium's vector environments that `FrameVectorEnv` calls.

    Attributes:
        renders: render after every step.

    Args:
        envs: the environments; autoreset must be disabled.
        frames: whether frames are wanted.
        name: of the environment, in error messages.
    """

    def __init__(self, envs: VectorEnv[Any, Any, Any], frames: bool, name: str) -> None:
        self._envs: Any = envs  # Gymnasium's base class knows of no seeds of single environments
        self._name = name
        self.renders, self.closed = frames, False
        self.metadata = envs.metadata
        self.single_action_space = envs.single_action_space
        parts: dict[str, spaces.Space[Any]] = {"state": envs.single_observation_space}
        self._blank: np.ndarray | None = None
        if frames:
            envs.reset(seed=0)
            self._blank = np.zeros_like(self._frames())
            parts["frame"] = spaces.Box(0, 255, self._blank.shape[1:], np.uint8)
        self.single_observation_space = spaces.Dict(parts)

    def reset(self, *, seed: Sequence[int | None], options: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        """Begin new episodes of those environments that `options["reset_mask"]` says."""
        try:
            states, info = self._envs.reset(seed=list(seed), options=options)
        except (BadInput, RunFailed):
            raise
        except Exception as error:
            raise self._failure(f"failed in reset(): {reason_of(error)}") from error
        return self._observation(states, self._blank), info

    def step(self, actions: np.ndarray) -> tuple[Any, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        """Step all environments."""
        try:
            states, rewards, terminated, truncated, info = self._envs.step(actions)
        except (BadInput, RunFailed):
            raise
        except Exception as error:
            raise self._failure(f"failed in step(): {reason_of(error)}") from error
        if not np.isfinite(rewards).all():
            raise self._failure("returned a reward that is not finite")
        frames = self._frames() if self.renders else self._blank
        return self._observation(states, frames), rewards, terminated, truncated, info

    def replay(self, seeds: Sequence[int], histories: Sequence[Sequence[Any]]) -> np.ndarray:
        """Restore unfinished episodes: the states after each environment's actions, [N, …].

        All environments end their replay with the same step; one with fewer actions is reset to its seed later.
        """
        longest = max(map(len, histories))
        idle = np.stack([np.zeros_like(self.single_action_space.sample())] * len(histories))
        begins = np.array([longest - len(history) for history in histories])
        states, _ = self._envs.reset(seed=list(seeds))
        for time in range(longest + 1):
            starting = begins == time
            if starting.any():
                states, _ = self._envs.reset(seed=list(seeds), options={"reset_mask": starting})
            if time < longest:
                actions = idle.copy()
                for i in np.flatnonzero(begins <= time).tolist():
                    actions[i] = histories[i][time - int(begins[i])]
                states = self._envs.step(actions)[0]
        return np.array(states)

    def set_attr(self, name: str, value: Any) -> None:
        """Set one of the attributes of this class."""
        setattr(self, name, value)

    def call(self, name: str) -> tuple[np.ndarray, ...]:
        """`call("frame")`: render the present states, N times uint8[H, W, 3]."""
        assert name == "frame"
        return tuple(self._frames())

    def close(self) -> None:
        """Close the environments."""
        self._envs.close()

    def _frames(self) -> np.ndarray:
        try:
            rendered: Any = self._envs.render()
        except RunFailed:
            raise
        except Exception as error:
            raise self._failure(f"could not render: {reason_of(error)}") from error
        frames = np.stack([checked_frame(frame) for frame in rendered])
        if self._blank is not None and frames.shape != self._blank.shape:
            raise self._failure(f"rendered frames of {self._blank.shape[1:3]} first and now of {frames.shape[1:3]}")
        return frames

    def _observation(self, states: np.ndarray, frames: np.ndarray | None) -> dict[str, np.ndarray]:
        wrong = misfit(self._envs.observation_space, states)
        if wrong is not None:
            raise self._failure(f"returned observations {wrong}")
        states = np.array(states)
        return {"state": states} if frames is None else {"state": states, "frame": frames}

    def _failure(self, what: str) -> RunFailed:
        return RunFailed(f"the environments ('{self._name}') {what}; fix the environment, then resume with --resume")
