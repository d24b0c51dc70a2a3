"""What clients of hosted chat models share: address, key, options, missing packages, fallbacks, and errors in words.

Each client (`openai_compatible`, `gemini`, `anthropic`) says how a request is written, sent and read.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import AsyncIterator, Awaitable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, Self

from sightline.config.secrets import masked
from sightline.errors import BadInput
from sightline.models.chat.calling import CapabilityFallback, Post
from sightline.models.chat.endpoints import Endpoint, filled_in, read_key, resolve_endpoint, variables
from sightline.models.chat.messages import Ask, ChatReply, ChatRequest, NoReply, Rejected, Transient

if TYPE_CHECKING:
    import httpx2

    from sightline.models.chat.config import ChatModelConfig


class HostedService:
    """A service at an address, with what is sent along to it: the part that is the same whatever is asked there.

    Args:
        endpoint: the address, and the variable with the key.
        timeout: seconds for one request.
        headers: sent with every request; `$NAME` stands for the key in that environment variable.

    Attributes:
        where: who answers, for messages.
    """

    def __init__(self, endpoint: Endpoint, timeout: float, headers: Mapping[str, str] | None = None) -> None:
        self.where = endpoint.where
        self._url = endpoint.url
        self._key_env = endpoint.key_env
        self._query = endpoint.query
        self._headers = dict(headers or {})
        self._timeout = timeout

    def _key(self) -> str | None:
        """The key, read when it is used; None where none is sent."""
        if not self._key_env:
            return None
        return read_key(self._key_env)

    def _client(self, headers: Mapping[str, str] | None = None) -> httpx2.AsyncClient:
        """A client for this server, which sends these headers and those that the recipe names.

        Raises:
            BadInput: a variable holds no key, or the proxy or the certificates of the environment cannot be used.
        """
        from sightline.models.chat.connections import connect

        all_headers = dict(headers or {}) | filled_in(self._headers)
        return connect(self._url, self._timeout, all_headers, filled_in(self._query))

    def _without_keys(self, text: str) -> str:
        """A server's words with `…` in place of the keys that it repeats. Whole answers go through here before they
        are cut: of a key that is cut, half would be left."""
        for variable in (self._key_env, *variables(self._headers), *variables(self._query)):
            key = os.environ.get(variable or "", "").strip()
            if key:
                text = text.replace(key, "…")
        return text

    async def _response(self, sending: Awaitable[httpx2.Response]) -> tuple[httpx2.Response, str]:
        """The response to a request that is being sent, whatever its status, and its text without keys.

        Raises:
            NoReply: none came, or it leads elsewhere.
        """
        import httpx2

        try:
            response = await sending
        except httpx2.TimeoutException as error:
            raise Transient(f"{self.where} does not answer in time") from error
        except (httpx2.HTTPError, httpx2.InvalidURL) as error:
            raise self._unreachable(error) from error
        # JSON is UTF-8 (RFC 8259), with or without a mark; the header may name any encoding, or none there is.
        text = self._without_keys(response.content.decode("utf-8-sig", errors="replace"))
        if response.has_redirect_location:
            raise self._sent_elsewhere(response.status_code, response.headers["location"])
        return response, text

    def _unreachable(self, error: BaseException) -> NoReply:
        """Error for a connection that failed; what `connections` itself has raised stays as it is."""
        import httpx2

        from sightline.models.chat.connections import proxy_for

        cause: BaseException | None = error
        while cause is not None:  # clients wrap what the connection itself raises
            if isinstance(cause, NoReply):
                return cause
            if isinstance(cause, httpx2.TransportError):
                error = cause
            cause = cause.__cause__ or cause.__context__

        problem = "cannot be reached"
        if isinstance(error, httpx2.ReadError | httpx2.WriteError | httpx2.RemoteProtocolError):
            problem = "breaks the connection off"
        proxy = proxy_for(self._url)
        if proxy is not None:
            problem += f" through the proxy {masked(proxy)}"
        if str(error):
            problem += f": {error}"
        return Transient(f"{self.where} {problem}")

    def _sent_elsewhere(self, status: int, address: str) -> Rejected:
        return Rejected(
            f"the server answers {status} and sends the request on to '{address[:200]}', which is not followed, for "
            "the key would go with it; if you trust that address, say it in url"
        )

    def _nonsense(self, expected: str, content: object, tokens: tuple[int, int] = (0, 0)) -> Transient:
        return Transient(f"{self.where} answers something that is no {expected}: {content}", None, *tokens)


class HostedModel(HostedService):
    """A model at a provider's service, or at another address that speaks its language.

    Args:
        model: as the provider calls it.
        url: another address; None for the provider's own service.
        key_env: variable with the key. Default: the provider's usual one for its own service, and none for any other:
            that key is nobody else's business.
        options: further fields of the request.
        timeout: seconds for one request.
        insecure_http: whether another machine may be asked by http, without a key.
        headers, query: sent with every request; `$NAME` stands for the key in that environment variable.

    Attributes:
        home: address of the provider's own service.
        usual_path: path that addresses of this kind end with.
        needs_key: whether no request is answered without a key.

    Raises:
        BadInput: the address is none; a key or pictures would go there in plain text; or no key is meant for it.
    """

    batched = False
    hosted: ClassVar[bool] = True
    home: ClassVar[str]
    key_env: ClassVar[str]
    usual_path: ClassVar[str] = ""
    needs_key: ClassVar[bool] = True
    package: ClassVar[str] = ""
    extra: ClassVar[str] = ""
    begins_replies: ClassVar[bool] = False

    @classmethod
    def of(cls, config: ChatModelConfig) -> Self:
        """The model that a recipe names."""
        return cls(
            config.model,
            url=config.url,
            key_env=config.key_env,
            options=config.options,
            timeout=config.timeout,
            insecure_http=config.insecure_http,
            headers=config.headers,
            query=config.query,
        )

    def __init__(
        self,
        model: str,
        url: str | None = None,
        key_env: str | None = None,
        options: Mapping[str, Any] | None = None,
        timeout: float = 60.0,
        insecure_http: bool = False,
        headers: Mapping[str, str] | None = None,
        query: Mapping[str, str] | None = None,
    ) -> None:
        endpoint = resolve_endpoint(
            url,
            key_env,
            hosted=self.home,
            hosted_key=self.key_env,
            usual_path=self.usual_path,
            needs_key=self.needs_key,
            insecure_http=insecure_http,
            headers=headers,
            query=query,
        )
        super().__init__(endpoint, timeout, headers)
        self._model = model
        self._options = dict(options or {})
        self._fallback = CapabilityFallback()

    @contextlib.asynccontextmanager
    async def connected(self) -> AsyncIterator[Ask]:
        async with contextlib.AsyncExitStack() as stack:
            # Only connecting imports the provider's client.
            try:
                post = await stack.enter_async_context(self._posting())
            except ImportError as error:
                raise BadInput(
                    f"provider={self.extra} needs its client; pip install 'sightline[{self.extra}]'"
                ) from error

            async def ask(request: ChatRequest) -> ChatReply:
                try:
                    reply = await self._fallback.send(request, post)
                except NoReply as error:
                    # Messages are stored with the answers, and shown.
                    error.args = (masked(self._without_keys(str(error))),)
                    raise
                return replace(reply, text=self._without_keys(reply.text))

            yield ask

    def _posting(self) -> AbstractAsyncContextManager[Post]:
        """Connect, and give what sends one request; it raises Refused, Rejected or Transient.

        Raises:
            BadInput: there is no key.
            ImportError: the provider's client is not installed.
        """
        raise NotImplementedError

    @staticmethod
    def _idempotency(request: ChatRequest, body: Any) -> dict[str, str]:
        """The header by which a server that heeds it answers a request that is sent again, without a second charge.

        It is derived, not drawn: a process that was killed sends the same one when it is started again. Of the body as
        well, since one key must not stand for two bodies. (draft-ietf-httpapi-idempotency-key-header)
        """
        if not request.occasion:
            return {}
        content = json.dumps([request.occasion, body], sort_keys=True, default=str)
        return {"Idempotency-Key": hashlib.sha256(content.encode()).hexdigest()}
