"""Append-only archive of a ring buffer's rows, for checkpoints of the replay buffer.

A replay buffer holds gigabytes, of which a few megabytes are new at each checkpoint. So rows are numbered from the
run's first one, and each checkpoint appends one file with the rows since the last checkpoint:

    rows            0 ─────────── 128 ────────── 256 ──── 300      written so far
    replay/transitions-…000-…128   transitions-…128-…256          files of earlier checkpoints
                                                  transitions-…256-…300   new with this one
    ring of 200     [ 200 … 299 │ 100 … 199 ]                     memory: row r has index r mod 200

A file is needed as long as one of its rows is in the ring of a kept checkpoint; checkpoints list the files that they
need, with their checksums (`runs/checkpoints.py`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from sightline.errors import Damaged
from sightline.runs.checkpoints import digest, flush, flush_folder
from sightline.runs.state import read_state, write_state


@dataclass(frozen=True)
class Part:
    """Archive file with rows `start` to `end` (exclusive), and its SHA-256."""

    name: str
    start: int
    end: int
    digest: str


class Archive:
    """Append-only archive of one kind of rows.

    Args:
        folder: folder of the files.
        kind: prefix of their names.

    Attributes:
        parts: the files, in the order of their rows, without gaps.
    """

    def __init__(self, folder: Path, kind: str) -> None:
        self._folder = folder
        self._kind = kind
        self.parts: list[Part] = []

    @property
    def end(self) -> int:
        """Number of rows archived so far, including those in files that were removed."""
        if not self.parts:
            return 0
        return self.parts[-1].end

    def append(self, start: int, rows: dict[str, np.ndarray], oldest: int = 0) -> None:
        """Write rows to a new file, flushed to disk, and drop files whose rows are all older than `oldest`.

        Args:
            start: number of the first row. Rows before it that were not archived have been overwritten in the ring.
            rows: name -> array, of equal length, possibly 0.
            oldest: number of the first row that is still needed.
        """
        count = len(next(iter(rows.values()), ()))
        if count:
            name = f"{self._kind}-{start:012d}-{start + count:012d}.safetensors"
            self._folder.mkdir(exist_ok=True)
            # On disk before it is listed: a checkpoint that names it has to find it, also after a crash.
            write_state(self._folder / name, rows)
            flush(self._folder / name)
            flush_folder(self._folder)
            self.parts.append(Part(name, start, start + count, digest(self._folder / name)))
        self.parts = [part for part in self.parts if part.end > oldest]

    def append_ring(self, ring: Mapping[str, np.ndarray], end: int, oldest: int) -> None:
        """Append the rows of a ring buffer that are not archived yet.

        Args:
            ring: name -> array, of equal length: row r has index r mod that length.
            end: number of the first row that is not to be archived.
            oldest: number of the first row that the ring still holds.
        """
        # Rows between the archive's end and the oldest of the ring were overwritten before they could be archived.
        start = max(self.end, oldest)
        indices = ring_indices(ring, start, end)
        rows = {name: array[indices] for name, array in ring.items()}
        self.append(start, rows, oldest)

    def read_ring(self, ring: Mapping[str, np.ndarray], oldest: int) -> int:
        """Restore a ring buffer from archived rows; returns the number of the row after the last.

        Args:
            ring: name -> array, of equal length, written in place.
            oldest: number of the first row that the ring holds.

        Raises:
            ValueError, KeyError: the rows do not fit the ring, or some are missing.
            Damaged: a file is missing or not an archive file.
        """
        next_row = oldest
        for start, rows in self.read():
            next_row = restore_rows(ring, start, rows, oldest, next_row)
        return next_row

    def digests(self) -> dict[str, str]:
        """SHA-256 of each file by its name, for the manifest of a checkpoint."""
        return {part.name: part.digest for part in self.parts}

    def read(self) -> Iterator[tuple[int, dict[str, np.ndarray]]]:
        """Read each file in turn: (number of its first row, its rows).

        Raises:
            Damaged: a file is missing or not an archive file.
        """
        for part in self.parts:
            rows = read_state(self._folder / part.name)
            # The folder may be a stranger's, and hold anything under the right name.
            if not isinstance(rows, dict) or any(len(array) != part.end - part.start for array in rows.values()):
                raise Damaged(f"'{self._folder / part.name}' is damaged: its rows are not those that its name states")
            yield part.start, rows

    def state(self) -> list[dict[str, Any]]:
        """State for a checkpoint: the list of files."""
        return [vars(part) for part in self.parts]

    def restore(self, state: list[dict[str, Any]]) -> None:
        """Restore from the result of `state`; files of later rows will be overwritten.

        Raises:
            Damaged: a file name is not one that an archive writes.
        """
        self.parts = [Part(**part) for part in state]
        for part in self.parts:
            if part.name != f"{self._kind}-{part.start:012d}-{part.end:012d}.safetensors":
                raise Damaged(f"'{str(part.name)[:80]}' is not the name of an archive file")


def ring_indices(ring: Mapping[str, np.ndarray], start: int, end: int) -> np.ndarray:
    """Indices of rows `start` to `end` (exclusive) in a ring buffer: int[end - start]."""
    return np.arange(start, max(start, end)) % len(next(iter(ring.values())))


def restore_rows(
    ring: Mapping[str, np.ndarray], start: int, rows: Mapping[str, np.ndarray], oldest: int, next_row: int
) -> int:
    """Write archived rows into a ring buffer, except those that it no longer holds.

    Args:
        ring: name -> array, written in place.
        start: number of the first archived row.
        rows: name -> array of archived rows.
        oldest: number of the first row that the ring holds.
        next_row: number of the row after the last one restored so far.

    Returns:
        `next_row`, after these rows.

    Raises:
        ValueError, KeyError: rows before these are missing, or these do not fit the ring.
    """
    if start > next_row:
        raise ValueError(f"rows {next_row} to {start} are missing")
    first_name = next(iter(ring))
    end = start + len(rows[first_name])
    # The first rows of a file may be too old for the ring by now.
    skipped = max(oldest - start, 0)
    indices = ring_indices(ring, start + skipped, end)
    for name, array in ring.items():
        array[indices] = rows[name][skipped:]
    return max(next_row, end)


class Archives:
    """Archives of a run by the kind of their rows, created on first access."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._archives: dict[str, Archive] = {}

    def __getitem__(self, kind: str) -> Archive:
        if kind not in self._archives:
            self._archives[kind] = Archive(self._folder, kind)
        return self._archives[kind]

    def digests(self) -> dict[str, str]:
        """SHA-256 of each file of all archives by its name, for the manifest of a checkpoint."""
        digests: dict[str, str] = {}
        for archive in self._archives.values():
            digests |= archive.digests()
        return digests

    def state(self) -> dict[str, list[dict[str, Any]]]:
        """State for a checkpoint: the list of files of each archive."""
        return {kind: archive.state() for kind, archive in self._archives.items()}

    def restore(self, state: dict[str, list[dict[str, Any]]]) -> None:
        """Restore all archives from the result of `state`.

        Raises:
            Damaged: a file name is not one that an archive writes.
        """
        for kind, parts in state.items():
            self[kind].restore(parts)
