"""Private parts of Stable-Baselines3 that training relies on, each in this one place.

A resumed run must go on from the very observation and schedule that it was left with, and our loops call what SB3's own
loops call. SB3 offers no public way to either. `tests/test_private_parts.py` says which of these a version lacks.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm

from sightline.envs.observations import Observations


def last_observations(model: BaseAlgorithm) -> Observations:
    """The observations [N, …] that the learner acts on next: those after its last vector step, or after a reset."""
    observations: Any = model._last_obs
    assert observations is not None, "environments are reset before the first step"
    return observations  # type: ignore[no-any-return]


def set_last_observations(model: BaseAlgorithm, observations: Observations) -> None:
    """Have the learner act on these observations [N, …] next."""
    model._last_obs = observations


def episode_starts(model: OnPolicyAlgorithm) -> np.ndarray:
    """bool[N]: whether the last observations are the first ones of episodes, where returns are cut."""
    starts = model._last_episode_starts
    assert starts is not None, "episodes are begun before the first step"
    return starts


def set_episode_starts(model: OnPolicyAlgorithm, starts: np.ndarray) -> None:
    """Say whether the last observations are the first ones of episodes, bool[N]."""
    model._last_episode_starts = starts


def advance_schedules(model: BaseAlgorithm, step: int, steps: int) -> None:
    """Set the share of training that remains, which the learning rate and others follow, after `step` of `steps`."""
    model._update_current_progress_remaining(step, steps)


def begin_learning(model: OffPolicyAlgorithm, remaining: int) -> int:
    """Prepare a learner as its own `learn` does, and give the number of steps in all, with those made before."""
    total, _ = model._setup_learn(remaining, reset_num_timesteps=False)
    return total


def count_vector_step(model: OffPolicyAlgorithm, envs: int, total: int) -> None:
    """Do what SB3's loop does after each vector step, but for stepping: count, and move schedules and target networks.

    Args:
        envs: transitions of a vector step.
        total: what `begin_learning` gave.
    """
    model.num_timesteps += envs
    advance_schedules(model, model.num_timesteps, total)
    model._on_step()


def names_of_tensors(model: BaseAlgorithm) -> tuple[list[str], list[str]]:
    """Names of the modules and optimisers that a learner saves, and of its single tensors, such as `log_ent_coef`."""
    return model._get_torch_save_params()
