"""Gymnasium's Pendulum-v1 as a task."""

from __future__ import annotations

from sightline.envs.tasks import Axis, Task

TASK = Task(
    name="pendulum",
    env="Pendulum-v1",
    goal=("a rod standing upright",),
    baseline=("a rod",),
    axes=(Axis("angle", "degrees", -180, 180, 91),),
    state_at=lambda angle: [angle * 3.141592653589793 / 180, 0.0],
    prompt="The pictures show a rod that turns around an axle, first as it was a moment ago and then as it is now. "
    "The motor is weak: the rod has to be swung up, and then held up.",
    actions={"turn left": [2.0], "let go": [0.0], "turn right": [-2.0]},
    frames=2,
    summary="Gymnasium's Pendulum-v1 with its own pictures; it states no success, so returns are reported.",
)
