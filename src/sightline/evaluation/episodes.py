"""Evaluate a policy on a panel of seeds: success, reward under the words, ground-truth return."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from sightline.config.basics import Workers
from sightline.envs.frame_vector import FrameVectorEnv, MakeEnv, Transitions
from sightline.envs.making import EnvMaker
from sightline.envs.observations import Observations
from sightline.envs.probing import ROUNDING
from sightline.envs.tasks import SuccessRule, Task
from sightline.envs.watching import equal
from sightline.evaluation.episode_stats import EpisodeStats, summarise_episodes
from sightline.evaluation.seeds import EvalSeeds, describe_env, make_panel
from sightline.evaluation.video import Reel, at_video_size
from sightline.rewards.base import Clip, RewardModel, RewardStream, check_score_every, frame_shrinker
from sightline.rewards.scopes import Past

Policy = Callable[[Observations], np.ndarray]
"""Deterministic policy: states [N, …] -> actions [N, …]."""

PARALLEL = 25
"""Number of environments stepped in parallel. Fixed, so that results do not depend on the machine."""
SCORED_AT_ONCE = 512
"""Steps that are scored at once, or fewer where their frames take more memory than `SCORED_BYTES`."""
SCORED_BYTES = 64_000_000
RESET_FRAMES = "reset_frames"
CLEAN = "clean"
"""Measure of environments that count mistakes: a success without any."""


def task_panel(task: Task, make: EnvMaker, name: str, episodes: int, seed: int = 0) -> EvalSeeds:
    """A panel of a task's environment; other options, time limits and rules of success make it another one.

    Args:
        make: makes the environment.
        name: of the panel, such as `test`.
    """
    env = describe_env(
        make.env_id,
        env_options=make.options,
        episode_steps=make.episode_steps,
        # The usual rule is left out, as all that is usual.
        success=None if task.success == "any" else task.success,
        success_from=make.success_from,
    )
    return make_panel(name, env, episodes, seed)


@dataclass
class Episodes:
    """Results of the episodes of a panel, in the panel's order.

    Attributes:
        returns: float[N], sums of the environment's own rewards.
        lengths: int[N], steps.
        by_rule: bool[N] by rule: whether `every` state of the episode was a success, `any`, the one at its `end`; empty
            if the environment does not know success.
        rule: the task's.
        rewards: float[N], mean reward under the words of the steps that were scored; None without a reward model.
        measures: name -> bool[N], whether a truth value held, by the task's rule; of those that the environment states.
    """

    panel: EvalSeeds
    returns: np.ndarray
    lengths: np.ndarray
    by_rule: dict[str, np.ndarray]
    rule: SuccessRule
    rewards: np.ndarray | None
    measures: dict[str, np.ndarray] = field(default_factory=dict)

    @property
    def success(self) -> np.ndarray | None:
        """bool[N] by the task's rule; None if the environment does not know success."""
        return self.by_rule.get(self.rule)

    def summary(self) -> dict[str, Any]:
        """Summary as plain numbers with 95 % intervals. `success_rate` is None where success is unknown; `clean`, the
        share of episodes that succeeded without a mistake, is there where the environment counts mistakes."""
        shares = {name: float(values.mean()) for name, values in self.measures.items()}
        numbers = {
            **summarise_episodes(self.returns, self.lengths, self.by_rule, self.rule),
            "episodes": len(self.returns),
            "errors": 0,
            "panel": str(self.panel),
            "reward": None if self.rewards is None else float(self.rewards.mean()),
        }
        if CLEAN in shares:
            numbers[CLEAN] = shares.pop(CLEAN)
        return numbers | {"measures": shares}


def play_panel(
    policy: Policy,
    make: MakeEnv,
    task: Task,
    panel: EvalSeeds,
    reward_model: RewardModel | None,
    should_stop: Callable[[], bool] = lambda: False,
    processes: int = 0,
    step_timeout: float | None = None,
    needs_reward: bool = True,
    score_every: int = 1,
) -> Episodes | None:
    """Run one episode for every seed of a panel.

    Args:
        policy: chooses actions; must not draw random numbers.
        make: makes one environment.
        task: defines success.
        panel: the seeds.
        reward_model: scores the frames; without one nothing is rendered.
        should_stop: called at every step; True stops the evaluation.
        processes: environments that are stepped together, each in a process of its own; 0 steps all in this one. The
            numbers are the same.
        step_timeout: seconds that a step may take in a process.
        needs_reward: False counts the environment's own reward as 0 where it is no number.
        score_every: steps of an episode from one that is rendered and scored to the next; its last one always is. More
            than 1 is for reward models that look at one step at a time.

    Returns:
        The episodes, or None if stopped.

    Raises:
        BadInput: the reward model compares steps that `score_every` leaves out.
        RunFailed: a reward is no finite number.
    """
    if reward_model is not None:
        check_score_every(reward_model, score_every)
    episodes = len(panel.seeds)
    columns = min(processes or PARALLEL, episodes)

    # Environment i plays the episodes i, i + columns, i + 2 columns, … of the panel; beyond its end, none that counts.
    def seed_of(env: int, episode: int) -> int:
        index = env + episode * columns
        if index >= episodes:
            return 0
        return panel.seeds[index]

    reads_frames = reward_model is not None and "frames" in reward_model.needs
    workers: Workers = "processes" if processes else "inline"
    shrink = frame_shrinker(reward_model)
    sees_past = reward_model is not None and reward_model.sees_past
    envs = FrameVectorEnv(make, columns, seed_of, reads_frames, workers, shrink, step_timeout, needs_reward, sees_past)
    try:
        stats = EpisodeStats(episodes, task.success)
        scorer = None
        if reward_model is not None:
            scorer = _EpisodeScorer(reward_model, episodes)
        states = envs.reset()
        index = np.arange(columns)  # of the episode that each environment plays
        played = np.zeros(columns, np.int64)  # steps of that episode so far
        while (playing := index < episodes).any():
            if should_stop():
                return None
            played += 1
            # By the steps of each episode, so that it does not matter how many environments are stepped together.
            is_due = playing & (played % score_every == 0)
            step = envs.step(policy(states), frames=is_due)
            if scorer is not None:
                scored = is_due | (playing & step.ended)
                scorer.add(step, scored, index[scored])
            _count_step(stats, step, playing, index[playing], (*task.measures, CLEAN))
            index[step.ended] += columns
            played[step.ended] = 0
            states = step.states
        return Episodes(
            panel,
            returns=stats.returns,
            lengths=stats.lengths,
            by_rule=stats.success if stats.knows_success else {},
            rule=task.success,
            rewards=None if scorer is None else scorer.means(),
            measures=stats.measures,
        )
    finally:
        envs.close()


def _count_step(
    stats: EpisodeStats, step: Transitions, playing: np.ndarray, episodes: np.ndarray, measures: Sequence[str]
) -> None:
    """Add a step of the environments that are playing, bool[N], to the statistics of their episodes."""
    success = None
    if step.success is not None:
        success = step.success[playing]
    values = {}
    for name in measures:
        flag = step.flag(name)
        if flag is not None:
            values[name] = flag[playing]
    stats.add(episodes, step.rewards[playing], success, values)


class _EpisodeScorer:
    """Scores observed steps in batches, and averages the rewards of each episode."""

    def __init__(self, model: RewardModel, episodes: int) -> None:
        self._model = model
        self._scores_single_steps = model.window == 1 and not model.sees_past
        self._stream = RewardStream(model)
        self._streams: dict[int, RewardStream] = {}
        """Of each environment, for a model that is shown earlier frames."""
        self._sums = np.zeros(episodes)
        self._counts = np.zeros(episodes, np.int64)
        self._steps: list[dict[str, np.ndarray]] = []
        self._scored: list[np.ndarray] = []
        self._episodes: list[np.ndarray] = []
        self._bytes = 0

    def add(self, step: Transitions, scored: np.ndarray, episodes: np.ndarray) -> None:
        """Take in a step of N environments: bool[N], which of them are scored, and int[k], their episodes."""
        if not scored.any():
            return
        arrays = step_clip(step)
        if self._scores_single_steps:
            # Each step is scored by itself, so that only those that are scored are kept, one after the other.
            arrays = {name: array[scored] for name, array in arrays.items()}
        else:
            arrays = {name: array.copy() for name, array in arrays.items()}
        self._steps.append(arrays)
        self._scored.append(scored)
        self._episodes.append(episodes)
        if "frames" in arrays:
            self._bytes += arrays["frames"].nbytes
        if sum(map(len, self._episodes)) >= SCORED_AT_ONCE or self._bytes >= SCORED_BYTES:
            self._score()

    def means(self) -> np.ndarray:
        """float[episodes], the mean reward of each episode's scored steps."""
        self._score()
        return self._sums / self._counts

    def _score(self) -> None:
        if not self._steps:
            return
        if self._scores_single_steps:
            rewards = self._stream(Clip.of_arrays(_in_a_row(self._steps)))[0]
        elif self._model.sees_past:
            rewards = self._of_each_environment(stacked(self._steps), np.stack(self._scored))
        else:
            rewards = self._stream(stacked(self._steps))[np.stack(self._scored)]
        # An episode may have several steps in a batch: `+=` would count but one of them.
        episodes = np.concatenate(self._episodes)
        np.add.at(self._sums, episodes, rewards.astype(np.float64))
        np.add.at(self._counts, episodes, 1)
        self._steps.clear()
        self._scored.clear()
        self._episodes.clear()
        self._bytes = 0

    def _of_each_environment(self, clip: Clip, scored: np.ndarray) -> np.ndarray:
        """float32[k], the rewards of the k steps that are scored, bool[T, N]: such models are dear, and are shown
        nothing of environments whose last episode has ended."""
        rewards = np.zeros(clip.shape, np.float32)
        for env, count in enumerate(scored.sum(axis=0).tolist()):
            if count:
                stream = self._streams.setdefault(env, RewardStream(self._model))
                rewards[:count, env] = stream(clip.column(env)[:count])[:, 0]
        of_scored: np.ndarray = rewards[scored]
        return of_scored


def _in_a_row(steps: Sequence[Mapping[str, np.ndarray]]) -> dict[str, np.ndarray]:
    """Clip arrays [1, M, …] of the M environments of several steps, as if they were one step's."""
    names = dict.fromkeys(name for step in steps for name in step)  # in order of appearance
    # A success that is not stated is False, as in `stacked`.
    return {
        name: np.concatenate([step.get(name, np.zeros_like(step["first"])) for step in steps])[None] for name in names
    }


def stacked(steps: Sequence[Mapping[str, np.ndarray]]) -> Clip:
    """The clip of T steps. Some environments state success at some steps only, such as the last of an episode; it is
    False at the others."""
    names = dict.fromkeys(name for step in steps for name in step)  # in order of appearance
    names.pop(RESET_FRAMES, None)
    unstated = np.zeros_like(steps[0]["first"])
    arrays = {name: np.stack([step.get(name, unstated) for step in steps]) for name in names}
    resets = [
        Past.of_resets(row, step["first"], step[RESET_FRAMES]) for row, step in enumerate(steps) if RESET_FRAMES in step
    ]
    return replace(Clip.of_arrays(arrays), past=Past.joined(resets))


def step_clip(step: Transitions) -> dict[str, np.ndarray]:
    """Clip arrays of a single step, [N, …] each (see `sightline.rewards.base.Clip`); and, if they were drawn, the reset
    frames [K, …] of the K episodes that begin with it."""
    arrays = {
        "first": step.first,
        "env_reward": step.rewards.astype(np.float32),
        "ended": step.ended,
        "terminated": step.terminated,
    }
    # Reward models read states as one array; those of several parts are for policies alone.
    if isinstance(step.final_states, np.ndarray):
        arrays["states"] = step.final_states
    if step.frames is not None:
        arrays["frames"] = step.frames
    if step.success is not None:
        arrays["success"] = step.success
    if step.reset_frames is not None:
        arrays[RESET_FRAMES] = step.reset_frames
    return arrays


@dataclass(frozen=True)
class FilmedEpisode:
    """One episode for a video.

    Attributes:
        frames: T of a video's size.
        rewards: float32[T], the reward model's of its own frames, or the environment's own without a reward model.
        repeats: False if the environment does not repeat itself from its seed. `frames` are then those of the episode
            that was judged, as the reward model read them, and not those for people.
    """

    frames: Reel
    rewards: np.ndarray
    repeats: bool = True


def play_one(
    policy: Policy,
    make: MakeEnv,
    seed: int,
    reward_model: RewardModel | None,
    make_for_display: MakeEnv,
    workers: Workers = "inline",
    needs_reward: bool = True,
) -> FilmedEpisode:
    """Play one episode for a video: frames for the viewer, and the reward model's rewards of its own frames.

    The episode is played to be judged, and once more with the same seed and actions to be shown: some simulators allow
    one environment in a process, or close what another one needs.

    Args:
        make: makes the environment whose frames the reward model reads.
        make_for_display: the same environment with frames for people.
        workers: where it is stepped; see `FrameVectorEnv`.
        needs_reward: see `play_panel`.

    Raises:
        RunFailed: the environment failed, or a reward is no finite number.
    """
    reads_frames = reward_model is not None and "frames" in reward_model.needs
    shrink = frame_shrinker(reward_model)
    sees_past = reward_model is not None and reward_model.sees_past
    envs = FrameVectorEnv(
        make, 1, lambda *_: seed, reads_frames, workers, shrink, needs_reward=needs_reward, resets=sees_past
    )
    episode = _play_scored(policy, envs, reward_model)
    display = FrameVectorEnv(make_for_display, 1, lambda *_: seed, True, workers, at_video_size, needs_reward=False)
    frames = _play_again(episode, display)
    if frames is not None:
        return FilmedEpisode(frames, episode.rewards)
    # The environment does not repeat itself: frames and rewards must come from one and the same episode.
    if not reads_frames:
        # No frame of it was drawn, so that another episode is judged, and drawn for people.
        envs = FrameVectorEnv(
            make_for_display, 1, lambda *_: seed, True, workers, at_video_size, needs_reward=needs_reward
        )
        episode = _play_scored(policy, envs, reward_model)
    return FilmedEpisode(episode.frames, episode.rewards, repeats=False)


@dataclass(frozen=True)
class _ScoredEpisode:
    """Episode with rewards: its actions, what they led to, and its frames, if any were drawn."""

    rewards: np.ndarray
    actions: list[np.ndarray]
    outcomes: list[Any]
    frames: Reel


def _play_scored(policy: Policy, envs: FrameVectorEnv, reward_model: RewardModel | None) -> _ScoredEpisode:
    """Play an episode in the one environment of `envs`, which is closed then."""
    stream = None if reward_model is None else RewardStream(reward_model)
    steps: list[dict[str, np.ndarray]] = []  # those without a reward so far
    rewards: list[np.ndarray] = []
    actions: list[np.ndarray] = []
    outcomes: list[Any] = []
    reel = Reel()

    def score_steps() -> None:
        clip = stacked(steps)
        if stream is None:
            assert clip.env_reward is not None, "environments have rewards"
            rewards.append(clip.env_reward)
        else:
            rewards.append(stream(clip))
        steps.clear()

    try:
        states = envs.reset()
        ended = False
        while not ended:
            actions.append(np.array(policy(states)))
            step = envs.step(actions[-1])
            outcomes.append(_outcome(step))
            steps.append({name: array.copy() for name, array in step_clip(step).items()})
            if step.frames is not None:
                reel.append(at_video_size(step.frames)[0])
                # The steps hold the frames at full size; those of a long episode would not fit into memory.
                if len(steps) * step.frames.nbytes >= SCORED_BYTES:
                    score_steps()
            states = step.states
            ended = bool(step.ended[0])
        if steps:
            score_steps()
    finally:
        envs.close()
    return _ScoredEpisode(np.concatenate(rewards)[:, 0].astype(np.float32), actions, outcomes, reel)


def _play_again(episode: _ScoredEpisode, envs: FrameVectorEnv) -> Reel | None:
    """The frames of an episode as another environment draws them, which is closed then; None if it does not go as it
    went."""
    try:
        envs.reset()
        reel = Reel()
        for action, outcome in zip(episode.actions, episode.outcomes, strict=True):
            step = envs.step(action)
            if not equal(_outcome(step), outcome, ROUNDING):
                return None
            assert step.frames is not None
            reel.append(step.frames[0])
        return reel
    finally:
        envs.close()


def _outcome(step: Transitions) -> tuple[Any, ...]:
    """What a step of one environment led to, by which two plays of an episode are told apart.

    Observations that are pictures are left out: many have the size of what is drawn.
    """
    observations = step.final_states
    if not isinstance(observations, dict):
        observations = {"": observations}
    outcome = [step.rewards.copy(), step.ended.copy()]
    for observation in observations.values():
        is_picture = observation.ndim > 2
        if not is_picture:
            outcome.append(np.array(observation))
    return tuple(outcome)
