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

import itertools
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
    repeated: set[Pairing] = set()  # hands with equal numbers offer the same pairing several times
    for i, j in itertools.combinations(range(len(numbers)), 2):
        small, large = sorted((numbers[i], numbers[j]))
        remaining = (*numbers[:i], *numbers[i + 1 : j], *numbers[j + 1 :])
        candidates = [
            Pairing(large, "+", small, large + small),
            Pairing(large, "-", small, large - small),
            Pairing(large, "*", small, large * small),
        ]
        if small:
            candidates.append(Pairing(large, "/", small, large / small))
        if large and small != large:
            candidates.append(Pairing(small, "/", large, small / large))
        for pairing in candidates:
            if pairing not in repeated:
                repeated.add(pairing)
                yield pairing, (*remaining, pairing.value)


def reachable(numbers: Numbers, target: Fraction, plain: bool) -> bool:
    """True if the target can be made of all numbers; with `plain`, of plain numbers on the way."""
    return _reachable(tuple(sorted(numbers)), target, plain)


@lru_cache(maxsize=200_000)
def _reachable(numbers: Numbers, target: Fraction, plain: bool) -> bool:
    if len(numbers) == 1:
        return numbers[0] == target
    for pairing, remaining in pairings(numbers):
        is_allowed = not plain or is_plain(pairing.value)
        if is_allowed and reachable(remaining, target, plain):
            return True
    return False


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
    # A hand that can only be solved by fractions or large numbers may use them where success is asked for.
    plain = knows < len(numbers) or reachable(numbers, target, True)
    steps: list[tuple[Pairing, Numbers]] = []
    while len(numbers) > 1:
        choices = list(pairings(numbers))
        if plain:
            choices = [choice for choice in choices if is_plain(choice[0].value)]
        # Each further wish is dropped where no choice fulfils it.
        if len(numbers) <= knows:
            choices = [choice for choice in choices if reachable(choice[1], target, plain)] or choices
        if not steps:
            choices = [choice for choice in choices if choice[0] not in tried] or choices
        pairing, numbers = choices[int(chance.integers(len(choices)))]
        steps.append((pairing, numbers))
    return steps


_LOOSER = {"+": "", "-": "", "*": "+-", "/": "+-"}
"""Signs of a formula that needs brackets as the left operand of a sign; as the right one of - and / some more do."""
_RIGHT = _LOOSER | {"-": "+-", "/": "+-*/"}


def formula(steps: Sequence[Pairing]) -> list[str]:
    """Tokens of the formula that combines numbers in these steps, with no more brackets than it needs."""
    # Value -> formulas of earlier steps that have it and are not used yet, each with its outermost sign.
    formulas: dict[Fraction, list[tuple[list[str], str]]] = {}

    def operand(number: Fraction, looser: str) -> list[str]:
        if not formulas.get(number):
            return [str(number)]  # a number of the hand
        tokens, sign = formulas[number].pop()
        if sign in looser:
            return ["(", *tokens, ")"]
        return tokens

    tokens: list[str] = []
    for left, sign, right, value in steps:
        tokens = [*operand(left, _LOOSER[sign]), sign, *operand(right, _RIGHT[sign])]
        formulas.setdefault(value, []).append((tokens, sign))
    return tokens


def search_in_words(
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
    hand = tuple(map(Fraction, numbers))
    goal = Fraction(target)
    sentences: list[str] = []
    tried: set[Pairing] = set()
    pairings_made: list[Pairing] = []
    for number in range(1, attempts + 1):
        knows = 1
        if skilled:
            is_last = number == attempts
            knows = len(hand) if is_last else len(hand) - 1
        steps = attempt(hand, goal, chance, knows, tried)
        pairings_made = [pairing for pairing, _ in steps]
        tried.add(pairings_made[0])
        sentences.append(_listed(hand) + "".join(_in_words(pairing, remaining) for pairing, remaining in steps))
        if pairings_made[-1].value == goal:
            break
    tokens = formula(pairings_made)
    return f"{'; '.join(sentences)}; {''.join(tokens)}", tokens


def _listed(numbers: Numbers) -> str:
    return f"{' '.join(map(str, numbers))}: "


def _in_words(pairing: Pairing, remaining: Numbers) -> str:
    text = f"{_operand(pairing.left)} {pairing.sign} {_operand(pairing.right)} = {pairing.value}"
    if len(remaining) > 1:
        text += f" -> {_listed(remaining)}"
    return text


def _operand(number: Fraction) -> str:
    # 8 / (1/3) and not 8 / 1/3, which could be read as (8/1)/3
    if number.denominator > 1:
        return f"({number})"
    return str(number)
