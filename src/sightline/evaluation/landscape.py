"""Reward landscape: the reward over the states of a small task, to see if it rises towards the goal."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import gymnasium
import numpy as np

from sightline.envs.frame_vector import MakeEnv
from sightline.envs.frames import rgb_frame
from sightline.envs.stepping import close_env
from sightline.envs.tasks import Task
from sightline.errors import BadInput
from sightline.rewards.base import RewardModel


def reward_landscape(task: Task, make: MakeEnv, reward_model: RewardModel) -> dict[str, Any] | None:
    """Score a grid of states; None where the task declares no axes.

    Returns:
        `{"axes": [{"name", "unit", "values"}], "reward": nested list}`; the first axis varies slowest.
    """
    if task.state_at is None:
        return None
    env: Any = make()
    try:
        env.reset(seed=0)
        # Each state is set and drawn, not reached: no step is made.
        frames = [rgb_frame(env) for _ in _set_states(task, env)]
    finally:
        close_env(env)
    rewards = reward_model(np.stack(frames)).reshape([axis.points for axis in task.axes])
    axes = []
    for axis in task.axes:
        values = np.linspace(axis.low, axis.high, axis.points)
        axes.append({"name": axis.name, "unit": axis.unit, "values": values.tolist()})
    return {"axes": axes, "reward": rewards.tolist()}


def _set_states(task: Task, env: gymnasium.Env[Any, Any]) -> Iterator[None]:
    """Put an environment into each state of its task's grid, one after the other."""
    for point in grid_points(task):
        put_into(env, task, point)
        yield


def put_into(env: gymnasium.Env[Any, Any], task: Task, point: np.ndarray) -> None:
    """Put an environment into the state of a point of its task's grid, float64[axes]."""
    assert task.state_at is not None, "a task with axes"
    inner: Any = env.unwrapped
    inner.state = np.array(task.state_at(*point))


def put_state(env: gymnasium.Env[Any, Any], state: np.ndarray) -> None:
    """Put an environment that has begun into a state float64[D]: by its `set_state(qpos, qvel)`, as MuJoCo's have it,
    or `set_state(state)`, or else as its attribute `state`.

    Raises:
        BadInput: it has neither, or its state holds another number of numbers.
    """
    inner: Any = env.unwrapped
    set_state = getattr(inner, "set_state", None)
    if not callable(set_state):
        own = getattr(inner, "state", None)
        if own is None:
            raise BadInput(
                "the environment cannot be put into a state: give it a method set_state(qpos, qvel) or "
                "set_state(state), or its state as an array in the attribute state"
            )
        _check_width(state, np.size(own), "its attribute state")
        inner.state = np.array(state)
    elif len(inspect.signature(set_state).parameters) == 1:
        set_state(np.array(state))
    else:
        positions = int(inner.model.nq)
        velocities = int(inner.model.nv)
        _check_width(state, positions + velocities, f"set_state: {positions} of qpos, then {velocities} of qvel")
        set_state(state[:positions], state[positions:])


def _check_width(state: np.ndarray, width: int, where: str) -> None:
    if state.size != width:
        raise BadInput(f"a state holds {state.size} numbers, and the environment takes {width} ({where})")


def grid_points(task: Task) -> np.ndarray:
    """float64[points, axes] of a task's grid; the first axis varies slowest."""
    values = [np.linspace(axis.low, axis.high, axis.points) for axis in task.axes]
    return np.stack(np.meshgrid(*values, indexing="ij"), axis=-1).reshape(-1, len(values))
