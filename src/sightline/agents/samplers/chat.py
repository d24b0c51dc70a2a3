"""Sampler: a chat model; a hosted one, your own server, or a Hugging Face model in this process."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from sightline.agents.samplers import Completion, Conversation, Key, only_text
from sightline.errors import BadInput, RunFailed
from sightline.images import Picture
from sightline.models.chat.calling import Attempt, RateLimitedClient, check
from sightline.models.chat.config import ChatModelConfig
from sightline.models.chat.messages import Ask, ChatModel, ChatReply, ChatRequest, Part, QuotaReached, Refused, Rejected
from sightline.models.chat.streaming import stream_async


class ChatSampler:
    """Requests every reply from a chat model, many concurrently. Making one needs neither key nor network.

    The interfaces know one turn only, so earlier turns of a conversation go into the same request, each with its
    pictures, its words and its reply.

    A request that is refused, or that fails after all retries, gives an empty reply (which has no action) and is
    counted; the first of each kind is reported. A request that is rejected for good (the key, the model's name, a
    quota) ends the run, because every other request would be rejected, too.

    Args:
        config: provider, model, limits and sampling.
        schema: JSON schema of a reply (`prompting.reply_schema`), asked for where `config.structured` and the server
            allow it.
        warn: receives one line for the first failure of each kind.

    Attributes:
        name: of the model, for reports.
        failures: number of missing replies, by `refused` and `failed`.
        input_tokens, output_tokens: used so far, as the provider counts.

    Raises:
        BadInput: the configured address is not one.
    """

    def __init__(
        self,
        config: ChatModelConfig,
        schema: dict[str, Any] | None = None,
        warn: Callable[[str], None] = lambda message: None,
    ) -> None:
        self.name = config.model
        self.failures: Counter[str] = Counter()
        self.input_tokens = self.output_tokens = 0
        self._config = config
        self._warn = warn
        self._schema = schema if config.structured else None
        self._model: ChatModel = config.open()
        self._limits = config.limits(self._model)
        self._calls = RateLimitedClient(self._limits, warn)

    def check(self) -> None:
        """Send a trivial request with a picture and all options that later requests have.

        Raises:
            BadInput: package or key missing, key refused, model unknown, or it does not take such requests.
            RunFailed: the server does not answer.
        """
        red = Picture(np.full((64, 64, 3), (200, 30, 30), np.uint8))
        check(self._model, self._limits, self._request((red, "Which colour is this? Reply in JSON.")))

    def generate(self, conversations: Sequence[Conversation], keys: Sequence[Key]) -> list[Completion]:
        """See `Sampler`. The keys are not used: servers sample by themselves, so replies are not reproducible.

        Raises:
            BadInput: package or key missing, or requests are rejected for good.
            RunFailed: a quota of the day or the account is used up.
        """
        replies = [only_text("", finished=False) for _ in conversations]
        requests = [self._request(as_one_turn(conversation)) for conversation in conversations]
        for index, attempt in stream_async(self._model.connected, self._reply, requests, self._config.concurrency):
            if attempt.reply is not None:
                replies[index] = only_text(attempt.reply.text, not attempt.reply.cut_off)
            else:
                self._note_failure(attempt)
        return replies

    async def _reply(self, ask: Ask, request: ChatRequest) -> Attempt[ChatReply]:
        last = (await self._calls.attempts(ask, request, self._count))[-1]
        if isinstance(last.error, QuotaReached):
            raise RunFailed(f"{self._model.where} answers no more: {last.error}; quota=wait waits for it")
        if isinstance(last.error, Rejected):
            raise BadInput(f"the chat model at {self._model.where} cannot be asked: {last.error}")
        return last

    def _count(self, attempt: Attempt[ChatReply]) -> None:
        outcome = attempt.reply or attempt.error  # a failed attempt may have cost tokens as well
        if outcome:
            self.input_tokens += outcome.input_tokens
            self.output_tokens += outcome.output_tokens

    def _note_failure(self, attempt: Attempt[ChatReply]) -> None:
        kind = "refused" if isinstance(attempt.error, Refused) else "failed"
        self.failures[kind] += 1
        if self.failures[kind] == 1:
            self._warn(
                f"a reply of {self.name} at {self._model.where} is missing ({kind}: {attempt.error}); "
                "it counts as empty, and so will others"
            )

    def _request(self, parts: tuple[Part, ...]) -> ChatRequest:
        return ChatRequest(parts, self._schema, self._config.temperature, self._config.max_tokens)


def as_one_turn(conversation: Conversation) -> tuple[Part, ...]:
    """Parts of one request with all turns: pictures, words and reply of each, the present one last."""
    parts: list[Part] = []
    count = len(conversation)
    for number, turn in enumerate(conversation, 1):
        is_present = number == count
        if count > 1:
            heading = f"Turn {number} of {count}"
            if is_present:
                heading += ", now"
            parts.append(f"{heading}:")
        parts += turn.pictures
        parts.append(turn.text)
        if not is_present:
            parts.append(f"You replied: {turn.reply_text}")
    return tuple(parts)
