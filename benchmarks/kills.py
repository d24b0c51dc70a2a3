"""Runs that are killed with SIGKILL at random points and resumed must end as if nothing had happened, bit for bit.

    python benchmarks/kills.py [--points 20] [--seed 0] [NAME…]

For each recipe of `tests/golden_runs.py` (two of each role) the run is made once alone; then, for each point, it is
killed after a random time within the length of the whole run, resumed to its end, and compared: metrics
without wall times, result, and the weights that were chosen. Results go to `benchmarks/results/kills.json`.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
sys.path.insert(0, str(Path(__file__).parents[1] / "tools"))

import golden_runs
from running import keep

KILLED = -9


def chosen_weights(run: Path) -> list[bytes]:
    """The files of weights of the best checkpoints, in order of their names."""
    return [file.read_bytes() for file in sorted((run / "checkpoints").glob("best-*/*.safetensors"))]


def measure(name: str, points: int, chance: random.Random) -> dict[str, Any]:
    """Kill and resume one recipe at so many points; the working folder holds the models."""
    from agent_worker import run

    def carry_out(folder: str, die: Any = None, resume: bool = False) -> int:
        shutil.rmtree(folder, ignore_errors=True) if not resume else None
        return run(golden_runs.job(name, folder, resume=resume) | {"die": die})

    began = time.monotonic()
    code = carry_out(f"{name}-whole")
    whole_seconds = time.monotonic() - began
    assert code == 0, Path(f"log-{name}-whole").read_text()[-1000:]
    expected = golden_runs.outcome(Path(f"{name}-whole"))
    killed = same = before_anything = 0
    wrong: list[str] = []
    while killed < points:
        milliseconds = round(1000 * chance.uniform(0.02, 1.0) * whole_seconds)
        code = carry_out(f"{name}-killed", die=["clock", milliseconds, 9])
        if code != KILLED:  # it was faster this time, and had ended: another point
            continue
        killed += 1
        target = Path(f"{name}-killed")
        if (target / "recipe.yaml").exists():
            code = carry_out(f"{name}-killed", resume=True)
        else:  # nothing was begun: the same command once more
            before_anything += 1
            code = carry_out(f"{name}-killed")
        found = golden_runs.outcome(target) if code == 0 else {"metrics": [], "result": {"code": code}}
        lines = [line for line in golden_runs.differences(name, found, expected) if "labels/remembered" not in line]
        if chosen_weights(target) != chosen_weights(Path(f"{name}-whole")):
            lines.append(f"{name}: the chosen weights differ")
        same += not lines
        wrong += [f"{milliseconds} ms: {line}" for line in lines[:3]]
    told = {"points": points, "before anything was written": before_anything}
    print(f"{name}: {same} of {points} equal ({told}), {whole_seconds:.1f} s a run", *wrong, sep="\n  ", flush=True)
    return told | {"equal": same, "seconds of a run": round(whole_seconds, 1), "differences": wrong}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--points", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("names", nargs="*")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        golden_runs.run_all(Path(folder), [])  # builds the models, and changes the working folder
        chance = random.Random(arguments.seed)
        results = {name: measure(name, arguments.points, chance) for name in arguments.names or golden_runs.RECIPES}
        os.chdir(Path(__file__).parent)
    command = f"python benchmarks/kills.py --points {arguments.points} --seed {arguments.seed}"
    keep("kills.json", "random kills", {"command": " ".join([command, *arguments.names]), "recipes": results})
    if any(result["equal"] != result["points"] for result in results.values()):
        raise SystemExit("some resumed runs are not as they would have been")


if __name__ == "__main__":
    main()
