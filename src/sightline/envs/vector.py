"""Vector environments with frames: N copies of an environment, and a frame of every state that a step reached.

Gymnasium's `SyncVectorEnv` and `AsyncVectorEnv` do the stepping. Their autoreset is disabled: it would replace the last
state of an episode by the first one of the next before a frame of it could be rendered, and this last frame is often
the only one that shows success.

    autoreset by Gymnasium    step ──► s_T ──► reset ──► s'_0 ──► render: shows s'_0, not what the action did
    here                      step ──► s_T ──► render: the frame of s_T ──► reset ──► s'_0, returned as the next state

Every episode has a seed of its own, so an unfinished episode can be restored in any process by a reset with its seed
and its actions.
"""

from __future__ import annotations

import atexit
import contextlib
import math
import multiprocessing
import signal
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv

from sightline.envs.frames import rgb_frame, to_array
from sightline.envs.observations import Misfit, Observations, copied, misfit, same
from sightline.envs.success import with_success
from sightline.errors import BadInput, RunFailed, reason_of

DEAD = (EOFError, ConnectionError)
"""What is raised by the pipe to a process that died."""
DEATHS, WITHIN = 4, 1_000
"""So many deaths of processes within so many steps are too many."""
MakeEnv = Callable[[], "gymnasium.Env[Any, Any]"]
EpisodeSeed = Callable[[int, int], int]
"""(environment index, number of its episodes before this one) -> seed of the episode."""
Shrink = Callable[[np.ndarray], np.ndarray]
"""Frames uint8[N, H, W, 3] -> smaller ones, uint8[N, h, w, 3], whose size depends on theirs alone."""


def episode_seeds(run_seed: int) -> EpisodeSeed:
    """Independent seeds for every episode of every environment of a run.

    A seed depends on the run's seed and on the episode's place alone, not on how fast other environments were.
    """

    def episode_seed(env: int, episode: int) -> int:
        return int(np.random.SeedSequence([run_seed, env, episode]).generate_state(1)[0])

    return episode_seed


class FrameAndState(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Wrapper that adds the rendered frame to the observation: `{"state": …, "frame": uint8[H, W, 3]}`.

    Only steps render: the frame after a reset belongs to no transition and is black, as are those of steps while
    `renders` is False. With `reset(options={"replay": actions})` the actions are repeated after the reset, without
    rendering.

    Observations and rewards are checked: a single NaN would spoil the replay buffer, and all that is learned from it.

    Args:
        env: the environment.
        frames: render after every step.
        name: name of the environment in error messages.
        advice: last words of error messages.
        shrink: makes frames smaller as soon as they are taken; None keeps their size.

    Raises:
        RunFailed: the environment raised an error, rendered anything but frames uint8[H, W, 3] of one size, or
            returned an observation or a reward that is not finite. The message names environment, seed and step.
    """

    def __init__(
        self,
        env: gymnasium.Env[Any, Any],
        frames: bool,
        name: str = "the environment",
        advice: str = "fix it",
        shrink: Shrink | None = None,
    ) -> None:
        super().__init__(env)
        self._name, self._advice, self._shrink = name, advice, shrink
        self._seed: int | None = None
        self._step = 0
        self._space = env.observation_space
        parts: dict[str, spaces.Space[Any]] = {"state": env.observation_space}
        self.renders = frames
        self._blank_frame: np.ndarray | None = None
        if frames:
            # Some renderers need a reset first. Seed 0 does no harm: every episode is reset with its own seed.
            self._checked_reset(0)
            first = rgb_frame(env)
            self._rendered_shape = first.shape
            self._blank_frame = np.zeros_like(self._shrunk(first))
            parts["frame"] = spaces.Box(0, 255, self._blank_frame.shape, np.uint8)
        self.observation_space = spaces.Dict(parts)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        state, info = self._checked_reset(seed)
        for action in (options or {}).get("replay", ()):
            state, _, _, _, info = self._checked_step(action)
        return self._observation(state, self._blank_frame), info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        state, reward, terminated, truncated, info = self._checked_step(action)
        frame = self.frame() if self.renders else self._blank_frame
        return self._observation(state, frame), reward, terminated, truncated, info

    def frame(self) -> np.ndarray:
        """Render the present state: uint8[H, W, 3], of the size that every frame has."""
        assert self._blank_frame is not None, "an environment with frames"
        return self._shrunk(self._checked_frame(self._rendered_shape))

    def _shrunk(self, frame: np.ndarray) -> np.ndarray:
        return frame if self._shrink is None else self._shrink(frame[None])[0]

    def _checked_reset(self, seed: int | None) -> tuple[Any, dict[str, Any]]:
        self._seed, self._step = seed, 0
        try:
            state, info = self.env.reset(seed=seed)
        except (BadInput, RunFailed):
            raise  # our own environments say it in one line already
        except Misfit as error:
            raise self._failure(f"returned an observation {error}") from None
        except Exception as error:
            raise self._failure(f"failed in reset(): {reason_of(error)}") from error
        self._check_observation(state)
        return state, info

    def _checked_step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        self._step += 1
        try:
            state, reward, terminated, truncated, info = self.env.step(action)
        except BadInput:
            raise  # it says what to do
        except Misfit as error:
            raise self._failure(f"returned an observation {error}") from None
        except Exception as error:
            raise self._failure(f"failed in step(): {reason_of(error)}") from error
        self._check_observation(state)
        number = scalar_reward(reward)
        if number is None:
            raise self._failure(f"returned a reward that is not a number: {reward!r:.60}")
        if not math.isfinite(number):
            raise self._failure(f"returned a reward that is {'NaN' if math.isnan(number) else 'infinite'}")
        return state, number, terminated, truncated, with_success(info, self._name)

    def _check_observation(self, state: Any) -> None:
        wrong = misfit(self._space, state)
        if wrong is not None:
            raise self._failure(f"returned an observation {wrong}")

    def _checked_frame(self, shape: tuple[int, ...]) -> np.ndarray:
        frame = rgb_frame(self.env)
        if frame.shape != shape:
            sizes = [f"{height}x{width}" for height, width, _ in (shape, frame.shape)]
            # Frames go into shared memory and into the chunk's buffer, both of a fixed shape.
            raise self._failure(f"rendered frames of {sizes[0]} first and now one of {sizes[1]}; keep to one size")
        return frame

    def _failure(self, what: str) -> RunFailed:
        when = f"step {self._step} of the episode" if self._step else "the beginning of the episode"
        return RunFailed(f"{self._name} {what} (at {when} with seed {self._seed}); {self._advice}")

    @staticmethod
    def _observation(state: Any, frame: np.ndarray | None) -> dict[str, Any]:
        return {"state": state} if frame is None else {"state": state, "frame": frame}


def scalar_reward(reward: Any) -> float | None:
    """An environment's own reward as a number; None if it is none, such as None itself, a vector or text.

    Numbers and arrays of size 1 are taken, of numpy, torch or JAX, on any device. The number may be NaN or infinite.
    """
    numbers = to_array(reward)
    if numbers.size != 1 or numbers.dtype.kind not in "biufO":
        return None
    try:
        return float(numbers.reshape(-1)[0])
    except (TypeError, ValueError, OverflowError):  # an object of another kind, or a whole number beyond all floats
        return None


@dataclass(frozen=True)
class Transitions:
    """Result of one step of N environments.

    Attributes:
        states: [N, …], states that the next step starts from: the first of a new episode where one ended. They are
            arrays by name where a policy reads several parts (`sightline.envs.observations`).
        final_states: [N, …], states that this step reached, before any reset.
        frames: uint8[N, H, W, 3], frames of `final_states`, or None without frames. Valid until the next step.
        rewards: float64[N], the environments' own rewards.
        terminated, truncated: bool[N]. Learners bootstrap from `final_states` where an episode was truncated only.
        info: the environments' infos, as one array [N] per key.
        first: bool[N], whether the step was the first of its episode.
    """

    states: Observations
    final_states: Observations
    frames: np.ndarray | None
    rewards: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray
    info: dict[str, Any]
    first: np.ndarray

    @property
    def ended(self) -> np.ndarray:
        """bool[N], true where an episode was terminated or truncated."""
        ended: np.ndarray = self.terminated | self.truncated
        return ended

    def flag(self, name: str) -> np.ndarray | None:
        """Boolean info by its key: bool[N]; None if no environment has it."""
        return None if name not in self.info else np.asarray(self.info[name], dtype=bool)

    @property
    def success(self) -> np.ndarray | None:
        """Success in the states reached, bool[N], from the info `success` or else `is_success`; None without either."""
        success = self.flag("success")
        return self.flag("is_success") if success is None else success


class FrameVectorEnv:
    """Vector environment that renders every state reached and resets finished episodes itself.

    A worker process that dies, of too little memory or a fault in a simulator, does not end the run: all workers are
    started again, their episodes are restored, and the step is repeated.

    Attributes:
        count: number of environments, N.
        state_space: observation space of one environment.
        action_space: action space of one environment.
        episodes: index of the present episode of each environment; -1 before the first reset.
        actions: actions of the present episode of each environment, for `restore`.
        restarts: how often workers were started again.

    Args:
        make: function that makes one environment; must be picklable for `workers="processes"`.
        count: number of environments.
        episode_seed: seeds of the episodes.
        frames: render after every step.
        shrink: makes frames smaller as soon as they are taken (`sightline.rewards.base.frame_shrinker`); None keeps
            their size.
        workers: `inline` steps them in this process (all at once where `make` can, by its method `vectorised`);
            `processes` each in a spawned process of its own, with observations in shared memory.

    Raises:
        RunFailed: an environment failed; see `FrameAndState`. Or processes died again and again, or one did whose
            environment does not repeat itself.
    """

    def __init__(
        self,
        make: MakeEnv,
        count: int,
        episode_seed: EpisodeSeed,
        frames: bool = True,
        workers: Literal["inline", "processes"] = "inline",
        shrink: Shrink | None = None,
    ) -> None:
        self.count = count
        self._episode_seed = episode_seed
        # Some environments simulate many of themselves at once; see `sightline.envs.vectorised`.
        vectorised = None if workers == "processes" else getattr(make, "vectorised", lambda *_: None)(count, frames)
        # What shrinks frames may be a large model, so that worker processes hand over whole frames.
        inline = workers == "inline" and vectorised is None
        self._factories = [_EnvFactory(make, frames, i, count, shrink if inline else None) for i in range(count)]
        self._shrink = None if inline else shrink
        if vectorised is not None:
            self._envs: Any = vectorised
        elif workers == "processes":
            self._start_workers()
        else:
            self._envs = SyncVectorEnv(self._factories, copy=False, autoreset_mode=AutoresetMode.DISABLED)
        self.restarts = 0
        self._deaths: deque[int] = deque(maxlen=DEATHS)
        self._steps = 0
        self.state_space: spaces.Space[Any] = self._envs.single_observation_space["state"]
        self.action_space: spaces.Space[Any] = self._envs.single_action_space
        self.episodes = [-1] * count
        self.actions: list[list[Any]] = [[] for _ in range(count)]
        self._has_frames = self._renders = frames
        self._states: Observations = np.empty(0)

    def _start_workers(self) -> None:
        # Spawned, not forked: OpenGL and torch's threads do not survive a fork. Without copies, observations are views
        # of the shared memory, which the next step overwrites; `step` copies what has to last.
        with _report_dead_workers():
            self._envs = AsyncVectorEnv(
                self._factories, context="spawn", copy=False, autoreset_mode=AutoresetMode.DISABLED
            )
        # Before multiprocessing's own clean-up, which would wait for workers that ignore SIGTERM.
        atexit.register(self.close)

    @property
    def frame_shape(self) -> tuple[int, int, int]:
        """Height, width and channels (3) of a frame, once it is made smaller."""
        blank = np.zeros((1, *self._envs.single_observation_space["frame"].shape), np.uint8)
        height, width, channels = self._shrunk(blank).shape[1:]
        return height, width, channels

    @property
    def frames_per_second(self) -> int:
        """Frame rate for videos: the environment's `render_fps`, else 30."""
        return int(self._envs.metadata.get("render_fps") or 30)

    def reset(self) -> Observations:
        """Reset every environment to a new episode; returns the states, [N, …]."""
        with _report_dead_workers():
            self._states = self._begin_episodes(np.ones(self.count, bool))
        return self._states

    def step(self, actions: np.ndarray, frames: bool = True) -> Transitions:
        """Step every environment, then reset those whose episode ended.

        Args:
            actions: [N, …], one action per environment.
            frames: False renders only if an episode ends with this step, since its last state cannot be seen later.
        """
        episodes, histories = list(self.episodes), [(history, len(history)) for history in self.actions]
        self._steps += 1
        while True:
            try:
                return self._step(actions, frames)
            except DEAD as error:
                self._restart(episodes, [history[:length] for history, length in histories], error)

    def _step(self, actions: np.ndarray, frames: bool) -> Transitions:
        first = np.array([not history for history in self.actions])
        for history, action in zip(self.actions, actions, strict=True):
            history.append(action)
        if self._renders != (frames and self._has_frames):
            self._renders = not self._renders
            self._envs.set_attr("renders", self._renders)
        observation, rewards, terminated, truncated, info = self._envs.step(actions)
        # Both are of the states reached: the frame was rendered inside of the step (`FrameAndState.step`), and no reset
        # has happened yet.
        final_states = copied(observation["state"])
        shown: np.ndarray | None = self._shrunk(observation["frame"]) if self._renders else None
        ended = terminated | truncated
        states = final_states
        if ended.any():
            if shown is not None and np.may_share_memory(shown, observation["frame"]):
                # The reset writes black frames into the same memory, over the last frames of the episodes that ended.
                shown = shown.copy()
            elif shown is None and self._has_frames:
                shown = self._shrunk(np.stack(self._envs.call("frame")))
            states = self._begin_episodes(ended)
        self._states = states
        return Transitions(
            states, final_states, shown, rewards.copy(), terminated.copy(), truncated.copy(), info, first
        )

    def _shrunk(self, frames: np.ndarray) -> np.ndarray:
        return frames if self._shrink is None else self._shrink(frames)

    def _begin_episodes(self, mask: np.ndarray) -> Observations:
        """Begin the next episode where `mask` (bool[N]) is true; returns all states, [N, …]."""
        for i in np.flatnonzero(mask):
            self.episodes[i] += 1
            self.actions[i] = []
        return self._reset_where(mask, {})

    def _reset_where(self, mask: np.ndarray, options: dict[str, Any]) -> Observations:
        # Gymnasium's own way to reset some environments: `reset_mask`. The others keep their observations.
        seeds = [self._episode_seed(i, episode) if mask[i] else None for i, episode in enumerate(self.episodes)]
        observation, _ = self._envs.reset(seed=seeds, options={"reset_mask": mask.copy(), **options})
        return copied(observation["state"])

    def restore(self, episodes: Sequence[int], actions: Sequence[Sequence[Any]]) -> Observations:
        """Restore unfinished episodes by replaying them: reset each with its seed and repeat its actions.

        Args:
            episodes: index of each environment's episode, as in the attribute `episodes`.
            actions: actions of each environment's episode so far, as in the attribute `actions`.

        Returns:
            The states reached, [N, …]. If the environments are deterministic, they equal those before.
        """
        with _report_dead_workers():
            self._states = self._replay(episodes, actions)
        return self._states

    def _replay(self, episodes: Sequence[int], actions: Sequence[Sequence[Any]]) -> Observations:
        self.episodes = list(episodes)
        self.actions = [list(history) for history in actions]
        if hasattr(self._envs, "replay"):
            states = self._envs.replay([self._episode_seed(*place) for place in enumerate(self.episodes)], self.actions)
            return np.array(states)
        states = self._reset_where(np.ones(self.count, bool), {})
        # One at a time, since the replayed actions are passed as an option, which all reset environments share.
        for i in range(self.count):
            mask = np.zeros(self.count, bool)
            mask[i] = True
            states = self._reset_where(mask, {"replay": self.actions[i]})
        return states

    def _restart(self, episodes: Sequence[int], actions: Sequence[Sequence[Any]], error: Exception) -> None:
        """Start the workers again, after one died, with their episodes as they were before the present step."""
        self._deaths.append(self._steps)
        if len(self._deaths) == DEATHS and self._steps - self._deaths[0] < WITHIN:
            raise RunFailed(
                f"the process of an environment died {DEATHS} times within {WITHIN} steps (out of memory?); "
                "resume from the last checkpoint with --resume, with fewer environments"
            ) from error
        self.restarts += 1
        self.close()
        self._start_workers()
        self._renders = self._has_frames
        before = self._states
        with _report_dead_workers():
            states = self._replay(episodes, actions)
        if not same(states, before):
            raise RunFailed(
                "the process of an environment died (out of memory?), and the environment does not repeat itself from "
                "its seed; resume from the last checkpoint with --resume"
            ) from error

    def close(self) -> None:
        """Close the environments and end their processes; calling it again does nothing."""
        if self._envs.closed:
            return
        # The pipe to a worker that died is broken, which must not hide why it died.
        with contextlib.suppress(Exception):
            self._envs.close()
        self._envs.closed = True
        for process in getattr(self._envs, "processes", ()):
            process.kill()
            process.join()
        atexit.unregister(self.close)


@contextlib.contextmanager
def _report_dead_workers() -> Iterator[None]:
    try:
        yield
    except DEAD as error:
        raise RunFailed(
            "the process of an environment died (out of memory?); resume from the last checkpoint with --resume"
        ) from error


def leave_stops_to_parent() -> None:
    """Ignore SIGINT and SIGTERM in a worker process.

    Ctrl-C and a job scheduler's SIGTERM reach the whole process group. The parent process saves a checkpoint, for which
    it needs its workers, and then ends them.
    """
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)


@dataclass(frozen=True)
class _EnvFactory:
    """Environment factory without arguments that can be pickled, as worker processes need it."""

    make: MakeEnv
    frames: bool
    index: int
    count: int
    shrink: Shrink | None = None

    def __call__(self) -> gymnasium.Env[Any, Any]:
        if multiprocessing.parent_process() is not None:
            leave_stops_to_parent()
        env_id = getattr(self.make, "env_id", None)
        name = f"environment {self.index + 1} of {self.count}" + (f" ('{env_id}')" if env_id else "")
        return FrameAndState(self.make(), self.frames, name, "fix it, then resume with --resume", self.shrink)
