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

from sightline.envs.drawing import Size
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
        view: `whole` shows all of the grid, `agent` the 7 x 7 cells before the agent, and nothing behind walls.
        render_size: height and width of the pictures.
        render_mode: `rgb_array` or None.

    Raises:
        BadInput: an unknown level or view.
        gymnasium.error.DependencyNotInstalled: `minigrid` is missing.
    """

    action_names = ACTIONS
    asked = ("position", "facing", "ahead", "holding")

    def __init__(
        self,
        level: str = "GoToObj",
        view: str = "whole",
        render_size: Size = (96, 96),
        render_mode: str | None = "rgb_array",
    ) -> None:
        super().__init__(render_size, render_mode)
        self.view = one_of("view", view, RULES)
        self.inner: Any = _level(level).unwrapped  # MiniGrid's own environment
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
        return {
            "position": self._position(),
            # In the agent's own view, it always looks up.
            "facing": "up" if self.view == "agent" else DIRECTIONS[inner.agent_dir],
            "ahead": _described(inner.grid.get(column, row)),
            "holding": "nothing" if held is None else _described(held),
        }

    def _position(self) -> str:
        """Where the agent stands in the picture; in its own view, always the same."""
        if self.view == "whole":
            return _cell(*self.inner.agent_pos)
        size = self.inner.agent_view_size
        return _cell(size // 2, size - 1)

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
        """What lies where: each thing with its column and row, counted from 1."""
        inner, seen = self.inner, []
        for row in range(inner.height):
            for column in range(inner.width):
                thing = inner.grid.get(column, row)
                if thing is not None and thing.type != "wall":
                    seen.append(f"{_described(thing)} at {_cell(column, row)}")
        facts = self.facts()
        return (
            f"You are at {_cell(*inner.agent_pos)} of {inner.width} x {inner.height}, walls included, and "
            f"look {DIRECTIONS[inner.agent_dir]}. Ahead: {facts['ahead']}. You hold: {facts['holding']}. "
            f"There are: {'; '.join(seen) or 'no things'}."
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
