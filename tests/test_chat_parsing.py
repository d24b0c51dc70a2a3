"""What replies say: a table of them, and that nothing a model writes can do harm."""

from __future__ import annotations

import json
import math
import re
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sightline.labels.parsing import expectation, parse_choice, parse_number, probabilities
from sightline.labels.types import Outcome, Question, Segment
from sightline.models.chat.messages import ChatReply, Token
from sightline.teachers import prompts
from sightline.teachers.chat import read_reply

DEEP = '{"a":' * 15_000 + "1" + "}" * 15_000
CHOICES = {
    Outcome.FIRST: [
        *(
            "first",
            "First.",
            "**first**",
            '"first"',
            "the first picture",
            "Image 1",
            "Answer: first",
            "The answer is first.",
        ),
        *("The first picture is closer.", "Picture 1 looks clearly nearer to the goal.", '{"answer": "first"}'),
        '{"reason": "the second is far", "answer": "first"}',
        '```json\n{"reason": "a {brace} in the reason", "answer": "FIRST"}\n```',
        'Here you are: {"reason": "", "answer": "first"} I hope that helps with the second one too.',
        '{"result": {"Answer": "first"}}',
        "first\nBecause the second shows a rod that lies on its side.",
        "<think>The second? No, wait, the second has fallen.</think>\nfirst",
        '{"answer": "first"} {"answer": "first"}',
        '<think>Perhaps {"answer": "second"}?</think>{"answer": "first"}',
        'Perhaps {"answer": "second"}?\n</think>\n{"answer": "first"}',
        *('{"answer": "second"}? No.</think>{"answer": "first"}', "</think>\nfirst"),
        '◁think▷The form is {"answer": "second"}.◁/think▷{"answer": "first"}',
        'The form is {"reason": "…", "answer": "…"}. So: {"reason": "it stands", "answer": "first"}',
        '{"answer": "<one of them>"} {"answer": "first or second"}\n{"answer": "first"}',
        "[THINK]The second?[/THINK]first",
        "[Analysis]\nThe second has fallen.\n\nfirst",
        *('{"reason": "</think> is a tag", "answer": "first"}', '{"reason": "two\nlines" "answer": first,}'),
        'Not {"answer": sec but {"answer": "first"}',
        *(
            "Answer: the first picture, because the pole stands.",
            "**First** — the second has fallen.",
            "First - it stands",
        ),
        *("The pole leans less on the left. Image 1.", "I choose the first picture because the second has fallen."),
        *("The first image is closer to the goal. It stands.", "Both are poor.\nImage 1, since it leans less."),
    ],
    Outcome.SECOND: [
        *("second", "SECOND!", "> second", "I choose the second picture", "image 2", "the second clip"),
        "First picture: it has fallen.\nSecond picture: it stands.\n\nsecond",
        "The first has fallen.\n\nFinal answer: **second**",
        *("The second is nearer to the goal, so: second", "The first is worse; therefore: the answer is **second**."),
        *("It stands upright. Hence: Second.", "The first picture is nearer, I thought - so: second"),
        '{"answer":"second","reason":"first is worse"}',
    ],
    Outcome.EQUAL: ["equal", "Equal.", "tie", "there is no difference", "both are equally near", '{"answer": "equal"}'],
    Outcome.UNSURE: ["unsure", "I am not sure.", "I can't tell", "cannot be told", "unclear", '{"answer": "unsure"}'],
    Outcome.REFUSED: [
        "I'm sorry, but I can't assist with that request.",
        "I cannot help with comparing these images.",
        "Unfortunately, I am unable to view pictures.",
    ],
    Outcome.UNPARSABLE: [
        *("", " \n\t", "<think>first</think>", "0", "1", "-1", "10", "2", "-1.", "1.", "0 (first)", "A"),
        *("Both pictures show a pole.", "first or second", "first and second", "neither", "none of them", "maybe"),
        "The first picture is nearer to the goal than the second picture.",
        *("The first picture is worse.", "The first picture is not closer.", "not the first", "anything but second"),
        *("The first is nearer to the goal, so: second", "One has fallen, so: first, so: second", "I think so: first"),
        *("Further from the goal: first", "Anything but: second", "It is not so, the first", "so: neither", ", so:"),
        *("I like turtles.", "le premier", "die erste", "第一张", "первый", "الأول", "🥇"),
        *('{"answer": "first or second"}', '{"answer": null}', '{"answer": true}', '{"answer": ["first"]}', "{}"),
        'Not {"answer": "sec but {"answer": "first"}',
        *('{"answer": "first"', '{"x": {"answer": "first"}', '{"answer": "first", "reason": "a "b" c"}'),
        *('<think>{"answer": "first"}', "<think>No.\nfirst", '{"answer": "first"} it is.</think>'),
        *('{"answer": "first"} {"answer": "neither"}', '◁think▷{"answer": "first"}'),
        *('{"answer": "first"} {"answer": "second"}', '{"answer": "first", "answer": "second"}', "first\nsecond"),
        *(
            "First, I look at the pole.",
            "Image 1. It leans. Image 2. It stands.",
            "First — it leans.\nSecond — it stands.",
        ),
        *(
            "Image 1: it leans. Image 2: it stands.",
            "Not the first, because it leans.",
            "The first is as near as the second.",
        ),
        *(
            '{"winner": "first"}',
            '{"answer": 1}',
            '{"answer": "fir',
            "{" * 5000,
            "[" * 100_000,
            '{"a":' * 100_000,
            DEEP,
        ),
    ],
}


@pytest.mark.parametrize(("outcome", "text"), [(outcome, text) for outcome, texts in CHOICES.items() for text in texts])
def test_choices(outcome: Outcome, text: str) -> None:
    parsed = parse_choice(text)
    assert parsed.outcome is outcome
    assert bool(parsed.reason) == (outcome in (Outcome.UNPARSABLE, Outcome.REFUSED))


@pytest.mark.parametrize(
    ("text", "number"),
    [
        *(("0", 0), ("2", 2), ("2.", 2), ("**1**", 1), ("1.0", 1), ("Level 2", 2), ("The score is 1.", 1), ("+1", 1)),
        *(('{"answer": "2"}', 2), ('{"answer": 2}', 2), ('{"answer": 2.0}', 2), ("It is level.\nAnswer: 1", 1)),
        *(
            ("3", None),
            ("-1", None),
            ("-1.", None),
            ("10", None),
            ("1.5", None),
            ("0.5", None),
            ('{"answer": 3}', None),
        ),
        *(("", None), ("two", None), ("2/3", None), ("1 or 2", None), ("1\n2", None), ("²", None), ("２", None)),
        *(("nan", None), ("inf", None), ("1e1", None), ("9" * 400, None), ('{"answer": NaN}', None), ("first", None)),
        *(('{"answer": Infinity}', None), ('{"answer": true}', None), ("2 out of 2", None), ("0x1", None)),
    ],
)
def test_numbers(text: str, number: int | None) -> None:
    parsed = parse_number(text, highest=2)
    assert parsed.number == number
    assert parsed.outcome is (Outcome.UNPARSABLE if number is None else Outcome.VALUE)


def test_numbers_can_be_unsure() -> None:
    assert parse_number('{"answer": "unsure"}', 4).outcome is Outcome.UNSURE


WORDS = st.sampled_from(
    [
        *CHOICES[Outcome.FIRST],
        *CHOICES[Outcome.SECOND],
        '{"answer":',
        '"first"',
        "}",
        "\n",
        "```",
        "-",
        "3",
        "<think>",
        "\\",
        '"',
    ]
)


@given(st.one_of(st.text(), st.lists(WORDS).map("".join), st.binary().map(lambda b: b.decode("latin-1"))))
def test_nothing_that_a_model_writes_raises(text: str) -> None:
    assert parse_choice(text).outcome in {*CHOICES}
    parsed = parse_number(text, 9)
    assert (parsed.number is not None) == (parsed.outcome is Outcome.VALUE)
    assert parsed.number is None or 0 <= parsed.number <= 9


@given(
    st.recursive(
        st.none() | st.booleans() | st.floats() | st.text(), lambda s: st.lists(s) | st.dictionaries(st.text(), s)
    )
)
def test_no_json_raises(value: object) -> None:
    for body in (value, {"answer": value}, {"reason": "", "answer": [value]}):
        parse_choice(json.dumps(body))
        parse_number(json.dumps(body), 9)


@given(st.sampled_from(prompts.CHOICES), st.text(alphabet=st.characters(blacklist_characters="\n\r")), st.booleans())
def test_json_by_the_schema_is_always_understood(answer: str, reason: str, ascii_only: bool) -> None:
    text = json.dumps({"reason": reason, "answer": answer}, ensure_ascii=ascii_only)
    assert parse_choice(text).outcome.value == answer
    assert parse_choice(f"```json\n{text}\n```").outcome.value == answer


@given(
    st.text(),
    st.sampled_from([*prompts.CHOICES, "", "First.", "second, first", "I cannot assist with that"]) | st.text(),
    st.sampled_from(["", "\n", "<think>", "first\n"]),
    st.sampled_from(["", " ", "</think>", "{}"]),
)
@example("<think>", "first", "", "").via("a mark in the reason")
@example("so: {", "second", "", "").via("a brace in the reason")
def test_replies_in_the_form_that_was_asked_for_are_read_as_all_others(
    reason: str, answer: str, before: str, after: str
) -> None:
    """They are read by a shortcut."""
    text = f'{before}{{"reason": "{reason}", "answer": "{answer}"}}{after}'
    by_shortcut = parse_choice(text), parse_number(text, 9)
    with patch("sightline.labels.parsing._AS_ASKED", re.compile("(?!)")):
        assert by_shortcut == (parse_choice(text), parse_number(text, 9))


@given(st.integers(-20, 20), st.integers(1, 12))
def test_numbers_outside_the_range_are_never_clipped(number: int, highest: int) -> None:
    assert parse_number(f'{{"answer": "{number}"}}', highest).number == (number if 0 <= number <= highest else None)


# -- log-probabilities -------------------------------------------------------------------------------------------------


def tokens(*spoken: str, chances: dict[str, float]) -> tuple[Token, ...]:
    """The reply in these tokens, with the given probabilities at the one in brackets."""
    probable = tuple((text, math.log(p)) for text, p in chances.items())
    return tuple(Token(t.strip("[]"), probable if t.startswith("[") else ((t, 0.0),)) for t in spoken)


def question(kind: str, levels: int = 0) -> Question:
    segment = Segment(np.zeros((1, 4, 4, 3), np.uint8), np.zeros(1, np.float32))
    return Question(kind, (segment,) * (2 if kind == "compare" else 1), ("a goal",), levels)  # type: ignore[arg-type]


def test_scores_are_expected_values() -> None:
    said = tokens(
        '{"reason": "9 of 9",', ' "answer": "', "[7]", '"}', chances={"7": 0.5, "8": 0.25, "3": 0.05, "x": 0.2}
    )
    reply = ChatReply('{"reason": "9 of 9", "answer": "7"}', tokens=said)
    opinion = read_reply(question("score"), reply)
    assert opinion.value == pytest.approx((7 * 0.5 + 8 * 0.25 + 3 * 0.05) / 0.8 / 9)
    assert opinion.confidence == pytest.approx(0.5 / 0.8)


def test_scores_without_log_probabilities_are_the_number() -> None:
    assert read_reply(question("score"), ChatReply('{"answer": "7"}')).value == pytest.approx(7 / 9)
    assert read_reply(question("score"), ChatReply("9")).value == 1.0
    assert read_reply(question("score"), ChatReply("0")).value == 0.0


def test_improbable_digits_are_no_distribution() -> None:
    said = tokens("[7]", chances={"7": 0.2, "3": 0.1, "The": 0.7})
    assert read_reply(question("score"), ChatReply("7", tokens=said)).value == pytest.approx(7 / 9)
    assert expectation({"unsure": 0.6, "7": 0.4}) is None


def test_levels_stay_whole_and_have_a_confidence() -> None:
    said = tokens("Level ", "[1]", chances={"1": 0.6, "2": 0.3, " 2": 0.1})
    opinion = read_reply(question("rate", 3), ChatReply("Level 1", tokens=said))
    assert opinion.value == 1.0
    assert opinion.confidence is None  # the line does not begin with the answer: nothing is guessed
    said = tokens("[1]", chances={"1": 0.6, "2": 0.3, " 2": 0.1})
    assert read_reply(question("rate", 3), ChatReply("1", tokens=said)).confidence == pytest.approx(0.6)


def test_confidence_of_a_choice_counts_beginnings_of_words() -> None:
    said = tokens(
        '{"answer": "', "[fir]", 'st"}', chances={"fir": 0.4, " First": 0.2, "second": 0.2, "e": 0.1, "{": 0.1}
    )
    reply = ChatReply('{"answer": "first"}', tokens=said)
    assert probabilities(said, reply.text, prompts.CHOICES) == pytest.approx(
        {"first": 0.6 / 0.9, "second": 0.2 / 0.9, "equal": 0.1 / 0.9}
    )
    assert read_reply(question("compare"), reply).confidence == pytest.approx(0.6 / 0.9)


@given(
    st.lists(st.tuples(st.text(max_size=8), st.lists(st.tuples(st.text(max_size=3), st.floats(max_value=0))))),
    st.text(),
)
def test_no_tokens_raise(spoken: list[tuple[str, list[tuple[str, float]]]], text: str) -> None:
    made = tuple(Token(t, tuple(others)) for t, others in spoken)
    chances = probabilities(made, text, prompts.allowed(question("score")))
    assert not chances or sum(chances.values()) == pytest.approx(1)
    mean = expectation(chances)
    assert mean is None or 0 <= mean <= 9
