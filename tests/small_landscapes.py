"""Reward landscapes of few points: scoring a thousand pictures takes longer than the tiny runs of tests do."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from sightline.envs.frame_vector import MakeEnv
from sightline.envs.tasks import Task
from sightline.evaluation import landscape
from sightline.rewards.base import RewardModel

POINTS = 3
full_landscape = landscape.reward_landscape
"""Scores all points that the axes of a task say."""


def leave_landscapes_small() -> None:
    """Have the runs of this process score few points from now on; their code is imported after this."""
    landscape.reward_landscape = _small_landscape


def _small_landscape(task: Task, make: MakeEnv, reward_model: RewardModel) -> dict[str, Any] | None:
    axes = tuple(replace(axis, points=min(axis.points, POINTS)) for axis in task.axes)
    return full_landscape(replace(task, axes=axes), make, reward_model)
