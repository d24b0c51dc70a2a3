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
    env: Any = make()
    try:
        env.reset(seed=0)
        frames = []
        for point in np.stack(np.meshgrid(*values, indexing="ij"), axis=-1).reshape(-1, len(values)):
            env.unwrapped.state = np.array(task.state_at(*point))
            frames.append(rgb_frame(env))
    finally:
        close_env(env)
    rewards = reward_model(np.stack(frames)).reshape([axis.points for axis in task.axes])
    axes = [{"name": a.name, "unit": a.unit, "values": v.tolist()} for a, v in zip(task.axes, values, strict=True)]
    return {"axes": axes, "reward": rewards.tolist()}
