"""Vector environments with frames: N copies of an environment, and a frame of every state that a step reached.

Gymnasium's vector environments reset an episode that has ended before a frame of its last state could be rendered, and
this frame is often the only one that shows success.

    autoreset by Gymnasium    step ──► s_T ──► reset ──► s'_0 ──► render: shows s'_0, not what the action did
    here                      step ──► s_T ──► render: the frame of s_T ──► reset ──► s'_0, returned as the next state

Every episode has a seed of its own, so an unfinished episode can be restored in any process by a reset with its seed
and its actions.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import math
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import gymnasium
import numpy as np
from gymnasium import spaces

from sightline.envs.frames import checked_frame, rendered_by, rgb_frame, to_array
from sightline.envs.observations import Misfit, Observations, blank, copied, misfit, nearly_same, picked, put, same
from sightline.envs.rendering import drawing_advice
from sightline.envs.success import with_success
from sightline.envs.workers import Worker, WorkerDied, end_all, opened_picture, shared_picture
from sightline.errors import BadInput, RunFailed, reason_and_place
from sightline.runs.stopping import asks_to_stop, give_up_if_overdue

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


@dataclass(frozen=True)
class EnvDescription:
    """What has to be known of an environment to step it: the spaces of one, the shape of its frames (None without), and
    the frames per second of its videos."""

    state_space: spaces.Space[Any]
    action_space: spaces.Space[Any]
    frame_shape: tuple[int, ...] | None
    frames_per_second: int


@dataclass(frozen=True)
class Step:
    """What a step of one environment led to.

    Attributes:
        frame: uint8[H, W, 3] of the state; None if it was not drawn, or was written into an array.
        reward: the environment's own; None if it is no finite number, and need not be one.
        flags: infos that are truth values.
    """

    state: Any
    frame: np.ndarray | None
    reward: float | None
    terminated: bool
    truncated: bool
    flags: dict[str, bool]


class FrameAndState:
    """An environment whose steps give states and frames, which are checked: a single NaN would spoil the replay buffer,
    and all that is learned from it.

    Args:
        env: the environment.
        frames: whether it can be asked for frames.
        name: name of the environment in error messages.
        advice: last words of error messages.
        shrink: makes frames smaller as soon as they are taken; None keeps their size.
        needs_reward: whether the environment's own reward is learned from. If not, it need not be a number.

    Raises:
        RunFailed: the environment raised an error, ended the program, rendered anything but frames uint8[H, W, 3] of
            one size, or returned an observation or a reward that is not finite. The message names environment, seed and
            step.
    """

    def __init__(
        self,
        env: gymnasium.Env[Any, Any],
        frames: bool,
        name: str = "the environment",
        advice: str = "fix it",
        shrink: Shrink | None = None,
        needs_reward: bool = True,
    ) -> None:
        self.env = env
        self._name, self._advice, self._shrink, self._needs_reward = name, advice, shrink, needs_reward
        self._seed: int | None = None
        self._step = 0
        self._rendered_shape: tuple[int, ...] | None = None
        self._frame_shape: tuple[int, ...] | None = None
        self._canvas: np.ndarray | None = None
        if frames:
            # Some renderers need a reset first. Seed 0 does no harm: every episode is reset with its own seed.
            self.reset(0)
            first = rgb_frame(env)
            self._rendered_shape, self._frame_shape = first.shape, self._shrunk(first).shape

    def description(self) -> EnvDescription:
        """What has to be known to step it."""
        rate = (getattr(self.env, "metadata", None) or {}).get("render_fps")
        return EnvDescription(self.env.observation_space, self.env.action_space, self._frame_shape, int(rate or 30))

    def reset(self, seed: int) -> Any:
        """Begin an episode; returns its first state."""
        self._seed, self._step = seed, 0
        with self._failing_in("reset()"):
            state, _ = self.env.reset(seed=seed)
        self._check_observation(state)
        return state

    def step(self, action: Any, draws: bool) -> Step:
        """Step, and render the state reached if `draws`."""
        self._step += 1
        with self._failing_in("step()"):
            state, reward, terminated, truncated, info = self.env.step(action)
            ends = bool(terminated), bool(truncated)
        self._check_observation(state)
        flags = _flags(with_success(info if isinstance(info, Mapping) else {}, self._name))
        return Step(state, self.frame() if draws else None, self._checked_reward(reward), *ends, flags)

    def draw_into(self, picture: np.ndarray) -> None:
        """Write frames into an array of their shape from now on, and return them no more."""
        self._canvas = picture

    def draw_into_file(self, name: str) -> None:
        """Write frames into a file's memory from now on, and return them no more; see `shared_picture`."""
        assert self._frame_shape is not None, "an environment with frames"
        self._canvas = opened_picture(name, self._frame_shape)

    def frame(self) -> np.ndarray | None:
        """Render the present state: uint8[H, W, 3], of the size that every frame has; None if it is written into an
        array."""
        assert self._rendered_shape is not None, "an environment with frames"
        frame = checked_frame(rendered_by(self.env))
        if frame.shape != self._rendered_shape:
            sizes = [f"{height}x{width}" for height, width, _ in (self._rendered_shape, frame.shape)]
            # Frames go into the chunk's buffer, which has a fixed shape.
            raise self._failure(f"rendered frames of {sizes[0]} first and now one of {sizes[1]}; keep to one size")
        frame = self._shrunk(frame)
        if self._canvas is None:
            return frame.copy()  # the renderer may draw on one canvas all the time
        self._canvas[:] = frame
        return None

    def _shrunk(self, frame: np.ndarray) -> np.ndarray:
        return frame if self._shrink is None else self._shrink(frame[None])[0]

    def replay(self, seed: int, actions: Sequence[Any], drawn: Sequence[bool]) -> Any:
        """Repeat an episode that had not ended.

        Args:
            actions: of its steps.
            drawn: which of the states that they led to are rendered.

        Returns:
            The state reached; None if this time the episode ended, or failed.
        """
        try:
            state = self.reset(seed)
            for action, draws in zip(actions, drawn, strict=True):
                give_up_if_overdue()
                step = self.step(action, draws)
                if step.terminated or step.truncated:
                    return None
                state = step.state
        except (BadInput, RunFailed):
            return None
        return state

    def close(self) -> None:
        """Close the environment. What goes wrong then does no harm any more."""
        close_env(self.env)

    @contextlib.contextmanager
    def _failing_in(self, method: str) -> Iterator[None]:
        """Say whatever the environment raises in one line."""
        try:
            yield
        except BadInput:
            raise  # it says what to do
        except RunFailed as error:
            if not self._step:
                raise  # our own environments say it in one line already
            raise self._failure(f"failed in {method}: {error}") from error
        except Misfit as error:
            raise self._failure(f"returned an observation {error}") from None
        except BaseException as error:
            if asks_to_stop(error):
                raise
            raise self._failure(f"failed in {method}: {reason_and_place(error)}", drawing_advice(error)) from error

    def _checked_reward(self, reward: Any) -> float | None:
        number = scalar_reward(reward)
        if number is not None and math.isfinite(number):
            return number
        if not self._needs_reward:
            return None
        if number is None:
            raise self._failure(f"returned a reward that is not a number: {reward!r:.60}", reward_advice(reward))
        raise self._failure(f"returned a reward that is {'NaN' if math.isnan(number) else 'infinite'}")

    def _check_observation(self, state: Any) -> None:
        wrong = misfit(self.env.observation_space, state)
        if wrong is not None:
            raise self._failure(f"returned an observation {wrong}")

    def _failure(self, what: str, advice: str = "") -> RunFailed:
        when = f"step {self._step} of the episode" if self._step else "the beginning of the episode"
        return RunFailed(f"{self._name} {what} (at {when} with seed {self._seed}){advice or f'; {self._advice}'}")


def close_env(env: Any) -> None:
    """Close an environment; an error, or an end of the program, in its `close` is passed over."""
    with contextlib.suppress(Exception, SystemExit):
        env.close()


def _flags(info: Mapping[str, Any]) -> dict[str, bool]:
    """The infos that are truth values or other single numbers, as truth values."""
    plain = bool | np.bool_ | int | float | np.number
    return {str(key): bool(value) for key, value in info.items() if isinstance(value, plain) and value == value}


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


def reward_advice(reward: Any) -> str:
    """What to do about a reward that is no number, as `"; do this"`; empty but for vectors."""
    several = to_array(reward)
    is_vector = several.size > 1 and several.dtype.kind in "biuf"
    return "; mo_gymnasium.wrappers.LinearReward makes one number of a vector" if is_vector else ""


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
        flags: bool[N] by name: the environments' infos that are truth values; false where one does not say.
        first: bool[N], whether the step was the first of its episode.
    """

    states: Observations
    final_states: Observations
    frames: np.ndarray | None
    rewards: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray
    flags: dict[str, np.ndarray]
    first: np.ndarray

    @property
    def ended(self) -> np.ndarray:
        """bool[N], true where an episode was terminated or truncated."""
        ended: np.ndarray = self.terminated | self.truncated
        return ended

    def flag(self, name: str) -> np.ndarray | None:
        """Info by its key: bool[N]; None if no environment has it."""
        return self.flags.get(name)

    @property
    def success(self) -> np.ndarray | None:
        """Success in the states reached, bool[N], from the info `success` or else `is_success`; None without either."""
        success = self.flag("success")
        return self.flag("is_success") if success is None else success


class _Here:
    """An object of this process, called as one in a process of its own is: see `sightline.envs.workers.Worker`."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self._make = make

    def ready(self) -> None:
        """Make the object."""
        self._made = self._make()

    def begin(self, method: str, *args: Any, seconds: float | None = None) -> Callable[[], Any]:
        """Have a method called when its result is asked for."""
        return lambda: getattr(self._made, method)(*args)

    def close(self) -> None:
        """Close the object, if it was made."""
        if hasattr(self, "_made"):
            self._made.close()


class FrameVectorEnv:
    """Vector environment that renders every state reached and resets finished episodes itself.

    A worker process that dies, of too little memory or a fault in a simulator, does not end the run: it is started
    again, its episode is restored, and its step is repeated.

    Attributes:
        count: number of environments, N.
        state_space: observation space of one environment.
        action_space: action space of one environment.
        frames_per_second: frame rate for videos: the environment's `render_fps`, else 30.
        episodes: index of the present episode of each environment; -1 before the first reset.
        actions: actions of the present episode of each environment, for `restore`.
        drawn: which of these were followed by a picture.
        restarts: how often a worker was started again.
        last_death: why the last of them had died.
        ignores_reward: an own reward was no finite number, and counted as 0.

    Args:
        make: function that makes one environment; must be picklable for `workers="processes"`.
        count: number of environments.
        episode_seed: seeds of the episodes.
        frames: render after every step.
        shrink: makes frames smaller as soon as they are taken (`sightline.rewards.base.frame_shrinker`); None keeps
            their size.
        workers: `inline` steps them in this process (all at once where `make` can, by its method `vectorised`);
            `processes` each in a spawned process of its own.
        step_timeout: seconds that a step or a reset may take in a process; one that takes longer has died. None: as
            long as it wants.
        needs_reward: whether the environments' own reward is learned from. If not, one that is no number counts as 0.

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
        step_timeout: float | None = None,
        needs_reward: bool = True,
    ) -> None:
        self.count = count
        self._episode_seed, self._step_timeout = episode_seed, step_timeout
        # Some environments simulate many of themselves at once; see `sightline.envs.vectorised`.
        together = None if workers == "processes" else getattr(make, "vectorised", None)
        self._vectorised: Any = None if together is None else together(count, frames)
        # What shrinks frames may be a large model, so that worker processes hand over whole frames.
        inline = workers == "inline" and self._vectorised is None
        self._shrink = None if inline else shrink
        self._factories = [
            _EnvFactory(make, frames, i, count, shrink if inline else None, needs_reward) for i in range(count)
        ]
        self._places: list[Worker | _Here] = []
        self._pictures: np.ndarray | None = None
        """The newest frames before they are made smaller, uint8[N, H, W, 3]."""
        self._canvases: list[np.ndarray | None] = [None] * count
        try:
            described = self._start(workers)
        except BaseException:
            self.close()
            raise
        self.state_space, self.action_space = described.state_space, described.action_space
        self._frame_shape, self.frames_per_second = described.frame_shape, described.frames_per_second
        if self._frame_shape is not None:
            self._frame_shape = self._shrunk(np.zeros((1, *self._frame_shape), np.uint8)).shape[1:]
        self.restarts, self.last_death, self.ignores_reward = 0, "", False
        self._deaths: deque[int] = deque(maxlen=DEATHS)
        self._steps = 0
        self.episodes = [-1] * count
        self.actions: list[list[Any]] = [[] for _ in range(count)]
        self.drawn: list[list[bool]] = [[] for _ in range(count)]
        self._states = blank(self.state_space, (count,))

    def _start(self, workers: Literal["inline", "processes"]) -> EnvDescription:
        """Make the environments; gives what has to be known of each."""
        if self._vectorised is not None:
            together: EnvDescription = self._vectorised.description
            return together
        if workers == "processes":
            # Before multiprocessing's own clean-up, which would wait for workers for ever.
            atexit.register(self.close)
            for factory in self._factories:
                self._places.append(Worker(factory))
        else:
            for factory in self._factories:
                self._places.append(_Here(factory))
        for place in self._places:
            place.ready()
        descriptions = [place.begin("description")() for place in self._places]
        if any(other != descriptions[0] for other in descriptions):
            raise BadInput("environments that are made alike must have equal spaces and frames of one size")
        described: EnvDescription = descriptions[0]
        if described.frame_shape is not None:
            self._pictures = np.zeros((self.count, *described.frame_shape), np.uint8)
            for i in range(self.count):
                self._share_picture(i)
        return described

    def _share_picture(self, i: int) -> None:
        """Have an environment draw into an array of ours: pictures are large."""
        place = self._places[i]
        if self._pictures is None:
            return
        if isinstance(place, Worker):
            self._canvases[i] = shared_picture(place, self._pictures.shape[1:])
        else:
            place.begin("draw_into", self._pictures[i])()

    @property
    def has_frames(self) -> bool:
        """Whether it renders."""
        return self._frame_shape is not None

    @property
    def frame_shape(self) -> tuple[int, int, int]:
        """Height, width and channels (3) of a frame, once it is made smaller."""
        assert self._frame_shape is not None, "an environment with frames"
        height, width, channels = self._frame_shape
        return height, width, channels

    def reset(self) -> Observations:
        """Reset every environment to a new episode; returns the states, [N, …]."""
        self._begin_episodes(np.ones(self.count, bool))
        return copied(self._states)

    def step(self, actions: np.ndarray, frames: bool = True) -> Transitions:
        """Step every environment, then reset those whose episode ended.

        Args:
            actions: [N, …], one action per environment.
            frames: False renders only if an episode ends with this step, since its last state cannot be seen later.
        """
        give_up_if_overdue()
        self._steps += 1
        first = np.array([not history for history in self.actions])
        draws = frames and self.has_frames
        if self._vectorised is not None:
            steps = self._vectorised.step(actions, draws)
        else:
            steps = self._call("step", {i: (action, draws) for i, action in enumerate(actions)})
        for i, step in enumerate(steps):
            self.actions[i].append(actions[i])
            self.drawn[i].append(draws)
            put(self._states, i, step.state)
        final_states = copied(self._states)
        terminated = np.array([step.terminated for step in steps])
        truncated = np.array([step.truncated for step in steps])
        ended = terminated | truncated
        shown = self._together([step.frame for step in steps]) if draws else None
        if ended.any():
            if shown is None and self.has_frames:
                shown = self._frames()
            self._begin_episodes(ended)
        self.ignores_reward |= any(step.reward is None for step in steps)
        names = dict.fromkeys(name for step in steps for name in step.flags)
        return Transitions(
            states=copied(self._states),
            final_states=final_states,
            frames=shown,
            rewards=np.array([step.reward or 0.0 for step in steps]),
            terminated=terminated,
            truncated=truncated,
            flags={name: np.array([step.flags.get(name, False) for step in steps]) for name in names},
            first=first,
        )

    def _frames(self) -> np.ndarray:
        """Frames of the present states: uint8[N, H, W, 3]."""
        if self._vectorised is not None:
            return self._shrunk(self._vectorised.frames())
        frames = self._call("frame", dict.fromkeys(range(self.count), ()))
        for history in self.drawn:
            history[-1] = True
        return self._together(frames)

    def _together(self, frames: Sequence[np.ndarray | None]) -> np.ndarray:
        """The frames of all environments, uint8[N, H, W, 3]; valid until the next call."""
        if self._pictures is None:
            return self._shrunk(np.stack([frame for frame in frames if frame is not None]))
        for i, (frame, canvas) in enumerate(zip(frames, self._canvases, strict=True)):
            picture = canvas if frame is None else frame
            if picture is not None:  # else it was drawn where it should be
                self._pictures[i] = picture
        return self._shrunk(self._pictures)

    def _shrunk(self, frames: np.ndarray) -> np.ndarray:
        """Frames [N, H, W, 3] from where they could not be made smaller."""
        return frames if self._shrink is None else self._shrink(frames)

    def _begin_episodes(self, mask: np.ndarray) -> None:
        """Begin the next episode where `mask` (bool[N]) is true."""
        beginning = np.flatnonzero(mask).tolist()
        for i in beginning:
            self.episodes[i] += 1
            self.actions[i], self.drawn[i] = [], []
        seeds = {i: self._episode_seed(i, self.episodes[i]) for i in beginning}
        if self._vectorised is not None:
            states = self._vectorised.reset(seeds)
        else:
            states = self._call("reset", {i: (seed,) for i, seed in seeds.items()})
        for i, state in zip(beginning, states, strict=True):
            put(self._states, i, state)

    def restore(
        self,
        episodes: Sequence[int],
        actions: Sequence[Sequence[Any]],
        drawn: Sequence[Sequence[bool]],
        states: Observations,
    ) -> bool:
        """Restore unfinished episodes by replaying them: reset each with its seed and repeat its actions.

        Args:
            episodes: index of each environment's episode, as in the attribute `episodes`.
            actions: actions of each environment's episode so far, as in the attribute `actions`.
            drawn: as in the attribute.
            states: [N, …], in which the environments were left.

        Returns:
            Whether the environments came back in these states. If not, they do not repeat themselves, and have to be
            reset.
        """
        self.episodes = list(episodes)
        self.actions = [list(history) for history in actions]
        self.drawn = [[bool(draws) for draws in history] for history in drawn]
        if self._vectorised is not None:
            seeds = [self._episode_seed(*place) for place in enumerate(self.episodes)]
            replayed = self._vectorised.replay(seeds, self.actions)
            put(self._states, slice(None), replayed)
            return same(replayed, states)
        put(self._states, slice(None), states)
        return all(self._replay(i) for i in range(self.count))

    def _replay(self, i: int) -> bool:
        """Repeat an environment's episode; true if that leads to its state.

        Drawing changes the state of some simulators by what is lost in rounding. It takes long, so that it is repeated
        only if the state is not the same without.
        """
        state, drawn = picked(self._states, i), self.drawn[i]
        seconds = None if self._step_timeout is None else self._step_timeout * (len(drawn) + 1)
        near = False
        for draws in ([False] * len(drawn), drawn):
            arguments = self._episode_seed(i, self.episodes[i]), self.actions[i], draws
            replayed = self._places[i].begin("replay", *arguments, seconds=seconds)()
            if replayed is not None and same(replayed, state):
                return True
            near = replayed is not None and nearly_same(replayed, state)
            if not any(drawn):
                break
        return near

    def _call(self, method: str, arguments: Mapping[int, tuple[Any, ...]]) -> list[Any]:
        """Results of a method of some environments, by their arguments; those in processes work at the same time."""
        begun = {i: self._begin(i, method, args) for i, args in arguments.items()}
        return [self._outcome(i, method, arguments[i], result) for i, result in begun.items()]

    def _begin(self, i: int, method: str, args: tuple[Any, ...]) -> Callable[[], Any]:
        return self._places[i].begin(method, *args, seconds=self._step_timeout)

    def _outcome(self, i: int, method: str, args: tuple[Any, ...], result: Callable[[], Any]) -> Any:
        """The result of a call, which is repeated if the worker dies."""
        while True:
            try:
                return result()
            except WorkerDied as error:
                self._note_death(error)
                result = functools.partial(self._repeat, i, method, args, error)

    def _note_death(self, error: WorkerDied) -> None:
        self._deaths.append(self._steps)
        if len(self._deaths) == DEATHS and self._steps - self._deaths[0] < WITHIN:
            raise RunFailed(
                f"{error}, and so {DEATHS} times within {WITHIN} steps; look why, then resume from the last checkpoint "
                "with --resume"
            ) from error
        self.restarts += 1
        self.last_death = str(error)

    def _repeat(self, i: int, method: str, args: tuple[Any, ...], error: WorkerDied) -> Any:
        """Start a worker again, with its episode as it was before a call, and repeat the call."""
        self._places[i] = worker = Worker(self._factories[i])
        worker.ready()
        self._share_picture(i)
        if method != "reset" and not self._replay(i):
            raise RunFailed(
                f"{error}, and the environment does not repeat itself from its seed; resume from the last checkpoint "
                "with --resume"
            ) from error
        return self._begin(i, method, args)()

    def close(self) -> None:
        """Close the environments and end their processes; calling it again does nothing."""
        places, self._places = self._places, []
        end_all([place for place in places if isinstance(place, Worker)])
        for place in places:
            if isinstance(place, _Here):
                place.close()
        if self._vectorised is not None:
            close_env(self._vectorised)
        atexit.unregister(self.close)


@dataclass(frozen=True)
class _EnvFactory:
    """Environment factory without arguments that can be pickled, as worker processes need it."""

    make: MakeEnv
    frames: bool
    index: int
    count: int
    shrink: Shrink | None
    needs_reward: bool

    def __call__(self) -> FrameAndState:
        env_id = getattr(self.make, "env_id", None)
        name = f"environment {self.index + 1} of {self.count}" + (f" ('{env_id}')" if env_id else "")
        advice = "fix it, then resume with --resume"
        return FrameAndState(self.make(), self.frames, name, advice, self.shrink, self.needs_reward)
