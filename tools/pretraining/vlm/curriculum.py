"""What the bundled model is shown: states of our games, and replies that tell them right and act without skill.

Facts are always stated truly. The action that follows keeps to the form of the game (numbers that lie on the table,
a sign after a number, `=` at the end) but is drawn without any thought of winning, from fixed weights that do not
depend on what would be right. So the model comes to reinforcement learning with eyes and a tongue, and everything to
learn.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from sightline.agents.prompting import demonstration, prompt_text
from sightline.config.agents import Replies
from sightline.envs.games.cards import RANKS, any_suit
from sightline.envs.games.contract import Game
from sightline.envs.games.making import GameMaker
from sightline.envs.games.points import PointsGame

REPLIES = Replies(format="json", thoughts=False)
"""How the bundled model replies."""
GAMES = {"numberline": 0.16, "ezpoints": 0.28, "points24": 0.24, "blackjack": 0.16, "frozenlake": 0.08, "sokoban": 0.08}
"""Game -> share of the samples."""
WEIGHTS = {"+": 0.65, "-": 0.35, "*": 0.5, "/": 0.35, "stand": 0.6, "hit": 0.4}
"""Habits, right or wrong: with no skill at all, the most probable action is the same one in every state."""


@dataclass(frozen=True)
class Exercise:
    """A picture, what is asked about it, and what is to be replied. `pixels` is uint8[H, W, 3]."""

    game: str
    pixels: np.ndarray
    prompt: str
    reply: str
    facts: dict[str, str]


def exercises(seed: int, games: dict[str, float] = GAMES) -> Iterator[Exercise]:
    """States of games without end, each game as often as its share says."""
    rng = np.random.default_rng(seed)
    playing = {name: _states(name, rng) for name in games}
    names, shares = list(games), np.array(list(games.values()))
    while True:
        yield next(playing[names[rng.choice(len(names), p=shares / shares.sum())]])


def phrases(examples: list[Exercise]) -> list[str]:
    """What is the same in all prompts of a game, and in all replies: each shall be one token."""
    found: set[str] = {", ", "row ", ", column "}
    for game in sorted({example.game for example in examples}):
        prompts = {example.prompt for example in examples if example.game == game}
        start = _common_start(list(prompts))
        end = _common_start([prompt[::-1] for prompt in prompts])[::-1]
        found |= {start} if start == end else {start, end}
    mark = "\0"
    for asked in {tuple(example.facts) for example in examples}:
        reply = demonstration(REPLIES, dict.fromkeys(asked, mark), "", mark)
        found |= set(reply.split(json.dumps(mark)[1:-1]))
    return sorted(found)


def _common_start(texts: list[str]) -> str:
    first, last = min(texts), max(texts)
    return first[: next((i for i, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), len(first))]


def _states(name: str, rng: np.random.Generator) -> Iterator[Exercise]:
    env = GameMaker(name)()
    game: Any = env.unwrapped
    while True:
        observation, info = env.reset(seed=int(rng.integers(2**31)))
        if isinstance(game, PointsGame) and rng.random() < 0.6:
            # Deals that can be won show few of all cards; eyes should know them all.
            game.cards = [any_suit(RANKS[rng.integers(13)], rng) for _ in game.cards]
            observation, info = game._observation(), game._info(False)
        over = False
        while not over:
            action = _action_without_skill(game, info["legal_actions"], rng)
            yield Exercise(
                game=name,
                pixels=observation.images[0],
                prompt=prompt_text(observation.text, REPLIES, game.asked, game.action_names),
                reply=demonstration(REPLIES, info["facts"], "", action),
                facts=info["facts"],
            )
            observation, _, terminated, truncated, info = env.step(game.action_names.index(action))
            # Most moves change little of the picture: long games are left early.
            over = terminated or truncated or rng.random() < 0.1


def _action_without_skill(game: Game, legal: tuple[str, ...], rng: np.random.Generator) -> str:
    if isinstance(game, PointsGame):
        # Any number on the table will do, used or not.
        on_table = {str(number) for number in game.numbers}
        legal = tuple(name for name in game.action_names if name in on_table or (name in legal and not name.isdigit()))
        numbers_fit = any(name.isdigit() for name in game.legal_actions())
        legal = legal if numbers_fit else tuple(name for name in legal if not name.isdigit())
    elif not game.asked:
        legal = game.action_names
    weights = np.array([WEIGHTS.get(name, 1.0) for name in legal])
    return str(rng.choice(legal, p=weights / weights.sum()))
