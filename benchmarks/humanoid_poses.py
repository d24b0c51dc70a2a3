"""Does the humanoid do what one sentence says? Every claim of docs/results.md about its poses.

    PYTHONPATH=tools python benchmarks/humanoid_poses.py words --folder runs/humanoid [--poses kneeling standing]
    PYTHONPATH=tools python benchmarks/humanoid_poses.py truth | controls | ablation [--rows nonsense]

- `words`: each recipe `humanoid-…` with three seeds, those that were not learned with one; `truth`: the same paid by
  the ground truth, which is what the learner can do; `controls`: a nonsense sentence, the baseline's words as the
  goal, an untrained encoder, and blank pictures, three seeds each for kneeling and raised arms; elsewhere nonsense
  with one seed.
- `ablation`: kneeling, as the paper's: plain or textured scene, three cameras, the bundled encoder or one of half the
  width that was trained for less long (`--half FOLDER`, made by `python -m pretraining.encoder.train --width 6
  --updates 2000`).

All are `sightline sweep`s: runs of before are kept, those cut off are resumed. A pose is held if its check was true in
80 % of the last 0.6 s and at the end, over 100 fresh starts in the true physics: at the recipe's 1.5 s, and by
`sightline evaluate RUN episode_steps=167` at 5 s (not in the ablation). Numbers go to
benchmarks/results/humanoid_poses.json.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

from pretraining.encoder.card import NONSENSE
from running import folder_of, keep, kept, percent, sightline, sized
from sightline.models.device import available_cores

FILE = "humanoid_poses.json"
POSES = ("kneeling", "standing", "arms-raised", "hands-on-hips", "lotus", "splits", "arms-crossed", "one-leg")
CONTROLLED = ("kneeling", "arms-raised")
"""Poses with all four controls; the others have one."""
NOT_LEARNED = ("lotus", "one-leg")
"""Poses that one seed did not learn from words."""
WITHOUT = ("nothing", "constant")
SEEDS, ONE_SEED, FIVE_SECONDS = sized("seed=0..2", "seed=0..0"), "seed=0", 167


@dataclass(frozen=True)
class Row:
    """One line of a table: a sweep over training seeds."""

    name: str
    arguments: tuple[str, ...]


def rows(part: str, poses: Sequence[str], untrained: Path, half: Path | None) -> Iterator[Row]:
    for pose in poses:
        recipe = f"humanoid-{pose}"
        if part == "words":
            yield Row(pose, (recipe, ONE_SEED if pose in NOT_LEARNED else SEEDS))
            if pose == "kneeling":  # standing with target angles was learned badly even from ground truth
                yield Row(f"{pose}, target angles", (recipe, SEEDS, "env_options.control=position"))
        elif part == "truth":
            yield Row(f"{pose}, ground truth", (recipe, SEEDS, "reward.kind=ground_truth"))
        elif part == "controls":
            fully = pose in CONTROLLED
            seeds = SEEDS if fully else ONE_SEED
            yield Row(f"{pose}, nonsense", (recipe, seeds, f"goal='{NONSENSE[0]}'"))
            if fully:
                words = ("goal='a humanoid robot'", "baseline=[]", "reward.alpha=null")
                yield Row(f"{pose}, the baseline's words", (recipe, seeds, *words))
                yield Row(f"{pose}, untrained encoder", (recipe, seeds, f"reward.encoder=local-dir:{untrained}"))
                yield Row(f"{pose}, blank pictures", (recipe, seeds, "env_options.look=blank"))
    if part == "ablation":
        encoders = "bundled" if half is None else f"bundled,local-dir:{half}"
        grid = ("env_options.scene=original,textured", "env_options.camera=front,close,track")
        one = ("reward.views=1", "seed=0", "evaluation.test_episodes=50")
        yield Row("kneeling", ("humanoid-kneeling", *grid, f"reward.encoder={encoders}", *one))


def trained(row: Row, folder: Path) -> list[dict[str, Any]]:
    """Cells of a row's sweep; of one seed it is a run."""
    if ONE_SEED not in row.arguments or any("," in argument for argument in row.arguments):
        return list(sightline("sweep", *row.arguments, "--run-dir", str(folder))["cells"])
    run = folder / ONE_SEED
    if not (run / "result.json").is_file():
        sightline("train", *(("--resume",) if run.exists() else row.arguments), "--run-dir", str(run))
    return [{"cell": ONE_SEED, "run": str(run)}]


def measure(row: Row, folder: Path, five_seconds: bool) -> dict[str, Any]:
    """Train a row's runs, and perhaps play their policies for five seconds as well."""
    found: dict[str, Any] = {}
    for cell in trained(row, folder / folder_of(row.name)):
        run = Path(cell["run"])
        result = json.loads((run / "result.json").read_text())
        found[cell["cell"]] = {
            "held": result["success_rate"],
            "interval": [result["ci_low"], result["ci_high"]],
            "checks": {name.removeprefix("held "): value for name, value in result["measures"].items()},
            "reward": result["reward"],
            "chosen step": result["chosen_step"],
            "seconds": round(result["seconds"]),
        }
        if not five_seconds:
            continue
        longer = run / "five-seconds.json"
        if not longer.is_file():
            few = sized((), ("--episodes", "2"))
            longer.write_text(json.dumps(sightline("evaluate", str(run), f"episode_steps={FIVE_SECONDS}", *few)))
        after = json.loads(longer.read_text())
        found[cell["cell"]] |= {
            "held after 5 s": after["success_rate"],
            "interval after 5 s": [after["ci_low"], after["ci_high"]],
        }
    return found


def table(measured: dict[str, Any]) -> str:
    """One line for each row, the cells of its seeds beside each other, and what needs no learning beside them: doing
    nothing and the best constant action, as `benchmarks/humanoid.py constants` found them."""
    lines = [
        "| run | held after 1.5 s, % | nothing | best constant | after 5 s, % | seconds |",
        "|---|---|---|---|---|---|",
    ]
    unlearned = kept("humanoid.json", "constants")
    for name, cells in measured.items():
        # Seeds stand beside each other; each combination of a grid has a line of its own.
        is_grid = len(cells) > 3
        parts = {f"{name}: {cell}": [found] for cell, found in cells.items()} if is_grid else {name: [*cells.values()]}
        pose, control = name.split(",")[0], "position" if "target angles" in name else "torque"
        without = [f"{100 * unlearned[f'{pose}, {control}'][f'{who}, 50 steps']['held']:.0f}" for who in WITHOUT]
        for label, part in parts.items():
            seconds = sorted(each["seconds"] for each in part)
            held = percent([(each["held"], *each["interval"]) for each in part])
            longer = [
                (each["held after 5 s"], *each["interval after 5 s"]) for each in part if "held after 5 s" in each
            ]
            after = percent(longer) if longer else "–"
            lines.append(f"| {label} | {held} | {' | '.join(without)} | {after} | {seconds[0]}–{seconds[-1]} |")
    return "\n".join(lines)


def matrix(measured: dict[str, Any]) -> str:
    """Every run judged by all eight checks: mean percentages over a row's seeds."""
    checks = next(iter(next(iter(measured.values())).values()))["checks"]
    lines = [f"| run | {' | '.join(checks)} |", f"|{'---|' * (1 + len(checks))}"]
    for name, cells in measured.items():
        means = [sum(cell["checks"][check] for cell in cells.values()) / len(cells) for check in checks]
        lines.append(f"| {name} | {' | '.join(f'{100 * mean:.0f}' for mean in means)} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=["words", "truth", "controls", "ablation"])
    parser.add_argument("--folder", type=Path, default=Path("runs/humanoid"), help="where the runs go")
    parser.add_argument("--poses", nargs="+", choices=POSES, default=POSES[: sized(None, 1)])
    parser.add_argument("--rows", default="", help="only rows whose names contain this, such as 'blank'")
    parser.add_argument("--half", type=Path, help="an encoder of half the width")
    given = parser.parse_args()
    untrained = (given.folder / "untrained-encoder").resolve()
    if given.part == "controls" and not (untrained / "open_clip_config.json").is_file():
        # The weights before the first update.
        making = [sys.executable, "-m", "pretraining.encoder.train", "--out", str(untrained), "--updates", "0"]
        subprocess.run(making, check=True)
    for row in rows(given.part, given.poses, untrained, given.half and given.half.resolve()):
        if given.rows not in row.name:
            continue
        measured = measure(row, given.folder / given.part, five_seconds=given.part != "ablation")
        keep(FILE, given.part, kept(FILE, given.part) | {row.name: measured}, jobs=available_cores())
        print(table({row.name: measured}), flush=True)
    print(table(kept(FILE, given.part)), matrix(kept(FILE, given.part)), sep="\n\n")


if __name__ == "__main__":
    main()
