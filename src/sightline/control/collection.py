"""Rollout collection: our environments as Stable-Baselines3's vector environments, and the frames beside them.

No wrapper of SB3 is around them. Observations are standardised by the policy itself, and only by on-policy ones with
`learner.standardise_observations` (`control/standardisation.py`, not `VecNormalize`). There is no frame stacking for
the policy (no `VecFrameStack`): one that has to see motion in pictures takes an environment that stacks them itself,
such as one in `gymnasium.wrappers.FrameStackObservation`. Reward models see several frames at once by their `window`.
Agents: a task's `frames` (`envs/tasks.py`) stacks the last pictures, `rollouts.window` shows earlier turns.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from gymnasium import spaces
from stable_baselines3.common.vec_env import VecEnv

from sightline.control.sizes import check_frames
from sightline.envs.frame_vector import FrameVectorEnv, Transitions
from sightline.envs.observations import Observations, picked
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

    def reset(self) -> Observations:
        raise NotImplementedError

    def step_async(self, actions: np.ndarray) -> None:
        raise NotImplementedError

    def step_wait(self) -> tuple[Observations, np.ndarray, np.ndarray, list[dict[str, Any]]]:
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


@dataclass(frozen=True)
class Chunk:
    """Consecutive steps of N environments, of which some are scored; the last one always is.

    Attributes:
        steps: all T steps, without frames.
        scored: int[S], which of them are scored, ascending.
        frames: uint8[S, N, H, W, 3] of these; None if nothing is rendered.
    """

    steps: Clip
    scored: np.ndarray
    frames: np.ndarray | None

    @property
    def clip(self) -> Clip:
        """The S scored steps, as a reward model sees them. Each stands for the steps since the one before, and its
        `env_reward` is their mean."""
        if len(self.scored) == len(self.steps.first):
            return replace(self.steps, frames=self.frames)
        assert self.steps.env_reward is not None, "environments have rewards"
        # Of 8 steps with `frames_every=3`, where an episode ends with step 3:
        #
        #     step     0  1  2  3  4  5  6  7
        #     scored         2  3     5     7
        #     starts   0        3  4     6         the first step that each scored one stands for
        starts = np.concatenate([[0], self.scored[:-1] + 1])
        arrays = {name: array[self.scored] for name, array in self.steps.arrays().items()}
        # Steps that end an episode are scored, so none but the first of those that a step stands for begins one.
        arrays["first"] = self.steps.first[starts]
        counts = (self.scored - starts + 1).astype(np.float32)
        arrays["env_reward"] = np.add.reduceat(self.steps.env_reward, starts, axis=0) / counts[:, None]
        past = self.steps.past
        if past is not None:
            # Reset frames come before the scored step that stands for the first of their episode.
            past = past.moved(np.searchsorted(self.scored, past.rows))
        return Clip(**arrays, frames=self.frames, past=past)

    def spread(self, rewards: np.ndarray) -> np.ndarray:
        """Rewards of the scored steps, [S, N], for all steps, [T, N]: each step gets that of the next scored one."""
        steps = np.arange(len(self.steps.first))
        next_scored = np.searchsorted(self.scored, steps)
        return np.asarray(rewards[next_scored])


class CollectingVecEnv(SpacesVecEnv):
    """Adapter of a `FrameVectorEnv` to SB3 that keeps the present chunk.

    Args:
        envs: what is stepped.
        chunk: vector steps in a chunk.
        frames: whether frames are rendered.
        every: steps from one that is scored, and rendered, to the next; a step that ends an episode is scored too.
        chunks_of_frames: chunks whose frames are kept; they are allocated once. With 2, one is filled while the other
            is being embedded.
    """

    def __init__(
        self, envs: FrameVectorEnv, chunk: int, frames: bool, every: int = 1, chunks_of_frames: int = 2
    ) -> None:
        self.envs = envs
        self.stats = EpisodeStats(envs.count)
        self.finished: list[dict[str, float]] = []
        self.diverged = 0
        self._every = every
        self._frames: list[np.ndarray] | None = None
        if frames:
            check_frames(envs.frame_shape, math.ceil(chunk / every), envs.count, chunks_of_frames)
            # Rows that are not scored are never touched, and take no memory.
            shape = (chunk, envs.count, *envs.frame_shape)
            self._frames = [np.zeros(shape, np.uint8) for _ in range(chunks_of_frames)]
        self._every_env = np.arange(envs.count)
        self._turn = 0
        self._steps: list[dict[str, np.ndarray]] = []
        self._scored: list[int] = []
        self._actions = np.empty(0)
        super().__init__(envs.count, envs.state_space, envs.action_space)

    def collect(self, actions: np.ndarray) -> Transitions:
        """Step every environment, and keep what a reward model sees of it."""
        place = len(self._steps)
        is_due = (place + 1) % self._every == 0
        # An episode's last frame is rendered in any case: it shows what the episode has come to.
        step = self.envs.step(actions, frames=is_due)
        if is_due or step.ended.any():
            if self._frames is not None and step.frames is not None:
                self._frames[self._turn][len(self._scored)] = step.frames
            self._scored.append(place)
        arrays = step_clip(step)
        arrays.pop("frames", None)
        self._steps.append(arrays)
        self.stats.add(self._every_env, step.rewards, step.success)
        self.finished += self.stats.take(np.flatnonzero(step.ended))
        diverged = step.flag("diverged")
        if diverged is not None:
            self.diverged += int(diverged.sum())
        return step

    @property
    def scored(self) -> int:
        """How many steps of the present chunk are to be scored, so far."""
        return len(self._scored)

    def newest(self, start: int) -> Clip:
        """The scored steps of the present chunk from number `start` on, so far."""
        begin = 0
        if start > 0:
            begin = self._scored[start - 1] + 1
        return self._chunk(begin, start).clip

    def take_chunk(self) -> Chunk:
        """The steps since the last call; the frames are overwritten `chunks_of_frames` chunks later."""
        chunk = self._chunk(0, 0)
        self._steps = []
        self._scored = []
        if self._frames is not None:
            self._turn = (self._turn + 1) % len(self._frames)
        return chunk

    def _chunk(self, begin: int, start: int) -> Chunk:
        """The present chunk from step `begin` on, which the scored steps before number `start` come before."""
        scored = np.array(self._scored[start:], np.int64) - begin
        frames = None if self._frames is None else self._frames[self._turn][start : len(self._scored)]
        return Chunk(stacked(self._steps[begin:]), scored, frames)

    def take_finished(self) -> list[dict[str, float]]:
        """The episodes that ended since the last call."""
        finished = self.finished
        self.finished = []
        return finished

    def take_diverged(self) -> int:
        """The number of episodes since the last call that ended because the environment's info `diverged` said so."""
        diverged = self.diverged
        self.diverged = 0
        return diverged

    def reset(self) -> Observations:
        return self.envs.reset()

    def step_async(self, actions: np.ndarray) -> None:
        self._actions = actions

    def step_wait(self) -> tuple[Observations, np.ndarray, np.ndarray, list[dict[str, Any]]]:
        step = self.collect(self._actions)
        infos: list[dict[str, Any]] = [{} for _ in range(self.num_envs)]
        # What SB3's algorithms read of an episode's end: the state before the reset, and whether a time limit was why.
        for i in np.flatnonzero(step.ended):
            infos[i] = {
                "terminal_observation": picked(step.final_states, i),
                "TimeLimit.truncated": bool(step.truncated[i] and not step.terminated[i]),
            }
        return step.states, step.rewards.astype(np.float32), step.ended, infos

    def close(self) -> None:
        self.envs.close()
