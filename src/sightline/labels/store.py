"""The label store: a folder with a SQLite database and the frames that were judged.

Labels cost money and time. So every answer is on disk before it is used, with everything that led to it; a question
that was answered once is never asked again; and what was answered is never deleted, only retracted.

    labels.sqlite          questions, answers, every exchange with a model, replies to questions that need further ones,
                           and who is being waited for
    claims.lock            claims on questions that are being asked just now (`labels/claims.py`)
    labels.backup.sqlite   a copy, made whenever the store is opened and found whole
    frames/ab/abcd….png    each distinct frame once, named by the SHA-256 of its pixels
"""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np

from sightline.config.loading import for_control
from sightline.errors import BadInput, Damaged, RunFailed
from sightline.images import PictureFiles, too_large
from sightline.labels.claims import CLAIMS, Claims
from sightline.labels.types import Answer, ModelCall, Outcome, Question, QuestionKind, Segment, Signed
from sightline.runs.files import FORMAT, check_format
from sightline.runs.folder import RunFolder, check_plain

DATABASE, BACKUP = "labels.sqlite", "labels.backup.sqlite"
APPLICATION = 0x53474854
"""SQLite application id that marks a database as a label store: "SGHT" in ASCII."""
_JOURNAL = bytes.fromhex("d9d505f920a163d7")
"""Magic bytes at the end of an SQLite journal that names a super-journal."""
_HOW_TO_RESTORE = f"move {DATABASE}* away and copy {BACKUP} to {DATABASE} (frames are not affected)"

_SCHEMA = """
CREATE TABLE IF NOT EXISTS segments (digest TEXT PRIMARY KEY, frames TEXT NOT NULL, true_rewards TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS states (digest TEXT PRIMARY KEY, numbers TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS labels (
    id INTEGER PRIMARY KEY, key TEXT NOT NULL, time TEXT NOT NULL, run TEXT NOT NULL, task TEXT NOT NULL,
    step INTEGER, teacher TEXT NOT NULL, signature TEXT NOT NULL, kind TEXT NOT NULL, goal TEXT NOT NULL,
    levels INTEGER NOT NULL, segments TEXT NOT NULL, outcome TEXT NOT NULL, value REAL, confidence REAL,
    reason TEXT NOT NULL, seconds REAL NOT NULL, origin TEXT NOT NULL, retracted TEXT
);
CREATE INDEX IF NOT EXISTS labels_by_key ON labels (key);
CREATE INDEX IF NOT EXISTS labels_by_run ON labels (run);
CREATE TABLE IF NOT EXISTS exchanges (
    label INTEGER NOT NULL REFERENCES labels (id), position INTEGER NOT NULL, stage TEXT NOT NULL,
    swapped INTEGER NOT NULL, prompt TEXT NOT NULL, reply TEXT NOT NULL, input_tokens INTEGER NOT NULL,
    output_tokens INTEGER NOT NULL, seconds REAL NOT NULL, cost REAL NOT NULL, error TEXT NOT NULL,
    PRIMARY KEY (label, position)
);
CREATE TABLE IF NOT EXISTS models (
    label INTEGER NOT NULL, position INTEGER NOT NULL, model TEXT NOT NULL, PRIMARY KEY (label, position)
);
CREATE TABLE IF NOT EXISTS replies (
    key TEXT NOT NULL, stage TEXT NOT NULL, swapped INTEGER NOT NULL, prompt TEXT NOT NULL, reply TEXT NOT NULL,
    input_tokens INTEGER NOT NULL, output_tokens INTEGER NOT NULL, seconds REAL NOT NULL, cost REAL NOT NULL,
    model TEXT NOT NULL
);
CREATE INDEX IF NOT EXISTS replies_by_key ON replies (key);
CREATE TABLE IF NOT EXISTS waiting (
    key TEXT PRIMARY KEY, position INTEGER NOT NULL, teacher TEXT NOT NULL, signature TEXT NOT NULL, run TEXT NOT NULL,
    task TEXT NOT NULL, step INTEGER, kind TEXT NOT NULL, goal TEXT NOT NULL, levels INTEGER NOT NULL,
    segments TEXT NOT NULL
);
CREATE INDEX IF NOT EXISTS waiting_by_position ON waiting (position);
"""


_COUNTED_BEFORE: dict[str, Any] = {
    "input_tokens": 0,
    "output_tokens": 0,
    "seconds": 0.0,
    "cost": 0.0,
    "reused": True,
}
"""What is changed in a reply that is used again, since the label that it came with counts its cost."""
_OBJECTS = "SELECT name, sql FROM sqlite_master WHERE sql IS NOT NULL AND name NOT LIKE 'sqlite_stat%'"
"""Query for all objects of a database except the indices that SQLite makes by itself."""


@dataclass(frozen=True)
class Context:
    """Context in which a question is asked: run, task and training step.

    Attributes:
        run: name of the run, or of the command.
        task: the recipe's `env`.
        step: transitions collected by then.
        origin: anything else worth keeping, as plain data (an importer says which file).
    """

    run: str
    task: str
    step: int | None = None
    origin: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class StoredLabel:
    """Label: a question with its answer, as stored.

    Attributes:
        key: the question's key, see `Question.key`.
        time: when it was recorded, ISO 8601 in UTC.
        segments: digests; `LabelStore.segment` loads the segment of one.
        true_returns: of the segments, NaN where unknown.
    """

    id: int
    key: str
    time: str
    context: Context
    teacher: str
    signature: str
    kind: QuestionKind
    goal: tuple[str, ...]
    levels: int
    segments: tuple[str, ...]
    true_returns: tuple[float, ...]
    answer: Answer


@dataclass(frozen=True)
class Waiting:
    """Question that waits for a person's answer."""

    key: str
    question: Question
    teacher: str
    signature: str
    context: Context


@dataclass(frozen=True)
class Spent:
    """Cost of a run so far: questions that a model was asked, requests, tokens, and money in the prices' currency; and
    how many requests a reply came to."""

    questions: int = 0
    requests: int = 0
    tokens: int = 0
    money: float = 0.0
    replies: int = 0

    def with_calls(self, calls: Sequence[ModelCall]) -> Spent:
        """Add what one more question cost."""
        return Spent(
            self.questions + bool(calls),
            self.requests + sum(not call.reused for call in calls),
            self.tokens + sum(call.input_tokens + call.output_tokens for call in calls),
            self.money + sum(call.cost for call in calls),
            self.replies + sum(not (call.error or call.reused) for call in calls),
        )


class LabelStore:
    """Label store in a folder, created if missing. Threads may share one; so may processes, each with its own object.

    Args:
        folder: the store's folder.
        read_only: open an existing store and change nothing, not even its backup.

    Raises:
        BadInput: the database is damaged, or is none, or is gone while its backup is there.
        RunFailed: it cannot be written.
    """

    def __init__(self, folder: str | Path, read_only: bool = False) -> None:
        self.folder = folder = Path(folder)
        self._lock = threading.RLock()
        self._closed = False
        self._frames = PictureFiles(folder / "frames")
        self._claims = Claims(folder)
        self._refuse_to_begin_anew()
        try:
            if not read_only:
                folder.mkdir(parents=True, exist_ok=True)
            # Where nothing can be written, SQLite cannot even lock; without a log of changes nobody is changing it.
            unchanging = read_only and not (folder / f"{DATABASE}-wal").exists() and not os.access(folder, os.W_OK)
            mode = "ro&immutable=1" if unchanging else "ro" if read_only else "rwc"
            place = f"file:{quote(str((folder / DATABASE).absolute()))}?mode={mode}"
            self._database = sqlite3.connect(place, timeout=60, check_same_thread=False, uri=True)
        except (FileExistsError, NotADirectoryError) as error:
            raise BadInput(f"'{folder}' is a file; a label store is a folder") from error
        except OSError as error:
            raise BadInput(f"the label store '{folder}' cannot be opened: {error.strerror or error}") from error
        except sqlite3.Error as error:
            raise RunFailed(f"the label store '{folder}' cannot be opened: {error}") from error
        self._database.row_factory = sqlite3.Row
        self._database.execute("PRAGMA trusted_schema=OFF")
        try:
            self._check()
            if read_only:
                return
            try:
                (folder / "frames").mkdir(exist_ok=True)  # not beside a database that is damaged
            except OSError as error:
                raise RunFailed(f"the label store '{folder}' cannot be opened: {error}") from error
            with self._writing():
                self._database.execute("PRAGMA journal_mode=WAL")
                self._database.execute("PRAGMA synchronous=FULL")
                self._database.executescript(_SCHEMA)
                # Stores from before there was a number hold the same tables. Labels are paid for: they are adopted.
                self._database.execute(f"PRAGMA user_version={FORMAT}")
                self._database.execute(f"PRAGMA application_id={APPLICATION}")
            self.back_up()
        except BaseException:
            self._database.close()
            raise

    def __enter__(self) -> LabelStore:
        return self

    def __exit__(self, *unused: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the database; nothing can be read or recorded any more."""
        with self._lock:
            self._closed = True
            self._claims.release_all()
            self._database.close()

    def back_up(self) -> None:
        """Back up the database beside itself, atomically."""
        temporary = self.folder / f".{BACKUP}.{_me()}.writing"
        try:
            with self._writing(), contextlib.closing(sqlite3.connect(temporary)) as copy:
                self._database.backup(copy)
            temporary.replace(self.folder / BACKUP)
        except OSError as error:
            raise RunFailed(f"the label store '{self.folder}' cannot be backed up: {error.strerror}") from error
        finally:
            temporary.unlink(missing_ok=True)

    # -- answers -------------------------------------------------------------------------------------------------

    def find(self, question: Question, signature: str) -> Answer | None:
        """Find the stored answer of the teacher with this signature to this question; None if none can be reused."""
        with self._reading():
            row = self._database.execute(
                "SELECT id, outcome, value, confidence, reason, seconds FROM labels "
                "WHERE key = ? AND retracted IS NULL AND outcome != ? ORDER BY id DESC LIMIT 1",
                (question.key(signature), Outcome.FAILED.value),
            ).fetchone()
            return None if row is None else self._answer(row)

    def claim(self, question: Question, signature: str) -> bool:
        """Claim a question before it is asked, in whichever order; False if somebody else is asking it just now.

        Raises:
            RunFailed: claims cannot be written.
        """
        return self._claims.take(_claimed(question, signature))

    def release(self, question: Question, signature: str) -> None:
        """Release a claim, once the answer is recorded or given up."""
        self._claims.release(_claimed(question, signature))

    def keep_reply(self, question: Question, signature: str, reply: ModelCall) -> None:
        """Keep a reply to a question that needs further ones, until the answer is recorded: it is paid for."""
        with self._writing():
            self._database.execute(
                "INSERT INTO replies VALUES (?,?,?,?,?,?,?,?,?,?)",
                (
                    *(question.key(signature), reply.stage, reply.swapped, reply.prompt, reply.reply),
                    *(reply.input_tokens, reply.output_tokens, reply.seconds, reply.cost, reply.model),
                ),
            )

    def paid_replies(self, question: Question, signature: str) -> list[ModelCall]:
        """Replies that came while the question, in whichever order, was asked in vain: they are paid for.

        Those of a process that was killed carry their cost, which is counted nowhere yet.
        """
        orders = [(question, False)]
        if question.kind == "compare":
            orders.append((question.mirrored(), True))
        replies = []
        for asked, is_mirrored in orders:
            with self._reading():
                rows = self._database.execute(
                    "SELECT exchanges.*, model FROM exchanges JOIN labels ON labels.id = exchanges.label "
                    "LEFT JOIN models USING (label, position) WHERE key = ? AND outcome = ? AND retracted IS NULL "
                    "AND error = '' AND position >= 0 ORDER BY labels.id, position",
                    (asked.key(signature), Outcome.FAILED.value),
                ).fetchall()
                kept = self._database.execute(
                    "SELECT *, '' AS error, 0 AS position FROM replies WHERE key = ? ORDER BY rowid",
                    (asked.key(signature),),
                ).fetchall()
            calls = [replace(_call(row, row["model"] or ""), **_COUNTED_BEFORE) for row in rows]
            calls += [_call(row, row["model"]) for row in kept]
            replies += [replace(call, swapped=call.swapped != is_mirrored) for call in calls]
        return replies

    def occasion(self, question: Question, signature: str) -> str:
        """Name of the occasion on which a question, in whichever order, is asked: this store, and how many labels it
        has by now, so that what failed or was retracted is asked anew, and what was cut off by a kill is not."""
        keys = [question.key(signature)]
        if question.kind == "compare":
            keys.append(question.mirrored().key(signature))
        with self._reading():
            count = sum(
                int(self._database.execute("SELECT COUNT(*) FROM labels WHERE key = ?", (key,)).fetchone()[0])
                for key in keys
            )
        return f"{self.folder.resolve()} {_claimed(question, signature)} {count}"

    def record(
        self, question: Question, teacher: Signed, answer: Answer, context: Context, time: str | None = None
    ) -> int:
        """Record an answer; when this returns, it is on disk. Returns its id.

        Args:
            time: when it was given, as in `StoredLabel`; default: now.

        Raises:
            BadInput: question, answer or frames are not as their classes say, so that they could not be read back.
            RunFailed: it could not be written (a full disk, say).
        """
        with _storing():
            question.check()
            question.check_answer(answer)
        digests = [self.add_segment(segment) for segment in question.segments]
        with self._writing():
            cursor = self._database.execute(
                "INSERT INTO labels (key, time, run, task, step, teacher, signature, kind, goal, levels, segments, "
                "outcome, value, confidence, reason, seconds, origin) VALUES (?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?)",
                (
                    *(question.key(teacher.signature), time or _now(), context.run, context.task, context.step),
                    *(teacher.name, teacher.signature, question.kind, json.dumps(question.goal), question.levels),
                    *(json.dumps(digests), answer.outcome.value, answer.value, answer.confidence, answer.reason),
                    *(answer.seconds, json.dumps(context.origin)),
                ),
            )
            label = int(cursor.lastrowid or 0)
            positions = _positions(answer.exchanges)
            self._database.executemany(
                "INSERT INTO exchanges VALUES (?,?,?,?,?,?,?,?,?,?,?)",
                [
                    (
                        *(label, position, e.stage, e.swapped, e.prompt, e.reply, e.input_tokens, e.output_tokens),
                        *(e.seconds, e.cost, e.error),
                    )
                    for position, e in positions
                ],
            )
            self._database.executemany(
                "INSERT INTO models VALUES (?,?,?)",
                [(label, position, call.model) for position, call in positions if call.model],
            )
            keys = {question.key(teacher.signature)}
            self._database.execute("DELETE FROM waiting WHERE key = ?", (*keys,))
            if question.kind == "compare":
                keys.add(question.mirrored().key(teacher.signature))
            self._database.executemany("DELETE FROM replies WHERE key = ?", [(key,) for key in keys])
        return label

    def models(self, signature: str) -> dict[str, int]:
        """Versions of a model that have answered the teacher with this signature -> how many labels each gave."""
        with self._reading():
            if not self._has_table("models"):
                return {}
            rows = self._database.execute(
                "SELECT model, COUNT(DISTINCT label) FROM models JOIN labels ON labels.id = models.label "
                "WHERE signature = ? GROUP BY model ORDER BY MIN(label)",
                (signature,),
            )
            return {row[0]: int(row[1]) for row in rows}

    def retract(self, label: int) -> None:
        """Retract an answer; it stays in the store, but no longer counts.

        Raises:
            BadInput: the store has no answer with this id.
        """
        with self._writing():
            found = self._database.execute("UPDATE labels SET retracted = ? WHERE id = ?", (_now(), label))
            if not found.rowcount:
                raise BadInput(f"the label store '{self.folder}' has no label {label}")

    def labels(self, run: str | None = None) -> list[StoredLabel]:
        """Labels that were not retracted, of one run or of all, oldest first."""
        with self._reading():
            rows = self._database.execute(
                "SELECT * FROM labels WHERE retracted IS NULL AND (? IS NULL OR run = ?) ORDER BY id", (run, run)
            ).fetchall()
            returns = {
                row["digest"]: float(np.sum(_numbers(row["true_rewards"])))
                for row in self._database.execute("SELECT digest, true_rewards FROM segments")
            }
            try:
                return [self._stored(row, returns) for row in rows]
            except (ValueError, TypeError, KeyError, RecursionError) as error:
                raise Damaged(
                    f"the label store '{self.folder}' holds a label that is none ({type(error).__name__})"
                ) from error

    def recorded(self) -> list[tuple[str, str, Answer, dict[str, Any]]]:
        """Time, key, answer and origin (see `Context`) of every label ever recorded, retracted or not."""
        with self._reading():
            rows = self._database.execute("SELECT * FROM labels").fetchall()
            return [(row["time"], row["key"], self._answer(row), json.loads(row["origin"])) for row in rows]

    def spent(self, run: str) -> Spent:
        """Cost of a run, retracted answers included."""
        with self._reading():
            row = self._database.execute(
                "SELECT COUNT(DISTINCT label), COALESCE(SUM(position >= 0), 0), "
                "COALESCE(SUM(input_tokens + output_tokens), 0), COALESCE(SUM(cost), 0), "
                "COALESCE(SUM(error = '' AND position >= 0), 0) "
                "FROM exchanges JOIN labels ON labels.id = exchanges.label WHERE run = ?",
                (run,),
            ).fetchone()
        return Spent(int(row[0]), int(row[1]), int(row[2]), float(row[3]), int(row[4]))

    # -- segments ------------------------------------------------------------------------------------------------

    def add_segment(self, segment: Segment) -> str:
        """Store a segment's frames, each once; returns its digest.

        Raises:
            BadInput: its frames or true rewards are not as `Segment` says, or too many to be read back.
            RunFailed: they could not be written.
        """
        with _storing():
            segment.check()
            if too_large(segment.frames.shape):
                length, height, width = segment.frames.shape[:3]
                raise ValueError(
                    f"{length} frames of {width}x{height} are too large a segment; take fewer or smaller ones"
                )
        with self._reading():
            known = self._database.execute("SELECT 1 FROM segments WHERE digest = ?", (segment.digest,)).fetchone()
        if known is None:
            try:
                names = [self._frames.add(frame) for frame in segment.frames]
            except OSError as error:
                raise RunFailed(
                    f"the label store cannot keep a frame ({error.strerror or error}); make room"
                ) from error
            rewards = [None if np.isnan(r) else float(r) for r in segment.true_rewards]
            with self._writing():
                self._database.execute(
                    "INSERT OR IGNORE INTO segments VALUES (?,?,?)",
                    (segment.digest, json.dumps(names), json.dumps(rewards)),
                )
        if segment.states is not None:
            states = json.dumps(segment.states.tolist())
            with self._writing():
                self._database.execute("INSERT OR IGNORE INTO states VALUES (?,?)", (segment.digest, states))
        return segment.digest

    def segment(self, digest: str) -> Segment:
        """Load a segment by its digest.

        Raises:
            BadInput: a frame is missing or damaged.
        """
        with self._reading():
            row = self._database.execute("SELECT * FROM segments WHERE digest = ?", (digest,)).fetchone()
        if row is None:
            raise BadInput(f"the label store '{self.folder}' has no segment {digest[:12]}…")
        frames = self._frames.read_all(json.loads(row["frames"]))
        return Segment(frames, _numbers(row["true_rewards"]), self.states(digest))

    def states(self, digest: str) -> np.ndarray | None:
        """States of a segment, see `Segment.states`; None where they are unknown."""
        with self._reading():
            if not self._has_table("states"):
                return None
            row = self._database.execute("SELECT numbers FROM states WHERE digest = ?", (digest,)).fetchone()
        return None if row is None else np.array(json.loads(row["numbers"]), np.float32)

    def true_rewards(self, digest: str) -> np.ndarray:
        """True rewards of a segment's steps, from the environment: float32[L]; NaN where unknown."""
        with self._reading():
            row = self._database.execute("SELECT true_rewards FROM segments WHERE digest = ?", (digest,)).fetchone()
        return _numbers(row["true_rewards"] if row else "[]")

    def frame_files(self, digest: str) -> list[Path]:
        """The PNG files of a segment's frames, in order."""
        with self._reading():
            row = self._database.execute("SELECT frames FROM segments WHERE digest = ?", (digest,)).fetchone()
        return [self._frames.file(name) for name in json.loads(row["frames"])] if row else []

    # -- questions that wait for people --------------------------------------------------------------------------

    def wait_for(self, questions: Sequence[Question], teacher: Signed, context: Context) -> None:
        """Queue questions for people to answer; those that wait already keep their place.

        Raises:
            BadInput: a question or its frames are not as their classes say.
        """
        with _storing():
            for question in questions:
                question.check()
        digests = [[self.add_segment(segment) for segment in question.segments] for question in questions]
        with self._writing():
            (last,) = self._database.execute("SELECT COALESCE(MAX(position), 0) FROM waiting").fetchone()
            self._database.executemany(
                "INSERT OR IGNORE INTO waiting VALUES (?,?,?,?,?,?,?,?,?,?,?)",
                [
                    (
                        *(question.key(teacher.signature), last + 1 + i, teacher.name, teacher.signature, context.run),
                        *(context.task, context.step, question.kind, json.dumps(question.goal), question.levels),
                        json.dumps(digests[i]),
                    )
                    for i, question in enumerate(questions)
                ],
            )

    def withdraw(self, questions: Sequence[Question], signature: str) -> None:
        """Remove questions from those that wait for people."""
        with self._writing():
            self._database.executemany(
                "DELETE FROM waiting WHERE key = ?", [(question.key(signature),) for question in questions]
            )

    def waiting(self) -> list[Waiting]:
        """Questions that wait for people, in the order in which they were asked."""
        with self._reading():
            rows = self._database.execute("SELECT * FROM waiting ORDER BY position").fetchall()
        return [
            Waiting(
                row["key"],
                Question(
                    row["kind"],
                    tuple(self.segment(digest) for digest in json.loads(row["segments"])),
                    tuple(json.loads(row["goal"])),
                    row["levels"],
                ),
                row["teacher"],
                row["signature"],
                Context(row["run"], row["task"], row["step"]),
            )
            for row in rows
        ]

    # -- inside --------------------------------------------------------------------------------------------------

    def _refuse_to_begin_anew(self) -> None:
        """Refuse a folder in which an empty store must not be created, and links to files elsewhere.

        An empty database in the place of a lost one would soon be backed up over the last copy of the labels."""
        has_backup = (self.folder / BACKUP).is_file()  # asked first: another process makes it after the database
        database = self.folder / DATABASE
        journal = self.folder / f"{DATABASE}-journal"
        ours = (DATABASE, f"{DATABASE}-wal", f"{DATABASE}-shm", journal.name, BACKUP, CLAIMS, "frames")
        for file in (self.folder / name for name in ours):
            if file.is_symlink():
                raise BadInput(f"'{file}' is a link; a label store holds plain files: put the store where it leads to")
        # SQLite removes the file that a journal names as its super-journal, wherever that is. Ours never names one.
        if journal.exists() and journal.read_bytes()[-8:] == _JOURNAL:
            raise BadInput(f"'{journal}' names another file; it is not ours: remove it")
        if has_backup and not (database.is_file() and database.stat().st_size):
            raise BadInput(f"the label database '{database}' is gone, but its backup is there; {_HOW_TO_RESTORE}")

    def _check(self) -> None:
        try:
            # First of all, for a check of a stranger's table may take for ever.
            self._check_schema()
            found = self._database.execute("PRAGMA quick_check(1)").fetchone()[0]
        except sqlite3.OperationalError as error:
            raise RunFailed(f"the label store '{self.folder}' cannot be opened: {error}") from error
        except sqlite3.DatabaseError as error:
            found = str(error)
        if found != "ok":
            reason = " ".join(str(found).split())
            has_backup = (self.folder / BACKUP).is_file()
            advice = _HOW_TO_RESTORE if has_backup else f"there is no {BACKUP} to restore it from; name another store"
            raise BadInput(f"the label database '{self.folder / DATABASE}' is damaged ({reason}); {advice}")
        number = int(self._database.execute("PRAGMA user_version").fetchone()[0])
        if number not in (0, FORMAT):
            check_format(number, f"the label store '{self.folder}'")

    def _check_schema(self) -> None:
        """Refuse a database with foreign objects: a view that never ends, a trigger that changes labels.

        Raises:
            BadInput: naming it.
        """
        with contextlib.closing(sqlite3.connect(":memory:")) as own:
            own.executescript(_SCHEMA)
            known = {(name, " ".join(sql.split())) for name, sql in own.execute(_OBJECTS)}
        for name, sql in self._database.execute(_OBJECTS):
            if (name, " ".join(str(sql).split())) not in known:
                raise BadInput(
                    f"the label database '{self.folder / DATABASE}' holds '{str(name)[:40]}', which is not ours"
                )

    @contextlib.contextmanager
    def _reading(self) -> Iterator[None]:
        """Keep other threads out, and say what fails in one line."""
        with self._lock:
            self._refuse_if_closed()
            try:
                yield
            except sqlite3.Error as error:
                raise RunFailed(f"the label store '{self.folder}' cannot be read: {error}") from error

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        """Open a transaction: all of it is written to disk, or none."""
        with self._lock:
            self._refuse_if_closed()
            try:
                with self._database:
                    yield
            except sqlite3.Error as error:
                raise RunFailed(f"the label store '{self.folder}' cannot be written: {error}") from error

    def _refuse_if_closed(self) -> None:
        if self._closed:
            raise BadInput(f"the label store '{self.folder}' is closed; open it again")

    def _has_table(self, name: str) -> bool:
        """Whether there is a table; a store from before there was one lacks it while it is open for reading."""
        return self._database.execute("SELECT 1 FROM sqlite_master WHERE name = ?", (name,)).fetchone() is not None

    def _answer(self, row: sqlite3.Row) -> Answer:
        exchanges = self._database.execute(
            "SELECT * FROM exchanges WHERE label = ? ORDER BY position", (row["id"],)
        ).fetchall()
        models: dict[int, str] = {}
        if self._has_table("models"):
            models = dict(
                self._database.execute("SELECT position, model FROM models WHERE label = ?", (row["id"],)).fetchall()
            )
        return Answer(
            Outcome(row["outcome"]),
            row["value"],
            row["confidence"],
            row["reason"],
            tuple(_call(call, models.get(call["position"], "")) for call in exchanges),
            row["seconds"],
        )

    def _stored(self, row: sqlite3.Row, returns: dict[str, float]) -> StoredLabel:
        segments = tuple(json.loads(row["segments"]))
        return StoredLabel(
            row["id"],
            row["key"],
            row["time"],
            Context(row["run"], row["task"], row["step"], json.loads(row["origin"])),
            row["teacher"],
            row["signature"],
            row["kind"],
            tuple(json.loads(row["goal"])),
            row["levels"],
            segments,
            tuple(returns[digest] for digest in segments),
            self._answer(row),
        )


def existing_store(path: Path, trust: bool = False) -> Path:
    """Find the label store that a path names: a store itself, or a run with its own store or its recipe's.

    Args:
        trust: whether the recipe of a run may name a store elsewhere.

    Raises:
        BadInput: there is none, or it is elsewhere and that is not trusted.
    """
    run = RunFolder(path)
    if run.recipe_file.is_file() and not trust:
        check_plain(path)
    for folder in (path, path / "labels"):
        if (folder / DATABASE).is_file() or (folder / BACKUP).is_file():
            return folder
    if not run.recipe_file.is_file():
        raise BadInput(f"'{path}' is neither a run nor a label store")
    reward = for_control(run.recipe()).reward
    elsewhere = Path(reward.label_store) if reward.label_store else None
    if elsewhere is None or not (elsewhere / DATABASE).is_file():
        raise BadInput(f"the run '{path}' has no labels yet")
    if not trust:
        raise BadInput(f"the run '{path}' keeps its labels in '{elsewhere}'; name that store itself")
    return elsewhere


@contextlib.contextmanager
def _storing() -> Iterator[None]:
    """Report a wrong form of what is to be stored to whoever gave it."""
    try:
        yield
    except ValueError as error:
        raise BadInput(f"this cannot be stored: {error}") from error


def _claimed(question: Question, signature: str) -> str:
    """Key by which a question is claimed: that of either order of a pair, for one answer serves both."""
    key = question.key(signature)
    return min(key, question.mirrored().key(signature)) if question.kind == "compare" else key


def _positions(calls: Sequence[ModelCall]) -> list[tuple[int, ModelCall]]:
    """Position of each request of a label. A reply that is used again has one below 0, by which it is told from those
    that were paid for now: so the tables are what they were before there were any."""
    return [(place - len(calls) if call.reused else place, call) for place, call in enumerate(calls)]


def _call(row: sqlite3.Row, model: str) -> ModelCall:
    return ModelCall(
        *(row["stage"], bool(row["swapped"]), row["prompt"], row["reply"], row["input_tokens"], row["output_tokens"]),
        *(row["seconds"], row["cost"], row["error"], model, row["position"] < 0),
    )


def _me() -> str:
    """Identifier of this thread of this process, for names of files that no other may write."""
    return f"{os.getpid()}-{threading.get_ident()}"


def _numbers(text: str) -> np.ndarray:
    return np.array([np.nan if value is None else value for value in json.loads(text)], np.float32)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")
