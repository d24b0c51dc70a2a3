"""Asking in the background: every answer is stored before it is used, none is paid for twice, budgets hold."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path

import numpy as np
import pytest

from sightline.errors import RunFailed
from sightline.labels.store import Context, LabelStore
from sightline.labels.types import Answer, ModelCall, Outcome, Question, Teacher, preference
from sightline.preferences.labelling import DEAD, BackgroundLabeller, Budget
from sightline.teachers.human import HumanTeacher
from slow_teacher import COUNT, questions


class Fake(Teacher):
    """Answers by a function of the question's number, some at once; keeps what it was asked."""

    name, signature = "fake", "fake teacher"

    def __init__(
        self, answer: Callable[[int], Answer] = lambda number: preference(float(number % 2)), at_once: int = 1
    ) -> None:
        self._answer, self._at_once = answer, at_once
        self.asked: list[int] = []
        self.ended, self.given_up = 0, 0
        self.after_each: Callable[[int], object] = lambda number: None

    def answers(self, questions: Iterable[Question]) -> Iterator[tuple[int, Answer]]:
        numbered = enumerate(questions)
        try:
            while under_way := list(islice(numbered, self._at_once)):
                for i, question in reversed(under_way):  # in any order
                    number = int(question.segments[0].frames[0, 0, 0, 0])
                    self.asked.append(number)
                    yield i, self._answer(number)
                    self.after_each(number)
        finally:
            self.ended += 1

    def give_up(self) -> None:
        self.given_up += 1


@pytest.fixture
def store(tmp_path: Path) -> Iterator[LabelStore]:
    with LabelStore(tmp_path / "labels") as opened:
        yield opened


def labelling_of(
    teacher: Fake, store: LabelStore, budget: Budget | None = None, run: str = "run"
) -> BackgroundLabeller:
    return BackgroundLabeller(teacher, store, budget or Budget(), run, "task")


def values(answers: Sequence[Answer | None]) -> list[float | None]:
    return [None if answer is None else answer.value for answer in answers]


@pytest.mark.parametrize("at_once", [1, 3, 99])
def test_a_round(store: LabelStore, at_once: int) -> None:
    teacher, arrived = Fake(at_once=at_once), list[int]()
    labelling = BackgroundLabeller(teacher, store, Budget(), "run", "task", arrived.append)
    labelling.ask(questions(7), step=12)
    result = labelling.collect()
    labelling.close()
    assert result is not None
    assert values(result.answers) == [0, 1, 0, 1, 0, 1, 0]
    assert (result.remembered, result.over_budget) == (0, "")
    assert sorted(teacher.asked) == list(range(7))
    assert arrived == [1, 2, 3, 4, 5, 6, 7]
    assert teacher.ended == 1
    labels = store.labels("run")
    assert len(labels) == 7
    assert {(label.context.task, label.context.step, label.teacher) for label in labels} == {("task", 12, "fake")}


def test_another_version_of_the_model_is_told(store: LabelStore) -> None:
    """A provider may route a name to another model; the labels would be of both without a word."""

    def by(model: str) -> Fake:
        call = ModelCall("compare", False, "?", "!", model=model)
        return Fake(lambda number: replace(preference(1.0), exchanges=(call,)))

    told = []
    for asked, model in ((2, "m-1"), (4, "m-1"), (6, "m-2"), (8, "m-2")):
        labelling = labelling_of(by(model), store)
        labelling.ask(questions(asked), step=0)
        result = labelling.collect()
        labelling.close()
        assert result is not None
        told.append(result.other_model)
    assert told[0] == told[1] == told[3] == ""
    assert told[2].startswith("answers come from the model 'm-2' now, and 'm-1' answered before: ")


def test_an_answer_is_stored_before_the_next_is_taken(store: LabelStore) -> None:
    teacher, stored = Fake(at_once=2), list[tuple[int, int]]()
    teacher.after_each = lambda number: stored.append((number, len(store.labels())))
    labelling = labelling_of(teacher, store)
    labelling.ask(questions(4), step=0)
    labelling.collect()
    labelling.close()
    assert stored == [(1, 1), (0, 2), (3, 3), (2, 4)]


@pytest.mark.parametrize("outcome", [Outcome.UNSURE, Outcome.SKIPPED, Outcome.REFUSED, Outcome.UNPARSABLE])
def test_nothing_is_asked_twice(tmp_path: Path, outcome: Outcome) -> None:
    """Not even by another process, nor what taught nothing."""
    teacher = Fake(lambda number: Answer(outcome) if number < 2 else preference(1.0))
    for remembered in (0, 5, 5):
        with LabelStore(tmp_path / "labels") as store:
            labelling = labelling_of(teacher, store, run=f"run {remembered}")
            labelling.ask(questions(5), step=0)
            result = labelling.collect()
            labelling.close()
        assert result is not None
        assert result.remembered == remembered
        assert values(result.answers) == [None, None, 1, 1, 1]
        assert [answer.outcome for answer in result.answers if answer][:2] == [outcome, outcome]
    assert sorted(teacher.asked) == list(range(5))


def test_a_longer_round_asks_the_rest(store: LabelStore) -> None:
    teacher = Fake()
    labelling = labelling_of(teacher, store)
    for count, remembered in ((3, 0), (8, 3)):
        labelling.ask(questions(count), step=0)
        result = labelling.collect()
        assert result is not None
        assert result.remembered == remembered
        assert values(result.answers) == [float(i % 2) for i in range(count)]
    labelling.close()
    assert sorted(teacher.asked) == list(range(8))


def test_other_signatures_are_asked_themselves(store: LabelStore) -> None:
    first, second = Fake(), Fake(lambda number: preference(0.5))
    second.signature = "another prompt"
    for teacher in (first, second):
        labelling = labelling_of(teacher, store)
        labelling.ask(questions(3), step=0)
        result = labelling.collect()
        labelling.close()
        assert result is not None
        assert result.remembered == 0
    assert values(result.answers) == [0.5] * 3


def test_what_failed_is_asked_again(store: LabelStore) -> None:
    broken = [True]
    teacher = Fake(lambda n: Answer(Outcome.FAILED, reason="no network") if broken[0] and n == 1 else preference(1.0))
    labelling = labelling_of(teacher, store)
    labelling.ask(questions(3), step=0)
    result = labelling.collect()
    assert result is not None
    assert values(result.answers) == [1, None, 1]
    broken[0] = False
    labelling.ask(questions(3), step=0)
    result = labelling.collect()
    labelling.close()
    assert result is not None
    assert values(result.answers) == [1, 1, 1]
    assert result.remembered == 2
    assert sorted(teacher.asked) == [0, 1, 1, 2]


def paid(number: int) -> Answer:
    exchanges = tuple(ModelCall("compare", swapped, "?", "!", 70, 30, 0.1, 0.25) for swapped in (False, True))
    return Answer(Outcome.FIRST, 0.0, exchanges=exchanges)


@pytest.mark.parametrize(
    ("budget", "at_once", "answered", "said"),
    [
        (Budget(requests=5), 1, 2, "5 requests"),
        (Budget(requests=6), 1, 3, "6 requests"),
        (Budget(tokens=300), 1, 1, "300 tokens"),
        (Budget(money=1.75), 1, 3, "1.75 in money"),
        (Budget(requests=3), 9, 1, "3 requests"),
        (Budget(tokens=900), 4, 4, "900 tokens"),
        (Budget(requests=20), 1, 10, ""),
        (Budget(requests=20), 9, 10, ""),
        (Budget(requests=19), 9, 9, "19 requests"),
        (Budget(questions=1), 1, 10, ""),
    ],
)
def test_a_budget_ends_a_round_in_its_middle(
    store: LabelStore, budget: Budget, at_once: int, answered: int, said: str
) -> None:
    """No question is begun that would break it, whatever is under way."""
    teacher = Fake(paid, at_once)
    labelling = labelling_of(teacher, store, budget)
    labelling.ask(questions(10), step=0)
    result = labelling.collect()
    assert result is not None
    assert values(result.answers) == [0.0] * answered + [None] * (10 - answered)
    assert result.over_budget == said
    assert len(teacher.asked) == answered == len(store.labels())
    labelling.ask(questions(10), step=1)
    again = labelling.collect()
    labelling.close()
    assert again is not None
    assert values(again.answers) == values(result.answers), "what is remembered is free, and nothing else is asked"
    assert again.remembered == answered
    assert again.over_budget == said
    assert len(teacher.asked) == answered


@pytest.mark.parametrize("at_once", [1, 32])
def test_what_costs_nothing_tells_no_price(store: LabelStore, at_once: int) -> None:
    """The first questions may be about equal frames, which no model is asked about."""
    teacher = Fake(lambda number: paid(number) if number >= 2 else preference(0.5), at_once)
    labelling = labelling_of(teacher, store, Budget(requests=3))
    labelling.ask(questions(32), step=0)
    result = labelling.collect()
    labelling.close()
    assert result is not None
    assert (result.over_budget, teacher.asked) == ("3 requests", [0, 1, 2])


@pytest.mark.parametrize("budget", [Budget(tokens=1_000), Budget(money=2.0)])
def test_a_server_that_reports_no_tokens_is_not_asked_for_ever(store: LabelStore, budget: Budget) -> None:
    silent = ModelCall("compare", False, "", '{"answer": "first"}', 0, 0, 1.0)
    teacher = Fake(lambda number: Answer(Outcome.FIRST, 0.0, exchanges=(silent,)), at_once=4)
    labelling = labelling_of(teacher, store, budget)
    labelling.ask(questions(10), step=0)
    result = labelling.collect()
    labelling.close()
    assert result is not None
    assert "does not say how many tokens" in result.over_budget
    assert teacher.asked == [0]


def test_the_budget_is_that_of_the_run(store: LabelStore) -> None:
    for run in ("one", "two"):
        teacher = Fake(paid)
        teacher.signature = run
        labelling = labelling_of(teacher, store, Budget(requests=4), run)
        labelling.ask(questions(3), step=0)
        result = labelling.collect()
        labelling.close()
        assert result is not None
        assert result.answers.count(None) == 1


def test_stopping_while_waiting_and_collecting_later(store: LabelStore) -> None:
    teacher, gate = Fake(), threading.Event()
    teacher.after_each = lambda number: gate.wait(20)
    labelling = labelling_of(teacher, store)
    labelling.ask(questions(3), step=0)
    looks: list[int] = []

    def should_stop() -> bool:
        looks.append(1)
        return len(looks) >= 2

    assert labelling.collect(should_stop) is None
    assert len(looks) == 2
    gate.set()
    result = labelling.collect()
    labelling.close()
    assert result is not None
    assert None not in result.answers


def test_closing_keeps_what_came_and_begins_with_nothing_more(store: LabelStore) -> None:
    teacher, asked, gate = Fake(), threading.Event(), threading.Event()

    def wait(number: int) -> None:
        asked.set()
        gate.wait(20)

    teacher.after_each = wait
    labelling = labelling_of(teacher, store)
    labelling.ask(questions(9), step=0)
    assert asked.wait(20)
    threading.Timer(0.1, gate.set).start()
    labelling.close()
    assert teacher.given_up == 1
    assert teacher.asked == [0]
    assert len(store.labels()) == 1


def test_the_teachers_failure_is_the_rounds(store: LabelStore) -> None:
    """Also one that looks like the wait's own."""
    for error in (RunFailed("the key is refused"), TimeoutError("the socket")):

        def answer(number: int, error: Exception = error) -> Answer:
            raise error

        labelling = labelling_of(Fake(answer), store)
        labelling.ask(questions(2), step=0)
        with pytest.raises(RunFailed, match=str(error)):
            labelling.collect(lambda: False)
        labelling.close()


def test_people_record_themselves(store: LabelStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sightline.teachers.human.SECOND_THOUGHTS", 0.0)
    monkeypatch.setattr("sightline.teachers.human.POLL", 0.01)
    said: list[str] = []
    teacher = HumanTeacher(store, Context("run", "task"), said.append, timeout=60)
    labelling = BackgroundLabeller(teacher, store, Budget(), "run", "task")
    labelling.ask(questions(2), step=5)
    while len(waiting := store.waiting()) < 2:
        time.sleep(0.01)
    for each in waiting:
        store.record(store.load_question(each), teacher, preference(1.0), each.context)
    result = labelling.collect()
    assert result is not None
    assert values(result.answers) == [1, 1]
    assert len(store.labels()) == 2, "once, not twice"
    labelling.ask(questions(4), step=6)
    while len(store.waiting()) < 2:
        time.sleep(0.01)
    began = time.monotonic()
    labelling.close()
    assert time.monotonic() - began < 30, "nobody waits for people at the end"
    assert len(store.waiting()) == 2, "they may still answer, and the next run finds it"


# -- a process that is killed -----------------------------------------------------------------------------------------


def label(store: Path, asked: Path, seconds: float) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, str(Path(__file__).parent / "slow_teacher.py"), str(store), str(asked), str(seconds)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )


def test_kill_nine_loses_no_label(tmp_path: Path) -> None:
    folder, asked = tmp_path / "labels", tmp_path / "asked"
    process = label(folder, asked, 0.05)
    while not asked.is_file() or len(asked.read_text().split()) < 6:
        assert process.poll() is None, process.communicate()
        time.sleep(0.005)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    before = [int(number) for number in asked.read_text().split()]
    with LabelStore(folder) as store:
        stored = [int(store.segment(kept.segments[0]).frames[0, 0, 0, 0]) for kept in store.labels()]
        assert [kept.answer.value for kept in store.labels()] == [float(number % 2 == 0) for number in stored]
    assert stored == before[: len(stored)]
    assert len(before) - 1 <= len(stored) <= len(before), "all but the one under way"
    asked.unlink()
    process = label(folder, asked, 0)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    remembered, *answers = (float(word) for word in out.split())
    assert remembered == len(stored)
    assert answers == [float(i % 2 == 0) for i in range(COUNT)]
    again = [int(number) for number in asked.read_text().split()]
    assert sorted(stored + again) == list(range(COUNT)), "none is asked twice"
    assert np.isfinite(answers).all()


def test_a_pair_is_not_paid_for_again_the_other_way_round(store: LabelStore) -> None:
    teacher = Fake(paid)
    first, *_ = questions(1)
    turned = [first, first.mirrored()]
    labelling = labelling_of(teacher, store, Budget())
    for step, question in enumerate(turned):
        labelling.ask([question], step)
        result = labelling.collect()
        assert result is not None
        (answer,) = result.answers
        assert answer is not None
        assert (answer.outcome, answer.value) == [(Outcome.FIRST, 0.0), (Outcome.SECOND, 1.0)][step]
    labelling.close()
    assert len(store.labels()) == 1
    assert [exchange.swapped for exchange in answer.exchanges] == [True, False]


def test_a_teacher_that_only_fails_is_not_asked_for_ever(store: LabelStore) -> None:
    teacher = Fake(lambda number: Answer(Outcome.FAILED, reason="nobody there"))
    labelling = labelling_of(teacher, store, Budget())
    labelling.ask(questions(DEAD + 10), step=0)
    result = labelling.collect()
    labelling.close()
    assert result is not None
    assert len(result.answers) - result.answers.count(None) == DEAD


def test_two_processes_on_one_store_pay_for_nothing_twice(tmp_path: Path) -> None:
    asked = tmp_path / "asked"
    program = [sys.executable, str(Path(__file__).parent / "slow_teacher.py"), str(tmp_path / "labels"), str(asked)]
    both = [
        subprocess.Popen([*program, "0.02"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    for process in both:
        out, err = process.communicate(timeout=120)
        assert process.returncode == 0, err
        assert [float(word) for word in out.split()[1:]] == [float(i % 2 == 0) for i in range(COUNT)]
    assert sorted(int(number) for number in asked.read_text().split()) == list(range(COUNT))


def test_claims_are_of_pairs_in_either_order_and_end_with_their_store(tmp_path: Path) -> None:
    first, second = questions(2)
    with LabelStore(tmp_path) as one, LabelStore(tmp_path) as other:
        assert one.claim(first, "teacher")
        assert not other.claim(first, "teacher") and not other.claim(first.mirrored(), "teacher")
        assert not one.claim(first, "teacher")
        assert other.claim(first, "another teacher") and other.claim(second, "teacher")
        other.release(first, "teacher")  # not its own
        assert not other.claim(first, "teacher")
        one.release(first, "teacher")
        assert other.claim(first.mirrored(), "teacher")
        other.close()
        assert one.claim(first, "teacher") and one.claim(second, "teacher")


def test_claims_end_with_their_process(tmp_path: Path) -> None:
    (question,) = questions(1)
    program = """if True:
        import os, sys
        from slow_teacher import questions
        from sightline.labels.store import LabelStore
        assert LabelStore(sys.argv[1]).claim(*questions(1), "teacher")
        print("claimed", flush=True)
        sys.stdin.read()
        """
    command = [sys.executable, "-c", program, str(tmp_path)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with (
        LabelStore(tmp_path) as store,
        subprocess.Popen(command, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}, **pipes) as other,
    ):
        assert other.stdout is not None and other.stdout.readline() == "claimed\n"
        assert not store.claim(question, "teacher")
        other.kill()
        other.wait()
        assert store.claim(question, "teacher")


def test_what_another_asks_in_vain_is_asked_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is waited for, without asking twice meanwhile."""
    first, second = questions(2)
    with LabelStore(tmp_path) as store, LabelStore(tmp_path) as other:
        assert other.claim(first, Fake.signature) and other.claim(second, Fake.signature)
        teacher = Fake()
        labelling = labelling_of(teacher, store, Budget())
        monkeypatch.setattr("sightline.preferences.labelling.POLL", 0.01)
        labelling.ask([first, second], step=0)
        assert labelling.collect(lambda: True) is None and teacher.asked == []
        other.record(first, teacher, preference(1.0), Context("other", "task"))
        other.release(first, Fake.signature)
        other.record(second, teacher, Answer(Outcome.FAILED, reason="lost"), Context("other", "task"))
        other.release(second, Fake.signature)
        result = labelling.collect()
        labelling.close()
    assert result is not None and [answer and answer.value for answer in result.answers] == [1.0, 1.0]
    assert teacher.asked == [1]
