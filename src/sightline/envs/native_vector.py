"""Environments that simulate many of themselves at once: Gymnasium's own vectors, with frames, for `FrameVectorEnv`.

An environment offers this by a `vector_entry_point` in its registration, a class of `gymnasium.vector.VectorEnv` with
autoreset disabled and the attribute `resets_each = True`. By that it promises to keep to what `SyncVectorEnv` does:
`reset` takes one seed for each environment, and `options={"reset_mask": bool[N]}`, which says of which. Vector entry
points without the attribute are never used: what they take and when they reset differs from package to package.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium.envs.registration import EnvSpec, load_env_creator
from gymnasium.vector import VectorEnv

from sightline.envs.frames import checked_frame
from sightline.envs.observations import misfit
from sightline.envs.stepping import EnvDescription, Step
from sightline.errors import BadInput, RunFailed, reason_and_place


def native_vector_class(spec: EnvSpec) -> Any | None:
    """The class that simulates many of a registered environment at once, if it promises what is needed here."""
    entry: Any = spec.vector_entry_point
    if isinstance(entry, str):
        try:
            entry = load_env_creator(entry)
        except (ImportError, AttributeError):  # of a package that is missing, and needed for vectors only
            return None
    if getattr(entry, "resets_each", False) is not True:
        return None
    return entry


class NativeVector:
    """An environment that simulates N of itself, checked as `sightline.envs.stepping.CheckedEnv` checks one.

    Attributes:
        description: of one of the environments.

    Args:
        envs: the environments; autoreset must be disabled.
        frames: whether frames are wanted.
        name: of the environment, in error messages.
    """

    def __init__(self, envs: VectorEnv[Any, Any, Any], frames: bool, name: str) -> None:
        self._envs: Any = envs  # Gymnasium's base class knows of no seeds of single environments
        self._name = name
        self._shape: tuple[int, ...] | None = None
        """Of the frames of all environments, [N, H, W, 3]."""
        frame_shape = None
        if frames:
            envs.reset(seed=0)
            self._shape = self.frames().shape
            frame_shape = self._shape[1:]
        rate = int(envs.metadata.get("render_fps") or 30)
        self.description = EnvDescription(envs.single_observation_space, envs.single_action_space, frame_shape, rate)

    def reset(self, seeds: Mapping[int, int]) -> list[np.ndarray]:
        """Begin new episodes of some environments, by their seeds; returns their first states."""
        mask = np.zeros(self._envs.num_envs, bool)
        mask[list(seeds)] = True
        with self._failing_in("reset()"):
            all_seeds = [seeds.get(i) for i in range(len(mask))]
            states, _ = self._envs.reset(seed=all_seeds, options={"reset_mask": mask})
        self._check(states)
        return [np.array(states[i]) for i in seeds]

    def step(self, actions: np.ndarray, draws: bool) -> list[Step]:
        """Step all environments, and render the states reached if `draws`."""
        with self._failing_in("step()"):
            states, rewards, terminated, truncated, info = self._envs.step(actions)
        if not np.isfinite(rewards).all():
            raise self._failure("returned a reward that is not finite")
        self._check(states)
        frames: Sequence[np.ndarray | None] = [None] * len(rewards)
        if draws:
            frames = list(self.frames())
        arrays = {key: np.asarray(values) for key, values in info.items()}
        truths = {key: values for key, values in arrays.items() if values.dtype == bool}
        steps = []
        for i in range(len(rewards)):
            step = Step(
                state=np.array(states[i]),
                frame=frames[i],
                reward=float(rewards[i]),
                terminated=bool(terminated[i]),
                truncated=bool(truncated[i]),
                flags={key: bool(values[i]) for key, values in truths.items()},
            )
            steps.append(step)
        return steps

    def replay(self, seeds: Sequence[int], histories: Sequence[Sequence[Any]]) -> np.ndarray:
        """Restore unfinished episodes: the states after each environment's actions, [N, …].

        All environments end their replay with the same step; one with fewer actions is reset to its seed later.
        """
        longest = max(map(len, histories))
        idle = np.stack([np.zeros_like(self.description.action_space.sample())] * len(histories))
        # Every step is one of all environments:
        #
        #     environment 0    reset a a a a a
        #     environment 1    idle  . . reset a a      begins = 3
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

    def frames(self) -> np.ndarray:
        """Render the present states: uint8[N, H, W, 3]."""
        with self._failing_in("render()"):
            rendered: Any = self._envs.render()
        frames = np.stack([checked_frame(frame) for frame in rendered])
        if self._shape is not None and frames.shape != self._shape:
            raise self._failure(f"rendered frames of {self._shape[1:3]} first and now of {frames.shape[1:3]}")
        return frames

    def close(self) -> None:
        """Close the environments."""
        self._envs.close()

    @contextlib.contextmanager
    def _failing_in(self, method: str) -> Iterator[None]:
        try:
            yield
        except (BadInput, RunFailed):
            raise
        except (Exception, SystemExit) as error:
            raise self._failure(f"failed in {method}: {reason_and_place(error)}") from error

    def _check(self, states: np.ndarray) -> None:
        wrong = misfit(self._envs.observation_space, states)
        if wrong is not None:
            raise self._failure(f"returned observations {wrong}")

    def _failure(self, what: str) -> RunFailed:
        return RunFailed(f"the environments ('{self._name}') {what}; fix the environment, then resume with --resume")
