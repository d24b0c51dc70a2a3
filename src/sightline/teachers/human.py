"""Human teacher: questions are queued in the label store, and answers taken as the label page records them."""

from __future__ import annotations

import shlex
import threading
import time
from collections.abc import Callable, Generator, Iterable
from typing import ClassVar, Literal

from pydantic import PositiveFloat

from sightline.labels.store import Context, LabelStore
from sightline.labels.types import Answer, Outcome, Question, Teacher
from sightline.teachers.base import TeacherConfig, TeacherContext, TeacherRunContext

POLL = 0.5
"""Polling interval of the store, in seconds."""
SECOND_THOUGHTS = 3.0
"""Delay in seconds before an answer is passed on, so that an undo usually comes before it is used."""
PEOPLE_SEE = (224, 224)
"""Default frame size (height, width) for people and chat models, unless the recipe says otherwise."""


class HumanTeacherConfig(TeacherConfig):
    """Recipe block of the human teacher, which waits for people at the label page: `sightline label serve RUN`."""

    kind: Literal["human"] = "human"
    name: str = "human"
    timeout: PositiveFloat = 3600.0
    """Seconds to wait for a round of answers; then training goes on with those that came."""

    lags: ClassVar[bool] = True
    shown_size: ClassVar[tuple[int, int] | None] = PEOPLE_SEE

    def facts(self) -> str:
        if self.name == "human":
            return "human"
        return f"human, {self.name}"

    def build(self, context: TeacherContext) -> None:
        return None

    def in_run(self, context: TeacherRunContext) -> HumanTeacher:
        return HumanTeacher(context.store, context.context, context.say, name=self.name, timeout=self.timeout)


class HumanTeacher(Teacher):
    """Human teacher: waits for people at the label page, which may be served by another process.

    The page records people's answers under this teacher's signature; questions not answered in time are recorded here.
    """

    records_itself = True

    def __init__(
        self,
        store: LabelStore,
        context: Context | Callable[[], Context],
        say: Callable[[str], None],
        *,
        name: str = "human",
        timeout: float = 3600.0,
    ) -> None:
        """
        Args:
            store: the label store, with the waiting questions and their answers.
            context: the context to record with a question, or a function that returns it when the question is asked.
            say: tells the user one line.
            name: the person's name.
            timeout: seconds to wait for a round of answers.
        """
        self.name = "human" if name == "human" else f"human {name}"
        self.signature = f"human name={name}"
        self._timeout = timeout
        self._store = store
        self._context = context
        self._say = say
        self._said = False
        self._given_up = threading.Event()

    def answers(self, questions: Iterable[Question]) -> Generator[tuple[int, Answer]]:
        """Yield (index, answer) as people answer; after the timeout, FAILED for all that is left.

        Questions that time out no longer wait. After `give_up` nothing more comes, and what is open goes on waiting:
        people may answer while nothing runs, and a later run finds their answers.

        Raises:
            RunFailed: the store cannot be written.
        """
        questions = list(questions)
        context = self._context() if callable(self._context) else self._context
        # Not those answered by an earlier run, or while nothing ran.
        unanswered = [question for question in questions if self._find(question) is None]
        self._store.wait_for(unanswered, self, context)
        if unanswered:
            self._say_where(len(unanswered))
        open_questions = dict(enumerate(questions))
        answer_times: dict[int, float] = {}  # index of a question -> when its answer was first seen
        start = time.monotonic()
        try:
            while open_questions and not self._given_up.is_set():
                now = time.monotonic()
                is_over = now - start >= self._timeout
                for i, question in list(open_questions.items()):
                    answer = self._find(question)
                    if answer is None:
                        # Not answered, or undone: then its next answer is waited for as long again.
                        answer_times.pop(i, None)
                    if answer is None and is_over:
                        answer = self._nobody_answered(now - start)
                        self._store.record(question, self, answer, context)
                    if answer is not None and (is_over or now - answer_times.setdefault(i, now) >= SECOND_THOUGHTS):
                        del open_questions[i]
                        yield i, answer
                if open_questions:
                    remaining = self._timeout - (time.monotonic() - start)
                    self._wait(min(POLL, max(0.0, remaining)))
        finally:
            # Those given up go on waiting: people may answer while nothing runs.
            if not self._given_up.is_set():
                self._store.withdraw(list(open_questions.values()), self.signature)

    def give_up(self) -> None:
        """Stop waiting; called from another thread than the one that takes the answers."""
        self._given_up.set()

    def _wait(self, seconds: float) -> None:
        self._given_up.wait(seconds)

    def _find(self, question: Question) -> Answer | None:
        return self._store.find(question, self.signature)

    def _nobody_answered(self, seconds: float) -> Answer:
        return Answer(Outcome.FAILED, reason=f"nobody answered within {self._timeout:g} s", seconds=seconds)

    def _say_where(self, count: int) -> None:
        if self._said:
            return
        folder = self._store.folder
        # A run is what people know; its store is a folder in it.
        if folder.name == "labels" and (folder.parent / "recipe.yaml").is_file():
            folder = folder.parent
        waiting = "1 question waits" if count == 1 else f"{count} questions wait"
        self._say(f"{waiting} for people; in another terminal: sightline label serve {shlex.quote(str(folder))}")
        self._said = True
