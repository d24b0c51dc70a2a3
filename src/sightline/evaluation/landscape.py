"""Reward landscape: the reward over the states of a small task, to see if it rises towards the goal."""

from __future__ import annotations

from typing import Any

import numpy as np

from sightline.envs.frame_vector import MakeEnv
from sightline.envs.frames import rgb_frame
from sightline.envs.stepping import close_env
from sightline.envs.tasks import Task
from sightline.rewards.base import RewardModel


def reward_landscape(task: Task, make: MakeEnv, reward_model: RewardModel) -> dict[str, Any] | None:
    """Score a grid of states; None where the task declares no axes.

    Returns:
        `{"axes": [{"name", "unit", "values"}], "reward": nested list}`; the first axis varies slowest.
    """
    if task.state_at is None:
        return None
    values = [np.linspace(axis.low, axis.high, axis.points) for axis in task.axes]
    grid = np.stack(np.meshgrid(*values, indexing="ij"), axis=-1)  # [points of the first axis, …, number of axes]
    frames = []
    env: Any = make()
    try:
        env.reset(seed=0)
        # Each state is set and drawn, not reached: no step is made.
        for point in grid.reshape(-1, len(values)):
            env.unwrapped.state = np.array(task.state_at(*point))
            frames.append(rgb_frame(env))
    finally:
        close_env(env)
    rewards = reward_model(np.stack(frames)).reshape(grid.shape[:-1])
    axes = []
    for axis, axis_values in zip(task.axes, values, strict=True):
        axes.append({"name": axis.name, "unit": axis.unit, "values": axis_values.tolist()})
    return {"axes": axes, "reward": rewards.tolist()}
