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

FLOOR, WALL, JOINT = (230, 224, 208), (92, 70, 62), (176, 160, 140)
TARGET, BOX, PLANK, HOME = (214, 40, 46), (190, 126, 52), (132, 82, 28), (60, 150, 70)
PLAYER, EYE = (38, 84, 196), (255, 255, 255)

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
        self.size, self.boxes_wanted, self.search_limit = size, boxes, search_limit
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
            f"search_limit={self.search_limit} is too low to find a level of size {self.size} with {self.boxes_wanted} "
            "boxes; the default is 20000"
        )

    def _draw_level(self) -> list[State]:
        """Sample walls and targets, and compute the distance of other states from the solved ones.

        Returns:
            Possible start states: no box on a target, and solvable in at most `MAX_SOLUTION` moves. May be empty.
        """
        floor = self._draw_floor()
        if len(floor) < 2 * self.boxes_wanted + 1:
            return []
        self._walls = frozenset(range(self.size**2)) - frozenset(floor)
        chosen = self.np_random.choice(len(floor), self.boxes_wanted, replace=False)
        self._targets = frozenset(floor[int(i)] for i in chosen)
        self._distances, self._search_complete = self._play_backwards(floor)
        return [s for s, moves in self._distances.items() if moves <= MAX_SOLUTION and not s[1] & self._targets]

    def _draw_floor(self) -> list[int]:
        """Floor cells: the largest connected area of inner cells that are not walls."""
        inside = [row * self.size + column for row in range(1, self.size - 1) for column in range(1, self.size - 1)]
        is_open = self.np_random.random(len(inside)) >= INNER_WALLS
        free = {cell for cell, is_free in zip(inside, is_open, strict=True) if is_free}
        areas: list[set[int]] = [set()]
        while free:
            edge = [min(free)]
            areas.append(set())
            while edge:
                cell = edge.pop()
                if cell in free:
                    free.remove(cell)
                    areas[-1].add(cell)
                    edge += [cell + offset for offset in self._offsets.values()]
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
                before, ahead = player - offset, player + offset
                if before in self._walls or before in boxes:
                    continue
                pulled = [boxes - {ahead} | {player}] if ahead in boxes else []
                for known in ((before, b) for b in (boxes, *pulled)):
                    if known not in distances:
                        distances[known] = distances[state] + 1
                        queue.append(known)
        return distances, not queue

    def step(self, action: np.int64) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        at_home = len(self._state[1] & self._targets)
        self._state = self._after(self._state, self._offsets[self.action_names[action]])
        gained = len(self._state[1] & self._targets) - at_home
        solved = self._is_solved()
        return self._observation(), -0.1 + gained + 10 * solved, solved, False, self._info(solved)

    def _after(self, state: State, offset: int) -> State:
        player, boxes = state
        ahead, beyond = player + offset, player + 2 * offset
        if ahead in self._walls:
            return state
        if ahead not in boxes:
            return ahead, boxes
        if beyond in self._walls or beyond in boxes:
            return state
        return ahead, boxes - {ahead} | {beyond}

    def _is_solved(self) -> bool:
        return self._state[1] == self._targets

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
            board.square(cell, PLANK, 0.14 if cell not in self._targets else 0.2)
            board.square(cell, HOME if cell in self._targets else BOX, 0.26)
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
        return () if self._is_solved() else self.action_names

    def oracle(self) -> str | None:
        """First move of a shortest solution; None if the level is solved, or can no longer be solved.

        In levels with more states than `search_limit` the solution may not be the shortest, and None may also mean that
        none was found within that many states.
        """
        if self._is_solved():
            return None
        if self._state not in self._distances and (self._search_complete or not self._search_known_state()):
            return None
        nearer = self._distances[self._state] - 1
        for name, offset in self._offsets.items():
            if self._distances.get(self._after(self._state, offset), nearer + 1) <= nearer:
                return name
        raise AssertionError("a state that can be solved has a move towards it")

    def _search_known_state(self) -> bool:
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
                    moves, back = self._distances[reached], came_from[reached]
                    while back is not None:
                        moves += 1
                        self._distances[back] = moves
                        back = came_from[back]
                    return True
                queue.append(reached)
        return False

    def caption(self) -> str:
        last = self.size - 1
        inner = [cell for cell in self._walls if all(0 < at < last for at in divmod(cell, self.size))]
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
