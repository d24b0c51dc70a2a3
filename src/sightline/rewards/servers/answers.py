"""Answers of reward servers and judges that are kept: a request that was answered once is never paid for again.

An SQLite database in the folder of the run. Its keys are digests of all that an answer depends on, so that a run that
is resumed finds what it has asked before, and bit for bit what it was told then. What all requests have cost is
beside, over all sessions of the run.
"""

from __future__ import annotations

import contextlib
import sqlite3
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np

from sightline.errors import Damaged, RunFailed

FILE = "reward_answers.sqlite"
_SCHEMA = """
CREATE TABLE IF NOT EXISTS answers (key BLOB PRIMARY KEY, numbers BLOB NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS costs (name TEXT PRIMARY KEY, amount REAL NOT NULL);
CREATE TABLE IF NOT EXISTS models (name TEXT PRIMARY KEY);
"""


class KeptAnswers:
    """Kept answers and costs; used by several threads, and by several processes at a time.

    Args:
        file: of the database, made with the first answer; None keeps no answers, and costs in memory.
    """

    def __init__(self, file: Path | None) -> None:
        self._file = file
        self._database: sqlite3.Connection | None = None
        self._lock = threading.Lock()
        self._costs: dict[str, float] = {}

    def find(self, key: bytes) -> np.ndarray | None:
        """float32[M], the answer to a request; None if it was not answered yet."""
        with self._opened(makes=False) as database:
            if database is None:
                return None
            row = database.execute("SELECT numbers FROM answers WHERE key = ?", (key,)).fetchone()
        if row is None:
            return None
        if not isinstance(row[0], bytes) or len(row[0]) % 4:
            raise Damaged(f"'{self._file}' is damaged; remove it, and what it knew is asked again")
        return np.frombuffer(row[0], "<f4").astype(np.float32)

    def keep(self, answers: Mapping[bytes, np.ndarray], costs: Mapping[str, float]) -> None:
        """Keep answers, float32[M] each, before they are used, and add to what has been spent: all of it or nothing."""
        rows = [(key, numbers.astype("<f4").tobytes()) for key, numbers in answers.items()]
        with self._opened(makes=True) as database:
            if database is not None:
                database.executemany("INSERT OR IGNORE INTO answers VALUES (?, ?)", rows)
            self._spend(database, costs)

    def add(self, costs: Mapping[str, float]) -> None:
        """Add to what has been spent."""
        with self._opened(makes=True) as database:
            self._spend(database, costs)

    def _spend(self, database: sqlite3.Connection | None, costs: Mapping[str, float]) -> None:
        if database is None:
            for name, amount in costs.items():
                self._costs[name] = self._costs.get(name, 0.0) + amount
            return
        database.executemany(
            "INSERT INTO costs VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET amount = amount + excluded.amount",
            list(costs.items()),
        )

    def costs(self) -> dict[str, float]:
        """What has been spent so far, by name."""
        with self._opened(makes=False) as database:
            if database is None:
                return dict(self._costs)
            return dict(database.execute("SELECT name, amount FROM costs ORDER BY name").fetchall())

    def model(self) -> str | None:
        """The model that has answered so far; None before the first answer."""
        with self._opened(makes=False) as database:
            row = None if database is None else database.execute("SELECT name FROM models").fetchone()
        return None if row is None else str(row[0])

    def keep_model(self, name: str) -> None:
        """Keep the name of the model that answers."""
        with self._opened(makes=True) as database:
            if database is not None:
                database.execute("INSERT OR IGNORE INTO models VALUES (?)", (name,))

    @contextlib.contextmanager
    def _opened(self, makes: bool) -> Iterator[sqlite3.Connection | None]:
        """The database, in a transaction of its own; None if there is none.

        Args:
            makes: make it, if there is none yet and a file is named.
        """
        file = self._file
        with self._lock:
            if self._database is None and file is not None and (makes or file.exists()):
                self._database = _connected(file)
            if self._database is None:
                yield None
                return
            try:
                with self._database:
                    yield self._database
            except sqlite3.DatabaseError as error:
                raise _failure(file, error) from error


def _connected(file: Path | None) -> sqlite3.Connection:
    """The database in a file, made if need be."""
    assert file is not None, "only a database with a file is opened"
    try:
        # A part of a combined reward has a folder of its own, which is made with its first answer.
        file.parent.mkdir(parents=True, exist_ok=True)
        database = sqlite3.connect(file, timeout=60, check_same_thread=False)
        database.execute("PRAGMA trusted_schema=OFF")
        database.execute("PRAGMA journal_mode=WAL")
        # What a power failure takes is asked again; a kill takes nothing.
        database.execute("PRAGMA synchronous=NORMAL")
        database.executescript(_SCHEMA)
    except (OSError, sqlite3.Error) as error:
        raise _failure(file, error) from error
    return database


def _failure(file: Path | None, error: OSError | sqlite3.Error) -> Damaged | RunFailed:
    if isinstance(error, OSError | sqlite3.OperationalError):  # the disk is full, or may not be written to
        return RunFailed(f"'{file}' cannot be read or written: {error}")
    return Damaged(f"'{file}' is damaged ({error}); remove it, and what it knew is asked again")
