"""Worker processes: objects that live in processes of their own, and whose methods are called from here.

    here          begin("step", …) ──► pipe ──► step(…) ──► pipe ──► result()

Nothing waits for a worker without end: a wait notices that the process has died, keeps to a time limit, and heeds
requests to stop. A worker ends with the process that started it, however that one ended.
"""

from __future__ import annotations

import contextlib
import math
import mmap
import multiprocessing
import os
import pickle
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from gymnasium.vector.utils import CloudpickleWrapper

from sightline.errors import BadInput, RunFailed, SightlineWarning, reason_and_place, reason_of
from sightline.runs.stopping import exit_now, give_up_if_overdue, stop_signals
from sightline.runs.streams import steady_standard_streams
from sightline.runs.temporary import SHARED_MEMORY, TemporaryFolder
from sightline.runs.working_folder import safe_children

WORKER = "sightline-worker"
"""Name of worker processes."""
UNGUARDED = 78
"""Exit code of a worker whose script would start the same run once more."""
GUARD = (
    "with workers=processes every process runs this script again up to here; put the call under "
    '`if __name__ == "__main__":`, or say workers=inline'
)
POLL_SECONDS = 0.2
"""How often a wait looks whether the process has died and whether to stop."""
CLOSING_SECONDS = 5.0
"""Time that processes have to close what they hold, all together; then they are killed."""


class WorkerDied(RunFailed):
    """The process of an environment died, or was ended since it did not answer."""


class Worker:
    """A process that makes one object, and carries out calls of its methods, one after the other.

    Args:
        make: makes the object there; it is sent to the process, so it must be picklable.
        variables: environment variables that are set there before anything is imported for the object.

    Raises:
        BadInput: it is not.
    """

    def __init__(self, make: Callable[[], Any], variables: Mapping[str, str] | None = None) -> None:
        leave_unguarded_script()
        # Spawned, not forked: OpenGL and torch's threads do not survive a fork.
        context = multiprocessing.get_context("spawn")
        self._pipe, its_end = context.Pipe()
        self._process = context.Process(
            target=_serve, args=(its_end, _packed(make), dict(variables or {})), name=WORKER
        )
        self._calls = 0
        self._answers = 0
        self._last_answer = time.monotonic()
        self._replies: dict[int, tuple[bool, Any]] = {}
        """Answers that nobody has asked for so far, by the number of the call."""
        self._died: WorkerDied | None = None
        # A module of the working folder must not hide one that the process imports.
        with safe_children():
            self._process.start()
        its_end.close()
        self.ready = self._result(0, None)
        """Waits until the object is made; raises what that raised."""

    @property
    def alive(self) -> bool:
        """False once the process has ended, by itself or by `end_all`."""
        return self._died is None and self._process.is_alive()

    @property
    def busy(self) -> bool:
        """True while a call has not been answered."""
        return self._answers <= self._calls

    def begin(self, method: str, *args: Any, seconds: float | None = None, **options: Any) -> Callable[[], Any]:
        """Begin a call of a method.

        Args:
            seconds: that it may take; None for as long as it wants.

        Returns:
            Function that waits for the call's result and returns it, or raises what the method raised; `WorkerDied` if
            the process dies.
        """
        self._calls += 1
        with contextlib.suppress(OSError):  # it has died, which is said where the result is waited for
            self._pipe.send((method, args, options))
        return self._result(self._calls, seconds)

    def leave(self) -> None:
        """Tell the process to close what it holds and to end. One that is in the middle of a call is killed."""
        self._pipe.close()
        if self.busy:
            self.kill()

    def kill(self) -> None:
        """End the process at once, with the processes that it has started."""
        kill_children(self._process.pid)
        self._process.kill()
        self._process.join(CLOSING_SECONDS)

    def end_by(self, deadline: float) -> None:
        """Wait until the process has ended, and kill it at a time of the monotonic clock."""
        try:
            self._process.join(max(deadline - time.monotonic(), 0))
        finally:
            self.kill()

    def _result(self, call: int, seconds: float | None) -> Callable[[], Any]:
        start = time.monotonic()

        def result() -> Any:
            while call not in self._replies:
                self._receive(start, seconds)
            succeeded, value = self._replies.pop(call)
            if not succeeded:
                raise value
            return value

        return result

    def _receive(self, start: float, seconds: float | None) -> None:
        """Take the next reply from the pipe, for a call of the time `start` that may take `seconds`."""
        if self._died is not None:
            raise self._died
        if self._pipe.closed:
            raise self._death("it was closed")
        while not self._pipe.poll(POLL_SECONDS):
            # A request to stop is heeded even while a worker hangs.
            give_up_if_overdue()
            if self._process.exitcode is not None and not self._pipe.poll():
                raise self._death()
            # A process that holds several objects may have been busy with a call before this one.
            if seconds is not None and time.monotonic() - max(start, self._last_answer) > seconds:
                self.kill()
                raise self._death(f"no answer within step_timeout={seconds:g} seconds")
        try:
            reply = self._pipe.recv_bytes()
        except (EOFError, OSError):
            raise self._death() from None
        self._last_answer = time.monotonic()
        # Calls are answered in their order.
        self._replies[self._answers] = _unpacked(reply)
        self._answers += 1

    def _death(self, reason: str | None = None) -> RunFailed | BadInput:
        self._process.join(CLOSING_SECONDS)  # the pipe breaks a little before the process is gone
        code = self._process.exitcode
        self._died = WorkerDied(f"the process of an environment died ({reason or _reason(code)})")
        # It has run the user's script up to our call, and left.
        if code == UNGUARDED and not self._answers:
            return BadInput(GUARD)
        if self._process.is_alive():
            self.kill()
        return self._died


def end_all(workers: Sequence[Worker]) -> None:
    """Have workers close what they hold, all at the same time, and end their processes."""
    try:
        for worker in workers:
            worker.leave()
        deadline = time.monotonic() + CLOSING_SECONDS
        for worker in workers:
            worker.end_by(deadline)
    finally:
        for worker in workers:
            worker.kill()


def shared_picture(worker: Worker, shape: tuple[int, ...]) -> np.ndarray | None:
    """Memory for a picture, uint8 of a shape, into which a worker's object draws from now on (`draw_into_file`).

    Returns:
        The picture; None if there is no room for it, so that pictures have to be sent.
    """
    for within in (SHARED_MEMORY, None):
        with contextlib.suppress(OSError):
            # If this process is killed at this moment, the next run removes the folder.
            folder = TemporaryFolder("picture", within)
            try:
                return _drawn_in(worker, folder.path / "pixels", shape)
            finally:
                folder.remove()  # the memory stays as long as it is mapped
    return None


def _drawn_in(worker: Worker, file: Path, shape: tuple[int, ...]) -> np.ndarray:
    with file.open("wb") as opened:
        # All of it now: whoever writes into a file that finds no room dies.
        reserve = getattr(os, "posix_fallocate", lambda number, start, size: os.truncate(number, size))
        reserve(opened.fileno(), 0, math.prod(shape))
    picture = opened_picture(str(file), shape)
    worker.begin("draw_into_file", str(file))()
    return picture


def opened_picture(file: str, shape: tuple[int, ...]) -> np.ndarray:
    """The picture whose memory is a file's: uint8 of a shape."""
    with open(file, "r+b") as opened:
        return np.frombuffer(mmap.mmap(opened.fileno(), 0), np.uint8).reshape(shape)


def leave_unguarded_script() -> None:
    """End this process if it is a worker that is still importing the script that started it.

    Such a script starts its run when it is imported, since it has no main guard. The parent process says so.
    """
    process = multiprocessing.current_process()
    if process.name == WORKER and getattr(process, "_inheriting", False):
        sys.stdout.flush()
        os._exit(UNGUARDED)


def end_with_parent() -> None:
    """End this worker and the processes that it has started as soon as its parent is gone, whatever it is doing."""
    parent = multiprocessing.parent_process()
    assert parent is not None, "in a worker process"

    def watch() -> None:
        wait([parent.sentinel])
        kill_children()
        os._exit(1)

    threading.Thread(target=watch, name="parent", daemon=True).start()


def leave_stops_to_parent() -> None:
    """Ignore requests to stop in a worker process.

    Ctrl-C, a job scheduler's SIGTERM and the end of a terminal reach the whole process group. The parent process saves
    a checkpoint, for which it needs its workers, and then ends them.
    """
    for number in stop_signals():
        signal.signal(number, signal.SIG_IGN)


def kill_children(pid: int | None = None) -> None:
    """End the processes that a process has started, and theirs; default: those of this one."""
    with contextlib.suppress(psutil.Error):  # it is gone itself
        for child in psutil.Process(pid).children(recursive=True):
            with contextlib.suppress(psutil.Error):
                child.kill()


def _reason(code: int | None) -> str:
    """Why a process died, by its exit code."""
    if code is None:
        return "its pipe was closed"
    if code >= 0:
        return f"it ended with exit code {code}"
    number = -code
    if number == signal.SIGKILL:
        return "SIGKILL; out of memory?"
    return signal.Signals(number).name if number in set(signal.Signals) else f"signal {number}"


def _packed(make: Callable[[], Any]) -> bytes:
    try:
        return pickle.dumps(CloudpickleWrapper(make))
    except Exception as error:
        raise BadInput(
            f"this environment cannot be sent to another process: {reason_of(error):.200}; make it by a function that "
            "opens what it needs itself, or say workers=inline"
        ) from error


def _unpacked(reply: bytes) -> tuple[bool, Any]:
    try:
        succeeded, value = pickle.loads(reply)
    except Exception as error:
        return False, RunFailed(f"what an environment returned cannot be read in this process: {reason_of(error)}")
    return succeeded, value


def _serve(pipe: Connection, packed: bytes, variables: Mapping[str, str]) -> None:
    """Make the object and reply to calls until the pipe is closed."""
    end_with_parent()
    leave_stops_to_parent()
    steady_standard_streams()
    warnings.simplefilter("ignore", SightlineWarning)  # the process that has started this one says the same
    os.environ.update(variables)
    try:
        served = pickle.loads(packed).fn()
    except BaseException as error:
        pipe.send_bytes(_reply(False, _portable(error)))
        exit_now(1)
    pipe.send_bytes(_reply(True, None))
    while True:
        try:
            method, args, options = pipe.recv()
        except (EOFError, OSError):
            break
        try:
            reply = _reply(True, getattr(served, method)(*args, **options))
        except BaseException as error:
            reply = _reply(False, _portable(error))
        try:
            pipe.send_bytes(reply)
        except OSError:
            break
    with contextlib.suppress(BaseException):  # nobody is left to be told
        served.close()
    exit_now(0)


def _reply(succeeded: bool, value: Any) -> bytes:
    """The reply to a call, without those parts of an info that cannot be sent, such as objects of a simulator."""
    try:
        return pickle.dumps((succeeded, value), pickle.HIGHEST_PROTOCOL)
    except Exception:
        if not (isinstance(value, tuple) and value and isinstance(value[-1], dict)):
            raise
        info = {key: part for key, part in value[-1].items() if _can_be_sent(part)}
        return pickle.dumps((succeeded, (*value[:-1], info)), pickle.HIGHEST_PROTOCOL)


def _can_be_sent(value: Any) -> bool:
    try:
        pickle.loads(pickle.dumps(value))
    except Exception:
        return False
    return True


def _portable(error: BaseException) -> Exception:
    """The error; in place of one of other people's code, one that says the same, as its place is not sent with it."""
    if not isinstance(error, Exception):
        return RunFailed(f"{reason_and_place(error)}: an environment must not end the program")
    if isinstance(error, BadInput | RunFailed) and _can_be_sent(error):
        return error
    return RunFailed(reason_and_place(error))
