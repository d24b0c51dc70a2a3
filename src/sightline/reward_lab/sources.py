"""Where the lab's episodes come from: play, a sweep over states, pictures, a video.

Sources give one episode at a time, and the same ones each time they are asked: rewards that read other pictures of them
are given the same states.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

from sightline.config.loading import for_control
from sightline.control.learners import greedy
from sightline.control.resolving import env_maker
from sightline.control.state import chosen_policy
from sightline.datasets.episode import Episode
from sightline.datasets.stored import StoredEpisode, is_successful
from sightline.envs.games.wrapping import has_oracle, oracle
from sightline.envs.making import EnvMaker
from sightline.envs.stepping import CheckedEnv, Shrink, close_env
from sightline.envs.tasks import Task, find_task
from sightline.errors import BadInput, why_unreadable
from sightline.evaluation.landscape import grid_points, put_into, put_state
from sightline.evaluation.recording import Policy, random_policy, record_episodes
from sightline.evaluation.seeds import make_panel
from sightline.runs.folder import RunFolder

STILLS = 256
"""Pictures that do not follow each other and are handed on together."""


@dataclass(frozen=True)
class Source:
    """Source of episodes.

    Attributes:
        name: such as "random".
        episodes: gives the episodes, from what makes the environment and what makes its frames smaller; files need
            neither.
        plays: whether it needs the environment.
        still: whether frames do not follow each other, so that each is an episode of its own.
        joined: whether its episodes are parts of one, which is too long for memory.
    """

    name: str
    episodes: Callable[[EnvMaker, Shrink], Iterator[Episode]]
    plays: bool = True
    still: bool = False
    joined: bool = False


def play_seeds(task: Task, episodes: int, seed: int) -> tuple[int, ...]:
    """Seeds of the episodes that are played; apart from those of training and of evaluation."""
    return make_panel("lab", task.env, episodes, seed).seeds


def random_play(task: Task, episodes: int, seed: int) -> Source:
    """Episodes whose actions are drawn at random."""
    seeds = play_seeds(task, episodes, seed)

    def play(make: EnvMaker, shrink: Shrink) -> Iterator[Episode]:
        return record_episodes(make, None, seeds, "random", shrink=shrink, name=task.name)

    return Source("random", play)


def scripted_play(task: Task, make: EnvMaker, episodes: int, seed: int) -> Source | None:
    """Episodes of the environment's own script: its `oracle()`, or its `solution()`; None where it has neither."""
    env = make()
    has_script = _script_of(task, env) is not None
    close_env(env)
    if not has_script:
        return None

    def play(make: EnvMaker, shrink: Shrink) -> Iterator[Episode]:
        playing: list[Any] = []

        # The script looks at the environment itself, and not at what a policy sees of it.
        def make_and_keep() -> Any:
            playing[:] = [make()]
            return playing[0]

        def act(states: Any) -> np.ndarray:
            script = _script_of(task, playing[0])
            assert script is not None, "it has one"
            return np.asarray(script())[None]

        seeds = play_seeds(task, episodes, seed)
        return record_episodes(make_and_keep, act, seeds, "scripted", shrink=shrink, name=task.name)

    return Source("scripted", play)


def _script_of(task: Task, env: Any) -> Callable[[], Any] | None:
    """What chooses the next action from the environment's present state."""
    inner = env.unwrapped
    if callable(getattr(inner, "solution", None)):
        return lambda: np.asarray(inner.solution(), env.action_space.dtype)
    if not has_oracle(env):
        return None
    names: Sequence[str] = list(task.actions) or list(getattr(inner, "action_names", ()))

    def choose() -> Any:
        name = oracle(env)
        # An oracle that knows no move is followed by any.
        if name is None or name not in names:
            return env.action_space.sample()
        if isinstance(task.actions, Mapping):
            return np.asarray(task.actions[name], env.action_space.dtype)
        return np.int64(names.index(name))

    return choose


def state_sweep(task: Task, seed: int) -> Source | None:
    """States of the task's grid, each after one random step: so the environment says what it is worth.

    None where the task has no axes.
    """
    if task.state_at is None:
        return None

    def put(env: gymnasium.Env[Any, Any], point: np.ndarray) -> None:
        put_into(env, task, point)

    def sweep(make: EnvMaker, shrink: Shrink) -> Iterator[Episode]:
        return _swept(task, make, shrink, grid_points(task), put, "states", seed)

    return Source("states", sweep, still=True)


def _swept(
    task: Task,
    make: EnvMaker,
    shrink: Shrink,
    points: np.ndarray,
    put: Callable[[gymnasium.Env[Any, Any], np.ndarray], None],
    source: str,
    seed: int,
) -> Iterator[Episode]:
    """States float64[K, D] that an environment is put into, each after one random step."""
    env = CheckedEnv(make(), True, task.name, shrink=shrink, needs_reward=False)
    env.env.action_space.seed(seed)
    try:
        for start in range(0, len(points), STILLS):
            steps = []
            for point in points[start : start + STILLS]:
                env.reset(0)  # what an episode has come to is forgotten
                put(env.env, point)
                # Some simulators write every observation into one array.
                step = env.step(env.env.action_space.sample(), True)
                steps.append(replace(step, state=copy.deepcopy(step.state)))
            yield _stills(source, steps)
    finally:
        env.close()


def states_of_file(task: Task, file: Path, seed: int, warn: Callable[[str], None]) -> Source:
    """States float[K, D] in a file, each after one random step: for environments without a grid of their own.

    Raises:
        BadInput: the file holds no such array.
    """
    points = _states_in(file, warn)

    def sweep(make: EnvMaker, shrink: Shrink) -> Iterator[Episode]:
        return _swept(task, make, shrink, points, put_state, file.name, seed)

    return Source(file.name, sweep, still=True)


def _states_in(file: Path, warn: Callable[[str], None]) -> np.ndarray:
    """float64[K, D] of a file, without rows that are not finite."""
    try:
        states = np.load(file, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise BadInput(
            f"--states: '{file}' cannot be read as an array (numpy.save): {why_unreadable(error)}"
        ) from error
    if not (isinstance(states, np.ndarray) and states.ndim == 2 and states.dtype.kind in "iuf" and states.size):
        shape = list(states.shape) if isinstance(states, np.ndarray) else "several arrays"
        raise BadInput(f"--states: '{file}' must hold an array of numbers with a state in each row, and holds {shape}")
    is_finite = np.isfinite(states).all(axis=1)
    unusable = int(np.count_nonzero(~is_finite))
    if unusable == len(states):
        raise BadInput(f"--states: no state in '{file}' is finite")
    if unusable:
        warn(f"states of '{file}' that are left out, since they are not finite: {unusable}")
    return states[is_finite].astype(np.float64)


def shown_goals(task: Task, count: int, seed: int) -> Source | None:
    """States that show the goal, as the task knows them, each after one random step.

    None where the task knows none; those of a sweep over states are known by the environment.
    """
    show_goal = task.show_goal
    if show_goal is None:
        return None

    def show(make: EnvMaker, shrink: Shrink) -> Iterator[Episode]:
        env = CheckedEnv(make(), True, task.name, shrink=shrink, needs_reward=False)
        env.env.action_space.seed(seed)
        rng = np.random.default_rng(seed)
        try:
            steps = []
            for number in range(count):
                env.reset(number)
                show_goal(env.env.unwrapped, rng)
                steps.append(env.step(env.env.action_space.sample(), True))
            # The environment may want a success to last, and these states have just begun.
            yield replace(_stills("goal", steps), success=np.ones(count, bool))
        finally:
            env.close()

    return Source("goal", show, still=True)


def beside_the_goal(source: Source) -> Source:
    """The same episodes, of which those that state no success have none."""

    def read(make: EnvMaker, shrink: Shrink) -> Iterator[Episode]:
        for episode in source.episodes(make, shrink):
            yield episode if episode.success is not None else replace(episode, success=np.zeros(episode.steps, bool))

    return replace(source, episodes=read)


def _stills(source: str, steps: Sequence[Any]) -> Episode:
    flags = [step.flags.get("success", step.flags.get("is_success")) for step in steps]
    success = None
    if any(flag is not None for flag in flags):
        success = np.array([bool(flag) for flag in flags])
    return Episode(
        source,
        frames=np.stack([step.frame for step in steps]),
        states=np.stack([step.state for step in steps]) if isinstance(steps[0].state, np.ndarray) else None,
        env_reward=np.array([np.nan if step.reward is None else step.reward for step in steps], np.float32),
        success=success,
    )


def ranked(source: Source, task: Task, failure: str = "failure") -> Source:
    """The same episodes with their quality, by the task's rule for success, where the environment states it.

    Args:
        failure: quality of those that are no success, "failure" or "suboptimal", which are Robometer's words.
    """

    def read(make: EnvMaker, shrink: Shrink) -> Iterator[Episode]:
        for episode in source.episodes(make, shrink):
            if episode.success is None:
                yield episode
                continue
            quality = failure
            if is_successful(episode.success, task.success):
                quality = "successful"
            yield StoredEpisode.of(episode, quality=quality)

    return replace(source, episodes=read)


def trained_play(run: RunFolder, env: str, episodes: int, seed: int, trust: bool, random_share: float = 0.0) -> Source:
    """Episodes of the policy that a run has chosen.

    Args:
        random_share: chance of each action to be drawn at random instead, from 0 to 1.

    Raises:
        BadInput: it is a run of another environment, has chosen nothing yet, or names code of its own.
    """
    recipe = for_control(run.trusted_recipe(trust, asks=False))
    if recipe.env != env:
        raise BadInput(f"--run '{run.path}' is of the environment '{recipe.env}', and the rewards are of '{env}'")
    policy = greedy(chosen_policy(run, trust))
    name = run.path.name
    if random_share:
        name += f", {random_share:.0%} random"
    own = env_maker(recipe, None)
    task = find_task(env)

    def play(make: EnvMaker, shrink: Shrink) -> Iterator[Episode]:
        # The policy reads and acts as in its run; the pictures are those of the rewards.
        as_learned = replace(
            make, rescale=own.rescale, observation_keys=own.observation_keys, enumerates=own.enumerates
        )
        acting = policy
        if random_share:
            acting = _sometimes_random(policy, as_learned, random_share, seed)
        seeds = play_seeds(task, episodes, seed)
        return record_episodes(as_learned, acting, seeds, name, shrink=shrink, name=task.name)

    return Source(name, play)


def _sometimes_random(policy: Policy, make: EnvMaker, share: float, seed: int) -> Policy:
    """A policy of which a share of the actions is drawn at random."""
    env = make()
    anything = random_policy(env.action_space, seed)
    close_env(env)
    rng = np.random.default_rng(seed)
    return lambda states: anything(states) if rng.random() < share else policy(states)
