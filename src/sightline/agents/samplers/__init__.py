"""Who replies: the policy itself, a script, a model behind a chat interface, or the policy served by vLLM."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from sightline.models.vlm.types import ChatTurn, Prompt, Sample

Conversation = Sequence[ChatTurn]
"""The turns that are shown, in order; the last has no reply yet."""
Key = tuple[int, ...]
"""From which all chance of a turn comes."""


@dataclass(frozen=True, eq=False)
class Completion:
    """A reply, and what was asked if it can be learned from."""

    sample: Sample
    prompt: Prompt | None = None


class Sampler(Protocol):
    """Whoever replies."""

    def ask(self, conversations: Sequence[Conversation], keys: Sequence[Key]) -> list[Completion]:
        """Reply to the last exchange of each conversation.

        Args:
            conversations: N of them; earlier exchanges carry their replies.
            keys: the chance of each reply; equal keys and conversations give equal replies, where that is possible.

        Returns:
            N replies, in the same order.
        """
        ...


def only_text(text: str, finished: bool = True) -> Completion:
    """A reply of which nothing but the text is known: no ids, no probabilities, so nothing is learned from it."""
    return Completion(Sample(np.zeros(0, np.int64), np.zeros(0, np.float32), text, finished))
