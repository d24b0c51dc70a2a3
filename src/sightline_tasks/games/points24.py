"""Points24: make 24 of the numbers of four cards."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Any

from sightline.envs.frames import Size
from sightline.envs.games.contract import Observation
from sightline.envs.tasks import Task
from sightline.errors import BadInput
from sightline_tasks.drawing import Canvas
from sightline_tasks.games.cards import RANKS, Card, any_suit
from sightline_tasks.games.formulas import solvable
from sightline_tasks.games.number_search import search_in_words
from sightline_tasks.games.points import PointsGame

MAX_DEALS = 1000
"""Number of unsolvable deals in a row after which the target is taken to be out of reach."""
MOST_ATTEMPTS = 10
"""Attempts of a plan, at most; in demonstrations the last one succeeds."""


def is_held_out(numbers: Sequence[int]) -> bool:
    """True for a fifth of all hands, always the same ones, whatever the order of their numbers."""
    return zlib.crc32(repr(sorted(numbers)).encode()) % 5 == 0


class Points24(PointsGame):
    """Make the target of four cards with + - * / and brackets; see :class:`PointsGame` for rules, rewards and infos.

    Ranks are independent and uniformly distributed. Of all deals 73.1 % are solvable if faces count as 10, and 79.2 %
    if they count as 11 to 13.

    Args:
        target: value that the formula has to have.
        faces_as_10: count J, Q and K as 10, otherwise as 11, 12 and 13 (with three more actions).
        solvable_only: deal again until the target can be made.
        legacy: make every action legal in every state, as the reference does (which also takes a sign
            before a number, as in `+5+7`, where ours is worth nothing), and keep unsolvable deals even with
            `solvable_only`.
        render_size: height and width of the pictures.
        render_mode: `rgb_array` or None.
        held_out: deal only the fifth of all hands that is kept for evaluation, or only the others, whatever the order
            of the cards; default: all.

    Raises:
        BadInput: no deal makes that target.
    """

    max_tokens = 20
    action_names = (*map(str, range(1, 11)), "+", "-", "*", "/", "(", ")", "=")

    def __init__(
        self,
        target: int = 24,
        faces_as_10: bool = True,
        solvable_only: bool = True,
        legacy: bool = False,
        render_size: Size = (96, 96),
        render_mode: str | None = "rgb_array",
        held_out: bool | None = None,
    ) -> None:
        if not faces_as_10:
            self.action_names = (*map(str, range(1, 14)), *self.action_names[10:])
        super().__init__(target, legacy, render_size, render_mode)
        self.faces_as_10 = faces_as_10
        self.solvable_only = solvable_only and not legacy
        self.held_out = held_out
        self._plan: list[str] = []

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        first = super().reset(seed=seed, options=options)
        self._plan = []
        # A stream of its own: whether somebody asks for thoughts must not change the next deal.
        (self._chance,) = self.np_random.spawn(1)
        return first

    def number(self, card: Card) -> int:
        if self.faces_as_10:
            return min(card.number, 10)
        return card.number

    def deal(self) -> list[Card]:
        for _ in range(MAX_DEALS):
            ranks = self.np_random.integers(0, len(RANKS), 4)
            cards = [any_suit(RANKS[int(rank)], self.np_random) for rank in ranks]
            numbers = [self.number(card) for card in cards]
            # Hands of the other part are dealt again, so that ranks stay as uniform as they can be.
            if self.held_out is not None and self.held_out != is_held_out(numbers):
                continue
            if not self.solvable_only or solvable(numbers, self.target):
                return cards
        raise BadInput(
            f"{MAX_DEALS} deals in a row cannot make target={self.target}; 24 is usual, or set solvable_only to false"
        )

    def thoughts(self) -> str | None:
        """A search for any formula, as long as none is begun; then the formula that is being written."""
        if not self.formula and solvable(self.numbers, self.target):
            attempts = int(self._chance.integers(1, MOST_ATTEMPTS + 1))
            search, self._plan = search_in_words(self.numbers, self.target, attempts, self._chance)
            return search
        if not self._follows_plan():
            return None
        return "".join(self._plan)

    def oracle(self) -> str | None:
        if self._follows_plan() and not self._closed:
            return (*self._plan, "=")[len(self.formula)]
        return super().oracle()

    def _follows_plan(self) -> bool:
        return bool(self._plan) and self._plan[: len(self.formula)] == self.formula

    def _values_in_words(self) -> str:
        if self.faces_as_10:
            return super()._values_in_words()
        return "A counts as 1, J as 11, Q as 12 and K as 13."

    def lay_out(self, canvas: Canvas) -> None:
        self.draw_row(canvas, top=0.04, height=0.44, gap=0.03)
        self.draw_formula(canvas, top=0.5, bottom=0.99, size=0.13)


TASK = Task(
    name="points24",
    env="sightline/Points24-v0",
    goal=("a formula that makes twenty-four",),
    baseline=("four cards",),
    success="end",
    is_game=True,
    summary="Make twenty-four of four cards.",
)
