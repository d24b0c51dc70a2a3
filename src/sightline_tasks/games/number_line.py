"""NumberLine: move one number to another in steps of one, both read from the picture.

The game and its rewards are those of "Fine-Tuning Large Vision-Language Models as Decision-Making Agents via
Reinforcement Learning" (Zhai et al., NeurIPS 2024), section 4.1. Start and target are sampled more uniformly, unless
`legacy`.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

from sightline.envs.frames import Size
from sightline.envs.games.contract import Game, Observation
from sightline.envs.tasks import Task
from sightline.errors import BadInput
from sightline_tasks.drawing import Canvas

PAPER = (255, 255, 255)
INK = (16, 16, 24)
FAINT = (110, 110, 122)
LINE = (206, 208, 216)


class NumberLine(Game):
    """Move the current number onto the target.

    Reward: +1 when the target is reached (which terminates), -1 for a step that does not come closer, else 0. So the
    return is positive only without mistakes. After `2 * max_position` steps the episode is truncated.

    Infos also hold `kind`, the distance at the start, as text; and `mistakes`, the number of steps that did not come
    closer, so that an evaluation can require success without mistakes (as the reference does by return > 0).

    Args:
        max_position: greatest number, at least 1; the smallest is 0.
        legacy: sample start and target by the reference's rule (both uniform; an equal target is increased by one,
            modulo `max_position`, so that distance 1 and low targets are over-represented), and make both steps legal
            everywhere. Otherwise all pairs of unequal numbers are equally likely, so that a policy that ignores the
            picture cannot profit from guessing.
        render_size: height and width of the pictures.
        render_mode: `rgb_array` or None.

    Raises:
        BadInput: `max_position` is below 1.
    """

    action_names = ("-", "+")
    asked = ("current", "target")

    def __init__(
        self,
        max_position: int = 5,
        legacy: bool = False,
        render_size: Size = (96, 96),
        render_mode: str | None = "rgb_array",
    ) -> None:
        super().__init__(render_size, render_mode)
        if max_position < 1:
            raise BadInput(f"max_position={max_position} leaves no room to move; 1 is the least, 5 is usual")
        self.max_position = max_position
        self.legacy = legacy
        self.current = 0
        self.target = max_position
        self._distance = max_position
        self._steps = 0
        self._mistakes = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        super().reset(seed=seed)
        self.target, self.current = self._unequal_numbers()
        self._distance = abs(self.target - self.current)
        self._steps = 0
        self._mistakes = 0
        return self._observation(), self._info(False)

    def _unequal_numbers(self) -> tuple[int, int]:
        target, current = self._two_numbers()
        if self.legacy and target == current:
            return (target + 1) % self.max_position, current  # the rule of the reference, which prefers some pairs
        while target == current:
            target, current = self._two_numbers()
        return target, current

    def _two_numbers(self) -> list[int]:
        numbers: list[int] = self.np_random.integers(0, self.max_position + 1, 2).tolist()
        return numbers

    def step(self, action: np.int64) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        before = abs(self.target - self.current)
        step = 1 if self.action_names[action] == "+" else -1
        self.current = min(max(self.current + step, 0), self.max_position)
        self._steps += 1
        now = abs(self.target - self.current)
        reached = now == 0
        is_closer = now < before
        self._mistakes += not is_closer
        reward = -1.0
        if reached:
            reward = 1.0
        elif is_closer:
            reward = 0.0
        out_of_time = not reached and self._steps >= 2 * self.max_position
        return self._observation(), reward, reached, out_of_time, self._info(reached)

    def text(self) -> str:
        return (
            "The picture shows two numbers, a target number and a current number. "
            f"Bring the current number to the target number: + adds one to it and - takes one away. "
            f"It cannot go below 0 or above {self.max_position}."
        )

    def draw(self) -> np.ndarray:
        return _draw_numbers(self.render_size, self.target, self.current).copy()

    def facts(self) -> dict[str, str]:
        return {"current": str(self.current), "target": str(self.target)}

    def legal_actions(self) -> tuple[str, ...]:
        if self.legacy:
            return self.action_names
        if self.current == self.target:
            return ()
        # At an end of the line, the step beyond it is not legal.
        blocked = {0: "-", self.max_position: "+"}.get(self.current)
        return tuple(name for name in self.action_names if name != blocked)

    def oracle(self) -> str | None:
        if self.current == self.target:
            return None
        if self.current < self.target:
            return "+"
        return "-"

    def caption(self) -> str:
        return f"The target number is {self.target} and the current number is {self.current}."

    def _info(self, success: bool) -> dict[str, Any]:
        return super()._info(success) | {"kind": str(self._distance), "mistakes": self._mistakes}


@lru_cache(maxsize=256)
def _draw_numbers(size: Size, target: int, current: int) -> np.ndarray:
    """Picture of a state, cached: there are few of them, and drawing takes longer than a step."""
    canvas = Canvas(size, PAPER)
    canvas.rectangle(0.05, 0.497, 0.95, 0.503, LINE)
    for name, number, y in (("target", target, 0.25), ("current", current, 0.75)):
        canvas.text((0.05, y), name, 0.11, FAINT, align="l", width=0.46)
        canvas.text((0.76, y), str(number), 0.36, INK, width=0.4)
    return canvas.pixels()


TASK = Task(
    name="numberline",
    env="sightline/NumberLine-v0",
    goal=("the current number is the target number",),
    baseline=("two numbers",),
    success="end",
    is_game=True,
    summary="Bring one number to another by + and -, both in the picture.",
)
