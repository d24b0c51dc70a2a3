"""Base class of EZPoints and Points24: cards are dealt, and a formula of their numbers is written token by token.

The rules and rewards are those of gym-cards ("Fine-Tuning Large Vision-Language Models as Decision-Making Agents via
Reinforcement Learning", Zhai et al., NeurIPS 2024, section 4.1), but formulas are evaluated exactly, in fractions.
"""

from __future__ import annotations

from abc import abstractmethod
from collections import Counter, OrderedDict
from typing import Any

import numpy as np

from sightline.envs.frames import Size
from sightline.envs.games.contract import Game, Observation
from sightline_tasks.drawing import CAPITALS, Canvas, font
from sightline_tasks.games.cards import DIM, PALE, TABLE, Card, cards_in_words, draw_card, ranks_in_words
from sightline_tasks.games.formulas import completion, expects_operand, read, tokens_to_close, value

INVALID = "_"
"""Token of the formula in place of a number that is not on the cards or was used already."""
PICTURE_CACHE_SIZE = 512
"""Number of pictures that are cached, over all games; groups of episodes with one seed show the same states often."""
_picture_cache: OrderedDict[tuple[Any, ...], np.ndarray] = OrderedDict()


class PointsGame(Game):
    """Base class of games in which a formula that uses the number of every card once has to equal the target.

    Reward: +10 for `=` after a correct formula, -1 for `=` after any other (both terminate), -1 for a number that is
    not free (it takes up a token of the formula), -1 for any action when the formula is too long already (the episode
    is truncated), else 0.

    Infos: `success`, true if a correct formula was closed; `mistakes`, how many numbers of this episode were not free,
    so that an evaluation can require success without mistakes; `kind`, the group of deals for reporting.

    Attributes:
        cards: the cards, from left to right.
        formula: tokens written so far.
        max_tokens: greatest length of a formula that may be closed.
    """

    asked = ("cards",)
    max_tokens: int

    def __init__(self, target: int, legacy: bool, render_size: Size, render_mode: str | None) -> None:
        super().__init__(render_size, render_mode)
        self.target = target
        self.legacy = legacy
        self.cards: list[Card] = []
        self.formula: list[str] = []
        self.mistakes = 0
        self._closed = False

    @abstractmethod
    def number(self, card: Card) -> int:
        """Number that a card counts as."""

    @abstractmethod
    def deal(self) -> list[Card]:
        """Deal the cards of a new episode."""

    def kind(self) -> str:
        """Group of deals to which the present one belongs, for reporting."""
        return ""

    @property
    def numbers(self) -> list[int]:
        """Numbers of the cards, in their order."""
        return [self.number(card) for card in self.cards]

    @property
    def free_numbers(self) -> list[int]:
        """Numbers that the formula has not used yet, sorted."""
        used = Counter(int(token) for token in self.formula if token.isdigit())
        free = Counter(self.numbers) - used
        return sorted(free.elements())

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        super().reset(seed=seed)
        self.cards = self.deal()
        self.formula = []
        self.mistakes = 0
        self._closed = False
        return self._observation(), self._info(False)

    def step(self, action: np.int64) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        token = self.action_names[action]
        reward = 0.0
        success = False
        too_long = len(self.formula) > self.max_tokens
        if too_long:
            reward = -1.0
        elif token == "=":
            self._closed = True
            success = not self.free_numbers and value(self._valid_tokens()) == self.target
            reward = 10.0 if success else -1.0
        elif token.isdigit() and int(token) not in self.free_numbers:
            self.formula.append(INVALID)
            self.mistakes += 1
            reward = -1.0
        else:
            self.formula.append(token)
        return self._observation(), reward, self._closed, too_long, self._info(success)

    def _valid_tokens(self) -> list[str]:
        return [token for token in self.formula if token != INVALID]

    def _visible_tokens(self) -> list[str]:
        if self._closed:
            return [*self.formula, "="]
        return self.formula

    def text(self) -> str:
        signs = [name for name in self.action_names if name != "=" and not name.isdigit()]
        return (
            f"The picture shows {len(self.cards)} playing cards and, below them, a formula. "
            f"Write a formula that makes {self.target} out of the numbers of all the cards, each used exactly once. "
            f"One number or one of {' '.join(signs)} is added at a time, and = closes the finished formula. "
            f"{self._values_in_words()}\nFormula so far: {''.join(self._visible_tokens()) or 'empty'}"
        )

    def _values_in_words(self) -> str:
        return "A counts as 1; J, Q and K count as 10."

    def facts(self) -> dict[str, str]:
        return {"cards": ranks_in_words(self.cards)}

    def legal_actions(self) -> tuple[str, ...]:
        """Action mask: names after which a well-formed formula of all numbers is still possible; `=` if none is."""
        if self.legacy:
            return self.action_names
        if self._closed:
            return ()
        free = self.free_numbers
        return tuple(name for name in self.action_names if self._is_legal(name, list(free))) or ("=",)

    def _is_legal(self, name: str, free: list[int]) -> bool:
        if name == "=":
            return not free and value(self._valid_tokens()) is not None and len(self.formula) <= self.max_tokens
        if name.isdigit():
            if int(name) not in free:
                return False
            free.remove(int(name))
        after = read([*self._valid_tokens(), name])
        # A sign after which no number is left would never be followed by one.
        if after is None or (not free and expects_operand(after)):
            return False
        return len(self.formula) + 1 + tokens_to_close(after, len(free)) <= self.max_tokens

    def oracle(self) -> str | None:
        if self._closed:
            return None
        signs = "".join(name for name in self.action_names if name in "+-*/()")
        room = self.max_tokens - len(self.formula)
        if room < 0:
            return None
        # Tokens that were not valid have no meaning, but they take up room.
        tokens = completion(self._valid_tokens(), self.free_numbers, self.target, signs, room)
        if tokens is None:
            return None
        return (*tokens, "=")[0]

    def caption(self) -> str:
        tokens = self._visible_tokens()
        formula = f"the formula {' '.join(tokens)}" if tokens else "no formula yet"
        return f"On the table lie {cards_in_words(self.cards)}; below them stands {formula}."

    def draw(self) -> np.ndarray:
        key = type(self), self.render_size, tuple(self.cards), tuple(self._visible_tokens())
        if key not in _picture_cache:
            canvas = Canvas(self.render_size, TABLE)
            self.lay_out(canvas)
            _picture_cache[key] = canvas.pixels()
            # The oldest goes; a copy is given away, so that nobody draws into the cache.
            if len(_picture_cache) > PICTURE_CACHE_SIZE:
                _picture_cache.popitem(last=False)
        return _picture_cache[key].copy()

    @abstractmethod
    def lay_out(self, canvas: Canvas) -> None:
        """Draw the cards and the formula on the canvas."""

    def draw_row(self, canvas: Canvas, top: float, height: float, gap: float) -> None:
        """Draw the cards side by side over the whole width."""
        width = (1 - gap) / len(self.cards) - gap
        for index, card in enumerate(self.cards):
            draw_card(canvas, card, gap + index * (width + gap), top, width, height)

    def draw_formula(self, canvas: Canvas, top: float, bottom: float, size: float) -> None:
        """Write the formula between two heights, on as many lines as it needs, in capitals of at most `size`."""
        tokens = self._visible_tokens()
        if not tokens:
            canvas.rectangle(0.05, bottom - 0.03, 0.95, bottom - 0.02, DIM)
            return
        # Smaller letters until all lines find room.
        lines = _wrapped(tokens, canvas, size)
        while len(lines) * 1.5 * size > bottom - top:
            size *= 0.9
            lines = _wrapped(tokens, canvas, size)
        for index, line in enumerate(lines):
            y = (top + bottom) / 2 + 1.5 * size * (index - (len(lines) - 1) / 2)
            canvas.text((0.5, y), line, size, PALE, width=0.94)

    def _info(self, success: bool) -> dict[str, Any]:
        return super()._info(success) | {"kind": self.kind(), "mistakes": self.mistakes}


def _wrapped(tokens: list[str], canvas: Canvas, size: float) -> list[str]:
    """Wrap tokens into lines that fit the width of the picture at a letter size."""
    letters = font(round(size * canvas.height / CAPITALS))
    lines = [tokens[0]]
    for token in tokens[1:]:
        if letters.getlength(lines[-1] + token) <= 0.94 * canvas.width:
            lines[-1] += token
        else:
            lines.append(token)
    return lines
