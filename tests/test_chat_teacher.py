"""The chat teacher: what is asked, what becomes of the replies, and all the way to a real server with a real model."""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tiny_vlm
from fault_server import (
    Asked,
    FaultServer,
    Handler,
    Reply,
    answers,
    as_json,
    brighter,
    gemini_429,
    hangs_up,
    not_json,
    nothing_said,
    refusal,
    says,
    silence,
    status,
    thought_too_long,
)
from sightline.errors import BadInput, RunFailed
from sightline.labels.store import Context, LabelStore
from sightline.labels.types import Answer, ModelCall, Outcome, Question, Segment, true_preference
from sightline.models.chat import calling
from sightline.models.chat.local import LocalModel
from sightline.models.chat.messages import ChatModel, ChatRequest, Picture
from sightline.models.chat.openai_compatible import OpenAICompatible
from sightline.models.chat.streaming import stream_async
from sightline.preferences.labelling import BackgroundLabeller, Budget
from sightline.teachers import chat, prompts
from sightline.teachers.chat import ChatTeacher, ChatTeacherConfig, Opinion, both_orders, count_votes, pick_frames

GOAL = ("a bright picture",)


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Failures are tried again after milliseconds."""
    init = calling.Limits.__init__
    monkeypatch.setattr(calling.Limits, "__init__", lambda self, *a, **k: init(self, *a, **{"first_wait": 0.002} | k))


def segment(*brightness: float) -> Segment:
    frames = np.stack([tiny_vlm.grey(b) for b in brightness])
    return Segment(frames, frames.mean((1, 2, 3)).astype(np.float32))


def pair(first: float, second: float, goal: tuple[str, ...] = GOAL) -> Question:
    return Question("compare", (segment(first), segment(second)), goal)


def single(kind: Any, brightness: float = 7, levels: int = 0) -> Question:
    return Question(kind, (segment(brightness),), GOAL, levels)


def teacher_at(server: FaultServer, **settings: Any) -> ChatTeacher:
    settings = {"model": "m", "retries": 2, "timeout": 10} | settings
    return ChatTeacher(url=server.url, **settings)


def answer(reply: Reply, question: Question, **settings: Any) -> Answer:
    with FaultServer(reply) as server:
        ((_, said),) = teacher_at(server, **settings).answers([question])
    return said


def in_turn(*texts: str) -> Reply:
    left = list(texts)
    return lambda asked: left.pop(0)


def chosen(*words: str) -> Reply:
    return in_turn(*(json.dumps({"answer": word}) for word in words))


# -- comparisons -------------------------------------------------------------------------------------------------------


def test_the_nearer_one_is_preferred_whatever_the_order() -> None:
    said = answer(brighter, pair(10, 200))
    assert (said.outcome, said.value) == (Outcome.SECOND, 1.0)
    assert [(e.stage, e.swapped) for e in said.exchanges] == [("compare", False), ("compare", True)]
    assert answer(brighter, pair(200, 10)).value == 0.0


@pytest.mark.parametrize("always", ["first", "second"])
def test_a_teacher_that_always_prefers_one_place_is_found_out(always: str) -> None:
    questions = [pair(i, 250 - i) for i in range(20)]
    with FaultServer(answers(always)) as server:
        said = dict(teacher_at(server).answers(questions))
        assert {(a.outcome, a.value, a.reason) for a in said.values()} == {
            (Outcome.UNSURE, None, "changes with the order")
        }
        believed = dict(teacher_at(server, swap=False).answers(questions))
    assert {a.outcome.value for a in believed.values()} == {always}  # without the swap nobody would notice


def test_the_swapped_request_shows_the_pictures_the_other_way_round() -> None:
    with FaultServer(brighter) as server:
        list(teacher_at(server).answers([pair(10, 200)]))
        shown = [[int(p[0, 0, 0]) for p in asked.pictures] for asked in server.asked]
    assert shown == [[10, 200], [200, 10]]


@pytest.mark.parametrize(
    ("replies", "outcome", "value", "requests"),
    [
        (("first", "second"), Outcome.FIRST, 0.0, 2),
        (("second", "first"), Outcome.SECOND, 1.0, 2),
        (("equal", "equal"), Outcome.EQUAL, 0.5, 2),
        (("first", "equal"), Outcome.UNSURE, None, 2),
        (("equal", "second"), Outcome.UNSURE, None, 2),
        (("first", "unsure"), Outcome.UNSURE, None, 2),
        (("first", "?"), Outcome.UNPARSABLE, None, 2),
        (("unsure",), Outcome.UNSURE, None, 1),  # nothing to confirm: the second request is saved
        (("?",), Outcome.UNPARSABLE, None, 1),
    ],
)
def test_rules_for_both_orders(replies: tuple[str, ...], outcome: Outcome, value: float | None, requests: int) -> None:
    said = answer(chosen(*replies), pair(1, 2))
    assert (said.outcome, said.value, len(said.exchanges)) == (outcome, value, requests)


def test_identical_pictures_are_not_asked_about() -> None:
    with FaultServer() as server:
        ((_, said),) = teacher_at(server).answers([pair(5, 5)])
        assert not server.asked
    assert (said.outcome, said.value, said.reason) == (Outcome.EQUAL, 0.5, "the frames are identical")
    assert said.exchanges == () and said.cost == 0


def test_segments_that_differ_only_where_nobody_looks_are_identical() -> None:
    question = Question("compare", (segment(1, 9), segment(2, 9)), GOAL)
    assert answer(brighter, question).reason == "the frames are identical"
    assert answer(brighter, question, frames=2).exchanges


def test_pairs_of_different_sizes_are_asked_about() -> None:
    small = Segment(np.zeros((1, 4, 4, 3), np.uint8), np.zeros(1, np.float32))
    assert answer(brighter, Question("compare", (small, segment(90)), GOAL)).outcome is Outcome.SECOND


# -- levels and scores -------------------------------------------------------------------------------------------------


def test_levels() -> None:
    assert answer(answers("2"), single("rate", levels=3)).value == 2.0
    assert answer(answers("3"), single("rate", levels=3)).outcome is Outcome.UNPARSABLE
    assert answer(answers("3"), single("rate", levels=4)).outcome is Outcome.VALUE
    assert answer(answers("unsure"), single("rate", levels=4)).outcome is Outcome.UNSURE


def test_scores() -> None:
    said = answer(answers("6"), single("score"))
    assert said.value == pytest.approx(6 / 9) and [e.stage for e in said.exchanges] == ["score"]
    assert answer(answers("10"), single("score")).outcome is Outcome.UNPARSABLE
    assert answer(answers("-1"), single("score")).outcome is Outcome.UNPARSABLE


def test_scores_are_expectations_where_there_are_log_probabilities() -> None:
    with FaultServer(answers("6"), digits={"6": 0.5, "9": 0.3, "0": 0.2}) as server:
        ((_, said),) = teacher_at(server).answers([single("score")])
    assert said.value == pytest.approx((6 * 0.5 + 9 * 0.3) / 9) and said.confidence == pytest.approx(0.5)


# -- stages, votes, frames ---------------------------------------------------------------------------------------------


def test_two_stages_label_from_the_description_alone() -> None:
    reply = in_turn("The first is dark, the second is BRIGHT-AS-DAY.", '{"answer": "second"}')
    with FaultServer(reply) as server:
        ((_, said),) = teacher_at(server, stages=2, swap=False).answers([pair(10, 200)])
        describe, label = server.asked
    assert said.outcome is Outcome.SECOND and [e.stage for e in said.exchanges] == ["describe", "label"]
    assert len(describe.pictures) == 2 and "response_format" not in describe.body
    assert label.pictures == [] and "BRIGHT-AS-DAY" in label.texts[0] and "response_format" in label.body


def test_two_stages_of_levels_and_empty_descriptions() -> None:
    assert answer(in_turn("Half of it is there.", "1"), single("rate", levels=3), stages=2).value == 1.0
    empty = answer(says(" "), pair(1, 2), stages=2)
    assert (empty.outcome, empty.reason) == (Outcome.FAILED, "the reply is empty")


def test_another_model_reads_the_report() -> None:
    report = in_turn("The second is BRIGHT-AS-DAY.", "The first is BRIGHT-AS-DAY.")
    with FaultServer(report) as seer, FaultServer(chosen("second", "first")) as server:
        reader = {"model": "words", "url": server.url, "temperature": 0.5, "max_tokens": 9, "input_price": 1e6}
        teacher = teacher_at(seer, stages=2, reader=reader, output_price=2e6)
        ((_, said),) = teacher.answers([pair(10, 200)])
    assert said.outcome is Outcome.SECOND
    assert [(e.stage, e.swapped) for e in said.exchanges] == [
        (s, o) for o in (False, True) for s in ("describe", "label")
    ]
    assert [len(asked.pictures) for asked in (*seer.asked, *server.asked)] == [2, 2, 0, 0]
    body = server.asked[0].body
    assert (body["model"], body["temperature"]) == ("words", 0.5) and "BRIGHT-AS-DAY" in server.asked[0].texts[0]
    describe, label = said.exchanges[:2]
    assert (describe.cost, label.cost) == (2 * describe.output_tokens, label.input_tokens) and label.input_tokens > 0


def test_a_reader_is_checked_without_a_picture_and_named_where_it_fails() -> None:
    with FaultServer(says("red")) as seer, FaultServer(says("1")) as server:
        teacher = teacher_at(seer, stages=2, reader={"model": "words", "url": server.url})
        teacher.check()
        ((_, said),) = teacher.answers([pair(1, 2)])
        assert [len(asked.pictures) for asked in server.asked] == [0, 0] and seer.asked[0].pictures
    assert said.outcome is Outcome.UNPARSABLE, "a number is none of the words"
    with FaultServer(says("red")) as seer, FaultServer(faults=[thought_too_long["openai"]]) as server:
        teacher = teacher_at(seer, stages=2, reader={"model": "words", "url": server.url})
        with pytest.raises(BadInput, match=r"raise reward\.teacher\.reader\.max_tokens"):
            teacher.check()
    with FaultServer(says("red")) as seer, FaultServer(faults=[status(401)] * 3) as server:
        teacher = teacher_at(seer, stages=2, reader={"model": "words", "url": server.url})
        assert [answer.outcome for _, answer in teacher.answers([pair(1, 2)])] == [Outcome.FAILED]
        assert teacher.exhausted and not teacher._sees.calls.exhausted


def test_a_reader_belongs_to_two_stages_and_to_what_an_answer_is_from() -> None:
    with pytest.raises(ValueError, match="say stages=2"):
        ChatTeacherConfig(kind="chat", model="m", reader={"model": "words"})
    config = ChatTeacherConfig(
        kind="chat", model="m", url="http://localhost:1/v1", stages=2, reader={"model": "words", "input_price": 1}
    )
    config.check_priced()
    assert config.facts() == "chat, m, its reports read by words"
    assert [key for key, _, _ in config.reaches()] == ["reader.provider"], "the other one is on this machine"
    signatures = {
        ChatTeacher("m", stages=2, **others).signature
        for others in (
            {},
            {"reader": {"model": "m"}},
            {"reader": {"model": "n"}},
            {"reader": {"model": "n", "temperature": 1}},
        )
    }
    assert len(signatures) == 4


def test_votes_go_by_the_majority_and_stop_when_it_is_clear() -> None:
    settings = {"votes": 5, "swap": False, "temperature": 1.0}
    said = answer(chosen("first", "second", "first", "first"), pair(1, 2), **settings)
    assert (said.outcome, said.value, said.confidence, len(said.exchanges)) == (Outcome.FIRST, 0.0, 0.75, 4)
    said = answer(chosen("first", "second", "equal", "?", "first"), pair(1, 2), **settings)
    assert said.outcome is Outcome.UNSURE and said.reason.startswith("no majority: 2 first, ")


def test_votes_on_levels_and_scores() -> None:
    settings = {"votes": 3, "temperature": 1.0}
    assert answer(chosen("0", "2", "2"), single("rate", levels=3), **settings).value == 2.0
    assert answer(chosen("0", "1", "2"), single("rate", levels=3), **settings).value == 1.0
    assert answer(chosen("3", "6", "9"), single("score"), **settings).value == pytest.approx(6 / 9)
    assert answer(chosen("3", "?", "unsure"), single("score"), **settings).outcome is Outcome.UNSURE
    assert answer(chosen("9", "?", "0"), single("score"), **settings).value == pytest.approx(0.5)


OUTCOMES = [Outcome.FIRST, Outcome.SECOND, Outcome.EQUAL, Outcome.UNSURE, Outcome.REFUSED, Outcome.FAILED]


@given(st.lists(st.sampled_from(OUTCOMES), min_size=1, max_size=9))
def test_a_majority_is_more_than_half(cast: list[Outcome]) -> None:
    said = count_votes([Opinion(outcome) for outcome in cast], len(cast), "compare")
    most = max(set(cast), key=cast.count)
    if 2 * cast.count(most) > len(cast):
        assert said.outcome is most
    else:
        assert said.outcome is (Outcome.FAILED if Outcome.FAILED in cast else Outcome.UNSURE)


@given(st.sampled_from(OUTCOMES[:3]), st.sampled_from(OUTCOMES))
def test_both_orders_never_make_a_judgement_of_two_different_ones(first: Outcome, second: Outcome) -> None:
    both = both_orders(Opinion(first, confidence=0.9), Opinion(second, confidence=0.5))
    assert (both.outcome is first) == (first is second)
    assert both.confidence == pytest.approx(0.7) or first is not second


@pytest.mark.parametrize(
    ("length", "count", "places"), [(1, 3, [0]), (5, 1, [4]), (5, 2, [0, 4]), (5, 3, [0, 2, 4]), (3, 9, [0, 1, 2])]
)
def test_frames_shown_end_with_the_last(length: int, count: int, places: list[int]) -> None:
    shown = pick_frames(segment(*range(length)), count)
    assert shown[:, 0, 0, 0].tolist() == places


def test_clips_are_shown_in_order_of_time() -> None:
    question = Question("compare", (segment(0, 1, 2, 3, 4), segment(10, 11, 12)), GOAL)
    with FaultServer(answers("first")) as server:
        list(teacher_at(server, frames=3, swap=False).answers([question]))
    assert [int(p[0, 0, 0]) for p in server.asked[0].pictures] == [0, 2, 4, 10, 11, 12]
    assert "The second clip, 3 pictures in order of time:" in server.asked[0].texts


# -- prompts -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("structured", [True, False])
@pytest.mark.parametrize("kind", ["compare", "rate", "score"])
def test_prompts_say_goal_and_form(kind: Any, structured: bool) -> None:
    shown = (segment(1), segment(2))[: 2 if kind == "compare" else 1]
    question = Question(kind, shown, ("a pole upright", "a balanced pole"), 4)
    frames = [[Picture(s.frames[-1])] for s in shown]
    for prompt in (prompts.ask_at_once(question, frames, structured), prompts.label(question, "dark", structured)):
        text = "\n".join(part for part in prompt.parts if isinstance(part, str))
        assert "a pole upright" in text and "a balanced pole" in text
        assert all(word in text for word in prompts.allowed(question))
        assert ("JSON" in text) == structured == (prompt.schema is not None)
    assert prompts.describe(question, frames).schema is None


def test_words_change_only_with_their_version() -> None:
    """If this fails, the words were changed: raise PROMPT_VERSION, then put the new sum here."""
    words = []
    for kind in ("compare", "rate", "score"):
        shown = (segment(1, 2), segment(3, 4))[: 2 if kind == "compare" else 1]
        question = Question(kind, shown, GOAL, 3)  # type: ignore[arg-type]
        for count in (1, 2):
            frames = [[Picture(frame) for frame in s.frames[:count]] for s in shown]
            made = [prompts.describe(question, frames)]
            for structured in (True, False):
                made += [prompts.ask_at_once(question, frames, structured), prompts.label(question, "…", structured)]
            words += [[part if isinstance(part, str) else "#" for part in prompt.parts] for prompt in made]
            words += [prompt.schema for prompt in made]
    total = hashlib.sha256(json.dumps(words).encode()).hexdigest()
    assert (prompts.PROMPT_VERSION, total[:16]) == ("1", "f623417de6818e24")


# -- what is kept of every request -------------------------------------------------------------------------------------


def test_exchanges_carry_tokens_time_and_cost() -> None:
    said = answer(says('{"answer": "first"}'), pair(1, 2), swap=False, input_price=2.0, output_price=10.0)
    (exchange,) = said.exchanges
    assert exchange.input_tokens == 200 + len(exchange.prompt.replace("[picture]", "").split())
    assert exchange.output_tokens == 2
    assert exchange.cost == pytest.approx((exchange.input_tokens * 2.0 + 2 * 10.0) / 1e6)
    assert exchange.seconds > 0 and said.seconds >= exchange.seconds
    assert exchange.prompt.startswith("The first picture:\n[picture]\nThe second picture:\n[picture]\n")
    assert GOAL[0] in exchange.prompt and exchange.reply == '{"answer": "first"}' and exchange.error == ""


def test_every_attempt_is_an_exchange() -> None:
    with FaultServer(brighter, faults=[status(429, retry_after="0"), not_json]) as server:
        ((_, said),) = teacher_at(server, swap=False).answers([pair(10, 200)])
    assert said.outcome is Outcome.SECOND
    assert ["429" in e.error or "no chat completion" in e.error for e in said.exchanges] == [True, True, False]
    assert [bool(e.reply) for e in said.exchanges] == [False, False, True]


def test_failed_refused_unparsable_unsure_and_equal_are_different() -> None:
    def reply(asked: Asked) -> str:
        return {10: "no idea", 20: '{"answer": "unsure"}', 30: '{"answer": "equal"}', 40: "first"}[
            int(min(p.min() for p in asked.pictures))
        ]

    questions = [pair(b, 99) for b in (10, 20, 30, 40)]
    with FaultServer(reply) as server:
        said = dict(teacher_at(server, swap=False).answers(questions))
    with FaultServer(faults=[refusal]) as server:
        ((_, refused),) = teacher_at(server).answers([pair(1, 2)])
    with FaultServer(faults=[status(500, "out of order")] * 3) as server:
        ((_, failed),) = teacher_at(server).answers([pair(1, 2)])
    outcomes = [*(said[i].outcome.value for i in range(4)), refused.outcome.value, failed.outcome.value]
    assert outcomes == ["unparsable", "unsure", "equal", "first", "refused", "failed"]
    assert failed.reason == "the server answers 500 (out of order)" and len(failed.exchanges) == 3
    assert refused.reason == "I will not." and len(refused.exchanges) == 1


def test_replies_that_were_cut_off_say_so() -> None:
    cut = as_json({"choices": [{"message": {"content": '{"reason": "the fi'}, "finish_reason": "length"}]})
    with FaultServer(faults=[cut]) as server:
        ((_, said),) = teacher_at(server, max_tokens=5).answers([pair(1, 2)])
    assert said.outcome is Outcome.FAILED, "so that it is asked again with a higher limit"
    assert said.reason.endswith("it was cut off at the limit of 5 tokens; raise reward.teacher.max_tokens")


@pytest.mark.parametrize("settings", [{}, {"stages": 2}, {"votes": 3, "temperature": 1}])
def test_models_that_think_for_too_long_are_told_from_those_that_say_nothing(settings: dict[str, Any]) -> None:
    with FaultServer(faults=[thought_too_long["openai"]] * 3) as server:
        ((_, said),) = teacher_at(server, **settings).answers([pair(1, 2)])
    assert said.outcome is Outcome.FAILED
    assert "is empty: it was cut off" in said.reason and "reward.teacher.max_tokens" in said.reason
    with FaultServer(faults=[nothing_said]) as server:
        ((_, said),) = teacher_at(server).answers([pair(1, 2)])
    assert (said.outcome, said.reason) == (Outcome.FAILED, "the reply is empty")


def test_a_limit_that_leaves_no_room_for_an_answer_is_noticed_at_once() -> None:
    told = r"says nothing: .* limit of 2048 tokens; raise reward\.teacher\.max_tokens"
    with FaultServer(faults=[thought_too_long["openai"]]) as server, pytest.raises(BadInput, match=told):
        teacher_at(server).check()


def test_several_votes_need_a_temperature() -> None:
    with pytest.raises(ValueError, match="votes=3 needs a temperature above 0, or all votes are the same"):
        ChatTeacherConfig(kind="chat", model="m", votes=3)


def test_signatures_differ_where_answers_may() -> None:
    base: Any = {"model": "m", "url": "http://localhost:8000/v1"}
    plain = ChatTeacher(**base)
    for change in (
        *({"model": "n"}, {"url": "https://elsewhere/v1"}, {"stages": 2}, {"swap": False}, {"frames": 2}),
        *({"url": "https://elsewhere:8000/v1"}, {"url": "http://localhost:8000/a/v1"}, {"temperature": 0.5}),
        *(
            {"votes": 2, "temperature": 0.5},
            {"votes": 3, "temperature": 0.5},
            {"structured": False},
            {"options": {"seed": 1}},
        ),
    ):
        assert ChatTeacher(**base | change).signature != plain.signature
    for same in (
        {"concurrency": 1},
        {"timeout": 1.0},
        {"input_price": 3.0},
        {"insecure_http": True},
        {"url": "http://localhost:8000/v1/"},
        {"url": "http://localhost:8001/v1"},
        {"url": "http://127.0.0.1:8000/v1"},
        {"url": "http://[::1]:80/v1"},
        {"max_tokens": 9},
    ):
        assert ChatTeacher(**base | same).signature == plain.signature
    assert plain.name == "chat m" and f"prompts={prompts.PROMPT_VERSION}" in plain.signature


# -- many questions ----------------------------------------------------------------------------------------------------


def test_every_question_is_answered_once_and_right() -> None:
    rng = np.random.default_rng(0)
    questions = [pair(*rng.integers(0, 256, 2)) for _ in range(60)]
    first, eight = iter(range(8)), threading.Barrier(8)

    def once_eight_are_here(asked: Asked) -> str:
        if next(first, None) is not None:
            eight.wait(timeout=60)
        return brighter(asked)

    with FaultServer(once_eight_are_here) as server:
        said = list(teacher_at(server, concurrency=8).answers(questions))
        assert server.most_at_once == 8
    assert sorted(index for index, _ in said) == list(range(60))
    assert all(a.value == true_preference(*questions[i].segments) for i, a in said)


def test_closing_stops_asking() -> None:
    with FaultServer(brighter, faults=[silence] * 3) as server:
        arriving = teacher_at(server, concurrency=4, swap=False).answers([pair(i, 99) for i in range(50)])
        for _ in range(5):
            next(arriving)
        asked_by_then = len(server.asked)
        arriving.close()  # type: ignore[attr-defined]
        assert asked_by_then <= 3 + 5 + 1 and len(server.asked) <= asked_by_then + 1
    assert "sightline-chat" not in [thread.name for thread in threading.enumerate()]


def given_up_after(teacher: ChatTeacher, questions: list[Question], enough: Any) -> dict[int, Answer]:
    """All answers, of a teacher that is given up by another thread as soon as `enough()`."""

    def watch() -> None:
        while not enough():
            time.sleep(0.002)
        teacher.give_up()

    watching = threading.Thread(target=watch)
    watching.start()
    said = dict(teacher.answers(questions))
    watching.join()
    assert "sightline-chat" not in [thread.name for thread in threading.enumerate()]
    return said


def test_giving_up_lets_what_is_under_way_finish() -> None:
    with FaultServer(brighter, latency=0.2) as server:
        teacher = teacher_at(server, concurrency=3)
        said = given_up_after(teacher, [pair(i, 99) for i in range(20)], lambda: len(server.asked) >= 3)
    assert sorted(said) == [0, 1, 2] and len(server.asked) == 6
    assert [said[i].value for i in range(3)] == [1.0] * 3, "both orders were asked"


def test_giving_up_keeps_what_was_paid_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """One of three is answered, one has the first of two replies, one has none."""

    def reply(asked: Asked) -> str:
        shown = [int(picture[0, 0, 0]) for picture in asked.pictures]
        if shown in ([99, 1], [2, 99]):
            server.closing.wait(30)
        return brighter(asked)

    monkeypatch.setattr(chat, "LONGEST_FAREWELL", 0.3)
    with FaultServer(reply) as server:
        teacher = teacher_at(server, concurrency=3, input_price=1)
        said = given_up_after(teacher, [pair(i, 99) for i in range(3)], lambda: len(server.asked) >= 5)
    assert [said[i].outcome.value for i in range(3)] == ["second", "failed", "failed"]
    assert [said[i].reason for i in (1, 2)] == ["given up"] * 2
    (replied, cancelled), (alone,) = said[1].exchanges, said[2].exchanges
    assert (replied.swapped, replied.error, replied.input_tokens > 200) == (False, "", True) and replied.cost > 0
    assert cancelled.swapped and cancelled.error == alone.error == "given up before a reply came"


def asked_twice(server: FaultServer, folder: Path, question: Question, **settings: Any) -> list[Answer]:
    """Answers to a question that is asked again after it was asked in vain."""
    told = []
    settings = {"retries": 0, "input_price": 1.0, "output_price": 1.0} | settings
    with LabelStore(folder) as store:
        for asked in (question, question):
            labelling = BackgroundLabeller(teacher_at(server, **settings), store, Budget(), "run", "task")
            labelling.ask([asked], step=0)
            result = labelling.collect()
            labelling.close()
            assert result is not None and result.answers[0] is not None
            told.append(result.answers[0])
        spent = store.spent("run")
        assert spent.requests == len(server.asked)
        assert spent.money == pytest.approx(sum(call.cost for said in told for call in said.exchanges))
        assert [label.answer for label in store.labels()] == told
    return told


def test_a_reply_that_was_paid_for_is_used_when_the_other_order_failed(tmp_path: Path) -> None:
    question = pair(10, 200)
    with FaultServer(faults=[None, status(500)]) as server:
        failed, said = asked_twice(server, tmp_path, question)
        assert failed.outcome is Outcome.FAILED and failed.exchanges[0].cost > 0
        assert said.outcome is Outcome.SECOND
        assert [(call.swapped, call.reused, call.cost > 0) for call in said.exchanges] == [
            (False, True, False),
            (True, False, True),
        ]
        assert said.exchanges[0].reply == failed.exchanges[0].reply
    assert [asked.pictures[0].mean() for asked in server.asked] == [10, 200, 200]


def test_a_description_that_was_paid_for_is_used(tmp_path: Path) -> None:
    reply = in_turn("the second is brighter", '{"answer": "second"}', "the first is brighter", '{"answer": "first"}')
    with FaultServer(reply, faults=[None, status(500)]) as server:
        failed, said = asked_twice(server, tmp_path, pair(10, 200), stages=2)
    assert failed.outcome is Outcome.FAILED and said.outcome is Outcome.SECOND
    assert [(call.stage, call.reused) for call in said.exchanges[:2]] == [("describe", True), ("label", False)]


def test_a_reply_outlives_a_process_that_is_killed_before_the_next(tmp_path: Path) -> None:
    """Its cost is counted once, with the answer."""
    question = pair(10, 200)
    prices = {"retries": 0, "input_price": 1.0, "output_price": 1.0}
    with FaultServer() as server, LabelStore(tmp_path) as store:
        teacher = teacher_at(server, **prices)

        def keep(asked: Question, reply: ModelCall) -> None:
            store.keep_reply(asked, teacher.signature, reply)
            raise MemoryError("as if it were killed")

        teacher.keep = keep
        with pytest.raises(MemoryError):
            list(teacher.answers([question]))
        assert len(server.asked) == 1 and store.labels() == []
        labelling = BackgroundLabeller(teacher_at(server, **prices), store, Budget(), "run", "task")
        labelling.ask([question.mirrored()], step=0)
        result = labelling.collect()
        labelling.close()
        assert result is not None and result.answers[0] is not None
        said, spent = result.answers[0], store.spent("run")
        assert said.outcome is Outcome.FIRST and len(server.asked) == 2
        assert (spent.requests, spent.replies) == (2, 2)
        assert spent.tokens == sum(asked.tokens for asked in server.asked) + sum(
            len(c.reply.split()) for c in said.exchanges
        )
        assert store.paid_replies(question, teacher.signature) == []


def test_a_reply_that_was_cut_off_is_not_used_again(tmp_path: Path) -> None:
    cut = as_json({"choices": [{"message": {"content": '{"reason": "the sec'}, "finish_reason": "length"}]})
    with FaultServer(faults=[cut]) as server:
        failed, said = asked_twice(server, tmp_path, pair(10, 200))
    assert failed.outcome is Outcome.FAILED and said.outcome is Outcome.SECOND
    assert not any(call.reused for call in said.exchanges) and len(server.asked) == 3


def quota_of_the_day(handler: Handler) -> None:
    gemini_429("37s", per="Day")(handler)


@pytest.mark.parametrize("fault", [quota_of_the_day, status(429, "Rate limit exceeded: free-models-per-day")])
def test_a_quota_of_the_day_ends_a_round(fault: Any, tmp_path: Path) -> None:
    """What is under way is lost; nobody is asked what nobody will answer, and later the rest is asked."""
    questions = [pair(i, 200) for i in range(1, 9)]
    with FaultServer(faults=[None] * 4 + [fault] * 100) as server, LabelStore(tmp_path) as store:
        labelling = BackgroundLabeller(teacher_at(server, concurrency=2), store, Budget(), "run", "task")
        labelling.ask(questions, step=0)
        result = labelling.collect()
        assert result is not None and "answers no more: a quota is used up" in result.exhausted
        assert len(server.asked) <= 6 and result.over_budget == ""
        known = [answer for answer in result.answers if answer is not None and answer.outcome is not Outcome.FAILED]
        assert known and result.answers.count(None) >= 4
        before, server.faults = len(server.asked), []
        labelling.ask(questions, step=0)
        result = labelling.collect()
        labelling.close()
    assert result is not None and result.exhausted == ""
    assert [answer and answer.outcome for answer in result.answers] == [Outcome.SECOND] * 8
    paid = sum(not call.error for answer in result.answers if answer for call in answer.exchanges)
    assert len(server.asked) - before == paid - 4  # each order of each pair was bought once


def test_a_quota_can_be_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calling, "LONGEST_WAIT", 0.01)
    monkeypatch.setattr(calling, "QUOTA_PAUSE", 0.02)
    lines: list[str] = []
    with FaultServer(faults=[quota_of_the_day] * 12) as server:
        teacher = teacher_at(server, quota="wait", retries=0)
        teacher.say = lines.append
        ((_, said),) = teacher.answers([pair(10, 200)])
    assert said.outcome is Outcome.SECOND and len(server.asked) == 14
    assert lines and all(re.match("waiting 0 minutes: a quota is used up", line) for line in lines)


def test_giving_up_needs_nobody_who_takes_answers() -> None:
    with FaultServer(brighter) as server:
        teacher = teacher_at(server, concurrency=4, swap=False)
        arriving = teacher.answers([pair(i, 99) for i in range(50)])
        next(arriving)
        while len(server.asked) < 4:
            time.sleep(0.002)
        teacher.give_up()
        teacher.give_up()
        assert len(list(arriving)) == 3 and len(server.asked) == 4
    assert "sightline-chat" not in [thread.name for thread in threading.enumerate()]


def test_closing_does_not_wait_for_what_was_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Interviews that are cancelled then become answers, which nobody takes any more."""
    monkeypatch.setattr(chat, "LONGEST_FAREWELL", 1000.0)
    with FaultServer(brighter, faults=[None, silence, silence]) as server:
        teacher = teacher_at(server, concurrency=3, swap=False, timeout=1000)
        arriving = teacher.answers([pair(i, 99) for i in range(50)])
        next(arriving)
        teacher.give_up()
        closing = threading.Thread(target=arriving.close, daemon=True)
        closing.start()
        closing.join(30)
        assert not closing.is_alive()


def test_giving_up_comes_in_time_before_the_beginning_and_harmlessly_after_the_end() -> None:
    with FaultServer(brighter) as server:
        teacher = teacher_at(server)
        teacher.give_up()
        arriving = teacher.answers([pair(1, 2)])
        teacher.give_up()
        assert list(arriving) == [] and server.asked == []
        assert len(list(teacher.answers([pair(1, 2)]))) == 1
        teacher.give_up()


def test_giving_up_does_not_wait_for_ever_in_back_off(monkeypatch: pytest.MonkeyPatch) -> None:
    with FaultServer(faults=[hangs_up] * 2) as server:
        teacher = teacher_at(server, timeout=0.2)
        teacher._sees.calls = calling.RateLimitedClient(calling.Limits(first_wait=100.0))
        said = given_up_after(teacher, [pair(1, 2)], lambda: len(server.asked) >= 1)
    assert (said[0].outcome, said[0].reason) == (Outcome.FAILED, "given up")
    assert ["breaks the connection off" in exchange.error for exchange in said[0].exchanges] == [True]


def test_check_asks_for_everything_that_questions_ask_for() -> None:
    with FaultServer(brighter) as server:
        teacher = teacher_at(server)
        teacher.check()
        list(teacher.answers([single("score")]))
        (probe, question) = server.asked
    assert probe.pictures and set(probe.body) == set(question.body)


def test_what_is_missing_fails_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    teacher = ChatTeacher(model="m")  # making one needs no key
    with pytest.raises(BadInput, match="no key in the environment variable OPENAI_API_KEY"):
        teacher.check()
    with pytest.raises(BadInput, match="OPENAI_API_KEY"):
        list(teacher.answers([pair(1, 2)]))
    monkeypatch.setenv("SOME_KEY", "wrong")
    with FaultServer(key="right") as server, pytest.raises(BadInput, match="refuses the key in SOME_KEY") as told:
        teacher_at(server, key_env="SOME_KEY").check()
    assert "\n" not in str(told.value)
    with FaultServer() as server:
        gone = teacher_at(server)
    with pytest.raises(RunFailed, match="cannot be reached"):
        gone.check()


# -- a real model ------------------------------------------------------------------------------------------------------

PLAIN = {"structured": False, "max_tokens": 8}
BRIGHTNESS = np.random.default_rng(1).uniform(0, 255, (24, 2))
PAIRS = [pair(*two) for two in BRIGHTNESS]


@pytest.fixture(scope="module")
def vlm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model that sees which of two pictures is brighter."""
    folder = tmp_path_factory.mktemp("vlm")
    black = [Picture(tiny_vlm.grey(0))]
    prompt = prompts.ask_at_once(pair(1, 2), [black, black], structured=False)
    tiny_vlm.build_tiny_vlm(folder, [part for part in prompt.parts if isinstance(part, str)])
    return folder


@pytest.fixture(scope="module")
def real_server(vlm: Path) -> Iterator[str]:
    """Address of a `transformers serve` with that model, in a thread of this process."""
    pytest.importorskip("fastapi")
    pytest.importorskip("uvicorn")
    from transformers.cli.serve import Serve

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    server = Serve(force_model=str(vlm), host="127.0.0.1", port=port, device="cpu", non_blocking=True)
    try:
        deadline = time.monotonic() + 600
        while not _listens(port):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        yield f"http://127.0.0.1:{port}/v1"
    finally:
        server.kill_server()


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def tokens_by_pictures(model: ChatModel) -> list[int]:
    """What the model counts as read for the same text with none, one and two pictures."""
    calls = calling.RateLimitedClient(calling.Limits())
    requests = [ChatRequest(("which",) + (Picture(tiny_vlm.grey(9)),) * n, max_tokens=2) for n in (1, 2, 3)]
    made = dict(stream_async(model.connected, calls.attempts, requests, at_once=1))
    return [made[i][-1].reply.input_tokens for i in range(3)]  # type: ignore[union-attr]


def check_answers(said: dict[int, Answer]) -> None:
    """The model sees both pictures: nearly all answers agree in both orders, and those are right."""
    judged = {i: a for i, a in said.items() if a.value is not None}
    assert len(said) == 24 and len(judged) >= 20
    assert {a.reason for i, a in said.items() if i not in judged} <= {"changes with the order"}
    right = [a.value == true_preference(*PAIRS[i].segments) for i, a in judged.items()]
    assert np.mean(right) >= 0.95
    assert {a.value for a in judged.values()} == {0.0, 1.0}


def test_a_real_server_answers_and_its_labels_are_kept(vlm: Path, real_server: str, tmp_path: Path) -> None:
    config = ChatTeacherConfig(kind="chat", model=str(vlm), url=real_server, concurrency=4, **PLAIN)
    teacher = ChatTeacher(**config.model_dump(exclude={"kind"}))
    teacher.check()
    one, two, three = tokens_by_pictures(OpenAICompatible(str(vlm), real_server))
    assert two - one == three - two == (tiny_vlm.SIDE // 8) ** 2  # every picture reaches the model
    with LabelStore(tmp_path) as store:
        for index, said in teacher.answers(PAIRS):
            store.record(PAIRS[index], teacher, said, Context("run", "task", 7))
        kept = store.labels("run")
        spent = store.spent("run")
        assert all(store.find(question, teacher.signature) for question in PAIRS)
    check_answers({[q.key(teacher.signature) for q in PAIRS].index(_key(k, teacher)): k.answer for k in kept})
    assert spent.requests == sum(len(k.answer.exchanges) for k in kept) >= 44
    assert spent.tokens == sum(k.answer.tokens for k in kept) > 0
    for label in kept:
        assert label.teacher == f"chat {vlm}" and f"prompts={prompts.PROMPT_VERSION}" in label.signature
        assert {e.reply for e in label.answer.exchanges} <= {"first", "second"}
        assert all(e.input_tokens > 0 and e.output_tokens == 2 and e.seconds > 0 for e in label.answer.exchanges)


def _key(label: Any, teacher: ChatTeacher) -> str:
    found = next(q for q in PAIRS if tuple(s.digest for s in q.segments) == label.segments)
    return found.key(teacher.signature)


def test_a_real_server_that_serves_another_model_is_noticed(vlm: Path, real_server: str) -> None:
    with pytest.raises(BadInput, match="cannot be asked"):
        ChatTeacher(model="another", url=real_server).check()


def test_a_model_in_this_process_answers_in_batches(vlm: Path) -> None:
    teacher = ChatTeacher(provider="local", model=str(vlm), **PLAIN)
    teacher.check()
    said = dict(teacher.answers(PAIRS))
    check_answers(said)
    assert all(0.5 < a.confidence <= 1 for a in said.values() if a.value is not None and a.confidence)
    alone = ChatTeacher(provider="local", model=str(vlm), concurrency=1, **PLAIN)
    again = dict(alone.answers(PAIRS[:4]))
    for i, answer_alone in again.items():  # padding and company change nothing
        assert answer_alone.value == said[i].value
        assert answer_alone.confidence == pytest.approx(said[i].confidence, abs=1e-4)
    one, two, three = tokens_by_pictures(LocalModel(str(vlm)))
    assert two - one == three - two == (tiny_vlm.SIDE // 8) ** 2


def test_a_model_in_this_process_can_be_interrupted(vlm: Path) -> None:
    model = LocalModel(str(vlm), {"min_new_tokens": 100_000, "device": "cpu"})
    endless = ChatRequest(("which", Picture(tiny_vlm.grey(9))), max_tokens=100_000)

    async def give_up() -> None:
        async with model.connected() as ask:
            asking = asyncio.create_task(ask(endless))  # type: ignore[arg-type]
            await asyncio.sleep(0.3)
            assert not asking.done()
            asking.cancel()

    asyncio.run(give_up())  # waits for the thread that generates: without a way to stop it, for minutes


@pytest.mark.parametrize(
    ("options", "why"), [({"top_p": 0.9}, "no option 'top_p'"), ({"dtype": "float99"}, "dtype must be one of auto,")]
)
def test_options_that_would_do_nothing_here_are_refused(options: dict[str, Any], why: str) -> None:
    with pytest.raises(BadInput, match=f"^provider=local.* {why}"):
        ChatTeacher(provider="local", model="bundled", options=options)


def test_votes_of_a_model_in_this_process_differ(vlm: Path) -> None:
    model = LocalModel(str(vlm), {"device": "cpu", "min_new_tokens": 8})  # an end at once were an empty reply: refused
    request = ChatRequest(("which", Picture(tiny_vlm.grey(9))), temperature=2.0, max_tokens=8)
    calls = calling.RateLimitedClient(calling.Limits())
    made = dict(stream_async(model.connected, calls.attempts, [request] * 8, at_once=4))
    assert len({attempts[-1].reply.text for attempts in made.values()}) > 1  # type: ignore[union-attr]


def test_a_folder_without_a_model_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(BadInput, match="cannot be loaded as an image-text-to-text model or a language model"):
        ChatTeacher(provider="local", model=str(tmp_path)).check()


# -- idempotency keys --------------------------------------------------------------------------------------------------


def keys_sent(server: FaultServer) -> list[str | None]:
    return [asked.headers.get("idempotency-key") for asked in server.asked]


def test_a_request_that_is_sent_again_has_the_same_key_and_no_other_has(tmp_path: Path) -> None:
    """After a failure that may pass, and in a process that was started again: but what failed for good is asked anew,
    and so is each vote."""
    with LabelStore(tmp_path / "labels") as store, FaultServer(answers("unsure")) as server:
        teacher = teacher_at(server, votes=2, temperature=1.0)
        labelling = BackgroundLabeller(teacher, store, Budget(), "run", "task")
        server.faults = [hangs_up, None, None, hangs_up]
        questions = [pair(10, 200), pair(20, 200)]
        dict(teacher.answers(questions[:1]))  # nobody records it: as if it were killed
        dict(teacher.answers(questions[:1]))
        first = keys_sent(server)
        assert first[0] == first[1] == first[3] == first[4] and first[2] == first[5] != first[0]
        dict(teacher.answers(questions[1:]))
        assert not set(keys_sent(server)[6:]) & set(first)
        store.record(questions[0], teacher, Answer(Outcome.FAILED), Context("run", "task"))
        before = len(server.asked)
        dict(teacher.answers(questions[:1]))
        assert not set(keys_sent(server)[before:]) & set(first)
        labelling.close()


def test_no_key_is_sent_without_a_store() -> None:
    with FaultServer(brighter) as server:
        list(teacher_at(server).answers([pair(10, 200)]))
    assert keys_sent(server) == [None, None]
