"""Lessons of the second bundled model: rooms of the household, and grids of BabyAI as the agent sees them.

Rooms and missions are met by strolling: now and then a step of best play, so that there is something in the hand or
behind an open door, and else anything. The action that a reply ends with is one that does something there (take what
lies there, open what is closed, go forward where nothing is in the way), whatever the goal is: no skill is shown, but
to go where the agent has not been, if the prompt says where that is.

A goal that nothing depends on teaches nobody to look for what it names. So mostly goals and missions are others than
the game's own, of things that are there or not, and the fact `target` says where.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np

from pretraining.vlm.exercise import REPLIES, THINKING, Exercise
from sightline.agents.prompting import demonstration, prompt_text
from sightline.envs.games.babyai import BabyAI
from sightline.envs.games.making import GameMaker
from sightline.envs.games.wrapping import oracle
from sightline_tasks.household.goals import Goal
from sightline_tasks.household.pictures import PLACES, THINGS, boxes
from sightline_tasks.household.scenes import kind_of

IN_WORDS = 0.35
"""Share of games that are told in words instead of shown. Finding what is named is learned sooner among words, and what
a picture shows looks like words to the language model."""
LEVELS = ("GoToObj", "GoToLocal", "GoToLocal", "PutNextLocal")
"""Levels of BabyAI: one room of 8 x 8 cells, with one thing and with many."""
CELLS = 8
"""Cells of a picture's side: as many as the model's patches."""
EMPTY = "nothing"
STATES_SEEN = ("hot", "cool", "clean", "sliced", "toggled")
KINDS = (EMPTY, *THINGS, *PLACES, "agent", "ball", "door", "key", "wall")
TO_GO_TO, COLOURS = ("ball", "box", "key"), ("blue", "green", "grey", "purple", "red", "yellow")
LOOKS = (EMPTY, *STATES_SEEN, *COLOURS)
"""Words for what a cell of a picture shows, and for its state or colour."""
ANOTHER = 0.7
"""Share of states that get another goal or mission."""
DULL = 0.6
"""Share that is left out of the household's states with nothing in sight or in the hand."""
IN_TURN = 0.3
"""Share of the ways to places where the agent has not been that go to the first of them; the others to any."""
MANY = 1000
"""Rooms of each kind in the household: of few, the lists of places are learned by heart instead of read."""
STROLLS = {"household": (0.4, 0.06), "babyai": (0.1, 0.12)}
"""Game -> the chance of a step of best play, and that a game is left after a step."""


def strolls(name: str, rng: np.random.Generator) -> Iterator[Exercise]:
    """States of the household or of BabyAI without end."""
    best, leaving = STROLLS[name]
    options: list[dict[str, Any]] = [{"level": one} for one in LEVELS]
    if name == "household":
        options = [{"words": False, "rooms": MANY, "recall": recall} for recall in (False, True)]
    envs = [partial(GameMaker(name, one, text_only=told))() for told in (False, True) for one in options]
    while True:
        told = rng.random() < IN_WORDS
        env = envs[told * len(options) + int(rng.integers(len(options)))]
        observation, info = env.reset(seed=int(rng.integers(2**31)))
        game: Any = env.unwrapped
        over = False
        while not over:
            if rng.random() < ANOTHER:
                _give_another_goal(game, rng) if name == "household" else _give_another_mission(game.inner, rng)
            if not (name == "household" and _is_dull(game) and rng.random() < DULL):
                yield _turn(name, game, observation.images, rng)
            names = _names(game)
            advice = oracle(env) if rng.random() < best else None
            observation, _, terminated, truncated, info = env.step(advice or _any_move(name, names, info, rng))
            over = terminated or truncated or rng.random() < leaving


def _is_dull(game: Any) -> bool:
    return game.world.held is None and not game.world.in_sight()


def _names(game: Any) -> tuple[str, ...]:
    return tuple(game.action_names or game.legal_actions())


def _turn(name: str, game: Any, pictures: tuple[np.ndarray, ...], rng: np.random.Generator) -> Exercise:
    """What is seen, or told where there are no pictures, is said, and something done."""
    text, facts, names = game.text(), game.facts(), _names(game)
    text = text if pictures else f"{text}\n{game.caption()}"
    replies, thoughts = (REPLIES, "") if (said := game.thoughts()) is None else (THINKING, said)
    return Exercise(
        game=name,
        pictures=pictures,
        prompt=prompt_text(text, replies, game.asked, names),
        reply=demonstration(replies, facts, thoughts, _any_that_does_something(game, names, rng)),
        facts=facts,
        actions=names,
        replies=replies,
        cells=_cells(game) if pictures else (),
    )


def _give_another_goal(game: Any, rng: np.random.Generator) -> None:
    """Let a household's task be to put any thing at any kind of place, mostly such that what is needed next is here."""
    world = game.world
    here = [world.household.things[name].kind for place in world.here for name in world.contents(place.name)]
    if world.held is not None and rng.random() < 0.8:
        things = [world.household.things[world.held].kind]
    elif world.held is None and here and rng.random() < 0.8:
        things = here
    else:
        things = [name.removeprefix("take ") for name in game.legal_actions() if name.startswith("take ")]
    at = [place.kind for place in world.here]
    places = at if at and rng.random() < 0.7 else [place.kind for place in world.household.places.values()]
    goal = Goal("pick_and_place_simple", str(rng.choice(things)), str(rng.choice(places)))
    if not goal.is_done(world):
        game.goal, game.sentence = goal, str(rng.choice(goal.sentences))


def _give_another_mission(inner: Any, rng: np.random.Generator) -> None:
    """Let the mission of a BabyAI level be to go to any thing, mostly one that is there."""
    import minigrid.envs.babyai.core.verifier as verifier

    babyai: Any = verifier  # untyped
    there = sorted({(one.type, one.color) for one in inner.grid.grid if one is not None and one.type in TO_GO_TO})
    anything = str(rng.choice(TO_GO_TO)), str(rng.choice(COLOURS))
    kind, colour = there[int(rng.integers(len(there)))] if there and rng.random() < 0.9 else anything
    inner.instrs = babyai.GoToInstr(babyai.ObjDesc(kind, colour))
    inner.instrs.reset_verifier(inner)
    inner.mission = f"go to the {colour} {kind}"


def _any_that_does_something(env: Any, names: tuple[str, ...], rng: np.random.Generator) -> str:
    """An action that is possible, whatever the goal; half of the time one that turns or goes elsewhere."""
    if isinstance(env, BabyAI):
        facts = env.facts()
        free, holding = facts["ahead"] == "nothing", facts["holding"] != "nothing"
        moving = ["left", "right"]
        doing = ["forward"] if free else []
        doing += ["drop"] if free and holding else []
        doing += ["pick up"] if facts["ahead"] not in ("nothing", "wall") and not holding else []
    else:
        possible = {env.shortened(command) for command in env.world.commands()}
        moving = [name for name in names if name in possible and name.startswith("go to ")]
        if env.recall:  # what is not read in lessons is not read later
            unseen = [f"go to {place}" for place in env.unvisited()]
            moving = unseen[:1] if unseen and rng.random() < IN_TURN else unseen or moving
        doing = [name for name in names if name in possible and not name.startswith("go to ")]
    return str(rng.choice(doing if doing and rng.random() < 0.5 else moving))


def _any_move(name: str, names: tuple[str, ...], info: dict[str, Any], rng: np.random.Generator) -> str:
    """An action that mostly changes the picture."""
    if name == "babyai":
        thing = info["facts"]["ahead"] not in ("nothing", "wall")
        likely = ("pick up",) if thing else ("drop",) if info["facts"]["holding"] != "nothing" else ("forward",)
        names = likely if rng.random() < 0.3 else ("left", "right", "forward")
    elif "closed" in info["facts"]["place"] and rng.random() < 0.5:
        return "open"
    elif rng.random() < 0.4 and info["facts"]["contents"] != "nothing":
        kinds = [thing.split()[-1] for thing in info["facts"]["contents"].split(", ")]
        return f"take {rng.choice(kinds)}"
    return str(rng.choice(names))


def _cells(env: Any) -> tuple[tuple[str, ...], ...]:
    """What the picture shows in each cell, row by row: words of `KINDS` and `LOOKS`, its column and its row."""
    shown = _of_grid(env.inner) if isinstance(env, BabyAI) else _of_room(env)
    return tuple(shown[row, column] for row in range(CELLS) for column in range(CELLS))


def _of_grid(inner: Any) -> dict[tuple[int, int], tuple[str, ...]]:
    """For each cell of the picture, what MiniGrid's agent sees where the cell's middle is."""
    grid, is_seen = inner.gen_obs_grid()
    shown = dict[tuple[int, int], tuple[str, ...]]()
    for row in range(CELLS):
        for column in range(CELLS):
            x, y = (int((place + 0.5) * inner.agent_view_size / CELLS) for place in (column, row))
            thing = grid.get(x, y) if is_seen[x, y] else None
            kind, look = (EMPTY, EMPTY) if thing is None else (thing.type, thing.color)
            if (x, y) == (grid.width // 2, grid.height - 1) and thing is None:
                kind = "agent"  # what it holds is drawn in its place
            shown[row, column] = kind, EMPTY if kind == "wall" else look, f" {x + 1}", f"{y + 1}"
    return shown


def _of_room(env: Any) -> dict[tuple[int, int], tuple[str, ...]]:
    at = [(row, column) for row in range(CELLS) for column in range(CELLS)]
    shown: dict[tuple[int, int], tuple[str, ...]]
    shown = {(row, column): (EMPTY, EMPTY, f" {column + 1}", f"{row + 1}") for row, column in at}
    for name, box in boxes(env.world, env.render_size).items():
        # A sign that lies over several cells counts in that of its middle.
        row, column = int(CELLS * (box.top + box.height / 2)), int(CELLS * (box.left + box.width / 2))
        states = [state for state in STATES_SEEN if name in env.world.states[state]]
        shown[row, column] = kind_of(name), states[0] if states else EMPTY, *shown[row, column][2:]
    return shown
