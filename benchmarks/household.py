"""How fast is the household? Every claim of docs/results.md about it.

    PYTHONPATH=tools python benchmarks/household.py engine        # where TextWorld is installed (the extra alfworld)
    python benchmarks/household.py games expert

- `engine`: steps per second of processor time, of our rules and of TextWorld, on the same games and commands: the
  answer, all commands and whether the game is won; ours also with a picture of 224 pixels in every step.
- `games`: whole turns per second of processor time, of 64 games at once that are played at random, prompts and parsing
  included; and the memory that 64 games take.
- `expert`: does it win 100 drawn games of each kind?

Numbers go to benchmarks/results/household.json.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import re
import tempfile
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np

from running import keep, sized
from sightline_tasks.household.goals import KINDS, Goal, expert
from sightline_tasks.household.pictures import draw_world
from sightline_tasks.household.scenes import draw_game
from sightline_tasks.household.world import Household, World

FILE = "household.json"
GAMES, STEPS = 12, 25
PLAYED = sized(128, 4)
"""Games that are played at random, 64 at once."""


def walk(household: Household, goal: Goal, rng: np.random.Generator) -> list[str]:
    """Commands of a random walk, half of them the expert's, until the game is won."""
    world, commands = World(household), list[str]()
    while len(commands) < STEPS and not goal.is_done(world):
        best = expert(world, goal)
        known = world.commands()
        commands.append(best if best and rng.random() < 0.5 else known[int(rng.integers(len(known)))])
        world.do(commands[-1])
    return commands


def engine() -> dict[str, float]:
    """Part `engine`."""
    games = []
    for seed in range(GAMES):
        rng = np.random.default_rng(seed)
        _, household, goal = draw_game(rng, [KINDS[seed % len(KINDS)]])
        games.append((household, goal, walk(household, goal, rng)))
    steps = sum(len(commands) for _, _, commands in games)
    numbers = {"steps": float(steps)}
    for name, size, repeats in (("ours", None, sized(200, 1)), ("ours, 224 px", (224, 224), sized(5, 1))):
        began = time.process_time()
        for _ in range(repeats):
            for household, goal, commands in games:
                world = World(household)
                for command in commands:
                    world.do(command)
                    world.commands()
                    goal.is_done(world)
                    if size is not None:
                        draw_world(world, size)
        numbers[f"{name}: steps/s"] = repeats * steps / (time.process_time() - began)
    if importlib.util.find_spec("textworld") is None:
        print("TextWorld is not installed (pip install 'sightline[alfworld]'); ours alone are measured")
        return numbers
    numbers["TextWorld: steps/s"] = steps / sum(_by_textworld(*game) for game in games)
    for name in ("ours", "ours, 224 px"):
        numbers[f"{name}: ratio"] = numbers[f"{name}: steps/s"] / numbers["TextWorld: steps/s"]
    return numbers


def _by_textworld(household: Household, goal: Goal, commands: list[str]) -> float:
    """Seconds of processor time that the steps of a game take; loading and resetting are left out."""
    import textworld
    from alfworld.agents.environment.alfred_tw_env import AlfredDemangler
    from alfworld.info import ALFRED_PDDL_PATH, ALFRED_TWL2_PATH
    from textworld.envs.pddl.pddl import PddlEnv

    from household_problems import problem_of

    document = {
        "pddl_domain": Path(ALFRED_PDDL_PATH).read_text(),
        "grammar": Path(ALFRED_TWL2_PATH).read_text().replace("UNKNOWN GOAL", goal.sentences[0]),
        "pddl_problem": problem_of(household, goal),
    }
    env = AlfredDemangler(PddlEnv(textworld.EnvInfos(won=True, admissible_commands=True, feedback=True)))
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "game.tw-pddl"
        file.write_text(json.dumps(document))
        env.load(str(file))
        env.reset()
        began = time.process_time()
        for command in commands:
            env.step(command)
        taken = time.process_time() - began
        env.close()
    return taken


class AtRandom:
    """Replies with one of the actions that the prompt lists."""

    def __init__(self, replies: Any) -> None:
        self._replies, self._rng = replies, np.random.default_rng(0)

    def generate(self, conversations: Any, keys: Any) -> list[Any]:
        from sightline.agents.prompting import demonstration
        from sightline.agents.samplers import only_text

        listed = [re.findall(r'"([^"]+)"', re.split("Reply in", turns[-1].text)[0]) for turns in conversations]
        return [only_text(demonstration(self._replies, {}, "", str(self._rng.choice(names)))) for names in listed]


def games() -> dict[str, float]:
    """Part `games`."""
    from sightline.agents.rollouts import EpisodeTask, RolloutWorker
    from sightline.config.agents import Replies
    from sightline.envs.games.making import GameMaker

    before, numbers = resident(), dict[str, float]()
    kept = [GameMaker("household", {"render_size": [224, 224]})() for _ in range(64)]
    for seed, game in enumerate(kept):
        game.reset(seed=seed)
    numbers["64 games of household, 224 px: MB"] = (resident() - before) / 2**20
    replies = Replies(thoughts=False, facts=False)
    for name, options in (
        ("household, 224 px", {"render_size": [224, 224]}),
        ("household, 96 px", {}),
        ("babyai, 96 px", {}),
    ):
        worker = RolloutWorker(GameMaker(name.partition(",")[0], options), replies, parallel=64)
        began = time.process_time()
        episodes = worker.play(AtRandom(replies), [EpisodeTask(seed) for seed in range(PLAYED)])
        turns = sum(len(episode.turns) for episode in episodes)
        numbers[f"{name}: turns/s"] = turns / (time.process_time() - began)
        worker.close()
    return numbers


def resident() -> int:
    """Memory that this process holds, in bytes."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def win(games: int = sized(100, 2)) -> dict[str, float]:
    """Part `expert`: games won, of each kind, half of them in held-out scenes; longest game."""
    numbers: dict[str, float] = {}
    for task in KINDS:
        won, longest = 0, 0
        for seed in range(games):
            _, household, goal = draw_game(np.random.default_rng(seed), [task], held_out=bool(seed % 2))
            world, steps = World(household), 0
            while (command := expert(world, goal)) is not None:
                world.do(command)
                steps += 1
            won += goal.is_done(world)
            longest = max(longest, steps)
        numbers[f"{task}: won of {games}"] = won
        numbers[f"{task}: longest"] = longest
    return numbers


PARTS = {"engine": engine, "games": games, "expert": win}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="+", choices=PARTS)
    for part in parser.parse_args().parts:
        numbers = PARTS[part]()
        for name, value in numbers.items():
            print(f"{name}: {value:.4g}")
        keep(FILE, part, numbers, jobs=1)


if __name__ == "__main__":
    main()
