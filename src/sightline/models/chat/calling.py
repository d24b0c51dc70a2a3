"""Client-side rules of every request: rate limits, retries, time-outs, what an HTTP status means, and fallbacks.

No faster than the provider allows, again if it may pass, with less if the server understands less, and never for ever.
"""

from __future__ import annotations

import asyncio
import random
import re
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

from sightline.errors import BadInput, RunFailed
from sightline.models.chat.messages import (
    Ask,
    ChatModel,
    ChatReply,
    ChatRequest,
    NoAccess,
    NoReply,
    QuotaReached,
    Refused,
    Rejected,
    Transient,
)
from sightline.models.chat.streaming import stream_async

LONGEST_WAIT = 120.0
"""Seconds; a server that asks for more has a quota that is not one of the minute."""
QUOTA_PAUSE = 3600.0
"""Seconds between two requests while a quota is waited for that nobody says the end of."""
_FIRST_GUESS = 1_000.0
"""Tokens of a request, until the first reply tells."""
_RETRYABLE = {408, 409, 425, 429}
"""HTTP statuses below 500 that may pass."""
_NOT_OFFERED = {501, 505}
"""HTTP statuses from 500 that do not pass."""
_UNPAID = ("insufficient_quota", "credit balance", "payment required")
_LONG_QUOTA = re.compile(
    r"per[\s_-]*(?:day|week|month)|(?:free|models)-per-day|\b(?:daily|weekly|monthly)\b|\b[RT]PD\b", re.IGNORECASE
)
"""Words of a complaint about a quota that is not one of the minute."""
_FILTERED = ("content_filter", "content_policy", "content management policy", "safety system", "moderation")
_ABOUT_SCHEMAS = ("schema", "response_format", "json", "output_config", "response_mime_type", "structured", "grammar")
"""Words in a complaint about the form that a reply was to have."""


@dataclass(frozen=True)
class Limits:
    """Rate limits, time-out and retries of a provider.

    Attributes:
        requests_per_minute, tokens_per_minute: None for no limit.
        timeout: seconds for one request, None for no limit.
        retries: further attempts after a failure that may pass.
        first_wait: seconds before the first of them; each further wait is twice as long.
        waits_for_quota: whether a quota that is used up is waited for, be it until tomorrow.
    """

    requests_per_minute: float | None = None
    tokens_per_minute: float | None = None
    timeout: float | None = 60.0
    retries: int = 5
    first_wait: float = 1.0
    waits_for_quota: bool = False


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

    def reserve(self, amount: float) -> float:
        """Reserve an amount, and return the seconds to wait before it may be used."""
        now = self._clock()
        begins = max(self._even_at, now - 1.0)
        self._even_at = begins + amount * self._seconds_each
        return max(0.0, begins - now)

    def adjust(self, amount: float) -> None:
        """Add an amount to what was reserved; give some back if it is negative."""
        self._even_at += amount * self._seconds_each


class RateLimitedClient:
    """Sends requests within the limits of one provider. Kept for a whole run: limits do not end with a round.

    Args:
        say: told in one line when a quota is waited for.

    Attributes:
        exhausted: why no request is answered, after which nothing is sent until this is None again.
    """

    def __init__(self, limits: Limits, say: Callable[[str], None] = lambda message: None) -> None:
        self._limits, self._say = limits, say
        self.exhausted: NoAccess | None = None
        self._requests, self._tokens = TokenBucket(limits.requests_per_minute), TokenBucket(limits.tokens_per_minute)
        self._usual_tokens = _FIRST_GUESS
        self._not_before = 0.0
        self._jitter = random.Random()  # spreads waits; no result depends on it

    async def attempts(
        self, ask: Ask, request: ChatRequest, note: Callable[[Attempt], None] = lambda attempt: None
    ) -> list[Attempt]:
        """Send a request until there is a reply, a refusal, or no hope; return all attempts, of which the last counts.

        Args:
            note: told of each attempt as soon as it is made; also of one that is cancelled while the server works on
                it, which may well have to be paid for.
        """
        made: list[Attempt] = []
        while True:
            if self.exhausted is not None:  # nobody is asked what nobody will answer
                return [*made, Attempt(None, self.exhausted, 0.0)]
            attempt = await self._attempt(ask, request, note)
            note(attempt)
            made.append(attempt)
            if isinstance(attempt.error, QuotaReached) and self._limits.waits_for_quota:
                made.clear()
                self._wait_for_quota(attempt.error)
                continue
            if isinstance(attempt.error, NoAccess):
                self.exhausted = attempt.error
            if not isinstance(attempt.error, Transient) or len(made) > self._limits.retries:
                return made
            await asyncio.sleep(self._wait_after(attempt.error, len(made)))

    async def _attempt(self, ask: Ask, request: ChatRequest, note: Callable[[Attempt], None]) -> Attempt:
        guess = self._usual_tokens
        await asyncio.sleep(max(self._requests.reserve(1), self._tokens.reserve(guess)))
        while (pause := self._not_before - time.monotonic()) > 0:  # a server's wish to be left alone is for everybody
            await asyncio.sleep(pause)
        began = time.monotonic()
        reply: ChatReply | None = None
        error: NoReply | None = None
        try:
            async with asyncio.timeout(self._limits.timeout):
                reply = await ask(request)
            tokens = reply.input_tokens + reply.output_tokens
            if not reply.text.strip() and not reply.cut_off:
                # Not to be repeated at once: most likely it would be empty again, and it is paid for.
                error, reply = NoReply("the reply is empty", reply.input_tokens, reply.output_tokens), None
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
                error = QuotaReached(f"{why}; it wants a pause of {wished:.0f} s", wished)
            elif wished is not None:
                self._not_before = max(self._not_before, time.monotonic() + wished)
        self._tokens.adjust(tokens - guess)
        return Attempt(reply, error, time.monotonic() - began)

    def _wait_for_quota(self, reached: QuotaReached) -> None:
        """Have all requests wait until a quota may be renewed."""
        pause = max(reached.retry_after or QUOTA_PAUSE, LONGEST_WAIT)
        if self._not_before < time.monotonic():  # the first to be told
            self._say(f"waiting {pause / 60:.0f} minutes: {reached}")
            self._not_before = time.monotonic() + pause

    def _wait_after(self, error: Transient, failures: int) -> float:
        """Exponential back-off with jitter; a little only, where the server said itself how long to pause."""
        if error.retry_after is not None:
            return self._limits.first_wait * self._jitter.uniform(0, 0.1)
        return float(min(self._limits.first_wait * 2 ** (failures - 1), LONGEST_WAIT) * self._jitter.uniform(0.5, 1.0))


def check(model: ChatModel, limits: Limits, request: ChatRequest) -> ChatReply:
    """Check a model with one request, before anything depends on it.

    Raises:
        BadInput: key missing or refused, model unknown, or it turns down such requests.
        RunFailed: the server does not answer, or nothing that is a reply.
    """
    calls = RateLimitedClient(replace(limits, retries=min(limits.retries, 2), waits_for_quota=False))

    async def once(ask: Ask, asked: ChatRequest) -> Attempt:
        try:
            async with asyncio.timeout(limits.timeout):
                return (await calls.attempts(ask, asked))[-1]
        except TimeoutError:
            return Attempt(None, Transient(f"no reply within {limits.timeout:g} s"), limits.timeout or 0.0)

    ((_, last),) = stream_async(model.connected, once, [request], at_once=1)
    if last.reply is not None:
        return last.reply
    kind = RunFailed if isinstance(last.error, Transient | QuotaReached) else BadInput
    raise kind(f"the chat model at {model.where} cannot be asked: {last.error}")


# -- HTTP statuses -----------------------------------------------------------------------------------------------------


def error_from_status(
    status: int, message: str, key_variable: str | None, retry_after: str | None = None, quota: str = ""
) -> NoReply:
    """Make the exception for an HTTP status: retry, ask for less, or give up.

    Args:
        message: what the server says about it.
        key_variable: where the key came from, None if none was sent.
        retry_after: the server's header of that name, or what says the same.
        quota: name of the quota that is used up, where the server tells it beside the message.
    """
    wait = seconds_to_wait(retry_after)
    # Gemini mentions billing whenever a limit of the minute is reached, and says then how long to wait.
    unpaid = (*_UNPAID, "billing") if wait is None else _UNPAID
    said = f" ({message})" if message else ""
    lowered = message.lower()
    if status in (400, 403, 422) and "logprob" in lowered:  # reasoning models of OpenAI forbid them with a 403
        return Rejected(f"the server answers {status}{said}", malformed=True)
    if status in (400, 403, 422) and any(word in lowered for word in _FILTERED):
        return Refused(f"the provider blocked the request{said}")
    if status == 401 or (status in (400, 403) and "api key" in lowered):
        about = f"the key in {key_variable}" if key_variable else "a request without a key; set key_env"
        return NoAccess(f"the server refuses {about}{said}")
    if status == 403:  # which may be about this request only
        about = (
            f"; may the key in {key_variable} use this model?" if key_variable else "; does it need a key (key_env)?"
        )
        return Rejected(f"the server refuses the request{said}{about}")
    # Gemini asks for a pause of seconds whichever quota it is; others that do are served again by then.
    is_long = bool(_LONG_QUOTA.search(quota)) or (
        _LONG_QUOTA.search(message) is not None and (wait is None or wait > LONGEST_WAIT)
    )
    if status == 429 and is_long:
        return QuotaReached(f"a quota is used up{said or f' ({quota})'}", None if quota else wait)
    if status == 402 or (status == 429 and any(word in lowered for word in unpaid)):
        return QuotaReached(f"the provider wants to be paid first{said}")
    if status == 404:
        kind = NoAccess if "model" in lowered else Rejected
        return kind(f"the server knows no such model or address{said}; correct model or url")
    if status == 413:
        return Rejected(f"the request is too large for the server{said}; show it fewer or smaller pictures")
    if status in _RETRYABLE or (status >= 500 and status not in _NOT_OFFERED):
        return Transient(f"the server answers {status}{said}", wait)
    return Rejected(f"the server answers {status}{said}", malformed=status in (400, 422))


def retry_delay(body: Any) -> str | None:
    """Seconds that the body of an error asks to wait, in digits: Google says so there, and not in a header."""
    for detail in _details(body, "RetryInfo"):
        return str(detail.get("retryDelay", "")).removesuffix("s")
    return None


def quotas(body: Any) -> str:
    """Names of the quotas that the body of one of Google's errors says to be used up: `GenerateRequestsPerDay…`."""
    names = []
    for detail in _details(body, "QuotaFailure"):
        violations = detail.get("violations")
        listed = violations if isinstance(violations, list) else ()
        names += [str(violation.get("quotaId", "")) for violation in listed if isinstance(violation, dict)]
    return " ".join(names)


def _details(body: Any, kind: str) -> Iterator[dict[str, Any]]:
    """Details of a kind in the body of one of Google's errors, which may lie in a list."""
    body = body[0] if isinstance(body, list) and body else body
    inner = body.get("error") if isinstance(body, dict) else None
    details = inner.get("details") if isinstance(inner, dict) else None
    for detail in details if isinstance(details, list) else ():
        if isinstance(detail, dict) and str(detail.get("@type", "")).endswith(f"google.rpc.{kind}"):
            yield detail


def seconds_to_wait(retry_after: str | None, now: float | None = None) -> float | None:
    """Read a Retry-After header: seconds, be it a number or a date; None if it says nothing sensible.

    Args:
        now: seconds since 1970, for the date; default: the clock.
    """
    if retry_after is None:
        return None
    try:
        seconds = float(retry_after)
    except ValueError:
        try:
            then = parsedate_to_datetime(retry_after)
        except (ValueError, TypeError, IndexError):
            return None
        then = then if then.tzinfo else then.replace(tzinfo=UTC)
        seconds = (then - datetime.fromtimestamp(time.time() if now is None else now, UTC)).total_seconds()
    return max(seconds, 0.0) if seconds < float("inf") else None


# -- optional features -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Capabilities:
    """Optional features of requests that a server supports, as far as is known.

    Attributes:
        schema, alternatives, temperature: whether these fields of a request are sent.
        max_tokens: whether the length is limited by a field of that name, or by the newer `max_completion_tokens`.
    """

    schema: bool = True
    alternatives: bool = True
    temperature: bool = True
    max_tokens: bool = True

    def restrict(self, request: ChatRequest) -> ChatRequest:
        """Leave out of a request what the server does not support."""
        return replace(
            request,
            schema=request.schema if self.schema else None,
            alternatives=request.alternatives if self.alternatives else 0,
        )

    def downgrade(self, complaint: str, request: ChatRequest) -> Capabilities | None:
        """Drop what this complaint about this request is about; None if there is nothing left to drop."""
        complaint = complaint.lower()
        if self.max_tokens and "max_completion_tokens" in complaint:
            return replace(self, max_tokens=False)
        if self.temperature and "temperature" in complaint:
            return replace(self, temperature=False)
        asked = self.restrict(request)
        if asked.alternatives and "logprob" in complaint:
            return replace(self, alternatives=False)
        if asked.schema is not None and any(word in complaint for word in _ABOUT_SCHEMAS):
            return replace(self, schema=False)
        least = replace(self, schema=False, alternatives=False)
        return least if least.restrict(request) != asked else None


Post = Callable[[ChatRequest, Capabilities], Awaitable[ChatReply]]
"""Sends a request as a server with these features understands it, once."""


class CapabilityFallback:
    """Sends requests with all that a server supports, and remembers what it has turned down.

    Providers and models differ in what they understand. Schemas, log-probabilities and temperatures are optional:
    without them a reply is only harder to read, or less steady. So a request that is malformed in a server's eyes is
    sent again without the feature that the server names. If it names none, it is sent once more without schema and
    log-probabilities: many say no more than `invalid argument`. Only what worked without a feature is remembered; a
    picture that is too large says nothing about schemas.
    """

    def __init__(self) -> None:
        self._supported = Capabilities()

    async def send(self, request: ChatRequest, post: Post) -> ChatReply:
        """Send a request by `post`, again with fewer features where the server does not understand it."""
        tried = begun = self._supported
        while True:
            try:
                reply = await post(tried.restrict(request), tried)
            except Rejected as complaint:
                fewer = tried.downgrade(str(complaint), request) if complaint.malformed else None
                if fewer is None:
                    raise
                tried = fewer
            else:
                if tried is not begun:
                    self._supported = tried
                return reply
