"""What a lesson of the bundled vision-language models is: a state of a game, and how to reply."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sightline.config.agents import Replies
from sightline.config.loading import for_agent, load_recipe

REPLIES = Replies(format="json", thoughts=False)
"""How the bundled models reply."""
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
