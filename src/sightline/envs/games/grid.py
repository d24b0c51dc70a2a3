"""What games on a grid share: four moves, how a place is said, and a canvas that counts in cells.

A cell is its number, counted along the rows from the top left, so a grid of W columns has cell (row, column) at
`row * W + column`.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from sightline.envs.drawing import Canvas, Colour, Size

MOVES = {"up": (-1, 0), "down": (1, 0), "left": (0, -1), "right": (0, 1)}
"""Rows and columns by which a move shifts."""

HOW_PLACES_ARE_SAID = (
    "Rows count from the top and columns from the left, both from 1; a place is said as its row and column."
)


def place(cell: int, columns: int) -> str:
    """`row 2, column 3`, both counted from 1."""
    row, column = divmod(cell, columns)
    return f"row {row + 1}, column {column + 1}"


def places(cells: Iterable[int], columns: int) -> str:
    """`row 2, column 3; row 4, column 1`, from the top left on; `none` if there is none."""
    return "; ".join(place(cell, columns) for cell in sorted(cells)) or "none"


class Board:
    """A picture of a square grid in the making.

    Args:
        size: height and width of the finished picture in pixels.
        cells: rows, which are as many as the columns.
        background: the colour of everything that is not drawn over.
    """

    def __init__(self, size: Size, cells: int, background: Colour) -> None:
        self._canvas = Canvas(size, background)
        self._cells = cells
        self._roundness = min(size) / size[0]

    def square(self, cell: int, colour: Colour, margin: float = 0.0) -> None:
        """Fill a cell but for a margin, a fraction of its side."""
        self.patch(cell, margin, margin, 1 - margin, 1 - margin, colour)

    def patch(self, cell: int, left: float, top: float, right: float, bottom: float, colour: Colour) -> None:
        """Fill a rectangle in a cell; its edges are fractions of the cell's side."""
        (x, y), side = self._corner(cell), 1 / self._cells
        self._canvas.rectangle(x + left * side, y + top * side, x + right * side, y + bottom * side, colour)

    def disc(self, cell: int, radius: float, colour: Colour, centre: tuple[float, float] = (0.5, 0.5)) -> None:
        """A filled circle; its radius and its centre (x, y) are fractions of the cell's side."""
        (x, y), side = self._corner(cell), 1 / self._cells
        self._canvas.disc((x + centre[0] * side, y + centre[1] * side), radius * side * self._roundness, colour)

    def polygon(self, cell: int, corners: list[tuple[float, float]], colour: Colour) -> None:
        """Fill a polygon in a cell; its corners (x, y) are fractions of the cell's side."""
        (x, y), side = self._corner(cell), 1 / self._cells
        self._canvas.polygon([(x + right * side, y + down * side) for right, down in corners], colour)

    def pixels(self) -> np.ndarray:
        """The finished picture: uint8[height, width, 3]."""
        return self._canvas.pixels()

    def _corner(self, cell: int) -> tuple[float, float]:
        row, column = divmod(cell, self._cells)
        return column / self._cells, row / self._cells
