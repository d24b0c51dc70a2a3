"""Checks of `tools/lanes/ray.sh`, on two raylets of this machine. Each prints a line with its seconds.

    ray_checks.py [NAME…]     # only those whose names begin so

Runs are ordinary commands in processes of their own. Whatever is killed, stopped or refused, they have to end like the
same runs on this machine alone, which nobody disturbs: with the same metrics, result and weights.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from safetensors.numpy import load_file

sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))

import golden_runs
import sightline as sl
from raylets import Command, Raylets, actors, cells_of, command_of, raylets, until
from sightline.cluster.connecting import connected
from sightline.cluster.encoders import Cluster, embedding_on
from sightline.errors import BadInput
from sightline.models.encoders import load_encoder
from sightline.runs.files import read_document
from sightline.runs.lease import LEASE

FRAMES = 1000
RECIPE = (
    *("cartpole", "steps=768", "envs=2", "learner.chunk=32", "checkpoints.every=128", "evaluation.every=256"),
    *("evaluation.episodes=2", "evaluation.test_episodes=2", "videos=false", "tensorboard=false", "threads=1"),
    *("learner.learning_starts=64", "learner.gradient_steps=4", "learner.hidden=[32,32]"),
)
SEEDS = "seed=0..1"
LEASE_SECONDS = 20
"""Time after which the lease of a process that is stopped may be taken over."""
BUSY_LINE = "is being written by"


class Checks:
    """What is checked, one after the other.

    Args:
        cluster: the raylets.
        folder: where runs are kept.
        names: beginnings of the names of those that are carried out; all if there is none.
    """

    def __init__(self, cluster: Raylets, folder: Path, names: list[str]) -> None:
        self.outcomes: list[bool] = []
        self._cluster = cluster
        self._folder = folder
        self._names = names
        self._started: list[Command] = []

    def carry_out(self) -> None:
        """Carry out all checks that are asked for."""
        self._reference()
        for name, check in (
            ("nobody there: one line", self._nobody_there),
            ("embeddings equal bit for bit, also when an actor is killed twice", self._embeddings),
            ("a run's actor is killed in mid-chunk: equal", self._actor_killed),
            ("all encoders gone: saved, one line; the same command goes on: equal", self._all_gone),
            ("a sweep's machine is lost: equal", self._machine_lost),
            ("a raylet alone is killed: the orphan ends its cell: equal", self._raylet_killed),
            ("a machine is cut off: the successor waits for the orphan: equal", self._cut_off),
            ("an orphan is stopped past its lease: it wakes, writes nothing, ends in one line", self._orphan_wakes),
            ("SIGTERM to a sweep: cells save; the same command goes on: equal", self._sweep_stopped),
            ("the driver of a sweep is killed: the same command goes on: equal", self._driver_killed),
            ("two sweeps in one folder: the second is refused with 75", self._two_sweeps),
            ("two runs in one folder: the second is refused with 75", self._two_runs),
            ("no token, or another one: one line", self._token),
            ("more workers than room: one line", self._no_room),
            ("a folder that is not shared: one line", self._not_shared),
        ):
            if not self._names or name.startswith(tuple(self._names)):
                self._check(name, check)

    def _check(self, name: str, check: Callable[[], object]) -> None:
        """Carry out a check, and print how it went; what it gives back is wrong."""
        began = time.monotonic()
        try:
            wrong = check()
        except Exception as error:
            wrong = f"{type(error).__name__}: {error}"
        for command in self._started:
            command.kill()
        self._started.clear()
        self._cluster.repair()
        self.outcomes.append(not wrong)
        ending = f": {wrong}" if wrong else ""
        print(f"{'--' if wrong else 'ok'}   {name} ({time.monotonic() - began:.1f} s){ending}", flush=True)

    # -- commands ------------------------------------------------------------------------------------------------------

    def _start(self, *words: str, **settings: Any) -> Command:
        command = Command(*words, log=self._folder / f"{len(list(self._folder.glob('*.txt')))}.txt", **settings)
        self._started.append(command)
        return command

    def _train(self, name: str, *options: str, **settings: Any) -> Command:
        run = str(self._folder / name)
        options = ("--cluster", self._cluster.address, "--run-dir", run, "--resume-or-start", *options)
        return self._start("train", *RECIPE, "seed=0", *options, **settings)

    def _sweep(self, name: str, *options: str, **settings: Any) -> Command:
        sweep = str(self._folder / name)
        options = ("--cluster", self._cluster.address, "--run-dir", sweep, *options)
        return self._start("sweep", *RECIPE, SEEDS, *options, **settings)

    def _reference(self) -> None:
        """Both cells of the sweep, of which the first is the run as well, on this machine."""
        sweep = self._start("sweep", *RECIPE, SEEDS, "--run-dir", str(self._folder / "here"), "--processes", "2")
        if sweep.code():
            raise SystemExit(f"ray: the cells cannot be trained here: {sweep.lines[-1:]}")

    def _unlike(self, name: str, cell: str = "") -> str:
        """What of a run, or of all cells of a sweep, is not as it is here."""
        sweep = self._folder / "here"
        cells = sorted(path.parent.name for path in sweep.glob("*/recipe.yaml"))
        pairs = [(self._folder / name / one, sweep / one) for one in cells]
        if not (self._folder / name / "sweep.json").is_file():
            pairs = [(self._folder / name, sweep / cells[0])]
        lines: list[str] = []
        for run, here in pairs:
            lines += golden_runs.differences(run.name, golden_runs.outcome(run), golden_runs.outcome(here))
            if _weights(run) != _weights(here):
                lines.append(f"{run.name}: other weights")
        return "; ".join(lines[:2])

    def _ended(self, command: Command, code: int, *words: str, lines: int | None = None) -> str:
        """What is wrong with how a command has ended: its code, and the words of its last line."""
        found = command.code()
        last = command.lines[-1] if command.lines else "nothing"
        if found != code or not all(word in last for word in words):
            return f"it ended with {found}: {last}"
        if lines is not None and len(command.lines) != lines:
            return f"it said {len(command.lines)} lines: {command.lines[:2]}"
        return ""

    def _cell_there(self, sweep: str) -> psutil.Process:
        """The process of a cell on the other raylet, once it has saved something that it can go on from."""

        def saved() -> psutil.Process | None:
            for process in cells_of(self._cluster.others()):
                run = _run_of(process)
                if run.parent.name == sweep and any(run.glob("checkpoints/step-*")):
                    return process
            return None

        process: psutil.Process = until(saved, "a checkpoint of a cell on the other raylet")
        return process

    # -- encoders ------------------------------------------------------------------------------------------------------

    def _nobody_there(self) -> str:
        try:
            with connected("127.0.0.1:1"):
                return "somebody is"
        except BadInput as error:
            return "" if "nobody answers there" in str(error) else str(error)

    def _embeddings(self) -> str:
        frames = np.random.default_rng(0).integers(0, 256, (FRAMES, 64, 64, 3), np.uint8)
        encoder = load_encoder("bundled", "cpu")
        model = sl.ZeroShotReward("a pole standing upright", encoder=encoder, warn=False)
        expected = model(frames)
        with embedding_on(model, Cluster(self._cluster.address)) as line:
            if "2 workers" not in line or "not equal" in line:
                return line
            for number in range(3):
                if number:
                    actors()[0].kill()
                if not np.array_equal(model(frames), expected):
                    return f"they differ after {number} kills"
        return ""

    def _actor_killed(self) -> str:
        command = self._train("killed")
        metrics = self._folder / "killed" / "metrics.jsonl"
        until(lambda: metrics.is_file() and metrics.stat().st_size, "metrics of the run")
        holders = actors()

        def busy() -> psutil.Process | None:
            return next((one for one in holders if ".embed" in command_of(one)), None)

        until(busy, "an actor that embeds", pause=0.001).kill()
        return self._ended(command, 0) or self._unlike("killed")

    def _all_gone(self) -> str:
        patience = {"sightline.cluster.actors.PROBE_SECONDS": 3.0}
        with self._head_is_full():
            command = self._train("gone", "--cluster-workers", "1", setting=patience)
            metrics = self._folder / "gone" / "metrics.jsonl"
            until(lambda: metrics.is_file() and metrics.stat().st_size, "metrics of the run")
            self._cluster.lose_machine()
            wrong = self._ended(command, 1, "none of the 1 encoders on the cluster answers any more", "saved at step")
        self._cluster.repair()
        return wrong or self._ended(self._train("gone"), 0) or self._unlike("gone")

    @contextlib.contextmanager
    def _head_is_full(self) -> Iterator[None]:
        """Context in which the head has no processor left."""
        with connected(self._cluster.address) as ray:
            strategy = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy
            here = strategy(ray.get_runtime_context().get_node_id(), soft=False)
            holder = ray.remote(num_cpus=1, scheduling_strategy=here)(_Holder).remote()
            ray.get(holder.hold.remote())
            yield

    # -- cells ---------------------------------------------------------------------------------------------------------

    def _machine_lost(self) -> str:
        command = self._sweep("lost")
        self._cell_there("lost")
        self._cluster.lose_machine()
        return self._ended(command, 0) or self._unlike("lost")

    def _raylet_killed(self) -> str:
        command = self._sweep("orphan")
        orphan = self._cell_there("orphan")
        with _owners(_run_of(orphan)) as owners:
            self._cluster.lose_raylet()
            wrong = self._ended(command, 0)
        return wrong or _in_turn(owners, orphan.pid) or self._unlike("orphan")

    def _cut_off(self) -> str:
        command = self._sweep("cut")
        orphan = self._cell_there("cut")
        run = _run_of(orphan)
        with _owners(run) as owners:
            self._cluster.lose_machine(spared=orphan)
            # So slow that it is still there when its successor comes.
            while BUSY_LINE not in _said(run) and command_of(orphan):
                with contextlib.suppress(psutil.NoSuchProcess):
                    orphan.suspend()
                    time.sleep(0.9)
                    orphan.resume()
                    time.sleep(0.1)
            was_refused = BUSY_LINE in _said(run)
            wrong = self._ended(command, 0)
        if not was_refused:
            wrong = wrong or "its successor did not come in time"
        return wrong or _in_turn(owners, orphan.pid) or self._unlike("cut")

    def _orphan_wakes(self) -> str:
        command = self._sweep("stopped")
        orphan = self._cell_there("stopped")
        run = _run_of(orphan)
        with _owners(run) as owners:
            _stop_between_writes(orphan, run)
            self._cluster.lose_machine(spared=orphan)
            wrong = self._ended(command, 0) or self._unlike("stopped")
            before, said = _files(run), _said(run)
            orphan.resume()
            until(lambda: not command_of(orphan), "the end of the orphan")
        lines = _said(run)[len(said) :].splitlines()
        if changes := _files(run) ^ before:
            wrong = wrong or f"it has written: {changes}"
        if len(lines) != 1 or "now belongs to" not in lines[0]:
            wrong = wrong or f"it said {lines}"
        if len(owners) < 2:
            wrong = wrong or "nobody has taken over"
        return wrong or _in_turn(owners, orphan.pid)

    def _sweep_stopped(self) -> str:
        command = self._sweep("ended")
        self._cell_there("ended")
        command.process.terminate()
        words = ("stopped by SIGTERM", "go on with the same command")
        wrong = self._ended(command, 143, *words)
        left = [process for process in cells_of(list(psutil.process_iter())) if "/ended/" in command_of(process)]
        if left:
            wrong = wrong or f"{len(left)} cells were left"
        return wrong or self._ended(self._sweep("ended"), 0) or self._unlike("ended")

    def _driver_killed(self) -> str:
        command = self._sweep("driver")
        self._cell_there("driver")
        command.process.kill()
        return self._ended(self._sweep("driver"), 0) or self._unlike("driver")

    # -- two of them ---------------------------------------------------------------------------------------------------

    def _two_sweeps(self) -> str:
        first = self._sweep("both")
        self._cell_there("both")
        wrong = self._ended(self._sweep("both"), 75, BUSY_LINE, lines=1)
        return wrong or self._ended(first, 0) or self._unlike("both")

    def _two_runs(self) -> str:
        first = self._train("twice")
        until(lambda: (self._folder / "twice" / "recipe.yaml").is_file(), "the first run")
        wrong = self._ended(self._train("twice"), 75, BUSY_LINE, lines=1)
        return wrong or self._ended(first, 0) or self._unlike("twice")

    # -- bad input -----------------------------------------------------------------------------------------------------

    def _token(self) -> str:
        none = {"RAY_AUTH_MODE": None, "RAY_AUTH_TOKEN": None}
        another = {"RAY_AUTH_TOKEN": "0" * 64}
        for environment in (none, another):
            command = self._train("refused", environment=environment)
            if wrong := self._ended(command, 2, "it wants", "token", lines=1):
                return wrong
        return "a folder was left" if (self._folder / "refused").exists() else ""

    def _no_room(self) -> str:
        patience = {"sightline.cluster.actors.START_SECONDS": 20.0}
        command = self._train("full", "--cluster-workers", "5", setting=patience)
        return self._ended(command, 2, "only 2 of 5 encoders have started", "say --cluster-workers")

    def _not_shared(self) -> str:
        # In a name space of its own the driver has another folder under the same name.
        folder = self._folder / "private"
        folder.mkdir()
        before = ("unshare", "--map-root-user", "--mount", "sh", "-c", f'mount -t tmpfs none {folder}; exec "$@"', "-")
        if subprocess.run([*before, "true"], check=False, capture_output=True).returncode:
            print("     this system lets nobody mount a folder", flush=True)
            return ""
        command = self._sweep("private/sweep", before=before)
        return self._ended(command, 1, "2 of 2 cells failed") or (
            "" if any("share it" in line for line in command.lines) else f"it said {command.lines[-3:]}"
        )


class _Holder:
    """An actor that takes up room."""

    def hold(self) -> None: ...


@contextlib.contextmanager
def _owners(run: Path) -> Iterator[list[int]]:
    """Context in which the ids of the processes that own a run are noted, in order, each time that they change."""
    owners: list[int] = []
    done = threading.Event()

    def watch() -> None:
        while not done.wait(0.01):
            with contextlib.suppress(OSError, BadInput, KeyError):
                owner = int(read_document(run / LEASE)["pid"])
                if owners[-1:] != [owner]:
                    owners.append(owner)

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield owners
    finally:
        done.set()
        thread.join()


def _in_turn(owners: list[int], first: int) -> str:
    """What is wrong with the processes that have owned a run: the first comes first, and none comes back."""
    is_right = owners[:1] == [first] and len(set(owners)) == len(owners)
    return "" if is_right else f"processes {owners} have written, {first} first"


def _stop_between_writes(process: psutil.Process, run: Path) -> None:
    """Stop a process that writes a run. One that is stopped in a write keeps the folder's lock: nobody takes over."""

    def stopped() -> bool:
        process.suspend()
        descriptor = os.open(run, os.O_RDONLY)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            process.resume()
            return False
        finally:
            os.close(descriptor)  # and with it the lock
        return True

    until(stopped, "a moment between two writes")


def _run_of(cell: psutil.Process) -> Path:
    """The folder that a cell's process writes."""
    return Path(command_of(cell).split()[-1])


def _said(run: Path) -> str:
    """What the processes of a cell have said."""
    return (run.parent / "logs" / f"{run.name}.log").read_text()


def _files(run: Path) -> set[tuple[str, int, int]]:
    """Every file of a run with its size and time."""
    files = [path for path in run.rglob("*") if path.is_file()]
    return {(str(path), path.stat().st_size, path.stat().st_mtime_ns) for path in files}


def _weights(run: Path) -> dict[str, bytes]:
    """Every array of every checkpoint, among them the weights."""
    return {
        f"{file.relative_to(run)} {name}": array.tobytes()
        for file in (run / "checkpoints").rglob("*.safetensors")
        for name, array in load_file(file).items()
    }


def main() -> None:
    os.environ["SIGHTLINE_LEASE_TIMEOUT"] = str(LEASE_SECONDS)
    folder = Path(tempfile.mkdtemp(prefix="ray-checks-"))
    with raylets() as cluster:
        checks = Checks(cluster, folder, sys.argv[1:])
        checks.carry_out()
    passing = sum(checks.outcomes)
    print(f"ray: {passing} of {len(checks.outcomes)} checks pass")
    if passing < len(checks.outcomes):
        raise SystemExit(f"runs and what was said: {folder}")
    shutil.rmtree(folder)


if __name__ == "__main__":
    main()
