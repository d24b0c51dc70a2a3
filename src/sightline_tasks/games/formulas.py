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

MAX_TOKENS = 64
MAX_DEPTH = 24
MAX_DIGITS = 6
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
        if not operand:
            return None
        return ParserLevel(self.total, self.product / operand, None)

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
    # Only the innermost level can change.
    *outer, level = reading
    if expects_operand(reading):
        if token == "(" and len(reading) <= MAX_DEPTH:
            return (*reading, EMPTY)
        if not (token.isascii() and token.isdigit() and len(token) <= MAX_DIGITS):
            return None
        after = level.with_operand(Fraction(int(token)))
        if after is None:
            return None
        return (*outer, after)
    if token == ")":
        if not outer:
            return None
        # The value of the bracket is an operand of the level around it.
        after = outer[-1].with_operand(level.value)
        if after is None:
            return None
        return (*outer[:-1], after)
    if len(token) == 1 and token in "+-*/":
        return (*outer, level.with_operator(token))
    return None


def read(tokens: Iterable[str]) -> ParserState | None:
    """Parse the beginning of a formula; None if no well-formed formula begins with it."""
    reading = START
    for count, token in enumerate(tokens):
        if count == MAX_TOKENS:
            return None
        after = read_on(reading, token)
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
    if tokens is None:
        return None
    reading = read(tokens)
    if reading is None or len(reading) > 1 or expects_operand(reading):
        return None
    return reading[0].value


def _split(text: str) -> list[str] | None:
    """Tokenise a string; None if it holds anything but tokens, or too many of them."""
    tokens: list[str] = []
    text = text.rstrip()
    position = 0
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None or len(tokens) == MAX_TOKENS:
            return None
        tokens.append(match[1])
        position = match.end()
    return tokens


def tokens_to_close(reading: ParserState, numbers_left: int) -> int:
    """Least number of tokens that complete a formula which still has to use `numbers_left` numbers."""
    brackets = len(reading) - 1
    tokens = 2 * numbers_left  # each number, and a sign before it
    if expects_operand(reading):
        tokens -= 1
    return max(0, tokens) + brackets


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
    free = tuple(sorted(numbers))
    most_brackets = 0
    if "(" in signs:
        most_brackets = max(0, len(free) - 1)
    # Fewest brackets first.
    for brackets in range(most_brackets + 1):
        tokens = _complete(reading, free, target, signs, room, brackets)
        if tokens is not None:
            return tokens
    return None


@lru_cache(maxsize=100_000)
def _complete(
    reading: ParserState, free: tuple[int, ...], target: int, signs: str, room: int, brackets: int
) -> tuple[str, ...] | None:
    """As `completion`, with at most `brackets` new brackets."""
    if tokens_to_close(reading, len(free)) > room:
        return None
    if not free and len(reading) == 1:
        is_complete = not expects_operand(reading) and reading[0].value == target
        return () if is_complete else None
    # In whatever order: brackets and signs cannot make what no order makes.
    if not _solvable(_remaining_values(reading, free), Fraction(target)):
        return None
    for token, remaining, opened in _continuations(reading, free, signs, brackets):
        after = read_on(reading, token)
        if after is None:
            continue
        tokens = _complete(after, remaining, target, signs, room - 1, brackets - opened)
        if tokens is not None:
            return (token, *tokens)
    return None


def _remaining_values(reading: ParserState, free: tuple[int, ...]) -> tuple[Fraction, ...]:
    """Values that the rest of the formula still has to combine, sorted.

    If these cannot make the target in any order, no completion can: this prunes nearly all of the search.
    """
    values = [Fraction(number) for number in free]
    for level in reading:
        if level.total or level.operator == "-":  # 0 + x is x, but 0 - x is not
            values.append(level.total)
        if level.operator not in ("+", "-"):
            values.append(level.product)
    return tuple(sorted(values))


def _continuations(
    reading: ParserState, free: tuple[int, ...], signs: str, brackets: int
) -> Iterable[tuple[str, tuple[int, ...], int]]:
    """Candidates for the next token: (token, free numbers after it, number of brackets that it opens)."""
    if expects_operand(reading):
        for number in sorted(set(free)):
            index = free.index(number)
            yield str(number), free[:index] + free[index + 1 :], 0
        # A bracket around a single number would change nothing.
        if brackets and len(free) > 1:
            yield "(", free, 1
        return
    if free:
        for sign in signs:
            if sign in "+-*/":
                yield sign, free, 0
    if len(reading) > 1:
        yield ")", free, 0


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
            remaining = (*numbers[:j], *numbers[j + 1 : i], *numbers[i + 1 :])
            results = {a + b, a - b, b - a, a * b}
            if b:
                results.add(a / b)
            if a:
                results.add(b / a)
            if any(_solvable(tuple(sorted((*remaining, result))), target) for result in results):
                return True
    return False
