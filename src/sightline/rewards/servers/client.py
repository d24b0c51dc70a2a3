"""Client of reward servers: posts requests by the rules of chat models (`sightline.models.chat.calling`), some at a
time, to one server or to several of the same model, which share them (`sightline.models.worker_pool`).
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

import httpx2

from sightline.errors import BadInput, RunFailed
from sightline.models.chat.calling import Attempt, Limits, RateLimitedClient, error_from_status
from sightline.models.chat.endpoints import resolve_endpoint
from sightline.models.chat.hosted import HostedService
from sightline.models.chat.messages import QuotaReached, Rejected, Transient
from sightline.models.chat.openai_compatible import complaint
from sightline.models.worker_pool import LoopThread, NoResult, WorkerPool
from sightline.rewards.base import Unavailable
from sightline.rewards.servers.protocols import OtherModel, Request
from sightline.rewards.servers.wire import Malformed

Result = TypeVar("Result")

AT_ONCE = 2
"""Requests under way with a server: it computes one while it reads the next."""
FIRST_WAIT = 1.0
"""Seconds before a server that has failed is asked again for the first time."""


@dataclass(frozen=True)
class _Example(Generic[Result]):
    """The first request that was answered, by which the other servers are compared with the one that answered it."""

    server: ServerConnection
    request: Request
    read: Callable[[Any], Result]
    result: Result


class RewardClient:
    """Connections to the servers of one reward model, kept from call to call.

    Args:
        urls: address of the server, or of each of several, which are to answer alike.
        key_env: environment variable with the key; None for none.
        headers: sent with every request; `$NAME` stands for an environment variable with a key.
        insecure_http: whether another machine may be asked by http, without a key.
        timeout: seconds for one request.
        retries: further attempts after a failure that may pass; of several servers, of each.
        spend: told what each attempt has cost, by name.
        probe: path by which a server that has failed is asked whether it is there again.
        differ: told of two servers that answer the same request with other results.

    Attributes:
        servers: one for each address.

    Raises:
        BadInput: an address is none, or frames or a key would go there in plain text.
    """

    def __init__(
        self,
        urls: str | Sequence[str],
        *,
        key_env: str | None,
        headers: Mapping[str, str],
        insecure_http: bool,
        timeout: float,
        retries: int,
        spend: Callable[[Mapping[str, float]], None],
        probe: str = "/info",
        differ: Callable[[ServerConnection, Any, ServerConnection, Any], None] | None = None,
    ) -> None:
        addresses = [urls] if isinstance(urls, str) else list(urls)
        limits = Limits(timeout=timeout, retries=0, first_wait=FIRST_WAIT)
        self._thread = LoopThread()
        self._retries = retries
        self.servers = [
            ServerConnection(url, key_env, headers, insecure_http, limits, spend, self._thread) for url in addresses
        ]
        self._pool = WorkerPool(
            self.servers,
            lambda server: server.probe(probe),
            at_once=AT_ONCE,
            retries=retries,
            first_wait=FIRST_WAIT,
        )
        self._differ = differ
        self._example: _Example[Any] | None = None
        self._compared: set[ServerConnection] = set()

    @property
    def where(self) -> str:
        """Who answers, for messages."""
        return ", ".join(server.where for server in self.servers)

    def get(self, path: str) -> Any:
        """The JSON document at a path of the only server; see `ServerConnection.get`."""
        (server,) = self.servers
        return server.get(path, self._retries)

    def post_all(
        self,
        count: int,
        request: Callable[[int], Request | None],
        read: Callable[[int, Any], Result],
        arrived: Callable[[int, Result], None],
    ) -> None:
        """Post requests, `AT_ONCE` of them at a time to each server; what one does not answer, another one is asked.

        Args:
            count: how many.
            request: makes the request of a number when its turn comes, so that not all are in memory; None if its
                answer is known.
            read: makes a result of the number of a request and the document that answers it; may raise `Malformed` or
                `OtherModel`.
            arrived: is given each result as soon as it is there, in another thread.

        Raises:
            Unavailable: a request has no answer from any server. What has arrived, counts.
        """
        for server in self.servers:
            server.forget_limits()

        async def work(server: ServerConnection, number: int) -> None:
            question = request(number)
            if question is None:
                return
            await self._compare(server)
            reader = functools.partial(read, number)
            result = await server.answer(question, reader)
            self._keep_example(server, question, reader, result)
            arrived(number, result)

        try:
            self._thread.result(self._pool.carry_out(count, work))
        except NoResult as reason:
            who = f"the reward server at {self.where} gives no rewards"
            if len(self.servers) > 1:
                who = f"none of {len(self.servers)} reward servers gives rewards any more ({self.where})"
            raise Unavailable(f"{who}: {reason}") from reason

    def _keep_example(
        self, server: ServerConnection, question: Request, read: Callable[[Any], Any], result: Any
    ) -> None:
        if self._example is None and len(self.servers) > 1:
            self._example = _Example(server, question, read, result)
            self._compared = {server}

    async def _compare(self, server: ServerConnection) -> None:
        """Before the first request to a server: ask it what another one has answered, and compare.

        Raises:
            NoResult: it does not answer.
        """
        example = self._example
        if example is None or self._differ is None or server in self._compared:
            return
        self._compared.add(server)
        try:
            result = await server.answer(example.request, example.read)
        except NoResult:
            self._compared.discard(server)
            raise
        self._differ(example.server, example.result, server, result)


class ServerConnection(HostedService):
    """Connection to one reward server.

    Args:
        limits: of one attempt.
        thread: whose event loop its requests are made in.

    Further arguments are those of `RewardClient`.
    """

    def __init__(
        self,
        url: str,
        key_env: str | None,
        headers: Mapping[str, str],
        insecure_http: bool,
        limits: Limits,
        spend: Callable[[Mapping[str, float]], None],
        thread: LoopThread,
    ) -> None:
        endpoint = resolve_endpoint(url, key_env, "", "", insecure_http=insecure_http, headers=headers)
        assert limits.timeout is not None, "a request ends at some time"
        super().__init__(endpoint, limits.timeout, headers)
        self._limits = limits
        self._spend = spend
        self._thread = thread
        self._http: httpx2.AsyncClient | None = None
        self.forget_limits()

    def forget_limits(self) -> None:
        """Begin anew with what the server has said of pauses and quotas."""
        self._calls = RateLimitedClient(self._limits)

    def get(self, path: str, retries: int) -> Any:
        """The JSON document at a path, before anything depends on the server.

        Raises:
            BadInput: the server turns the request down.
            RunFailed: it does not answer, or no JSON.
        """
        calls = RateLimitedClient(replace(self._limits, retries=min(retries, 2)))
        document = self._last_attempt(calls, "GET", Request(path, b"", ""), lambda document: document)
        attempt = self._thread.result(document)
        if attempt.error is None:
            return attempt.reply
        kind = RunFailed if isinstance(attempt.error, Transient | QuotaReached) else BadInput
        raise kind(f"the reward server at {self.where} cannot be asked: {attempt.error}")

    async def probe(self, path: str) -> None:
        """Ask once whether it is there.

        Raises:
            NoResult: it is not.
        """
        attempt = await self._last_attempt(self._calls, "GET", Request(path, b"", ""), lambda document: True)
        _refuse_error(attempt)

    async def answer(self, request: Request, read: Callable[[Any], Result]) -> Result:
        """The result of one request, sent once.

        Raises:
            NoResult: there is none.
        """
        attempt = await self._last_attempt(self._calls, "POST", request, read)
        _refuse_error(attempt)
        assert attempt.reply is not None, "without an error there is a reply"
        return attempt.reply

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


def _refuse_error(attempt: Attempt[Any]) -> None:
    """Raise what has kept an attempt from its result.

    Raises:
        NoResult: something has.
    """
    if attempt.error is not None:
        raise NoResult(attempt.error, is_final=not isinstance(attempt.error, Transient)) from attempt.error


def _refuse_constant(name: str) -> float:
    """Refuse NaN and Infinity, which are no JSON."""
    raise ValueError(f"{name} is no number in JSON")
