"""One game from its name: ours, or any environment with pictures and named actions."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import gymnasium

from sightline.envs.games.contract import Game
from sightline.envs.games.words import InWords
from sightline.envs.games.wrapping import GameWrapper, PictureGame, Prompted, check_action_names
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
"""Name -> Gymnasium id."""
SUMMARIES = {
    "numberline": "Bring one number to another by + and -, both in the picture",
    "ezpoints": "Make twelve of two cards",
    "points24": "Make twenty-four of four cards",
    "blackjack": "Hit or stand against a dealer",
    "sokoban": "Push a box onto its target",
    "frozenlake": "Cross the ice and keep out of the holes",
}
"""Name -> one line for lists."""


def register() -> None:
    """Make our games known to Gymnasium; calling it again changes nothing."""
    for name, entry_point, steps in (
        ("numberline", "number_line:NumberLine", None),  # these four count their steps or end by themselves
        ("ezpoints", "ez_points:EZPoints", None),
        ("points24", "points24:Points24", None),
        ("blackjack", "blackjack:Blackjack", None),
        ("sokoban", "sokoban:Sokoban", 60),
        ("frozenlake", "frozen_lake:FrozenLake", 100),
    ):
        if GAMES[name] not in gymnasium.registry:
            gymnasium.register(GAMES[name], entry_point=f"sightline.envs.games.{entry_point}", max_episode_steps=steps)


@dataclass(frozen=True)
class GameMaker:
    """Makes copies of one game; it can be pickled, so worker processes can use it.

    What it makes keeps to `sightline.envs.games.contract`: observations are `Observation(text, images)`, the
    environment has `action_names` and `asked`, its infos `success`, `legal_actions` and `facts`. Any other one is
    wrapped in `PictureGame`, and then needs a prompt and names for its actions.

    Attributes:
        env: a name in `GAMES`, a Gymnasium id, or `module:attribute` of a class or function that makes an
            environment.
        options: keyword arguments for the environment.
        prompt: what the agent is told instead of the game's own text; `{text}` stands for that text, `{actions}` for
            the names of the actions.
        actions: names of the actions of an environment that does not name them itself.
        episode_steps: time limit instead of the environment's own.
        in_words: leave out pictures and tell in words what they show.
    """

    env: str
    options: dict[str, Any] = field(default_factory=dict)
    prompt: str | None = None
    actions: tuple[str, ...] = ()
    episode_steps: int | None = None
    in_words: bool = False

    def __call__(self) -> gymnasium.Env[Any, Any]:
        """Make one game.

        Raises:
            BadInput: unknown environment, wrong options, actions that cannot be told apart, an unknown prompt field,
                words asked of an environment that has none.
            RunFailed: the environment cannot be built on this machine, or does not render.
        """
        register()
        make = EnvMaker(GAMES.get(self.env, self.env), self.options, self.episode_steps, also_known=tuple(GAMES))
        env = make.as_it_is()
        if not isinstance(env.unwrapped, Game):
            env = PictureGame(env, self.env, self.prompt, self.actions)
        elif self.actions:
            names = ", ".join(env.get_wrapper_attr("action_names"))
            raise BadInput(f"'{self.env}' names its actions itself ({names}); leave out actions")
        elif self.prompt is not None:
            env = Prompted(env, self.prompt)
        check_action_names(env.get_wrapper_attr("action_names"), self.env)
        return InWords(env) if self.in_words else GameWrapper(env)
