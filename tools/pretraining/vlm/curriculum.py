"""What the bundled model is shown: states of our tasks, and replies that tell them right and act without skill.

Facts are always stated truly. The action that follows keeps to the form of the game (numbers that lie on the table,
a sign after a number, `=` at the end) but is drawn without any thought of winning, from fixed weights that do not
depend on what would be right. So the model comes to reinforcement learning with eyes and a tongue, and everything to
learn.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import numpy as np

from pretraining.vlm.exercise import PLANNED, REPLIES, Exercise
from pretraining.vlm.rooms import KINDS, LOOKS, strolls
from sightline.agents.prompting import common_start, demonstration, keys_of, prompt_text
from sightline.envs.games.making import GameMaker
from sightline_tasks.control.cartpole import TRACK, CartPole
from sightline_tasks.games.blackjack import Blackjack, hand_of
from sightline_tasks.games.cards import RANKS, Card, any_suit
from sightline_tasks.games.number_search import MOST, search_in_words
from sightline_tasks.games.points import PointsGame
from sightline_tasks.games.points24 import MOST_ATTEMPTS, is_held_out

GAMES = {
    "numberline": 0.16,
    "ezpoints": 0.28,
    "points24": 0.24,
    "blackjack": 0.30,
    "frozenlake": 0.06,
    "sokoban": 0.16,
    "cartpole": 1.30,
}
"""Task that the bundled model reads, or a variant of one -> share of the samples; they need not sum to 1."""
ROOMS = {"household": 1.0, "babyai": 0.8}
"""The same of the second one, `bundled-rooms`."""
CARDS = {"blackjack-total": 1.0, "points24-plan": 1.0}
"""The same of the third one, `bundled-cards`."""
CURRICULA = {"bundled": GAMES, "bundled-rooms": ROOMS, "bundled-cards": CARDS}
"""Bundled model -> its lessons."""
OPTIONS: dict[str, dict[str, Any]] = {
    "blackjack-total": {"total": True},
    "cartpole": {"render_size": (96, 96)},
    "household": {"tasks": "pick_and_place_simple", "words": False},
    "points24-plan": {"held_out": False},
}
"""How they are played."""
PLAN = "points24-plan"
"""Points24 with a plan that is written down before its first action. A fifth of all hands is kept for evaluation, and
no plan is made of them here either, not even one without skill."""
LATER = 0.05
"""Share of a planned game's turns after the first that are lessons: there are ten of them, and they only copy."""
MOST_CARDS = 6
"""Cards of a hand that is added up in a lesson, at most."""
ACES = 0.4
"""Share of such hands that are given an ace: soft hands that turn hard are what is learned last."""
WEIGHTS = {"+": 0.65, "-": 0.35, "*": 0.5, "/": 0.35, "stand": 0.6, "hit": 0.4}
HABIT_AT_THE_POLE = {"right": 1.5}
"""Habits, right or wrong: with no skill at all, the most probable action is the same one in every state."""


def exercises(seed: int, games: dict[str, float] = GAMES) -> Iterator[Exercise]:
    """States of games without end, each game as often as its share says."""
    rng = np.random.default_rng(seed)
    playing = {
        name: strolls(name, rng) if name in ROOMS else _searches(rng) if name == PLAN else _states(name, rng)
        for name in games
    }
    names, shares = list(games), np.array(list(games.values()))
    while True:
        yield next(playing[names[rng.choice(len(names), p=shares / shares.sum())]])


def phrases(examples: list[Exercise]) -> list[str]:
    """What is the same in all prompts of a game, and in all replies: each shall be one token."""
    found: set[str] = {", ", "row ", ", column "}
    forms = {(example.game, keys_of(example.replies, example.facts)): example for example in examples}
    for game, keys in sorted(forms):
        prompts = {one.prompt for one in examples if (one.game, keys_of(one.replies, one.facts)) == (game, keys)}
        start = common_start(list(prompts))
        end = common_start([prompt[::-1] for prompt in prompts])[::-1]
        if game == "household":  # what its goals, facts and actions are made of are the same tokens in all of them
            end = end[end.index('". Reply') :]
            listed = [prompt.partition("\nThe action")[2].partition("take ")[0] for prompt in prompts]
            found |= {*KINDS, *LOOKS, *(f" {number}" for number in range(1, 10)), "take ", "go to "}
            # Said with the name in sight: whether the target is here is then one look back at what is like it.
            found |= {", here", ", elsewhere"}
            found |= {'", "take ', '", "go to ', f"\nThe action{common_start(listed)}take "}
            found |= {"\nYou have not been at: ", "not seen yet: "}
        if game == "blackjack-total":  # a value is one token, whether it has one digit or two, is hard or soft
            found |= {*(f" {total}" for total in range(2, 22)), *(f" soft {total}" for total in range(11, 22))}
        if game == PLAN:
            # A number is the same token wherever it stands, so no phrase takes the blank before it.
            found |= {"\nYou have written down: ", "nothing", ";", ":", " ->", *(f" {sign}" for sign in "+-*/=")}
            found |= {f" {number}" for number in range(MOST + 1)}
        found |= {start} if start == end else {start, end}
        found |= {name for one in examples if game == one.game == "babyai" for name in one.actions}
    mark = "\0"
    for one in forms.values():
        reply = demonstration(one.replies, dict.fromkeys(one.facts, mark), mark, mark)
        found |= set(reply.split(json.dumps(mark)[1:-1]))
    return sorted(found)


def task_of(name: str) -> str:
    """Task that is played under a name of the curriculum; after a hyphen stands which variant of it."""
    return name.partition("-")[0]


def maker_of(name: str, steps: int | None = None) -> GameMaker:
    """Maker of a game of the curriculum."""
    return GameMaker(task_of(name), OPTIONS.get(name, {}), episode_steps=steps)


def _states(name: str, rng: np.random.Generator) -> Iterator[Exercise]:
    env = maker_of(name)()
    game: Any = env.unwrapped
    while True:
        observation, info = env.reset(seed=int(rng.integers(2**31)))
        shown = [_quantities(game)] * len(observation.images)
        if isinstance(game, CartPole) and rng.random() < 0.9:
            # Episodes begin upright and at rest; eyes should know every pole. Two steps, for there are two frames.
            game.state = _any_pole(rng)
            for _ in range(2):
                observation, *_, info = env.step(str(rng.choice(game.action_names)))
                shown = [*shown[1:], _quantities(game)]
        if isinstance(game, PointsGame) and rng.random() < 0.6:
            observation, info = _any_cards(game, rng)
        if isinstance(game, Blackjack) and "total" in game.asked and rng.random() < 0.8:
            # Long hands are rare, and adding up is learned from them.
            game.player = _any_hand(rng)
            observation, info = game._observation(), game._info(False)
        over = False
        while not over:
            action = _action_without_skill(game, info["legal_actions"], rng)
            yield Exercise(
                game=name,
                pictures=observation.images,
                prompt=prompt_text(observation.text, REPLIES, game.asked, game.action_names),
                reply=demonstration(REPLIES, info["facts"], "", action),
                facts=info["facts"],
                quantities=np.array(shown, np.float32) if isinstance(game, CartPole) else None,
            )
            observation, _, terminated, truncated, info = env.step(action)
            shown = [*shown[1:], _quantities(game)]
            # Most moves change little of the picture: long games are left early, and poles before they have fallen.
            over = terminated or truncated or rng.random() < (0.3 if isinstance(game, CartPole) else 0.1)


def _searches(rng: np.random.Generator) -> Iterator[Exercise]:
    """Points24, planned without skill: two numbers are combined at random, as often as there are attempts, and the
    last attempt's formula is written, whatever it makes. What is learned is to make them without a mistake, so a plan
    has as many attempts as one may have."""
    env = maker_of(PLAN)()
    game: Any = env.unwrapped
    while True:
        observation, info = env.reset(seed=int(rng.integers(2**31)))
        if rng.random() < 0.6:
            observation, info = _any_cards(game, rng)
            while is_held_out(game.numbers):
                observation, info = _any_cards(game, rng)
        plan, formula = search_in_words(
            game.numbers, game.target, int(rng.integers(1, MOST_ATTEMPTS + 1)), rng, skilled=False
        )
        written = ""
        for place, action in enumerate((*formula, "=")):
            if not place or rng.random() < LATER:
                yield Exercise(
                    game=PLAN,
                    pictures=observation.images,
                    prompt=prompt_text(observation.text, PLANNED, game.asked, game.action_names, written),
                    reply=demonstration(PLANNED, info["facts"], plan, action),
                    facts=info["facts"],
                    replies=PLANNED,
                )
            written, plan = plan, "".join(formula)
            observation, *_, info = env.step(action)


def _any_cards(game: PointsGame, rng: np.random.Generator) -> tuple[Any, dict[str, Any]]:
    """Other cards in a game that has just begun: deals that can be won show few of all cards."""
    game.cards = [any_suit(RANKS[rng.integers(13)], rng) for _ in game.cards]
    return game._observation(), game._info(False)


def _quantities(game: Any) -> tuple[float, ...]:
    """Position of a cart from -1 to 1, sine and cosine of its pole's angle; nothing for other games."""
    if not isinstance(game, CartPole):
        return ()
    return game.state[0] / TRACK, np.sin(game.state[2]), np.cos(game.state[2])


def _any_hand(rng: np.random.Generator) -> list[Card]:
    """Cards of a player who is not over 21."""
    hand = [any_suit(RANKS[rng.integers(13)], rng) for _ in range(rng.integers(2, MOST_CARDS + 1))]
    if rng.random() < ACES:
        hand[rng.integers(len(hand))] = any_suit("A", rng)
    while hand_of(hand).total > 21:
        hand.pop()
    return hand


def _any_pole(rng: np.random.Generator) -> np.ndarray:
    """State of a cart with a pole: mostly near the vertical, and half of these as slow as a pole that is balanced."""
    near = rng.random() < 0.92
    angle = rng.normal(0, 0.1) if near else rng.uniform(-np.pi, np.pi)
    speed = rng.normal(0, rng.choice([0.2, 0.6]) if near else 4.0)
    return np.array([rng.uniform(-TRACK, TRACK), rng.normal(0, 0.7), angle, speed])


def _action_without_skill(game: Any, legal: tuple[str, ...], rng: np.random.Generator) -> str:
    if isinstance(game, PointsGame):
        # Any number on the table will do, used or not.
        on_table = {str(number) for number in game.numbers}
        legal = tuple(name for name in game.action_names if name in on_table or (name in legal and not name.isdigit()))
        numbers_fit = any(name.isdigit() for name in game.legal_actions())
        legal = legal if numbers_fit else tuple(name for name in legal if not name.isdigit())
    elif not game.asked:
        legal = game.action_names
    habits = HABIT_AT_THE_POLE if isinstance(game, CartPole) else WEIGHTS
    weights = np.array([habits.get(name, 1.0) for name in legal])
    return str(rng.choice(legal, p=weights / weights.sum()))
