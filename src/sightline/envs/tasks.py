"""Tasks: the specification of an environment, apart from who acts in it and what rewards it.

A task says how an environment is made, what its goal is in words, when an episode is a success, and how a
vision-language model plays it. Every task is listed by `sightline tasks`; any other environment becomes one when the
user gives it a goal (for a reward in words or a teacher) or a prompt and names of actions (for an agent).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, get_args

from sightline import registry
from sightline.errors import BadInput, one_of

if TYPE_CHECKING:
    import numpy as np

SuccessRule = Literal["every", "any", "end"]
StatesSuccess = str | Callable[[float, Mapping[str, Any]], bool]
"""What says that a state is a success: the key of an info; `reward`, if it is positive; or a function of reward and
infos."""


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
    """Task: an environment, its goal in words, a rule for success, and how an agent sees and acts.

    Attributes:
        name: name in recipes and commands.
        env: a Gymnasium id, or `module:attribute`.
        goal, baseline: default sentences; empty if the user has to give them.
        success: an episode succeeds if `info["success"]` is true at `every` step, at `any` step, or at its `end`.
        success_from: what says that a state is a success; None: the infos `success` and `is_success`.
        env_options: keyword arguments for the environment.
        training_options: those that differ while a policy on states learns, such as simpler and faster physics.
        measures: further boolean infos, reported as the share of episodes in which they are true by the rule `success`.
        axes: one or two quantities that determine the frame, for the reward landscape.
        state_at: values of the axes -> the environment's `state` attribute.
        show_goal: puts the environment itself (unwrapped, and begun) into a state that shows the goal, drawn from a
            generator, for checks of rewards before training; None: those of the axes' states that are a success.
        prompt: what an agent is told in every turn; `{actions}` are the names of its actions, `{mission}` is the task
            of the episode, from the info or the observation `mission`. None for an environment that has words of its
            own (`sightline.envs.games.contract.Game`), and for one that an agent cannot play
            unless the user writes a prompt.
        actions: names of the agent's actions in the order of their numbers, or name -> value where actions are not
            numbered; empty for the environment's own `action_names`.
        frames: number of last frames that an agent is shown in each turn.
        summary: one line for lists.
        is_game: whether the environment has words of its own and actions with names.
        text_actions: whether its actions are words that differ from state to state, which only an agent can say.

    Raises:
        BadInput: an attribute is of another type, or `success` is no rule. A text counts as a list of it alone where
            texts are listed.
    """

    name: str
    env: str
    goal: tuple[str, ...] = ()
    baseline: tuple[str, ...] = ()
    success: SuccessRule = "any"
    success_from: StatesSuccess | None = None
    env_options: dict[str, Any] = field(default_factory=dict)
    training_options: dict[str, Any] = field(default_factory=dict)
    measures: tuple[str, ...] = ()
    axes: tuple[Axis, ...] = ()
    state_at: Callable[..., list[float]] | None = None
    show_goal: Callable[[Any, np.random.Generator], None] | None = None
    prompt: str | None = None
    actions: Sequence[str] | Mapping[str, Any] = ()
    frames: int = 1
    summary: str = ""
    is_game: bool = False
    text_actions: bool = False

    def __post_init__(self) -> None:
        for option in ("name", "env"):
            value = getattr(self, option)
            if not isinstance(value, str):
                raise BadInput(f"Task.{option} must be a text, such as 'my_package:MyEnv', not {value!r:.80}")
        for option in ("goal", "baseline", "measures"):
            value = getattr(self, option)
            # One text is one sentence, as in a recipe; Python would take it for its letters.
            texts = [value] if isinstance(value, str) else value
            if not (isinstance(texts, list | tuple) and all(isinstance(text, str) for text in texts)):
                raise BadInput(f"Task.{option} of '{self.name}' must be a tuple of texts, not {value!r:.80}")
            object.__setattr__(self, option, tuple(texts))
        if isinstance(self.actions, str):
            raise BadInput(f"Task.actions of '{self.name}' must be a tuple of names, not {self.actions!r:.80}")
        one_of(f"success of the task '{self.name}'", self.success, get_args(SuccessRule))

    @property
    def roles(self) -> tuple[str, ...]:
        """Who can act: `control` (a policy on states, or on the picture of a game) and `agent`."""
        if self.text_actions:
            return ("agent",)
        if self.is_game or self.prompt:
            return ("control", "agent")
        return ("control",)


def find_task(env: str) -> Task:
    """Find a task by its name; for any other environment, make one without words.

    Raises:
        BadInput: its package cannot be imported, or has registered something else.
    """
    if env not in registry.names("env"):
        return Task(name=env, env=env)
    task = registry.find("env", env)
    if not isinstance(task, Task):
        raise BadInput(f"the environment '{env}' is not a sightline.envs.tasks.Task; its package must register one")
    return task
