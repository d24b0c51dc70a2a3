"""Google's Gemini through its own client (`pip install 'sightline[gemini]'`)."""

from __future__ import annotations

import contextlib
import re
import ssl
from collections.abc import AsyncIterator
from typing import Any, ClassVar

from sightline.models.chat.calling import Capabilities, Post, error_from_status, quotas, retry_delay
from sightline.models.chat.hosted import HostedModel
from sightline.models.chat.messages import ChatReply, ChatRequest, NoReply, Refused, Token, Transient, silence

BLOCKED = {"SAFETY", "RECITATION", "BLOCKLIST", "PROHIBITED_CONTENT", "SPII", "IMAGE_SAFETY", "MODEL_ARMOR"}
"""Reasons to end a reply that mean that it was declined."""


class Gemini(HostedModel):
    """A Gemini model; see `HostedModel`. `options` are fields of `GenerateContentConfig`, such as `safety_settings` or
    `thinking_config`."""

    home: ClassVar[str] = "https://generativelanguage.googleapis.com"
    key_env: ClassVar[str] = "GEMINI_API_KEY"
    package: ClassVar[str] = "google.genai"
    extra: ClassVar[str] = "gemini"

    @contextlib.asynccontextmanager
    async def _posting(self) -> AsyncIterator[Post]:
        import httpx2
        from google import genai
        from google.genai import errors, types

        own_client = self._client()
        unused = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        http = types.HttpOptions(
            base_url=self._url,
            timeout=int(1000 * self._timeout),
            retry_options=types.HttpRetryOptions(attempts=1),  # `calling` repeats
            httpx_async_client=own_client,
            # Given for nothing, or it would make its own, by an environment that may be wrong.
            httpx_client=httpx2.Client(trust_env=False, verify=unused),
            async_client_args={"ssl": unused},
        )
        client = genai.Client(api_key=self._key(), vertexai=False, http_options=http)

        async def post(request: ChatRequest, supported: Capabilities) -> ChatReply:
            parts = []
            for part in request.parts:
                if isinstance(part, str):
                    parts.append(types.Part.from_text(text=part))
                else:
                    parts.append(types.Part.from_bytes(data=part.png, mime_type="image/png"))
            try:
                response = await client.aio.models.generate_content(
                    model=self._model,
                    contents=types.Content(role="user", parts=parts),
                    config=types.GenerateContentConfig(**self._fields(request, supported)),
                )
            except errors.APIError as error:
                raise self._error(error) from error
            except ValueError as error:  # the body is no JSON, or the client thinks the request impossible
                raise self._nonsense("reply", error) from error
            except Exception as error:  # whatever the client's HTTP library of the day raises
                raise self._unreachable(error) from error
            return _read(response)

        try:
            yield post
        finally:
            await client.aio.aclose()
            await own_client.aclose()

    def _fields(self, request: ChatRequest, supported: Capabilities) -> dict[str, Any]:
        fields: dict[str, Any] = {"max_output_tokens": request.max_tokens}
        if supported.temperature and not _samples_its_own_way(self._model):
            fields["temperature"] = request.temperature
        if request.system:
            fields["system_instruction"] = request.system
        if request.schema is not None:
            fields |= {"response_mime_type": "application/json", "response_json_schema": request.schema}
        if request.alternatives:
            fields |= {"response_logprobs": True, "logprobs": request.alternatives}
        return fields | self._options

    def _error(self, error: Any) -> Exception:
        response = getattr(error, "response", None)
        headers = getattr(response, "headers", None) or {}
        wait = headers.get("retry-after") or retry_delay(error.details)
        return error_from_status(int(error.code), str(error.message or ""), self._key_env, wait, quotas(error.details))


def _samples_its_own_way(model: str) -> bool:
    """Whether a model is one of Gemini 3 or later, where Google advises against a temperature of the user's."""
    generation = re.match(r"(?:models/)?gemini-(\d+)", model)
    return generation is not None and int(generation[1]) >= 3


def _read(response: Any) -> ChatReply:
    usage = response.usage_metadata
    # Thoughts are written and paid for as the reply is, but counted apart.
    read = int(getattr(usage, "prompt_token_count", 0) or 0)
    written = int(getattr(usage, "candidates_token_count", 0) or 0)
    thoughts_written = int(getattr(usage, "thoughts_token_count", 0) or 0)
    tokens = (read, written + thoughts_written)
    if not response.candidates:
        feedback = response.prompt_feedback
        if feedback is not None and feedback.block_reason:
            raise Refused(f"the provider blocked the request: {_name(feedback.block_reason)}", *tokens)
        raise Transient("the reply has no candidates", None, *tokens)
    candidate = response.candidates[0]
    ended = _name(candidate.finish_reason)
    if ended in BLOCKED:
        raise Refused(f"the provider blocked the reply: {ended}", *tokens)
    parts = (candidate.content.parts if candidate.content else None) or []
    text = "".join(part.text or "" for part in parts if not part.thought)
    is_cut_off = ended == "MAX_TOKENS"
    # Nothing to read: the parts say what the model did instead.
    if not text.strip() and not is_cut_off:
        tool = next((part.function_call.name or "unnamed" for part in parts if part.function_call), "")
        thoughts = next(("thought" for part in parts if part.thought), "")
        raise NoReply(silence(thoughts, tool, "" if ended == "STOP" else ended), *tokens)
    return ChatReply(
        text,
        *tokens,
        cut_off=is_cut_off,
        tokens=_tokens(candidate.logprobs_result),
        model=str(response.model_version or ""),
    )


def _name(reason: Any) -> str:
    if reason is None:
        return ""
    return str(getattr(reason, "name", reason))


def _tokens(logprobs: Any) -> tuple[Token, ...]:
    if logprobs is None or not logprobs.chosen_candidates or not logprobs.top_candidates:
        return ()
    tokens = []
    for token, others in zip(logprobs.chosen_candidates, logprobs.top_candidates, strict=False):
        alternatives = [(other.token or "", other.log_probability or 0.0) for other in others.candidates or ()]
        tokens.append(Token(token.token or "", tuple(alternatives)))
    return tuple(tokens)
