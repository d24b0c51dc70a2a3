"""Interface of games: what they offer beyond a Gymnasium environment."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, NamedTuple

import gymnasium
import numpy as np
from gymnasium import spaces

from sightline.envs.frames import Size
from sightline.errors import BadInput

MAX_TEXT = 1_000_000
"""Greatest number of characters in an observation's text."""


class Observation(NamedTuple):
    """Observation of the agent: a text and pictures.

    Attributes:
        text: the rules of the game, and the part of its state that is given in words; never the facts that the agent
            should read from the picture, and never the action to take.
        images: uint8[H, W, 3] each, drawn from the present state.
    """

    text: str
    images: tuple[np.ndarray, ...]


class AnyText(spaces.Text):
    """Text space of all strings up to a length; Gymnasium's own needs a list of the characters."""

    def __init__(self, max_length: int = MAX_TEXT) -> None:
        super().__init__(max_length=max_length, min_length=0)

    def contains(self, x: Any) -> bool:
        return isinstance(x, str) and len(x) <= self.max_length


class ActionText(spaces.Text):
    """Action space of actions in words: the names of a game's actions, or any text where there are none.

    Args:
        names: of the actions; empty if any text is one.
        examples: texts that are sampled then, so that play at random is an honest baseline; empty samples letters.
        max_length: in characters.
    """

    def __init__(self, names: Sequence[str] = (), examples: Sequence[str] = (), max_length: int = 1_000) -> None:
        super().__init__(max_length=max_length, min_length=0)
        self.names = tuple(names)
        self.examples = tuple(examples)

    def contains(self, x: Any) -> bool:
        if self.names:
            return x in self.names
        return isinstance(x, str) and len(x) <= self.max_length

    def sample(self, *arguments: Any, **options: Any) -> str:
        texts = self.names or self.examples
        if not texts:
            return super().sample(*arguments, **options)
        return texts[int(self.np_random.integers(len(texts)))]


class Game(gymnasium.Env[Observation, Any], ABC):
    """Base class of games with named actions, played from pictures.

    A concrete game keeps its state in attributes, samples from `self.np_random` only, and implements five methods about
    the present state: `text`, `draw`, `facts`, `legal_actions` and `caption`; and `oracle`, if its best play is known.
    Its `reset` and `step` return `self._observation()` and `self._info(success)`.

    Attributes:
        action_names: names of the actions, in the order of their numbers in `action_space`; empty if every state has
            its own, which `legal_actions` gives (none, if any text is one), and `step` takes in words.
        asked: names of the queried facts, in order: those that only the picture shows and that a reply should state.
            The share of these statements that is true is measured for every agent.
        render_size: height and width of the picture in pixels.

    Infos hold `success` (bool, true if the game is won in this state; None if it cannot tell), `legal_actions` (names;
    all of them if no rule forbids any) and `facts` (visible facts: name -> text), all of the state that the observation
    shows. They may hold `kind`, a group of tasks by which results are reported, and `mistakes`, the number of wrong
    moves in this episode by the game's own count.

    Args:
        render_size: height and width of the pictures.
        render_mode: `rgb_array`, or None; for Gymnasium, as pictures are part of the observation anyway.

    Raises:
        BadInput: `render_size` is below 32x32.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 2}
    action_names: tuple[str, ...]
    asked: tuple[str, ...] = ()

    def __init__(self, render_size: Size = (96, 96), render_mode: str | None = "rgb_array") -> None:
        if min(render_size) < 32:
            raise BadInput(f"render_size={tuple(render_size)} is too small to be read; 32x32 is the least")
        self.render_size = int(render_size[0]), int(render_size[1])
        self.render_mode = render_mode
        self.action_space: Any = ActionText()
        if self.action_names:
            self.action_space = spaces.Discrete(len(self.action_names))
        # Gymnasium's own `Text` would need a list of characters, see `AnyText`.
        picture = spaces.Box(0, 255, (*self.render_size, 3), np.uint8)
        self.observation_space: Any = spaces.Tuple((AnyText(), spaces.Tuple((picture,))))

    @abstractmethod
    def text(self) -> str:
        """Rules of the game, and the part of the present state that is given in words."""

    @abstractmethod
    def draw(self) -> np.ndarray:
        """Draw the picture of the present state: uint8[H, W, 3]."""

    @abstractmethod
    def facts(self) -> dict[str, str]:
        """Visible facts of the present picture: a text for each name in `asked`."""

    @abstractmethod
    def legal_actions(self) -> tuple[str, ...]:
        """Action mask of the present state, as the names of the actions that the rules allow."""

    def oracle(self) -> str | None:
        """Name of a best action in the present state; None if the game is over or can no longer be won.

        A game that does not override it has no oracle.
        """
        return None

    def thoughts(self) -> str | None:
        """Thoughts that lead to the oracle's action, for demonstrations; None where the game has none to tell."""
        return None

    @abstractmethod
    def caption(self) -> str:
        """Description of everything that the picture shows, in a few sentences, for models without vision."""

    def render(self) -> np.ndarray:
        """Render the picture of the present state: uint8[H, W, 3]."""
        return self.draw()

    def _observation(self) -> Observation:
        return Observation(self.text(), (self.draw(),))

    def _info(self, success: bool) -> dict[str, Any]:
        return {"success": success, "legal_actions": self.legal_actions(), "facts": self.facts()}
