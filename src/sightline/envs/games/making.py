"""Making a game from its name: one of ours, or any environment with frames and named actions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import gymnasium
from gymnasium import spaces

from sightline import registry
from sightline.envs.games.actions import check_action_names, in_short
from sightline.envs.games.contract import Game
from sightline.envs.games.text_only import TextOnlyWrapper
from sightline.envs.games.wrapping import GameWrapper, PictureGame, PromptWrapper, TextActions
from sightline.envs.making import EnvMaker
from sightline.envs.tasks import StatesSuccess, find_task
from sightline.errors import BadInput


@dataclass(frozen=True)
class GameMaker:
    """Factory without arguments of environments that are played in words; it can be pickled, for worker processes.

    What it makes implements `sightline.envs.games.contract`: observations are `Observation(text, images)`, `step` takes
    the action as text, the environment has `action_names` and `asked`, its infos `success`, `legal_actions` and
    `facts`. An environment without words of its own is wrapped in `PictureGame`, and then needs a prompt and action
    names, from its task or from the user.

    Attributes:
        env: the name of a task; a Gymnasium id, or `module:attribute` of a class or function that makes an environment.
        options: keyword arguments for the environment, over those of its task.
        prompt: template that replaces the environment's own text or its task's prompt; `{text}` is that text,
            `{actions}` the action names.
        actions: action names, or name -> value, for an environment that does not name its actions itself; they replace
            those of its task.
        episode_steps: time limit in steps, instead of the environment's own.
        text_only: replace pictures by a description of what they show.
        success_from: what says that a state is a success, instead of the task's.
        ignores_reward: whether the environment's own reward is not learned from, see `PictureGame`.
    """

    env: str
    options: dict[str, Any] = field(default_factory=dict)
    prompt: str | None = None
    actions: tuple[str, ...] | Mapping[str, Any] = ()
    episode_steps: int | None = None
    text_only: bool = False
    success_from: StatesSuccess | None = None
    ignores_reward: bool = False

    def __call__(self) -> gymnasium.Env[Any, Any]:
        """Make one game.

        Raises:
            BadInput: unknown environment, or one that needs a prompt or names of actions; wrong options, action names
                that cannot be told apart, an unknown prompt field, or `text_only` for an environment without
                descriptions.
            RunFailed: the environment cannot be built on this machine, or does not render.
        """
        task = find_task(self.env)
        # The user's count before the task's.
        options = task.env_options | self.options
        tasks = tuple(registry.names("env"))
        success_from = self.success_from or task.success_from
        make = EnvMaker(
            task.env, options, self.episode_steps, also_known=tasks, success_from=success_from, task=self.env
        )
        env = make.as_it_is()
        # What has words of its own needs no prompt; anything else becomes a game by one.
        is_game = isinstance(env.unwrapped, Game) or isinstance(env.action_space, spaces.Text)
        _check_words(env, self.env)
        if not is_game:
            prompt = self.prompt or task.prompt
            if self.prompt and task.prompt is not None:
                prompt = self.prompt.replace("{text}", task.prompt)
            actions = self.actions or task.actions
            env = PictureGame(env, self.env, prompt, actions, task.frames, self.ignores_reward)
        elif self.actions:
            names = ", ".join(env.get_wrapper_attr("action_names"))
            raise BadInput(f"'{self.env}' names its actions itself ({names}); leave out actions")
        elif self.prompt is not None:
            env = PromptWrapper(env, self.prompt)
        env = TextOnlyWrapper(env) if self.text_only else GameWrapper(env)
        names = env.get_wrapper_attr("action_names")
        if names or not isinstance(env.action_space, spaces.Text):
            check_action_names(names, self.env)
        return TextActions(env)


def _check_words(env: gymnasium.Env[Any, Any], name: str) -> None:
    """Refuse environments of words that do not say where the words are.

    Raises:
        BadInput: naming what says it.
    """
    observation_space = env.observation_space
    action_space = env.action_space
    if isinstance(action_space, spaces.Text) and not _is_words_and_pictures(observation_space):
        raise BadInput(
            f"'{name}' is played in words and observes {in_short(observation_space)}; say where its words are by a "
            "function: def make() -> gymnasium.Env: return sl.text_game(…)"
        )
    if isinstance(observation_space, spaces.Text) and not isinstance(action_space, spaces.Text):
        raise BadInput(
            f"'{name}' observes words, and its actions are {in_short(action_space)}; make commands of them by a "
            "function: def make() -> gymnasium.Env: return sl.text_game(…, commands=NAMES, send=NAMES.index)"
        )


def _is_words_and_pictures(space: spaces.Space[Any]) -> bool:
    return isinstance(space, spaces.Tuple) and len(space) == 2 and isinstance(space[0], spaces.Text)
