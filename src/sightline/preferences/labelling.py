"""Questions are asked in the background, and every answer is in the label store before it is used."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import closing
from dataclasses import dataclass

from sightline.config import Budget
from sightline.labels.store import Context, LabelStore
from sightline.labels.types import Answer, Question, Teacher
from sightline.teachers.human import HumanTeacher

POLL = 0.2
"""Seconds between two looks at whether the run shall stop."""


@dataclass(frozen=True)
class Answers:
    """What came of a round of questions.

    Attributes:
        answers: one for each question, None where it was not asked because the budget was reached.
        remembered: how many of them were in the store already, and cost nothing.
        over_budget: which limit was reached, in words; empty if none.
    """

    answers: list[Answer | None]
    remembered: int
    over_budget: str = ""


class Labelling:
    """Asks one teacher, one round at a time.

    Args:
        teacher: who is asked.
        store: remembers every answer; what it remembers is not asked again.
        budget: what may be spent over the run.
        run, task: for the store's records.
        arrived: told how many answers of the round there are, after each; from another thread.
    """

    def __init__(
        self,
        teacher: Teacher,
        store: LabelStore,
        budget: Budget,
        run: str,
        task: str,
        arrived: Callable[[int], None] = lambda count: None,
    ) -> None:
        self.teacher, self.store = teacher, store
        self._budget, self.run, self._task, self._arrived = budget, run, task, arrived
        self._worker = ThreadPoolExecutor(max_workers=1, thread_name_prefix="labelling")
        self._round: Future[Answers] | None = None
        self._given_up = False
        self.context = Context(run, task)
        """Of the present round."""

    def ask(self, questions: Sequence[Question], step: int) -> None:
        """Begin to ask a round of questions."""
        self.context = Context(self.run, self._task, step)
        self._round = self._worker.submit(self._answer, list(questions), self.context)

    def collect(self, should_stop: Callable[[], bool] = lambda: False) -> Answers | None:
        """Wait for the round's answers; None if told to stop before (the round goes on and can be collected later)."""
        assert self._round is not None, "a round was asked"
        while not wait([self._round], POLL).done:
            if should_stop():
                return None
        return self._round.result()

    def close(self) -> None:
        """Give up what is still being asked; what was answered is in the store."""
        self._given_up = True
        self.teacher.give_up()
        self._worker.shutdown(wait=True, cancel_futures=True)

    def _answer(self, questions: list[Question], context: Context) -> Answers:
        answers = [self.store.find(question, self.teacher.signature) for question in questions]
        new = [i for i, answer in enumerate(answers) if answer is None]
        remembered = len(questions) - len(new)
        taken: list[int] = []
        came = 0

        def affordable() -> Iterator[Question]:
            for i in new:
                if self._given_up or self._reached(under_way=len(taken) - came):
                    return
                taken.append(i)
                yield questions[i]

        with closing(self.teacher.answers(affordable())) as arriving:
            for number, answer in arriving:
                i = taken[number]
                if not isinstance(self.teacher, HumanTeacher):
                    self.store.record(questions[i], self.teacher, answer, context)
                answers[i] = answer
                came += 1
                self._arrived(remembered + came)
        return Answers(answers, remembered, self._reached() if None in answers else "")

    def _reached(self, under_way: int = 0) -> str:
        """Which limit of the budget is reached, in words; every question under way costs one request at least."""
        spent, budget = self.store.spent(self.run), self._budget
        if budget.requests is not None and spent.requests + under_way >= budget.requests:
            return f"{spent.requests} of {budget.requests} requests"
        if budget.tokens is not None and spent.tokens >= budget.tokens:
            return f"{spent.tokens} of {budget.tokens} tokens"
        if budget.money is not None and spent.money >= budget.money:
            return f"{spent.money:.2f} of {budget.money:.2f} in money"
        return ""
