"""What the benchmarks share: whole commands as processes of their own, and results kept with date and machine.

`tools/lanes/benchmarks.sh` tries whether every part still runs. It names a folder by `BENCHMARKS_SMALLEST_INTO`:
results go there then, every `sized` number is the smallest, and every run is one of seconds.
"""

from __future__ import annotations

import json
import os
import platform
import re
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from sightline.config.grid import listed_values
from sightline.config.learners import OnPolicyLearner
from sightline.config.loading import load_recipe
from sightline.config.recipe import AgentRecipe, Recipe

_INTO = os.environ.get("BENCHMARKS_SMALLEST_INTO")
RESULTS = Path(_INTO) if _INTO else Path(__file__).parent / "results"
SMALLEST = _INTO is not None
"""Whether it is only tried that benchmarks run."""

# -- sizes -------------------------------------------------------------------------------------------------------------

_POLICY: dict[str, Any] = {
    "steps": 64,
    "envs": 2,
    "episode_steps": 16,
    "videos": False,
    "tensorboard": False,
    "checkpoints.every": 64,
    "evaluation.every": 64,
    "evaluation.episodes": 2,
    "evaluation.test_episodes": 2,
    "learner.hidden": [16, 16],
}
_OFF_POLICY: dict[str, Any] = {
    "learner.chunk": 8,
    "learner.batch_size": 8,
    "learner.learning_starts": 16,
    "learner.gradient_steps": 1,
    "learner.buffer_size": 256,
}
_ON_POLICY: dict[str, Any] = {"learner.chunk": 10, "learner.batch_size": 20}
_TAUGHT: dict[str, Any] = {
    "reward.explore": 16,
    "reward.every": 16,
    "reward.reset_updates": 1,
    "reward.fitting.epochs": 1,
}
_AGENT: dict[str, Any] = {
    "steps": 4,
    "episode_steps": 8,
    "tensorboard": False,
    "checkpoints.every": 4,
    "evaluation.every": 4,
    "evaluation.episodes": 2,
    "evaluation.test_episodes": 2,
    "rollouts.tasks": 2,
}
LITTLE = _POLICY | _OFF_POLICY
"""Overrides that make a run of seconds: whether it runs is asked, not whether it learns."""

Size = TypeVar("Size")


def sized(full: Size, smallest: Size) -> Size:
    """A size, and what it is where it is only tried whether a benchmark runs."""
    return smallest if _INTO else full


def at_size(*arguments: str) -> list[str]:
    """What `sightline train` or `sweep` is told: perhaps a recipe's name, overrides, and then options.

    Returns:
        The same; where a benchmark is only tried, with overrides that make its runs small.
    """
    if _INTO is None:
        return list(arguments)
    first_option = next((place for place, one in enumerate(arguments) if one.startswith("--")), len(arguments))
    name, overrides = _name_and_overrides(arguments[:first_option])
    values = dict(override.split("=", 1) for override in overrides)
    first_cell = {key: listed_values(key, value)[0] for key, value in values.items()}
    recipe = load_recipe(name, [f"{key}={value}" for key, value in first_cell.items()])
    for key, value in _little(recipe).items():
        # What is left out by a zero, such as the steps after a warm start, stays left out.
        is_left_out = values.get(key) == "0"
        has_keys_of_its_own = any(other.startswith(f"{key}.") for other in values)
        if not (is_left_out or has_keys_of_its_own):
            values[key] = json.dumps(value)
    names = [] if name is None else [name]
    return [*names, *(f"{key}={value}" for key, value in values.items()), *arguments[first_option:]]


def loaded(*arguments: str) -> Recipe:
    """The recipe, not yet complete, that `sightline train` is told."""
    return load_recipe(*_name_and_overrides(at_size(*arguments)))


def _name_and_overrides(arguments: Sequence[str]) -> tuple[str | None, list[str]]:
    names = [argument for argument in arguments if "=" not in argument]
    return next(iter(names), None), [argument for argument in arguments if "=" in argument]


def _little(recipe: Recipe) -> dict[str, Any]:
    """Overrides that make a run of seconds out of a recipe."""
    if isinstance(recipe, AgentRecipe):
        return _AGENT if recipe.warm_start is None else _AGENT | {"warm_start.samples": 64}
    learner = _ON_POLICY if isinstance(recipe.learner, OnPolicyLearner) else _OFF_POLICY
    reward = _TAUGHT if recipe.reward.teaching else {}
    return _POLICY | learner | reward


# -- commands ----------------------------------------------------------------------------------------------------------


def train(name: str, arguments: tuple[str, ...], seed: int, folder: Path) -> dict[str, Any]:
    """One `sightline train … --json` in a process of its own: its result, with `wall_seconds`."""
    target = folder / f"{folder_of(name)}-{seed}"
    told = at_size(*arguments, f"seed={seed}", "videos=false")
    command = [sys.executable, "-m", "sightline", "train", *told]
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


def sightline(command: str, *arguments: str) -> Any:
    """Output of `sightline … --json`."""
    begins_run = command in ("train", "sweep") and "--resume" not in arguments[:1]
    told = at_size(*arguments) if begins_run else arguments
    line = [sys.executable, "-m", "sightline", command, *told, "--json"]
    done = subprocess.run(line, stdout=subprocess.PIPE, check=False)
    if done.returncode:
        raise SystemExit(done.returncode)  # it has said on stderr why
    return json.loads(done.stdout)


# -- results -----------------------------------------------------------------------------------------------------------


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


def learn_rows(
    file: str,
    names: Sequence[str],
    seeds: Sequence[int],
    trained: Callable[[str, int], dict[str, Any]],
    judged: Callable[[dict[str, Any]], dict[str, Any]],
) -> dict[str, Any]:
    """Train each row with each seed, but for those that are measured already, and keep the part `learn`.

    Args:
        file: of the results.
        trained: what is kept of a run, from the row's name and the seed.
        judged: the part's content, from all runs so far by "NAME, SEED".
    """
    for seed in seeds:
        for name in names:
            key = f"{name}, {seed}"
            if key in kept(file, "learn").get("runs", {}):
                continue
            facts = trained(name, seed)
            # Read again: another process may have kept other rows meanwhile.
            rows = kept(file, "learn").get("runs", {})
            keep(file, "learn", judged(rows | {key: facts}))
    return judged(kept(file, "learn").get("runs", {}))
