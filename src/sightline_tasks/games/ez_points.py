"""EZPoints: make twelve of the numbers of two cards."""

from __future__ import annotations

from typing import Literal

from sightline.envs.frames import Size
from sightline.envs.tasks import Task
from sightline.errors import BadInput
from sightline_tasks.drawing import Canvas
from sightline_tasks.games.cards import RANKS, Card, any_suit
from sightline_tasks.games.points import PointsGame

Deals = Literal["reference", "pairs"]


class EZPoints(PointsGame):
    """Make the target of two cards with + or *; see :class:`PointsGame` for rules, rewards and infos.

    Every deal is solvable; with the target 12, by only one of the two signs. `kind` is the solution with the smaller
    number first, as `2+10` or `2*6`.

    Args:
        target: value that the formula has to have.
        legacy: make every action legal in every state, as the reference does (which also takes a sign
            before a number, as in `+5+7`, where ours is worth nothing).
        deals: `reference` samples the first rank uniformly from 2 to K and its partner by the sum, or in half of the
            deals by the product where there is one (five of six deals need +); `pairs` is for training: half of the
            deals need +, half *, and for each sign all pairs of numbers are equally likely.
        render_size: height and width of the pictures.
        render_mode: `rgb_array` or None.

    Raises:
        BadInput: no two cards make that target, or there are no such deals.
    """

    action_names = ("1", "2", "3", "4", "5", "6", "7", "8", "9", "10", "+", "*", "=")
    max_tokens = 5

    def __init__(
        self,
        target: int = 12,
        legacy: bool = False,
        deals: Deals = "reference",
        render_size: Size = (96, 96),
        render_mode: str | None = "rgb_array",
    ) -> None:
        super().__init__(target, legacy, render_size, render_mode)
        if deals not in ("reference", "pairs"):
            raise BadInput(f"deals='{deals}' is unknown; say 'reference' or 'pairs'")
        if not any(self._partners(rank) for rank in RANKS[1:]):
            raise BadInput(f"target={target} cannot be made of two cards; 12 is usual")
        self.deals: Deals = deals

    def number(self, card: Card) -> int:
        return _number(card.rank)

    def _partners(self, rank: str) -> dict[str, int]:
        """Sign -> number that makes the target together with this rank, for a first rank of 2 to K."""
        number = _number(rank)
        partners = {}
        if 1 <= self.target - number <= 10:
            partners["+"] = self.target - number
        if self.target % number == 0 and self.target // number <= 10:
            partners["*"] = self.target // number
        return partners

    def deal(self) -> list[Card]:
        # The reference draws ranks, by which five of six deals need +; for training both signs come equally often.
        if self.deals == "pairs":
            first, second = self._deal_pair()
        else:
            ranks = [rank for rank in RANKS[1:] if self._partners(rank)]
            first = ranks[int(self.np_random.integers(len(ranks)))]
            partners = list(self._partners(first).values())
            second = RANKS[partners[int(self.np_random.integers(len(partners)))] - 1]
        cards = [any_suit(first, self.np_random), any_suit(second, self.np_random)]
        if self.np_random.random() < 0.5:
            return cards
        return cards[::-1]

    def _deal_pair(self) -> tuple[str, str]:
        # Sign -> all pairs (small, large) of numbers that need it.
        pairs: dict[str, set[tuple[int, int]]] = {}
        for rank in RANKS[1:]:
            for sign, partner in self._partners(rank).items():
                number = _number(rank)
                pairs.setdefault(sign, set()).add((min(number, partner), max(number, partner)))
        signs = sorted(pairs)
        sign = signs[int(self.np_random.integers(len(signs)))]
        candidates = sorted(pairs[sign])
        small, large = candidates[int(self.np_random.integers(len(candidates)))]
        return self._any_rank(small), self._any_rank(large)

    def _any_rank(self, number: int) -> str:
        ranks = [rank for rank in RANKS if _number(rank) == number]
        return ranks[int(self.np_random.integers(len(ranks)))]

    def kind(self) -> str:
        small, large = sorted(self.numbers)
        sign = "+" if small + large == self.target else "*"
        return f"{small}{sign}{large}"

    def lay_out(self, canvas: Canvas) -> None:
        self.draw_row(canvas, top=0.05, height=0.68, gap=0.05)
        self.draw_formula(canvas, top=0.76, bottom=0.99, size=0.14)


def _number(rank: str) -> int:
    """Number of a rank; J, Q and K count as 10."""
    return min(RANKS.index(rank) + 1, 10)


TASK = Task(
    name="ezpoints",
    env="sightline/EZPoints-v0",
    goal=("a formula that makes twelve",),
    baseline=("two cards",),
    success="end",
    is_game=True,
    summary="Make twelve of two cards.",
)
