"""Several copies of an environment stepped together: states, and frames of the very states that were reached.

Gymnasium's own vector environments do the work (in this process, or one process each with shared memory). Their
automatic reset is switched off: an episode's last frame is taken before its environment is reset.

Every episode has a seed of its own, so an unfinished episode can be brought back anywhere by replaying its actions.
"""

from __future__ import annotations

import atexit
import contextlib
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
    """

    def __init__(self, env: gymnasium.Env[Any, Any], frames: bool) -> None:
        super().__init__(env)
        parts: dict[str, spaces.Space[Any]] = {"state": env.observation_space}
        self._blank: np.ndarray | None = None
        if frames:
            env.reset(seed=0)
            self._blank = np.zeros_like(rgb_frame(env))
            parts["frame"] = spaces.Box(0, 255, self._blank.shape, np.uint8)
        self.observation_space = spaces.Dict(parts)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        replay = (options or {}).get("replay", ())
        state, info = self.env.reset(seed=seed)
        for action in replay:
            state, _, _, _, info = self.env.step(action)
        return self._with(state, self._blank), info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        try:
            state, reward, terminated, truncated, info = self.env.step(action)
        except Exception as error:
            reason = f"{type(error).__name__}: {' '.join(str(error).split())}"
            raise RunFailed(f"the environment failed in step(): {reason}; mend it and go on with --resume") from error
        frame = None if self._blank is None else rgb_frame(self.env)
        return self._with(state, frame), reward, terminated, truncated, info

    @staticmethod
    def _with(state: Any, frame: np.ndarray | None) -> dict[str, Any]:
        return {"state": state} if frame is None else {"state": state, "frame": frame}


def rgb_frame(env: gymnasium.Env[Any, Any]) -> np.ndarray:
    """The environment's picture, checked.

    Raises:
        RunFailed: the environment rendered something else than uint8[H, W, 3], or could not render.
    """
    try:
        frame = np.asarray(env.render())
    except Exception as error:
        raise RunFailed(
            f"the environment could not render: {' '.join(str(error).split())}; "
            "'sightline doctor' says which rendering back ends work here"
        ) from error
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
    """

    states: np.ndarray
    final_states: np.ndarray
    frames: np.ndarray | None
    rewards: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray
    info: dict[str, Any]

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
        builders = [_Builder(make, frames)] * count
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
        if not isinstance(self.action_space, spaces.Box | spaces.Discrete):
            self.close()
            raise BadInput(f"actions of type {type(self.action_space).__name__} are not supported; use Discrete or Box")
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
        return Transitions(states, final_states, frames, rewards.copy(), terminated.copy(), truncated.copy(), info)

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

    def __call__(self) -> gymnasium.Env[Any, Any]:
        if multiprocessing.parent_process() is not None:
            # Ctrl-C and a job manager's SIGTERM reach the whole group; the parent saves and then ends its workers.
            for number in (signal.SIGINT, signal.SIGTERM):
                signal.signal(number, signal.SIG_IGN)
        return FrameAndState(self.make(), self.frames)
