"""Runs of which something is killed with SIGKILL end as if nothing had happened, bit for bit, and leave nothing behind.

    PYTHONPATH=tools python benchmarks/kills.py [--kills 30] [--seed 1] [NAME…]

For each recipe of `tests/golden_runs.py` (two of each role and more), some of them with worker processes and with
evaluation in the background, the run is made once alone. Then it is begun again, and at a random moment one of these is
killed:

    group         the process and its children, as a scheduler does it
    parent        the process alone, which can end none of its children
    worker        one process of an environment, as the system does it for its memory
    evaluation    the process that evaluates in the background

Where a child was killed, the run goes on, or ends in one line; a run that has ended early is resumed. Then metrics
without wall times, the result, the weights that were chosen and the names of all files are compared. After the kill no
process of the run may live for more than ten seconds, and nobody may own its folder. After the run's end nothing may be
left in its temporary folder and in shared memory. Results go to `benchmarks/results/kills.json`.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

import golden_runs
from running import keep, sized
from sightline.runs.lease import LEASE, current_owner

WORKERS, BACKGROUND = "workers=processes", "evaluation.background=true"
PROCESSES: dict[str, list[str]] = {
    "words-sac": [WORKERS],
    "words-ppo": [BACKGROUND],
    "preferences-encoder": [BACKGROUND],
    "preferences-scripted": [WORKERS, BACKGROUND],
    "agent-ppo": [WORKERS],
}
"""Overrides of recipes that have more than one process."""
CHILDREN = {"worker": (WORKERS, "multiprocessing.spawn"), "evaluation": (BACKGROUND, "sightline.control.background")}
"""Victim -> the override that makes it, and what its command line holds."""
PATIENCE = 10.0
"""Seconds in which what was left alone by a kill has to be gone."""
TRIES = 40
"""Times that a kill is tried: a run may be faster than before, and have no such child at that moment."""
SHARED_MEMORY = Path("/dev/shm")
REDONE = ("labels/remembered", "rollout/restarts")
"""Metrics that tell of the kill itself."""


@dataclass
class Tally:
    """What came out of the kills of one recipe.

    Attributes:
        kills: a line for each: when, what, and how it went.
        wrong: a line for all that is not as it would have been, or was left behind.
        slowest: longest time in seconds until no process was left after a kill.
    """

    seconds: float
    kills: list[str] = field(default_factory=list)
    victims: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    equal: int = 0
    slowest: float = 0.0

    def document(self) -> dict[str, Any]:
        """For the file of results."""
        return {
            "kills": self.kills,
            "victims": dict(self.victims),
            "clean and equal": self.equal,
            "seconds of a run": round(self.seconds, 1),
            "seconds until no process was left, at most": round(self.slowest, 1),
            "wrong": self.wrong,
        }


class Attempt:
    """A run in processes of its own, with a temporary folder of its own by which they are known."""

    def __init__(self, name: str, folder: str, resume: bool = False) -> None:
        from agent_worker import start

        self.folder, self.temporary = Path(folder), Path(f"temporary-{folder}").resolve()
        self.temporary.mkdir(exist_ok=True)
        job = golden_runs.job(name, folder, resume=resume, more=PROCESSES.get(name, []))
        self.log = Path(job["log"])
        self._pid = start(job, self._prepare)
        self._code: int | None = None

    def ended_by(self, deadline: float) -> int | None:
        """Its exit code, or minus the signal; None if it is still running at that time of the monotonic clock."""
        while self._code is None:
            pid, status = os.waitpid(self._pid, os.WNOHANG)
            if pid:
                self._code = os.waitstatus_to_exitcode(status)
            elif time.monotonic() > deadline:
                return None
            else:
                time.sleep(0.01)
        return self._code

    def kill(self, victim: str, chance: random.Random) -> bool:
        """Kill something; False if there is no such thing."""
        if victim == "group":
            os.killpg(self._pid, signal.SIGKILL)
        elif victim == "parent":
            os.kill(self._pid, signal.SIGKILL)
        else:
            kind = CHILDREN[victim][1]
            children = [one for one in psutil.Process(self._pid).children(recursive=True) if kind in _command(one)]
            if not children:
                return False
            chance.choice(children).kill()
        return True

    def children(self) -> list[str]:
        """Processes that it has started, and that live, in words."""
        return [f"process {one.pid} ({_command(one)[-80:]})" for one in psutil.process_iter() if self._own(one)]

    def end(self) -> None:
        """Kill whatever lives."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._pid, signal.SIGKILL)
        self.ended_by(time.monotonic() + PATIENCE)
        for one in psutil.process_iter():
            if self._own(one):
                one.kill()

    def _prepare(self) -> None:
        os.setsid()
        os.environ["TMPDIR"] = str(self.temporary)
        tempfile.tempdir = None

    def _own(self, process: psutil.Process) -> bool:
        with contextlib.suppress(psutil.Error):
            mine: bool = process.environ().get("TMPDIR") == str(self.temporary)
            return mine and bool(process.status() != psutil.STATUS_ZOMBIE)
        return False


def _command(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.Error:  # it has ended
        return ""


def _lasting(look: Callable[[], list[str]]) -> tuple[list[str], float]:
    """What is still there when patience is at an end, and the seconds that were waited."""
    began = time.monotonic()
    while (seen := look()) and time.monotonic() < began + PATIENCE:
        time.sleep(0.1)
    return seen, time.monotonic() - began


def _entries(folder: Path) -> set[str]:
    return {str(path) for path in folder.iterdir()} if folder.is_dir() else set()


def _chosen(run: Path) -> Path:
    result = json.loads((run / "result.json").read_text())
    return run / "checkpoints" / f"best-{result['chosen_step']:012d}"


def _files(run: Path) -> set[str]:
    """Names of all files; of best checkpoints only the chosen one's, as those that the last checkpoints refer to beside
    it depend on when evaluations in the background have ended."""
    best = str(run / "checkpoints" / "best-")
    paths = [path for path in run.rglob("*") if not str(path).startswith(best) or path.is_relative_to(_chosen(run))]
    return {str(path.relative_to(run)) for path in paths}


def _outcome(run: Path) -> dict[str, Any]:
    """Metrics in one order: evaluations in the background are written when they are done."""
    outcome = golden_runs.outcome(run)
    records = [{key: value for key, value in one.items() if key not in REDONE} for one in outcome["metrics"]]
    return outcome | {"metrics": sorted(records, key=lambda one: (one["step"], sorted(one)))}


def chosen_weights(run: Path) -> list[bytes]:
    """The files of weights of the chosen checkpoint, in order of their names."""
    return [file.read_bytes() for file in sorted(_chosen(run).glob("*.safetensors"))]


def unlike(name: str, run: Path, whole: Path) -> list[str]:
    """What is not as in the run that was left alone."""
    lines = golden_runs.differences(name, _outcome(run), _outcome(whole))
    if chosen_weights(run) != chosen_weights(whole):
        lines.append(f"{name}: the chosen weights differ")
    if others := _files(run) ^ _files(whole):
        lines.append(f"{name}: files of one of both: {', '.join(sorted(others))}")
    return lines


def complaints(log: Path, code: int) -> list[str]:
    """What is wrong with how a run ended: with 0, or with 1 and one line."""
    text = log.read_text(errors="replace")
    last = (text.splitlines() or [""])[-1]
    if "Traceback" in text:
        return [f"{log} has a traceback: {last}"]
    if code and (code != 1 or not last.startswith("sightline: ")):
        return [f"{log} ended with {code}: {last}"]
    return []


def killed(name: str, victim: str, tally: Tally, chance: random.Random) -> tuple[Attempt, int] | None:
    """Begin a run, and kill something of it at a random moment.

    Returns:
        The run, and the milliseconds after which it happened; None if the run had ended, or has no such child then.
    """
    shutil.rmtree(f"{name}-killed", ignore_errors=True)
    attempt = Attempt(name, f"{name}-killed")
    seconds = chance.uniform(0.02, 1.0) * tally.seconds
    if attempt.ended_by(time.monotonic() + seconds) is None and attempt.kill(victim, chance):
        return attempt, round(1000 * seconds)
    attempt.end()
    return None


def _finished(attempt: Attempt, seconds: float, wrong: list[str]) -> int | None:
    """Exit code of a run that has to end by itself, and in the right way."""
    code = attempt.ended_by(time.monotonic() + 20 * seconds + 60)
    if code is None:
        wrong.append(f"{attempt.log}: stuck")
        attempt.end()
    else:
        wrong += complaints(attempt.log, code)
    return code


def examine(attempt: Attempt, name: str, victim: str, tally: Tally, wrong: list[str]) -> str:
    """See a run to its end after a kill; gives in words how it went on."""
    resumes, how = victim in ("group", "parent"), "resumed"
    if resumes:
        attempt.ended_by(time.monotonic() + PATIENCE)
    else:
        code = _finished(attempt, tally.seconds, wrong)
        resumes = code != 0
        how = "ended in one line, resumed" if resumes else "went on"
    alive, seconds = _lasting(attempt.children)
    tally.slowest = max(tally.slowest, seconds)
    wrong += [f"left alive: {one}" for one in alive]
    run = attempt.folder
    if run.is_dir() and (owner := current_owner(run)):
        wrong.append(f"still owned by {owner}")
    if not resumes:
        return how
    # Before the recipe is written nothing has begun: it is the same command once more.
    begun = (run / "recipe.yaml").exists()
    attempt.end()
    _finished(again := Attempt(name, str(run), resume=begun), tally.seconds, wrong)
    wrong += [f"left alive at the end: {one}" for one in _lasting(again.children)[0]]
    return how if begun else "nothing was begun, started again"


def kill_once(name: str, victim: str, tally: Tally, chance: random.Random) -> None:
    """Kill one victim of a recipe's run, and look at what comes of it."""
    shared = _entries(SHARED_MEMORY)
    for _ in range(TRIES):
        if (hurt := killed(name, victim, tally, chance)) is not None:
            break
    else:
        tally.wrong.append(f"{victim}: never there to be killed")
        return
    attempt, milliseconds = hurt
    wrong: list[str] = []
    how = examine(attempt, name, victim, tally, wrong)
    wrong += [f"left: {one}" for one in sorted(_entries(attempt.temporary))]
    wrong += [f"left: {one}" for one in _lasting(lambda: sorted(_entries(SHARED_MEMORY) - shared))[0]]
    if (attempt.folder / LEASE).exists():
        wrong.append(f"{LEASE} was left")
    if (attempt.folder / "result.json").exists():
        wrong += unlike(name, attempt.folder, Path(f"{name}-whole"))[:3]
    elif not wrong:
        wrong.append("no result")
    tally.victims[victim] += 1
    tally.equal += not wrong
    line = f"{victim} killed after {milliseconds} ms: {how}, {'equal' if not wrong else 'WRONG'}"
    tally.kills.append(line)
    tally.wrong += [f"{victim} killed after {milliseconds} ms: {one}" for one in wrong]
    print(f"{name}: {line}", *wrong, sep="\n    ", flush=True)
    attempt.end()
    shutil.rmtree(attempt.temporary)


def whole(name: str) -> Tally:
    """The run that is left alone."""
    began = time.monotonic()
    attempt = Attempt(name, f"{name}-whole")
    code = attempt.ended_by(began + 3600)
    seconds = time.monotonic() - began
    if code != 0:
        raise SystemExit(f"{name} ended with {code}: {attempt.log.read_text()[-1000:]}")
    tally = Tally(seconds)
    tally.wrong += [f"left by a run that was not killed: {one}" for one in _lasting(attempt.children)[0]]
    tally.wrong += [f"left by a run that was not killed: {one}" for one in sorted(_entries(attempt.temporary))]
    print(f"{name}: {seconds:.1f} s alone", *tally.wrong, sep="\n    ", flush=True)
    return tally


def measure(names: list[str], kills: int, seed: int) -> dict[str, Tally]:
    """Kill so many times in all, of one recipe after the other; the working folder holds the models."""
    tallies = {name: whole(name) for name in names}
    for number in range(kills):
        name = names[number % len(names)]
        chance = random.Random(f"{seed}, {number}")  # however often another kill was tried
        kinds = [victim for victim, (override, _) in CHILDREN.items() if override in PROCESSES.get(name, [])]
        kill_once(name, chance.choice(["group", "parent", *kinds]), tallies[name], chance)
    return tallies


@contextlib.contextmanager
def _elsewhere() -> Iterator[Path]:
    """A temporary folder as working folder; back again before it is removed."""
    before = Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        try:
            yield Path(folder)
        finally:
            os.chdir(before)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=sized(30, 2))
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("names", nargs="*")
    arguments = parser.parse_args()
    names = arguments.names or list(golden_runs.RECIPES)[: sized(None, 2)]
    with _elsewhere() as folder:
        golden_runs.run_all(folder, [])  # builds the models, and changes the working folder
        tallies = measure(names, arguments.kills, arguments.seed)
    print(f"\n{'recipe':22}{'processes':46}{'killed':>7}{'equal':>7}")
    for name, tally in tallies.items():
        print(f"{name:22}{' '.join(PROCESSES.get(name, ['one'])):46}{len(tally.kills):7}{tally.equal:7}")
    command = " ".join(
        ["python benchmarks/kills.py", f"--kills {arguments.kills} --seed {arguments.seed}", *arguments.names]
    )
    recipes = {name: {"overrides": PROCESSES.get(name, []), **tally.document()} for name, tally in tallies.items()}
    if not arguments.names:
        keep("kills.json", "random kills", {"command": command, "recipes": recipes})
    if any(tally.wrong for tally in tallies.values()):
        raise SystemExit("something is not as it would have been, or was left behind")


if __name__ == "__main__":
    main()
