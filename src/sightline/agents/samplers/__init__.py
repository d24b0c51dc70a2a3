"""Samplers of replies: the policy itself, the policy served by vLLM, a chat model, or a script."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from sightline.models.vlm.types import ChatTurn, Prompt, Sample

Conversation = Sequence[ChatTurn]
"""Turns of the window, in order; the last one has no reply yet."""
Key = tuple[int, ...]
"""PRNG key of a turn: all its randomness is derived from these numbers."""


@dataclass(frozen=True, eq=False)
class Completion:
    """Sampled reply, and the prompt as token ids; without a prompt it is not trained on.

    Attributes:
        version: number of the weights that it was sampled with, where a server has copies of them; else None.
    """

    sample: Sample
    prompt: Prompt | None = None
    version: int | None = None


class Sampler(Protocol):
    """Source of replies."""

    def generate(self, conversations: Sequence[Conversation], keys: Sequence[Key]) -> list[Completion]:
        """Generate a reply to the last message of each conversation.

        Args:
            conversations: N of them; earlier turns carry their replies.
            keys: PRNG key of each reply; equal keys and conversations give equal replies, where that is possible.

        Returns:
            N replies, in the same order.
        """
        ...


def only_text(text: str, finished: bool = True) -> Completion:
    """Completion that is only text: without ids and log-probabilities, so it is not trained on."""
    return Completion(Sample(np.zeros(0, np.int64), np.zeros(0, np.float32), text, finished))
