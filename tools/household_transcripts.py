"""Record what ALFWorld's own engine answers, for the tests that hold our rules to it word for word.

    pip install -e '.[alfworld]'       # TextWorld is compiled: a quarter of an hour, and g++ and cmake are needed
    python tools/household_transcripts.py

Games of all six kinds, sliced ones too, are written in ALFWorld's form and played by TextWorld. Half of the commands
are the expert's, so that games get somewhere and are won; the rest are drawn, those that do something rather than those
that go somewhere. Every third game has what drawn ones lack: places that share a spot, doors that are open and things
that are hot at first, a vessel with something in it, a start in front of a place.

Each turn keeps the command, the answer, all admissible commands and whether the game is won.
"""

from __future__ import annotations

import argparse
import gzip
import json
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import textworld
from alfworld.agents.environment.alfred_tw_env import AlfredDemangler
from alfworld.info import ALFRED_PDDL_PATH, ALFRED_TWL2_PATH
from textworld.envs.pddl.pddl import PddlEnv

from household_problems import problem_of
from sightline_tasks.household.files import FILE
from sightline_tasks.household.goals import KINDS, Goal, expert
from sightline_tasks.household.scenes import draw_game
from sightline_tasks.household.world import Household, World

GAMES, TURNS = 66, 45
IDLE = ("help", "inventory", "look")


def unusual(household: Household, rng: np.random.Generator) -> Household:
    """The household with what drawn ones lack."""
    places = dict(household.places)
    first, second = rng.choice(list(places), 2, replace=False)
    places[str(second)] = replace(places[str(second)], spot=places[str(first)].spot)
    vessels = [thing.name for thing in household.things.values() if "contain" in thing.can]
    small = [thing.name for thing in household.things.values() if thing.kind in ("spoon", "pen", "egg", "candle")]
    able = {state: [t.name for t in household.things.values() if ability in t.can] for state, ability in _FIRST.items()}
    return replace(
        household,
        places=places,
        start=places[str(rng.choice(list(places)))].spot,
        opened=frozenset(place.name for place in places.values() if place.openable and rng.random() < 0.5),
        states={state: frozenset(name for name in names if rng.random() < 0.3) for state, names in able.items()},
        vessels={vessels[0]: tuple(small[:2])} if vessels and small else {},
    )


_FIRST = {"clean": "clean", "hot": "heat"}


def record(household: Household, goal: Goal, rng: np.random.Generator) -> dict[str, Any]:
    """Play a game through TextWorld."""
    problem = problem_of(household, goal)
    document = {
        "pddl_domain": Path(ALFRED_PDDL_PATH).read_text(),
        "grammar": Path(ALFRED_TWL2_PATH).read_text().replace("UNKNOWN GOAL", goal.sentences[0]),
        "pddl_problem": problem,
    }
    env = AlfredDemangler(PddlEnv(textworld.EnvInfos(won=True, admissible_commands=True, feedback=True)))
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / FILE
        file.write_text(json.dumps(document))
        env.load(str(file))
        state = env.reset()
    # Our own world follows, for the expert alone: what is recorded is TextWorld's.
    world, turns = World(household), []
    introduction, before = state.feedback.strip(), sorted(set(state["admissible_commands"]))
    first = before
    for _ in range(TURNS):
        command = choose(before, expert(world, goal), rng)
        world.do(command)
        state, _, _ = env.step(command)
        before = sorted(set(state["admissible_commands"]))
        turns.append([command, state.feedback.strip(), before, bool(state["won"])])
        if state["won"]:
            break
    env.close()
    return {"problem": problem, "introduction": introduction, "commands": first, "turns": turns}


def choose(commands: list[str], best: str | None, rng: np.random.Generator) -> str:
    """The expert's command, one of those that do something, any, or one that means nothing."""
    doing = [command for command in commands if not command.startswith("go to") and command not in IDLE]
    draw = rng.random()
    if best is not None and draw < 0.45:
        return best
    if doing and draw < 0.85:
        return str(rng.choice(doing))
    return str(rng.choice(commands)) if draw < 0.97 else "open the window"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    place = Path(__file__).parents[1] / "tests" / "data" / "household" / "transcripts.json.gz"
    parser.add_argument("--to", type=Path, default=place)
    to: Path = parser.parse_args().to
    games = []
    for seed in range(GAMES):
        rng = np.random.default_rng(seed)
        task = KINDS[seed % len(KINDS)]
        sliced = seed % 4 == 3 and task != "look_at_obj_in_light"
        _, household, goal = draw_game(rng, [task], sliced=sliced)
        games.append(record(unusual(household, rng) if seed % 3 == 2 else household, goal, rng))
        print(f"{seed + 1} of {GAMES}: {goal.sentences[0]}, {len(games[-1]['turns'])} turns", flush=True)
    to.parent.mkdir(parents=True, exist_ok=True)
    to.write_bytes(gzip.compress(json.dumps(games, separators=(",", ":")).encode(), mtime=0))
    print(f"{sum(len(game['turns']) for game in games)} turns in {to}, {to.stat().st_size // 1000} kB")


if __name__ == "__main__":
    main()
