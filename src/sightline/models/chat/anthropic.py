"""Anthropic's Claude through its own client (`pip install 'sightline[anthropic]'`)."""

from __future__ import annotations

import contextlib
import os
from collections.abc import AsyncIterator, Iterator
from typing import Any, ClassVar

from sightline.models.chat.calling import Capabilities, Post, error_from_status
from sightline.models.chat.hosted import HostedModel
from sightline.models.chat.messages import ChatReply, ChatRequest, NoReply, Part, Refused, silence, token_count


class Anthropic(HostedModel):
    """A Claude model; see `HostedModel`. It offers no log-probabilities."""

    home: ClassVar[str] = "https://api.anthropic.com"
    key_env: ClassVar[str] = "ANTHROPIC_API_KEY"
    package: ClassVar[str] = "anthropic"
    extra: ClassVar[str] = "anthropic"

    @contextlib.asynccontextmanager
    async def _posting(self) -> AsyncIterator[Post]:
        import anthropic

        # The client would add headers from the environment; `Omit` takes them out again.
        omitted: dict[str, Any] = dict.fromkeys(_headers_of_environment(), anthropic.Omit())
        async with anthropic.AsyncAnthropic(
            api_key=self._key(),
            base_url=self._url,
            timeout=self._timeout,
            max_retries=0,  # `calling` repeats
            http_client=self._client(),
            default_headers=omitted,
        ) as client:

            async def post(request: ChatRequest, supported: Capabilities) -> ChatReply:
                further: dict[str, Any] = {}
                if supported.temperature:
                    further["temperature"] = request.temperature
                if request.schema is not None:
                    further["output_config"] = {"format": {"type": "json_schema", "schema": request.schema}}
                if request.system:
                    further["system"] = request.system
                further |= self._options
                content = [_part(part) for part in request.parts]
                idempotency = self._idempotency(request, [self._model, request.max_tokens, content, further])
                try:
                    message = await client.messages.create(
                        model=self._model,
                        max_tokens=request.max_tokens,
                        messages=[{"role": "user", "content": content}],
                        # Which fields the client's types know changes with its version, the service takes them all.
                        extra_body=further,
                        extra_headers=idempotency,
                    )
                    return _read(message)
                except anthropic.APIStatusError as error:
                    retry_after = error.response.headers.get("retry-after")
                    complaint = _complaint(error)
                    raise error_from_status(error.status_code, complaint, self._key_env, retry_after) from error
                except anthropic.APIConnectionError as error:
                    raise self._unreachable(error) from error
                except (anthropic.AnthropicError, ValueError, LookupError, AttributeError, TypeError) as error:
                    raise self._nonsense("message", error) from error

            yield post


def _headers_of_environment() -> Iterator[str]:
    """Names of headers that the client would take from the environment. Only what the recipe says is sent: such a
    header may hold a key for another server."""
    for line in os.environ.get("ANTHROPIC_CUSTOM_HEADERS", "").split("\n"):
        if ":" in line:
            yield line.partition(":")[0].strip()


def _complaint(error: Any) -> str:
    """The error message in the body of an answer, without the rest of it."""
    inner = error.body.get("error") if isinstance(error.body, dict) else None
    if isinstance(inner, dict):
        return str(inner.get("message"))
    return str(error.message)


def _part(part: Part) -> Any:
    if isinstance(part, str):
        return {"type": "text", "text": part}
    return {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": part.base64}}


def _read(message: Any) -> ChatReply:
    usage = message.usage
    tokens = (token_count(getattr(usage, "input_tokens", 0)), token_count(getattr(usage, "output_tokens", 0)))
    if message.stop_reason == "refusal":
        raise Refused("the model declines to answer", *tokens)
    blocks = message.content
    text = "".join(block.text for block in blocks if block.type == "text")
    is_cut_off = message.stop_reason in ("max_tokens", "model_context_window_exceeded")
    # Nothing to read: the blocks say what the model did instead.
    if not text.strip() and not is_cut_off:
        tool = next((block.name for block in blocks if block.type.endswith("tool_use")), "")
        thoughts = next((block.type for block in blocks if "thinking" in block.type), "")
        ended = "" if message.stop_reason == "end_turn" else str(message.stop_reason)
        raise NoReply(silence(thoughts, tool, ended), *tokens)
    return ChatReply(text, *tokens, cut_off=is_cut_off, model=str(message.model or ""))
