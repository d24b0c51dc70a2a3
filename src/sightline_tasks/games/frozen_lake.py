"""FrozenLake: cross the ice to the goal without falling into a hole, on a new map in every episode.

The game is that of Gymnasium's `FrozenLake-v1`, seen in a picture. Maps, starts and goals are random: on a fixed map, a
policy could ignore the picture.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from sightline.envs.frames import Size
from sightline.envs.games.contract import Game, Observation
from sightline.envs.tasks import Task
from sightline.errors import BadInput
from sightline_tasks.games.grid import HOW_PLACES_ARE_SAID, MOVES, Board, place, places

ICE = (214, 234, 246)
CRACK = (168, 198, 220)
WATER = (18, 46, 96)
SHORE = (120, 160, 200)
POLE = (70, 52, 30)
FLAG = (20, 150, 60)
MOUND = (236, 196, 60)
PLAYER = (206, 44, 52)
FACE = (255, 226, 196)

DISCOUNT = 0.999
"""Discount factor per step, so that the shorter of two safe paths has the higher value."""
MAX_SWEEPS = 5000
"""Greatest number of sweeps of value iteration."""


class FrozenLake(Game):
    """Reach the goal.

    Reward: 1 at the goal, else 0. Goal and holes terminate. Walking against the edge is legal and changes nothing. The
    time limit of the registration (100 steps) truncates.

    Args:
        size: number of rows and of columns, 2 to 16.
        holes: number of holes, at most half of the cells; None makes it a quarter of them.
        slippery: a step goes in its direction with probability 1/3, and to either side of it with 1/3 each.
        render_size: height and width of the pictures.
        render_mode: `rgb_array` or None.

    Raises:
        BadInput: a size or number of holes out of range, or too few pixels to tell cells apart.
    """

    action_names = tuple(MOVES)
    asked = ("player", "goal")

    def __init__(
        self,
        size: int = 4,
        holes: int | None = None,
        slippery: bool = False,
        render_size: Size = (96, 96),
        render_mode: str | None = "rgb_array",
    ) -> None:
        super().__init__(render_size, render_mode)
        if not 2 <= size <= 16:
            raise BadInput(f"size={size} is out of range; use 2 to 16 rows and columns")
        if holes is None:
            holes = size**2 // 4
        most = size**2 // 2 if size > 2 else 1  # of four cells, one must lead around the corner
        if not 0 <= holes <= most:
            raise BadInput(f"holes={holes} is out of range for size={size}; use 0 to {most}")
        if min(self.render_size) < 5 * size:
            raise BadInput(
                f"render_size={self.render_size} is too small for {size} rows; use at least {5 * size} pixels"
            )
        self.size = size
        self.slippery = slippery
        self._hole_count = holes
        self._next_cell = _next_cells(size)
        self._holes: frozenset[int] = frozenset()
        self._player = 0
        self._goal = size**2 - 1
        self._values: np.ndarray | None = None

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        super().reset(seed=seed)
        self._values = None
        while not self._draw_map():
            pass
        return self._observation(), self._info(False)

    def _draw_map(self) -> bool:
        """Sample start, goal and holes; returns true if there is a path between them of more than one step."""
        cells = [int(cell) for cell in self.np_random.permutation(self.size**2)]
        self._player, self._goal = cells[:2]
        self._holes = frozenset(cells[2 : 2 + self._hole_count])
        # A start beside the goal would be won by chance.
        is_next = self._goal in self._next_cell[:, self._player]
        return not is_next and bool(self._cell_values(slippery=False)[self._player] > 0)

    def step(self, action: np.int64) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        if self.slippery:
            action = self.np_random.choice(_sides(int(action)))
        self._player = int(self._next_cell[action, self._player])
        arrived = self._player == self._goal
        return self._observation(), float(arrived), self._is_over(), False, self._info(arrived)

    def _is_over(self) -> bool:
        return self._player == self._goal or self._player in self._holes

    def text(self) -> str:
        slips = "The ice is slippery: two steps out of three go off to a side. " if self.slippery else ""
        return (
            f"A frozen lake of {self.size} rows and {self.size} columns, seen from above. Lead the red player to the "
            "green flag, one cell up, down, left or right at a time, and into none of the dark holes. "
            + slips
            + HOW_PLACES_ARE_SAID
        )

    def draw(self) -> np.ndarray:
        board = Board(self.render_size, self.size, CRACK)
        for cell in range(self.size**2):
            board.square(cell, ICE, 0.05)
        for cell in self._holes:
            board.disc(cell, 0.45, SHORE)
            board.disc(cell, 0.38, WATER)
        board.square(self._goal, MOUND, 0.05)
        board.patch(self._goal, 0.28, 0.1, 0.36, 0.92, POLE)
        board.polygon(self._goal, [(0.36, 0.1), (0.9, 0.27), (0.36, 0.44)], FLAG)
        # Below the middle, so that the flag stays visible behind a player at the goal.
        board.disc(self._player, 0.31, PLAYER, (0.5, 0.63))
        board.disc(self._player, 0.15, FACE, (0.5, 0.58))
        return board.pixels()

    def facts(self) -> dict[str, str]:
        return {"player": place(self._player, self.size), "goal": place(self._goal, self.size)}

    def legal_actions(self) -> tuple[str, ...]:
        if self._is_over():
            return ()
        return self.action_names

    def oracle(self) -> str | None:
        """Move with the highest probability of reaching the goal, by the shortest path; None if the game is over."""
        if self._is_over():
            return None
        if self._values is None:
            self._values = self._cell_values(self.slippery)
        values = self._action_values(self._values, self.slippery)[:, self._player]
        if values.max() <= 0:  # no way leads to the goal
            return None
        return self.action_names[int(values.argmax())]

    def _cell_values(self, slippery: bool) -> np.ndarray:
        """Value iteration: probability of ending at the goal, discounted by `DISCOUNT` per step, float64[cells]."""
        # The values of goal and holes are fixed: no move leads away from them.
        is_end = np.zeros(self.size**2, bool)
        is_end[[self._goal, *self._holes]] = True
        values = np.zeros(self.size**2)
        values[self._goal] = 1
        for _ in range(MAX_SWEEPS):
            best = DISCOUNT * self._action_values(values, slippery).max(axis=0)
            new_values = np.where(is_end, values, best)
            if np.abs(new_values - values).max() < 1e-9:
                break
            values = new_values
        return values

    def _action_values(self, values: np.ndarray, slippery: bool) -> np.ndarray:
        """Value of each move from each cell, float64[4, cells], given the values of cells, float64[cells]."""
        straight: np.ndarray = values[self._next_cell]
        if not slippery:
            return straight
        return np.stack([straight[_sides(move)].mean(axis=0) for move in range(len(MOVES))])

    def caption(self) -> str:
        facts = self.facts()
        return f"Player: {facts['player']}. Goal: {facts['goal']}. Holes: {places(self._holes, self.size)}."


def _next_cells(size: int) -> np.ndarray:
    """Cell that each move reaches from each cell: int[4, cells]."""
    rows, columns = np.divmod(np.arange(size**2), size)
    next_cells = []
    for down, right in MOVES.values():
        # A step against the edge stays where it is.
        next_rows = np.clip(rows + down, 0, size - 1)
        next_columns = np.clip(columns + right, 0, size - 1)
        next_cells.append(next_rows * size + next_columns)
    return np.array(next_cells)


def _sides(move: int) -> list[int]:
    """Index of a move and of the two at right angles to it; 0 and 1 are up and down, 2 and 3 left and right."""
    if move in (0, 1):
        return [move, 2, 3]
    return [move, 0, 1]


TASK = Task(
    name="frozenlake",
    env="sightline/FrozenLake-v0",
    goal=("the elf stands on the goal",),
    baseline=("an elf on the ice",),
    success="end",
    is_game=True,
    summary="Cross the ice and keep out of the holes.",
)
