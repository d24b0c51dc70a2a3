"""Formulas of integers with + - * / and brackets: parsing, exact evaluation, and completion.

A formula is a sequence of tokens, parsed from left to right by a pushdown automaton without recursion; the grammar has
no powers, no signs before a number, and no two numbers side by side. So hostile input cannot take long. The same parser
evaluates formulas, finds the legal next tokens, and completes unfinished formulas.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from fractions import Fraction
from functools import lru_cache
from typing import NamedTuple

MAX_TOKENS, MAX_DEPTH, MAX_DIGITS = 64, 24, 6
"""Limits of tokens, nested brackets and digits of a number; anything beyond is not a formula."""

_TOKEN = re.compile(r"\s*([0-9]+|[-+*/()])")


class ParserLevel(NamedTuple):
    """Value parsed since the last open bracket, `total + product`; the next operand may still change the product.

    Attributes:
        total: sum of the finished terms.
        product: the present term so far, with its sign.
        operator: operator before the next operand; None right after an operand.
    """

    total: Fraction
    product: Fraction
    operator: str | None

    @property
    def value(self) -> Fraction:
        return self.total + self.product

    def with_operand(self, operand: Fraction) -> ParserLevel | None:
        """Append an operand; None if that would divide by zero."""
        match self.operator:
            case "+":
                return ParserLevel(self.total, operand, None)
            case "-":
                return ParserLevel(self.total, -operand, None)
            case "*":
                return ParserLevel(self.total, self.product * operand, None)
        return ParserLevel(self.total, self.product / operand, None) if operand else None

    def with_operator(self, operator: str) -> ParserLevel:
        if operator in "+-":
            return ParserLevel(self.value, Fraction(0), operator)
        return ParserLevel(self.total, self.product, operator)


ParserState = tuple[ParserLevel, ...]
"""Stack of the parser: one level for the whole formula and one for each open bracket."""

EMPTY: ParserLevel = ParserLevel(Fraction(0), Fraction(0), "+")
START: ParserState = (EMPTY,)


def expects_operand(reading: ParserState) -> bool:
    return reading[-1].operator is not None


def read_on(reading: ParserState, token: str) -> ParserState | None:
    """Parse one more token; None if it is not allowed there or divides by zero."""
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


def read(tokens: Iterable[str]) -> ParserState | None:
    """Parse the beginning of a formula; None if no well-formed formula begins with it."""
    reading = START
    for count, token in enumerate(tokens):
        after = read_on(reading, token) if count < MAX_TOKENS else None
        if after is None:
            return None
        reading = after
    return reading


def value(formula: str | Sequence[str]) -> Fraction | None:
    """Evaluate a formula exactly; None if it is not well-formed, too long or too deep, or divides by zero.

    Args:
        formula: a string (adjacent digits are one number), or tokens (adjacent numbers are an error).
    """
    tokens = _split(formula) if isinstance(formula, str) else formula
    reading = None if tokens is None else read(tokens)
    if reading is None or len(reading) > 1 or expects_operand(reading):
        return None
    return reading[0].value


def _split(text: str) -> list[str] | None:
    """Tokenise a string; None if it holds anything but tokens, or too many of them."""
    tokens: list[str] = []
    text, at = text.rstrip(), 0
    while at < len(text):
        found = _TOKEN.match(text, at)
        if found is None or len(tokens) == MAX_TOKENS:
            return None
        tokens.append(found[1])
        at = found.end()
    return tokens


def tokens_to_close(reading: ParserState, numbers_left: int) -> int:
    """Least number of tokens that complete a formula which still has to use `numbers_left` numbers."""
    brackets = len(reading) - 1
    return max(0, 2 * numbers_left - 1 if expects_operand(reading) else 2 * numbers_left) + brackets


def completion(
    prefix: Sequence[str], numbers: Iterable[int], target: int, signs: str = "+-*/()", room: int = MAX_TOKENS
) -> tuple[str, ...] | None:
    """Complete a formula so that it equals `target`, with as few new brackets as possible.

    Args:
        prefix: the formula so far.
        numbers: numbers still to be used, each exactly once.
        target: value that the formula has to have.
        signs: operators and brackets that may be used.
        room: greatest number of tokens to add.

    Returns:
        The tokens to add, possibly none; None if there is no such formula.
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
    reading: ParserState, left: tuple[int, ...], target: int, signs: str, room: int, brackets: int
) -> tuple[str, ...] | None:
    """As `completion`, with at most `brackets` new brackets."""
    if tokens_to_close(reading, len(left)) > room:
        return None
    if not left and len(reading) == 1:
        return () if not expects_operand(reading) and reading[0].value == target else None
    if not _solvable(_remaining_values(reading, left), Fraction(target)):
        return None
    for token, fewer, opened in _continuations(reading, left, signs, brackets):
        after = read_on(reading, token)
        rest = None if after is None else _complete(after, fewer, target, signs, room - 1, brackets - opened)
        if rest is not None:
            return (token, *rest)
    return None


def _remaining_values(reading: ParserState, left: tuple[int, ...]) -> tuple[Fraction, ...]:
    """Values that the rest of the formula still has to combine, sorted.

    If these cannot make the target in any order, no completion can: this prunes nearly all of the search.
    """
    values = [Fraction(number) for number in left]
    for level in reading:
        if level.total or level.operator == "-":  # 0 + x is x, but 0 - x is not
            values.append(level.total)
        if level.operator not in ("+", "-"):
            values.append(level.product)
    return tuple(sorted(values))


def _continuations(
    reading: ParserState, left: tuple[int, ...], signs: str, brackets: int
) -> Iterable[tuple[str, tuple[int, ...], int]]:
    """Candidates for the next token: (token, numbers left after it, number of brackets that it opens)."""
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
    """True if + - * / and brackets can make the target of all these numbers, each used once."""
    return _solvable(tuple(sorted(Fraction(number) for number in numbers)), Fraction(target))


@lru_cache(maxsize=100_000)
def _solvable(numbers: tuple[Fraction, ...], target: Fraction) -> bool:
    """Recursive search: replace any two numbers by any result of combining them, until one number is left."""
    if len(numbers) == 1:
        return numbers[0] == target
    for i, a in enumerate(numbers):
        for j, b in enumerate(numbers[:i]):
            others = tuple(number for k, number in enumerate(numbers) if k not in (i, j))
            joined = {a + b, a - b, b - a, a * b} | ({a / b} if b else set()) | ({b / a} if a else set())
            if any(_solvable(tuple(sorted((*others, number))), target) for number in joined):
                return True
    return False
