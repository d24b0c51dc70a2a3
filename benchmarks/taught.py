"""Are cloth, rope, water and a drawer learned from labels of pictures? Every claim of docs/results.md about that.

    python benchmarks/taught.py taught truth others --folder runs/taught [--tasks straighten-rope]

- `taught`: each recipe with three seeds: a teacher compares pictures, a reward is learned from its answers, and a
  policy from that. Of rope, cloth and water the teacher is the bundled encoder of these tasks, of cloth and drawer a
  script.
- `truth`: the same learner paid by the ground truth, three seeds.
- `others`: rope, cloth and water, one seed each, half as many steps: sparse reward, and zero-shot words without a
  teacher (alpha 0, .5, 1); also, where a BLIP-2 `--matching MODEL` is named, the probability that it gives to the goal.
- `shape`: is a rope that counts as straight one? At the end of fresh episodes of the policies of `taught`, and of the
  script: the distance of its ends, its own length, and the farthest that it is from the line through its ends.

All are `sightline sweep`s: runs of before are kept, those cut off are resumed. Success is that of the last state of 100
fresh random starts (of `shape`, 15), of the drawer that of any state. Numbers go to benchmarks/results/taught.json.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np

from running import folder_of, keep, kept, percent, sightline, sized
from sightline.api import Run
from sightline.models.device import available_cores
from sightline_tasks.deformables.rope import StraightenRope

FILE = "taught.json"
TASKS = {"straighten-rope": 6000, "fold-cloth": 600, "pass-water": 8000, "drawer-open": 7000}
"""Tasks, and the steps of their recipes."""
TRIED = [task for task in TASKS if task != "fold-cloth"]
"""Tasks where it is only asked whether this file runs; a step of the cloth is a whole fold, and takes long."""
SEEDS = sized("seed=0..2", "seed=0..0")
WORDS = "reward={kind: zero_shot, encoder: bundled-deformables}"


def rows(part: str, task: str, matching: str | None) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Name and arguments of each sweep."""
    if part == "taught":
        if task == "fold-cloth":
            yield f"{task}, taught by a script", (f"{task}-scripted", SEEDS)
        yield f"{task}, taught by {'a script' if task == 'drawer-open' else 'pictures'}", (task, SEEDS)
    elif part == "truth":
        yield f"{task}, ground truth", (task, SEEDS, "reward={kind: ground_truth}")
    elif task != "drawer-open":
        half = (task, "seed=0", f"steps={TASKS[task] // 2}")
        yield f"{task}, sparse", (*half, "reward={kind: sparse}")
        for alpha in ("0", "0.5", "1"):
            yield f"{task}, words alone, alpha {alpha}", (*half, WORDS, f"reward.alpha={alpha}")
        if matching is not None:
            yield f"{task}, image-text matching", (*half, f"reward={{kind: image_text_matching, model: {matching}}}")


def measure(name: str, arguments: tuple[str, ...], folder: Path) -> list[dict[str, Any]]:
    """Train a row's runs: of each seed the success of the chosen policy, and the time that all took."""
    found, place = [], folder / folder_of(name)
    if SEEDS in arguments:
        runs = [Path(cell["run"]) for cell in sightline("sweep", *arguments, "--run-dir", str(place))["cells"]]
    else:  # one run alone, which no sweep makes
        runs = [place]
        if not (place / "result.json").exists():
            sightline("train", *arguments, "--run-dir", str(place), *(["--resume"] if place.exists() else []))
    for run in runs:
        result = json.loads((run / "result.json").read_text())
        keys = ("success_rate", "ci_low", "ci_high", "return", "chosen_step", "seconds")
        found.append({key: result[key] for key in keys})
    return found


def shape(choose: Callable[[np.ndarray, StraightenRope], np.ndarray], episodes: int = sized(15, 1)) -> dict[str, float]:
    """Means, in lengths of the rope at rest, at the end of episodes; and the share of successes."""
    env, rows = StraightenRope(), []
    for episode in range(episodes):
        seen, _ = env.reset(seed=900 + episode)
        for _ in range(40):
            seen, _, _, _, info = env.step(choose(seen, env))
        own = np.linalg.norm(np.diff(env.points, axis=0), axis=1).sum()
        rows.append((env.gap / env.length, own / env.length, env.bow / env.length, info["success"]))
    means = np.mean(rows, axis=0).tolist()
    return dict(zip(("ends apart", "own length", "farthest from the line", "success"), means, strict=True))


def shapes(folder: Path) -> dict[str, dict[str, float]]:
    """`shape` of the taught ropes of three seeds, and of the script."""
    found = {"script": shape(lambda seen, env: env.solution())}
    for seed in range(sized(3, 1)):
        policy = Run(folder / folder_of("straighten-rope, taught by pictures") / f"seed={seed}").policy()

        def choose(seen: np.ndarray, env: StraightenRope, policy: Any = policy) -> np.ndarray:
            return np.asarray(policy.predict(seen, deterministic=True)[0])

        found[f"taught, seed {seed}"] = shape(choose)
    return found


def line(name: str, runs: list[dict[str, Any]]) -> str:
    """A row of the table."""
    success = percent([(run["success_rate"], run["ci_low"], run["ci_high"]) for run in runs])
    seconds = sorted(round(run["seconds"]) for run in runs)
    return f"| {name} | {success} | {seconds[0]}–{seconds[-1]} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="+", choices=["taught", "truth", "others", "shape"])
    parser.add_argument("--folder", type=Path, default=Path("runs/taught"), help="where the runs go")
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=sized(list(TASKS), TRIED))
    parser.add_argument("--rows", default="", help="only rows whose names contain this, such as 'script'")
    parser.add_argument("--matching", help="a BLIP or BLIP-2 model with a matching head")
    given = parser.parse_args()
    if "shape" in given.parts:
        found = shapes(given.folder)
        keep(FILE, "shape", found, jobs=available_cores())
        print(json.dumps(found, indent=1))
    print("| run | success, % | seconds |\n|---|---|---|")
    for part in (part for part in given.parts if part != "shape"):
        for task in given.tasks:
            for name, arguments in rows(part, task, given.matching):
                if given.rows not in name:
                    continue
                runs = measure(name, arguments, given.folder)
                keep(FILE, part, kept(FILE, part) | {name: runs}, jobs=available_cores())
                print(line(name, runs), flush=True)


if __name__ == "__main__":
    main()
