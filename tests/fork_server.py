"""Commands as processes of their own that begin in a tenth of a second.

`python tests/fork_server.py SOCKET` imports the libraries once, and forks a process for each command. That is as one of
`python -m sightline`, but for modules that are imported already; its parent is a nurse, which tells its exit code.

    this process ──fork──► nurse ──fork──► the command, in a session of its own
         ▲ job, 3 file descriptors │ exit code
    `start` (the tests) ◄──────────┘
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import MutableMapping
from functools import cache
from pathlib import Path
from typing import IO, Any

_NUMBER = struct.Struct("i")


# -- in the process of the tests ---------------------------------------------------------------------------------------


class ForkedProcess:
    """A command that runs, with what tests use of `subprocess.Popen`.

    Attributes:
        pid: its process id, which is that of its process group, too.
        returncode: its exit code, or minus the signal that ended it; None while it runs.
        stdout, stderr: its streams, as text.
    """

    def __init__(self, pid: int, ending: int, stdout: int, stderr: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self.stdout: IO[str] = os.fdopen(stdout)
        self.stderr: IO[str] = os.fdopen(stderr)
        self._ending = ending

    def poll(self) -> int | None:
        return self._wait(0)

    def wait(self, timeout: float | None = None) -> int:
        code = self._wait(timeout)
        if code is None:
            raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0)
        return code

    def _wait(self, seconds: float | None) -> int | None:
        if self.returncode is None:
            ready, _, _ = select.select([self._ending], [], [], seconds)
            if ready:
                self.returncode = _NUMBER.unpack(os.read(self._ending, _NUMBER.size))[0]
                os.close(self._ending)
        return self.returncode

    def communicate(self, input: None = None, timeout: float | None = None) -> tuple[str, str]:
        """What it says from now on, until it ends."""
        texts = ["", ""]

        def read(number: int, stream: IO[str]) -> None:
            if not stream.closed:
                with stream:
                    texts[number] = stream.read()

        readers = [
            threading.Thread(target=read, args=pair, daemon=True) for pair in enumerate((self.stdout, self.stderr))
        ]
        deadline = None if timeout is None else time.monotonic() + timeout
        for reader in readers:
            reader.start()
        for reader in readers:
            reader.join(None if deadline is None else max(deadline - time.monotonic(), 0))
            if reader.is_alive():
                raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0)
        self.wait(None if deadline is None else max(deadline - time.monotonic(), 1))
        return texts[0], texts[1]

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)


def start(arguments: list[str], folder: Path, environment: dict[str, str]) -> ForkedProcess:
    """Begin `sightline` with these arguments in a folder."""
    out, write_out = os.pipe()
    err, write_err = os.pipe()
    ending, write_ending = os.pipe()
    job = {"arguments": arguments, "folder": str(folder), "environment": environment}
    server = _server()
    socket.send_fds(server, [json.dumps(job).encode()], [write_out, write_err, write_ending])
    for descriptor in (write_out, write_err, write_ending):
        os.close(descriptor)
    (pid,) = _NUMBER.unpack(os.read(ending, _NUMBER.size))
    return ForkedProcess(pid, ending, out, err)


@cache
def _server() -> socket.socket:
    """The other process, begun when it is first needed; it ends with this one, whose end of the socket closes."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    subprocess.Popen([sys.executable, __file__, str(theirs.fileno())], pass_fds=[theirs.fileno()], cwd="/")
    theirs.close()
    atexit.register(ours.close)
    return ours


# -- in the process that forks -----------------------------------------------------------------------------------------


def serve(server: socket.socket) -> dict[str, Any]:
    """Fork a process for each job; returns in these alone."""
    while True:
        message, descriptors, _, _ = socket.recv_fds(server, 1 << 20, 3)
        if not message:
            os._exit(0)
        nurse = os.fork()
        if nurse == 0:
            _begin(descriptors)
            server.close()
            job: dict[str, Any] = json.loads(message)
            return job
        for descriptor in descriptors:
            os.close(descriptor)
        # Nurses that have ended are let go; those of commands that run are looked at next time.
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass


def _begin(descriptors: list[int]) -> None:
    """Fork the command's process, in which alone this returns; the nurse waits for it."""
    out, err, ending = descriptors
    command = os.fork()
    if command:
        os.close(out)
        os.close(err)
        os.write(ending, _NUMBER.pack(command))
        _, status = os.waitpid(command, 0)
        os.write(ending, _NUMBER.pack(os.waitstatus_to_exitcode(status)))
        os._exit(0)
    os.close(ending)
    os.setsid()
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # ignored where the tests run under `nohup`
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(out, 1)
    os.dup2(err, 2)
    os.close(out)
    os.close(err)


def become(job: dict[str, Any]) -> None:
    """Turn this process into that of a command."""
    os.environ.clear()
    os.environ.update(job["environment"])
    _apply(os.environ)
    os.chdir(job["folder"])
    tempfile.tempdir = None
    sys.argv = ["sightline", *job["arguments"]]
    sys.path[0] = job["folder"]  # as with `python -m`
    for place in reversed(job["environment"].get("PYTHONPATH", "").split(os.pathsep)):
        if place and place not in sys.path:
            sys.path.insert(1, place)


def _apply(variables: MutableMapping[str, str]) -> None:
    """Do what variables say that are read when modules are imported; `HURRIED` and `STDERR` are of the tests alone."""
    from sightline.envs import workers
    from sightline.runs import lease
    from sightline.runs.stopping import StopRequests

    if "SIGHTLINE_LEASE_TIMEOUT" in variables:
        lease.TIMEOUT = float(variables["SIGHTLINE_LEASE_TIMEOUT"])
    if variables.pop("HURRIED", ""):
        StopRequests.overdue.__defaults__ = (0.5,)
        workers.CLOSING_SECONDS = 0.5
    if "STDERR" in variables:
        os.dup2(os.open(variables.pop("STDERR"), os.O_WRONLY), 2)


def _import_libraries() -> None:
    import matplotlib.figure  # noqa: F401  # which the first report imports
    import torch._dynamo  # noqa: F401  # which the first optimiser of a process imports

    from light_runs import lighten_runs

    lighten_runs()

    import sightline.cli.commands
    import sightline.control.trainer
    import sightline.models.bundled_encoder
    import sightline.reports.run_page
    import sightline.roles
    import sightline.session  # noqa: F401
    from empty_plots import leave_plots_empty

    leave_plots_empty()


if __name__ == "__main__":
    import runpy

    _import_libraries()
    become(serve(socket.socket(fileno=int(sys.argv[1]))))
    runpy.run_module("sightline", run_name="__main__", alter_sys=True)
