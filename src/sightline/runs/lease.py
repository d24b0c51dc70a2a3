"""The lease of a run folder: one process owns and writes it, all others only read.

    lease.json   {"format": 1, "id": …, "host": …, "pid": …, "process_started": …, "started": …, "heartbeat": …}

Acquiring, renewing and every write happen under a lock of the folder (`flock`), so that no process can take over
between an owner's check of the lease and its write. The lock alone would not suffice: a stopped process keeps it for
ever. The lease alone would not suffice either: its holder could be stopped between check and write.

    owner      lock ─ is the lease mine? ─ write ─ unlock          … every few seconds: lock ─ new heartbeat ─ unlock
    newcomer   lock ─ is the holder dead, or its heartbeat too old? ─ write my own lease ─ unlock

A holder is dead if it ran on this machine and its process has ended. Its heartbeat is too old after `TIMEOUT`: its
machine is down, or the process was stopped. If it wakes up, it finds another lease and writes nothing more.
"""

from __future__ import annotations

import contextlib
import errno
import math
import os
import platform
import threading
import time
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psutil

from sightline.errors import BadInput, Busy, RunFailed
from sightline.runs.files import read_document, write_document

LEASE = "lease.json"


def timeout_from(text: str | None, default: float = 60.0) -> float:
    """Seconds from a text, between one and a year; the default if it says nothing."""
    try:
        seconds = float(text or default)
    except ValueError:
        return default
    return default if math.isnan(seconds) else min(max(1.0, seconds), 365 * 24 * 3600.0)


TIMEOUT = timeout_from(os.environ.get("SIGHTLINE_LEASE_TIMEOUT"))
"""Seconds without a heartbeat after which a lease may be taken over."""
_UNSUPPORTED = (errno.ENOSYS, errno.ENOTSUP, errno.ENOLCK, errno.EINVAL, errno.EBADF)
"""Errors of file systems that cannot lock folders, as some network file systems."""


class LeaseLost(RunFailed):
    """Raised when another process has taken over the run folder; nothing more may be written."""


class Lease:
    """Lease of a run folder, acquired by `take_lease`. While it is held, a thread renews its heartbeat."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._id = uuid.uuid4().hex
        self._started = _now()
        self._inside = threading.RLock()
        self._depth = 0
        self._released = threading.Event()
        self._thread = threading.Thread(target=self._keep_alive, name="lease", daemon=True)

    @contextlib.contextmanager
    def writing(self) -> Iterator[None]:
        """Context that holds the lock of the folder during a write, reentrant.

        Raises:
            LeaseLost: another process has taken over.
            Busy: another process holds the lock for too long.
            RunFailed: the folder is gone.
        """
        with self._inside:
            if self._depth:  # a write within a write: the lock is held already
                yield
                return
            if not self._folder.exists():
                # A file server that is away for a moment may come back, so the heartbeat goes on trying.
                raise RunFailed(f"the folder '{self._folder}' is gone, which this process was writing")
            with _locked(self._folder):
                self.check()
                self._depth += 1
                try:
                    yield
                finally:
                    self._depth -= 1

    def check(self) -> None:
        """Refuse to write if another process has taken over.

        Raises:
            LeaseLost: it has.
        """
        holder = _holder(self._folder)
        if holder is None or holder.get("id") != self._id:
            who = _describe(holder) if holder else "no process"
            raise LeaseLost(
                f"'{self._folder}' now belongs to {who}, as this process did not renew its lease in time; it "
                "writes nothing more"
            )

    def release(self) -> None:
        """Release the lease; calling it again changes nothing."""
        if self._released.is_set():
            return
        self._released.set()
        # Where another process has taken over, the lease is that one's, and stays.
        with contextlib.suppress(RunFailed, Busy, OSError), self.writing():
            (self._folder / LEASE).unlink(missing_ok=True)

    def take(self) -> None:
        """Acquire the lease.

        Raises:
            Busy: another process holds it.
        """
        with _locked(self._folder):
            holder = _holder(self._folder)
            if holder is not None and not _is_gone(holder, self._folder):
                raise Busy(
                    f"'{self._folder}' is being written by {_describe(holder)}; wait until it ends, or choose another "
                    "--run-dir"
                )
            self._write()
        self._thread.start()

    def _write(self) -> None:
        write_document(
            self._folder / LEASE,
            {
                "id": self._id,
                "host": platform.node(),
                "machine": _machine(),
                "pid": os.getpid(),
                "process_started": _started(os.getpid()),
                "started": self._started,
                "heartbeat": _now(),
            },
        )

    def _keep_alive(self) -> None:
        while not self._released.wait(min(TIMEOUT, 60.0) / 6):
            try:
                with self.writing():
                    self._write()
            except LeaseLost:
                return  # the next write raises it in the main thread
            except (RunFailed, Busy, OSError):
                continue  # a full disk, for example: the next heartbeat may still be in time


def take_lease(folder: Path) -> Lease:
    """Acquire the lease of an existing folder.

    Raises:
        Busy: another process holds it.
        BadInput: the folder is not writable.
    """
    lease = Lease(folder)
    try:
        lease.take()
    except OSError as error:
        raise BadInput(f"'{folder}' cannot be written to: {error.strerror or error}") from error
    return lease


def current_owner(folder: Path) -> str | None:
    """The process that holds the lease of a folder, in words; None if nobody does."""
    holder = _holder(folder)
    with contextlib.suppress(OSError):
        if holder is not None and not _is_gone(holder, folder):
            return _describe(holder)
    return None


def lease_id(folder: Path) -> str | None:
    """Id of a folder's lease, live or not; None if there is none. On machines that share the folder it is the same."""
    holder = _holder(folder)
    return None if holder is None else str(holder.get("id"))


@contextlib.contextmanager
def _locked(folder: Path, patience: float = 10.0) -> Iterator[None]:
    """Hold the lock of a folder, among the processes of this machine (and of others, if the file system supports it).

    Args:
        folder: an existing folder.
        patience: seconds to wait for the lock.

    Raises:
        Busy: another process did not release it in that time.
    """
    try:
        import fcntl
    except ImportError:  # Windows has no `flock`: the lease alone has to suffice
        yield
        return
    descriptor = os.open(folder, os.O_RDONLY)
    locked = False
    try:
        deadline = time.monotonic() + patience
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                locked = True
                break
            except OSError as error:
                if error.errno in _UNSUPPORTED:
                    break
                if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
                    raise
                if time.monotonic() > deadline:
                    holder = _holder(folder)
                    who = _describe(holder) if holder else "another process"
                    raise Busy(f"'{folder}' is being written by {who} at this moment; try again later") from error
                time.sleep(0.02)
        yield
    finally:
        if locked:
            fcntl.flock(descriptor, fcntl.LOCK_UN)  # closing would not suffice: a forked process shares the descriptor
        os.close(descriptor)


def _holder(folder: Path) -> dict[str, Any] | None:
    """Content of the lease file; None if there is none, or if it is damaged and so names no holder."""
    try:
        return read_document(folder / LEASE)
    except (OSError, BadInput):
        return None


def _is_gone(holder: dict[str, Any], folder: Path) -> bool:
    """True if the holder's process has ended, or its heartbeat is too old."""
    if holder.get("machine") == _machine():
        try:
            pid = int(holder["pid"])
            # The process has ended if its id was reused by another one, or if it is a zombie.
            if holder["process_started"] != _started(pid) or psutil.Process(pid).status() == "zombie":
                return True
        except (psutil.NoSuchProcess, KeyError, TypeError, ValueError, OverflowError):
            return True
        except psutil.Error:
            pass  # the process exists, and belongs to another user
    # A heartbeat far in the future is not valid: the folder was copied, or a clock was set.
    return not -TIMEOUT < _age(folder / LEASE) <= TIMEOUT


def _machine() -> str:
    """Identifier of the scope of process ids: this boot of this machine, and this container."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return platform.node()


def _started(pid: int) -> float:
    """Start time of a process: on Linux in clock ticks since boot, which setting the clock does not change.

    Raises:
        psutil.NoSuchProcess: there is no such process.
    """
    try:
        return float(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])
    except (OSError, IndexError, ValueError):
        return float(psutil.Process(pid).create_time())


def _age(file: Path) -> float:
    """Seconds since a file was written, by the clock of the file server, since clocks of machines differ."""
    probe = file.with_name(f".{file.name}.{os.getpid()}.clock")
    try:
        probe.touch()
        return probe.stat().st_mtime - file.stat().st_mtime
    finally:
        probe.unlink(missing_ok=True)


def _describe(holder: dict[str, Any]) -> str:
    """Holder of a lease in words, for messages."""
    host = str(holder.get("host", "?"))[:60]
    pid = str(holder.get("pid", "?"))[:60]
    started = str(holder.get("started", "?"))[:60]
    return f"process {pid} on {host} (since {started})"


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
