"""Every environment that Gymnasium's registry knows here: is it learned from, or refused in a line?

    python benchmarks/everybodys_environments.py                       # all; an hour on two cores; goes on where it was
    python benchmarks/everybodys_environments.py --match 'MiniGrid-.*' --again
    python benchmarks/everybodys_environments.py --sample 20           # every so-manieth id
    python benchmarks/everybodys_environments.py --table               # what was found so far

Each id is made, trained for 64 steps from words with the bundled encoder, evaluated, and resumed for 64 more. What
cannot be drawn is trained from its states, by its own reward. An exception that is not one of our lines is a failure,
as is a process that dies or stands still. Results: `results/everybodys_environments.json`.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import multiprocessing
import re
import sysconfig
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

from running import LITTLE, keep, kept, sized

FILE = "everybodys_environments.json"
PACKAGES = ("sightline.envs", "minigrid", "miniwob", "metaworld")
"""What `.[dev]` installs that registers environments, beside Gymnasium itself."""

SECONDS = 600
"""Time limit of one id."""

TRAINED, FROM_STATES, REFUSED, FAILED = "trained from words", "trained from states", "refused", "FAILED"


@dataclass(frozen=True)
class Outcome:
    """What became of an environment.

    Attributes:
        verdict: trained from words or from states, refused, or failed.
        line: the refusal; of an environment that was trained from states, why it was not from words.
        package: whose environment it is.
        warnings: what the run said that it did, or that looks wrong.
        seconds: that it took.
    """

    verdict: str
    line: str
    package: str
    warnings: tuple[str, ...]
    seconds: float


def ids() -> dict[str, str]:
    """Ids of Gymnasium's registry, after the packages have registered theirs: id -> package."""
    import gymnasium

    from sightline.envs.rendering import prepare_rendering

    prepare_rendering()  # MuJoCo, which some import, asks once how it should draw
    for name in PACKAGES:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    return {name: _package(spec) for name, spec in sorted(gymnasium.registry.items())}


def _package(spec: Any) -> str:
    entry = spec.entry_point or spec.vector_entry_point
    module = entry if isinstance(entry, str) else entry.__module__
    return re.split("[.:]", module)[0]


def try_one(env_id: str, package: str, folder: Path) -> Outcome:
    """Train, evaluate and resume one environment from words; from its states if that is refused.

    Args:
        env_id: of Gymnasium.
        package: whose environment it is.
        folder: for the run folders.

    Returns:
        What became of it; any exception that is not a line of ours is a failure.
    """
    from sightline.errors import BadInput, RunFailed

    started = time.monotonic()

    def outcome(verdict: str, line: str = "", warnings: tuple[str, ...] = ()) -> Outcome:
        # Where packages are installed is nobody's concern.
        line = line.replace(sysconfig.get_paths()["purelib"], "…")
        return Outcome(verdict, line, package, warnings, round(time.monotonic() - started, 1))

    words = {"goal": "the pole upright", "baseline": "the pole"}
    states = {"reward.kind": "ground_truth"}
    refusals: list[str] = []
    for verdict, reward in ((TRAINED, words), (FROM_STATES, states)):
        try:
            warnings = train_evaluate_resume(env_id, reward, folder / verdict.replace(" ", "-"))
            return outcome(verdict, "".join(refusals), warnings)
        except (BadInput, RunFailed) as error:
            refusals.append(str(error))
            if "\n" in str(error):
                return outcome(FAILED, f"more than a line: {error}")
        except Exception as error:
            return outcome(FAILED, f"{type(error).__name__}: {error}")
    return outcome(REFUSED, refusals[0])


def train_evaluate_resume(env_id: str, reward: dict[str, str], folder: Path) -> tuple[str, ...]:
    """Learn from an environment for 64 steps, evaluate the policy, and learn on to 128: warnings of the run."""
    import sightline as sl

    run = sl.train({"env": env_id, **reward}, run_dir=folder, progress=False, **LITTLE)
    evaluation = run.evaluate(episodes=2)
    assert evaluation["episodes"] == 2, evaluation
    resumed = sl.train(run_dir=folder, resume=True, progress=False, steps=2 * LITTLE["steps"])
    reached = max(record.get("step", 0) for record in resumed.metrics())
    assert reached >= 2 * LITTLE["steps"], f"resumed, but at step {reached}"
    said = folder / "warnings.json"
    return tuple(json.loads(said.read_text()).get("warnings", ())) if said.is_file() else ()


def _serve(pipe: Connection) -> None:
    """Try the ids that come through a pipe, in a process that has loaded everything once."""
    import logging
    import os

    import torch

    torch.set_num_threads(1)
    logging.disable()
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    packages = ids()
    while (env_id := pipe.recv()) is not None:
        with tempfile.TemporaryDirectory() as folder:
            pipe.send(try_one(env_id, packages[env_id], Path(folder)))


class Worker:
    """A process that tries one id after the other; it is replaced where one kills it or takes too long."""

    def __init__(self) -> None:
        self._begin()

    def _begin(self) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs,), daemon=False)
        self._process.start()
        theirs.close()

    def outcome(self, env_id: str, package: str) -> Outcome:
        """What became of an id, within the time limit."""
        self._pipe.send(env_id)
        # The first id of a process waits for its imports, too.
        if self._pipe.poll(SECONDS):
            with contextlib.suppress(EOFError, ConnectionError):
                return self._pipe.recv()  # type: ignore[no-any-return]
            self._process.join()
            line = f"its process ended with code {self._process.exitcode}"
        else:
            self._process.kill()
            self._process.join()
            line = f"not done after {SECONDS} s"
        self._begin()
        return Outcome(FAILED, line, package, (), float(SECONDS))

    def end(self) -> None:
        """Let the process leave."""
        with contextlib.suppress(ConnectionError):
            self._pipe.send(None)
        self._process.join(30)
        self._process.kill()


def outcomes(wanted: dict[str, str], jobs: int) -> Iterator[tuple[str, Outcome]]:
    """Outcomes of ids, as they come.

    Args:
        wanted: id -> package.
        jobs: number of processes.
    """
    waiting: SimpleQueue[str] = SimpleQueue()
    done: SimpleQueue[tuple[str, Outcome] | None] = SimpleQueue()
    for env_id in wanted:
        waiting.put(env_id)

    def work() -> None:
        worker = Worker()
        try:
            with contextlib.suppress(Empty):
                while True:
                    env_id = waiting.get_nowait()
                    done.put((env_id, worker.outcome(env_id, wanted[env_id])))
        finally:
            worker.end()
            done.put(None)

    with ThreadPoolExecutor(jobs) as threads:
        for _ in range(jobs):
            threads.submit(work)
        running = jobs
        while running:
            item = done.get()
            if item is None:
                running -= 1
            else:
                yield item


def table(results: dict[str, Any]) -> str:
    """Results by package: how many ids came to which end, and each refusal or failure with how many it stops."""
    by_package: defaultdict[str, list[tuple[str, dict[str, Any]]]] = defaultdict(list)
    for env_id, result in results.items():
        by_package[result["package"]].append((env_id, result))
    lines = []
    for package, rows in sorted(by_package.items()):
        counts = Counter(result["verdict"] for _, result in rows)
        verdicts = ", ".join(f"{count} {verdict}" for verdict, count in sorted(counts.items()))
        lines.append(f"{package}: {len(rows)} ids: {verdicts}")
        kinds: defaultdict[str, list[str]] = defaultdict(list)
        for env_id, result in rows:
            if result["line"]:
                kinds[f"{result['verdict']}: {result['line'].replace(env_id, '<id>')}"].append(env_id)
        for line, env_ids in sorted(kinds.items(), key=lambda item: -len(item[1])):
            lines.append(f"    {len(env_ids):4} {line}  [{', '.join(env_ids[:3])}{', …' if len(env_ids) > 3 else ''}]")
    counts = Counter(result["verdict"] for result in results.values())
    learned = counts[TRAINED] + counts[FROM_STATES]
    lines.append(
        f"everybody's environments: {len(results)} ids; {learned} learned from ({counts[FROM_STATES]} from states), "
        f"{counts[REFUSED]} refused in a line, {counts[FAILED]} failed"
    )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--match", default="", help="regular expression that an id must hold")
    parser.add_argument("--sample", type=int, default=sized(None, 2), help="so many ids, spread evenly")
    parser.add_argument("--jobs", type=int, default=2)
    again = sized(False, True)
    parser.add_argument("--again", action="store_true", default=again, help="try those as well that have a result")
    parser.add_argument("--table", action="store_true", help="print what was found so far")
    said = parser.parse_args()
    results = kept(FILE, "ids")
    if said.table:
        print(table(results))
        return
    known = ids()
    wanted = {name: package for name, package in known.items() if re.search(said.match, name)}
    if said.sample:
        names = list(wanted)
        wanted = {name: wanted[name] for name in names[:: max(1, len(names) // said.sample)][: said.sample]}
    if not said.again:
        wanted = {name: package for name, package in wanted.items() if name not in results}
    for env_id, outcome in outcomes(wanted, said.jobs):
        print(f"{outcome.verdict:20} {outcome.seconds:6.1f} s  {env_id}  {outcome.line}", flush=True)
        results[env_id] = asdict(outcome)
        keep(FILE, "ids", {name: results[name] for name in sorted(results) if name in known}, said.jobs)
    print(table(results))


if __name__ == "__main__":
    main()
