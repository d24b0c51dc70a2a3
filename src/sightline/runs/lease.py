"""The lease of a run folder: one process owns it and writes, everybody else only reads.

    lease.json   {"format": 1, "id": …, "host": …, "pid": …, "process_started": …, "started": …, "heartbeat": …}

Taking, renewing and every write happen while the folder itself is locked (`flock`), so that nobody takes over between
an owner's look at the lease and its write. The lock alone would not do: a process that was stopped keeps it for ever.
The lease alone would not do either: its holder could be stopped between looking and writing.

    owner      lock ─ is the lease mine? ─ write ─ unlock          … every few seconds: lock ─ new heartbeat ─ unlock
    newcomer   lock ─ is its holder gone, or silent for too long? ─ write my own lease ─ unlock

A holder is gone if it ran on this machine and its process is no more. It is silent if its heartbeat is older than
`TIMEOUT`: its machine is down, or it was stopped. When it wakes up, it finds another lease and writes nothing more.
"""

from __future__ import annotations

import contextlib
import errno
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

from sightline.errors import BadInput, RunFailed
from sightline.runs.files import read_document, write_document

LEASE = "lease.json"


def _seconds(text: str | None, default: float = 60.0) -> float:
    try:
        return max(1.0, float(text or default))
    except ValueError:
        return default


TIMEOUT = _seconds(os.environ.get("SIGHTLINE_LEASE_TIMEOUT"))
"""Seconds without a heartbeat after which a lease may be taken over."""
_UNSUPPORTED = (errno.ENOSYS, errno.ENOTSUP, errno.ENOLCK, errno.EINVAL, errno.EBADF)
"""How file systems say that they lock no folders; some network file systems do not."""


class LeaseLost(RunFailed):
    """Another process owns the run folder by now; nothing more may be written."""


class Busy(BadInput):
    """The lock of the folder is not to be had."""


class Lease:
    """The right to write into a run folder; made by `take_lease`.

    While it is held, a thread renews its heartbeat.
    """

    def __init__(self, folder: Path) -> None:
        self._folder, self._id = folder, uuid.uuid4().hex
        self._started = _now()
        self._inside = threading.RLock()
        self._depth = 0
        self._released = threading.Event()
        self._thread = threading.Thread(target=self._keep_alive, name="lease", daemon=True)

    @contextlib.contextmanager
    def writing(self) -> Iterator[None]:
        """Hold the folder while something is written into it. May be nested.

        Raises:
            LeaseLost: somebody else has taken over.
        """
        with self._inside:
            if self._depth:
                yield
                return
            with _locked(self._folder):
                holder = _holder(self._folder)
                if holder is None or holder.get("id") != self._id:
                    who = _described(holder) if holder else "nobody"
                    raise LeaseLost(
                        f"'{self._folder}' belongs to {who} by now, for this process was silent for too long; this one "
                        "writes nothing more"
                    )
                self._depth += 1
                try:
                    yield
                finally:
                    self._depth -= 1

    def release(self) -> None:
        """Give the folder back; calling it again changes nothing."""
        if self._released.is_set():
            return
        self._released.set()
        with contextlib.suppress(RunFailed, Busy, OSError), self.writing():
            (self._folder / LEASE).unlink(missing_ok=True)

    def take(self) -> None:
        """Become the owner.

        Raises:
            BadInput: somebody else is.
        """
        with _locked(self._folder):
            holder = _holder(self._folder)
            if holder is not None and not _is_gone(holder, self._folder):
                raise BadInput(
                    f"'{self._folder}' is being written by {_described(holder)}; wait until it ends, or name another "
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
        while not self._released.wait(TIMEOUT / 6):
            try:
                with self.writing():
                    self._write()
            except LeaseLost:
                return  # whoever writes next is told
            except (RunFailed, Busy, OSError):
                continue  # a full disk, say: perhaps it passes before the time is out


def take_lease(folder: Path) -> Lease:
    """Become the one process that writes into a folder, which must exist.

    Raises:
        BadInput: another process owns it; or it cannot be written to.
    """
    lease = Lease(folder)
    try:
        lease.take()
    except OSError as error:
        raise BadInput(f"'{folder}' cannot be written to: {error.strerror or error}") from error
    return lease


@contextlib.contextmanager
def _locked(folder: Path, patience: float = 10.0) -> Iterator[None]:
    """Hold the lock of a folder, across the processes of a machine (and of a network, if its file system can).

    Raises:
        Busy: whoever has it does not let go.
    """
    try:
        import fcntl
    except ImportError:  # Windows: the lease alone has to do
        yield
        return
    descriptor, locked = os.open(folder, os.O_RDONLY), False
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
                    who = _described(holder) if holder else "another process"
                    raise Busy(f"'{folder}' is being written by {who} at this moment; try again later") from error
                time.sleep(0.02)
        yield
    finally:
        if locked:
            fcntl.flock(descriptor, fcntl.LOCK_UN)  # a process forked meanwhile has the descriptor too
        os.close(descriptor)


def _holder(folder: Path) -> dict[str, Any] | None:
    """What the lease says; None if there is none, or if it is damaged: then nobody can be asked."""
    try:
        return read_document(folder / LEASE)
    except (OSError, BadInput):
        return None


def _is_gone(holder: dict[str, Any], folder: Path) -> bool:
    if holder.get("machine") == _machine():
        try:
            pid = int(holder["pid"])
            # Else the number was given to another process, or the process waits to be buried.
            if holder["process_started"] != _started(pid) or psutil.Process(pid).status() == "zombie":
                return True
        except (psutil.NoSuchProcess, KeyError, TypeError, ValueError, OverflowError):
            return True
        except psutil.Error:
            pass  # it is there, and somebody else's
    # A heartbeat far in the future is no heartbeat: the folder was copied, or a clock was set.
    return not -TIMEOUT < _age(folder / LEASE) <= TIMEOUT


def _machine() -> str:
    """Within which process numbers mean the same: this boot of this machine, and this container."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return platform.node()


def _started(pid: int) -> float:
    """When a process was started: in ticks since the boot, which no change of the clock moves, where that is known.

    Raises:
        psutil.NoSuchProcess: there is none.
    """
    try:
        return float(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])
    except (OSError, IndexError, ValueError):
        return float(psutil.Process(pid).create_time())


def _age(file: Path) -> float:
    """Seconds since a file was written, by the clock of the machine that keeps it: those of two machines differ."""
    probe = file.with_name(f".{file.name}.{os.getpid()}.clock")
    try:
        probe.touch()
        return probe.stat().st_mtime - file.stat().st_mtime
    finally:
        probe.unlink(missing_ok=True)


def _described(holder: dict[str, Any]) -> str:
    """Who holds a lease, for people."""
    host, pid, started = (str(holder.get(name, "?"))[:60] for name in ("host", "pid", "started"))
    return f"process {pid} on {host} (since {started})"


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
