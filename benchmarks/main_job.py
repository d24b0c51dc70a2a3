"""Does the main job work? Every claim of docs/results.md about learning, measured and printed by one command.

    PYTHONPATH=tools python benchmarks/main_job.py --second-encoder FOLDER --jobs 2

Each row is several whole `sightline train … --json` commands with different training seeds; success is ground truth on
the test panel of 100 seeds, by the checkpoint that the words' reward chose on another panel. FOLDER holds an encoder of
another training seed: `PYTHONPATH=tools python -m pretraining.encoder.train --out FOLDER --seed 1`. An untrained one
is made here. Results go to benchmarks/results/main_job.json and, as a table, to stdout.

    PYTHONPATH=tools python benchmarks/main_job.py peers

What the whole command takes, beside what a user would write instead (`benchmarks/peers.py`): processor and wall seconds
to the first validation panel that succeeds, and to a tested policy; only ours makes films and a report. All take turns,
and ratios are taken within a seed. Results go to benchmarks/results/peers.json and, as a table, to stdout;
`python tools/tables.py` puts them into the documents.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

import result_tables
from peers import PEERS
from pretraining.encoder.card import NONSENSE
from running import RESULTS, at_size, document_of, keep, machine, sized, train

FILE = RESULTS / "main_job.json"
PEERS_FILE = "peers.json"


@dataclass(frozen=True)
class Row:
    """One line of the table: a command, repeated with several seeds."""

    name: str
    arguments: tuple[str, ...]
    seeds: int


def rows(second_encoder: Path | None, untrained: Path) -> Iterator[Row]:
    yield Row("cartpole", ("cartpole",), 5)
    if second_encoder:
        yield Row("cartpole, encoder of seed 1", ("cartpole", f"reward.encoder=local-dir:{second_encoder}"), 5)
    yield Row("mountain-car", ("mountain-car",), 3)
    yield Row("mountain-car, textured", ("mountain-car", "env=mountain-car-textured"), 3)
    pendulum = ("env=Pendulum-v1", "goal=a rod standing upright", "baseline=a rod")
    yield Row("Gymnasium's Pendulum-v1 from words alone", pendulum, 3)
    for goal in NONSENSE:
        yield Row(f"control: nonsense '{goal}'", ("cartpole", f"goal={goal}"), 3)
    yield Row(
        "control: baseline words as goal", ("cartpole", "goal=pole and cart", "baseline=[]", "reward.alpha=null"), 3
    )
    yield Row("control: untrained encoder", ("cartpole", f"reward.encoder=local-dir:{untrained}"), 3)
    yield Row("other words: cart at the right edge", ("cartpole", "goal=the cart at the right edge"), 3)


def run(row: Row, seed: int, folder: Path) -> dict[str, Any]:
    """One training run in a process of its own."""
    result = train(row.name, row.arguments, seed, folder)
    target = Path(result.pop("run"))
    result["final_position"] = final_position(target) if row.name.startswith("other words") else None
    return result


def final_position(run_folder: Path) -> float:
    """Mean cart position (m) over the last 50 steps of 20 test episodes of the chosen checkpoint."""
    import numpy as np

    from sightline.control.learners import greedy
    from sightline.control.state import chosen_policy
    from sightline.runs.folder import open_run
    from sightline_tasks.control.cartpole import CartPole

    policy = greedy(chosen_policy(open_run(run_folder)))
    positions = []
    for seed in range(20):
        env = CartPole()
        state, _ = env.reset(seed=seed)
        for step in range(200):
            state, *_ = env.step(policy(state[None])[0])
            if step >= 150:
                positions.append(float(state[0]))
    return float(np.mean(positions))


def table(results: dict[str, list[dict[str, Any]]]) -> str:
    """The results in Markdown."""
    lines = [
        "| run | seeds | untrained | success of each seed | worst 95 % interval | off the wall | seconds |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, runs in results.items():
        seconds = f"{min(r['wall_seconds'] for r in runs):.0f}–{max(r['wall_seconds'] for r in runs):.0f}"
        if runs[0]["success_rate"] is None:
            returns = " ".join(f"{r['return']:.0f}" for r in runs)
            worst = min(runs, key=lambda r: r["return"])
            interval = f"{worst['return_ci_low']:.0f} to {worst['return_ci_high']:.0f}"
            before = min(r["untrained"]["return"] for r in runs)
            lines.append(f"| {name}: returns | {len(runs)} | {before:.0f} | {returns} | {interval} | – | {seconds} |")
            continue
        each = " ".join(f"{100 * r['success_rate']:.0f}" for r in runs)
        worst = min(runs, key=lambda r: r["success_rate"])
        best = max(runs, key=lambda r: r["success_rate"])
        shown = best if name.startswith("control") else worst
        interval = f"{100 * shown['ci_low']:.0f}–{100 * shown['ci_high']:.0f}"
        before = max(100 * r["untrained"]["success_rate"] for r in runs)
        wall = " ".join(f"{100 * m:.0f}" for r in runs for m in r["measures"].values()) or "–"
        lines.append(f"| {name} | {len(runs)} | {before:.0f} | {each} | {interval} | {wall} | {seconds} |")
    positions = [r["final_position"] for runs in results.values() for r in runs if r["final_position"] is not None]
    lines.append("")
    lines.append(
        f"'the cart at the right edge': mean final position {', '.join(f'{p:+.2f}' for p in positions)} m of 2.4"
    )
    return "\n".join(lines)


# -- beside what a user would write instead ----------------------------------------------------------------------------


def main_of_peers(seeds: int) -> None:
    """Measure ours and all peers in turn."""
    rows: dict[str, list[dict[str, Any]]] = {name: [] for name in ("ours", *PEERS)}
    with tempfile.TemporaryDirectory() as folder:
        for seed in range(seeds):
            for name, measured in rows.items():
                run = Path(folder) / f"{name}-{seed}"
                measured.append(timed_run(name, seed, run))
                print(name, seed, measured[-1], flush=True)
    keep(PEERS_FILE, "peers", rows)
    print(result_tables.peers(document_of(PEERS_FILE)))


def timed_run(name: str, seed: int, run: Path) -> dict[str, Any]:
    """Processor and wall seconds of a whole command, to its first success and to its end."""
    if name == "ours":
        told = at_size("cartpole", f"seed={seed}", "device=cpu", "reward.device=cpu")
        command = [sys.executable, "-m", "sightline", "train", *told, "--run-dir", str(run), "--json"]
    else:
        command = [sys.executable, str(Path(__file__).with_name("peers.py")), name, "--seed", str(seed)]
    output = run.with_suffix(".out")
    began = time.monotonic()
    used = 0.0
    numbers: dict[str, Any] = {"first_success_cpu": None, "first_success_wall": None}
    with output.open("w") as stream:
        process = psutil.Popen(command, stdout=stream, stderr=subprocess.DEVNULL)
        while process.poll() is None:
            # Once a process that has started others is gone, theirs are gone with it.
            used = max(processor_seconds(process), used)
            is_first = numbers["first_success_cpu"] is None
            if is_first and has_succeeded(run / "metrics.jsonl" if name == "ours" else output):
                numbers |= {
                    "first_success_cpu": processor_seconds(process),
                    "first_success_wall": time.monotonic() - began,
                }
            time.sleep(0.05)
    numbers |= {"cpu": used, "wall": time.monotonic() - began}
    text = output.read_text()
    if process.returncode:
        raise SystemExit(f"{name}, seed {seed}: exit code {process.returncode}")
    result = json.loads(text) if name == "ours" else json.loads(text.splitlines()[-1])["result"]
    return numbers | {"success_rate": result["success_rate"], "untrained": result["untrained"]["success_rate"]}


def has_succeeded(file: Path) -> bool:
    """Whether a run's metrics, or a peer's output, tell of a validation panel without a failure."""
    if not file.is_file():
        return False
    text = file.read_text()
    return '"first_success"' in text or re.search(r'"evaluation/success_rate": ?1\.0\b', text) is not None


def processor_seconds(process: psutil.Process) -> float:
    """Of a process, its children and theirs, with those of them that have ended; 0 once it has ended itself."""
    try:
        family = [process, *process.children(recursive=True)]
        times = [one.cpu_times() for one in family]
    except psutil.NoSuchProcess:
        return 0.0
    return float(sum(one.user + one.system + one.children_user + one.children_system for one in times))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", nargs="?", choices=("rows", "peers"), default="rows")
    parser.add_argument("--seeds", type=int, default=sized(5, 1), help="of the peers")
    parser.add_argument("--second-encoder", type=Path)
    parser.add_argument("--jobs", type=int, default=sized(1, 2), help="runs at the same time")
    parser.add_argument("--only", default="", help="only rows whose name contains this")
    arguments = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    if arguments.part == "peers":
        main_of_peers(arguments.seeds)
        return
    with tempfile.TemporaryDirectory() as name, ThreadPoolExecutor(arguments.jobs) as pool:
        folder = Path(name)
        untrained = folder / "untrained"
        train = [sys.executable, "-m", "pretraining.encoder.train", "--updates", "0", "--out", str(untrained)]
        subprocess.run(train, check=True, capture_output=True)
        wanted = [row for row in rows(arguments.second_encoder, untrained) if arguments.only in row.name]
        futures = {
            row.name: [pool.submit(run, row, seed, folder) for seed in range(sized(row.seeds, 1))] for row in wanted
        }
        results = {name: [future.result() for future in runs] for name, runs in futures.items()}
    known = json.loads(FILE.read_text())["rows"] if arguments.only and FILE.is_file() else {}
    where = machine(arguments.jobs)
    document = {"date": time.strftime("%Y-%m-%d"), "machine": where, "rows": known | results}
    FILE.write_text(json.dumps(document, indent=1) + "\n")
    print(f"\n{document['date']}, {where}\n\n{table(known | results)}")


if __name__ == "__main__":
    main()
