"""Cells of a sweep as tasks of a Ray cluster, each an ordinary `sightline train` that goes on where it was left.

A task whose node is lost is started again on another one. The process that it had begun may live on for a while: as
long as that one renews its lease on the cell's folder, the new one is refused (exit code 75), and tries again.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from sightline.config.recipe import Recipe
from sightline.runs.lease import current_owner

BUSY = 75
"""Exit code of a run whose folder another process writes."""
PROGRAM = [sys.executable, "-m", "sightline"]
"""Sightline on the node that a cell is trained on."""
PAUSE = 5.0
"""Seconds before such a run is tried again."""


def train_cell(command: Sequence[str], folder: str, log: str, plan: bytes, environment: Mapping[str, str]) -> int:
    """Train a cell on this node; its exit code.

    Args:
        command: of `sightline`.
        folder: of the cell.
        log: file for what it says on stderr.
        plan: content of the sweep's `sweep.json`, by which its folder is known.
        environment: variables that it is given beside those of the node.
    """
    if not _is_shared(Path(log).parents[1] / "sweep.json", plan):
        # Where the sweep's folder is missing, nothing can be left for anybody to read; so it is raised.
        raise FileNotFoundError(
            f"'{Path(folder).parent}' is another folder on a node of the cluster, or none; share it"
        )
    while True:
        with open(log, "ab") as stream:
            process = subprocess.Popen(
                [*PROGRAM, *command],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=stream,
                env=os.environ | dict(environment),
                start_new_session=True,
            )
        code = _exit_code(process)
        if code != BUSY:
            return code
        time.sleep(PAUSE)


def _exit_code(process: subprocess.Popen[bytes]) -> int:
    """The exit code of a process, which is asked to save where this task is cancelled."""
    try:
        while process.poll() is None:
            time.sleep(0.1)
    except KeyboardInterrupt:  # how Ray cancels a task
        process.send_signal(signal.SIGTERM)
    return process.wait()


def _is_shared(file: Path, plan: bytes) -> bool:
    try:
        return file.read_bytes() == plan
    except OSError:
        return False


class CellToStart(Protocol):
    """What a cell of a sweep says of itself."""

    @property
    def path(self) -> Path: ...

    @property
    def arguments(self) -> tuple[str, ...]: ...

    @property
    def recipe(self) -> Recipe: ...


class ClusterProcess:
    """A cell on the cluster, with the methods of a process that a sweep uses."""

    def __init__(self, ray: Any, reference: Any, folder: Path, log: Path) -> None:
        self._ray = ray
        self._reference = reference
        self._folder = folder
        self._log = log
        self._code: int | None = None

    def poll(self) -> int | None:
        """Its exit code; None while it runs, or waits for room on the cluster."""
        if self._code is None and self._ray.wait([self._reference], timeout=0)[0]:
            self._code = self._result()
        return self._code

    def wait(self) -> int:
        """Its exit code, once it has ended and saved."""
        code = self._result() if self._code is None else self._code
        self._code = code
        # A task that is cancelled may be over before its process has saved.
        while current_owner(self._folder) is not None:
            time.sleep(0.2)
        return code

    def send_signal(self, number: int) -> None:
        """Ask it to save and stop, whatever the signal."""
        with contextlib.suppress(self._ray.exceptions.RayError):
            self._ray.cancel(self._reference, force=False)

    def kill(self) -> None:
        """Ask it to stop: what runs on another machine cannot be ended more suddenly."""
        self.send_signal(signal.SIGTERM)

    def _result(self) -> int:
        try:
            return int(self._ray.get(self._reference))
        except self._ray.exceptions.TaskCancelledError:
            return -signal.SIGTERM
        except self._ray.exceptions.RayError as error:
            last_line = [line.strip() for line in str(error).splitlines() if line.strip()][-1]
            with self._log.open("a", encoding="utf-8") as stream:
                stream.write(f"sightline: {last_line[:300]}\n")
            return 1


class CellStarter:
    """Starts cells on a cluster, in place of processes on this machine.

    Args:
        ray: connected.
        gpus: of each cell, which may be a fraction.
    """

    def __init__(self, ray: Any, gpus: float) -> None:
        self._ray = ray
        self._gpus = gpus
        self._train = ray.remote(train_cell)

    def __call__(self, cell: CellToStart, log: Path) -> ClusterProcess:
        # Paths as other machines read them; what a lost node had begun is begun again, as often as it takes.
        folder, log = cell.path.resolve(), log.resolve()
        log.write_bytes(b"")
        plan = (folder.parent / "sweep.json").read_bytes()
        task = self._train.options(
            num_cpus=cell.recipe.threads, num_gpus=self._gpus, max_retries=-1, scheduling_strategy="SPREAD"
        )
        command = ["train", *cell.arguments, "--resume-or-start", "--run-dir", str(folder)]
        environment = {"OMP_NUM_THREADS": str(cell.recipe.threads)}
        reference = task.remote(command, str(folder), str(log), plan, environment)
        return ClusterProcess(self._ray, reference, folder, log)
