"""How a model is asked: no faster than the provider allows, again if it may pass, and never for ever."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from sightline.errors import BadInput, RunFailed
from sightline.models.chat.messages import (
    Ask,
    ChatModel,
    ChatReply,
    ChatRequest,
    NoReply,
    Rejected,
    Transient,
)
from sightline.models.chat.streaming import stream_async

LONGEST_WAIT = 120.0
"""Seconds; a server that asks for more (a daily quota, say) is not waited for."""
_FIRST_GUESS = 1_000.0
"""Tokens of a request, until the first reply tells."""


@dataclass(frozen=True)
class Limits:
    """How a model may be asked.

    Attributes:
        requests_per_minute, tokens_per_minute: None for no limit.
        timeout: seconds for one request, None for no limit.
        retries: further attempts after a failure that may pass.
        first_wait: seconds before the first of them; each further wait is twice as long.
    """

    requests_per_minute: float | None = None
    tokens_per_minute: float | None = None
    timeout: float | None = 60.0
    retries: int = 5
    first_wait: float = 1.0


@dataclass(frozen=True)
class Attempt:
    """One request and what became of it: a reply, or an error.

    Attributes:
        seconds: from sending to the last byte.
    """

    reply: ChatReply | None
    error: NoReply | None
    seconds: float


class TokenBucket:
    """A token bucket that holds one second's worth, so that no minute sees noticeably more than its limit.

    Kept as the time at which the bucket is even (the generic cell rate algorithm): whoever takes more than there is
    pushes that time into the future, and the next one has to wait for it.

    Args:
        per_minute: requests or tokens; None for no limit.
        clock: gives seconds; default: the one that is never set back.
    """

    def __init__(self, per_minute: float | None, clock: Callable[[], float] | None = None) -> None:
        self._seconds_each = 60.0 / per_minute if per_minute else 0.0
        self._clock = clock or time.monotonic
        self._even_at = self._clock() - 1.0

    def take(self, amount: float) -> float:
        """Take so much; gives the seconds to wait before it may be used."""
        now = self._clock()
        begins = max(self._even_at, now - 1.0)
        self._even_at = begins + amount * self._seconds_each
        return max(0.0, begins - now)

    def correct(self, amount: float) -> None:
        """So much more (or less, if negative) was taken than was said."""
        self._even_at += amount * self._seconds_each


class RateLimitedClient:
    """Sends requests within the limits of one provider. Kept for a whole run: limits do not end with a round."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._requests, self._tokens = TokenBucket(limits.requests_per_minute), TokenBucket(limits.tokens_per_minute)
        self._usual_tokens = _FIRST_GUESS
        self._not_before = 0.0
        self._jitter = random.Random()  # spreads waits; no result depends on it

    async def attempts(
        self, ask: Ask, request: ChatRequest, note: Callable[[Attempt], None] = lambda attempt: None
    ) -> list[Attempt]:
        """Ask until there is a reply, a refusal, or no hope; gives all attempts, of which the last one counts.

        Args:
            note: told of each attempt as soon as it is made; also of one that is cancelled while the server works on
                it, which may well have to be paid for.
        """
        made: list[Attempt] = []
        while True:
            attempt = await self._attempt(ask, request, note)
            note(attempt)
            made.append(attempt)
            if not isinstance(attempt.error, Transient) or len(made) > self._limits.retries:
                return made
            await asyncio.sleep(self._wait_after(attempt.error, len(made)))

    async def _attempt(self, ask: Ask, request: ChatRequest, note: Callable[[Attempt], None]) -> Attempt:
        guess = self._usual_tokens
        await asyncio.sleep(max(self._requests.take(1), self._tokens.take(guess)))
        while (pause := self._not_before - time.monotonic()) > 0:  # a server's wish to be left alone is for everybody
            await asyncio.sleep(pause)
        began = time.monotonic()
        reply: ChatReply | None = None
        error: NoReply | None = None
        try:
            async with asyncio.timeout(self._limits.timeout):
                reply = await ask(request)
            tokens = reply.input_tokens + reply.output_tokens
            self._usual_tokens += 0.2 * (tokens - self._usual_tokens)
        except asyncio.CancelledError:
            note(Attempt(None, Transient("given up before a reply came"), time.monotonic() - began))
            raise
        except TimeoutError:
            error, tokens = Transient(f"no reply within {self._limits.timeout:g} s"), 0
        except NoReply as why:
            error, tokens = why, why.input_tokens + why.output_tokens
            wished = why.retry_after if isinstance(why, Transient) else None
            if wished is not None and wished > LONGEST_WAIT:
                error = Rejected(f"{why}; it wants a pause of {wished:.0f} s")
            elif wished is not None:
                self._not_before = max(self._not_before, time.monotonic() + wished)
        self._tokens.correct(tokens - guess)
        return Attempt(reply, error, time.monotonic() - began)

    def _wait_after(self, error: Transient, failures: int) -> float:
        """Exponential back-off with jitter; a little only, where the server said itself how long to pause."""
        if error.retry_after is not None:
            return self._limits.first_wait * self._jitter.uniform(0, 0.1)
        return float(min(self._limits.first_wait * 2 ** (failures - 1), LONGEST_WAIT) * self._jitter.uniform(0.5, 1.0))


def check(model: ChatModel, limits: Limits, request: ChatRequest) -> ChatReply:
    """Ask once, before anything depends on it.

    Raises:
        BadInput: key missing or refused, model unknown, or it turns down such requests.
        RunFailed: the server does not answer, or nothing that is a reply.
    """
    calls = RateLimitedClient(replace(limits, retries=min(limits.retries, 2)))

    async def once(ask: Ask, asked: ChatRequest) -> Attempt:
        try:
            async with asyncio.timeout(limits.timeout):
                return (await calls.attempts(ask, asked))[-1]
        except TimeoutError:
            return Attempt(None, Transient(f"no reply within {limits.timeout:g} s"), limits.timeout or 0.0)

    ((_, last),) = stream_async(model.connected, once, [request], at_once=1)
    if last.reply is not None:
        return last.reply
    kind = RunFailed if isinstance(last.error, Transient) else BadInput
    raise kind(f"the chat model at {model.where} cannot be asked: {last.error}")
