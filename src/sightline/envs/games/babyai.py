"""BabyAI and MiniGrid (Chevalier-Boisvert et al., ICLR 2019; NeurIPS 2023): a mission in words, a grid in a picture.

The environments are Farama's package `minigrid` (extra `sightline[minigrid]`), unchanged; its bot is the expert.
"""

from __future__ import annotations

import contextlib
import io
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
        # In its own view the agent stands in the same cell and looks up, always. MiniGrid's missions are words only.
        where = ("position", "facing") if view == "whole" else ()
        names_things = hasattr(self.inner, "validate_instrs")
        self.asked = (*where, "ahead", "holding", *(("target",) if names_things else ()))
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
        self._over, self._bot, self._advice = False, None, None
        return self._observation(), self._info(False)

    def step(self, action: np.int64) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        _, reward, terminated, truncated, _ = self.inner.step(int(action))
        self._over = bool(terminated or truncated)
        if self._bot is not None and not self._over:
            self._ask_bot(int(action))
        return self._observation(), float(reward), bool(terminated), bool(truncated), self._info(reward > 0)

    def text(self) -> str:
        return f"{RULES[self.view]}{WHAT_ACTIONS_DO}Your mission: {self.inner.mission}."

    def draw(self) -> np.ndarray:
        cells = self.inner.agent_view_size if self.view == "agent" else max(self.inner.width, self.inner.height)
        tile = max(SMALLEST_TILE, -(-max(self.render_size) // cells))
        picture = self.inner.get_frame(highlight=False, tile_size=tile, agent_pov=self.view == "agent")
        if self.view == "whole" and self.inner.carrying is not None:
            picture[:tile, :tile] = self.inner.grid.render_tile(self.inner.carrying, tile_size=tile)
        size = (self.render_size[1], self.render_size[0])
        return np.asarray(Image.fromarray(picture).resize(size, Image.Resampling.BOX))

    def facts(self) -> dict[str, str]:
        inner = self.inner
        column, row = np.add(inner.agent_pos, STEPS[inner.agent_dir])
        held = inner.carrying
        known = {
            "position": _cell(*inner.agent_pos),
            "facing": DIRECTIONS[inner.agent_dir],
            "ahead": _described(inner.grid.get(column, row)),
            "holding": "nothing" if held is None else _described(held),
        }
        if "target" in self.asked:
            known["target"] = self._target()
        return {name: known[name] for name in self.asked}

    def _target(self) -> str:
        """Where the nearest thing is that the mission names next."""
        inner = self.inner
        places = [thing.cur_pos for thing in _wanted(inner.instrs, inner) if thing is not inner.carrying]
        away = [int(np.abs(np.subtract(place, inner.agent_pos)).sum()) for place in places]
        seen = [(steps, cell) for steps, cell in zip(away, self._in_picture(*places), strict=True) if cell is not None]
        return _cell(*min(seen)[1]) if seen else "not in sight"

    def _in_picture(self, *places: Any) -> list[tuple[int, int] | None]:
        """Column and row of cells in the picture, from 0; None for one that is not seen."""
        if self.view == "whole":
            return [(int(column), int(row)) for column, row in places]
        _, is_seen = self.inner.gen_obs_grid()
        cells = [self.inner.relative_coords(*place) for place in places]
        return [None if cell is None or not is_seen[cell] else (int(cell[0]), int(cell[1])) for cell in cells]

    def legal_actions(self) -> tuple[str, ...]:
        return () if self._over else ACTIONS

    def oracle(self) -> str | None:
        """The bot's next action; None if the episode is over, or where it knows no way."""
        if self._over or not hasattr(self.inner, "instrs"):
            return None
        if self._bot is None:
            from minigrid.utils.baby_ai_bot import BabyAIBot

            self._bot = BabyAIBot(self.inner)  # type: ignore[no-untyped-call]
            self._ask_bot(None)
        return self._advice

    def _ask_bot(self, taken: int | None) -> None:
        """Let the bot see what was done, and keep its advice: it follows every step, once it is asked."""
        try:
            self._advice = ACTIONS[int(self._bot.replan(taken))]
        except Exception:  # of a mission that it cannot fulfil, it says so by an assertion or worse
            self._advice = None

    def caption(self) -> str:
        """What is seen where: each thing with its column and row in the picture, counted from 1."""
        inner, facts = self.inner, self.facts()
        places = [(column, row) for row in range(inner.height) for column in range(inner.width)]
        shown = zip(self._in_picture(*places), (inner.grid.get(*place) for place in places), strict=True)
        things = [(cell, thing) for cell, thing in shown if cell and thing is not None and thing.type != "wall"]
        in_order = sorted(things, key=lambda pair: pair[0][::-1])
        (me,) = self._in_picture(inner.agent_pos)
        width, height = (inner.width, inner.height) if self.view == "whole" else 2 * (inner.agent_view_size,)
        told = "; ".join(f"{_described(thing)} at {_cell(*cell)}" for cell, thing in in_order)
        return (
            f"You are at {_cell(*(me or (0, 0)))} of {width} x {height}, walls included, and look "
            f"{facts.get('facing', 'up')}. Ahead: {facts['ahead']}. You hold: {facts['holding']}. "
            f"There are: {told or 'no things'}."
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
    known = [one for one in gymnasium.registry if one.startswith(("BabyAI-", "MiniGrid-"))]
    found = name if name in known else f"BabyAI-{name.removesuffix('-v0')}-v0"
    if found not in known:
        short = [one.removeprefix("BabyAI-").removesuffix("-v0") for one in known]
        raise BadInput(f"there is no level '{name}'{nearest(name, [*short, *known])}")
    return gymnasium.make(found, disable_env_checker=True)


def _wanted(instruction: Any, inner: Any) -> list[Any]:
    """The things that an instruction of BabyAI names next: of two in a row, those of the one that is not done."""
    if hasattr(instruction, "instr_a"):
        first, second = instruction.instr_a, instruction.instr_b
        done = instruction.a_done == "success"
        if type(instruction).__name__ == "AfterInstr":
            first, second, done = second, first, instruction.b_done == "success"
        return _wanted(second if done else first, inner)
    if hasattr(instruction, "desc_move"):
        held = any(thing is inner.carrying for thing in instruction.desc_move.obj_set)
        return list((instruction.desc_fixed if held else instruction.desc_move).obj_set)
    return list(instruction.desc.obj_set)


def _cell(column: int, row: int) -> str:
    """Column and row, counted from 1; walls count."""
    return f"column {column + 1}, row {row + 1}"


def _described(thing: Any) -> str:
    """`red ball`, `locked blue door`, `wall`; `nothing` for an empty cell."""
    if thing is None:
        return "nothing"
    if thing.type == "door":
        state = "locked" if thing.is_locked else "open" if thing.is_open else "closed"
        return f"{state} {thing.color} door"
    return str(thing.type) if thing.type in ("wall", "floor", "lava", "goal") else f"{thing.color} {thing.type}"


TASK = Task(
    name="babyai",
    env="sightline/BabyAI-v0",
    goal=("the mission is done",),
    baseline=("a grid of cells",),
    success="end",
    is_game=True,
    summary="BabyAI and MiniGrid: a mission in words, in a grid.",
)
