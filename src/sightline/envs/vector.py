"""Several copies of an environment stepped together: states, and frames of the very states that were reached.

Gymnasium's own vector environments do the work (in this process, or one process each with shared memory). Their
automatic reset is switched off: an episode's last frame is taken before its environment is reset.

Every episode has a seed of its own, so an unfinished episode can be brought back anywhere by replaying its actions.
"""

from __future__ import annotations

import atexit
import contextlib
import math
import multiprocessing
import signal
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv

from sightline.errors import BadInput, RunFailed

MakeEnv = Callable[[], "gymnasium.Env[Any, Any]"]
SeedOf = Callable[[int, int], int]
"""Environment index and its count of episodes before this one -> the seed of its next episode."""


def episode_seeds(run_seed: int) -> SeedOf:
    """Independent seeds for every episode of every environment of a run."""

    def seed_of(env: int, episode: int) -> int:
        return int(np.random.SeedSequence([run_seed, env, episode]).generate_state(1)[0])

    return seed_of


class FrameAndState(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Adds the rendered frame to the observation: `{"state": …, "frame": uint8[H, W, 3]}`.

    `reset(options={"replay": actions})` repeats these actions after the reset, without rendering. Frames are rendered
    only after steps: a reset's frame belongs to no transition.

    Observations and rewards are checked as they come: one that is no finite number would spoil the replay buffer, and
    with it everything that is learned afterwards.

    Args:
        env: what is wrapped.
        frames: whether frames are wanted.
        name: how errors call it.
        advice: with which errors end.

    Raises:
        RunFailed: the environment raised an error, rendered something else than frames of one size, or gave an
            observation or a reward that is no finite number. The line names environment, seed and step.
    """

    def __init__(
        self, env: gymnasium.Env[Any, Any], frames: bool, name: str = "the environment", advice: str = "mend it"
    ) -> None:
        super().__init__(env)
        self._name, self._advice = name, advice
        self._seed: int | None = None
        self._step = 0
        self._space = env.observation_space
        parts: dict[str, spaces.Space[Any]] = {"state": env.observation_space}
        self._blank: np.ndarray | None = None
        if frames:
            self._begin(0)
            self._blank = np.zeros_like(rgb_frame(env))
            parts["frame"] = spaces.Box(0, 255, self._blank.shape, np.uint8)
        self.observation_space = spaces.Dict(parts)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        state, info = self._begin(seed)
        for action in (options or {}).get("replay", ()):
            state, _, _, _, info = self._go_on(action)
        return self._with(state, self._blank), info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        state, reward, terminated, truncated, info = self._go_on(action)
        frame = None if self._blank is None else self._frame(self._blank.shape)
        return self._with(state, frame), reward, terminated, truncated, info

    def _begin(self, seed: int | None) -> tuple[Any, dict[str, Any]]:
        self._seed, self._step = seed, 0
        try:
            state, info = self.env.reset(seed=seed)
        except (BadInput, RunFailed):
            raise  # in a line of its own
        except Exception as error:
            raise self._failed(f"failed in reset(): {_reason(error)}") from error
        self._check(state)
        return state, info

    def _go_on(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        self._step += 1
        try:
            state, reward, terminated, truncated, info = self.env.step(action)
        except Exception as error:
            raise self._failed(f"failed in step(): {_reason(error)}") from error
        self._check(state)
        try:
            finite = math.isfinite(reward)
        except (TypeError, ValueError, OverflowError) as error:
            raise self._failed(f"gave a reward that is no number: {reward!r:.60}") from error
        if not finite:
            raise self._failed(f"gave a reward that is {'NaN' if math.isnan(reward) else 'infinite'}")
        return state, reward, terminated, truncated, info

    def _check(self, state: Any) -> None:
        wrong = misfit(self._space, state)
        if wrong is not None:
            raise self._failed(f"gave an observation {wrong}")

    def _frame(self, shape: tuple[int, ...]) -> np.ndarray:
        frame = rgb_frame(self.env)
        if frame.shape != shape:
            sizes = [f"{height}x{width}" for height, width, _ in (shape, frame.shape)]
            raise self._failed(f"rendered frames of {sizes[0]} first and now one of {sizes[1]}; keep to one size")
        return frame

    def _failed(self, what: str) -> RunFailed:
        when = f"step {self._step} of the episode" if self._step else "the beginning of the episode"
        return RunFailed(f"{self._name} {what} (at {when} with seed {self._seed}); {self._advice}")

    @staticmethod
    def _with(state: Any, frame: np.ndarray | None) -> dict[str, Any]:
        return {"state": state} if frame is None else {"state": state, "frame": frame}


def misfit(space: spaces.Space[Any], state: Any) -> str | None:
    """What is wrong with an observation, as words that follow "an observation"; None if nothing is."""
    try:
        numbers = np.asarray(state)
    except ValueError:
        return "whose parts have different lengths"
    if numbers.dtype.kind not in "biufc":
        return f"that is no array of numbers: {state!r:.60}"
    if space.shape is not None and numbers.shape != space.shape:
        return f"of shape {list(numbers.shape)} where its observation_space says {list(space.shape)}"
    wanted = numbers.dtype if space.dtype is None else space.dtype
    if numbers.dtype != wanted and not np.can_cast(numbers.dtype, wanted, "same_kind"):
        return f"of dtype {numbers.dtype} where its observation_space says {wanted}"
    if numbers.dtype.kind in "fc" and not np.isfinite(numbers).all():
        return "with NaN in it" if np.isnan(numbers).any() else "with an infinite number in it"
    return None


def _reason(error: Exception) -> str:
    """An exception in one line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())}"


def rgb_frame(env: gymnasium.Env[Any, Any]) -> np.ndarray:
    """The environment's picture, checked.

    Raises:
        RunFailed: the environment rendered something else than uint8[H, W, 3], or could not render.
    """
    try:
        rendered: Any = env.render()
        frame = np.asarray(rendered)
    except Exception as error:
        raise RunFailed(
            f"the environment could not render: {' '.join(str(error).split())}; "
            "'sightline doctor' says which rendering back ends work here"
        ) from error
    if rendered is None:
        raise RunFailed(
            "the environment's render() returned nothing; its constructor must take render_mode='rgb_array' and keep "
            "it, and render() must return uint8[H, W, 3]"
        )
    if frame.dtype != np.uint8 or frame.ndim != 3 or frame.shape[2] != 3:
        raise RunFailed(f"the environment rendered {frame.dtype}{list(frame.shape)}; frames must be uint8[H, W, 3]")
    return np.ascontiguousarray(frame)


@dataclass(frozen=True)
class Transitions:
    """What one step of N environments led to.

    Attributes:
        states: [N, …], from which the next step starts: after a reset where an episode ended.
        final_states: [N, …], which the step led to, before any reset.
        frames: uint8[N, H, W, 3] pictures of `final_states`, or None; valid until the next step.
        rewards: float64[N], the environment's own.
        terminated, truncated: bool[N].
        info: the environments' infos, each key with an array over environments.
        first: bool[N], whether the step was the first of its episode.
    """

    states: np.ndarray
    final_states: np.ndarray
    frames: np.ndarray | None
    rewards: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray
    info: dict[str, Any]
    first: np.ndarray

    @property
    def ended(self) -> np.ndarray:
        ended: np.ndarray = self.terminated | self.truncated
        return ended

    def flag(self, name: str) -> np.ndarray | None:
        """bool[N] of a truth value in the infos, or None if no environment states it."""
        return None if name not in self.info else np.asarray(self.info[name], dtype=bool)

    @property
    def success(self) -> np.ndarray | None:
        """bool[N]: whether the task is done in the states that were reached, under either of its two common names."""
        success = self.flag("success")
        return self.flag("is_success") if success is None else success


class FrameVectorEnv:
    """N copies of an environment with frames.

    Args:
        make: makes one copy; must be picklable for `workers="processes"`.
        count: number of copies.
        seed_of: seeds of the episodes.
        frames: whether to render after every step.
        workers: `inline` in this process, `processes` one spawned process each.
    """

    def __init__(
        self,
        make: MakeEnv,
        count: int,
        seed_of: SeedOf,
        frames: bool = True,
        workers: Literal["inline", "processes"] = "inline",
    ) -> None:
        self.count = count
        self._seed_of = seed_of
        builders = [_Builder(make, frames, i, count) for i in range(count)]
        if workers == "processes":
            self._envs: Any = AsyncVectorEnv(
                builders, context="spawn", copy=False, autoreset_mode=AutoresetMode.DISABLED
            )
            # Before multiprocessing's own clean-up, which would wait for workers that ignore SIGTERM.
            atexit.register(self.close)
        else:
            self._envs = SyncVectorEnv(builders, copy=False, autoreset_mode=AutoresetMode.DISABLED)
        self.state_space: spaces.Box = self._envs.single_observation_space["state"]
        self.action_space: spaces.Space[Any] = self._envs.single_action_space
        self.episodes = [-1] * count
        self.actions: list[list[Any]] = [[] for _ in range(count)]

    @property
    def frame_shape(self) -> tuple[int, int, int]:
        """Height, width and 3, as rendered."""
        return tuple(self._envs.single_observation_space["frame"].shape)

    @property
    def frames_per_second(self) -> int:
        """At which speed the environment wants to be shown."""
        return int(self._envs.metadata.get("render_fps") or 30)

    def reset(self) -> np.ndarray:
        """Begin a new episode everywhere; returns the states, [N, …]."""
        return self._begin(np.ones(self.count, bool))

    def step(self, actions: np.ndarray) -> Transitions:
        """Step every environment; where an episode ends, the next one begins."""
        first = np.array([not history for history in self.actions])
        for history, action in zip(self.actions, actions, strict=True):
            history.append(action)
        with _workers_alive():
            observation, rewards, terminated, truncated, info = self._envs.step(actions)
        final_states = observation["state"].copy()
        frames = observation.get("frame")
        ended = terminated | truncated
        states = final_states
        if ended.any():
            # The reset overwrites the frames of the environments that ended.
            frames = None if frames is None else frames.copy()
            states = self._begin(ended)
        return Transitions(
            states, final_states, frames, rewards.copy(), terminated.copy(), truncated.copy(), info, first
        )

    def _begin(self, mask: np.ndarray) -> np.ndarray:
        for i in np.flatnonzero(mask):
            self.episodes[i] += 1
            self.actions[i] = []
        return self._reset(mask, {})

    def _reset(self, mask: np.ndarray, options: dict[str, Any]) -> np.ndarray:
        seeds = [self._seed_of(i, episode) if mask[i] else None for i, episode in enumerate(self.episodes)]
        with _workers_alive():
            observation, _ = self._envs.reset(seed=seeds, options={"reset_mask": mask.copy(), **options})
        states: np.ndarray = observation["state"].copy()
        return states

    def restore(self, episodes: Sequence[int], actions: Sequence[Sequence[Any]]) -> np.ndarray:
        """Bring back unfinished episodes: reset each to its seed and repeat its actions. Returns the states."""
        self.episodes = list(episodes)
        self.actions = [list(history) for history in actions]
        states = self._reset(np.ones(self.count, bool), {})
        for i in range(self.count):
            mask = np.zeros(self.count, bool)
            mask[i] = True
            states = self._reset(mask, {"replay": self.actions[i]})
        return states

    def close(self) -> None:
        """End all workers; calling it again does nothing."""
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
def _workers_alive() -> Iterator[None]:
    try:
        yield
    except (EOFError, ConnectionError) as error:
        raise RunFailed(
            "the process of an environment died (too little memory?); go on from the last checkpoint with --resume"
        ) from error


@dataclass(frozen=True)
class _Builder:
    """A picklable function without arguments."""

    make: MakeEnv
    frames: bool
    index: int
    count: int

    def __call__(self) -> gymnasium.Env[Any, Any]:
        if multiprocessing.parent_process() is not None:
            # Ctrl-C and a job manager's SIGTERM reach the whole group; the parent saves and then ends its workers.
            for number in (signal.SIGINT, signal.SIGTERM):
                signal.signal(number, signal.SIG_IGN)
        env_id = getattr(self.make, "env_id", None)
        name = f"environment {self.index + 1} of {self.count}" + (f" ('{env_id}')" if env_id else "")
        return FrameAndState(self.make(), self.frames, name, "mend it and go on with --resume")
