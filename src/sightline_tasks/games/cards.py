"""Playing cards and their drawing, with ranks large enough for small pictures."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np
from PIL import Image, ImageDraw

from sightline.envs.frames import Size
from sightline_tasks.drawing import CAPITALS, OVERSAMPLING, Canvas, Colour, font

RANKS = ("A", "2", "3", "4", "5", "6", "7", "8", "9", "10", "J", "Q", "K")
SUITS = ("♠", "♥", "♦", "♣")
SUIT_NAMES = {"♠": "spades", "♥": "hearts", "♦": "diamonds", "♣": "clubs"}

TABLE: Colour = (38, 92, 66)
PALE: Colour = (236, 240, 234)
DIM: Colour = (160, 190, 172)
BLACK: Colour = (18, 18, 22)
RED: Colour = (196, 20, 32)
FACE: Colour = (252, 252, 249)
EDGE: Colour = (168, 170, 166)
BACK: Colour = (44, 62, 132)
BACK_PATTERN: Colour = (118, 136, 196)
NARROWEST = 0.6
"""Smallest horizontal scale of a rank; a rank that is still too wide is shrunk as a whole."""


class Card(NamedTuple):
    """Playing card.

    Attributes:
        rank: one of `RANKS`.
        suit: one of `SUITS`.
    """

    rank: str
    suit: str

    @property
    def number(self) -> int:
        """Number of the rank, 1 (ace) to 13 (king)."""
        return RANKS.index(self.rank) + 1

    def __str__(self) -> str:
        return self.rank


def any_suit(rank: str, rng: np.random.Generator) -> Card:
    """Card of a given rank and a random suit."""
    return Card(rank, SUITS[int(rng.integers(len(SUITS)))])


def ranks_in_words(cards: list[Card]) -> str:
    """Ranks of the cards in order, as `K, 2`."""
    return ", ".join(card.rank for card in cards)


def cards_in_words(cards: list[Card]) -> str:
    """Ranks and suits of the cards in order, as `K of spades, 2 of hearts`."""
    return ", ".join(f"{card.rank} of {SUIT_NAMES[card.suit]}" for card in cards)


def draw_card(canvas: Canvas, card: Card | None, left: float, top: float, width: float, height: float) -> None:
    """Draw a card, or the back of one for None; all lengths are fractions of the picture."""
    size = round(height * canvas.height), round(width * canvas.width)
    picture = _back(size) if card is None else _face(card, size)
    canvas.paste(picture, left, top)


def _blank(size: Size, colour: Colour) -> tuple[Image.Image, ImageDraw.ImageDraw]:
    """Blank card of a size in canvas pixels, and its drawing context."""
    height, width = size
    image = Image.new("RGBA", (width, height), (0, 0, 0, 0))
    draw = ImageDraw.Draw(image)
    edge = max(OVERSAMPLING // 2, min(size) // 60)
    draw.rounded_rectangle((0, 0, width - 1, height - 1), min(size) * 0.1, fill=colour, outline=EDGE, width=edge)
    return image, draw


@lru_cache(maxsize=256)
def _face(card: Card, size: Size) -> Image.Image:
    height, width = size
    image, _ = _blank(size, FACE)
    colour = RED if card.suit in "♥♦" else BLACK
    # The rank above, the suit below: height of each, and of its middle, in fractions of the card's height.
    for text, glyph_height, middle in ((card.rank, 0.44, 0.32), (card.suit, 0.3, 0.76)):
        glyph = _glyph(text, glyph_height * height, 0.84 * width)
        left = round((width - glyph.width) / 2)
        top = round(middle * height - glyph.height / 2)
        image.paste(Image.new("RGBA", glyph.size, colour), (left, top), glyph)
    return image


def _glyph(text: str, height: float, width: float) -> Image.Image:
    """Rank or suit as a mask of the given height in pixels.

    Wide ones are squeezed horizontally, so that a ten is as tall as the other ranks; those that would become too narrow
    to read are shrunk as a whole.
    """
    letters = font(round(height / CAPITALS))
    left, top, right, bottom = letters.getbbox(text, anchor="ls")
    # Only the ink counts, not the space that the font leaves around it.
    mask = Image.new("L", (round(right - left), round(bottom - top)), 0)
    ImageDraw.Draw(mask).text((-left, -top), text, fill=255, font=letters, anchor="ls")
    if mask.width <= width and mask.height <= 1.1 * height:
        return mask
    new_height = min(mask.height, height, mask.height * width / (NARROWEST * mask.width))
    new_width = min(width, mask.width * new_height / mask.height)
    return mask.resize((max(1, round(new_width)), max(1, round(new_height))), Image.Resampling.LANCZOS)


@lru_cache(maxsize=32)
def _back(size: Size) -> Image.Image:
    height, width = size
    image, draw = _blank(size, FACE)
    # A white edge, as playing cards have.
    margin = 0.07 * min(size)
    draw.rounded_rectangle((margin, margin, width - 1 - margin, height - 1 - margin), 0.06 * min(size), fill=BACK)
    # A pattern of rhombs, four in a row.
    columns = 4
    rows = max(2, round(4 * height / width))
    step_x = (width - 2 * margin) / columns
    step_y = (height - 2 * margin) / rows
    for row in range(rows):
        for column in range(columns):
            x = margin + (column + 0.5) * step_x
            y = margin + (row + 0.5) * step_y
            top = (x, y - 0.3 * step_y)
            right = (x + 0.3 * step_x, y)
            bottom = (x, y + 0.3 * step_y)
            left = (x - 0.3 * step_x, y)
            draw.polygon([top, right, bottom, left], fill=BACK_PATTERN)
    return image
