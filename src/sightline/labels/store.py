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
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import lru_cache
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

DATABASE = "labels.sqlite"
BACKUP = "labels.backup.sqlite"
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

_INSERT_LABEL = """
INSERT INTO labels (
    key, time, run, task, step, teacher, signature, kind, goal, levels, segments, outcome, value, confidence, reason,
    seconds, origin
) VALUES (
    :key, :time, :run, :task, :step, :teacher, :signature, :kind, :goal, :levels, :segments, :outcome, :value,
    :confidence, :reason, :seconds, :origin
)
"""
_INSERT_EXCHANGE = """
INSERT INTO exchanges VALUES (
    :label, :position, :stage, :swapped, :prompt, :reply, :input_tokens, :output_tokens, :seconds, :cost, :error
)
"""
_INSERT_REPLY = """
INSERT INTO replies VALUES (
    :key, :stage, :swapped, :prompt, :reply, :input_tokens, :output_tokens, :seconds, :cost, :model
)
"""
_INSERT_WAITING = """
INSERT OR IGNORE INTO waiting VALUES (
    :key, :position, :teacher, :signature, :run, :task, :step, :kind, :goal, :levels, :segments
)
"""
_LISTED = "(SELECT value FROM json_each(?))"
"""Part of a query: keys that are given as one JSON list, of any length."""

_LABEL = "id, key, time, run, task, step, teacher, signature, kind, goal, levels, segments, origin"
_ANSWER = "outcome, value, confidence, reason, seconds"
_CALL = "position, stage, swapped, prompt, reply, input_tokens, output_tokens, exchanges.seconds, cost, error"
"""Columns of a label, of its answer and of an exchange, in the order in which they are read."""

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


@dataclass(frozen=True, slots=True)
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


@dataclass(frozen=True, slots=True)
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
class WaitingQuestion:
    """Question that waits for a person's answer, without its pixels; `LabelStore.load_question` reads them.

    Attributes:
        key: the question's key, see `Question.key`.
        teacher, signature: of the teacher that was asked.
        segments: digests.
    """

    key: str
    teacher: str
    signature: str
    context: Context
    kind: QuestionKind
    goal: tuple[str, ...]
    levels: int
    segments: tuple[str, ...]


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
            self._database = self._connect(read_only)
        except (FileExistsError, NotADirectoryError) as error:
            raise BadInput(f"'{folder}' is a file; a label store is a folder") from error
        except OSError as error:
            raise BadInput(f"the label store '{folder}' cannot be opened: {error.strerror or error}") from error
        except sqlite3.Error as error:
            raise RunFailed(f"the label store '{folder}' cannot be opened: {error}") from error
        self._database.row_factory = sqlite3.Row
        # A store may be a stranger's: nothing in its schema may call a function.
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
                # Readers do not wait for writers; an answer is on disk when its transaction ends.
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
        # No other thread or process writes to a file of this name.
        writer = f"{os.getpid()}-{threading.get_ident()}"
        temporary = self.folder / f".{BACKUP}.{writer}.writing"
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
                f"SELECT id, {_ANSWER} FROM labels "
                "WHERE key = ? AND retracted IS NULL AND outcome != ? ORDER BY id DESC LIMIT 1",
                (question.key(signature), Outcome.FAILED.value),
            ).fetchone()
            if row is None:
                return None
            label, *answer = row
            return _answer(answer, self._exchanges("SELECT ?", (label,)).get(label, []))

    def claim(self, question: Question, signature: str) -> bool:
        """Claim a question before it is asked, in whichever order; False if somebody else is asking it just now.

        Raises:
            RunFailed: claims cannot be written.
        """
        return self._claims.take(_claim_key(question, signature))

    def release(self, question: Question, signature: str) -> None:
        """Release a claim, once the answer is recorded or given up."""
        self._claims.release(_claim_key(question, signature))

    def keep_reply(self, question: Question, signature: str, reply: ModelCall) -> None:
        """Keep a reply to a question that needs further ones, until the answer is recorded: it is paid for."""
        row = {
            "key": question.key(signature),
            "stage": reply.stage,
            "swapped": reply.swapped,
            "prompt": reply.prompt,
            "reply": reply.reply,
            "input_tokens": reply.input_tokens,
            "output_tokens": reply.output_tokens,
            "seconds": reply.seconds,
            "cost": reply.cost,
            "model": reply.model,
        }
        with self._writing():
            self._database.execute(_INSERT_REPLY, row)

    def paid_replies(self, question: Question, signature: str) -> list[ModelCall]:
        """Replies that came while the question, in whichever order, was asked in vain: they are paid for.

        Those of a process that was killed carry their cost, which is counted nowhere yet.
        """
        replies = self._paid_replies(question.key(signature))
        if question.kind == "compare":
            # The same pair in the other order: its replies serve with their order turned round.
            mirrored = self._paid_replies(question.mirrored().key(signature))
            replies += [replace(reply, swapped=not reply.swapped) for reply in mirrored]
        return replies

    def occasion(self, question: Question, signature: str) -> str:
        """Name of the occasion on which a question, in whichever order, is asked: this store, and how many labels it
        has by now, so that what failed or was retracted is asked anew, and what was cut off by a kill is not."""
        count = 0
        with self._reading():
            for key in _keys_in_any_order(question, signature):
                row = self._database.execute("SELECT COUNT(*) FROM labels WHERE key = ?", (key,)).fetchone()
                count += int(row[0])
        return f"{self.folder.resolve()} {_claim_key(question, signature)} {count}"

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
        # Frames before the label: a label always has its frames, and frames without a label do no harm.
        digests = [self.add_segment(segment) for segment in question.segments]
        key = question.key(teacher.signature)
        row = {
            "key": key,
            "time": time or _now(),
            "run": context.run,
            "task": context.task,
            "step": context.step,
            "teacher": teacher.name,
            "signature": teacher.signature,
            "kind": question.kind,
            "goal": json.dumps(question.goal),
            "levels": question.levels,
            "segments": json.dumps(digests),
            "outcome": answer.outcome.value,
            "value": answer.value,
            "confidence": answer.confidence,
            "reason": answer.reason,
            "seconds": answer.seconds,
            "origin": json.dumps(context.origin),
        }
        with self._writing():
            cursor = self._database.execute(_INSERT_LABEL, row)
            label = int(cursor.lastrowid or 0)
            for index, call in enumerate(answer.exchanges):
                position = index
                if call.reused:
                    # Below 0: so it is told from the replies that were paid for now.
                    position = index - len(answer.exchanges)
                self._database.execute(_INSERT_EXCHANGE, _exchange_row(label, position, call))
                if call.model:
                    self._database.execute("INSERT INTO models VALUES (?,?,?)", (label, position, call.model))
            # The question waits no more, and the replies kept for it are in the label now.
            self._database.execute("DELETE FROM waiting WHERE key = ?", (key,))
            for each in _keys_in_any_order(question, teacher.signature):
                self._database.execute("DELETE FROM replies WHERE key = ?", (each,))
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
            cursor = self._database.execute("UPDATE labels SET retracted = ? WHERE id = ?", (_now(), label))
            if not cursor.rowcount:
                raise BadInput(f"the label store '{self.folder}' has no label {label}")

    def labels(self, run: str | None = None) -> list[StoredLabel]:
        """Labels that were not retracted, of one run or of all, oldest first."""
        chosen = "FROM labels WHERE retracted IS NULL AND (? IS NULL OR run = ?)"
        with self._reading():
            # A query for each table, not for each label: there may be very many.
            exchanges = self._exchanges(f"SELECT id {chosen}", (run, run))
            true_returns: dict[str, float] = {}
            for digest, true_rewards in self._database.execute("SELECT digest, true_rewards FROM segments"):
                true_returns[digest] = float(np.sum(_rewards_of_json(true_rewards)))
            rows = self._database.execute(f"SELECT {_LABEL}, {_ANSWER} {chosen} ORDER BY id", (run, run))
            try:
                return [_stored_label(row, exchanges, true_returns) for row in rows]
            except (ValueError, TypeError, KeyError, RecursionError) as error:
                raise Damaged(
                    f"the label store '{self.folder}' holds a label that is none ({type(error).__name__})"
                ) from error

    def recorded(self) -> list[tuple[str, str, Answer, dict[str, Any]]]:
        """Time, key, answer and origin (see `Context`) of every label ever recorded, retracted or not."""
        with self._reading():
            exchanges = self._exchanges("SELECT id FROM labels")
            rows = self._database.execute(f"SELECT id, time, key, origin, {_ANSWER} FROM labels")
            recorded = []
            for label, time, key, origin, *answer in rows:
                recorded.append((time, key, _answer(answer, exchanges.get(label, [])), json.loads(origin)))
            return recorded

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
        questions, requests, tokens, money, replies = row
        return Spent(int(questions), int(requests), int(tokens), float(money), int(replies))

    def count_answers_of_people(self, after: int = 0) -> tuple[int, int]:
        """Count people's answers, without those retracted, among the labels with an id above `after`.

        Returns:
            The newest of these ids, 0 if there is none, and the number of answers.
        """
        with self._reading():
            newest, count = self._database.execute(
                "SELECT COALESCE(MAX(id), 0), COALESCE(SUM(retracted IS NULL AND outcome != ? "
                "AND (teacher = 'human' OR teacher LIKE 'human %')), 0) FROM labels WHERE id > ?",
                (Outcome.FAILED.value, after),
            ).fetchone()
        return int(newest), int(count)

    # -- segments ------------------------------------------------------------------------------------------------

    def add_segment(self, segment: Segment) -> str:
        """Store a segment's frames, each once; returns its digest.

        Raises:
            BadInput: its frames or true rewards are not as `Segment` says, or too many to be read back.
            RunFailed: they could not be written.
        """
        # What could not be read back is refused before anything is written.
        with _storing():
            segment.check()
            if too_large(segment.frames.shape):
                length, height, width = segment.frames.shape[:3]
                raise ValueError(
                    f"{length} frames of {width}x{height} are too large a segment; take fewer or smaller ones"
                )
        with self._reading():
            row = self._database.execute("SELECT 1 FROM segments WHERE digest = ?", (segment.digest,)).fetchone()
        if row is None:
            try:
                names = [self._frames.add(frame) for frame in segment.frames]
            except OSError as error:
                raise RunFailed(
                    f"the label store cannot keep a frame ({error.strerror or error}); make room"
                ) from error
            rewards = _json_of_rewards(segment.true_rewards)
            with self._writing():
                self._database.execute(
                    "INSERT OR IGNORE INTO segments VALUES (?,?,?)", (segment.digest, json.dumps(names), rewards)
                )
        # A table of its own: stores from before there were states lack it.
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
        return Segment(frames, _rewards_of_json(row["true_rewards"]), self.states(digest))

    def states(self, digest: str) -> np.ndarray | None:
        """States of a segment, see `Segment.states`; None where they are unknown."""
        with self._reading():
            if not self._has_table("states"):
                return None
            row = self._database.execute("SELECT numbers FROM states WHERE digest = ?", (digest,)).fetchone()
        if row is None:
            return None
        return np.array(json.loads(row["numbers"]), np.float32)

    def true_rewards(self, digest: str) -> np.ndarray:
        """True rewards of a segment's steps, from the environment: float32[L]; NaN where unknown."""
        with self._reading():
            row = self._database.execute("SELECT true_rewards FROM segments WHERE digest = ?", (digest,)).fetchone()
        if row is None:
            return np.zeros(0, np.float32)
        return _rewards_of_json(row["true_rewards"])

    def frame_files(self, digest: str) -> list[Path]:
        """The PNG files of a segment's frames, in order."""
        with self._reading():
            row = self._database.execute("SELECT frames FROM segments WHERE digest = ?", (digest,)).fetchone()
        if row is None:
            return []
        return [self._frames.file(name) for name in json.loads(row["frames"])]

    # -- questions that wait for people --------------------------------------------------------------------------

    def wait_for(self, questions: Sequence[Question], teacher: Signed, context: Context) -> None:
        """Queue questions for people to answer; those that wait already keep their place.

        Raises:
            BadInput: a question or its frames are not as their classes say.
        """
        with _storing():
            for question in questions:
                question.check()
        rows: list[dict[str, Any]] = []
        for question in questions:
            digests = [self.add_segment(segment) for segment in question.segments]
            rows.append(
                {
                    "key": question.key(teacher.signature),
                    "teacher": teacher.name,
                    "signature": teacher.signature,
                    "run": context.run,
                    "task": context.task,
                    "step": context.step,
                    "kind": question.kind,
                    "goal": json.dumps(question.goal),
                    "levels": question.levels,
                    "segments": json.dumps(digests),
                }
            )
        with self._writing():
            # Those that wait already keep their place: their key is there, and the new row is ignored.
            (last,) = self._database.execute("SELECT COALESCE(MAX(position), 0) FROM waiting").fetchone()
            for position, row in enumerate(rows, last + 1):
                self._database.execute(_INSERT_WAITING, row | {"position": position})

    def withdraw(self, questions: Sequence[Question], signature: str) -> None:
        """Remove questions from those that wait for people."""
        with self._writing():
            for question in questions:
                self._database.execute("DELETE FROM waiting WHERE key = ?", (question.key(signature),))

    def waiting(self, keys: Collection[str] | None = None) -> list[WaitingQuestion]:
        """Questions that wait for people, in the order in which they were asked: all, or those with these keys."""
        with self._reading():
            if keys is None:
                rows = self._database.execute("SELECT * FROM waiting ORDER BY position, rowid").fetchall()
            else:
                rows = self._database.execute(
                    f"SELECT * FROM waiting WHERE key IN {_LISTED} ORDER BY position, rowid", (json.dumps(list(keys)),)
                ).fetchall()
        return [_waiting_question(row) for row in rows]

    def first_waiting(self, besides: Collection[str] = (), signatures: Collection[str] = ()) -> WaitingQuestion | None:
        """The question that has waited longest, besides those with these keys; None if there is none.

        A queue may hold thousands, and a page polls it: so the others are not read.

        Args:
            signatures: of teachers, whose questions alone count; of all if empty.
        """
        is_theirs, listed = _of_signatures(signatures)
        with self._reading():
            row = self._database.execute(
                f"SELECT * FROM waiting WHERE key NOT IN {_LISTED} {is_theirs} ORDER BY position, rowid LIMIT 1",
                (json.dumps(list(besides)), *listed),
            ).fetchone()
        if row is None:
            return None
        return _waiting_question(row)

    def count_waiting(self, signatures: Collection[str] = ()) -> int:
        """Number of questions that wait for people: of the teachers with these signatures, or of all."""
        is_theirs, listed = _of_signatures(signatures)
        with self._reading():
            # Counted by SQLite without a look at each row, unless some of them are meant.
            where = is_theirs.replace("AND", "WHERE")
            (count,) = self._database.execute(f"SELECT COUNT(*) FROM waiting {where}", listed).fetchone()
        return int(count)

    def load_question(self, waiting: WaitingQuestion) -> Question:
        """Load a question that waits, with its frames.

        Raises:
            BadInput: a frame is missing or damaged.
        """
        segments = tuple(self.segment(digest) for digest in waiting.segments)
        return Question(waiting.kind, segments, waiting.goal, waiting.levels)

    # -- inside --------------------------------------------------------------------------------------------------

    def _connect(self, read_only: bool) -> sqlite3.Connection:
        """Open the database; the threads of this process share the connection, one at a time (`_lock`)."""
        mode = "rwc"
        if read_only:
            mode = "ro"
            has_log_of_changes = (self.folder / f"{DATABASE}-wal").exists()
            # In a folder without write access SQLite cannot lock either. Without a log of changes there is no writer.
            if not has_log_of_changes and not os.access(self.folder, os.W_OK):
                mode = "ro&immutable=1"
        file = (self.folder / DATABASE).absolute()
        return sqlite3.connect(f"file:{quote(str(file))}?mode={mode}", timeout=60, check_same_thread=False, uri=True)

    def _refuse_to_begin_anew(self) -> None:
        """Refuse a folder in which an empty store must not be created, and links to files elsewhere.

        An empty database in the place of a lost one would soon be backed up over the last copy of the labels."""
        has_backup = (self.folder / BACKUP).is_file()  # asked first: another process makes it after the database
        database = self.folder / DATABASE
        journal = self.folder / f"{DATABASE}-journal"
        for name in (DATABASE, f"{DATABASE}-wal", f"{DATABASE}-shm", journal.name, BACKUP, CLAIMS, "frames"):
            file = self.folder / name
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
            finding = self._database.execute("PRAGMA quick_check(1)").fetchone()[0]
        except sqlite3.OperationalError as error:
            raise RunFailed(f"the label store '{self.folder}' cannot be opened: {error}") from error
        except sqlite3.DatabaseError as error:
            finding = str(error)
        if finding != "ok":
            reason = " ".join(str(finding).split())
            advice = f"there is no {BACKUP} to restore it from; name another store"
            if (self.folder / BACKUP).is_file():
                advice = _HOW_TO_RESTORE
            raise BadInput(f"the label database '{self.folder / DATABASE}' is damaged ({reason}); {advice}")
        # 0: from before there was a number, with the same tables.
        number = int(self._database.execute("PRAGMA user_version").fetchone()[0])
        if number not in (0, FORMAT):
            check_format(number, f"the label store '{self.folder}'")

    def _check_schema(self) -> None:
        """Refuse a database with foreign objects: a view that never ends, a trigger that changes labels.

        Raises:
            BadInput: naming it.
        """
        # SQLite keeps the text of a statement that creates something: here it is compared with that of our own.
        with contextlib.closing(sqlite3.connect(":memory:")) as empty_store:
            empty_store.executescript(_SCHEMA)
            our_objects = {(name, " ".join(sql.split())) for name, sql in empty_store.execute(_OBJECTS)}
        for name, sql in self._database.execute(_OBJECTS):
            if (name, " ".join(str(sql).split())) not in our_objects:
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

    def _paid_replies(self, key: str) -> list[ModelCall]:
        """Replies that were paid for when the question with this key was asked in vain, in the order of that key."""
        with self._reading():
            # Replies of labels that failed: the label counts their cost.
            counted_rows = self._database.execute(
                f"SELECT {_CALL}, model FROM exchanges JOIN labels ON labels.id = exchanges.label "
                "LEFT JOIN models USING (label, position) WHERE key = ? AND outcome = ? AND retracted IS NULL "
                "AND error = '' AND position >= 0 ORDER BY labels.id, position",
                (key, Outcome.FAILED.value),
            ).fetchall()
            # Replies to a question that was still being asked when its process ended: nothing counts their cost.
            uncounted_rows = self._database.execute(
                "SELECT 0, stage, swapped, prompt, reply, input_tokens, output_tokens, seconds, cost, '', model "
                "FROM replies WHERE key = ? ORDER BY rowid",
                (key,),
            ).fetchall()
        calls = [replace(_model_call(row), **_COUNTED_BEFORE) for row in counted_rows]
        calls += [_model_call(row) for row in uncounted_rows]
        return calls

    def _exchanges(self, labels: str, parameters: Sequence[Any] = ()) -> dict[int, list[ModelCall]]:
        """Exchanges of the labels whose ids a query gives, by their label, in order."""
        # A store from before versions of models were kept has no table of them.
        model, models = "''", ""
        if self._has_table("models"):
            model, models = "model", "LEFT JOIN models USING (label, position)"
        exchanges: dict[int, list[ModelCall]] = {}
        for label, *call in self._database.execute(
            f"SELECT label, {_CALL}, {model} FROM exchanges {models} WHERE label IN ({labels}) "
            "ORDER BY label, position",
            parameters,
        ):
            exchanges.setdefault(label, []).append(_model_call(call))
        return exchanges


def existing_store(path: Path, trust: bool = False) -> Path:
    """Find the label store that a path names: a store itself, or a run with its own store or its recipe's.

    Args:
        trust: whether the recipe of a run may name a store elsewhere.

    Raises:
        BadInput: there is none, or it is elsewhere and that is not trusted.
    """
    run = RunFolder(path)
    # A stranger's run may hold links that lead elsewhere.
    if run.recipe_file.is_file() and not trust:
        check_plain(path)
    for folder in (path, path / "labels"):
        if (folder / DATABASE).is_file() or (folder / BACKUP).is_file():
            return folder
    if not run.recipe_file.is_file():
        raise BadInput(f"'{path}' is neither a run nor a label store")
    # The recipe may keep labels outside of the run, for several runs to share.
    label_store = for_control(run.recipe()).reward.label_store
    if not label_store or not (Path(label_store) / DATABASE).is_file():
        raise BadInput(f"the run '{path}' has no labels yet")
    elsewhere = Path(label_store)
    if not trust:
        raise BadInput(f"the run '{path}' keeps its labels in '{elsewhere}'; name that store itself")
    return elsewhere


@contextlib.contextmanager
def _storing() -> Iterator[None]:
    """Report data of the wrong form to the caller, as an error of its input."""
    try:
        yield
    except ValueError as error:
        raise BadInput(f"this cannot be stored: {error}") from error


def _keys_in_any_order(question: Question, signature: str) -> list[str]:
    """Keys of a question; a pair has two, for either order."""
    keys = [question.key(signature)]
    if question.kind == "compare":
        keys.append(question.mirrored().key(signature))
    return keys


def _claim_key(question: Question, signature: str) -> str:
    """Key by which a question is claimed: that of either order of a pair, for one answer serves both."""
    return min(_keys_in_any_order(question, signature))


def _exchange_row(label: int, position: int, call: ModelCall) -> dict[str, Any]:
    return {
        "label": label,
        "position": position,
        "stage": call.stage,
        "swapped": call.swapped,
        "prompt": call.prompt,
        "reply": call.reply,
        "input_tokens": call.input_tokens,
        "output_tokens": call.output_tokens,
        "seconds": call.seconds,
        "cost": call.cost,
        "error": call.error,
    }


def _answer(values: Sequence[Any], exchanges: Sequence[ModelCall]) -> Answer:
    """Answer from the columns `_ANSWER`."""
    outcome, value, confidence, reason, seconds = values
    return Answer(Outcome(outcome), value, confidence, reason, tuple(exchanges), seconds)


def _model_call(values: Sequence[Any]) -> ModelCall:
    """Exchange from the columns `_CALL` and the model's version, None if that is unknown."""
    position, stage, swapped, prompt, reply, input_tokens, output_tokens, seconds, cost, error, model = values
    return ModelCall(
        stage,
        bool(swapped),
        _one_copy(prompt),
        reply,
        input_tokens,
        output_tokens,
        seconds,
        cost,
        error,
        model or "",
        reused=position < 0,
    )


@lru_cache(maxsize=1024)
def _one_copy(text: str) -> str:
    """The text itself, and for an equal one the same object: many questions are asked in the same words."""
    return text


def _stored_label(
    row: Sequence[Any], exchanges: Mapping[int, Sequence[ModelCall]], true_returns: Mapping[str, float]
) -> StoredLabel:
    """Label from the columns `_LABEL` and `_ANSWER`.

    Args:
        exchanges: by the id of their label.
        true_returns: by the digest of their segment.
    """
    label, key, time, run, task, step, teacher, signature, kind, goal, levels, digests, origin, *answer = row
    segments = tuple(json.loads(digests))
    return StoredLabel(
        id=label,
        key=key,
        time=time,
        # Most labels say nothing of it, and there may be very many.
        context=Context(run, task, step, {} if origin == "{}" else json.loads(origin)),
        teacher=teacher,
        signature=signature,
        kind=kind,
        goal=_goal_of_json(goal),
        levels=levels,
        segments=segments,
        true_returns=tuple(true_returns[digest] for digest in segments),
        answer=_answer(answer, exchanges.get(label, ())),
    )


@lru_cache(maxsize=1024)
def _goal_of_json(text: str) -> tuple[str, ...]:
    """Goal of a label; most labels of a store have the same."""
    return tuple(json.loads(text))


def _of_signatures(signatures: Collection[str]) -> tuple[str, list[str]]:
    """Part of a query that leaves only questions to teachers with these signatures, and its parameter; both empty for
    all."""
    if not signatures:
        return "", []
    return f"AND signature IN {_LISTED}", [json.dumps(list(signatures))]


def _waiting_question(row: sqlite3.Row) -> WaitingQuestion:
    return WaitingQuestion(
        key=row["key"],
        teacher=row["teacher"],
        signature=row["signature"],
        context=Context(row["run"], row["task"], row["step"]),
        kind=row["kind"],
        goal=tuple(json.loads(row["goal"])),
        levels=row["levels"],
        segments=tuple(json.loads(row["segments"])),
    )


def _json_of_rewards(rewards: np.ndarray) -> str:
    """True rewards as a JSON list; NaN, which JSON does not have, is null."""
    return json.dumps([None if np.isnan(reward) else float(reward) for reward in rewards])


def _rewards_of_json(text: str) -> np.ndarray:
    return np.array([np.nan if reward is None else reward for reward in json.loads(text)], np.float32)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")
