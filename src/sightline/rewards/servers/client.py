"""Client of reward servers: posts requests by the rules of chat models (`sightline.models.chat.calling`), some at a
time, from a thread of its own.

Whoever asks waits, and may be in any thread, also in one with an event loop, such as a notebook's.
"""

from __future__ import annotations

import asyncio
import functools
import json
import threading
import weakref
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import replace
from typing import Any, TypeVar

import httpx2

from sightline.errors import BadInput, RunFailed
from sightline.models.chat.calling import Attempt, Limits, RateLimitedClient, error_from_status
from sightline.models.chat.endpoints import resolve_endpoint
from sightline.models.chat.hosted import HostedService
from sightline.models.chat.messages import NoReply, QuotaReached, Rejected, Transient
from sightline.models.chat.openai_compatible import complaint
from sightline.rewards.base import Unavailable
from sightline.rewards.servers.protocols import OtherModel, Request
from sightline.rewards.servers.wire import Malformed
from sightline.runs.stopping import GivenUp, awaited

Result = TypeVar("Result")

AT_ONCE = 2
"""Requests under way: the server computes one while it reads the next."""
FIRST_WAIT = 1.0
"""Seconds before a request is repeated for the first time."""


class RewardClient(HostedService):
    """Connection to one reward server, kept from call to call.

    Args:
        url: address of the server.
        key_env: environment variable with the key; None for none.
        headers: sent with every request; `$NAME` stands for an environment variable with a key.
        insecure_http: whether another machine may be asked by http, without a key.
        timeout: seconds for one request.
        retries: further attempts after a failure that may pass.
        spend: told what each attempt has cost, by name.

    Raises:
        BadInput: the address is none, or frames or a key would go there in plain text.
    """

    def __init__(
        self,
        url: str,
        *,
        key_env: str | None,
        headers: Mapping[str, str],
        insecure_http: bool,
        timeout: float,
        retries: int,
        spend: Callable[[Mapping[str, float]], None],
    ) -> None:
        endpoint = resolve_endpoint(url, key_env, "", "", insecure_http=insecure_http, headers=headers)
        super().__init__(endpoint, timeout, headers)
        self._limits = Limits(timeout=timeout, retries=retries, first_wait=FIRST_WAIT)
        self._spend = spend
        self._http: httpx2.AsyncClient | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._starting = threading.Lock()

    def get(self, path: str) -> Any:
        """The JSON document at a path, before anything depends on the server.

        Raises:
            BadInput: the server turns the request down.
            RunFailed: it does not answer, or no JSON.
        """
        calls = RateLimitedClient(replace(self._limits, retries=min(self._limits.retries, 2)))
        attempt = self._done(self._last_attempt(calls, "GET", Request(path, b"", ""), lambda document: document))
        if attempt.error is None:
            return attempt.reply
        kind = RunFailed if isinstance(attempt.error, Transient | QuotaReached) else BadInput
        raise kind(f"the reward server at {self.where} cannot be asked: {attempt.error}")

    def post_all(
        self,
        count: int,
        request: Callable[[int], Request | None],
        read: Callable[[int, Any], Result],
        arrived: Callable[[int, Result], None],
    ) -> None:
        """Post requests, `AT_ONCE` of them at a time.

        Args:
            count: how many.
            request: makes the request of a number when its turn comes, so that not all are in memory; None if its
                answer is known.
            read: makes a result of the number of a request and the document that answers it; may raise `Malformed` or
                `OtherModel`.
            arrived: is given each result as soon as it is there, in another thread.

        Raises:
            Unavailable: a request has no answer. What has arrived, counts.
        """
        error = self._done(self._post_all(count, request, read, arrived))
        if error is not None:
            raise Unavailable(f"the reward server at {self.where} gives no rewards: {error}")

    async def _post_all(
        self,
        count: int,
        request: Callable[[int], Request | None],
        read: Callable[[int, Any], Result],
        arrived: Callable[[int, Result], None],
    ) -> NoReply | None:
        calls = RateLimitedClient(self._limits)
        remaining = iter(range(count))
        failures: list[NoReply] = []

        async def worker() -> None:
            for number in remaining:
                # Nothing is begun once a request has failed for good; what is under way is paid for, and waited for.
                if failures:
                    return
                posted = request(number)
                if posted is None:
                    continue
                attempt = await self._last_attempt(calls, "POST", posted, functools.partial(read, number))
                if attempt.error is not None:
                    failures.append(attempt.error)
                elif attempt.reply is not None:
                    arrived(number, attempt.reply)

        workers = [worker() for _ in range(min(AT_ONCE, count))]
        for outcome in await asyncio.gather(*workers, return_exceptions=True):
            if isinstance(outcome, BaseException):
                raise outcome
        return failures[0] if failures else None

    async def _last_attempt(
        self, calls: RateLimitedClient, method: str, request: Request, read: Callable[[Any], Result]
    ) -> Attempt[Result]:
        """Send a request by the rules of `calling`; the attempt that counts."""

        async def send() -> tuple[Result, int]:
            document = await self._document(method, request)
            try:
                return read(document), 0
            except Malformed as error:
                raise Transient(f"{self.where} answers wrongly: {error}") from error
            except OtherModel as error:
                raise Rejected(f"the answer is refused: {error}; start that model again, or train anew") from error

        def note(attempt: Attempt[Result]) -> None:
            failed = attempt.error is not None
            self._spend({"requests": 1.0, "failed_requests": float(failed), "seconds": attempt.seconds})

        return (await calls.repeated(send, note))[-1]

    async def _document(self, method: str, request: Request) -> Any:
        """The JSON document that answers a request.

        Raises:
            NoReply: in one line, as `calling` tells them apart.
        """
        if self._http is None:
            key = self._key()
            self._http = self._client({} if key is None else {"Authorization": f"Bearer {key}"})
        headers = {"Content-Type": request.content_type} if request.content_type else {}
        sending = self._http.request(method, f"{self._url}{request.path}", content=request.body, headers=headers)
        response, text = await self._response(sending)
        if not response.is_success:
            wait = response.headers.get("retry-after")
            raise error_from_status(response.status_code, complaint(text), self._key_env, wait)
        try:
            return json.loads(text, parse_constant=_refuse_constant)
        except (ValueError, RecursionError) as error:
            what = repr(text[:80]) if text.strip() else "nothing"
            raise self._nonsense("JSON", what) from error

    def _done(self, work: Coroutine[Any, Any, Result]) -> Result:
        """The result of work in the loop's thread.

        Raises:
            GivenUp: a stop was asked for long ago; the work is cancelled.
        """
        future = asyncio.run_coroutine_threadsafe(work, self._running_loop())
        try:
            return awaited(future)
        except GivenUp:
            future.cancel()
            raise

    def _running_loop(self) -> asyncio.AbstractEventLoop:
        """The event loop, which runs in a thread of its own from the first request on."""
        with self._starting:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                threading.Thread(target=self._loop.run_forever, name="reward-client", daemon=True).start()
                weakref.finalize(self, self._loop.call_soon_threadsafe, self._loop.stop)
            return self._loop


def _refuse_constant(name: str) -> float:
    """Refuse NaN and Infinity, which are no JSON."""
    raise ValueError(f"{name} is no number in JSON")
