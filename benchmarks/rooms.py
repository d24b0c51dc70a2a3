"""Does a tiny vision-language model of ours learn more in households and grids by RL than from demonstrations alone?

    python benchmarks/rooms.py warm learned words shortest --folder runs/rooms [--games household babyai]

- `warm`: supervised fine-tuning (SFT) on 1 000 and on 5 000 turns of the game's own best play, three seeds each.
- `learned`: each recipe with three seeds: SFT on 20 000 turns, then RL. The model between the two (`untrained` in
  results: before RL) is the third warm start, and has a row of its own. A run has two processes, one for each core.
- `words`: each recipe with one seed, told in words instead of shown. BabyAI's trains at a higher temperature then: what
  is told is read so surely that groups play alike at that of the recipe.
- `shortest`: in how many of BabyAI's test missions the shortest way is short enough, for a player who sees the whole
  room: no agent can do better.

All but the last are `sightline sweep`s: runs of before are kept, those cut off are resumed; as many as cores go on at
a time.
Success is that of the recipe's test panel, in scenes and missions that no training saw; with real, blank and shuffled
pictures, and of random and best play. Household scenes are our own: numbers cannot be compared with ALFWorld's.

Results go to benchmarks/results/rooms.json.
"""

from __future__ import annotations

import argparse
import json
import math
import os
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np

from running import folder_of, keep, kept, loaded, percent, sightline, sized
from sightline.agents.resolving import game_maker, played_game
from sightline.config.loading import for_agent
from sightline.evaluation.seeds import make_panel
from sightline.evaluation.statistics import wilson
from sightline.models.device import available_cores

FILE = "rooms.json"
GAMES = ("household", "babyai")
SEEDS = sized("seed=0..2", "seed=0..0")
BOTH_CORES = ("--per-run", "2")
WARM = (1000, 5000)
"""Turns of the smaller warm starts; the recipes have 20 000."""
WORDS = {"household": (), "babyai": ("rollouts.temperature=2.5", "update.entropy=0.01")}
"""What the recipes take otherwise when they are told in words."""
KEPT = ("success_rate", "ci_low", "ci_high", "length", "truthful_replies", "unparsable", "episodes", "panel")
BESIDE = ("untrained", "blank", "shuffled", "random", "oracle")


def rows(part: str, game: str) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Name and arguments of each sweep."""
    if part == "warm":
        for turns in WARM:
            yield f"{game}, SFT on {turns} turns", (game, SEEDS, f"warm_start.samples={turns}", "steps=0")
    elif part == "learned":
        yield f"{game}, SFT and RL", (game, SEEDS, *BOTH_CORES)
    else:
        yield f"{game}, SFT and RL, told in words", (game, "seed=0..0", "text_only=true", *WORDS[game], *BOTH_CORES)


def measure(name: str, arguments: tuple[str, ...], folder: Path) -> list[dict[str, Any]]:
    """Train a row's runs: of each, what the test panel says of the chosen model and of those beside it."""
    found = []
    for cell in sightline("sweep", *arguments, "--run-dir", str(folder / folder_of(name)))["cells"]:
        result = json.loads((Path(cell["run"]) / "result.json").read_text())
        numbers = {key: result[key] for key in KEPT} | {"seconds": round(result["seconds"])}
        beside = {look: result[look] for look in BESIDE if result.get(look)}
        found.append(numbers | {look: {key: seen.get(key) for key in KEPT} for look, seen in beside.items()})
    return found


def shortest_way(inner: Any) -> float:
    """Least number of turns until the agent faces a thing that the mission means, by breadth-first search.

    What stands in the way may be picked up, however much is held already: so no agent can do better.
    """
    from minigrid.core.constants import DIR_TO_VEC

    wanted = {tuple(place) for place in inner.instrs.desc.find_matching_objs(inner)[1]}
    start = (tuple(map(int, inner.agent_pos)), int(inner.agent_dir), frozenset[Any]())
    queue, known = deque([(start, 0)]), {start}
    while queue:
        ((x, y), heading, gone), turns = queue.popleft()
        ahead = tuple(np.add((x, y), DIR_TO_VEC[heading]).tolist())
        if ahead in wanted:
            return max(turns, 1)  # it is won after a turn, if only by waiting
        following = [((x, y), (heading + 1) % 4, gone), ((x, y), (heading - 1) % 4, gone)]
        thing = None if ahead in gone else inner.grid.get(*ahead)
        if thing is None:
            following.append((ahead, heading, gone))
        elif thing.can_pickup():
            following.append(((x, y), heading, gone | {ahead}))
        for state in following:
            if state not in known:
                known.add(state)
                queue.append((state, turns + 1))
    return math.inf


def shortest() -> dict[str, float]:
    """Share of BabyAI's test missions that can be won in the recipe's turns, with its interval."""
    recipe = for_agent(loaded("babyai"))
    panel = make_panel("test", played_game(recipe), recipe.evaluation.test_episodes)
    assert recipe.episode_steps is not None
    game: Any = game_maker(recipe)()
    won = 0
    for seed in panel.seeds:
        game.reset(seed=seed)
        won += shortest_way(game.unwrapped.inner) <= recipe.episode_steps
    low, high = wilson(won, len(panel.seeds))
    return {"success_rate": won / len(panel.seeds), "ci_low": low, "ci_high": high}


def line(name: str, numbers: list[dict[str, Any]], seconds: str = "") -> str:
    """A row of the table."""
    shares = [(one["success_rate"], one["ci_low"], one["ci_high"]) for one in numbers]
    return f"| {name} | {percent(shares)} | {seconds} |"


def lines(name: str, runs: list[dict[str, Any]]) -> Iterator[str]:
    """Rows of the table: what was learned, and what it is to be compared with."""
    times = sorted(run["seconds"] for run in runs)
    yield line(name, runs, f"{times[0]}–{times[-1]}")
    for look in BESIDE:
        if all(look in run for run in runs):
            yield line(f"– {look}", [run[look] for run in runs])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="+", choices=["warm", "learned", "words", "shortest"])
    parser.add_argument("--folder", type=Path, default=Path("runs/rooms"), help="where the runs go")
    parser.add_argument("--games", nargs="+", choices=GAMES, default=GAMES)
    given = parser.parse_args()
    print("| run | success, % | seconds |\n|---|---|---|")
    for part in given.parts:
        if part == "shortest":
            found = shortest()
            keep(FILE, part, found)
            print(line("babyai, shortest way", [found]), flush=True)
            continue
        for game in given.games:
            for name, arguments in rows(part, game):
                runs = measure(name, arguments, given.folder)
                keep(FILE, part, kept(FILE, part) | {name: runs}, jobs=available_cores())
                print(*lines(name, runs), sep="\n", flush=True)


if __name__ == "__main__":
    main()
