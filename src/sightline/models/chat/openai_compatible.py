"""Any server that speaks OpenAI's chat completions: hosted services, vLLM, SGLang, llama.cpp, Ollama and others.

The HTTP client is used directly, not a provider's own package: how often, when and whether a request is repeated must
be in one place for all providers (`calling`), a reply that is half, empty or no JSON must be told apart from an answer,
and servers differ in fields that a typed client would refuse to pass on.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import AsyncIterator
from typing import Any, ClassVar

from sightline.models.chat.calling import Capabilities, Post, error_from_status, quotas, retry_delay
from sightline.models.chat.hosted import HostedModel
from sightline.models.chat.messages import (
    ChatReply,
    ChatRequest,
    NoReply,
    Part,
    Refused,
    Token,
    Transient,
    silence,
    token_count,
)

_THOUGHTS = ("reasoning_content", "reasoning", "reasoning_details", "thinking")
"""Fields of a message in which servers put what a model thinks before it answers."""
_PAGE = re.compile(r"\s*<(?:!doctype|html|head|body)\b", re.IGNORECASE)
_MARKUP = re.compile(r"<(script|style)\b.*?</\1\s*>|<[^>]*>", re.IGNORECASE | re.DOTALL)


class OpenAICompatible(HostedModel):
    """A model behind an OpenAI-compatible address, up to and with `/v1`; see `HostedModel`. Of `options`, None takes a
    field out of the body."""

    home: ClassVar[str] = "https://api.openai.com/v1"
    key_env: ClassVar[str] = "OPENAI_API_KEY"
    usual_path: ClassVar[str] = "/v1"
    needs_key: ClassVar[bool] = False

    @contextlib.asynccontextmanager
    async def _posting(self) -> AsyncIterator[Post]:
        import httpx2

        key = self._key()
        headers = {} if key is None else {"Authorization": f"Bearer {key}"}
        async with self._client(headers) as client:

            async def post(request: ChatRequest, supported: Capabilities) -> ChatReply:
                body = self._body(request, supported)
                once = self._idempotency(request, body)
                try:
                    response = await client.post(f"{self._url}/chat/completions", json=body, headers=once)
                except httpx2.TimeoutException as error:
                    raise Transient(f"{self.where} does not answer in time") from error
                except (httpx2.HTTPError, httpx2.InvalidURL) as error:
                    raise self._unreachable(error) from error
                # JSON is UTF-8 (RFC 8259), with or without a mark; the header may name any encoding, or none there is.
                text = self._without_keys(response.content.decode("utf-8-sig", errors="replace"))
                if response.has_redirect_location:
                    raise self._sent_elsewhere(response.status_code, response.headers["location"])
                if not response.is_success:
                    raise self._error(response.status_code, text, response.headers.get("retry-after"))
                return self._read(text)

            yield post

    def _error(self, status: int, text: str, retry_after: str | None = None) -> NoReply:
        """The error that a status and a body mean; Google's interface of this kind speaks as its own does."""
        try:
            body = json.loads(text)
        except (ValueError, RecursionError):
            body = None
        wait = retry_after or retry_delay(body)
        return error_from_status(status, complaint(text), self._key_env, wait, quotas(body))

    def _body(self, request: ChatRequest, supported: Capabilities) -> dict[str, Any]:
        body: dict[str, Any] = {
            "model": self._model,
            "messages": [{"role": "user", "content": [message_part(part) for part in request.parts]}],
            "max_tokens" if supported.max_tokens else "max_completion_tokens": request.max_tokens,
        }
        if supported.temperature:
            body["temperature"] = request.temperature
        if request.schema is not None:
            schema = {"name": "reply", "strict": True, "schema": request.schema}
            body["response_format"] = {"type": "json_schema", "json_schema": schema}
        if request.alternatives:
            body |= {"logprobs": True, "top_logprobs": request.alternatives}
        return {name: value for name, value in (body | self._options).items() if value is not None}

    def _read(self, text: str) -> ChatReply:
        """The reply in the body of a 200.

        Raises:
            Refused: the model or a filter declines.
            Transient: this is no chat completion.
        """
        spent = 0, 0
        try:
            body = json.loads(text)
            spent = _spent(body.get("usage"))
            if body.get("error"):
                raise _with_tokens(self._error(_code(body["error"], 500), text), *spent)
            choice = body["choices"][0]
            message, ended = choice["message"], choice.get("finish_reason")
            content = _content(message.get("content"))
            if choice.get("error") or ended == "error":  # of whoever is behind a gateway
                inner = choice.get("error") or {}
                raise _with_tokens(self._error(_code(inner, 502), json.dumps({"error": inner})), *spent)
            if message.get("refusal") or ended == "content_filter":
                raise Refused(str(message.get("refusal") or "the provider's filter blocked the reply"), *spent)
            is_cut_off = ended in ("length", "max_tokens")
            if not (content.strip() or is_cut_off):
                raise NoReply(_silence(message, ended), *spent)
            return ChatReply(
                content,
                *spent,
                cut_off=is_cut_off,
                tokens=_tokens(choice.get("logprobs")),
                model=str(body.get("model") or ""),
            )
        except (ValueError, ArithmeticError, LookupError, TypeError, AttributeError, RecursionError) as error:
            if _PAGE.match(text):
                raise self._nonsense("chat completion", f"a web page ('{_words(text)[:80]}'); is url right?") from error
            raise self._nonsense("chat completion", repr(text[:80]) if text else "nothing", spent) from error


def message_part(part: Part) -> dict[str, Any]:
    """Words or a picture as a part of a message's content."""
    if isinstance(part, str):
        return {"type": "text", "text": part}
    return {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{part.base64}"}}


def _code(error: Any, otherwise: int) -> int:
    """The status that an error says of itself within a 200."""
    code = error.get("code") if isinstance(error, dict) else None
    told = str(code)
    return int(told) if len(told) == 3 and told.isascii() and told.isdigit() else otherwise


def _with_tokens(error: NoReply, read: int, wrote: int) -> NoReply:
    """An error that came with an answer, which is paid for."""
    error.input_tokens, error.output_tokens = read, wrote
    return error


def _spent(usage: Any) -> tuple[int, int]:
    """Tokens that were read and written, as far as a server tells."""
    if not isinstance(usage, dict):
        return 0, 0
    return token_count(usage.get("prompt_tokens")), token_count(usage.get("completion_tokens"))


def _content(content: Any) -> str:
    """The text of a message; some servers give it in parts, or read the JSON in it."""
    if isinstance(content, list):
        return "".join(part if isinstance(part, str) else str(part.get("text", "")) for part in content)
    if isinstance(content, dict):
        return json.dumps(content, ensure_ascii=False)
    return "" if content is None else str(content)


def _silence(message: Any, ended: Any) -> str:
    """Why a message has no text."""
    thoughts = next((name for name in _THOUGHTS if message.get(name)), "")
    calls = message.get("tool_calls") or [{"function": message.get("function_call")}]
    function = calls[0].get("function") or {}
    tool = str(function.get("name") or "") or ("unnamed" if message.get("tool_calls") else "")
    return silence(thoughts, tool, "" if ended in (None, "stop") else str(ended)[:40])


def _tokens(logprobs: Any) -> tuple[Token, ...]:
    """The tokens of a reply with their probabilities; none if a server gives none that can be read."""
    try:
        return tuple(
            Token(
                str(token["token"]),
                tuple((str(other["token"]), float(other["logprob"])) for other in token.get("top_logprobs") or ()),
            )
            for token in (logprobs or {}).get("content") or ()
        )
    except (ValueError, ArithmeticError, LookupError, TypeError, AttributeError):
        return ()  # the reply can be read without them


def complaint(text: str) -> str:
    """The error message in the body of an answer, in one line, wherever the server puts it."""
    try:
        body = json.loads(text)
        body = body[0] if isinstance(body, list) and body else body
        error = body.get("error", body)
        if isinstance(error, dict):
            said = (error.get("message") or error.get("detail"), error.get("code"), error.get("param"))
            error = ", ".join(part for part in said if isinstance(part, str))
        return " ".join(str(error).split())[:300]
    except (ValueError, AttributeError, RecursionError):
        return _words(text)[:80]


def _words(text: str) -> str:
    """What a text or a web page says, in one line."""
    return " ".join((_MARKUP.sub(" ", text) if _PAGE.match(text) else text).split())
