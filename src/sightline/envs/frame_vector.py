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
import functools
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import gymnasium
import numpy as np

from sightline.envs.egl import drawing_variables
from sightline.envs.observations import Observations, blank, copied, nearly_same, picked, put, same
from sightline.envs.stepping import CheckedEnv, EnvDescription, Shrink, close_env
from sightline.envs.workers import Worker, WorkerDied, end_all, shared_picture
from sightline.errors import BadInput, RunFailed
from sightline.runs.stopping import give_up_if_overdue

MAX_DEATHS = 4
DEATH_WINDOW = 1_000
"""So many deaths of processes within so many steps end the run."""
MakeEnv = Callable[[], "gymnasium.Env[Any, Any]"]
EpisodeSeed = Callable[[int, int], int]
"""(environment index, number of its episodes before this one) -> seed of the episode."""


def episode_seeds(run_seed: int) -> EpisodeSeed:
    """Independent seeds for every episode of every environment of a run.

    A seed depends on the run's seed and on the episode's place alone, not on how fast other environments were.
    """

    def episode_seed(env: int, episode: int) -> int:
        return int(np.random.SeedSequence([run_seed, env, episode]).generate_state(1)[0])

    return episode_seed


@dataclass(frozen=True)
class Transitions:
    """Result of one step of N environments.

    Attributes:
        states: [N, …], states that the next step starts from: the first of a new episode where one ended. They are
            arrays by name where a policy reads several parts (`sightline.envs.observations`).
        final_states: [N, …], states that this step reached, before any reset.
        frames: uint8[N, H, W, 3], frames of `final_states`, or None without frames. Valid until the next step; rows of
            environments that were not rendered mean nothing.
        rewards: float64[N], the environments' own rewards.
        terminated, truncated: bool[N]. Learners bootstrap from `final_states` where an episode was truncated only.
        flags: bool[N] by name: the environments' infos that are truth values; false where one does not say.
        first: bool[N], whether the step was the first of its episode.
        reset_frames: uint8[K, H, W, 3], frames before the first step of the K episodes that began with this step; None
            where none began, or they were not asked for.
    """

    states: Observations
    final_states: Observations
    frames: np.ndarray | None
    rewards: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray
    flags: dict[str, np.ndarray]
    first: np.ndarray
    reset_frames: np.ndarray | None = None

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
        if success is None:
            success = self.flag("is_success")
        return success


class _LocalHost:
    """Host of an object in this process, with the methods of `sightline.envs.workers.Worker`."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self._make = make

    def ready(self) -> None:
        """Make the object."""
        self._object = self._make()

    def begin(self, method: str, *args: Any, seconds: float | None = None) -> Callable[[], Any]:
        """Have a method called when its result is asked for."""
        return lambda: getattr(self._object, method)(*args)

    def close(self) -> None:
        """Close the object, if it was made."""
        if hasattr(self, "_object"):
            self._object.close()


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
        reset_frames: uint8[N, H, W, 3], of the states that the present episodes began with; None if not asked for.
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
        workers: `inline` steps them in this process (all at once where `make` can, by its method `native_vector`);
            `processes` each in a spawned process of its own.
        step_timeout: seconds that a step or a reset may take in a process; one that takes longer has died. None: as
            long as it wants.
        needs_reward: whether the environments' own reward is learned from. If not, one that is no number counts as 0.
        resets: render the first state of each episode, too.

    Raises:
        RunFailed: an environment failed; see `CheckedEnv`. Or processes died again and again, or one did whose
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
        resets: bool = False,
    ) -> None:
        self.count = count
        self._episode_seed = episode_seed
        self._step_timeout = step_timeout
        # Some environments simulate many of themselves at once.
        self._native: Any = None
        if workers != "processes" and hasattr(make, "native_vector"):
            self._native = make.native_vector(count, frames)
        # Inline, each environment makes its own frames smaller, so that no two sizes of all of them are held. What
        # shrinks frames may be a large model, so that worker processes hand over whole frames.
        shrink_of_env = None
        self._shrink = shrink
        if workers == "inline" and self._native is None:
            shrink_of_env = shrink
            self._shrink = None
        self._factories = [_EnvFactory(make, frames, i, count, shrink_of_env, needs_reward) for i in range(count)]
        self._hosts: list[Worker | _LocalHost] = []
        """Of each environment; empty where one simulator holds them all."""
        self._pictures: np.ndarray | None = None
        """The newest frames before they are made smaller, uint8[N, H, W, 3]."""
        self._canvases: list[np.ndarray | None] = [None] * count
        """The memory that each process draws into; None where frames come another way."""
        try:
            description = self._start(workers)
        except BaseException:
            self.close()
            raise
        self.state_space = description.state_space
        self.action_space = description.action_space
        self.frames_per_second = description.frames_per_second
        self._frame_shape = description.frame_shape
        if self._frame_shape is not None:
            self._frame_shape = self._shrunk(np.zeros((1, *self._frame_shape), np.uint8)).shape[1:]
        self.reset_frames: np.ndarray | None = None
        if resets:
            self.reset_frames = np.zeros((count, *self.frame_shape), np.uint8)
        self.restarts = 0
        self.last_death = ""
        self.ignores_reward = False
        self._deaths: deque[int] = deque(maxlen=MAX_DEATHS)
        """The steps at which the last processes died."""
        self._steps = 0
        self.episodes = [-1] * count
        self.actions: list[list[Any]] = [[] for _ in range(count)]
        self.drawn: list[list[bool]] = [[] for _ in range(count)]
        self._states = blank(self.state_space, (count,))

    def _start(self, workers: Literal["inline", "processes"]) -> EnvDescription:
        """Make the environments; gives what has to be known of each."""
        description: EnvDescription
        if self._native is not None:
            description = self._native.description
            return description
        if workers == "processes":
            # Before multiprocessing's own clean-up, which would wait for workers for ever.
            atexit.register(self.close)
            for i in range(self.count):
                self._hosts.append(self._worker(i))
        else:
            for factory in self._factories:
                self._hosts.append(_LocalHost(factory))
        # Started first and waited for afterwards: processes make their environments at the same time.
        for host in self._hosts:
            host.ready()
        descriptions = [host.begin("description")() for host in self._hosts]
        description = descriptions[0]
        if any(other != description for other in descriptions):
            raise BadInput("environments that are made alike must have equal spaces and frames of one size")
        if description.frame_shape is not None:
            self._pictures = np.zeros((self.count, *description.frame_shape), np.uint8)
            for i in range(self.count):
                self._share_picture(i)
        return description

    def _worker(self, i: int) -> Worker:
        """A process for an environment; of several GPUs each draws with one."""
        return Worker(self._factories[i], drawing_variables(i))

    def _share_picture(self, i: int) -> None:
        """Have an environment draw into an array of ours: pictures are large."""
        if self._pictures is None:
            return
        host = self._hosts[i]
        if isinstance(host, Worker):
            self._canvases[i] = shared_picture(host, self._pictures.shape[1:])
        else:
            host.begin("draw_into", self._pictures[i])()

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

    def step(self, actions: np.ndarray, frames: bool | np.ndarray = True) -> Transitions:
        """Step every environment, then reset those whose episode ended.

        Args:
            actions: [N, …], one action per environment.
            frames: False renders all environments if an episode ends with this step, since its last state cannot be
                seen later, and else none. bool[N] renders these environments, and those whose episode ends.
        """
        give_up_if_overdue()
        self._steps += 1
        # Before actions are noted: no action so far means that this step is the first.
        first = np.array([not history for history in self.actions])
        draws = np.full(self.count, frames) & self.has_frames
        if self._native is not None:
            draws[:] = draws.any()  # it renders all of its environments or none
            steps = self._native.step(actions, bool(draws[0]))
        else:
            steps = self._call("step", {i: (action, bool(draws[i])) for i, action in enumerate(actions)})
        for i, step in enumerate(steps):
            self.actions[i].append(actions[i])
            self.drawn[i].append(bool(draws[i]))
            put(self._states, i, step.state)
        # A copy: the states of new episodes are written into the same arrays.
        final_states = copied(self._states)
        terminated = np.array([step.terminated for step in steps])
        truncated = np.array([step.truncated for step in steps])
        ended = terminated | truncated
        drawn_now = {i: step.frame for i, step in enumerate(steps) if draws[i]}
        if ended.any() and self.has_frames:
            # The last chance to draw these states: the reset overwrites them.
            missing = np.ones(self.count, bool) if frames is False else ended & ~draws
            drawn_now |= self._frames(np.flatnonzero(missing).tolist())
        pictures = self._gathered(drawn_now) if drawn_now else None
        reset_frames = None
        if self.reset_frames is not None and first.any():
            reset_frames = self.reset_frames[first]
        if ended.any():
            if self.reset_frames is not None and pictures is not None:
                pictures = pictures.copy()  # the first states of the next episodes are drawn into the same array
            self._begin_episodes(ended)
        self.ignores_reward |= any(step.reward is None for step in steps)
        return Transitions(
            states=copied(self._states),
            final_states=final_states,
            frames=pictures,
            # What is no number counts as 0, and is not learned from.
            rewards=np.array([step.reward or 0.0 for step in steps]),
            terminated=terminated,
            truncated=truncated,
            flags=_flags_by_name([step.flags for step in steps]),
            first=first,
            reset_frames=reset_frames,
        )

    def _frames(self, of_envs: Sequence[int]) -> dict[int, np.ndarray | None]:
        """Frames of the present states of some environments; None where it was drawn into memory of ours."""
        if not of_envs:
            return {}
        if self._native is not None:
            return dict(enumerate(self._native.frames()))
        frames = self._call("frame", dict.fromkeys(of_envs, ()))
        for i in of_envs:
            # Drawing moves some simulators' states, so that a replay has to draw where it was drawn. First states, to
            # which no step has led, are drawn always or never.
            if self.drawn[i]:
                self.drawn[i][-1] = True
        return dict(zip(of_envs, frames, strict=True))

    def _gathered(self, frames: Mapping[int, np.ndarray | None]) -> np.ndarray:
        """The frames of environments by their numbers, uint8[N, H, W, 3], of which all others mean nothing; valid until
        the next call.

        A frame was returned, or drawn into the memory of its process (`_canvases`), or into `_pictures` itself.
        """
        if self._pictures is None:
            return self._shrunk(np.stack([frame for frame in frames.values() if frame is not None]))
        for i, frame in frames.items():
            picture = self._canvases[i] if frame is None else frame
            if picture is not None:
                self._pictures[i] = picture
        return self._shrunk(self._pictures)

    def _shrunk(self, frames: np.ndarray) -> np.ndarray:
        """Frames [N, H, W, 3] from where they could not be made smaller."""
        if self._shrink is None:
            return frames
        return self._shrink(frames)

    def _begin_episodes(self, mask: np.ndarray) -> None:
        """Begin the next episode where `mask` (bool[N]) is true."""
        beginning = np.flatnonzero(mask).tolist()
        for i in beginning:
            self.episodes[i] += 1
            self.actions[i] = []
            self.drawn[i] = []
        # A seed depends on the place of the episode alone, never on how fast others were.
        seeds = {i: self._episode_seed(i, self.episodes[i]) for i in beginning}
        if self._native is not None:
            states = self._native.reset(seeds)
        else:
            states = self._call("reset", {i: (seed,) for i, seed in seeds.items()})
        for i, state in zip(beginning, states, strict=True):
            put(self._states, i, state)
        if self.reset_frames is not None:
            self.reset_frames[mask] = self._gathered(self._frames(beginning))[mask]

    def restore(
        self,
        episodes: Sequence[int],
        actions: Sequence[Sequence[Any]],
        were_drawn: Sequence[Sequence[bool]],
        states: Observations,
        reset_frames: np.ndarray | None = None,
    ) -> bool:
        """Restore unfinished episodes by replaying them: reset each with its seed and repeat its actions.

        Args:
            episodes: index of each environment's episode, as in the attribute `episodes`.
            actions: actions of each environment's episode so far, as in the attribute `actions`.
            were_drawn: of each environment's steps, as in the attribute `drawn`.
            states: [N, …], in which the environments were left.
            reset_frames: as in the attribute of that name.

        Returns:
            Whether the environments came back in these states. If not, they do not repeat themselves, and have to be
            reset.
        """
        self.episodes = list(episodes)
        self.actions = [list(history) for history in actions]
        self.drawn = [list(map(bool, history)) for history in were_drawn]
        if self.reset_frames is not None and reset_frames is not None:
            self.reset_frames[:] = reset_frames
        if self._native is not None:
            seeds = [self._episode_seed(*place) for place in enumerate(self.episodes)]
            replayed = self._native.replay(seeds, self.actions)
            put(self._states, slice(None), replayed)
            return same(replayed, states)
        # Each replay compares what it reaches with these states.
        put(self._states, slice(None), states)
        return all(self._replay(i) for i in range(self.count))

    def _replay(self, i: int) -> bool:
        """Repeat an environment's episode; true if that leads to its state.

        Drawing changes the state of some simulators by what is lost in rounding. It takes long, so that it is repeated
        only if the state is not the same without.
        """
        state = picked(self._states, i)
        seed = self._episode_seed(i, self.episodes[i])
        was_drawn = self.drawn[i]
        seconds = None
        if self._step_timeout is not None:
            seconds = self._step_timeout * (len(was_drawn) + 1)
        draws_reset = self.reset_frames is not None
        is_near = False
        for draws in ([False] * (1 + len(was_drawn)), [draws_reset, *was_drawn]):
            replayed = self._hosts[i].begin("replay", seed, self.actions[i], draws, seconds=seconds)()
            if replayed is not None and same(replayed, state):
                return True
            is_near = replayed is not None and nearly_same(replayed, state)
            if not any([draws_reset, *was_drawn]):
                break
        return is_near

    def _call(self, method: str, arguments: Mapping[int, tuple[Any, ...]]) -> list[Any]:
        """Results of a method of some environments, by their arguments; those in processes work at the same time."""
        results = {i: self._begin(i, method, args) for i, args in arguments.items()}
        return [self._outcome(i, method, arguments[i], result) for i, result in results.items()]

    def _begin(self, i: int, method: str, args: tuple[Any, ...]) -> Callable[[], Any]:
        return self._hosts[i].begin(method, *args, seconds=self._step_timeout)

    def _outcome(self, i: int, method: str, args: tuple[Any, ...], result: Callable[[], Any]) -> Any:
        """The result of a call, which is repeated if the worker dies."""
        while True:
            try:
                return result()
            except WorkerDied as error:
                self._note_death(error)
                # Called in the next round, since the new process may die, too.
                result = functools.partial(self._repeat, i, method, args, error)

    def _note_death(self, error: WorkerDied) -> None:
        self._deaths.append(self._steps)
        if len(self._deaths) == MAX_DEATHS and self._steps - self._deaths[0] < DEATH_WINDOW:
            raise RunFailed(
                f"{error}, and so {MAX_DEATHS} times within {DEATH_WINDOW} steps; look why, then resume from the last "
                "checkpoint with --resume"
            ) from error
        self.restarts += 1
        self.last_death = str(error)

    def _repeat(self, i: int, method: str, args: tuple[Any, ...], error: WorkerDied) -> Any:
        """Start a worker again, with its episode as it was before a call, and repeat the call."""
        worker = self._worker(i)
        self._hosts[i] = worker
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
        hosts = self._hosts
        self._hosts = []
        end_all([host for host in hosts if isinstance(host, Worker)])
        for host in hosts:
            if isinstance(host, _LocalHost):
                host.close()
        if self._native is not None:
            close_env(self._native)
        atexit.unregister(self.close)


def _flags_by_name(flags: Sequence[Mapping[str, bool]]) -> dict[str, np.ndarray]:
    """The flags of N environments: bool[N] by name; false where an environment does not say."""
    names = dict.fromkeys(name for of_env in flags for name in of_env)
    return {name: np.array([of_env.get(name, False) for of_env in flags]) for name in names}


@dataclass(frozen=True)
class _EnvFactory:
    """Environment factory without arguments that can be pickled, as worker processes need it."""

    make: MakeEnv
    frames: bool
    index: int
    count: int
    shrink: Shrink | None
    needs_reward: bool

    def __call__(self) -> CheckedEnv:
        name = f"environment {self.index + 1} of {self.count}"
        env_id = getattr(self.make, "env_id", None)
        if env_id:
            name += f" ('{env_id}')"
        advice = "fix it, then resume with --resume"
        return CheckedEnv(self.make(), self.frames, name, advice, self.shrink, self.needs_reward)
