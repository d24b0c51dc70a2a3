"""Runs whose landscapes have few points, and whose files are not waited for: both take longer than tiny runs do.
Their encoders compute in float32, so that numbers are the same on all processors.

What is written is in the system's memory when a process is killed; only a machine that loses power needs `fsync`.
"""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any

import torch

from sightline.control import precision
from sightline.envs.frame_vector import MakeEnv
from sightline.envs.tasks import Task
from sightline.evaluation import landscape
from sightline.rewards.base import RewardModel

POINTS = 3
full_landscape = landscape.reward_landscape
"""Scores all points that the axes of a task say."""


def lighten_runs() -> None:
    """Have the runs of this process be light from now on; their code is imported after this."""
    landscape.reward_landscape = _small_landscape
    os.fsync = _do_not_wait
    vars(precision)["fast_dtype"] = lambda *devices: torch.float32


def _small_landscape(task: Task, make: MakeEnv, reward_model: RewardModel) -> dict[str, Any] | None:
    axes = tuple(replace(axis, points=min(axis.points, POINTS)) for axis in task.axes)
    return full_landscape(replace(task, axes=axes), make, reward_model)


def _do_not_wait(fd: Any) -> None:
    pass
