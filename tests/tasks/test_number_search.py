"""Thoughts of Points24: every step of a search is right, its formula makes the target, and held-out hands stay so."""

from __future__ import annotations

import re
from collections.abc import Sequence
from fractions import Fraction
from itertools import combinations_with_replacement

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sightline.agents.demos import demonstrations
from sightline.agents.parsing import read_reply
from sightline.config.agents import Replies, WarmStart
from sightline.envs.games.making import GameMaker
from sightline_tasks.games.formulas import solvable, value
from sightline_tasks.games.number_search import attempt, is_plain, pairings, reachable, search_in_words
from sightline_tasks.games.points24 import Points24, is_held_out

HANDS = [hand for hand in combinations_with_replacement(range(1, 11), 4) if solvable(hand, 24)]
STEP = re.compile(r"(\d+|\([\d/]+\)) ([-+*/]) (\d+|\([\d/]+\)) = ([\d/]+)(?: -> ([\d/ ]+))?$")
PLANNED = Replies(fields={"cards": "", "plan": "attempts", "action": "one"}, memory="plan")


def test_what_can_be_reached_without_negative_numbers_is_what_can_be_solved() -> None:
    for hand in combinations_with_replacement(range(1, 11), 4):
        numbers = tuple(map(Fraction, hand))
        assert reachable(numbers, Fraction(24), plain=False) == solvable(hand, 24)
        assert reachable(numbers, Fraction(24), plain=False) or not reachable(numbers, Fraction(24), plain=True)


@example((3, 3, 8, 8), 1, 0, True)  # 8/(3-8/3): no way without fractions
@given(st.sampled_from(HANDS).flatmap(st.permutations), st.integers(1, 6), st.integers(0, 2**32), st.booleans())
def test_a_search_is_told_truly(hand: Sequence[int], attempts: int, seed: int, skilled: bool) -> None:
    said, found = search_in_words(hand, 24, attempts, np.random.default_rng(seed), skilled)
    assert value(found) == 24 or not skilled
    assert sorted(int(token) for token in found if token.isdigit()) == sorted(hand)
    *tries, formula = said.split("; ")
    assert formula == "".join(found) and 1 <= len(tries) <= attempts
    for number, text in enumerate(tries, 1):
        first, *steps = text.split(": ")
        assert first == " ".join(map(str, hand))
        left, made = [Fraction(one) for one in hand], Fraction(0)
        for step in steps:
            match = STEP.match(step)
            assert match is not None, step
            one, sign, other, result, rest = match.groups()
            a, b, made = Fraction(one.strip("()")), Fraction(other.strip("()")), Fraction(result)
            assert made == {"+": a + b, "-": a - b, "*": a * b}.get(sign, a / b if b else None) >= 0
            left.remove(a)
            left.remove(b)
            left.append(made)
            assert [Fraction(one) for one in (rest or str(made)).split()] == left
        assert made == value(found) if number == len(tries) else made != 24


@given(st.sampled_from(HANDS), st.integers(0, 2**32))
def test_what_two_numbers_make_is_not_missed(hand: Sequence[int], seed: int) -> None:
    goal, chance = Fraction(24), np.random.default_rng(seed)
    *_, (_, (one, other)), (made, _) = attempt(tuple(map(Fraction, hand)), goal, chance, knows=2)
    within_reach = goal in (
        one + other,
        one * other,
        abs(one - other),
        *([one / other, other / one] if one and other else []),
    )
    assert (made.value == goal) == within_reach


@given(st.sampled_from(HANDS), st.integers(2, 10), st.integers(0, 2**32))
def test_no_two_attempts_begin_alike(hand: Sequence[int], attempts: int, seed: int) -> None:
    said, _ = search_in_words(hand, 24, attempts, np.random.default_rng(seed))
    begun = [text.split(" -> ")[0] for text in said.split("; ")[:-1]]
    ways = sum(is_plain(made.value) for made, _ in pairings(tuple(map(Fraction, hand))))
    assert len(set(begun)) == len(begun) or len(begun) > ways


@given(st.sampled_from(HANDS).flatmap(st.permutations), st.integers(0, 2**32))
def test_what_was_tried_is_tried_again_where_nothing_else_succeeds(hand: Sequence[int], seed: int) -> None:
    numbers, chance = tuple(map(Fraction, hand)), np.random.default_rng(seed)
    every = {made for made, _ in pairings(numbers)}
    assert attempt(numbers, Fraction(24), chance, knows=4, tried=every)[-1][0].value == 24


def test_a_fifth_of_the_hands_is_held_out() -> None:
    kept = sum(map(is_held_out, HANDS))
    assert len(HANDS) == 566 and 0.15 < kept / len(HANDS) < 0.25
    assert is_held_out((3, 8, 1, 10)) == is_held_out((10, 3, 8, 1))
    for held_out in (False, True):
        game = Points24(held_out=held_out)
        for seed in range(40):
            game.reset(seed=seed)
            assert is_held_out(game.numbers) == held_out and solvable(game.numbers, 24)


def test_a_demonstration_plans_first_and_then_follows_its_plan() -> None:
    demos = list(demonstrations(GameMaker("points24"), PLANNED, 120, settings=WarmStart(explore=0.0)))
    games: dict[int, list[str]] = {}
    for demo in demos:
        reply = read_reply(demo.reply, PLANNED, Points24.action_names, ("cards",))
        plan = str(re.search(r'"plan": "([^"]*)"', demo.reply)[1])  # type: ignore[index]
        written = games.setdefault(demo.seed, [])
        formula = plan.split("; ")[-1]
        assert reply.action is not None
        if demo.turn == 0:
            assert "; " in plan and "You have written down: nothing" in demo.text
        else:
            assert plan == formula
            assert demo.turn == 1 or f"You have written down: {plan}" in demo.text
        written.append(reply.action)
        assert f"{formula}=".startswith("".join(written))
    whole = [written for written in games.values() if written[-1] == "="]
    assert len(whole) >= 8 and all(value(written[:-1]) == 24 for written in whole)


def test_a_move_beside_the_plan_ends_it() -> None:
    game = Points24()
    for seed in range(20):
        game.reset(seed=seed)
        thoughts, best = game.thoughts(), game.oracle()
        assert thoughts is not None and best is not None and thoughts.split("; ")[-1].startswith(best)
        other = next(name for name in game.legal_actions() if name != best)
        game.step(np.int64(game.action_names.index(other)))
        assert game.thoughts() is None
        game.reset(seed=seed)
        assert game.thoughts() == thoughts, "equal seeds give equal thoughts"


@pytest.mark.when_changed("tasks")
@pytest.mark.parametrize("share", [0.0, 0.3])
def test_fewer_later_turns_are_demonstrated(share: float) -> None:
    settings = WarmStart(explore=0.0, later_turns=share)
    turns = [demo.turn for demo in demonstrations(GameMaker("points24"), PLANNED, 150, settings=settings)]
    first = turns.count(0) / len(turns)
    assert first == 1 if share == 0 else 0.15 < first < 0.35, first  # a game has about ten turns
    assert share == 0 or max(turns) > 7
