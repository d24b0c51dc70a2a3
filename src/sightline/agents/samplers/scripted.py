"""Replies by a function: for tests, and for players that are programs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from sightline.agents.samplers import Completion, Conversation, Key, only_text
from sightline.models.vlm.types import ChatTurn


@dataclass(frozen=True)
class Scripted:
    """Replies with what a function says of the last turn.

    Attributes:
        function: what is shown -> the text of the reply.
    """

    function: Callable[[ChatTurn], str]

    def ask(self, conversations: Sequence[Conversation], keys: Sequence[Key]) -> list[Completion]:
        """See `Sampler`; keys do not matter."""
        return [only_text(self.function(conversation[-1])) for conversation in conversations]
