"""The lab: a sweep over words from kept embeddings, its memory, and what the check before training passes and stops.

    python benchmarks/lab.py sweep | memory | gate [--recipes cartpole …]

- `sweep`: five alphas and ten sentences over 10 000 frames of CartPole's random play, with AUROC, Spearman and EPIC
  and their intervals, once every frame is embedded; beside it one of these rewards in a folder where none is, which is
  what each would take without the store. Asked: the fifty take at most a twentieth of fifty such.
- `memory`: the peak of the memory of `sightline lab` with 2 000 and with 20 000 frames of play. Asked: at most 1.1
  times as much.
- `gate`: `check_reward` of the bundled recipes that learn from words, and the same with each of the forty nonsense
  goals of `benchmarks/nonsense_goals.txt` in their place: forty tries of each, shared out among the recipes, a seed
  each. Asked: at least 95 % pass and at least 95 % are refused, in at most two minutes each.

Results go to benchmarks/results/lab.json. Times are of one core.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

from running import keep, sized
from sightline.control.resolving import resolve
from sightline.envs.tasks import find_task
from sightline.errors import BadInput
from sightline.reward_lab.contenders import contenders, load_task
from sightline.reward_lab.features import FeatureStore
from sightline.reward_lab.gate import PASSED, REFUSED, WARNED, check_reward
from sightline.reward_lab.running import CHIEF_MEASURES, DRAWS_OF_SWEEP, FEATURES, LabData, run_lab
from sightline.reward_lab.scoring import build_rewards, score
from sightline.reward_lab.sources import random_play

FILE = "lab.json"
SENTENCES = (
    "pole vertically upright on top of the cart",
    "the pole stands upright",
    "an upright pole on a cart",
    "a pole that leans to the left",
    "a pole that leans to the right",
    "a pole hanging down from the cart",
    "the cart at the left edge",
    "the cart at the right edge",
    "the cart in the middle",
    "a pole lying on the ground",
)
ALPHAS = "reward.alpha=0,0.25,0.5,0.75,1"
STEPS = 200
"""Steps of an episode of CartPole, each of them a frame."""
TIMES = 20
MOST_MEMORY = 1.1
MOST_SECONDS = 120
LEARNED = (
    *("cartpole", "mountain-car", "mountain-car-progress", "humanoid-kneeling", "humanoid-standing"),
    *("humanoid-arms-raised", "humanoid-hands-on-hips", "humanoid-splits", "humanoid-arms-crossed"),
)
"""Bundled recipes that learn from words (docs/results.md); lotus and one-leg do not."""
TRIES = 40
NONSENSE = (Path(__file__).parent / "nonsense_goals.txt").read_text().splitlines()


def seconds_of(call: Callable[[], Any]) -> float:
    """Processor seconds of a call in this process."""
    began = time.process_time()
    call()
    return time.process_time() - began


def sweep(folder: Path) -> dict[str, Any]:
    # Frames of random play alone: the sweep over states and the script would come on top.
    episodes = sized(10_000, 2 * STEPS) // STEPS

    def one_anew(store: Path) -> None:
        """What each reward takes where nothing is kept: to play, draw, embed, score, and measure as in the sweep."""
        ready = build_rewards(contenders("cartpole", [], {}))
        source = random_play(find_task("cartpole"), episodes, 0)
        scores = score(ready, [source], FeatureStore(store), variants=False)
        for measure in CHIEF_MEASURES.values():
            measure(scores.of("own"), DRAWS_OF_SWEEP)

    one_anew(folder / "warm-up")  # what is loaded once is not what is measured
    anew = seconds_of(lambda: one_anew(folder / "kept" / FEATURES))
    cells: dict[str, Any] = {}
    data = LabData(episodes=episodes, play=("random",))
    kept = seconds_of(lambda: cells.update(run_lab("cartpole", [ALPHAS], {}, SENTENCES, data, out=folder / "kept")))
    assert cells["embedded"] == 0, "all of them are kept"
    times = len(cells["rewards"]) * anew / kept
    return {
        "frames": cells["frames"],
        "rewards": len(cells["rewards"]),
        "one reward anew, s": round(anew, 2),
        "all rewards from kept embeddings, s": round(kept, 2),
        "times as fast": round(times, 1),
        "met": times >= TIMES,
    }


def memory(folder: Path) -> dict[str, Any]:
    peaks = {}
    for frames in sized((2_000, 20_000), (2 * STEPS, 4 * STEPS)):
        line = [sys.executable, "-m", "sightline", "lab", "cartpole", "--json", f"--episodes={frames // STEPS // 2}"]
        process = subprocess.Popen(line, stdout=subprocess.DEVNULL)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            raise SystemExit(f"{' '.join(line)} failed")
        peaks[frames] = round(usage.ru_maxrss / 1024)
    few, many = peaks.values()
    ratio = round(many / few, 3)
    return {
        "MB by frames": {str(frames): peak for frames, peak in peaks.items()},
        "ratio": ratio,
        "met": ratio <= MOST_MEMORY,
    }


def gate(recipes: list[str]) -> dict[str, Any]:
    tries = sized(TRIES, 1)
    found: dict[str, Any] = {"recipes": recipes, "tries": tries}
    for part in ("words", "nonsense"):
        verdicts: dict[str, int] = {}
        wrong: list[str] = []
        longest = 0.0
        for number in range(tries):
            recipe = recipes[number % len(recipes)]
            overrides = [] if part == "words" else [f"goal={NONSENSE[number]}"]
            began = time.monotonic()
            try:
                verdict = check_reward(resolve(load_task(recipe, overrides)), seed=number)
            except BadInput as error:
                verdict = {"verdict": REFUSED, "reason": str(error)}
            longest = max(longest, time.monotonic() - began)
            verdicts[verdict["verdict"]] = verdicts.get(verdict["verdict"], 0) + 1
            is_right = verdict["verdict"] in ((PASSED, WARNED) if part == "words" else (REFUSED,))
            if not is_right:
                wrong.append(f"{recipe}, try {number}: {verdict['reason']}")
            print(part, number, recipe, verdict["verdict"], verdict["reason"], flush=True)
        share = 1 - len(wrong) / tries
        found[part] = {"verdicts": verdicts, "right": round(share, 3), "wrong": wrong, "longest, s": round(longest, 1)}
    found["met"] = all(
        found[part]["right"] >= 0.95 and found[part]["longest, s"] <= MOST_SECONDS for part in ("words", "nonsense")
    )
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=["sweep", "memory", "gate"])
    parser.add_argument("--recipes", nargs="+", default=list(LEARNED), help="of `gate`")
    given = parser.parse_args()
    folder = Path(tempfile.mkdtemp())
    try:
        if given.part == "gate":
            found = gate(given.recipes)
        else:
            found = {"sweep": sweep, "memory": memory}[given.part](folder)
    finally:
        shutil.rmtree(folder)
    print(json.dumps(found, indent=1), flush=True)
    keep(FILE, given.part, {"command": f"python benchmarks/lab.py {given.part}"} | found)


if __name__ == "__main__":
    main()
