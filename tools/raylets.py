"""A Ray cluster of this machine whose processes can be killed, and Sightline's commands on it: for
`tools/lanes/ray_checks.py` and `benchmarks/cluster.py`."""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil

STORE_BYTES = 200 * 2**20
"""Size of each raylet's store of objects."""
ACTOR = "ray::EncoderHolder"
"""Beginning of the title of an encoder's process; that of a busy one goes on with the method's name."""


class Raylets:
    """Two raylets, the head's and another one, each a machine of its own to Ray. Drivers are on the head's.

    Ray wants a token of everybody who connects; this process and its children have it.

    Args:
        head_cpus: processors that the head lends.
    """

    def __init__(self, head_cpus: int = 1) -> None:
        # Ray's own agents may take long to start on a busy machine.
        os.environ.setdefault("RAY_raylet_start_wait_time_s", "240")
        # Its workers' niceness is 15 by default: beside other work they would hardly get on.
        os.environ.setdefault("RAY_worker_niceness", "0")
        os.environ["RAY_AUTH_MODE"] = "token"
        os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
        from ray.cluster_utils import Cluster

        head = {"num_cpus": head_cpus, "object_store_memory": STORE_BYTES, "include_dashboard": False}
        self._cluster = Cluster(initialize_head=True, head_node_args=head)
        self._other: Any = None
        self.replace()

    @property
    def address(self) -> str:
        return str(self._cluster.address)

    def replace(self) -> None:
        """Start the other raylet, anew if it was lost."""
        if self._other is not None:
            self._cluster.remove_node(self._other, allow_graceful=False)
        self._other = self._cluster.add_node(num_cpus=1, object_store_memory=STORE_BYTES)

    def repair(self) -> None:
        """Replace the other raylet if it was lost."""
        if not self.others():
            self.replace()

    def others(self) -> list[psutil.Process]:
        """The other raylet, and all processes that it has started; nothing if it was lost."""
        return family(self._raylet)

    def lose_raylet(self) -> None:
        """Kill the other raylet alone: what it has started lives on, and finds its way to the head by itself."""
        psutil.Process(self._raylet).kill()

    def lose_machine(self, spared: psutil.Process | None = None) -> None:
        """Kill the other raylet and all that it has started, as the loss of a machine does.

        Args:
            spared: a process that lives on with what it has started, as where the machine is only cut off.
        """
        living = family(spared.pid) if spared is not None else []
        processes = [process for process in self.others() if process not in living]
        for end in (psutil.Process.suspend, psutil.Process.kill):  # first stopped, so that none sees another one end
            for process in processes:
                with contextlib.suppress(psutil.NoSuchProcess):
                    end(process)

    def shutdown(self) -> None:
        self._cluster.shutdown()

    @property
    def _raylet(self) -> int:
        (raylet,) = self._other.all_processes["raylet"]
        return int(raylet.process.pid)


@contextlib.contextmanager
def raylets(head_cpus: int = 1) -> Iterator[Raylets]:
    """Context of a cluster."""
    cluster = Raylets(head_cpus)
    try:
        yield cluster
    finally:
        cluster.shutdown()


def family(pid: int) -> list[psutil.Process]:
    """A process and all that have come of it; none if it has ended."""
    with contextlib.suppress(psutil.NoSuchProcess):
        process = psutil.Process(pid)
        if process.status() != psutil.STATUS_ZOMBIE:
            return [process, *process.children(recursive=True)]
    return []


def command_of(process: psutil.Process) -> str:
    """The command line of a process, or what it calls itself; empty if it has ended."""
    with contextlib.suppress(psutil.Error):
        if process.status() != psutil.STATUS_ZOMBIE:
            return " ".join(process.cmdline()).strip()
    return ""


def actors() -> list[psutil.Process]:
    """The processes that hold encoders, of the raylets that this process has started."""
    return [process for process in family(os.getpid()) if command_of(process).startswith(ACTOR)]


def cells_of(processes: list[psutil.Process]) -> list[psutil.Process]:
    """Of some processes those that train a cell."""
    return [process for process in processes if "-m sightline train" in command_of(process)]


def until(state: Callable[[], Any], what: str, seconds: float = 300.0, pause: float = 0.1) -> Any:
    """Wait for something, and give it; looks again after each pause.

    Raises:
        TimeoutError: it does not come about.
    """
    deadline = time.monotonic() + seconds
    while not (value := state()):
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {seconds:.0f} s: {what}")
        time.sleep(pause)
    return value


class Command:
    """A command of Sightline in a process of its own.

    Args:
        words: of the command.
        log: file for what it says.
        environment: variables beside those of this process; None for one that is left out.
        before: words of a program that starts it.
        setting: `MODULE.NAME=NUMBER` of constants that wait for less long than usual.
    """

    def __init__(
        self,
        *words: str,
        log: Path,
        environment: dict[str, str | None] | None = None,
        before: tuple[str, ...] = (),
        setting: dict[str, float] | None = None,
    ) -> None:
        variables = os.environ | (environment or {})
        self._log = log
        program = [sys.executable, "-m", "sightline"]
        if setting:
            lines = ["import importlib"]
            for name, number in setting.items():
                module, _, constant = name.rpartition(".")
                lines.append(f"importlib.import_module('{module}').{constant} = {number}")
            lines += ["from sightline.cli import command", "command()"]
            program = [sys.executable, "-c", "\n".join(lines)]
        with log.open("wb") as stream:
            self.process = subprocess.Popen(
                [*before, *program, *words],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=stream,
                env={name: value for name, value in variables.items() if value is not None},
                start_new_session=True,
            )

    def code(self, seconds: float = 900.0) -> int:
        """Its exit code, once it has ended."""
        return self.process.wait(seconds)

    @property
    def lines(self) -> list[str]:
        """What it has said, without its progress bar."""
        text = self._log.read_text(errors="replace").replace("\r", "\n")
        return [line for line in text.splitlines() if line.strip()]

    def kill(self) -> None:
        """End it, and all that it has started."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
