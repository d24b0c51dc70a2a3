"""Temporary folders that outlive no process for long: who was killed removes nothing, so the next run does it.

Each is locked (`flock`) as long as its process lives, whoever else sees the same disk.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
import tempfile
import weakref
from collections.abc import Iterator
from pathlib import Path

SHARED_MEMORY = Path("/dev/shm")
"""Folder whose files are memory, on Linux."""
_SUFFIX = ".temporary"
"""End of the folders' names, so that nothing else is ever taken for one."""
_UNLOCKED = ".new"
"""The same before a folder is locked."""


class TemporaryFolder:
    """Folder that is removed with this object, or at the end of the process; those of killed processes are removed now.

    Args:
        kind: what is in it, in a word; part of its name.
        within: where it is made; default: the system's folder for temporary files.

    Attributes:
        path: the folder.

    Raises:
        OSError: it cannot be made there.
    """

    def __init__(self, kind: str, within: Path | None = None) -> None:
        remove_abandoned()
        unlocked = Path(tempfile.mkdtemp(_UNLOCKED, f"sightline-{kind}-", within))
        descriptor = os.open(unlocked, os.O_RDONLY)
        _lock(descriptor)
        # Only now may it look abandoned to others, who try the lock.
        self.path = unlocked.rename(unlocked.with_suffix(_SUFFIX))
        self._end = weakref.finalize(self, _remove, self.path, descriptor)

    def remove(self) -> None:
        """Remove the folder with all that it holds; calling it again changes nothing."""
        self._end()


def remove_abandoned() -> None:
    """Remove temporary folders whose process was killed; those of living processes are locked, and stay."""
    for path in _everybodys():
        with contextlib.suppress(OSError), _opened(path) as descriptor:
            # The lock is free only if the process that made the folder has ended.
            if os.fstat(descriptor).st_uid == os.getuid() and _lock(descriptor):
                shutil.rmtree(path, ignore_errors=True)


def _everybodys() -> Iterator[Path]:
    yield from SHARED_MEMORY.glob(f"sightline-*{_SUFFIX}")
    with contextlib.suppress(OSError):  # nobody can write anywhere
        yield from Path(tempfile.gettempdir()).glob(f"sightline-*{_SUFFIX}")


def _remove(path: Path, descriptor: int) -> None:
    shutil.rmtree(path, ignore_errors=True)
    os.close(descriptor)


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[int]:
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0))
    try:
        if not stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise NotADirectoryError(path)
        yield descriptor
    finally:
        os.close(descriptor)


def _lock(descriptor: int) -> bool:
    """Lock a folder for as long as it is open; False where that cannot be, or somebody else has done it."""
    try:
        import fcntl

        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (ImportError, OSError):  # Windows, or a file system without locks
        return False
    return True
