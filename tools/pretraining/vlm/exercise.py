"""What a lesson of the bundled vision-language models is: a state of a game, and how to reply."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from sightline.agents.prompting import demonstration
from sightline.config.agents import Replies
from sightline.config.loading import for_agent, load_recipe

OTHER = "?"
"""No thought or action of any lesson."""
REPLIES = Replies(format="json", thoughts=False)
"""How the bundled models reply."""
THINKING = Replies(format="json")
"""How they do where the household tells where the agent has not been."""
PLANNED = for_agent(load_recipe("points24")).replies
"""How they do where Points24 is planned: as its recipe says."""


@dataclass(frozen=True)
class Exercise:
    """Pictures uint8[H, W, 3], what is asked about them, and what is to be replied."""

    game: str
    pictures: tuple[np.ndarray, ...]
    prompt: str
    reply: str
    facts: dict[str, str]
    actions: tuple[str, ...] = ()
    """Names that the prompt lists, where they differ from state to state or from room to room."""
    quantities: np.ndarray | None = None
    """float32[P, 3], numbers that determine each of the P pictures, for environments whose facts are coarser."""
    replies: Replies = REPLIES
    """Form of the reply."""
    cells: tuple[tuple[str, ...], ...] = ()
    """Words for each cell of the picture, row by row: what it shows, its state or colour, its column, its row."""

    def told_facts(self, encode: Callable[[str], list[int]]) -> list[int]:
        """Tokens of the reply up to where thoughts or the action begin: those that say what is seen."""
        reply, other = encode(self.reply), encode(demonstration(self.replies, self.facts, OTHER, OTHER))
        same = next((i for i, (a, b) in enumerate(zip(reply, other, strict=False)) if a != b), len(reply))
        return reply[:same]
