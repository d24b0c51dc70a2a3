"""Making a game from its name: one of ours, or any environment with frames and named actions."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import gymnasium

from sightline import registry
from sightline.envs.games.contract import Game
from sightline.envs.games.words import TextOnlyWrapper
from sightline.envs.games.wrapping import GameWrapper, PictureGame, PromptWrapper, check_action_names
from sightline.envs.making import EnvMaker
from sightline.errors import BadInput

GAMES = {
    "numberline": "sightline/NumberLine-v0",
    "ezpoints": "sightline/EZPoints-v0",
    "points24": "sightline/Points24-v0",
    "blackjack": "sightline/Blackjack-v0",
    "sokoban": "sightline/Sokoban-v0",
    "frozenlake": "sightline/FrozenLake-v0",
}
"""Name of our own -> Gymnasium id."""


@dataclass(frozen=True)
class GameMaker:
    """Game factory without arguments; it can be pickled, so worker processes can use it.

    The games it makes implement `sightline.envs.games.contract`: observations are `Observation(text, images)`, the
    environment has `action_names` and `asked`, its infos `success`, `legal_actions` and `facts`. Any other environment
    is wrapped in `PictureGame`, and then needs a prompt and action names.

    Attributes:
        env: the name of a game, of ours or registered; a Gymnasium id, or `module:attribute` of a class or function
            that makes an environment.
        options: keyword arguments for the environment.
        prompt: template that replaces the game's own text; `{text}` is that text, `{actions}` the action names.
        actions: action names, for an environment that does not name its actions itself.
        episode_steps: time limit in steps, instead of the environment's own.
        text_only: replace pictures by a description of what they show.
    """

    env: str
    options: dict[str, Any] = field(default_factory=dict)
    prompt: str | None = None
    actions: tuple[str, ...] = ()
    episode_steps: int | None = None
    text_only: bool = False

    def __call__(self) -> gymnasium.Env[Any, Any]:
        """Make one game.

        Raises:
            BadInput: unknown environment, or a task for a policy on states; wrong options, action names that cannot be
                told apart, an unknown prompt field, or `text_only` for an environment without descriptions.
            RunFailed: the environment cannot be built on this machine, or does not render.
        """
        known, build = registry.names("env"), None
        if self.env in known and self.env not in GAMES:
            build = registry.find("env", self.env)
            if not (isinstance(build, type) and issubclass(build, Game)):
                raise BadInput(f"'{self.env}' is a task for a policy on states, not a game for agents")
        env = EnvMaker(
            GAMES.get(self.env, self.env), self.options, self.episode_steps, also_known=tuple(known), build=build
        ).as_it_is()
        if not isinstance(env.unwrapped, Game):
            env = PictureGame(env, self.env, self.prompt, self.actions)
        elif self.actions:
            names = ", ".join(env.get_wrapper_attr("action_names"))
            raise BadInput(f"'{self.env}' names its actions itself ({names}); leave out actions")
        elif self.prompt is not None:
            env = PromptWrapper(env, self.prompt)
        check_action_names(env.get_wrapper_attr("action_names"), self.env)
        return TextOnlyWrapper(env) if self.text_only else GameWrapper(env)
