"""BabyAI and MiniGrid (Chevalier-Boisvert et al., ICLR 2019; NeurIPS 2023): a mission in words, a grid in a picture.

The environments are Farama's package `minigrid` (extra `sightline[minigrid]`), unchanged; its bot is the expert.
"""

from __future__ import annotations

import contextlib
import io
import itertools
from typing import Any

import gymnasium
import numpy as np
from PIL import Image

from sightline.envs.frames import Size
from sightline.envs.games.contract import Game, Observation
from sightline.envs.tasks import Task
from sightline.errors import BadInput, RunFailed, nearest, one_of

ACTIONS = ("left", "right", "forward", "pick up", "drop", "toggle", "done")
"""Names of MiniGrid's actions, in its order: turn, step, take and lay down, open or close what is ahead."""
DIRECTIONS = ("right", "down", "left", "up")
STEPS = ((1, 0), (0, 1), (-1, 0), (0, -1))
"""Columns and rows by which the cell ahead is away, for each direction."""
SMALLEST_TILE = 8
"""Pixels of a cell before the picture is brought to its size; below that, doors and keys cannot be told."""
RULES = {
    "whole": "A grid world seen from above. You are the red triangle, which points where you look; what you hold is "
    "shown in the corner at the top left. ",
    "agent": "A grid world as you see it: you stand at the middle of the lower edge and look up; what you hold is "
    "shown there. ",
}
WHAT_ACTIONS_DO = (
    "left and right turn you, forward goes one cell; pick up takes what is ahead, drop lays it down, toggle opens or "
    "closes a door or a box. "
)


class BabyAI(Game):
    """A level of BabyAI or MiniGrid; the mission is part of the text.

    Reward and time limit are the level's own: 1 - 0.9 t / T for success in step t of at most T, else 0. Every action is
    legal everywhere. The oracle is BabyAI's bot; it knows BabyAI's levels, and none for others.

    Args:
        level: such as `GoToObj`, of BabyAI; or a whole id, such as `MiniGrid-DoorKey-5x5-v0`.
        view: `agent` shows the 7 x 7 cells before the agent and nothing behind walls, as BabyAI's own observations do;
            `whole` shows all of the grid.
        render_size: height and width of the pictures.
        render_mode: `rgb_array` or None.

    Raises:
        BadInput: an unknown level or view.
        gymnasium.error.DependencyNotInstalled: `minigrid` is missing.
    """

    action_names = ACTIONS

    def __init__(
        self,
        level: str = "GoToObj",
        view: str = "agent",
        render_size: Size = (96, 96),
        render_mode: str | None = "rgb_array",
    ) -> None:
        super().__init__(render_size, render_mode)
        self.view = one_of("view", view, RULES)
        self.inner: Any = _level(level).unwrapped  # MiniGrid's own environment
        facts = ["ahead", "holding"]
        # In its own view the agent stands in the same cell and looks up, always.
        if view == "whole":
            facts = ["position", "facing", *facts]
        # MiniGrid's missions are words only; BabyAI's name things of the grid.
        if hasattr(self.inner, "validate_instrs"):
            facts.append("target")
        self.asked = tuple(facts)
        self._over = False
        self._bot: Any = None
        self._advice: str | None = None

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        super().reset(seed=seed)
        with contextlib.redirect_stdout(io.StringIO()):  # it prints when it draws a room again
            self.inner.reset(seed=int(self.np_random.integers(2**31)))
        if not self.inner.mission:
            raise RunFailed(
                f"the level '{self.inner.spec.id}' has an empty mission; there is nothing to tell the agent"
            )
        self._over = False
        self._bot = None
        self._advice = None
        return self._observation(), self._info(False)

    def step(self, action: np.int64) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        _, reward, terminated, truncated, _ = self.inner.step(int(action))
        # The bot follows every step, since it remembers what it has explored.
        self._over = bool(terminated or truncated)
        if self._bot is not None and not self._over:
            self._ask_bot(int(action))
        return self._observation(), float(reward), bool(terminated), bool(truncated), self._info(reward > 0)

    def text(self) -> str:
        return f"{RULES[self.view]}{WHAT_ACTIONS_DO}Your mission: {self.inner.mission}."

    def draw(self) -> np.ndarray:
        cells = max(self.inner.width, self.inner.height)
        if self.view == "agent":
            cells = self.inner.agent_view_size
        # Drawn at least as large as wanted (rounded up to whole pixels a cell), then made smaller.
        tile = max(SMALLEST_TILE, -(-max(self.render_size) // cells))
        picture = self.inner.get_frame(highlight=False, tile_size=tile, agent_pov=self.view == "agent")
        if self.view == "whole" and self.inner.carrying is not None:
            picture[:tile, :tile] = self.inner.grid.render_tile(self.inner.carrying, tile_size=tile)
        size = (self.render_size[1], self.render_size[0])
        return np.asarray(Image.fromarray(picture).resize(size, Image.Resampling.BOX))

    def facts(self) -> dict[str, str]:
        inner = self.inner
        column, row = np.add(inner.agent_pos, STEPS[inner.agent_dir])
        facts = {
            "position": _cell(*inner.agent_pos),
            "facing": DIRECTIONS[inner.agent_dir],
            "ahead": _described(inner.grid.get(column, row)),
            "holding": _described(inner.carrying),
        }
        if "target" in self.asked:
            facts["target"] = self._target()
        return {name: facts[name] for name in self.asked}

    def _target(self) -> str:
        """Where the nearest thing is that the mission names next."""
        inner = self.inner
        places = [thing.cur_pos for thing in _targets(inner.instrs, inner) if thing is not inner.carrying]
        in_sight = []
        for place, cell in zip(places, self._in_picture(*places), strict=True):
            if cell is not None:
                steps = int(np.abs(np.subtract(place, inner.agent_pos)).sum())
                in_sight.append((steps, cell))
        if not in_sight:
            return "not in sight"
        _, nearest_cell = min(in_sight)
        return _cell(*nearest_cell)

    def _in_picture(self, *places: Any) -> list[tuple[int, int] | None]:
        """Column and row of cells in the picture, from 0; None for one that is not seen."""
        if self.view == "whole":
            return [(int(column), int(row)) for column, row in places]
        _, is_seen = self.inner.gen_obs_grid()
        cells: list[tuple[int, int] | None] = []
        for place in places:
            cell = self.inner.relative_coords(*place)
            if cell is None or not is_seen[cell]:
                cells.append(None)
            else:
                cells.append((int(cell[0]), int(cell[1])))
        return cells

    def legal_actions(self) -> tuple[str, ...]:
        if self._over:
            return ()
        return ACTIONS

    def oracle(self) -> str | None:
        """The bot's next action; None if the episode is over, or where it knows no way."""
        if self._over or not hasattr(self.inner, "instrs"):
            return None
        if self._bot is None:
            from minigrid.utils.baby_ai_bot import BabyAIBot

            self._bot = BabyAIBot(self.inner)  # type: ignore[no-untyped-call]
            self._ask_bot(None)
        return self._advice

    def _ask_bot(self, last_action: int | None) -> None:
        """Let the bot see what was done, and keep its advice: it follows every step, once it is asked."""
        try:
            self._advice = ACTIONS[int(self._bot.replan(last_action))]
        except Exception:  # of a mission that it cannot fulfil, it says so by an assertion or worse
            self._advice = None

    def caption(self) -> str:
        """What is seen where: each thing with its column and row in the picture, counted from 1."""
        inner = self.inner
        facts = self.facts()
        places = list(itertools.product(range(inner.width), range(inner.height)))
        things = []
        for cell, place in zip(self._in_picture(*places), places, strict=True):
            thing = inner.grid.get(*place)
            if cell is not None and thing is not None and thing.type != "wall":
                things.append((cell, thing))
        # Row by row, as one reads the picture.
        things.sort(key=lambda pair: pair[0][::-1])
        inventory = "; ".join(f"{_described(thing)} at {_cell(*cell)}" for cell, thing in things)
        width = height = inner.agent_view_size
        if self.view == "whole":
            width = inner.width
            height = inner.height
        (me,) = self._in_picture(inner.agent_pos)
        return (
            f"You are at {_cell(*(me or (0, 0)))} of {width} x {height}, walls included, and look "
            f"{facts.get('facing', 'up')}. Ahead: {facts['ahead']}. You hold: {facts['holding']}. "
            f"There are: {inventory or 'no things'}."
        )

    def close(self) -> None:
        self.inner.close()


def _level(name: str) -> gymnasium.Env[Any, Any]:
    """Make MiniGrid's own environment of a level.

    Raises:
        BadInput: there is no such level.
        gymnasium.error.DependencyNotInstalled: `minigrid` is missing.
    """
    try:
        import minigrid  # noqa: F401 (it registers its levels)
    except ImportError as error:
        raise gymnasium.error.DependencyNotInstalled(f"{error}; pip install 'sightline[minigrid]'") from error
    levels = [env_id for env_id in gymnasium.registry if env_id.startswith(("BabyAI-", "MiniGrid-"))]
    level = name
    if name not in levels:
        level = f"BabyAI-{name.removesuffix('-v0')}-v0"
    if level not in levels:
        short_names = [env_id.removeprefix("BabyAI-").removesuffix("-v0") for env_id in levels]
        raise BadInput(f"there is no level '{name}'{nearest(name, [*short_names, *levels])}")
    return gymnasium.make(level, disable_env_checker=True)


def _targets(instruction: Any, inner: Any) -> list[Any]:
    """The things that an instruction of BabyAI names next: of two in a row, those of the one that is not done."""
    if hasattr(instruction, "instr_a"):
        a_is_done = instruction.a_done == "success"
        b_is_done = instruction.b_done == "success"
        if type(instruction).__name__ == "AfterInstr":  # "a after b": b comes first
            next_instruction = instruction.instr_a if b_is_done else instruction.instr_b
        else:
            next_instruction = instruction.instr_b if a_is_done else instruction.instr_a
        return _targets(next_instruction, inner)
    if hasattr(instruction, "desc_move"):
        # "put a next to b": a, until it is carried.
        is_carried = any(thing is inner.carrying for thing in instruction.desc_move.obj_set)
        if is_carried:
            return list(instruction.desc_fixed.obj_set)
        return list(instruction.desc_move.obj_set)
    return list(instruction.desc.obj_set)


def _cell(column: int, row: int) -> str:
    """Column and row, counted from 1; walls count."""
    return f"column {column + 1}, row {row + 1}"


def _described(thing: Any) -> str:
    """`red ball`, `locked blue door`, `wall`; `nothing` for an empty cell."""
    if thing is None:
        return "nothing"
    if thing.type == "door":
        state = "closed"
        if thing.is_locked:
            state = "locked"
        elif thing.is_open:
            state = "open"
        return f"{state} {thing.color} door"
    if thing.type in ("wall", "floor", "lava", "goal"):
        return str(thing.type)
    return f"{thing.color} {thing.type}"


TASK = Task(
    name="babyai",
    env="sightline/BabyAI-v0",
    goal=("the mission is done",),
    baseline=("a grid of cells",),
    success="end",
    is_game=True,
    summary="BabyAI and MiniGrid: a mission in words, in a grid.",
)
