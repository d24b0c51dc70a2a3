"""Statistics of teachers against numbers worked out by hand, the page that shows them, and the command."""

from __future__ import annotations

import html
import itertools
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sightline.evaluation.agreement import (
    Calibration,
    cohens_kappa,
    disputes,
    share,
    statistics,
    teacher_names,
)
from sightline.labels.store import Context, LabelStore, StoredLabel
from sightline.labels.types import Answer, ModelCall, Outcome, Question, preference
from sightline.reports.labels_page import table, write_labels_page
from test_label_store import Judge, pair, segment

pytestmark = pytest.mark.plots

FIRST, SECOND, EQUAL = Outcome.FIRST, Outcome.SECOND, Outcome.EQUAL
FLIP = {FIRST: SECOND, SECOND: FIRST}


_KEYS = itertools.count()


def label(
    outcome: Outcome,
    returns: tuple[float, ...] = (0.0, 1.0),
    segments: Sequence[str] = ("a", "b"),
    teacher: str = "t",
    origin: dict[str, Any] | None = None,
    key: str = "",
    **of_answer: Any,
) -> StoredLabel:
    """A stored answer to a question of its own; the segment `b` is better unless the returns say otherwise."""
    kind = "compare" if len(segments) == 2 else "rate"
    answer = Answer(outcome, **of_answer)
    context = Context("run", "task", None, origin or {})
    return StoredLabel(
        1,
        key or f"key {next(_KEYS)}",
        "time",
        context,
        teacher,
        f"{teacher} v1",
        kind,
        ("g",),
        3,
        tuple(segments),
        returns,
        answer,
    )  # type: ignore[arg-type]


def only(labels: list[StoredLabel], **options: Any) -> Any:
    (teacher,) = statistics(labels, **options).teachers
    return teacher


def test_accuracy_counts_decided_pairs_that_differ() -> None:
    labels = [label(SECOND) for _ in range(6)] + [label(FIRST) for _ in range(2)] + [label(FIRST, (3.0, 1.0))]
    labels += [label(FIRST, (1.0, 1.0)), label(FIRST, (math.nan, 1.0)), label(EQUAL), label(Outcome.UNSURE)]
    teacher = only(labels)
    assert (teacher.accuracy.count, teacher.accuracy.of) == (7, 9)
    assert (teacher.accuracy.low, teacher.accuracy.high) == pytest.approx((0.4526, 0.9368), abs=1e-4)  # Wilson's
    assert (teacher.equal.count, teacher.equal.of) == (1, 12)
    assert teacher.outcomes == {"second": 6, "first": 5, "equal": 1, "unsure": 1}
    assert teacher.labels == 13


def test_a_question_that_was_bought_twice_counts_once() -> None:
    call = ModelCall("compare", False, "", "", 10, 1, 1.0, 0.5)
    labels = [label(SECOND, key=f"{n}", exchanges=(call,)) for n in range(8)]
    labels += [label(SECOND if n else FIRST, key=f"{n}", exchanges=(call,)) for n in range(8)]  # 0: the latest counts
    labels += [label(Outcome.FAILED, key="1"), label(Outcome.FAILED, key="8"), label(Outcome.FAILED, key="8")]
    found = statistics(labels)
    (teacher,) = found.teachers
    assert (found.labels, teacher.labels) == (9, 9)
    assert (teacher.accuracy.count, teacher.accuracy.of) == (7, 8)
    assert (teacher.accuracy.low, teacher.accuracy.high) == (
        share([True] * 7 + [False]).low,
        share([True] * 7 + [False]).high,
    )
    assert teacher.outcomes == {"second": 7, "first": 1, "failed": 1}
    assert (teacher.cost, teacher.requests, teacher.tokens) == (8.0, 16, 176)  # all of it was paid


def test_nothing_known_is_nothing_claimed() -> None:
    teacher = only([label(Outcome.FAILED), label(SECOND, (math.nan, math.nan))])
    assert teacher.accuracy == share([])
    assert (teacher.accuracy.rate, teacher.accuracy.low, teacher.accuracy.high) == (None, 0.0, 1.0)
    assert (teacher.bins, teacher.calibration, teacher.rank_correlation) == ((), None, None)
    assert (teacher.cost_per_correct, teacher.median_seconds) == (None, None)
    assert statistics([]).teachers == ()


def test_accuracy_by_difference_has_ten_equal_bins() -> None:
    # differences 1 to 100; wrong below 21, right above
    labels = [label(FIRST if d <= 20 else SECOND, (0.0, float(d))) for d in range(1, 101)]
    teacher = only(labels)
    assert [found.accuracy.rate for found in teacher.bins] == [0.0] * 2 + [1.0] * 8
    assert [found.accuracy.of for found in teacher.bins] == [10] * 10
    assert [found.middle for found in teacher.bins] == [5.5 + 10 * i for i in range(10)]
    assert teacher.bins[0].low == 1 and teacher.bins[-1].high == 100
    # a third of the way from 1 to 100 is 34, two thirds are 67
    assert (teacher.hardest.count, teacher.hardest.of) == (14, 34)
    assert (teacher.easiest.count, teacher.easiest.of) == (34, 34)


def test_bins_are_the_same_for_all_teachers_and_equal_differences_share_one() -> None:
    labels = [label(SECOND, (0.0, 1.0)) for _ in range(50)] + [label(FIRST, (0.0, 5.0), teacher="u") for _ in range(50)]
    one, other = statistics(labels).teachers
    assert [(found.low, found.high, found.accuracy.of) for found in one.bins] == [(1.0, 3.0, 50)]
    assert [(found.low, found.high, found.accuracy.of) for found in other.bins] == [(3.0, 5.0, 50)]
    (alone,) = only(labels[:50]).bins
    assert (alone.low, alone.high, alone.accuracy.count) == (1.0, 1.0, 50)


def test_kappa_of_cohens_textbook_table() -> None:
    # 20 yes/yes, 5 yes/no, 10 no/yes, 15 no/no: observed 0.7, by chance 0.5, so 0.4
    first = ["yes"] * 25 + ["no"] * 25
    second = ["yes"] * 20 + ["no"] * 5 + ["yes"] * 10 + ["no"] * 15
    assert cohens_kappa(first, second) == pytest.approx(0.4)
    assert cohens_kappa(first, first) == 1.0
    assert cohens_kappa(["a", "b"], ["b", "a"]) == -1.0
    assert cohens_kappa(["a"] * 3, ["a"] * 3) is None
    assert cohens_kappa([], []) is None


def test_teachers_are_compared_on_what_both_judged_in_either_order() -> None:
    table = [(FIRST, FIRST, 20), (FIRST, SECOND, 5), (SECOND, FIRST, 10), (SECOND, SECOND, 15)]
    labels, n = [], 0
    for one, other, count in table:
        for _ in range(count):
            n += 1
            segments = (f"{n}a", f"{n}b")
            labels.append(label(one, segments=segments, teacher="one"))
            if n % 2:  # the other was shown the same pair the other way round
                labels.append(label(FLIP[other], segments=segments[::-1], teacher="other"))
            else:
                labels.append(label(other, segments=segments, teacher="other"))
    labels.append(label(FIRST, segments=("x", "y"), teacher="one"))  # judged by one only
    labels.append(label(Outcome.UNSURE, segments=("x", "y"), teacher="other"))
    (found,) = statistics(labels).between
    assert (found.first, found.second) == ("one", "other")
    assert (found.same.count, found.same.of) == (35, 50)
    assert found.kappa == pytest.approx(0.4)


def test_the_latest_answer_of_each_counts_between_teachers() -> None:
    labels = [label(FIRST, teacher="one"), label(SECOND, teacher="one"), label(SECOND, teacher="other")]
    (found,) = statistics(labels).between
    assert (found.same.count, found.same.of) == (1, 1)


def test_levels_are_compared_too() -> None:
    levels = [(0.0, 0.2), (1.0, 1.0), (2.0, 1.9), (2.0, 0.0)]
    labels = []
    for i, (one, other) in enumerate(levels):
        labels.append(label(Outcome.VALUE, (0.0,), (f"s{i}",), "one", value=one))
        labels.append(label(Outcome.VALUE, (0.0,), (f"s{i}",), "other", value=other))
    (found,) = statistics(labels).between
    assert (found.same.count, found.same.of) == (3, 4)
    assert found.kappa == pytest.approx((3 / 4 - 5 / 16) / (1 - 5 / 16))  # by chance (1*2 + 1*1 + 2*1) / 16


def test_ratings_are_ranked_against_the_true_return() -> None:
    values, returns = [0.0, 1.0, 1.0, 2.0, 2.0], [1.0, 3.0, 2.0, 5.0, 4.0]
    labels = [label(Outcome.VALUE, (r,), (f"s{r}",), value=v) for v, r in zip(values, returns, strict=True)]
    labels.append(label(Outcome.VALUE, (math.nan,), ("s",), value=0.0))
    labels.append(label(Outcome.UNSURE, (9.0,), ("u",)))
    # ranks 1, 2.5, 2.5, 4.5, 4.5 against 1, 3, 2, 5, 4: covariance 9, variances 9 and 10
    assert only(labels).rank_correlation == pytest.approx(9 / math.sqrt(90))


def test_calibration() -> None:
    answers = [(SECOND, 0.9), (SECOND, 0.95), (FIRST, 1.0), (FIRST, 0.6), (SECOND, 0.6)]
    labels = [label(outcome, confidence=confidence) for outcome, confidence in answers]
    labels += [label(SECOND), label(EQUAL, confidence=0.5), label(SECOND, (1.0, 1.0), confidence=0.5)]
    # the bin of 0.9 and more: 2 right of 3 at confidence 2.85; the bin of 0.6: 1 of 2 at 1.2
    brier = (0.1**2 + 0.05**2 + 1 + 0.6**2 + 0.4**2) / 5
    found = only(labels).calibration
    assert found == Calibration(5, pytest.approx((0.85 + 0.2) / 5), pytest.approx(brier))  # type: ignore[arg-type]


def test_cost_per_correct_label_and_latency() -> None:
    paid = (ModelCall("compare", False, "", "", 100, 10, cost=0.5),)
    labels = [label(SECOND, exchanges=paid, seconds=1.0), label(SECOND, exchanges=paid * 2, seconds=9.0)]
    labels += [label(FIRST, exchanges=paid, seconds=2.0), label(Outcome.REFUSED, exchanges=paid, seconds=4.0)]
    teacher = only(labels)
    assert (teacher.cost, teacher.tokens, teacher.requests) == (2.5, 550, 5)
    assert teacher.cost_per_correct == 1.25
    assert teacher.median_seconds == 3.0


def test_position_bias_and_consistency_from_single_replies() -> None:
    def read(exchange: ModelCall) -> Outcome | None:
        return {"1": FIRST, "2": SECOND, "0": EQUAL}.get(exchange.reply)

    def both_orders(as_asked: str, swapped: str) -> StoredLabel:
        replies = (ModelCall("describe", False, "", "…"), ModelCall("label", False, "", as_asked))
        return label(SECOND, exchanges=(*replies, ModelCall("label", True, "", swapped)))

    labels = [both_orders("2", "1"), both_orders("1", "1"), both_orders("2", "2"), both_orders("0", "0")]
    labels.append(both_orders("1", "what?"))
    teacher = only(labels, read_reply=read)
    assert (teacher.consistency.count, teacher.consistency.of) == (2, 4)
    assert (teacher.first_shown.count, teacher.first_shown.of) == (4, 7)
    blind = only(labels)  # whoever cannot read replies knows nothing of those shown in both orders
    assert (blind.consistency.of, blind.first_shown.of) == (0, 0)


def test_each_reply_is_read_once() -> None:
    read: list[ModelCall] = []
    calls = [tuple(ModelCall("label", swapped, "", f"{n}") for swapped in (False, True)) for n in range(3)]
    statistics([label(SECOND, exchanges=both) for both in calls], read_reply=read.append)
    assert read == [*itertools.chain(*calls)]


def test_position_bias_of_people_and_of_pairs_asked_twice() -> None:
    labels = [
        label(FIRST, segments=("a", "b"), origin={"shown": "as asked"}),
        label(FIRST, segments=("c", "d"), origin={"shown": "swapped"}),
        label(SECOND, segments=("b", "a"), origin={"shown": "swapped"}),
        label(SECOND, segments=("d", "c")),
        label(FIRST, segments=("e", "f")),
        label(FIRST, segments=("f", "e")),
    ]
    teacher = only(labels)
    assert (teacher.first_shown.count, teacher.first_shown.of) == (4, 6)
    assert (teacher.consistency.count, teacher.consistency.of) == (2, 3)


def test_teachers_of_one_name_are_told_apart() -> None:
    labels = [label(FIRST, teacher="a"), label(FIRST, teacher="b")]
    assert teacher_names(labels) == {("a v1", ""): "a", ("b v1", ""): "b"}
    namesake = replace(labels[0], signature="a v2")
    assert teacher_names([*labels, namesake]) == {("a v1", ""): "a #1", ("b v1", ""): "b", ("a v2", ""): "a #2"}


def test_people_who_share_a_teacher_are_told_apart() -> None:
    def by(who: Any, outcome: Outcome, segments: Sequence[str] = ("a", "b"), teacher: str = "human") -> StoredLabel:
        return label(outcome, segments=segments, teacher=teacher, origin={"who": who, "shown": "as asked"})

    labels = [by("anna", SECOND) for _ in range(3)] + [
        by("ben", FIRST),
        by("human", SECOND),
        by(None, FIRST, teacher="machine"),
    ]
    found = {teacher.name: teacher for teacher in statistics(labels).teachers}
    assert list(found) == ["human anna", "human ben", "human", "machine"]
    assert [(t.labels, t.accuracy.rate) for t in found.values()] == [(3, 1.0), (1, 0.0), (1, 1.0), (1, 0.0)]
    assert {found[name].signature for name in ("human anna", "human ben", "human")} == {"human v1"}
    between = {(pair.first, pair.second): pair.same.count for pair in statistics(labels).between}
    assert between["human anna", "human ben"] == 0 and between["human anna", "human"] == 1
    (dispute,) = disputes(labels)
    judges = [judgement.teacher for judgement in dispute.judgements]
    assert judges == ["human anna", "human anna", "human anna", "human ben", "human", "machine"]
    assert [cell.text for cell in next(zip(*table(statistics(labels))[1], strict=True))] == list(found)
    # somebody whose recipe names them already, and who signs in by the same name
    assert list(teacher_names([by("anna", SECOND, teacher="human anna")]).values()) == ["human anna"]
    assert list(teacher_names([by(" a\nb ", SECOND), by(["x"], SECOND)]).values()) == ["human a b", "human"]


def test_the_most_disputed_come_first() -> None:
    labels = [
        label(SECOND, (0.0, 9.0), ("c", "d"), "one"),
        label(SECOND, (0.0, 9.0), ("c", "d"), "other"),
        label(SECOND, (0.0, 1.0), ("a", "b"), "one"),
        label(SECOND, (1.0, 0.0), ("b", "a"), "other"),
        label(FIRST, (0.0, 2.0), ("e", "f"), "one"),
        label(FIRST, (0.0, 5.0), ("g", "h"), "one"),
        label(FIRST, (math.nan, math.nan), ("i", "j"), "one"),
        label(EQUAL, (math.nan, math.nan), ("i", "j"), "one"),
        label(Outcome.UNSURE, (0.0, 8.0), ("k", "l"), "one"),
    ]
    found = disputes(labels)
    assert [(dispute.segments, dispute.reasons) for dispute in found] == [
        (("a", "b"), ("teachers disagree", "against the environment")),
        (("g", "h"), ("against the environment",)),
        (("e", "f"), ("against the environment",)),
        (("i", "j"), ("answered differently again",)),
    ]
    assert [(j.teacher, j.outcome, j.right) for j in found[0].judgements] == [
        ("one", SECOND, True),
        ("other", FIRST, False),
    ]
    assert disputes(labels, limit=1) == found[:1]


def test_answers_that_change_with_the_order_are_disputed() -> None:
    torn = label(
        Outcome.UNSURE, exchanges=(ModelCall("label", False, "", "first"), ModelCall("label", True, "", "first"))
    )
    assert disputes([torn]) == []
    (found,) = disputes([torn], read_reply=lambda exchange: Outcome(exchange.reply))
    assert found.reasons == ("changes with the order",)


# -- the page and the command ----------------------------------------------------------------------------------------

NASTY = "<script>alert('x')</script> & \"so on\""


@pytest.fixture
def store_folder(tmp_path: Path) -> Path:
    folder = tmp_path / "run" / "labels"
    with LabelStore(folder) as store:
        for i in range(12):
            question = pair(i, f"{NASTY} goal")
            replies = (ModelCall("label", False, "p", f"{NASTY} reply", 10, 2, 1.0, 0.01),)
            wrong = Answer(FIRST, 0.0, 0.9, f"{NASTY} reason", replies, 1.0)
            store.record(question, Judge(f"{NASTY} chat", f"{NASTY} signature"), wrong, Context("r", "t"))
            store.record(question, Judge("scripted", "scripted"), preference(1.0), Context("r", "t"))
    return folder


def test_the_page_shows_everything_and_runs_nothing(store_folder: Path, tmp_path: Path) -> None:
    with LabelStore(store_folder) as store:
        missing = store.frame_files(pair(11).segments[0].digest)[0]
        missing.unlink()
        labels = store.labels()
        write_labels_page(tmp_path / "new" / "p.html", NASTY, statistics(labels), disputes(labels), store)
    page = (tmp_path / "new" / "p.html").read_text()
    assert "<script" not in page
    for what in ("reply", "reason", "signature", "chat", "goal"):
        assert f"{html.escape(NASTY).replace('&#x27;', '&#39;').replace('&quot;', '&#34;')} {what}" in page
    assert page.count("data:image/png;base64,") == 23
    assert page.count("this frame is missing") == 1
    assert page.count("against the environment</span>") == 12
    assert "http://" not in page.replace("http://www.w3.org", "") and "https://" not in page
    assert "<svg" in page or "Where they fail" not in page


def test_the_table_leaves_out_what_nobody_has() -> None:
    headings, rows = table(statistics([label(SECOND)]))
    assert headings[:6] == ["teacher", "labels", "accuracy", "hardest third", "easiest third", "equal"]
    assert headings[6:] == ["no label", "prefers first shown"]
    assert [cell.text for cell in rows[0][:3]] == ["t", "1", "100\u202f%"]


def test_the_command_tells_teachers_apart(store_folder: Path, sightline: Callable[..., Any]) -> None:
    run = store_folder.parent
    found = json.loads(sightline("label", "stats", run, "--json").out)
    chat, scripted = found["teachers"]
    assert (chat["accuracy"]["rate"], scripted["accuracy"]["rate"]) == (0.0, 1.0)
    assert (chat["cost"], chat["cost_per_correct"]) == (pytest.approx(0.12), None)
    assert found["between"][0]["same"]["count"] == 0
    assert found["page"] == str(run / "labels.html") and (run / "labels.html").is_file()
    done = sightline("label", "stats", store_folder, "--html", "mine.html")
    assert done.code == 0, done.err
    assert Path("mine.html").is_file() and not (store_folder / "labels.html").exists()
    assert "accuracy" in done.out and "0 of 12 the same" in done.out


def test_the_command_says_in_one_line_that_there_is_nothing(tmp_path: Path, sightline: Callable[..., Any]) -> None:
    LabelStore(tmp_path / "empty").close()
    for path, reason in (("empty", "there are no labels"), ("nowhere", "neither a run nor a label store")):
        done = sightline("label", "stats", tmp_path / path)
        assert (done.code, done.out, len(done.lines)) == (2, "", 1)
        assert reason in done.lines[0]
    with LabelStore(tmp_path / "empty") as store:
        store.record(Question("score", (segment(1),), ("g",)), Judge(), Answer(Outcome.VALUE, 0.5), Context("r", "t"))
    assert sightline("label", "stats", tmp_path / "empty", "--run", "other").code == 2
    assert sightline("label", "stats", tmp_path / "empty", "--run", "r").code == 0


def test_the_command_reads_the_replies_of_models(tmp_path: Path, sightline: Callable[..., Any]) -> None:
    def answer(as_asked: str, swapped: str) -> Answer:
        described = ModelCall("describe", False, "p", '{"answer": "first"}')
        replies = (ModelCall("label", order, "p", said) for order, said in ((False, as_asked), (True, swapped)))
        return Answer(Outcome.UNSURE, exchanges=(described, *replies))

    with LabelStore(tmp_path / "store") as store:
        for i, said in enumerate(
            [('{"answer": "first"}', "second"), ("first", "first"), ("no idea, honestly", "first")]
        ):
            store.record(pair(i), Judge(), answer(*said), Context("r", "t"))
    (teacher,) = json.loads(sightline("label", "stats", tmp_path / "store", "--json").out)["teachers"]
    assert (teacher["consistency"]["count"], teacher["consistency"]["of"]) == (1, 2)
    assert (teacher["first_shown"]["count"], teacher["first_shown"]["of"]) == (4, 5)
    assert "changes with the order" in (tmp_path / "store" / "labels.html").read_text()
