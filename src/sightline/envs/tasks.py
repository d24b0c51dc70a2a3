"""Task declarations: environments with a goal in words and a rule for success.

Any other environment becomes a task when the user gives it a goal.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

from sightline import registry
from sightline.envs import CARTPOLE_CONTINUOUS_ID, CARTPOLE_ID, METAWORLD_ID, MOUNTAIN_CAR_ID
from sightline.errors import BadInput


@dataclass(frozen=True)
class Axis:
    """Axis of a reward landscape: one quantity of the state, swept from `low` to `high` in `points` steps."""

    name: str
    unit: str
    low: float
    high: float
    points: int


@dataclass(frozen=True)
class Task:
    """Task: an environment, default goal and baseline sentences, and a rule for success.

    Attributes:
        name: name in recipes and commands.
        env: a Gymnasium id, or `module:attribute`.
        goal, baseline: default sentences; empty if the user has to give them.
        success: an episode succeeds if `info["success"]` is true at `every` step, or at `any` step.
        env_options: keyword arguments for the environment.
        measures: further boolean infos, reported as the share of episodes in which they are true at every step.
        axes: one or two quantities that determine the frame, for the reward landscape.
        state_at: values of the axes -> the environment's `state` attribute.
        summary: one line for lists.
    """

    name: str
    env: str
    goal: tuple[str, ...] = ()
    baseline: tuple[str, ...] = ()
    success: Literal["every", "any"] = "any"
    env_options: dict[str, Any] = field(default_factory=dict)
    measures: tuple[str, ...] = ()
    axes: tuple[Axis, ...] = ()
    state_at: Callable[..., list[float]] | None = None
    summary: str = ""


_AT_THE_FLAG = ("a car at the peak of the mountain, next to the yellow flag",)
_IN_THE_MOUNTAIN = ("a car in the mountain",)

CARTPOLE = Task(
    name="cartpole",
    env=CARTPOLE_ID,
    goal=("pole vertically upright on top of the cart",),
    baseline=("pole and cart",),
    success="every",
    measures=("away_from_wall",),
    axes=(Axis("pole angle", "degrees", -180, 180, 61), Axis("cart position", "m", -2.4, 2.4, 25)),
    state_at=lambda angle, position: [position, 0.0, angle * 3.141592653589793 / 180, 0.0],
    summary="Balance a pole on a cart; success: within 12 degrees of upright through the whole episode.",
)
CARTPOLE_CONTINUOUS = Task(
    name="cartpole-continuous",
    env=CARTPOLE_CONTINUOUS_ID,
    goal=("pole vertically upright on top of the cart",),
    baseline=("pole and cart",),
    success="every",
    axes=(Axis("pole angle", "degrees", -30, 30, 61),),
    state_at=lambda angle: [0.0, 0.0, angle * 3.141592653589793 / 180, 0.0],
    summary="Balance a pole with a free force; success: within 5 degrees of upright through the whole episode.",
)
MOUNTAIN_CAR = Task(
    name="mountain-car",
    env=MOUNTAIN_CAR_ID,
    goal=_AT_THE_FLAG,
    baseline=_IN_THE_MOUNTAIN,
    axes=(Axis("car position", "", -1.2, 0.6, 91),),
    state_at=lambda position: [position, 0.0],
    summary="Swing a weak car up to the flag; success: the flag is reached. Plain look.",
)
MOUNTAIN_CAR_TEXTURED = Task(
    name="mountain-car-textured",
    env=MOUNTAIN_CAR_ID,
    goal=_AT_THE_FLAG,
    baseline=_IN_THE_MOUNTAIN,
    env_options={"look": "textured"},
    axes=(Axis("car position", "", -1.2, 0.6, 91),),
    state_at=lambda position: [position, 0.0],
    summary="The same under a sky, on a green mountain.",
)
DRAWER_OPEN = Task(
    name="drawer-open",
    env=METAWORLD_ID,
    goal=("the drawer of the green cabinet is pulled out all the way",),
    baseline=("a green cabinet with a drawer on a table",),
    env_options={"task": "drawer-open"},
    summary="Meta-World: pull a drawer open with a robot arm; success: it is open at any time (and at the end).",
)
SWEEP_INTO = Task(
    name="sweep-into",
    env=METAWORLD_ID,
    goal=("the green cube lies in the middle of the square hole in the table",),
    baseline=("a green cube on a table with a square hole",),
    env_options={"task": "sweep-into"},
    summary="Meta-World: sweep a cube into a hole; success: it is there at any time (and at the end).",
)
SOCCER = Task(
    name="soccer",
    env=METAWORLD_ID,
    goal=("the soccer ball is inside the goal",),
    baseline=("a soccer ball and a goal on a table",),
    env_options={"task": "soccer"},
    summary="Meta-World: push a ball into a goal; success: it is there at any time (and at the end).",
)
PENDULUM = Task(
    name="pendulum",
    env="Pendulum-v1",
    goal=("a rod standing upright",),
    baseline=("a rod",),
    axes=(Axis("angle", "degrees", -180, 180, 91),),
    state_at=lambda angle: [angle * 3.141592653589793 / 180, 0.0],
    summary="Gymnasium's Pendulum-v1 with its own pictures; it states no success, so returns are reported.",
)


def find_task(env: str) -> Task:
    """Find a task by its name; for any other environment, make a task without goal and baseline.

    Raises:
        BadInput: the name is that of a game, or its package cannot be imported.
    """
    if env not in registry.names("env"):
        return Task(name=env, env=env)
    found = registry.find("env", env)
    if not isinstance(found, Task):
        raise BadInput(f"'{env}' is a game for agents, not a task for a policy on states; say role=agent")
    return found
