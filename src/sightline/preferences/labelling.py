"""Background labelling: ask a teacher in a thread, and store every answer before it is used."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

from pydantic import PositiveFloat, PositiveInt

from sightline.config.basics import Strict
from sightline.errors import RunFailed
from sightline.labels.store import Context, LabelStore, Spent
from sightline.labels.types import Answer, Outcome, Question, Teacher, checked_answers, unanswered

POLL = 0.2
"""Seconds between two checks for a request to stop."""
DEAD = 10
"""Failures in a row after which no further question of the round is begun."""


class Budget(Strict):
    """Query budget: no question is begun that would exceed it if it cost as much as others did, and training goes on
    with the labels that there are. (What a question costs is known after the first, which is asked alone.)"""

    questions: PositiveInt = 600
    """Questions over the whole run that a reply came to, whatever it said."""
    requests: PositiveInt | None = None
    tokens: PositiveInt | None = None
    money: PositiveFloat | None = None
    """Cost limit in the currency of the teacher's prices."""


@dataclass(frozen=True)
class Answers:
    """Answers to a round of questions.

    Attributes:
        answers: one for each question, None where it was not asked because the budget was reached.
        remembered: how many of them were in the store already, and cost nothing.
        over_budget: which limit was reached, in words; empty if none.
        other_model: that another version of the model answers than before, in a line; empty if not.
        exhausted: why the teacher answers no more for now, though there are questions left; empty if it does.
        failing: that questions were given up because so many in a row failed, and why; empty if not.
    """

    answers: list[Answer | None]
    remembered: int
    over_budget: str = ""
    other_model: str = ""
    exhausted: str = ""
    failing: str = ""

    @property
    def failures(self) -> list[str]:
        """Reasons of the questions that failed."""
        return [answer.reason for answer in self.answers if answer is not None and answer.outcome is Outcome.FAILED]


@dataclass
class _Round:
    """Questions that are being asked.

    Attributes:
        answers: those that there are by now, None for the others.
        elsewhere: places of questions that somebody else on the same store is asking just now.
        reached: limit of the budget that was reached, in words; empty while none is.
        exhausted: why the teacher answers no more for now; empty while it does.
        failures: reasons of the latest failures, in a row.
    """

    questions: list[Question]
    context: Context
    answers: list[Answer | None]
    elsewhere: list[int] = field(default_factory=list)
    reached: str = ""
    exhausted: str = ""
    failures: list[str] = field(default_factory=list)

    def unanswered(self) -> list[int]:
        return [i for i, answer in enumerate(self.answers) if answer is None]


class BackgroundLabeller:
    """Labeller that asks one teacher in the background, one round at a time.

    Args:
        teacher: who is asked.
        store: remembers every answer; what it remembers is not asked again.
        budget: what may be spent over the run.
        run, task, origin: for the store's records; see `Context`.
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
        origin: Mapping[str, Any] | None = None,
    ) -> None:
        self.teacher = teacher
        self.store = store
        self.run = run
        # What the teacher may ask of the store: replies to parts of a question are paid for only once.
        teacher.recall = lambda question: store.paid_replies(question, teacher.signature)
        teacher.occasion = lambda question: store.occasion(question, teacher.signature)
        teacher.keep = lambda question, reply: store.keep_reply(question, teacher.signature, reply)
        self._budget = budget
        self._task = task
        self._arrived = arrived
        self._worker = ThreadPoolExecutor(max_workers=1, thread_name_prefix="labelling")
        self._round: Future[Answers] | None = None
        self._given_up = False
        self._spent = Spent()
        self._origin = dict(origin or {})
        self.context = Context(run, task)
        """Context of the present round: the run, its task and the step."""

    def ask(self, questions: Sequence[Question], step: int) -> None:
        """Begin to ask a round of questions."""
        self.context = Context(self.run, self._task, step, self._origin)
        self._round = self._worker.submit(self._answer, list(questions), self.context)

    def collect(self, should_stop: Callable[[], bool] = lambda: False) -> Answers | None:
        """Wait for the round's answers; None if told to stop before (the round goes on and can be collected later)."""
        assert self._round is not None, "a round was asked"
        while not wait([self._round], POLL).done:
            if should_stop():
                return None
        return self._round.result()

    @property
    def is_busy(self) -> bool:
        """True while a round is being asked."""
        return self._round is not None and not self._round.done()

    def close(self) -> None:
        """Give up what is still being asked; what was answered is in the store."""
        self._given_up = True
        self.teacher.give_up()
        self._worker.shutdown(wait=True, cancel_futures=True)

    def _answer(self, questions: list[Question], context: Context) -> Answers:
        """Ask a round of questions, those that the store remembers no answer to; runs in the worker's thread."""
        asking = _Round(questions, context, [self._remembered(question) for question in questions])
        new = asking.unanswered()
        remembered = len(questions) - len(new)
        before = self.store.models(self.teacher.signature)
        if self._is_limited:
            self._spent = self.store.spent(self.run)
        while new and not self._is_over(asking):
            # What a question costs is not known before one was asked: with a budget, questions are asked one by one
            # until then. (Some cost nothing: two equal pictures need no request.)
            count = 1 if self._is_limited and self._spent.questions == 0 else len(new)
            self._ask_while_affordable(new[:count], asking)
            new = new[count:]
            if not new and asking.elsewhere:
                # What somebody else is asking is waited for, and asked here only if they fail.
                time.sleep(POLL)
                new = asking.elsewhere
                asking.elsewhere = []
        since = [name for name in self.store.models(self.teacher.signature) if name not in before]
        is_whole = all(answer is not None and answer.outcome is not Outcome.FAILED for answer in asking.answers)
        return Answers(
            asking.answers,
            remembered,
            over_budget=asking.reached if None in asking.answers else "",
            other_model=_other_model([*before], since),
            exhausted="" if is_whole else asking.exhausted,
            failing=_failing(asking),
        )

    def _is_over(self, asking: _Round) -> bool:
        """Whether no further question of a round is to be begun."""
        return bool(asking.reached or asking.exhausted) or self._given_up or len(asking.failures) >= DEAD

    def _ask_while_affordable(self, places: list[int], asking: _Round) -> None:
        """Ask the questions at these places of a round and fill in their answers."""
        # Places of the questions that the teacher has drawn from `affordable`, in the order in which it numbers them.
        begun_places: list[int] = []
        signature = self.teacher.signature

        def affordable() -> Iterator[Question]:
            for i in places:
                # Before each question: what those that are under way will cost counts, too.
                under_way = sum(asking.answers[j] is None for j in begun_places)
                asking.reached = asking.reached or self._reached(under_way)
                asking.exhausted = self.teacher.exhausted
                if self._is_over(asking):
                    return
                question = asking.questions[i]
                # Claimed, so that no two runs on one store pay for the same question.
                if not (self.teacher.records_itself or self.store.claim(question, signature)):
                    asking.elsewhere.append(i)
                    continue
                # Another run on the same store may have asked meanwhile.
                asking.answers[i] = self._remembered(question)
                if asking.answers[i] is None:
                    begun_places.append(i)
                    yield question
                else:
                    self.store.release(question, signature)

        try:
            with closing(checked_answers(self.teacher, affordable())) as arriving:
                for number, answer in arriving:
                    i = begun_places[number]
                    if self.teacher.exhausted and not answer.exchanges and answer.outcome is Outcome.FAILED:
                        continue  # it was begun, and never asked
                    if not self.teacher.records_itself:
                        # Stored before it is used: a run that is killed has lost no answer.
                        self.store.record(asking.questions[i], self.teacher, answer, asking.context)
                        self._spent = self._spent.with_calls(answer.exchanges)
                        self.store.release(asking.questions[i], signature)
                    asking.answers[i] = answer
                    if answer.outcome is Outcome.FAILED:
                        asking.failures = [*asking.failures, answer.reason]
                    else:
                        asking.failures = []
                    self._arrived(len(asking.answers) - asking.answers.count(None))
            asking.exhausted = self.teacher.exhausted
            missing = sum(asking.answers[i] is None and i not in asking.elsewhere for i in places)
            if missing and not self._is_over(asking):
                raise RunFailed(unanswered(self.teacher, missing, len(places)))
        finally:
            # A claim that stays would have other runs wait for an answer that never comes.
            for i in begun_places:
                self.store.release(asking.questions[i], signature)

    def _remembered(self, question: Question) -> Answer | None:
        """This teacher's stored answer to the question, or to the same pair in the other order."""
        answer = self.store.find(question, self.teacher.signature)
        if answer is not None or question.kind != "compare":
            return answer
        mirrored = self.store.find(question.mirrored(), self.teacher.signature)
        return None if mirrored is None else mirrored.mirrored()

    @property
    def _is_limited(self) -> bool:
        """True if the budget limits what the teacher's model costs, and not the number of questions alone."""
        budget = self._budget
        return not (self.teacher.records_itself or budget.requests == budget.tokens == budget.money is None)

    def _reached(self, under_way: int) -> str:
        """Limit of the budget that one more question would exceed, in words, if it and what is under way cost as much
        as questions of this run usually do."""
        if not self._is_limited:
            return ""
        costs = self._spent
        budget = self._budget
        if costs.replies and not costs.tokens and (budget.tokens or budget.money):
            return "the server does not say how many tokens it reads and writes; set budget.requests instead"
        # Growth of the costs, if each question costs what those so far did on average.
        growth = (costs.questions + under_way + 1) / max(costs.questions, 1)
        if budget.requests is not None and costs.requests * growth > budget.requests:
            return f"{budget.requests} requests"
        if budget.tokens is not None and costs.tokens * growth > budget.tokens:
            return f"{budget.tokens} tokens"
        if budget.money is not None and costs.money * growth > budget.money:
            return f"{budget.money:g} in money"
        return ""


def _failing(asking: _Round) -> str:
    """The line that says that a round was given up; empty if it was not."""
    count = len(asking.failures)
    if count < DEAD:
        return ""
    return f"{count} questions in a row failed, the last because {asking.failures[-1]}"


def _other_model(before: Sequence[str], since: Sequence[str]) -> str:
    """The line that says that other versions of a model answer than before; empty if none does."""
    if not since or len(before) + len(since) == 1:
        return ""
    former = f"{len(since)} versions have answered"
    if before:
        former = f"'{before[-1]}' answered before"
    return (
        f"answers come from the model '{since[-1]}' now, and {former}: the labels are of both; name a version that "
        "lasts (reward.teacher.model), or ask anew into another store (reward.label_store)"
    )
