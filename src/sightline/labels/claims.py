"""Claims of questions that are being asked, so that no two processes on one store pay for the same answer.

A claim is a lock on one byte of a file, at a place that the question's key determines. It needs no clean-up: the system
releases the locks of a process when it ends, however it does.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import threading
from pathlib import Path

from sightline.errors import RunFailed

CLAIMS = "claims.lock"
_PLACES = 2**62
_TAKEN = (errno.EACCES, errno.EAGAIN)
_UNSUPPORTED = (errno.ENOSYS, errno.ENOTSUP, errno.ENOLCK, errno.EINVAL)
"""Errors of file systems without locks: threads of this process are kept apart there, other processes are not."""


class _LockedFile:
    """A file, open while this process has claims in it. It is opened once in a process: closing any descriptor of a
    file would release all locks on it."""

    def __init__(self, file: Path) -> None:
        self._descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
        self._places: set[int] = set()

    @property
    def is_used(self) -> bool:
        return bool(self._places)

    def lock(self, place: int) -> bool:
        # Locks of a file keep processes apart, not the threads of one.
        if place in self._places:
            return False
        try:
            fcntl.lockf(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, place)
        except OSError as error:
            if error.errno in _TAKEN:  # by another process
                return False
            if error.errno not in _UNSUPPORTED:
                raise
        self._places.add(place)
        return True

    def unlock(self, place: int) -> None:
        self._places.discard(place)
        try:
            fcntl.lockf(self._descriptor, fcntl.LOCK_UN, 1, place)
        except OSError as error:
            if error.errno not in _UNSUPPORTED:
                raise

    def close(self) -> None:
        os.close(self._descriptor)


_FILES: dict[Path, _LockedFile] = {}
_GUARD = threading.Lock()


class Claims:
    """Claims on questions of one store.

    Args:
        folder: of the store.
    """

    def __init__(self, folder: Path) -> None:
        self._file = folder.resolve() / CLAIMS
        self._mine: set[int] = set()

    def take(self, key: str) -> bool:
        """Claim a question; False if another thread or process has claimed it.

        Raises:
            RunFailed: the file of claims cannot be written.
        """
        place = _place(key)
        with _GUARD:
            try:
                # Opened at the first claim, not with the store: one that is only read makes no file.
                file = _FILES.get(self._file) or _LockedFile(self._file)
                _FILES[self._file] = file
                is_taken = file.lock(place)
            except OSError as error:
                raise RunFailed(f"'{self._file}' cannot be written: {error.strerror}") from error
            if is_taken:
                self._mine.add(place)
            self._close_if_unused()
        return is_taken

    def release(self, key: str) -> None:
        """Release a claim; nothing happens if there is none by this object."""
        self._release({_place(key)})

    def release_all(self) -> None:
        """Release all claims of this object."""
        self._release(self._mine)

    def _release(self, places: set[int]) -> None:
        with _GUARD:
            # Only its own: another store object of this process may hold a claim at one of these places.
            for place in places & self._mine:
                _FILES[self._file].unlock(place)
            self._mine -= places
            self._close_if_unused()

    def _close_if_unused(self) -> None:
        file = _FILES.get(self._file)
        if file is not None and not file.is_used:
            del _FILES[self._file]
            file.close()


def _place(key: str) -> int:
    return int.from_bytes(hashlib.sha256(key.encode()).digest()[:8], "big") % _PLACES
