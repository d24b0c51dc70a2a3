"""Label queue of the label page: leases waiting questions to browser tabs, and records or undoes their answers."""

from __future__ import annotations

import contextlib
import json
import math
import sqlite3
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

from sightline.errors import RunFailed
from sightline.labels.store import DATABASE, Context, LabelStore
from sightline.labels.types import Answer, Outcome, Question, QuestionKind, preference

LEASE = 90.0
"""Lease time in seconds of a question that a tab shows; even a page in the background renews it earlier."""
LONGEST = 24 * 3600.0
"""Maximum plausible time for one answer, in seconds; longer times are cut to this."""

_FIRST = "ORDER BY position, rowid"
_LISTED = "(SELECT value FROM json_each(?))"
"""Parts of queries: the order in which questions are asked, and keys that are given as one JSON list."""

Said = Literal["left", "right", "equal", "unsure", "skip", "value"]


class NotWaiting(Exception):
    """Raised for a question that was already answered elsewhere, or withdrawn."""


@dataclass(frozen=True)
class PendingQuestion:
    """Waiting question as the label queue handles it, without its pixels.

    Attributes:
        segments: digests of its segments.
    """

    key: str
    teacher: str
    signature: str
    context: Context
    kind: QuestionKind
    goal: tuple[str, ...]
    levels: int
    segments: tuple[str, ...]

    @property
    def swapped(self) -> bool:
        """True if the second segment is shown on the left: a random bit taken from the key, so that it is the same in
        every tab, after a reload and after an undo."""
        return len(self.segments) == 2 and int(self.key[-1], 16) % 2 == 1


@dataclass
class TabSession:
    """Session of one browser tab: its answers (id and question), newest last, and the seconds they took."""

    labels: list[tuple[int, PendingQuestion]] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)


@dataclass
class _OnBehalf:
    """Name and signature of the teacher that a waiting question was asked of, to record its answer under."""

    name: str
    signature: str


class LabelQueue:
    """Label queue: hands out waiting questions and records people's answers. Threads may share it.

    Args:
        store: the label store with the waiting questions.
        who: the person's name, recorded with each answer.
    """

    def __init__(self, store: LabelStore, who: str) -> None:
        self.store = store
        self.who = who
        self._lock = threading.RLock()
        self._leases: dict[str, tuple[str, float]] = {}
        self._sittings: dict[str, TabSession] = {}
        self._counted = self._total = 0
        """The newest label that was counted, and the number of people's answers up to it."""

    @property
    def answered(self) -> int:
        """Number of answers of all tabs, without those undone."""
        with self._lock:
            return sum(len(sitting.labels) for sitting in self._sittings.values())

    def next(self, tab: str) -> dict[str, Any]:
        """Next question for a tab, as plain data, with its progress; `question` is None if none waits.

        A tab keeps its question until it answers. Otherwise it gets the first that no other tab shows, or, if all are
        shown somewhere, the first.
        """
        with self._lock:
            self._forget_leases(tab)
            chosen = self._choose(tab)
            if chosen is not None:
                self._leases[chosen.key] = (tab, time.monotonic() + LEASE)
            return {"question": None if chosen is None else self._shown(chosen), **self._progress(tab)}

    def hold(self, tab: str, key: str) -> dict[str, Any]:
        """Renew a tab's lease; `held` says whether the question still waits."""
        with self._lock:
            held = bool(self._slips("WHERE key = ?", key))
            if held and self._leases.get(key, (tab, 0.0))[0] == tab:
                self._leases[key] = (tab, time.monotonic() + LEASE)
            return {"held": held, **self._progress(tab)}

    def answer(self, tab: str, key: str, said: Said, value: float | None, seconds: float) -> dict[str, Any]:
        """Record an answer; returns the tab's next question.

        Args:
            value: for `said` = `value`: the level, or the score from 0 to 1.
            seconds: how long the person looked.

        Raises:
            NotWaiting: it was answered already, or withdrawn.
            ValueError: the answer does not fit the kind of question.
            RunFailed: it could not be written.
        """
        with self._lock:
            slip = next(iter(self._slips("WHERE key = ?", key)), None)
            if slip is None:
                raise NotWaiting
            seconds = min(max(seconds, 0.0), LONGEST) if math.isfinite(seconds) else 0.0
            meant = _meant(slip, said, value)
            answer = Answer(meant.outcome, meant.value, seconds=seconds)
            origin = {"who": self.who, "shown": "swapped" if slip.swapped else "as asked"}
            context = Context(slip.context.run, slip.context.task, slip.context.step, origin)
            label = self.store.record(self._question(slip), _OnBehalf(slip.teacher, slip.signature), answer, context)
            sitting = self._sittings.setdefault(tab, TabSession())
            sitting.labels.append((label, slip))
            sitting.seconds.append(seconds)
            self._leases.pop(key, None)
            return self.next(tab)

    def undo(self, tab: str) -> dict[str, Any]:
        """Undo this tab's last answer and show its question again; `undone` says whether there was one.

        Raises:
            RunFailed: the store could not be written.
        """
        with self._lock:
            sitting = self._sittings.get(tab)
            if sitting is None or not sitting.labels:
                return {"undone": False, **self.next(tab)}
            label, slip = sitting.labels[-1]
            # Queued first: if this process dies in between, the question is asked once more rather than lost.
            self.store.wait_for([self._question(slip)], _OnBehalf(slip.teacher, slip.signature), slip.context)
            self.store.retract(label)
            self._total -= label <= self._counted
            sitting.labels.pop()
            sitting.seconds.pop()
            self._leases = {key: lease for key, lease in self._leases.items() if lease[0] != tab}
            self._leases[slip.key] = (tab, time.monotonic() + LEASE)
            return {"undone": True, **self.next(tab)}

    # -- inside --------------------------------------------------------------------------------------------------

    def _choose(self, tab: str) -> PendingQuestion | None:
        """The question that the tab has, else the first that no other has, else the first."""
        mine = [key for key, (holder, _) in self._leases.items() if holder == tab]
        others = [key for key, (holder, _) in self._leases.items() if holder != tab]
        first = f"{_FIRST} LIMIT 1"
        for condition, *values in (
            (f"WHERE key IN {_LISTED}", json.dumps(mine)),
            (f"WHERE key NOT IN {_LISTED} {first}", json.dumps(others)),
            (first,),
        ):
            slips = self._slips(condition, *values)
            if slips:
                return slips[0]
        return None

    def _forget_leases(self, tab: str) -> None:
        """Forget leases that are over, or whose questions wait no more."""
        leased = self._slips(f"WHERE key IN {_LISTED}", json.dumps(list(self._leases)))
        now, waiting = time.monotonic(), {slip.key for slip in leased}
        self._leases = {
            key: (holder, until) for key, (holder, until) in self._leases.items() if key in waiting and until > now
        }
        mine = [key for key, (holder, _) in self._leases.items() if holder == tab]
        for key in mine[1:]:
            del self._leases[key]

    def _shown(self, slip: PendingQuestion) -> dict[str, Any]:
        frames = [[f"/frames/{file.name}" for file in self.store.frame_files(digest)] for digest in slip.segments]
        return {
            "key": slip.key,
            "kind": slip.kind,
            "goal": slip.goal,
            "levels": slip.levels,
            "segments": frames[::-1] if slip.swapped else frames,
        }

    def _progress(self, tab: str) -> dict[str, Any]:
        sitting = self._sittings.get(tab, TabSession())
        seconds = sum(sitting.seconds) / len(sitting.seconds) if sitting.seconds else None
        done = len(sitting.labels)
        waiting, total = self._counts()
        return {"done": done, "waiting": waiting, "total": total, "seconds": seconds, "who": self.who}

    def _question(self, slip: PendingQuestion) -> Question:
        segments = tuple(self.store.segment(digest) for digest in slip.segments)
        return Question(slip.kind, segments, slip.goal, slip.levels)

    # `LabelStore.waiting` reads every frame of every question, and a queue may hold thousands: a page that is polled
    # wants the questions that it asks for only.

    def _slips(self, condition: str, *values: str) -> list[PendingQuestion]:
        """The waiting questions that satisfy the rest of a query."""
        with self._reading() as database:
            rows = database.execute(f"SELECT * FROM waiting {condition}", values).fetchall()
        return [
            PendingQuestion(
                *(row["key"], row["teacher"], row["signature"], Context(row["run"], row["task"], row["step"])),
                *(row["kind"], tuple(json.loads(row["goal"])), row["levels"], tuple(json.loads(row["segments"]))),
            )
            for row in rows
        ]

    def _counts(self) -> tuple[int, int]:
        """Number of waiting questions, and of people's answers in the store.

        Answers are counted once, and then those that are new; others that are undone elsewhere meanwhile stay counted.
        """
        with self._reading() as database:
            (waiting,) = database.execute("SELECT COUNT(*) FROM waiting").fetchone()
            (newest, total) = database.execute(
                "SELECT COALESCE(MAX(id), 0), COALESCE(SUM(retracted IS NULL AND outcome != ? "
                "AND (teacher = 'human' OR teacher LIKE 'human %')), 0) FROM labels WHERE id > ?",
                (Outcome.FAILED.value, self._counted),
            ).fetchone()
        self._counted, self._total = max(self._counted, newest), self._total + total
        return int(waiting), self._total

    @contextlib.contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection]:
        try:
            database = sqlite3.connect(self.store.folder / DATABASE, timeout=60)
            with contextlib.closing(database):
                database.row_factory = sqlite3.Row
                yield database
        except sqlite3.Error as error:
            raise RunFailed(f"the label store '{self.store.folder}' cannot be read: {error}") from error


def _meant(slip: PendingQuestion, said: Said, value: float | None) -> Answer:
    """Convert what a person chose on the page to an answer in the question's own order of segments."""
    if said == "unsure":
        return Answer(Outcome.UNSURE)
    if said == "skip":
        return Answer(Outcome.SKIPPED)
    if slip.kind == "compare":
        if said == "equal":
            return preference(0.5)
        if said in ("left", "right"):
            return preference(float((said == "right") != slip.swapped))
    elif said == "value" and value is not None and math.isfinite(value):
        if slip.kind == "rate" and value in range(slip.levels):
            return Answer(Outcome.VALUE, float(value))
        if slip.kind == "score" and 0 <= value <= 1:
            return Answer(Outcome.VALUE, float(value))
    raise ValueError(f"'{said}' is no answer to a question of kind '{slip.kind}'")
