"""Providers and models differ in what they understand; what one of them turns down is left out from then on.

Schemas, log-probabilities and temperatures are wishes: without them a reply is only harder to read, or less steady. So
a request that is malformed in a server's eyes is sent again without the wish that the server names. If it names none,
it is sent once more without schema and log-probabilities: many say no more than `invalid argument`. Only what worked
without a wish is remembered; a picture that is too large says nothing about schemas.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace

from sightline.models.chat.messages import ChatReply, ChatRequest, Rejected

_ABOUT_SCHEMAS = ("schema", "response_format", "json", "output_config", "response_mime_type", "structured", "grammar")
"""Words in a complaint about the form that a reply was to have."""


@dataclass(frozen=True)
class Capabilities:
    """What may be asked of a server.

    Attributes:
        schema, alternatives, temperature: whether these fields of a request are sent.
        old_limit: whether the length is limited by `max_tokens`, or by the newer `max_completion_tokens`.
    """

    schema: bool = True
    alternatives: bool = True
    temperature: bool = True
    old_limit: bool = True

    def granted(self, request: ChatRequest) -> ChatRequest:
        """The request without what is not to be asked for."""
        return replace(
            request,
            schema=request.schema if self.schema else None,
            alternatives=request.alternatives if self.alternatives else 0,
        )

    def without(self, complaint: str, request: ChatRequest) -> Capabilities | None:
        """Less, after this complaint about this request; None if there is nothing left to do without."""
        complaint = complaint.lower()
        if self.old_limit and "max_completion_tokens" in complaint:
            return replace(self, old_limit=False)
        if self.temperature and "temperature" in complaint:
            return replace(self, temperature=False)
        asked = self.granted(request)
        if asked.alternatives and "logprob" in complaint:
            return replace(self, alternatives=False)
        if asked.schema is not None and any(word in complaint for word in _ABOUT_SCHEMAS):
            return replace(self, schema=False)
        least = replace(self, schema=False, alternatives=False)
        return least if least.granted(request) != asked else None


class CapabilityFallback:
    """Remembers what a server has turned down."""

    def __init__(self) -> None:
        self._wishes = Capabilities()

    async def reply(
        self, request: ChatRequest, send: Callable[[ChatRequest, Capabilities], Awaitable[ChatReply]]
    ) -> ChatReply:
        """The reply to a request, with as many wishes as the server grants."""
        wishes = begun = self._wishes
        while True:
            try:
                reply = await send(wishes.granted(request), wishes)
            except Rejected as complaint:
                less = wishes.without(str(complaint), request) if complaint.malformed else None
                if less is None:
                    raise
                wishes = less
            else:
                if wishes is not begun:
                    self._wishes = wishes
                return reply
