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
from typing import Any, Generic, TypeVar

from sightline.errors import BadInput, RunFailed, reason_and_place
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

Reply = TypeVar("Reply")
Send = Callable[[], Awaitable[tuple[Reply, int]]]
"""Sends one request, once: the reply, and the tokens that it took. Raises NoReply."""

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
class Attempt(Generic[Reply]):
    """One request and what became of it: a reply, or an error.

    Attributes:
        seconds: from sending to the last byte.
    """

    reply: Reply | None
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
        # Unused time counts for one second at most, so that a pause allows no burst.
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
        self._limits = limits
        self._say = say
        self.exhausted: NoAccess | None = None
        self._requests = TokenBucket(limits.requests_per_minute)
        self._tokens = TokenBucket(limits.tokens_per_minute)
        self._usual_tokens = _FIRST_GUESS
        self._not_before = 0.0
        self._jitter = random.Random()  # spreads waits; no result depends on it

    async def attempts(
        self, ask: Ask, request: ChatRequest, note: Callable[[Attempt[ChatReply]], None] = lambda attempt: None
    ) -> list[Attempt[ChatReply]]:
        """Ask a chat model until there is a reply, a refusal, or no hope; see `repeated`."""
        return await self.repeated(lambda: _asked(ask, request), note)

    async def repeated(
        self, send: Send[Reply], note: Callable[[Attempt[Reply]], None] = lambda attempt: None
    ) -> list[Attempt[Reply]]:
        """Send a request until there is a reply, a refusal, or no hope; return all attempts, of which the last counts.

        Args:
            note: told of each attempt as soon as it is made; also of one that is cancelled while the server works on
                it, which may well have to be paid for.
        """
        attempts: list[Attempt[Reply]] = []
        while True:
            # Another request has found out that none will be answered.
            if self.exhausted is not None:
                return [*attempts, Attempt(None, self.exhausted, 0.0)]
            attempt = await self._attempt(send, note)
            note(attempt)
            attempts.append(attempt)
            # Waiting for a quota is no failure of this request: it begins anew, with all its retries.
            if isinstance(attempt.error, QuotaReached) and self._limits.waits_for_quota:
                attempts.clear()
                self._wait_for_quota(attempt.error)
                continue
            if isinstance(attempt.error, NoAccess):
                self.exhausted = attempt.error
            if not isinstance(attempt.error, Transient) or len(attempts) > self._limits.retries:
                return attempts
            await asyncio.sleep(self._wait_after(attempt.error, len(attempts)))

    async def _attempt(self, send: Send[Reply], note: Callable[[Attempt[Reply]], None]) -> Attempt[Reply]:
        # How many tokens it takes is known afterwards only, so the usual number is reserved, and corrected below.
        guess = self._usual_tokens
        await asyncio.sleep(max(self._requests.reserve(1), self._tokens.reserve(guess)))
        while (pause := self._not_before - time.monotonic()) > 0:  # a server's wish to be left alone is for everybody
            await asyncio.sleep(pause)
        start = time.monotonic()
        reply: Reply | None = None
        error: NoReply | None = None
        tokens = 0
        try:
            async with asyncio.timeout(self._limits.timeout):
                reply, tokens = await send()
            self._usual_tokens += 0.2 * (tokens - self._usual_tokens)
        except asyncio.CancelledError:
            note(Attempt(None, Transient("given up before a reply came"), time.monotonic() - start))
            raise
        except TimeoutError:
            error = Transient(f"no reply within {self._limits.timeout:g} s")
        except NoReply as failure:
            error = failure
            tokens = failure.input_tokens + failure.output_tokens
            wait = failure.retry_after if isinstance(failure, Transient) else None
            if wait is not None and wait > LONGEST_WAIT:
                error = QuotaReached(f"{failure}; it wants a pause of {wait:.0f} s", wait)
            elif wait is not None:
                self._not_before = max(self._not_before, time.monotonic() + wait)
        self._tokens.adjust(tokens - guess)
        return Attempt(reply, error, time.monotonic() - start)

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
        wait = min(self._limits.first_wait * 2 ** (failures - 1), LONGEST_WAIT)
        return float(wait * self._jitter.uniform(0.5, 1.0))


async def _asked(ask: Ask, request: ChatRequest) -> tuple[ChatReply, int]:
    """The reply to one request, and the tokens that it took.

    Raises:
        NoReply: as the provider says.
        RunFailed: the provider has a fault.
    """
    try:
        reply = await ask(request)
    except (NoReply, TimeoutError, BadInput, RunFailed, MemoryError):
        raise
    except Exception as error:
        raise RunFailed(f"the provider of the chat model has failed: {reason_and_place(error)}") from error
    if not isinstance(reply, ChatReply):
        raise RunFailed(f"the provider of the chat model must return a ChatReply, not {type(reply).__name__}")
    if not reply.text.strip() and not reply.cut_off:
        # Not to be repeated at once: most likely it would be empty again, and it is paid for.
        raise NoReply("the reply is empty", reply.input_tokens, reply.output_tokens)
    return reply, reply.input_tokens + reply.output_tokens


def check(model: ChatModel, limits: Limits, request: ChatRequest) -> ChatReply:
    """Check a model with one request, before anything depends on it.

    Raises:
        BadInput: key missing or refused, model unknown, or it turns down such requests.
        RunFailed: the server does not answer, or nothing that is a reply.
    """
    client = RateLimitedClient(replace(limits, retries=min(limits.retries, 2), waits_for_quota=False))

    async def last_attempt(ask: Ask, request: ChatRequest) -> Attempt[ChatReply]:
        try:
            async with asyncio.timeout(limits.timeout):  # for all attempts together
                attempts = await client.attempts(ask, request)
        except TimeoutError:
            return Attempt(None, Transient(f"no reply within {limits.timeout:g} s"), limits.timeout or 0.0)
        return attempts[-1]

    ((_, attempt),) = stream_async(model.connected, last_attempt, [request], at_once=1)
    if attempt.reply is not None:
        return attempt.reply
    kind = RunFailed if isinstance(attempt.error, Transient | QuotaReached) else BadInput
    raise kind(f"the chat model at {model.where} cannot be asked: {attempt.error}")


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
    detail = f" ({message})" if message else ""
    lowered = message.lower()

    # About this request: it may be answered if less is asked of the server, or is declined for what it shows.
    if status in (400, 403, 422) and "logprob" in lowered:  # reasoning models of OpenAI forbid them with a 403
        return Rejected(f"the server answers {status}{detail}", malformed=True)
    if status in (400, 403, 422) and any(word in lowered for word in _FILTERED):
        return Refused(f"the provider blocked the request{detail}")

    # About the key.
    if status == 401 or (status in (400, 403) and "api key" in lowered):
        sender = "a request without a key; set key_env"
        if key_variable:
            sender = f"the key in {key_variable}"
        return NoAccess(f"the server refuses {sender}{detail}")
    if status == 403:  # which may be about this request only
        advice = "; does it need a key (key_env)?"
        if key_variable:
            advice = f"; may the key in {key_variable} use this model?"
        return Rejected(f"the server refuses the request{detail}{advice}")

    # About a quota. Gemini asks for a pause of seconds whichever quota it is; others that do answer again by then.
    is_long = bool(_LONG_QUOTA.search(quota))
    if _LONG_QUOTA.search(message) and (wait is None or wait > LONGEST_WAIT):
        is_long = True
    if status == 429 and is_long:
        name = detail or f" ({quota})"
        return QuotaReached(f"a quota is used up{name}", None if quota else wait)
    is_unpaid = any(word in lowered for word in _UNPAID)
    if "billing" in lowered and wait is None:
        # Gemini mentions billing whenever a limit of the minute is reached, and says then how long to wait.
        is_unpaid = True
    if status == 402 or (status == 429 and is_unpaid):
        return QuotaReached(f"the provider wants to be paid first{detail}")

    if status == 404:
        problem = f"the server knows no such model or address{detail}; correct model or url"
        if "model" in lowered:
            return NoAccess(problem)
        return Rejected(problem)
    if status == 413:
        return Rejected(f"the request is too large for the server{detail}; show it fewer or smaller pictures")
    if status in _RETRYABLE or (status >= 500 and status not in _NOT_OFFERED):
        return Transient(f"the server answers {status}{detail}", wait)
    return Rejected(f"the server answers {status}{detail}", malformed=status in (400, 422))


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
        if isinstance(violations, list):
            names += [str(violation.get("quotaId", "")) for violation in violations if isinstance(violation, dict)]
    return " ".join(names)


def _details(body: Any, kind: str) -> Iterator[dict[str, Any]]:
    """Details of a kind in the body of one of Google's errors, which may lie in a list."""
    if isinstance(body, list) and body:
        body = body[0]
    error = body.get("error") if isinstance(body, dict) else None
    details = error.get("details") if isinstance(error, dict) else None
    if not isinstance(details, list):
        return
    for detail in details:
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
        if not then.tzinfo:
            then = then.replace(tzinfo=UTC)
        if now is None:
            now = time.time()
        seconds = (then - datetime.fromtimestamp(now, UTC)).total_seconds()
    if seconds < float("inf"):
        return max(seconds, 0.0)
    return None


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
        if not self.schema:
            request = replace(request, schema=None)
        if not self.alternatives:
            request = replace(request, alternatives=0)
        return request

    def downgrade(self, complaint: str, request: ChatRequest) -> Capabilities | None:
        """Drop what this complaint about this request is about; None if there is nothing left to drop."""
        complaint = complaint.lower()
        if self.max_tokens and "max_completion_tokens" in complaint:
            return replace(self, max_tokens=False)
        if self.temperature and "temperature" in complaint:
            return replace(self, temperature=False)
        request_sent = self.restrict(request)
        if request_sent.alternatives and "logprob" in complaint:
            return replace(self, alternatives=False)
        if request_sent.schema is not None and any(word in complaint for word in _ABOUT_SCHEMAS):
            return replace(self, schema=False)
        # The complaint names no feature: without both of these, unless neither was sent.
        least = replace(self, schema=False, alternatives=False)
        if least.restrict(request) == request_sent:
            return None
        return least


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
        at_first = self._supported
        features = at_first
        while True:
            try:
                reply = await post(features.restrict(request), features)
            except Rejected as complaint:
                if not complaint.malformed:
                    raise
                fewer = features.downgrade(str(complaint), request)
                if fewer is None:
                    raise
                features = fewer
            else:
                # Requests run side by side: one that needed no fallback forgets none that another has found.
                if features is not at_first:
                    self._supported = features
                return reply
