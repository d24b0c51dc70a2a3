"""What a lesson of the bundled vision-language models is: a state of a game, and how to reply."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sightline.config.agents import Replies

REPLIES = Replies(format="json", thoughts=False)
"""How the bundled models reply."""
PLANNED = REPLIES.model_copy(
    update={
        "fields": {
            "cards": "what you see",
            "plan": "attempts to make 24, two numbers at a time, until one succeeds; then the formula",
            "action": "one action",
        },
        "memory": "plan",
    }
)
"""The same where Points24 is planned."""


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
