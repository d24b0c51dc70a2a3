"""Blackjack: hit or stand, from the picture of the cards.

The rules are those of Gymnasium's `Blackjack-v1` without naturals (Sutton and Barto, "Reinforcement Learning", example
5.1): an infinite deck, the dealer draws to 17 and stands on a soft 17.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import Any, Literal, NamedTuple

import numpy as np

from sightline.envs.frames import Size
from sightline.envs.games.contract import Game, Observation
from sightline.envs.tasks import Task
from sightline.errors import one_of
from sightline_tasks.drawing import Canvas
from sightline_tasks.games.cards import DIM, RANKS, TABLE, Card, any_suit, cards_in_words, draw_card, ranks_in_words

HIT = "hit"
STAND = "stand"
PROBABILITIES = {number: (4 if number == 10 else 1) / 13 for number in range(1, 11)}
"""Probability of each number in an infinite deck; J, Q and K count as 10."""


class Hand(NamedTuple):
    """Value of a hand.

    Attributes:
        total: best total: one ace counts as 11 if that does not exceed 21.
        soft: true if an ace counts as 11.
    """

    total: int
    soft: bool

    def with_card(self, number: int) -> Hand:
        """Hand with one more card of a number, 1 (ace) to 10."""
        total = self.total + number
        if self.soft:
            total -= 10  # every ace counts as 1 first
        has_ace = self.soft or number == 1
        if has_ace and total + 10 <= 21:
            return Hand(total + 10, True)
        return Hand(total, False)


def hand_of(cards: list[Card]) -> Hand:
    """Value of a hand of cards."""
    hand = Hand(0, False)
    for card in cards:
        hand = hand.with_card(min(card.number, 10))
    return hand


def added_up(cards: list[Card]) -> str:
    """The cards one by one, each with the value of the hand up to it."""
    parts = []
    for index, card in enumerate(cards):
        hand = hand_of(cards[: index + 1])
        soft = "soft " if hand.soft else ""
        parts.append(f"{card.rank} {soft}{hand.total}")
    return ", ".join(parts)


Rule = Callable[[Hand, int], str]
"""Policy: (player's hand, number of the dealer's upcard) -> `hit` or `stand`."""


def most_wins(hand: Hand, dealer: int) -> str:
    """Policy with the highest win rate, 43.2 %, by exact dynamic programming over an infinite deck.

    The policy with the highest mean reward is another one, since draws count there: it wins 42.9 %, with a mean reward
    of -0.0466 instead of this one's -0.0502.
    """
    return _most_wins(hand, dealer)[0]


@cache
def _most_wins(hand: Hand, dealer: int) -> tuple[str, float]:
    """The action that wins most often, and the probability to win with it."""
    # Over all cards that may come, played on in the best way; above 21 is lost.
    wins_by_hit = 0.0
    for number, probability in PROBABILITIES.items():
        after = hand.with_card(number)
        if after.total <= 21:
            wins_by_hit += probability * _most_wins(after, dealer)[1]
    # Over all totals that the dealer may reach; a draw is no win.
    wins_by_stand = 0.0
    for total, probability in dealer_totals(Hand(0, False).with_card(dealer)).items():
        if total > 21 or total < hand.total:
            wins_by_stand += probability
    if wins_by_hit >= wins_by_stand:
        return HIT, wins_by_hit
    return STAND, wins_by_stand


@cache
def dealer_totals(hand: Hand) -> dict[int, float]:
    """Final total of a dealer with this hand -> probability; 22 means any total above 21."""
    if hand.total >= 17:
        return {min(hand.total, 22): 1.0}
    totals: dict[int, float] = {}
    for number, chance in PROBABILITIES.items():
        for total, probability in dealer_totals(hand.with_card(number)).items():
            totals[total] = totals.get(total, 0.0) + chance * probability
    return totals


def as_dealer(hand: Hand, dealer: int) -> str:
    """Policy of the dealer, who hits below 17; it wins 40.8 %."""
    return HIT if hand.total < 17 else STAND


def against_a_ten(hand: Hand, dealer: int) -> str:
    """Beginner's policy: take the dealer's face-down card for a ten, and hit below that total; it wins 38.2 %."""
    dealers_hand = Hand(0, False).with_card(dealer).with_card(10)
    return HIT if hand.total < dealers_hand.total else STAND


HANDS = (*(Hand(total, False) for total in range(21, 3, -1)), *(Hand(total, True) for total in range(21, 11, -1)))
"""All that a player may hold who is not over 21."""
RULES: dict[str, Rule] = {"best": most_wins, "dealer": as_dealer, "ten": against_a_ten}


class Blackjack(Game):
    """Get closer to 21 than the dealer, without going over.

    Reward at the end: +1 for a win, 0 for a draw, -1 for a loss; a natural counts as any other 21. `success` is a win,
    never a draw. Infos also hold `outcome` (`win`, `draw`, `loss`, or "" before the end) and `kind` ("").

    Cards are sampled with replacement. The dealer's second card is shown once the player stands.

    Args:
        total: instead of the player's cards ask for what they add up to, card by card (`K 10, 3 13, A 14`; `soft 17`
            where an ace counts as 11): no card shows the value of the hand, and so a reply works it out before its
            action.
        advice: what best play and demonstrations are: what wins most (`best`); the dealer's own rule, hit below 17
            (`dealer`, 40.8 %); or a beginner's, hit below what the dealer has if the card face down is a ten (`ten`,
            38.2 %).
        starts: how games begin: with two cards `dealt`, or, for training, with `any` hand, each value as often as any
            other, beside each of the dealer's cards (exploring starts, Sutton and Barto, "Reinforcement Learning",
            2018, section 5.3).
        legacy: show every ten as J, Q or K and never as 10, and never show more than the dealer's upcard.
        render_size: height and width of the pictures.
        render_mode: `rgb_array` or None.
    """

    action_names = (STAND, HIT)

    def __init__(
        self,
        total: bool = False,
        advice: Literal["best", "dealer", "ten"] = "best",
        starts: Literal["dealt", "any"] = "dealt",
        legacy: bool = False,
        render_size: Size = (96, 96),
        render_mode: str | None = "rgb_array",
    ) -> None:
        super().__init__(render_size, render_mode)
        self.asked = ("dealer", "total") if total else ("player", "dealer")
        self.rule = RULES[one_of("advice", advice, RULES)]
        self.starts = one_of("starts", starts, ("dealt", "any"))
        self.legacy = legacy
        self.player: list[Card] = []
        self.dealer: list[Card] = []
        self._outcome = ""
        self._stood = False

    @property
    def hand(self) -> Hand:
        """Value of the player's hand."""
        return hand_of(self.player)

    @property
    def upcard(self) -> int:
        """Number of the dealer's upcard, 1 (ace) to 10."""
        return min(self.dealer[0].number, 10)

    def follow(self, rule: Rule) -> str:
        """Action of a policy in the present state."""
        return rule(self.hand, self.upcard)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        super().reset(seed=seed)
        self.dealer = [self._draw_card(), self._draw_card()]
        self.player = [self._draw_card(), self._draw_card()]
        if self.starts == "any":
            self._explore()
        self._outcome = ""
        self._stood = False
        return self._observation(), self._info(False)

    def _explore(self) -> None:
        """Replace the dealer's upcard and the player's hand by any others."""
        upcard = 1 + int(self.np_random.integers(10))
        hand = HANDS[int(self.np_random.integers(len(HANDS)))]
        # Suits stay as random as in a dealt game.
        while self.upcard != upcard:
            self.dealer[0] = self._draw_card()
        while self.hand != hand:
            # Cards as they come until the hand has that value: so it consists of what such hands consist of.
            if self.hand.total > 21:
                self.player = [self._draw_card()]
            self.player.append(self._draw_card())

    def _draw_card(self) -> Card:
        rank = RANKS[int(self.np_random.integers(len(RANKS)))]
        if rank == "10" and self.legacy:
            rank = "JQK"[int(self.np_random.integers(3))]
        return any_suit(rank, self.np_random)

    def step(self, action: np.int64) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        if self.action_names[action] == HIT:
            self.player.append(self._draw_card())
            self._outcome = "loss" if self.hand.total > 21 else ""
        else:
            self._stood = True
            self._outcome = self._dealers_turn()
        reward = {"win": 1.0, "loss": -1.0}.get(self._outcome, 0.0)
        return self._observation(), reward, bool(self._outcome), False, self._info(self._outcome == "win")

    def _dealers_turn(self) -> str:
        while hand_of(self.dealer).total < 17:
            self.dealer.append(self._draw_card())
        players_total = self.hand.total
        dealers_total = hand_of(self.dealer).total
        if dealers_total > 21 or players_total > dealers_total:
            return "win"
        return "draw" if players_total == dealers_total else "loss"

    def _open_cards(self) -> list[Card]:
        """Face-up cards of the dealer."""
        if self._stood and not self.legacy:
            return self.dealer
        return self.dealer[:1]

    def text(self) -> str:
        return (
            "The picture shows a game of blackjack: the dealer's cards above, one of them face down, and your cards "
            "below. Come closer to 21 than the dealer, but not over it. A counts as 1 or 11; J, Q and K count as 10. "
            "hit takes another card, and over 21 you lose at once. "
            "stand ends your turn; then the dealer draws to 17 or more and the totals are compared."
        )

    def facts(self) -> dict[str, str]:
        facts = {
            "player": ranks_in_words(self.player),
            "dealer": ranks_in_words(self._open_cards()),
            "total": added_up(self.player),
        }
        return {name: facts[name] for name in self.asked}

    def legal_actions(self) -> tuple[str, ...]:
        if self._outcome and not self.legacy:
            return ()
        return self.action_names

    def oracle(self) -> str | None:
        """Action by the rule of `advice`; None at the end. No policy wins more than the best one, 43.2 %."""
        if self._outcome:
            return None
        return self.follow(self.rule)

    def caption(self) -> str:
        dealers_cards = cards_in_words(self._open_cards())
        if len(self._open_cards()) < len(self.dealer):
            dealers_cards += " and a card face down"
        return f"The dealer has {dealers_cards}. You have {cards_in_words(self.player)}."

    def draw(self) -> np.ndarray:
        canvas = Canvas(self.render_size, TABLE)
        dealers_cards: list[Card | None] = [*self._open_cards()]
        if len(dealers_cards) == 1:
            dealers_cards.append(None)  # the one that lies face down
        _lay_hand(canvas, "dealer", dealers_cards, 0.0)
        _lay_hand(canvas, "you", [*self.player], 0.5)
        return canvas.pixels()

    def _info(self, success: bool) -> dict[str, Any]:
        return super()._info(success) | {"kind": "", "outcome": self._outcome}


def _lay_hand(canvas: Canvas, name: str, cards: list[Card | None], top: float) -> None:
    """Draw a hand in one half of the picture, in the number of rows that makes its cards largest."""
    # Fractions of the picture: between cards, and for all of them together.
    gap = 0.02
    total_height = 0.4
    total_width = 0.98
    canvas.text((0.03, top + 0.05), name, 0.05, DIM, align="l")
    aspect = canvas.width / canvas.height

    def size(rows: int) -> tuple[float, float]:
        """Height and width of a card, in fractions of the picture."""
        height = total_height / rows - gap
        width = total_width / max(3, math.ceil(len(cards) / rows)) - gap
        # A card is neither wider than 0.8 of its height, nor higher than 1.6 of its width.
        width = min(width, height * 0.8 / aspect)
        return min(height, width * aspect * 1.6), width

    rows = max(range(1, len(cards) + 1), key=lambda rows: math.prod(size(rows)))
    height, width = size(rows)
    columns = math.ceil(len(cards) / rows)
    for index, card in enumerate(cards):
        row, column = divmod(index, columns)
        card_left = gap + column * (width + gap)
        card_top = top + 0.09 + row * (height + gap)
        draw_card(canvas, card, card_left, card_top, width, height)


TASK = Task(
    name="blackjack",
    env="sightline/Blackjack-v0",
    goal=("the player has more points than the dealer, and at most twenty-one",),
    baseline=("a game of cards",),
    success="end",
    is_game=True,
    summary="Hit or stand against a dealer.",
)
