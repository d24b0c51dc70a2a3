"""Play episodes and keep all of each, one at a time: its frames, states, actions and rewards."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any

import gymnasium
import numpy as np

from sightline.datasets.episode import Episode
from sightline.envs.frame_vector import MakeEnv
from sightline.envs.observations import Observations, each_part
from sightline.envs.stepping import CheckedEnv, Shrink, Step
from sightline.runs.stopping import give_up_if_overdue

Policy = Callable[[Observations], np.ndarray]
"""States [1, …] -> actions [1, …]."""


def random_policy(actions: gymnasium.Space[Any], seed: int = 0) -> Policy:
    """A policy that draws every action from an action space, as often as it is asked."""
    space = copy.deepcopy(actions)  # the environment may draw from its own
    space.seed(seed)
    return lambda _: np.asarray(space.sample())[None]


def record_episodes(
    make: MakeEnv,
    policy: Policy | None,
    seeds: Iterable[int],
    source: str,
    *,
    frames: bool = True,
    shrink: Shrink | None = None,
    name: str = "the environment",
) -> Iterator[Episode]:
    """Play one episode for each seed, and give it as soon as it has ended; memory holds one episode at a time.

    Args:
        make: makes the environment, which is played in this process and closed at the end.
        policy: chooses actions; None draws them at random, each episode from its own seed.
        seeds: of the episodes.
        source: name of what plays, for `Episode.source`.
        frames: whether to draw the state before the first step, and that after every step.
        shrink: makes frames smaller as soon as they are taken; None keeps their size.
        name: of the environment, in error messages.

    Raises:
        RunFailed: the environment failed; the line names the seed and the step.
    """
    env = make()
    checked = CheckedEnv(env, frames, name, shrink=shrink, needs_reward=False)
    try:
        for seed in seeds:
            acting = policy or random_policy(env.action_space, seed)
            yield _played(checked, acting, seed, source, frames)
    finally:
        checked.close()


def _played(env: CheckedEnv, policy: Policy, seed: int, source: str, frames: bool) -> Episode:
    """Play one episode to its end."""
    reset_state = copy.deepcopy(env.reset(seed))
    reset_frame = env.frame() if frames else None
    state = reset_state
    actions: list[np.ndarray] = []
    steps: list[Step] = []
    while not steps or not (steps[-1].terminated or steps[-1].truncated):
        give_up_if_overdue()
        action = policy(each_part(lambda part: np.asarray(part)[None], state))[0]
        step = env.step(action, frames)
        actions.append(np.array(action))
        # Some simulators write every observation into one array.
        steps.append(replace(step, state=copy.deepcopy(step.state)))
        state = step.state
    is_one_array = not isinstance(reset_state, dict)
    return Episode(
        source,
        frames=np.stack([step.frame for step in steps if step.frame is not None]) if frames else None,
        reset_frame=reset_frame,
        states=np.stack([step.state for step in steps]) if is_one_array else None,
        reset_state=np.array(reset_state) if is_one_array else None,
        actions=np.stack(actions),
        env_reward=_own_rewards(steps),
        success=_successes(steps),
        terminated=steps[-1].terminated,
        seed=seed,
        fps=float(env.description().frames_per_second),
    )


def _own_rewards(steps: list[Step]) -> np.ndarray | None:
    """float32[T], the environment's own rewards; None if one of them is no finite number."""
    rewards = [step.reward for step in steps if step.reward is not None]
    if len(rewards) < len(steps):
        return None
    return np.array(rewards, np.float32)


def _successes(steps: list[Step]) -> np.ndarray | None:
    """bool[T], success as the infos `success` or else `is_success` state it; None where no step does.

    Some environments state it at the last step alone; it is False at the others.
    """
    for key in ("success", "is_success"):
        if any(key in step.flags for step in steps):
            return np.array([step.flags.get(key, False) for step in steps])
    return None
