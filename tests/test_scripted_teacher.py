"""The scripted teacher against B-Pref's definitions, worked out by hand."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binomtest

from sightline.errors import BadInput
from sightline.labels.types import Answer, Outcome, Question, Segment, true_preference
from sightline.teachers.scripted import ScriptedTeacher, boltzmann, weighted_return

FAILINGS = {"beta": 2.0, "gamma": 0.5, "skip": 0.1, "equal": 0.2, "mistake": 0.3}


def segment(*rewards: float, look: int = 0) -> Segment:
    """Segments with other rewards or another `look` have other frames."""
    frames = np.zeros((len(rewards), 2, 8, 3), np.uint8)
    frames[:, 0].flat[: 8 * len(rewards)] = np.frombuffer(np.array(rewards, np.float64).tobytes(), np.uint8)
    frames[:, 1, 0, 0], frames[:, 1, 1, 0] = look % 256, look // 256
    return Segment(frames, np.array(rewards, np.float32))


def pair(first: Segment, second: Segment) -> Question:
    return Question("compare", (first, second), ("the goal",))


def teacher(seed: int = 0, **failings: Any) -> ScriptedTeacher:
    return ScriptedTeacher(seed, **failings)


def ask(who: ScriptedTeacher, questions: Sequence[Question]) -> list[Answer]:
    answers = dict(who.answers(questions))
    assert sorted(answers) == list(range(len(questions)))
    return [answers[index] for index in range(len(questions))]


def random_pairs(count: int, seed: int = 0, steps: int = 3) -> list[Question]:
    rewards = np.random.default_rng(seed).random((count, 2, steps))
    return [pair(segment(*a, look=i), segment(*b, look=i)) for i, (a, b) in enumerate(rewards)]


@given(first=st.floats(-100, 100, width=32), second=st.floats(-100, 100, width=32))
def test_without_failings_it_tells_the_truth(first: float, second: float) -> None:
    (answer,) = ask(teacher(), [pair(segment(first), segment(second, look=1))])
    assert answer.value == true_preference(segment(first), segment(second))
    assert answer.outcome == {0.0: Outcome.FIRST, 0.5: Outcome.EQUAL, 1.0: Outcome.SECOND}[answer.value]


@pytest.mark.parametrize(
    "failings", [{"mistake": 7}, {"gamma": -1}, {"gamma": 0}, {"beta": 0.0}, {"skip": -0.1}, {"equal": float("nan")}]
)
def test_failings_have_their_limits(failings: dict[str, Any]) -> None:
    (name,) = failings
    with pytest.raises(BadInput, match=f"^{name}: "):
        teacher(**failings)
    assert teacher(mistake=1).signature == teacher(mistake=1.0).signature


def test_a_myopic_teacher_prefers_what_came_last() -> None:
    early, late = segment(5, 0, 1), segment(0, 1, 3)  # returns 6 and 4; with 1/4, 1/2, 1: 2.25 and 3.5
    assert (weighted_return(early, 0.5), weighted_return(late, 0.5)) == (2.25, 3.5)
    (far,), (near,) = ask(teacher(), [pair(early, late)]), ask(teacher(gamma=0.5), [pair(early, late)])
    assert (far.value, near.value) == (0.0, 1.0)


def test_boltzmann_probabilities_by_hand() -> None:
    assert boltzmann(1.0, 2.0, beta=1.0) == pytest.approx(math.e**2 / (math.e + math.e**2))
    assert boltzmann(2.0, 1.0, beta=3.0) == pytest.approx(math.exp(3) / (math.exp(3) + math.exp(6)))
    assert boltzmann(1.0, 1.0, beta=9.0) == 0.5
    assert boltzmann(0.0, 1e6, beta=1.0) == 1.0
    assert boltzmann(1e6, 0.0, beta=1.0) == 0.0


def test_boltzmann_choices_are_drawn_with_that_probability() -> None:
    questions = [pair(segment(1.0, look=i), segment(2.0, look=i)) for i in range(1000)]
    seconds = sum(answer.outcome is Outcome.SECOND for answer in ask(teacher(beta=1.0), questions))
    assert binomtest(seconds, 1000, 0.7310586).pvalue > 1e-3


def test_mistakes_do_not_care_what_was_chosen() -> None:
    questions = [pair(segment(1.0, look=i), segment(2.0, look=i)) for i in range(1000)]
    meant, said = (ask(teacher(beta=1.0, mistake=mistake), questions) for mistake in (0.0, 0.3))
    for choice in (Outcome.FIRST, Outcome.SECOND):
        of_it = [after for before, after in zip(meant, said, strict=True) if before.outcome is choice]
        assert binomtest(sum(answer.outcome is not choice for answer in of_it), len(of_it), 0.3).pvalue > 1e-3


def test_pairs_that_show_too_little_are_skipped() -> None:
    who = teacher(skip=0.5)
    who.average_segment_return = 10.0
    questions = [pair(segment(5.0), segment(1.0)), pair(segment(5.1), segment(1.0)), pair(segment(1.0), segment(5.1))]
    little, first, second = ask(who, questions)
    assert (little.outcome, little.value) == (Outcome.SKIPPED, None)
    assert (first.value, second.value) == (0.0, 1.0)


def test_pairs_that_differ_too_little_are_equal() -> None:
    who = teacher(equal=0.1)
    for average in (10.0, -10.0):
        who.average_segment_return = average
        near, far = ask(who, [pair(segment(4.0), segment(4.9)), pair(segment(4.0), segment(5.0))])
        assert (near.outcome, near.value, far.value) == (Outcome.EQUAL, 0.5, 1.0)


def test_equal_is_said_whatever_was_chosen_before_and_skipped_comes_first() -> None:
    who = teacher(equal=0.9, mistake=1.0, gamma=0.1)
    who.average_segment_return = 10.0
    assert ask(who, [pair(segment(9, 0), segment(0, 1))])[0].outcome is Outcome.EQUAL
    who = teacher(equal=0.9, skip=0.95)
    who.average_segment_return = 10.0
    assert ask(who, [pair(segment(9, 0), segment(0, 1))])[0].outcome is Outcome.SKIPPED


def test_thresholds_are_the_same_at_first_and_later_queries() -> None:
    """Defect P2 of the reference: fractions were applied twice from the second query on."""
    who, questions = teacher(skip=0.8, equal=0.3), random_pairs(100)
    who.average_segment_return = 1.5
    first = ask(who, questions)
    assert [ask(who, questions) for _ in range(3)] == [first] * 3
    by_hand = [
        Outcome.SKIPPED if max(a, b) <= 1.2
        else Outcome.EQUAL if abs(a - b) < 0.45
        else Outcome.FIRST if a > b else Outcome.SECOND
        for a, b in ([s.true_return for s in question.segments] for question in questions)
    ]  # fmt: skip
    assert [answer.outcome for answer in first] == by_hand
    assert len(set(by_hand)) == 4


def test_the_average_is_that_of_the_questions_unless_it_is_told() -> None:
    questions = [pair(segment(1.0), segment(2.0)), pair(segment(4.0), segment(9.0))]  # mean 4
    assert [answer.value for answer in ask(teacher(equal=0.3), questions)] == [0.5, 1.0]


def test_mistakes_are_as_frequent_as_said_and_leave_the_truth_alone() -> None:
    """Defect P3 of the reference: mistaken labels were written over the truth they are compared with."""
    questions = random_pairs(1000)
    truth = [true_preference(*question.segments) for question in questions]
    said = [answer.value for answer in ask(teacher(mistake=0.2), questions)]
    assert [true_preference(*question.segments) for question in questions] == truth
    wrong = sum(a != b for a, b in zip(said, truth, strict=True))
    assert binomtest(wrong, 1000, 0.2).pvalue > 1e-3
    always = [answer.value for answer in ask(teacher(mistake=1.0), questions)]
    assert [1 - value for value in always if value is not None] == truth


@settings(deadline=None, max_examples=30)
@given(order=st.permutations(range(12)), cut=st.integers(0, 12))
def test_labels_do_not_depend_on_order_or_company(order: list[int], cut: int) -> None:
    questions = random_pairs(12)
    together = teacher(**FAILINGS)
    together.average_segment_return = 1.5
    expected = ask(together, questions)
    apart = teacher(**FAILINGS)
    apart.average_segment_return = 1.5
    shuffled = [questions[i] for i in order]
    assert ask(apart, shuffled[:cut]) + ask(apart, shuffled[cut:]) == [expected[i] for i in order]


def test_other_seeds_make_other_mistakes() -> None:
    questions = random_pairs(100)
    assert ask(teacher(0, mistake=0.5), questions) != ask(teacher(1, mistake=0.5), questions)


def test_unknown_rewards_are_a_failure_of_their_question_only() -> None:
    unknown = segment(math.nan)
    for kind in ("rate", "score"):
        failed, known = ask(teacher(), [Question(kind, (s,), ("goal",), levels=3) for s in (unknown, segment(1.0))])
        assert failed.outcome is Outcome.FAILED and failed.reason and failed.value is None
        assert known.outcome is Outcome.VALUE
    answers = ask(teacher(skip=0.1, equal=0.1), [pair(segment(1.0), unknown), pair(segment(1.0), segment(2.0))])
    assert [answer.outcome for answer in answers] == [Outcome.FAILED, Outcome.SECOND]
    assert ask(teacher(), [pair(unknown, unknown)])[0].outcome is Outcome.FAILED
    lost = teacher(skip=0.1, equal=0.1)
    lost.average_segment_return, lost.return_range = math.nan, (math.nan, math.nan)
    questions = [Question("rate", (segment(1.0),), ("goal",), levels=3), pair(segment(1.0), segment(2.0))]
    assert [answer.value for answer in ask(lost, questions)] == [1.0, 1.0]
    assert ask(teacher(), []) == []


def test_levels_and_scores_by_hand() -> None:
    who = teacher()
    who.return_range = (-2.0, 8.0)
    segments = [segment(value) for value in (-5.0, -2.0, 1.0, 2.0, 7.9, 8.0, 20.0)]
    rated = ask(who, [Question("rate", (s,), ("goal",), levels=4) for s in segments])
    scored = ask(who, [Question("score", (s,), ("goal",)) for s in segments])
    assert [answer.value for answer in rated] == [0, 0, 1, 1, 3, 3, 3]
    assert [answer.value for answer in scored] == pytest.approx([0, 0, 0.3, 0.4, 0.99, 1, 1])


def test_the_range_is_that_of_the_questions_unless_it_is_told() -> None:
    segments = [segment(value) for value in (3.0, 5.0, 4.0)]
    assert [a.value for a in ask(teacher(), [Question("score", (s,), ("goal",)) for s in segments])] == [0, 1, 0.5]
    assert ask(teacher(), [Question("score", (segments[0],), ("goal",))])[0].value == 0.5


def test_a_myopic_score_stays_on_the_scale() -> None:
    who = teacher(gamma=0.5)
    who.return_range = (0.0, 3.0)
    rewards = ((1, 1, 1), (0, 0, 3), (3, 0, 0))  # weights 1/4, 1/2, 1 of 7/4: means 1, 12/7 and 3/7
    answers = ask(who, [Question("score", (segment(*r),), ("goal",)) for r in rewards])
    assert [answer.value for answer in answers] == pytest.approx([1.0, 1.0, 3 / 7])


def test_mistaken_levels_are_all_the_others() -> None:
    who = teacher(mistake=1.0)
    who.return_range = (0.0, 1.0)
    levels = [a.value for a in ask(who, [Question("rate", (segment(0.5, look=i),), ("g",), 3) for i in range(300)])]
    assert set(levels) == {0.0, 2.0}
    assert binomtest(levels.count(0.0), 300, 0.5).pvalue > 1e-3
    assert ask(who, [Question("score", (segment(0.2),), ("g",))])[0].value == pytest.approx(0.8)


def test_the_signature_says_all_parameters() -> None:
    signatures = [teacher().signature, teacher(1).signature]
    signatures += [teacher(**{name: value}).signature for name, value in FAILINGS.items()]
    assert len(set(signatures)) == len(signatures)
    assert all("\n" not in signature for signature in signatures)
