"""Anthropic's Claude through its own client (`pip install 'sightline[anthropic]'`)."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from sightline.errors import BadInput
from sightline.models.chat.calling import Capabilities, CapabilityFallback, error_from_status
from sightline.models.chat.endpoints import read_key, resolve_endpoint
from sightline.models.chat.messages import Ask, ChatReply, ChatRequest, Part, Refused, Transient

if TYPE_CHECKING:
    from sightline.models.chat.config import ChatModelConfig

HOSTED = "https://api.anthropic.com"


class Anthropic:
    """A Claude model. It offers no log-probabilities.

    Args:
        model: as Anthropic calls it.
        url: another address of the service; None for Anthropic's.
        key_env: variable with the key; default ANTHROPIC_API_KEY, which no other address gets.
        options: further fields of the body.
        timeout: seconds for one request.

    Raises:
        BadInput: the address is none, or a key would go there in plain text, or no key is meant for it.
    """

    batched = False
    hosted: ClassVar[bool] = True
    key_env: ClassVar[str] = "ANTHROPIC_API_KEY"
    package: ClassVar[str] = "anthropic"
    extra: ClassVar[str] = "anthropic"

    @classmethod
    def of(cls, config: ChatModelConfig) -> Anthropic:
        """The model that a recipe names."""
        return cls(config.model, config.url, config.key_env, config.options, config.timeout)

    def __init__(
        self,
        model: str,
        url: str | None = None,
        key_env: str | None = None,
        options: Mapping[str, Any] | None = None,
        timeout: float = 60.0,
    ) -> None:
        server = resolve_endpoint(url, key_env, HOSTED, self.key_env, needs_key=True)
        assert server.key_env is not None
        self.where, self._url, self._key_env = server.where, server.url, server.key_env
        self._model, self._options, self._timeout = model, dict(options or {}), timeout
        self._fallback = CapabilityFallback()

    @contextlib.asynccontextmanager
    async def connected(self) -> AsyncIterator[Ask]:
        try:
            import anthropic
        except ImportError as error:
            raise BadInput("provider=anthropic needs its client; pip install 'sightline[anthropic]'") from error
        async with anthropic.AsyncAnthropic(
            api_key=read_key(self._key_env),
            base_url=self._url,
            timeout=self._timeout,
            max_retries=0,  # `calling` repeats
        ) as client:

            async def post(request: ChatRequest, supported: Capabilities) -> ChatReply:
                further: dict[str, Any] = {"temperature": request.temperature} if supported.temperature else {}
                if request.schema is not None:
                    further |= {"output_config": {"format": {"type": "json_schema", "schema": request.schema}}}
                try:
                    message = await client.messages.create(
                        model=self._model,
                        max_tokens=request.max_tokens,
                        messages=[{"role": "user", "content": [_part(part) for part in request.parts]}],
                        # Which fields the client's types know changes with its version, the service takes them all.
                        extra_body=further | self._options,
                    )
                    return _read(message)
                except anthropic.APIStatusError as error:
                    raise error_from_status(
                        *(error.status_code, _complaint(error), self._key_env),
                        error.response.headers.get("retry-after"),
                    ) from error
                except anthropic.APIConnectionError as error:
                    raise Transient(f"{self.where} cannot be reached: {error}") from error
                except (anthropic.AnthropicError, ValueError, AttributeError, TypeError) as error:
                    raise Transient(f"{self.where} answers something that is no message: {error}") from error

            async def ask(request: ChatRequest) -> ChatReply:
                return await self._fallback.send(request, post)

            yield ask


def _complaint(error: Any) -> str:
    """The error message in the body of an answer, without the rest of it."""
    inner = error.body.get("error") if isinstance(error.body, dict) else None
    return str(inner.get("message") if isinstance(inner, dict) else error.message)


def _part(part: Part) -> Any:
    if isinstance(part, str):
        return {"type": "text", "text": part}
    return {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": part.base64}}


def _read(message: Any) -> ChatReply:
    spent = int(message.usage.input_tokens or 0), int(message.usage.output_tokens or 0)
    if message.stop_reason == "refusal":
        raise Refused("the model declines to answer", *spent)
    text = "".join(block.text for block in message.content if block.type == "text")
    return ChatReply(text, *spent, cut_off=message.stop_reason == "max_tokens")
