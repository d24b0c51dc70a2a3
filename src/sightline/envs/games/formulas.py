"""Formulas of whole numbers with + - * / and brackets, in exact fractions.

A formula is a sequence of tokens and is read from left to right by a small machine that never calls itself, so nothing
in it can take long: there are no powers, no signs before a number, no two numbers side by side. The same machine tells
what a formula is worth, what may come next, and how an unfinished one can be completed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from fractions import Fraction
from functools import lru_cache
from typing import NamedTuple

MAX_TOKENS, MAX_DEPTH, MAX_DIGITS = 64, 24, 6
"""Longer or deeper formulas, and longer numbers, are worth nothing."""

_TOKEN = re.compile(r"\s*([0-9]+|[-+*/()])")


class Level(NamedTuple):
    """What was read since the last open bracket: `total + product`, where an operand still goes into the product.

    Attributes:
        total: sum of the finished terms.
        product: the present term so far, with its sign.
        operator: what joins the next operand to it; None right after an operand.
    """

    total: Fraction
    product: Fraction
    operator: str | None

    @property
    def value(self) -> Fraction:
        return self.total + self.product

    def with_operand(self, operand: Fraction) -> Level | None:
        """None if that would divide by zero."""
        match self.operator:
            case "+":
                return Level(self.total, operand, None)
            case "-":
                return Level(self.total, -operand, None)
            case "*":
                return Level(self.total, self.product * operand, None)
        return Level(self.total, self.product / operand, None) if operand else None

    def with_operator(self, operator: str) -> Level:
        if operator in "+-":
            return Level(self.value, Fraction(0), operator)
        return Level(self.total, self.product, operator)


Reading = tuple[Level, ...]
"""Where reading stands: one level for the whole formula and one for each open bracket."""

EMPTY: Level = Level(Fraction(0), Fraction(0), "+")
START: Reading = (EMPTY,)


def expects_operand(reading: Reading) -> bool:
    return reading[-1].operator is not None


def read_on(reading: Reading, token: str) -> Reading | None:
    """Read one more token; None if it cannot stand there or divides by zero."""
    *outer, level = reading
    if expects_operand(reading):
        if token == "(":
            return (*reading, EMPTY) if len(reading) <= MAX_DEPTH else None
        if not (token.isascii() and token.isdigit() and len(token) <= MAX_DIGITS):
            return None
        after = level.with_operand(Fraction(int(token)))
        return None if after is None else (*outer, after)
    if token == ")":
        closed = outer[-1].with_operand(level.value) if outer else None
        return None if closed is None else (*outer[:-1], closed)
    if len(token) == 1 and token in "+-*/":
        return (*outer, level.with_operator(token))
    return None


def read(tokens: Iterable[str]) -> Reading | None:
    """Read the beginning of a formula; None if no well-formed formula begins like that."""
    reading = START
    for count, token in enumerate(tokens):
        after = read_on(reading, token) if count < MAX_TOKENS else None
        if after is None:
            return None
        reading = after
    return reading


def value(formula: str | Sequence[str]) -> Fraction | None:
    """What a formula is worth, exactly; None if it is none, is too long or too deep, or divides by zero.

    Args:
        formula: as text (adjacent digits are one number), or as tokens (adjacent numbers are an error).
    """
    tokens = _split(formula) if isinstance(formula, str) else formula
    reading = None if tokens is None else read(tokens)
    if reading is None or len(reading) > 1 or expects_operand(reading):
        return None
    return reading[0].value


def _split(text: str) -> list[str] | None:
    """Tokens of a text, None if anything else is in it or there are too many."""
    tokens: list[str] = []
    text, at = text.rstrip(), 0
    while at < len(text):
        found = _TOKEN.match(text, at)
        if found is None or len(tokens) == MAX_TOKENS:
            return None
        tokens.append(found[1])
        at = found.end()
    return tokens


def tokens_to_close(reading: Reading, numbers_left: int) -> int:
    """How many tokens, at least, complete the formula if it has to use up so many more numbers."""
    brackets = len(reading) - 1
    return max(0, 2 * numbers_left - 1 if expects_operand(reading) else 2 * numbers_left) + brackets


def completion(
    prefix: Sequence[str], numbers: Iterable[int], target: int, signs: str = "+-*/()", room: int = MAX_TOKENS
) -> tuple[str, ...] | None:
    """Tokens that make a formula worth `target` out of its beginning, with as few new brackets as can be.

    Args:
        prefix: the formula so far.
        numbers: what is still to be used, each exactly once.
        target: what the formula shall be worth.
        signs: the operators and brackets that may be used.
        room: how many tokens may be added.

    Returns:
        The tokens to add, perhaps none at all; None if there is no such formula.
    """
    reading = read(prefix)
    if reading is None:
        return None
    left = tuple(sorted(numbers))
    most = max(0, len(left) - 1) if "(" in signs else 0
    for brackets in range(most + 1):
        found = _complete(reading, left, target, signs, room, brackets)
        if found is not None:
            return found
    return None


@lru_cache(maxsize=100_000)
def _complete(
    reading: Reading, left: tuple[int, ...], target: int, signs: str, room: int, brackets: int
) -> tuple[str, ...] | None:
    """As `completion`, with at most so many new brackets."""
    if tokens_to_close(reading, len(left)) > room:
        return None
    if not left and len(reading) == 1:
        return () if not expects_operand(reading) and reading[0].value == target else None
    if not _solvable(_unjoined(reading, left), Fraction(target)):
        return None
    for token, fewer, opened in _continuations(reading, left, signs, brackets):
        after = read_on(reading, token)
        rest = None if after is None else _complete(after, fewer, target, signs, room - 1, brackets - opened)
        if rest is not None:
            return (token, *rest)
    return None


def _unjoined(reading: Reading, left: tuple[int, ...]) -> tuple[Fraction, ...]:
    """All values that the rest of the formula has yet to join.

    If they do not make the target in any order, then no rest does: this spares nearly all of the search.
    """
    values = [Fraction(number) for number in left]
    for level in reading:
        if level.total or level.operator == "-":  # 0 + x is x, but 0 - x is not
            values.append(level.total)
        if level.operator not in ("+", "-"):
            values.append(level.product)
    return tuple(sorted(values))


def _continuations(
    reading: Reading, left: tuple[int, ...], signs: str, brackets: int
) -> Iterable[tuple[str, tuple[int, ...], int]]:
    """Tokens worth trying next, the numbers then left, and how many brackets that opens."""
    if expects_operand(reading):
        for number in sorted(set(left)):
            at = left.index(number)
            yield str(number), left[:at] + left[at + 1 :], 0
        if brackets and len(left) > 1:
            yield "(", left, 1
        return
    if left:
        yield from ((sign, left, 0) for sign in signs if sign in "+-*/")
    if len(reading) > 1:
        yield ")", left, 0


def solvable(numbers: Iterable[int], target: int) -> bool:
    """Whether + - * / and brackets make the target of all these numbers, each used once."""
    return _solvable(tuple(sorted(Fraction(number) for number in numbers)), Fraction(target))


@lru_cache(maxsize=100_000)
def _solvable(numbers: tuple[Fraction, ...], target: Fraction) -> bool:
    """Some two of the numbers are joined first; what they give takes their place."""
    if len(numbers) == 1:
        return numbers[0] == target
    for i, a in enumerate(numbers):
        for j, b in enumerate(numbers[:i]):
            others = tuple(number for k, number in enumerate(numbers) if k not in (i, j))
            joined = {a + b, a - b, b - a, a * b} | ({a / b} if b else set()) | ({b / a} if a else set())
            if any(_solvable(tuple(sorted((*others, number))), target) for number in joined):
                return True
    return False
