"""Formulas: exact values against a reader of another kind, refusals, and completing what was begun."""

from __future__ import annotations

import ast
import itertools
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sightline_tasks.games.formulas import MAX_TOKENS, START, completion, read, solvable, tokens_to_close, value

NUMBERS = st.integers(0, 13).map(str)
TOKENS = st.one_of(NUMBERS, st.sampled_from("+-*/()"))
SPLITS = st.floats(0, 1, exclude_max=True)


@st.composite
def well_formed(draw: st.DrawFn, least: int = 1, most: int = 6) -> list[str]:
    """Tokens of a random formula, with needless brackets now and then."""

    def formula(numbers: int) -> list[str]:
        if numbers == 1:
            inner = [draw(NUMBERS)]
        else:
            left = 1 + int(draw(SPLITS) * (numbers - 1))
            inner = [*formula(left), draw(st.sampled_from("+-*/")), *formula(numbers - left)]
        return ["(", *inner, ")"] if draw(st.booleans()) else inner

    return formula(draw(st.integers(least, most)))


def by_python(text: str) -> Fraction | None:
    """The same value by Python's own parser, computed over its tree in fractions."""
    joins = {
        ast.Add: lambda a, b: a + b,
        ast.Sub: lambda a, b: a - b,
        ast.Mult: lambda a, b: a * b,
        ast.Div: lambda a, b: a / b,
    }

    def worth(node: ast.expr) -> Fraction:
        if isinstance(node, ast.Constant) and type(node.value) is int:
            return Fraction(node.value)
        if isinstance(node, ast.BinOp) and type(node.op) in joins:
            return joins[type(node.op)](worth(node.left), worth(node.right))
        raise ValueError(type(node))

    try:
        return worth(ast.parse(text, mode="eval").body)
    except (SyntaxError, ValueError, ZeroDivisionError):
        return None


@settings(max_examples=300, deadline=None)
@given(well_formed())
def test_values_are_those_of_another_reader(tokens: list[str]) -> None:
    expected = by_python(" ".join(tokens))
    assert value(tokens) == expected
    assert value("".join(tokens)) == expected


@settings(max_examples=300, deadline=None)
@given(st.lists(TOKENS, max_size=9))
def test_what_is_no_formula_for_another_reader_is_none_here(tokens: list[str]) -> None:
    assert value(tokens) == by_python(" ".join(tokens))


@pytest.mark.parametrize(
    ("text", "worth"),
    [("8/(3-8/3)", 24), ("1/3+1/3+1/3", 1), ("2-3-4", -5), ("8/4/2", 1), (" 2 * ( 3 + 4 ) ", 14), ("24+5-5", 24)],
)
def test_known_values(text: str, worth: int) -> None:
    assert value(text) == worth


@pytest.mark.parametrize(
    "text",
    [
        *("", "9**9**9", "-3+4", "3+-4", "8//3", "2 3", "(2", "2)", "()", "2(3)", "(2)(3)", "1/0", "1/(2-2)", "1.5"),
        *("x", "1_0", "1+", "٣", "1e3", "0x1", "(" * 5000 + "1" + ")" * 5000, "9" * 5000, "1+" * 5000 + "1"),
    ],
)
def test_refused(text: str) -> None:
    assert value(text) is None


def test_numbers_side_by_side_are_never_joined() -> None:
    assert value(["2", "4", "+", "5", "-", "5"]) is None
    assert value(["9", "*", "*", "9"]) is None


def test_length_and_depth_have_bounds() -> None:
    assert value("1" + "+1" * ((MAX_TOKENS - 1) // 2)) == 1 + (MAX_TOKENS - 1) // 2
    assert value("1" + "+1" * (MAX_TOKENS // 2)) is None
    assert value("(" * 24 + "1" + ")" * 24) == 1
    assert value("(" * 25 + "1" + ")" * 25) is None


@pytest.mark.when_changed("tasks")
def test_deals_that_can_make_24() -> None:
    """566 of 715 with faces as 10, 1362 of 1820 with 11 to 13: known counts."""
    assert sum(solvable(cards, 24) for cards in itertools.combinations_with_replacement(range(1, 11), 4)) == 566
    assert sum(solvable(cards, 24) for cards in itertools.combinations_with_replacement(range(1, 14), 4)) == 1362


@settings(max_examples=150, deadline=None)
@given(st.lists(st.integers(1, 10), min_size=4, max_size=4))
@pytest.mark.when_changed("tasks")
def test_a_deal_is_solvable_exactly_if_a_formula_is_found(numbers: list[int]) -> None:
    found = completion((), numbers, 24)
    assert (found is not None) == solvable(numbers, 24)
    if found is not None:
        assert value(found) == 24 and by_python("".join(found)) == 24
        assert sorted(int(token) for token in found if token.isdigit()) == sorted(numbers)


@settings(max_examples=150, deadline=None)
@given(well_formed(least=2, most=4), st.data())
def test_every_beginning_of_a_formula_can_be_completed(tokens: list[str], data: st.DataObject) -> None:
    worth = value(tokens)
    if worth is None or worth.denominator != 1:
        return
    cut = data.draw(st.integers(0, len(tokens)))
    left = [int(token) for token in tokens[cut:] if token.isdigit()]
    rest = completion(tokens[:cut], left, int(worth))
    assert rest is not None
    assert value([*tokens[:cut], *rest]) == worth
    assert sorted(int(token) for token in rest if token.isdigit()) == sorted(left)
    reading = read(tokens[:cut])
    assert reading is not None and tokens_to_close(reading, len(left)) <= len(rest)


def test_completing_keeps_to_its_signs_and_its_room() -> None:
    assert completion((), (2, 6), 12, "+*") == ("2", "*", "6")
    assert completion((), (2, 6), 12, "+") is None
    assert completion(("2",), (6,), 12, "+*", room=2) == ("*", "6")
    assert completion(("2",), (6,), 12, "+*", room=1) is None
    assert completion(("2", "+"), (6,), 12, "+*") is None
    assert completion(("(", "2", "*", "6"), (), 12) == (")",)
    assert completion(("2", "*", "6"), (), 12) == ()
    assert completion(("2", "6"), (), 12) is None
    assert completion(("5", "-", "5", "-"), (3,), -3) == ("3",)


def test_tokens_to_close_counts_numbers_operators_and_brackets() -> None:
    assert tokens_to_close(START, 4) == 7
    for prefix, left, count in ((["(", "2"], 1, 3), (["(", "2", "+"], 1, 2), (["2"], 0, 0)):
        reading = read(prefix)
        assert reading is not None and tokens_to_close(reading, left) == count
