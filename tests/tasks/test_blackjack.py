"""Blackjack: rules, exact odds, and pictures that hold every card."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from blackjack_rules import best_reward, from_14, odds_of, odds_of_shares, stand_always
from sightline.errors import BadInput
from sightline.evaluation.statistics import wilson
from sightline_tasks.drawing import Canvas
from sightline_tasks.games import blackjack
from sightline_tasks.games.blackjack import (
    HANDS,
    Blackjack,
    Hand,
    Rule,
    added_up,
    against_a_ten,
    as_dealer,
    dealer_totals,
    hand_of,
    most_wins,
)
from sightline_tasks.games.cards import RANKS, SUITS, TABLE, Card

STAND, HIT = np.int64(0), np.int64(1)


def cards(ranks: str) -> list[Card]:
    return [Card(rank, SUITS[place % 4]) for place, rank in enumerate(ranks.split())]


def table(player: str, dealer: str, to_come: str = "", **arguments: Any) -> Blackjack:
    """A game in which these cards lie and come."""
    game = Blackjack(**arguments)
    game.reset(seed=0)
    game.player, game.dealer = cards(player), cards(dealer)
    coming = iter(cards(to_come))
    game._draw_card = lambda: next(coming)  # type: ignore[method-assign]
    return game


@pytest.mark.parametrize(
    ("ranks", "hand"),
    [
        *[("A", Hand(11, True)), ("A A", Hand(12, True)), ("A K", Hand(21, True)), ("A 6 K", Hand(17, False))],
        *[
            ("K 6 A", Hand(17, False)),
            ("A 5 A", Hand(17, True)),
            ("A A K 9", Hand(21, False)),
            ("J Q 2", Hand(22, False)),
        ],
        ("A A A A A A A A A A A", Hand(21, True)),
    ],
)
def test_totals(ranks: str, hand: Hand) -> None:
    assert hand_of(cards(ranks)) == hand


@pytest.mark.parametrize(
    ("player", "dealer", "to_come", "outcome"),
    [
        *[("K 9", "K 8", "", "win"), ("K 8", "K 8", "", "draw"), ("K 7", "K 8", "", "loss")],
        ("K 7", "A 6", "", "draw"),  # stands on a soft 17
        ("K 9", "A 5 ", "K 2", "win"),  # soft 16, hard 16, 18
        ("2 3", "K 6", "6", "win"),  # over 21
        ("A K", "7 7", "7", "draw"),  # a natural is 21 like any other
    ],
)
def test_the_dealers_turn(player: str, dealer: str, to_come: str, outcome: str) -> None:
    _, reward, terminated, truncated, info = table(player, dealer, to_come).step(STAND)
    assert (info["outcome"], terminated, truncated) == (outcome, True, False)
    assert reward == {"win": 1, "draw": 0, "loss": -1}[outcome]
    assert info["success"] == (outcome == "win")


def test_over_21_loses_at_once() -> None:
    game = table("K 5", "K 6", "6 A")
    assert game.step(HIT)[1:4] == (0.0, False, False)
    _, reward, terminated, _, info = game.step(HIT)
    assert (reward, terminated, info["outcome"], info["legal_actions"]) == (-1.0, True, "loss", ())
    assert game.oracle() is None
    assert info["facts"] == {"player": "K, 5, 6, A", "dealer": "K"}


def test_the_dealers_cards_are_shown_in_the_end_only() -> None:
    for legacy, shown in ((False, "9, 3, K"), (True, "9")):
        game = table("K 9", "9 3", "K", legacy=legacy)
        assert game.facts() == {"player": "K, 9", "dealer": "9"} and "face down" in game.caption()
        assert game.step(STAND)[4]["facts"]["dealer"] == shown
        assert ("face down" in game.caption()) == legacy


@pytest.mark.parametrize(
    ("ranks", "said"),
    [
        ("K 5 6", "K 10, 5 15, 6 21"),
        ("A 6 9", "A soft 11, 6 soft 17, 9 16"),
        ("A A K 9", "A soft 11, A soft 12, K 12, 9 21"),
    ],
)
def test_hands_are_added_up_card_by_card(ranks: str, said: str) -> None:
    assert added_up(cards(ranks)) == said


def test_the_total_is_asked_for_where_the_option_says_so() -> None:
    game = Blackjack(total=True)
    assert game.asked == ("dealer", "total") and Blackjack().asked == ("player", "dealer")
    for seed in range(9):
        assert game.reset(seed=seed)[1]["facts"]["total"].split()[-1] == str(game.hand.total)


def test_the_hidden_card_is_told_nowhere() -> None:
    pictures, words = set(), set()
    for hidden in RANKS:
        observation = table("5 8", f"9 {hidden}")._observation()
        pictures.add(observation.images[0].tobytes())
        words.add((observation.text, table("5 8", f"9 {hidden}").caption()))
    assert len(pictures) == len(words) == 1


def test_exact_odds() -> None:
    """Known from an independent computation: .3807, .4077, .4316 wins; best mean reward -.0466 with .4295 wins."""
    assert odds_of(stand_always).win == pytest.approx(0.3807, abs=5e-5)
    assert odds_of(as_dealer).win == pytest.approx(0.4077, abs=5e-5)
    assert odds_of(most_wins).win == pytest.approx(0.4316, abs=5e-5)
    assert odds_of(from_14).win == pytest.approx(0.4250, abs=5e-5)
    assert odds_of(against_a_ten).win == pytest.approx(0.3824, abs=5e-5)
    assert odds_of(best_reward).reward == pytest.approx(-0.0466, abs=5e-5)
    assert odds_of(best_reward).win == pytest.approx(0.4295, abs=5e-5)
    assert odds_of(lambda hand, dealer: "hit" if hand.total < 20 else "stand").win == pytest.approx(0.2939, abs=5e-5)


@pytest.mark.parametrize(
    ("player", "dealer", "best", "as_dealer", "ten"),
    [
        *[("K 6", "7 2", "hit", "hit", "hit"), ("K 7", "K 2", "stand", "stand", "hit")],
        *[("K 3", "2 9", "stand", "hit", "stand"), ("K 3", "6 9", "stand", "hit", "hit")],
        *[("A 9", "A 2", "stand", "stand", "hit"), ("A 6", "5 2", "hit", "stand", "stand")],
    ],
)
def test_advice_is_that_of_its_rule(player: str, dealer: str, best: str, as_dealer: str, ten: str) -> None:
    for name, action in {"best": best, "dealer": as_dealer, "ten": ten}.items():
        assert table(player, dealer, advice=name).oracle() == action


@pytest.mark.when_changed("tasks")
def test_games_may_begin_anywhere() -> None:
    """With every value as often as with any other, beside each of the dealer's cards."""
    game, states, counts = Blackjack(starts="any", total=True), Counter[tuple[Hand, int]](), Counter[int]()
    for seed in range(1000):
        _, info = game.reset(seed=seed)
        states[game.hand, game.upcard] += 1
        counts[len(game.player)] += 1
        assert info["facts"]["total"] == added_up(game.player) and not info["success"]
    hands, upcards = Counter[Hand](), Counter[int]()
    for (hand, upcard), times in states.items():
        hands[hand] += times
        upcards[upcard] += times
    assert set(hands) == set(HANDS) and len(HANDS) == 28 and max(hands.values()) < 65  # 36 expected
    assert sorted(upcards) == list(range(1, 11)) and min(upcards.values()) > 70  # 100 expected
    assert counts[2] > 400 and counts[3] > 150 and counts[4] > 20, "as many cards as such hands have"
    game.reset(seed=7)
    again = game.player, game.dealer
    game.reset(seed=7)
    assert (game.player, game.dealer) == again
    with pytest.raises(BadInput, match="starts"):
        Blackjack(starts="every")  # type: ignore[arg-type]


def test_a_hand_that_is_hit_at_times_lies_between_never_and_always() -> None:
    def odds(share: float) -> float:
        # hard 16 never comes twice in an episode, so its share of hits counts in proportion
        return odds_of_shares(lambda hand, dealer: share if hand == Hand(16, False) else hand.total < 17).win

    assert odds(0.0) != pytest.approx(odds(1.0), abs=1e-3)
    assert odds(0.25) == pytest.approx(0.75 * odds(0.0) + 0.25 * odds(1.0), abs=1e-12)
    assert odds(1.0) == odds_of(as_dealer).win
    # whoever flips a coin in every hand wins 28 %: 2 779 of 10 000 games of random play
    assert wilson(2779, 10_000)[0] < odds_of_shares(lambda hand, dealer: 0.5).win < wilson(2779, 10_000)[1]


def test_dealer_totals_sum_to_one_and_agree_with_chance() -> None:
    totals = dealer_totals(Hand(6, False))
    assert sum(totals.values()) == pytest.approx(1) and min(totals) == 17
    rng, over = random.Random(0), 0
    for _ in range(4000):
        total, aces = 6, 0
        while total + (10 if aces and total <= 11 else 0) < 17:
            number = min(rng.randint(1, 13), 10)
            total, aces = total + number, aces + (number == 1)
        over += total > 21
    low, high = wilson(over, 4000)
    assert low <= totals[22] <= high


def win_rate(policy: Callable[[Blackjack], str], episodes: int, legacy: bool) -> tuple[float, float]:
    """Wilson's interval of the share of wins in played episodes."""
    game, wins = Blackjack(legacy=legacy, render_size=(32, 32)), 0
    for seed in range(episodes):
        game.reset(seed=seed)
        over = False
        while not over:
            _, _, over, _, info = game.step(np.int64(game.action_names.index(policy(game))))
        wins += info["success"]
    return wilson(wins, episodes)


@pytest.mark.when_changed("tasks")
@pytest.mark.parametrize("legacy", [False, True])
@pytest.mark.parametrize(("rule", "rate"), [(stand_always, 0.3807), (as_dealer, 0.4077), (most_wins, 0.4316)])
def test_played_episodes_agree(rule: Rule, rate: float, legacy: bool) -> None:
    low, high = win_rate(lambda game: game.follow(rule), 1200, legacy)
    assert low <= rate <= high


def test_random_play_agrees() -> None:
    rng = random.Random(0)
    low, high = win_rate(lambda game: rng.choice(game.action_names), 1200, True)
    assert low <= 0.2806 <= high


def test_tens_are_shown_as_faces_in_legacy_only() -> None:
    seen: dict[bool, set[str]] = {False: set(), True: set()}
    for legacy in seen:
        game = Blackjack(legacy=legacy, render_size=(32, 32))
        for seed in range(60):
            game.reset(seed=seed)
            seen[legacy] |= {card.rank for card in [*game.player, *game.dealer]}
    assert seen[False] == set(RANKS) and seen[True] == set(RANKS) - {"10"}


@pytest.mark.parametrize("size", [(96, 96), (300, 300), (64, 160), (160, 64)])
@pytest.mark.parametrize("count", [2, 4, 5, 8, 12, 21])
def test_every_card_of_a_hand_lies_inside_and_apart(
    count: int, size: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    laid: list[tuple[float, float, float, float]] = []
    draw_card = blackjack.draw_card

    def draw_and_note(canvas: Canvas, card: Card | None, x: float, y: float, width: float, height: float) -> None:
        laid.append((x, y, x + width, y + height))
        draw_card(canvas, card, x, y, width, height)

    monkeypatch.setattr(blackjack, "draw_card", draw_and_note)
    game = table(" ".join(["A", "7", "10"][i % 3] for i in range(count)), "9 8", render_size=size)
    laid.clear()
    picture = game.draw()
    assert len(laid) == 2 + count
    for left, top, right, bottom in laid:
        assert left >= 0 and top >= 0 and right <= 1 and bottom <= 1 and right > left and bottom > top
    for i, (left, top, right, bottom) in enumerate(laid):
        assert not any(left < r and x < right and top < b and y < bottom for x, y, r, b in laid[:i])
    border = np.concatenate([picture[0], picture[-1], picture[:, 0], picture[:, -1]])
    assert (border == TABLE).all()


def test_one_more_card_changes_the_picture() -> None:
    pictures = {table(" ".join(["A"] * count), "9 8").draw().tobytes() for count in range(2, 22)}
    assert len(pictures) == 20
