"""What every game offers, beyond what any Gymnasium environment does."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, NamedTuple

import gymnasium
import numpy as np
from gymnasium import spaces

from sightline.envs.drawing import Size
from sightline.errors import BadInput

MAX_TEXT = 20_000
"""Characters of an observation's text, at most."""


class Observation(NamedTuple):
    """What the agent is shown before it acts.

    Attributes:
        text: the rules of the game and whatever of its state is told in words; never what the agent should see for
            itself, and never what to do.
        images: uint8[H, W, 3] each, drawn from the present state.
    """

    text: str
    images: tuple[np.ndarray, ...]


class AnyText(spaces.Text):
    """All strings up to a length; Gymnasium's own space wants the characters listed."""

    def __init__(self, max_length: int = MAX_TEXT) -> None:
        super().__init__(max_length=max_length, min_length=0)

    def contains(self, x: Any) -> bool:
        return isinstance(x, str) and len(x) <= self.max_length


class Game(gymnasium.Env[Observation, np.int64], ABC):
    """A game of named actions, played from pictures.

    A concrete game keeps its state in attributes, draws all chance from `self.np_random`, and says six things about the
    present state: `text`, `draw`, `facts`, `legal_actions`, `oracle` and `in_words`. Its `reset` and `step` end with
    `self._observation()` and `self._info(success)`.

    Attributes:
        action_names: what the agent writes, one name for each number of `action_space`.
        asked: names of the facts that can only be seen in the picture and that a reply should state, in order. Whether
            what the agent states is true (truthfulness) is measured everywhere.
        render_size: height and width of the picture in pixels.

    Infos hold `success` (bool: is the game won in this state), `legal_actions` (names; all of them if any will do) and
    `facts` (name -> text, see `facts`), all of the state that the observation beside them shows. They may hold `kind`,
    the sort of task by which results are told apart, and `mistakes`, how many moves of the episode were wrong by the
    game's own count.

    Args:
        render_size: height and width of the pictures.
        render_mode: `rgb_array`, or None; kept for Gymnasium, pictures are part of the observation anyway.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 2}
    action_names: tuple[str, ...]
    asked: tuple[str, ...] = ()

    def __init__(self, render_size: Size = (96, 96), render_mode: str | None = "rgb_array") -> None:
        if min(render_size) < 32:
            raise BadInput(f"render_size={tuple(render_size)} is too small to be read; 32x32 is the least")
        self.render_size = int(render_size[0]), int(render_size[1])
        self.render_mode = render_mode
        self.action_space = spaces.Discrete(len(self.action_names))
        picture = spaces.Box(0, 255, (*self.render_size, 3), np.uint8)
        self.observation_space: Any = spaces.Tuple((AnyText(), spaces.Tuple((picture,))))

    @abstractmethod
    def text(self) -> str:
        """The rules, and what of the present state is told in words."""

    @abstractmethod
    def draw(self) -> np.ndarray:
        """The picture of the present state: uint8[H, W, 3]."""

    @abstractmethod
    def facts(self) -> dict[str, str]:
        """What a truthful reply would state of the present picture: a text for each name in `asked`."""

    @abstractmethod
    def legal_actions(self) -> tuple[str, ...]:
        """Names of the actions that the rules allow in the present state."""

    @abstractmethod
    def oracle(self) -> str | None:
        """The name of a best action in the present state, None if the game cannot be won any more or is over."""

    @abstractmethod
    def in_words(self) -> str:
        """All that the picture shows, in one or a few sentences, for those that cannot see."""

    def render(self) -> np.ndarray:
        """The picture of the present state: uint8[H, W, 3]."""
        return self.draw()

    def _observation(self) -> Observation:
        return Observation(self.text(), (self.draw(),))

    def _info(self, success: bool) -> dict[str, Any]:
        return {"success": success, "legal_actions": self.legal_actions(), "facts": self.facts()}
