"""How many turns does each algorithm play until a game is learned?

    python benchmarks/algorithms.py numberline ezpoints [--rows grpo ppo …] [--folder runs/algorithms]

The recipe of each game with its algorithm changed and nothing else: as many episodes between two updates, the same
optimiser, the same model, three seeds each. (GSPO's ratio is that of whole replies, so there thoughts weigh as much as
actions; the recipes leave them to the KL term.) A game counts as learned at the first evaluation on the validation
panel with at least 95 % of success; evaluations are 500 turns apart in NumberLine and 3 000 in EZPoints, so numbers are
rounded up to these. A run ends at a score of 99.5 % (won without a mistake, times true replies), or when its turns are
used up (8 000 and 60 000).

Every row is a `sightline sweep`: runs of before are kept, those cut off are resumed; as many as cores go on at a time.
Results go to benchmarks/results/algorithms.json.
"""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

from running import folder_of, keep, kept, percent, sightline, sized
from sightline.models.device import available_cores
from sightline.runs.folder import RunFolder
from sightline.runs.metrics import read_metrics

FILE = "algorithms.json"
EPISODES = {"numberline": 64, "ezpoints": 256}
"""Episodes between two updates, those of the recipes."""
GROUP = 8
SEEDS = sized("seed=0..2", "seed=0..0")
LEARNED = 0.95
ROWS: dict[str, tuple[str, ...]] = {
    "ppo": ("algorithm.kind=ppo",),
    "reinforce": ("algorithm.kind=reinforce",),
    "reinforce_plus_plus": ("algorithm.kind=reinforce_plus_plus",),
    "rloo": ("algorithm.kind=rloo",),
    "grpo": ("algorithm.kind=grpo",),
    "grpo, deviation none": ("algorithm.kind=grpo", "algorithm.deviation=none"),
    "grpo, ratio sequence (GSPO)": (
        *("algorithm.kind=grpo", "update.ratio=sequence", "update.clip_low=0.0003", "update.clip_high=0.0004"),
        "update.thought_weight=1",
    ),
    "grpo, dynamic sampling, higher clip (DAPO)": (
        "algorithm.kind=grpo",
        "rollouts.dynamic_sampling=2",
        "update.clip_high=0.28",
    ),
    "gigpo": ("algorithm.kind=gigpo",),
    "turn_grpo": ("algorithm.kind=turn_grpo",),
}


def arguments_of(game: str, row: str) -> tuple[str, ...]:
    """What a sweep is told. Algorithms that compare the episodes of a task play each eight times, others once."""
    algorithm = ROWS[row]
    alone = algorithm[0].rpartition("=")[2] in ("ppo", "reinforce", "reinforce_plus_plus")
    group = 1 if alone else GROUP
    shape = (f"algorithm.group={group}", f"rollouts.tasks={EPISODES[game] // group}")
    return (game, SEEDS, *algorithm, *shape, "evaluation.test_episodes=100")


def measure(game: str, row: str, folder: Path) -> list[dict[str, Any]]:
    """Train a row's runs: turns until each had learned, None if it never did, and what the test panel says."""
    found = []
    where = folder / game / folder_of(row)
    for cell in sightline("sweep", *arguments_of(game, row), "--run-dir", str(where))["cells"]:
        run = RunFolder(Path(cell["run"]))
        result = json.loads((run.path / "result.json").read_text())
        records = read_metrics(run.metrics_file)
        learned = (int(one["step"]) for one in records if (one.get("evaluation/success_rate") or 0.0) >= LEARNED)
        turns = next(learned, None)
        kept_numbers = {key: result[key] for key in ("success_rate", "ci_low", "ci_high", "truthful_replies")}
        found.append({"turns": turns, "seconds": round(result["seconds"])} | kept_numbers)
    return found


def line(row: str, runs: list[dict[str, Any]]) -> str:
    """A row of the table."""
    turns = " ".join("–" if run["turns"] is None else str(run["turns"]) for run in runs)
    shares = percent([(run["success_rate"], run["ci_low"], run["ci_high"]) for run in runs])
    seconds = sorted(run["seconds"] for run in runs)
    return f"| {row} | {turns} | {shares} | {seconds[0]}–{seconds[-1]} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("games", nargs="+", choices=list(EPISODES))
    parser.add_argument("--rows", nargs="+", choices=list(ROWS), default=list(ROWS))
    parser.add_argument("--folder", type=Path, default=Path("runs/algorithms"), help="where the runs go")
    given = parser.parse_args()
    for game in given.games:
        print(f"| {game} | turns until learned | success of 100 test games, % | seconds |\n|---|---|---|---|")
        for row in given.rows:
            runs = measure(game, row, given.folder)
            keep(FILE, game, kept(FILE, game) | {row: runs}, jobs=available_cores())
            print(line(row, runs), flush=True)


if __name__ == "__main__":
    main()
