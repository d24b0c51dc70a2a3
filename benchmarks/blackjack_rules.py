"""Rules of Blackjack that agents are compared with, and the exact odds of any rule."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import NamedTuple

from sightline_tasks.games.blackjack import HIT, PROBABILITIES, STAND, Hand, Rule, dealer_totals


class Odds(NamedTuple):
    """How an episode ends on average.

    Attributes:
        win: probability to win, in 0..1.
        reward: mean reward, in -1..1.
    """

    win: float
    reward: float


def stand_always(hand: Hand, dealer: int) -> str:
    """The rule of those who never take a card; wins 38.1 %."""
    return STAND


def from_14(hand: Hand, dealer: int) -> str:
    """The rule of those who stand from 14 on, and from a soft 18 on, whatever the dealer has; wins 42.5 %."""
    return STAND if hand.total >= (18 if hand.soft else 14) else HIT


def best_reward(hand: Hand, dealer: int) -> str:
    """The rule of the highest mean reward, -0.0466, by exact dynamic programming over an infinite deck."""
    return _best_reward(hand, dealer)[0]


@cache
def _best_reward(hand: Hand, dealer: int) -> tuple[str, float]:
    """The action of the highest mean reward, and that reward."""

    def promise(after: Hand) -> float:
        return -1.0 if after.total > 21 else _best_reward(after, dealer)[1]

    stand = _odds_of_standing(hand.total, dealer).reward
    hit = sum(chance * promise(hand.with_card(number)) for number, chance in PROBABILITIES.items())
    return (HIT, hit) if hit >= stand else (STAND, stand)


def odds_of(rule: Rule) -> Odds:
    """The exact odds of a whole episode under a rule."""
    return odds_of_shares(lambda hand, dealer: float(rule(hand, dealer) == HIT))


def odds_of_shares(hits: Callable[[Hand, int], float]) -> Odds:
    """The exact odds of a whole episode if each hand is hit with the probability that `hits` says."""

    @cache
    def from_here(hand: Hand, dealer: int) -> Odds:
        if hand.total > 21:
            return Odds(0.0, -1.0)
        share = hits(hand, dealer)
        ends = [(1 - share, _odds_of_standing(hand.total, dealer))]
        if share > 0:
            ends += [(share * p, from_here(hand.with_card(number), dealer)) for number, p in PROBABILITIES.items()]
        return _mean(ends)

    return _mean(
        [
            (
                PROBABILITIES[first] * PROBABILITIES[second] * PROBABILITIES[dealer],
                from_here(Hand(0, False).with_card(first).with_card(second), dealer),
            )
            for first in PROBABILITIES
            for second in PROBABILITIES
            for dealer in PROBABILITIES
        ]
    )


def _mean(odds: list[tuple[float, Odds]]) -> Odds:
    return Odds(sum(chance * each.win for chance, each in odds), sum(chance * each.reward for chance, each in odds))


@cache
def _odds_of_standing(total: int, dealer: int) -> Odds:
    ends = dealer_totals(Hand(0, False).with_card(dealer))
    win = sum(chance for end, chance in ends.items() if end > 21 or end < total)
    lose = sum(chance for end, chance in ends.items() if total < end <= 21)
    return Odds(win, win - lose)
