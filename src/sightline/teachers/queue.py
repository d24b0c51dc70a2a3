"""Label queue of the label page: leases waiting questions to browser tabs, and records or undoes their answers."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any, Literal

from sightline.labels.store import Context, LabelStore, WaitingQuestion
from sightline.labels.types import Answer, Outcome, RecordedTeacher, preference

LEASE = 90.0
"""Lease time in seconds of a question that a tab shows; even a page in the background renews it earlier."""
SUCCESS = "success "
"""Beginning of the signature of whoever is asked whether the goal is reached, on two levels: 0 not, 1 reached."""
LONGEST = 24 * 3600.0
"""Maximum plausible time for one answer, in seconds; longer times are cut to this."""

Choice = Literal["left", "right", "equal", "unsure", "skip", "value"]
"""What a person can choose on the page."""


class NotWaiting(Exception):
    """Raised for a question that was already answered elsewhere, or withdrawn."""


@dataclass
class TabSession:
    """Session of one browser tab: its answers (id and question), newest last, and the seconds they took."""

    labels: list[tuple[int, WaitingQuestion]] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)


@dataclass
class _QuestionLease:
    """A question that a tab shows, and until when no other tab gets it, by `time.monotonic`."""

    tab: str
    until: float


class LabelQueue:
    """Label queue: hands out waiting questions and records people's answers. Threads may share it.

    Args:
        store: the label store with the waiting questions.
        who: the person's name, recorded with each answer.
        signatures: of the teachers whose questions are handed out; of all if empty.
    """

    def __init__(self, store: LabelStore, who: str, signatures: Collection[str] = ()) -> None:
        self.store = store
        self.who = who
        self._signatures = signatures
        self._lock = threading.RLock()
        self._leases: dict[str, _QuestionLease] = {}
        """Key of a question -> its lease."""
        self._sessions: dict[str, TabSession] = {}
        self._newest_counted = 0
        """Id of the newest label that was counted."""
        self._answer_count = 0
        """Number of people's answers up to that label."""

    @property
    def answered(self) -> int:
        """Number of answers of all tabs, without those undone."""
        with self._lock:
            return sum(len(session.labels) for session in self._sessions.values())

    def next(self, tab: str) -> dict[str, Any]:
        """Next question for a tab, as plain data, with its progress; `question` is None if none waits.

        A tab keeps its question until it answers. Otherwise it gets the first that no other tab shows, or, if all are
        shown somewhere, the first.
        """
        with self._lock:
            self._forget_leases(tab)
            waiting = self._choose(tab)
            question = None
            if waiting is not None:
                self._lease(tab, waiting.key)
                question = self._page_question(waiting)
            return {"question": question, **self._progress(tab)}

    def hold(self, tab: str, key: str) -> dict[str, Any]:
        """Renew a tab's lease; `held` says whether the question still waits."""
        with self._lock:
            is_waiting = bool(self.store.waiting([key]))
            lease = self._leases.get(key)
            if is_waiting and (lease is None or lease.tab == tab):
                self._lease(tab, key)
            return {"held": is_waiting, **self._progress(tab)}

    def answer(self, tab: str, key: str, choice: Choice, value: float | None, seconds: float) -> dict[str, Any]:
        """Record an answer; returns the tab's next question.

        Args:
            value: for the choice `value`: the level, or the score from 0 to 1.
            seconds: how long the person looked.

        Raises:
            NotWaiting: it was answered already, or withdrawn.
            ValueError: the answer does not fit the kind of question.
            RunFailed: it could not be written.
        """
        with self._lock:
            candidates = self.store.waiting([key])
            if not candidates:
                raise NotWaiting
            (waiting,) = candidates
            # The page measures the time; what a browser sends may be anything.
            seconds = min(max(seconds, 0.0), LONGEST) if math.isfinite(seconds) else 0.0
            judgement = _judgement(waiting, choice, value)
            answer = Answer(judgement.outcome, judgement.value, seconds=seconds)
            order = "swapped" if is_shown_swapped(waiting) else "as asked"
            origin = {"who": self.who, "shown": order}
            context = Context(waiting.context.run, waiting.context.task, waiting.context.step, origin)
            # Recorded under the teacher that was asked, which looks for its answers there.
            teacher = RecordedTeacher(waiting.teacher, waiting.signature)
            label = self.store.record(self.store.load_question(waiting), teacher, answer, context)
            session = self._sessions.setdefault(tab, TabSession())
            session.labels.append((label, waiting))
            session.seconds.append(seconds)
            self._leases.pop(key, None)
            return self.next(tab)

    def undo(self, tab: str) -> dict[str, Any]:
        """Undo this tab's last answer and show its question again; `undone` says whether there was one.

        Raises:
            RunFailed: the store could not be written.
        """
        with self._lock:
            session = self._sessions.get(tab)
            if session is None or not session.labels:
                return {"undone": False, **self.next(tab)}
            label, waiting = session.labels[-1]
            teacher = RecordedTeacher(waiting.teacher, waiting.signature)
            # Queued first: if this process dies in between, the question is asked once more rather than lost.
            self.store.wait_for([self.store.load_question(waiting)], teacher, waiting.context)
            self.store.retract(label)
            if label <= self._newest_counted:
                self._answer_count -= 1
            session.labels.pop()
            session.seconds.pop()
            # The tab shows this question again, and no longer the one that it showed meanwhile.
            self._leases = {key: lease for key, lease in self._leases.items() if lease.tab != tab}
            self._lease(tab, waiting.key)
            return {"undone": True, **self.next(tab)}

    # -- inside --------------------------------------------------------------------------------------------------

    def _lease(self, tab: str, key: str) -> None:
        self._leases[key] = _QuestionLease(tab, time.monotonic() + LEASE)

    def _choose(self, tab: str) -> WaitingQuestion | None:
        """The question that the tab has, else the first that no other has, else the first."""
        own_keys = [key for key, lease in self._leases.items() if lease.tab == tab]
        own_questions = self.store.waiting(own_keys)
        if own_questions:
            return own_questions[0]
        shown_elsewhere = [key for key, lease in self._leases.items() if lease.tab != tab]
        shown_nowhere = self.store.first_waiting(shown_elsewhere, self._signatures)
        return shown_nowhere or self.store.first_waiting(signatures=self._signatures)

    def _forget_leases(self, tab: str) -> None:
        """Forget leases that are over, or whose questions wait no more; a tab keeps its first only."""
        now = time.monotonic()
        waiting_keys = {waiting.key for waiting in self.store.waiting(list(self._leases))}
        self._leases = {key: lease for key, lease in self._leases.items() if key in waiting_keys and lease.until > now}
        own_keys = [key for key, lease in self._leases.items() if lease.tab == tab]
        for key in own_keys[1:]:
            del self._leases[key]

    def _page_question(self, waiting: WaitingQuestion) -> dict[str, Any]:
        """A question as the page shows it: the addresses of each segment's frames, from left to right."""
        addresses: list[list[str]] = []
        for digest in waiting.segments:
            files = self.store.frame_files(digest)
            addresses.append([f"/frames/{file.name}" for file in files])
        if is_shown_swapped(waiting):
            addresses.reverse()
        return {
            "key": waiting.key,
            "kind": waiting.kind,
            "goal": waiting.goal,
            "levels": waiting.levels,
            "success": waiting.signature.startswith(SUCCESS),
            "segments": addresses,
        }

    def _progress(self, tab: str) -> dict[str, Any]:
        session = self._sessions.get(tab, TabSession())
        mean_seconds = None
        if session.seconds:
            mean_seconds = sum(session.seconds) / len(session.seconds)
        return {
            "done": len(session.labels),
            "waiting": self.store.count_waiting(self._signatures),
            "total": self._count_answers(),
            "seconds": mean_seconds,
            "who": self.who,
        }

    def _count_answers(self) -> int:
        """Number of people's answers in the store.

        Answers are counted once, and then those that are new: a page that is polled does not count thousands again.
        Those that are undone elsewhere meanwhile stay counted.
        """
        newest, count = self.store.count_answers_of_people(after=self._newest_counted)
        self._newest_counted = max(self._newest_counted, newest)
        self._answer_count += count
        return self._answer_count


def is_shown_swapped(waiting: WaitingQuestion) -> bool:
    """True if the second segment is shown on the left: a random bit taken from the key, so that it is the same in every
    tab, after a reload and after an undo."""
    return len(waiting.segments) == 2 and int(waiting.key[-1], 16) % 2 == 1


def _judgement(waiting: WaitingQuestion, choice: Choice, value: float | None) -> Answer:
    """Convert what a person chose on the page to an answer in the question's own order of segments."""
    if choice == "unsure":
        return Answer(Outcome.UNSURE)
    if choice == "skip":
        return Answer(Outcome.SKIPPED)
    if waiting.kind == "compare":
        if choice == "equal":
            return preference(0.5)
        if choice in ("left", "right"):
            # Left is the first segment, unless they are shown the other way round.
            is_second = (choice == "right") != is_shown_swapped(waiting)
            return preference(float(is_second))
    elif choice == "value" and value is not None and math.isfinite(value):
        if waiting.kind == "rate" and value in range(waiting.levels):
            return Answer(Outcome.VALUE, float(value))
        if waiting.kind == "score" and 0 <= value <= 1:
            return Answer(Outcome.VALUE, float(value))
    raise ValueError(f"'{choice}' is no answer to a question of kind '{waiting.kind}'")
