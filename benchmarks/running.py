"""What the benchmarks share: whole commands as processes of their own, and results kept with date and machine."""

from __future__ import annotations

import json
import os
import platform
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"


def train(name: str, arguments: tuple[str, ...], seed: int, folder: Path) -> dict[str, Any]:
    """One `sightline train … --json` in a process of its own: its result, with `wall_seconds`."""
    target = folder / f"{folder_of(name)}-{seed}"
    command = [sys.executable, "-m", "sightline", "train", *arguments, f"seed={seed}", "videos=false"]
    started = time.monotonic()
    done = subprocess.run([*command, "--run-dir", str(target), "--json"], capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{name}, seed {seed}: {done.stderr[-500:]}")
    result: dict[str, Any] = json.loads(done.stdout) | {"wall_seconds": time.monotonic() - started}
    outcome = f"return {result['return']:.0f}"
    if result["success_rate"] is not None:
        outcome += f", success {100 * result['success_rate']:.0f} %"
    print(f"{name}, seed {seed}: {outcome}, {result['wall_seconds']:.0f} s", flush=True)
    return result


def sightline(*arguments: str) -> Any:
    """Output of `sightline … --json`."""
    line = [sys.executable, "-m", "sightline", *arguments, "--json"]
    return json.loads(subprocess.run(line, stdout=subprocess.PIPE, check=True).stdout)


def machine(jobs: int = 1) -> str:
    """Where and how numbers were measured, in words."""
    return f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores, jobs={jobs}"


def document_of(file: str) -> dict[str, Any]:
    """A results file: part -> date, machine and result; empty before the first."""
    path = RESULTS / file
    return dict(json.loads(path.read_text())) if path.is_file() else {}


def kept(file: str, part: str) -> dict[str, Any]:
    """Rows of a part that were measured so far, by this process or another."""
    return dict(document_of(file).get(part, {}).get("result", {}))


def folder_of(row: str) -> str:
    """Name of a folder for a table's row."""
    return re.sub("[,.']", "", row).replace(" ", "-")


def percent(shares: Sequence[tuple[float, float, float]]) -> str:
    """Shares of some runs, each with its interval: percentages, and the widest bounds."""
    values, low, high = zip(*shares, strict=True)
    return f"{' '.join(f'{100 * value:.0f}' for value in values)} [{100 * min(low):.0f}, {100 * max(high):.0f}]"


def keep(file: str, part: str, content: Any, jobs: int = 1) -> None:
    """Put a part's numbers into a results file, beside those of its other parts."""
    document = document_of(file)
    document[part] = {"date": time.strftime("%Y-%m-%d"), "machine": machine(jobs), "result": content}
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / file).write_text(json.dumps(document, indent=1) + "\n")
