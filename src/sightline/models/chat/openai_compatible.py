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
    begins_replies: ClassVar[bool] = True

    @contextlib.asynccontextmanager
    async def _posting(self) -> AsyncIterator[Post]:
        key = self._key()
        headers = {}
        if key is not None:
            headers["Authorization"] = f"Bearer {key}"
        async with self._client(headers) as client:

            async def post(request: ChatRequest, supported: Capabilities) -> ChatReply:
                body = self._body(request, supported)
                idempotency = self._idempotency(request, body)
                sending = client.post(f"{self._url}/chat/completions", json=body, headers=idempotency)
                response, text = await self._response(sending)
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
        content = [message_part(part) for part in request.parts]
        messages: list[dict[str, Any]] = [{"role": "user", "content": content}]
        if request.system:
            messages.insert(0, {"role": "system", "content": request.system})
        limit = "max_tokens" if supported.max_tokens else "max_completion_tokens"
        body: dict[str, Any] = {
            "model": self._model,
            "messages": messages,
            limit: request.max_tokens,
        }
        if supported.temperature:
            body["temperature"] = request.temperature
        if request.schema is not None:
            schema = {"name": "reply", "strict": True, "schema": request.schema}
            body["response_format"] = {"type": "json_schema", "json_schema": schema}
        if request.alternatives:
            body |= {"logprobs": True, "top_logprobs": request.alternatives}
        if request.beginning:
            # Fields of vLLM and SGLang. Other servers refuse them, or go on from such a message by themselves.
            messages.append({"role": "assistant", "content": request.beginning})
            body |= {"continue_final_message": True, "add_generation_prompt": False}
        # The user's own fields come last, so that they can replace ours, or by None take one out.
        body |= self._options
        return {name: value for name, value in body.items() if value is not None}

    def _read(self, text: str) -> ChatReply:
        """The reply in the body of a 200.

        Raises:
            Refused: the model or a filter declines.
            Transient: this is no chat completion.
        """
        tokens = (0, 0)
        try:
            body = json.loads(text)
            # Read first, for whatever is wrong with the rest, these are paid for.
            tokens = _tokens_used(body.get("usage"))
            # Gateways report errors of the server behind them with a status of 200.
            if body.get("error"):
                raise _with_tokens(self._error(_code(body["error"], 500), text), *tokens)
            choice = body["choices"][0]
            message = choice["message"]
            ended = choice.get("finish_reason")
            content = _content(message.get("content"))
            if choice.get("error") or ended == "error":  # of whoever is behind a gateway
                inner = choice.get("error") or {}
                raise _with_tokens(self._error(_code(inner, 502), json.dumps({"error": inner})), *tokens)
            if message.get("refusal") or ended == "content_filter":
                raise Refused(str(message.get("refusal") or "the provider's filter blocked the reply"), *tokens)
            # A reply that was cut off may be empty: thoughts have used up all of its tokens.
            is_cut_off = ended in ("length", "max_tokens")
            if not content.strip() and not is_cut_off:
                raise NoReply(_silence(message, ended), *tokens)
            return ChatReply(
                content,
                *tokens,
                cut_off=is_cut_off,
                tokens=_tokens(choice.get("logprobs")),
                model=str(body.get("model") or ""),
            )
        except (ValueError, ArithmeticError, LookupError, TypeError, AttributeError, RecursionError) as error:
            if _PAGE.match(text):
                raise self._nonsense("chat completion", f"a web page ('{_words(text)[:80]}'); is url right?") from error
            if not text:
                raise self._nonsense("chat completion", "nothing", tokens) from error
            raise self._nonsense("chat completion", repr(text[:80]), tokens) from error


def message_part(part: Part) -> dict[str, Any]:
    """Words or a picture as a part of a message's content."""
    if isinstance(part, str):
        return {"type": "text", "text": part}
    return {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{part.base64}"}}


def _code(error: Any, default: int) -> int:
    """The status that an error says of itself within a 200."""
    code = str(error.get("code")) if isinstance(error, dict) else ""
    if len(code) == 3 and code.isascii() and code.isdigit():
        return int(code)
    return default


def _with_tokens(error: NoReply, input_tokens: int, output_tokens: int) -> NoReply:
    """An error that came with an answer, which is paid for."""
    error.input_tokens = input_tokens
    error.output_tokens = output_tokens
    return error


def _tokens_used(usage: Any) -> tuple[int, int]:
    """Tokens that were read and written, as far as a server tells."""
    if not isinstance(usage, dict):
        return 0, 0
    return token_count(usage.get("prompt_tokens")), token_count(usage.get("completion_tokens"))


def _content(content: Any) -> str:
    """The text of a message; some servers give it in parts, or read the JSON in it."""
    if content is None:
        return ""
    if isinstance(content, list):
        texts = []
        for part in content:
            if isinstance(part, str):
                texts.append(part)
            else:
                texts.append(str(part.get("text", "")))
        return "".join(texts)
    if isinstance(content, dict):
        return json.dumps(content, ensure_ascii=False)
    return str(content)


def _silence(message: Any, ended: Any) -> str:
    """Why a message has no text."""
    thoughts = next((name for name in _THOUGHTS if message.get(name)), "")
    calls = message.get("tool_calls") or [{"function": message.get("function_call")}]
    function = calls[0].get("function") or {}
    tool = str(function.get("name") or "")
    if not tool and message.get("tool_calls"):
        tool = "unnamed"
    return silence(thoughts, tool, "" if ended in (None, "stop") else str(ended)[:40])


def _tokens(logprobs: Any) -> tuple[Token, ...]:
    """The tokens of a reply with their probabilities; none if a server gives none that can be read."""
    tokens = []
    try:
        for token in (logprobs or {}).get("content") or ():
            others = token.get("top_logprobs") or ()
            alternatives = [(str(other["token"]), float(other["logprob"])) for other in others]
            tokens.append(Token(str(token["token"]), tuple(alternatives)))
    except (ValueError, ArithmeticError, LookupError, TypeError, AttributeError):
        return ()  # the reply can be read without them
    return tuple(tokens)


def complaint(text: str) -> str:
    """The error message in the body of an answer, in one line, wherever the server puts it."""
    try:
        body = json.loads(text)
        if isinstance(body, list) and body:
            body = body[0]
        error = body.get("error", body)
        if isinstance(error, dict):
            fields = (error.get("message") or error.get("detail"), error.get("code"), error.get("param"))
            error = ", ".join(field for field in fields if isinstance(field, str))
        return " ".join(str(error).split())[:300]
    except (ValueError, AttributeError, RecursionError):
        return _words(text)[:80]


def _words(text: str) -> str:
    """What a text or a web page says, in one line."""
    if _PAGE.match(text):
        text = _MARKUP.sub(" ", text)
    return " ".join(text.split())
