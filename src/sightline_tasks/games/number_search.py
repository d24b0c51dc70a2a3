"""Search for a formula, told step by step: the thoughts of a demonstration in which numbers are combined two by two.

    3 10 6 4: 6 / 3 = 2 -> 10 4 2: 10 - 4 = 6 -> 2 6: 6 * 2 = 12;
    3 10 6 4: 6 * 3 = 18 -> 10 4 18: 10 - 4 = 6 -> 18 6: 18 + 6 = 24; 6*3+10-4

An attempt names two of the numbers that are left, what they make, and what is left then; the last is compared with the
target. A stranger to the game can follow it, and so can a model that writes one small step after the other: which two
to take is guessed, but a wrong guess is noticed, and another attempt begins. Every step stands beside what it follows
from, so there is nothing to remember; and what is left keeps its order, with what was made at the end, so there is
nothing to sort. Every number of an attempt but its first has a blank before it, so that a tokenizer sees the same
number as the same token wherever it stands.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from fractions import Fraction
from functools import lru_cache
from typing import NamedTuple

import numpy as np

Numbers = tuple[Fraction, ...]
"""Numbers that are left: those of the hand as they were dealt, then those that were made."""
MOST = 100
"""No attempt makes more than this, or a fraction, unless its hand needs it: of the deals that make 24, 1 in 60 does."""


class Pairing(NamedTuple):
    """Two numbers, the sign between them, and what they make."""

    left: Fraction
    sign: str
    right: Fraction
    value: Fraction


def pairings(numbers: Numbers) -> Iterator[tuple[Pairing, Numbers]]:
    """All that any two numbers make, without negative values, each with the numbers that are left then."""
    seen: set[Pairing] = set()
    for i in range(len(numbers)):
        for j in range(i + 1, len(numbers)):
            small, large = sorted((numbers[i], numbers[j]))
            others = (*numbers[:i], *numbers[i + 1 : j], *numbers[j + 1 :])
            made = [(large, "+", small, large + small), (large, "-", small, large - small)]
            made += [(large, "*", small, large * small)]
            made += [(large, "/", small, large / small)] if small else []
            made += [(small, "/", large, small / large)] if large and small != large else []
            for one in map(Pairing._make, made):
                if one not in seen:
                    seen.add(one)
                    yield one, (*others, one.value)


def reachable(numbers: Numbers, target: Fraction, plain: bool) -> bool:
    """True if the target can be made of all numbers; with `plain`, of plain numbers on the way."""
    return _reachable(tuple(sorted(numbers)), target, plain)


@lru_cache(maxsize=200_000)
def _reachable(numbers: Numbers, target: Fraction, plain: bool) -> bool:
    if len(numbers) == 1:
        return numbers[0] == target
    return any(reachable(left, target, plain) for made, left in pairings(numbers) if not plain or is_plain(made.value))


def is_plain(number: Fraction) -> bool:
    """True for whole numbers up to `MOST`."""
    return number.denominator == 1 and number <= MOST


def attempt(
    numbers: Numbers, target: Fraction, chance: np.random.Generator, knows: int, tried: Collection[Pairing] = ()
) -> list[tuple[Pairing, Numbers]]:
    """Pairings until one number is left, each with the numbers left.

    Args:
        numbers: at least two.
        target: what is to be made.
        chance: of the choice, which is at random among all pairings, or among those that lead to the target.
        knows: with so many numbers left, or fewer, only pairings are made that lead to the target, if there are any:
            1 is no skill at all; 2 takes what makes the target when it lies there; with all numbers it succeeds.
        tried: what not to begin with, if there is another choice.
    """
    plain = knows < len(numbers) or reachable(numbers, target, True)
    steps: list[tuple[Pairing, Numbers]] = []
    while len(numbers) > 1:
        choices = [(made, left) for made, left in pairings(numbers) if is_plain(made.value) or not plain]
        if len(numbers) <= knows:
            choices = [(made, left) for made, left in choices if reachable(left, target, plain)] or choices
        if not steps:
            choices = [(made, left) for made, left in choices if made not in tried] or choices
        made, numbers = choices[int(chance.integers(len(choices)))]
        steps.append((made, numbers))
    return steps


_LOOSER = {"+": "", "-": "", "*": "+-", "/": "+-"}
"""Signs of a formula that needs brackets as the left operand of a sign; as the right one of - and / some more do."""
_RIGHT = _LOOSER | {"-": "+-", "/": "+-*/"}


def formula(steps: Sequence[Pairing]) -> list[str]:
    """Tokens of the formula that combines numbers in these steps, with no more brackets than it needs."""
    made: dict[Fraction, list[tuple[list[str], str]]] = {}

    def operand(number: Fraction, looser: str) -> list[str]:
        tokens, sign = made[number].pop() if made.get(number) else ([str(number)], "")
        return ["(", *tokens, ")"] if sign and sign in looser else tokens

    tokens: list[str] = []
    for left, sign, right, value in steps:
        tokens = [*operand(left, _LOOSER[sign]), sign, *operand(right, _RIGHT[sign])]
        made.setdefault(value, []).append((tokens, sign))
    return tokens


def told(
    numbers: Sequence[int], target: int, attempts: int, chance: np.random.Generator, skilled: bool = True
) -> tuple[str, list[str]]:
    """A search in words, and the tokens of the formula that it ends with: that of its last attempt.

    Args:
        numbers: in the order in which attempts list them; they make the target, if the search is skilled.
        target: what is to be made.
        attempts: how many, at least one; fewer if one succeeds by chance.
        chance: of the attempts.
        skilled: whether the last attempt succeeds, and only the first two numbers of all others are chosen at random:
            where the target can be made of what is left then, it is. Else all attempts are made at random. No two
            begin alike, as long as there is another way to begin.
    """
    hand, goal = tuple(map(Fraction, numbers)), Fraction(target)
    said: list[str] = []
    tried: set[Pairing] = set()
    steps: list[tuple[Pairing, Numbers]] = []
    for number in range(1, attempts + 1):
        knows = 1 if not skilled else len(hand) if number == attempts else len(hand) - 1
        steps = attempt(hand, goal, chance, knows, tried)
        tried.add(steps[0][0])
        said.append(_listed(hand) + "".join(_in_words(made, left) for made, left in steps))
        if steps[-1][0].value == goal:
            break
    found = formula([made for made, _ in steps])
    return f"{'; '.join(said)}; {''.join(found)}", found


def _listed(numbers: Numbers) -> str:
    return f"{' '.join(map(str, numbers))}: "


def _in_words(made: Pairing, left: Numbers) -> str:
    # 8 / (1/3) and not 8 / 1/3, which could be read as (8/1)/3
    one, other = (f"({number})" if number.denominator > 1 else str(number) for number in (made.left, made.right))
    text = f"{one} {made.sign} {other} = {made.value}"
    return f"{text} -> {_listed(left)}" if len(left) > 1 else text
