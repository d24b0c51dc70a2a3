"""Files of what only grows: rows of a ring that are written once and never rewritten.

A replay buffer holds gigabytes, of which a few megabytes are new at each checkpoint. So rows are numbered from the
run's first one, and each checkpoint appends one file with the rows that came since the one before:

    rows            0 ─────────── 128 ────────── 256 ──── 300      written so far
    replay/transitions-…000-…128   transitions-…128-…256          files of earlier checkpoints
                                                  transitions-…256-…300   new with this one
    ring of 200     [ 200 … 299 │ 100 … 199 ]                     memory: row r lies in place r mod 200

A file is needed as long as a checkpoint that is kept has one of its rows in its ring; checkpoints name the files they
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
    """A file that holds rows `start` to `end` (the last one excluded), and its SHA-256."""

    name: str
    start: int
    end: int
    digest: str


class Archive:
    """Append-only files of one kind of rows.

    Args:
        folder: where they lie.
        kind: prefix of their names.

    Attributes:
        parts: the files, in order of their rows, without gaps.
    """

    def __init__(self, folder: Path, kind: str) -> None:
        self._folder, self._kind = folder, kind
        self.parts: list[Part] = []

    @property
    def end(self) -> int:
        """The number of rows that were ever archived."""
        return self.parts[-1].end if self.parts else 0

    def append(self, start: int, rows: dict[str, np.ndarray], oldest: int = 0) -> None:
        """Write rows to a new file, flushed to disk, and forget files of which no row is needed any more.

        Args:
            start: number of the first row. Rows before it that are not archived yet were overwritten in the meantime.
            rows: arrays of equal length, by name. None at all is allowed.
            oldest: the first row that is still needed.
        """
        count = len(next(iter(rows.values()), ()))
        if count:
            name = f"{self._kind}-{start:012d}-{start + count:012d}.safetensors"
            self._folder.mkdir(exist_ok=True)
            write_state(self._folder / name, rows)
            flush(self._folder / name)
            flush_folder(self._folder)
            self.parts.append(Part(name, start, start + count, digest(self._folder / name)))
        self.parts = [part for part in self.parts if part.end > oldest]

    def append_ring(self, ring: Mapping[str, np.ndarray], end: int, oldest: int) -> None:
        """Append the rows of a ring that are not archived yet.

        Args:
            ring: arrays of equal length, by name: row r lies in place r mod that length.
            end: the first row that shall not be archived.
            oldest: the first row that the ring still holds.
        """
        start = max(self.end, oldest)
        places = places_of(ring, start, end)
        self.append(start, {name: array[places] for name, array in ring.items()}, oldest)

    def read_ring(self, ring: Mapping[str, np.ndarray], oldest: int) -> int:
        """Put archived rows back into a ring; gives the row after the last.

        Raises:
            ValueError, KeyError: they do not fit the ring, or some are missing.
            Damaged: a file is missing or no such file.
        """
        reached = oldest
        for start, rows in self.read():
            reached = put_back(ring, start, rows, oldest, reached)
        return reached

    def digests(self) -> dict[str, str]:
        """Name -> SHA-256 of the files, for the manifest of a checkpoint."""
        return {part.name: part.digest for part in self.parts}

    def read(self) -> Iterator[tuple[int, dict[str, np.ndarray]]]:
        """Number of the first row, and the rows, of each file in turn.

        Raises:
            Damaged: a file is missing or no such file.
        """
        for part in self.parts:
            rows = read_state(self._folder / part.name)
            if not isinstance(rows, dict) or any(len(array) != part.end - part.start for array in rows.values()):
                raise Damaged(f"'{self._folder / part.name}' is damaged: it does not hold the rows that it is named by")
            yield part.start, rows

    def state(self) -> list[dict[str, Any]]:
        """What a checkpoint has to remember of it."""
        return [vars(part) for part in self.parts]

    def restore(self, state: list[dict[str, Any]]) -> None:
        """Take over what `state` gave; later files are written again.

        Raises:
            Damaged: a name is not one of ours.
        """
        self.parts = [Part(**part) for part in state]
        for part in self.parts:
            if part.name != f"{self._kind}-{part.start:012d}-{part.end:012d}.safetensors":
                raise Damaged(f"'{str(part.name)[:80]}' is no name of archived rows")


def places_of(ring: Mapping[str, np.ndarray], start: int, end: int) -> np.ndarray:
    """int[end - start]: where rows lie in a ring."""
    return np.arange(start, max(start, end)) % len(next(iter(ring.values())))


def put_back(
    ring: Mapping[str, np.ndarray], start: int, rows: Mapping[str, np.ndarray], oldest: int, reached: int
) -> int:
    """Store rows in a ring, but for those that it no longer holds.

    Args:
        start: number of the first of these rows.
        oldest: the first row that the ring holds.
        reached: the row after the last that was put back so far; gives the same with these.

    Raises:
        ValueError, KeyError: rows before them are missing, or they do not fit.
    """
    if start > reached:
        raise ValueError(f"rows {reached} to {start} are missing")
    skipped, end = max(oldest - start, 0), start + len(rows[next(iter(ring))])
    places = places_of(ring, start + skipped, end)
    for name, array in ring.items():
        array[places] = rows[name][skipped:]
    return max(reached, end)


class Archives:
    """The archives of a run, by kind of rows; each is made when it is first asked for."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._archives: dict[str, Archive] = {}

    def __getitem__(self, kind: str) -> Archive:
        if kind not in self._archives:
            self._archives[kind] = Archive(self._folder, kind)
        return self._archives[kind]

    def digests(self) -> dict[str, str]:
        """Name -> SHA-256 of all files, for the manifest of a checkpoint."""
        return {name: digest for archive in self._archives.values() for name, digest in archive.digests().items()}

    def state(self) -> dict[str, list[dict[str, Any]]]:
        """What a checkpoint has to remember of them."""
        return {kind: archive.state() for kind, archive in self._archives.items()}

    def restore(self, state: dict[str, list[dict[str, Any]]]) -> None:
        """Take over what `state` gave.

        Raises:
            Damaged: a name is not one of ours.
        """
        for kind, parts in state.items():
            self[kind].restore(parts)
