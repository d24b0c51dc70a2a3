"""Sokoban: push boxes onto targets, on small random levels that are all solvable.

Rules and rewards are the usual ones (Schrader, gym-sokoban, 2018; after Racanière et al., "Imagination-Augmented
Agents", NeurIPS 2017). Levels are generated in reverse: from the solved state, boxes are pulled off their targets.
"""

from __future__ import annotations

from collections import deque
from typing import Any

import numpy as np

from sightline.envs.frames import Size
from sightline.envs.games.contract import Game, Observation
from sightline.envs.tasks import Task
from sightline.errors import BadInput
from sightline_tasks.games.grid import HOW_PLACES_ARE_SAID, MOVES, Board, place, places

FLOOR = (230, 224, 208)
WALL = (92, 70, 62)
JOINT = (176, 160, 140)
TARGET = (214, 40, 46)
BOX = (190, 126, 52)
PLANK = (132, 82, 28)
HOME = (60, 150, 70)
PLAYER = (38, 84, 196)
EYE = (255, 255, 255)

INNER_WALLS = 0.15
"""Probability that an inner cell is a wall."""
MAX_SOLUTION = 30
"""Greatest length of the shortest solution of a new level, in moves."""
MAX_LEVELS = 200
"""Number of levels to sample before giving up."""

State = tuple[int, frozenset[int]]
"""(cell of the player, cells of the boxes)."""


class Sokoban(Game):
    """Push every box onto a target; boxes cannot be pulled, nor pushed two at a time.

    Reward: -0.1 for each step, +1 for a box that is pushed onto a target, -1 for one that is pushed off it, +10 when
    all boxes are on targets (which terminates). Walking against a wall, or against a box that cannot move, is legal and
    changes nothing. The time limit of the registration (60 steps) truncates.

    Args:
        size: number of rows and of columns, with the outer wall; 5 to 12.
        boxes: number of boxes and of targets; 1 to 4, fewer on the smallest levels.
        search_limit: greatest number of states that are searched to generate a level, and again to find a path from a
            state that was not among them. Levels with fewer states are searched completely, and the oracle's paths on
            them are shortest.
        render_size: height and width of the pictures.
        render_mode: `rgb_array` or None.

    Raises:
        BadInput: a size or number of boxes out of range, too few pixels to tell cells apart, or no level was found
            within `search_limit`.
    """

    action_names = tuple(MOVES)
    asked = ("player", "boxes", "targets")

    def __init__(
        self,
        size: int = 6,
        boxes: int = 1,
        search_limit: int = 20_000,
        render_size: Size = (96, 96),
        render_mode: str | None = "rgb_array",
    ) -> None:
        super().__init__(render_size, render_mode)
        if not 5 <= size <= 12:
            raise BadInput(f"size={size} is out of range; use 5 to 12 rows and columns, including the outer wall")
        most_boxes = min(4, (size - 3) ** 2 // 3)
        if not 1 <= boxes <= most_boxes:
            raise BadInput(f"boxes={boxes} is out of range for size={size}; use 1 to {most_boxes}")
        if min(self.render_size) < 5 * size:
            raise BadInput(
                f"render_size={self.render_size} is too small for {size} rows; use at least {5 * size} pixels"
            )
        if search_limit < 1:
            raise BadInput("search_limit must be at least 1")
        self.size = size
        self.search_limit = search_limit
        self._box_count = boxes
        self._offsets = {name: row * size + column for name, (row, column) in MOVES.items()}
        self._walls: frozenset[int] = frozenset()
        self._targets: frozenset[int] = frozenset()
        self._state: State = (0, frozenset())
        self._distances: dict[State, int] = {}
        self._search_complete = False

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        super().reset(seed=seed)
        for _ in range(MAX_LEVELS):
            starts = self._draw_level()
            if starts:
                self._state = starts[int(self.np_random.integers(len(starts)))]
                return self._observation(), self._info(False)
        raise BadInput(
            f"search_limit={self.search_limit} is too low to find a level of size {self.size} with {self._box_count} "
            "boxes; the default is 20000"
        )

    def _draw_level(self) -> list[State]:
        """Sample walls and targets, and compute the distance of other states from the solved ones.

        Returns:
            Possible start states: no box on a target, and solvable in at most `MAX_SOLUTION` moves. May be empty.
        """
        floor = self._draw_floor()
        # Room for the boxes, their targets and the player.
        if len(floor) < 2 * self._box_count + 1:
            return []
        # Floor that cannot be reached becomes wall.
        self._walls = frozenset(range(self.size**2)) - frozenset(floor)
        indices = self.np_random.choice(len(floor), self._box_count, replace=False)
        self._targets = frozenset(floor[int(index)] for index in indices)
        self._distances, self._search_complete = self._play_backwards(floor)
        starts = []
        for state, moves in self._distances.items():
            _, boxes = state
            if moves <= MAX_SOLUTION and not boxes & self._targets:
                starts.append(state)
        return starts

    def _draw_floor(self) -> list[int]:
        """Floor cells: the largest connected area of inner cells that are not walls."""
        inner: list[int] = []
        for row in range(1, self.size - 1):
            inner += range(row * self.size + 1, (row + 1) * self.size - 1)
        is_open = self.np_random.random(len(inner)) >= INNER_WALLS
        free = {cell for cell, is_free in zip(inner, is_open, strict=True) if is_free}
        # Flood fill, area by area.
        areas: list[set[int]] = [set()]
        while free:
            area = set()
            edge = [min(free)]
            while edge:
                cell = edge.pop()
                if cell in free:
                    free.remove(cell)
                    area.add(cell)
                    edge += [cell + offset for offset in self._offsets.values()]
            areas.append(area)
        largest = max(areas, key=len)
        return sorted(largest)

    def _play_backwards(self, floor: list[int]) -> tuple[dict[State, int], bool]:
        """Breadth-first search in reverse from the solved states.

        Returns:
            State -> least number of moves to a solved state, nearest first; and true if these are all solvable states.
        """
        #   forward    before → player [ahead]      A step by `offset` led from `before` to `player`. If there is a box
        #                                           at `ahead` now, it was either there already, or the step pushed it
        #   reverse    before ← player [ahead]      from `player` to `ahead`: two predecessors.
        distances: dict[State, int] = {(cell, self._targets): 0 for cell in floor if cell not in self._targets}
        queue = deque(distances)
        while queue and len(distances) < self.search_limit:
            player, boxes = state = queue.popleft()
            for offset in self._offsets.values():
                before = player - offset
                ahead = player + offset
                if before in self._walls or before in boxes:
                    continue
                predecessors = [(before, boxes)]
                if ahead in boxes:
                    predecessors.append((before, boxes - {ahead} | {player}))
                for predecessor in predecessors:
                    if predecessor not in distances:
                        distances[predecessor] = distances[state] + 1
                        queue.append(predecessor)
        return distances, not queue

    def step(self, action: np.int64) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        before = self._boxes_on_targets()
        self._state = self._after(self._state, self._offsets[self.action_names[action]])
        gained = self._boxes_on_targets() - before
        solved = self._is_solved()
        return self._observation(), -0.1 + gained + 10 * solved, solved, False, self._info(solved)

    def _boxes_on_targets(self) -> int:
        _, boxes = self._state
        return len(boxes & self._targets)

    def _after(self, state: State, offset: int) -> State:
        """State after a step: the same one, if a wall or a box is in the way."""
        player, boxes = state
        ahead = player + offset
        beyond = player + 2 * offset
        if ahead in self._walls:
            return state
        if ahead not in boxes:
            return ahead, boxes
        if beyond in self._walls or beyond in boxes:
            return state
        return ahead, boxes - {ahead} | {beyond}

    def _is_solved(self) -> bool:
        _, boxes = self._state
        return boxes == self._targets

    def text(self) -> str:
        return (
            f"Sokoban on {self.size} rows and {self.size} columns, seen from above. Push every brown box onto a red "
            "target. The blue player moves one cell up, down, left or right. It pushes a box by walking against it if "
            "the cell behind the box is free, cannot pull, and cannot pass walls. A box on a target turns green. "
            + HOW_PLACES_ARE_SAID
        )

    def draw(self) -> np.ndarray:
        board = Board(self.render_size, self.size, JOINT)
        player, boxes = self._state
        for cell in range(self.size**2):
            board.square(cell, WALL if cell in self._walls else FLOOR, 0.05)
        for cell in self._targets:
            board.square(cell, TARGET, 0.08)
            board.square(cell, FLOOR, 0.2)
        for cell in boxes:
            on_target = cell in self._targets
            board.square(cell, PLANK, 0.2 if on_target else 0.14)
            board.square(cell, HOME if on_target else BOX, 0.26)
        board.disc(player, 0.29, PLAYER)
        board.disc(player, 0.07, EYE, (0.39, 0.44))
        board.disc(player, 0.07, EYE, (0.61, 0.44))
        return board.pixels()

    def facts(self) -> dict[str, str]:
        player, boxes = self._state
        return {
            "player": place(player, self.size),
            "boxes": places(boxes, self.size),
            "targets": places(self._targets, self.size),
        }

    def legal_actions(self) -> tuple[str, ...]:
        if self._is_solved():
            return ()
        return self.action_names

    def oracle(self) -> str | None:
        """First move of a shortest solution; None if the level is solved, or can no longer be solved.

        In levels with more states than `search_limit` the solution may not be the shortest, and None may also mean that
        none was found within that many states.
        """
        if self._is_solved():
            return None
        # A state that is not among those of a complete search cannot be solved.
        if self._state not in self._distances and (self._search_complete or not self._search_forward()):
            return None
        nearer = self._distances[self._state] - 1
        for name, offset in self._offsets.items():
            if self._distances.get(self._after(self._state, offset), nearer + 1) <= nearer:
                return name
        raise AssertionError("a state that can be solved has a move towards it")

    def _search_forward(self) -> bool:
        """Search forward from the present state for one whose distance is known, and record the distances on the path.

        Returns:
            True if such a state was found within `search_limit` states.
        """
        came_from: dict[State, State | None] = {self._state: None}
        queue = deque(came_from)
        while queue and len(came_from) < self.search_limit:
            state = queue.popleft()
            for offset in self._offsets.values():
                reached = self._after(state, offset)
                if reached in came_from:
                    continue
                came_from[reached] = state
                if reached in self._distances:
                    # Walk the path back to the present state.
                    moves = self._distances[reached]
                    back = came_from[reached]
                    while back is not None:
                        moves += 1
                        self._distances[back] = moves
                        back = came_from[back]
                    return True
                queue.append(reached)
        return False

    def caption(self) -> str:
        last = self.size - 1
        inner = []
        for cell in self._walls:
            row, column = divmod(cell, self.size)
            if 0 < row < last and 0 < column < last:
                inner.append(cell)
        facts = self.facts()
        return (
            f"Player: {facts['player']}. Boxes: {facts['boxes']}. Targets: {facts['targets']}. "
            f"There are walls all around, and inside: {places(inner, self.size)}."
        )


TASK = Task(
    name="sokoban",
    env="sightline/Sokoban-v0",
    goal=("the box stands on its target",),
    baseline=("a box in a warehouse",),
    success="end",
    is_game=True,
    summary="Push a box onto its target.",
)
