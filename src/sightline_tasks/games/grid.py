"""Grid games: moves, names of cells, and a canvas with cell coordinates.

Cells are numbered along the rows from the top left: with W columns, cell (row, column) has the number
`row * W + column`.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from sightline.envs.frames import Size
from sightline_tasks.drawing import Canvas, Colour

MOVES = {"up": (-1, 0), "down": (1, 0), "left": (0, -1), "right": (0, 1)}
"""Move -> shift in (rows, columns)."""

HOW_PLACES_ARE_SAID = (
    "Rows count from the top and columns from the left, both from 1; a place is said as its row and column."
)


def place(cell: int, columns: int) -> str:
    """Name of a cell as `row 2, column 3`, both counted from 1."""
    row, column = divmod(cell, columns)
    return f"row {row + 1}, column {column + 1}"


def places(cells: Iterable[int], columns: int) -> str:
    """Names of cells in the order of their numbers, as `row 2, column 3; row 4, column 1`; `none` if there are none."""
    return "; ".join(place(cell, columns) for cell in sorted(cells)) or "none"


class Board:
    """Canvas of a square grid.

    Args:
        size: height and width of the finished picture in pixels.
        cells: number of rows and of columns.
        background: colour of the canvas.
    """

    def __init__(self, size: Size, cells: int, background: Colour) -> None:
        self._canvas = Canvas(size, background)
        self._cells = cells
        # In a picture that is not square, circles stay circles.
        self._roundness = min(size) / size[0]

    def square(self, cell: int, colour: Colour, margin: float = 0.0) -> None:
        """Fill a cell, leaving a margin given as a fraction of its side."""
        self.patch(cell, margin, margin, 1 - margin, 1 - margin, colour)

    def patch(self, cell: int, left: float, top: float, right: float, bottom: float, colour: Colour) -> None:
        """Fill a rectangle in a cell; its edges are given as fractions of the cell's side."""
        x, y = self._corner(cell)
        side = 1 / self._cells
        self._canvas.rectangle(x + left * side, y + top * side, x + right * side, y + bottom * side, colour)

    def disc(self, cell: int, radius: float, colour: Colour, centre: tuple[float, float] = (0.5, 0.5)) -> None:
        """Draw a filled circle; its radius and centre (x, y) are fractions of the cell's side."""
        x, y = self._corner(cell)
        side = 1 / self._cells
        centre_x, centre_y = centre
        middle = (x + centre_x * side, y + centre_y * side)
        self._canvas.disc(middle, radius * side * self._roundness, colour)

    def polygon(self, cell: int, corners: list[tuple[float, float]], colour: Colour) -> None:
        """Fill a polygon in a cell; its corners (x, y) are fractions of the cell's side."""
        x, y = self._corner(cell)
        side = 1 / self._cells
        self._canvas.polygon([(x + right * side, y + down * side) for right, down in corners], colour)

    def pixels(self) -> np.ndarray:
        """Finished picture: uint8[height, width, 3]."""
        return self._canvas.pixels()

    def _corner(self, cell: int) -> tuple[float, float]:
        row, column = divmod(cell, self._cells)
        return column / self._cells, row / self._cells
