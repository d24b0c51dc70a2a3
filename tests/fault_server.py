"""A chat server on real sockets that misbehaves on demand: OpenAI's, Gemini's and Anthropic's interfaces, no model.

    with FaultServer(brighter, faults=[status(429, retry_after="1"), garbage], latency=1.0) as server:
        ...  # server.url, server.asked, server.most_at_once

Each fault is spent on one request, in order; after them every request is answered. Or a function chooses the fault of
each request. `fault_kinds.py` has all kinds by name.
"""

from __future__ import annotations

import base64
import contextlib
import io
import json
import math
import re
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import numpy as np
from PIL import Image

Fault = Callable[["Handler"], None]
Reply = Callable[["Asked"], str]


@dataclass(frozen=True)
class Sale:
    """An answer that went out whole, and that a provider would be paid for.

    Attributes:
        read, wrote: tokens, as the answer tells them; 0 where it tells none.
        is_right: whether it holds the answer that was asked for.
    """

    asked: Asked
    read: int
    wrote: int
    is_right: bool


@dataclass(frozen=True)
class Asked:
    """A request as the server understood it, whichever interface it came by."""

    path: str
    headers: dict[str, str]
    body: dict[str, Any]
    texts: list[str]
    pictures: list[np.ndarray] = field(repr=False)

    @property
    def tokens(self) -> int:
        """100 for a picture, 1 for a word."""
        return 100 * len(self.pictures) + sum(len(text.split()) for text in self.texts)


# -- replies -----------------------------------------------------------------------------------------------------------


def says(text: str) -> Reply:
    """Always the same."""
    return lambda asked: text


def answers(answer: str) -> Reply:
    return says(json.dumps({"reason": "because", "answer": answer}))


def brighter(asked: Asked) -> str:
    """Prefers the brighter of two pictures; finds equal brightness equal. Reads them from the request."""
    if len(asked.pictures) != 2:
        return json.dumps({"reason": "no two pictures", "answer": "unsure"})
    first, second = (float(picture.mean()) for picture in asked.pictures)
    answer = "equal" if first == second else "first" if first > second else "second"
    return json.dumps({"reason": f"{first:.0f} against {second:.0f}", "answer": answer})


# -- faults ------------------------------------------------------------------------------------------------------------


def status(code: int, message: str = "no", retry_after: str | None = None) -> Fault:
    """An error in the provider's own form."""

    def fault(handler: Handler) -> None:
        headers = {"Retry-After": retry_after} if retry_after is not None else {}
        error: dict[str, Any] = {"message": message, "code": code, "status": "X", "type": "error"}
        handler.send(code, json.dumps({"error": error}).encode(), **headers)

    return fault


def gemini_429(delay: str, per: str = "Minute") -> Fault:
    """What Gemini really says when a limit is reached: how long to wait stands in the body, and billing in the text."""
    base = "type.googleapis.com/google.rpc."
    quota = {
        "quotaMetric": "generativelanguage.googleapis.com/generate_content_free_tier_requests",
        "quotaId": f"GenerateRequestsPer{per}PerProjectPerModel-FreeTier",
        "quotaDimensions": {"location": "global", "model": "gemini-2.5-flash"},
        "quotaValue": "10",
    }
    error = {
        "code": 429,
        "message": "You exceeded your current quota, please check your plan and billing details. For more information "
        "on this error, head to: https://ai.google.dev/gemini-api/docs/rate-limits. \n* Quota exceeded for metric: "
        f"{quota['quotaMetric']}, limit: 10, model: gemini-2.5-flash\nPlease retry in {delay}.",
        "status": "RESOURCE_EXHAUSTED",
        "details": [
            {"@type": f"{base}Help", "links": [{"description": "Learn more", "url": "https://ai.google.dev"}]},
            {"@type": f"{base}QuotaFailure", "violations": [quota]},
            {"@type": f"{base}RetryInfo", "retryDelay": delay},
        ],
    }
    return lambda handler: handler.send(429, json.dumps({"error": error}).encode())


def says_200(body: bytes) -> Fault:
    return lambda handler: handler.send(200, body)


def as_json(body: Any) -> Fault:
    return says_200(json.dumps(body).encode())


garbage = says_200(bytes(range(256)))
not_json = says_200(b"<html>We will be back soon</html>")
wrong_shape = as_json({"choices": "none"})
empty_choices = as_json({"choices": []})
filtered = as_json({"choices": [{"message": {"content": ""}, "finish_reason": "content_filter"}]})
refusal = as_json({"choices": [{"message": {"content": None, "refusal": "I will not."}, "finish_reason": "stop"}]})
nothing_said = as_json({"choices": [{"message": {"content": None}, "finish_reason": "stop"}]})
thought_too_long = {
    "openai": as_json({"choices": [{"message": {"content": None}, "finish_reason": "length"}]}),
    "gemini": as_json({"candidates": [{"content": {"role": "model"}, "finishReason": "MAX_TOKENS"}]}),
    "anthropic": as_json(
        {
            "id": "m",
            "type": "message",
            "role": "assistant",
            "model": "x",
            "content": [],
            "stop_reason": "max_tokens",
            "usage": {"input_tokens": 9, "output_tokens": 5},
        }
    ),
}
"""By provider: all tokens were spent before the reply began."""
error_within_200 = as_json({"error": {"message": "overloaded", "code": 503}})


def half(handler: Handler) -> None:
    """Promises a body, sends half of it, and hangs up."""
    handler.close_connection = True
    handler.wfile.write(
        b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 1000\r\n\r\n" + b'{"choices":'
    )


def hangs_up(handler: Handler) -> None:
    handler.close_connection = True


def silence(handler: Handler) -> None:
    """Says nothing until the server is closed."""
    handler.close_connection = True
    handler.server.closing.wait(60)


# -- the server --------------------------------------------------------------------------------------------------------


class FaultServer(ThreadingHTTPServer):
    """Listens on a free port of this machine while entered.

    Args:
        reply: what is said to a request; called from several threads.
        faults: what happens to the first requests instead, None for nothing; or a function that chooses it.
        latency: seconds before each reply.
        key: what must come as a key, if anything.
        model: what must be asked for, if anything.
        digits: probabilities of tokens, given in place of the last character of `"answer": "…"` replies of one digit.
        unknown_fields: fields of the body that are turned down with a 400.
        complaint: what that says; `{}` is the field.
        lives: after so many requests it hangs up on everybody.
        honours_keys: whether a request with the `Idempotency-Key` of one that was answered is answered for nothing.

    Attributes:
        asked: all requests, in the order of arrival.
        most_at_once: requests that were under way at the same time, at most.
        sales: answers that went out whole, in order.
    """

    daemon_threads = True
    request_queue_size = 256

    def __init__(
        self,
        reply: Reply = brighter,
        faults: Iterable[Fault | None] | Callable[[Asked], Fault | None] = (),
        latency: float = 0.0,
        key: str | None = None,
        model: str | None = None,
        digits: dict[str, float] | None = None,
        unknown_fields: Sequence[str] = (),
        complaint: str = "Unrecognized request argument supplied: {}",
        lives: float = math.inf,
        honours_keys: bool = False,
    ) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.reply, self.latency, self.key, self.model = reply, latency, key, model
        self.faults: list[Fault | None] = [] if callable(faults) else list(faults)
        self._choose = faults if callable(faults) else self._next
        self.digits, self.unknown_fields, self.complaint, self.lives = digits, unknown_fields, complaint, lives
        self.honours_keys = honours_keys
        self.asked: list[Asked] = []
        self.sales: list[Sale] = []
        self._sold: set[str] = set()
        self.most_at_once = self._now = 0
        self.lock, self.closing = threading.Lock(), threading.Event()

    @property
    def root(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    @property
    def url(self) -> str:
        return f"{self.root}/v1"

    def __enter__(self) -> FaultServer:
        threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        return self

    def __exit__(self, *unused: object) -> None:
        self.closing.set()
        self.shutdown()
        self.server_close()

    @contextlib.contextmanager
    def counted(self, asked: Asked) -> Any:
        with self.lock:
            self.asked.append(asked)
            self._now += 1
            self.most_at_once = max(self.most_at_once, self._now)
            fault = None if self.has_sold(asked) else self._choose(asked)
        try:
            yield fault
        finally:
            with self.lock:
                self._now -= 1

    def _next(self, asked: Asked) -> Fault | None:
        if self.faults:
            return self.faults.pop(0)
        return hangs_up if len(self.asked) > self.lives else None

    def sell(self, asked: Asked, read: int, wrote: int, is_right: bool = True) -> None:
        """Note that an answer went out whole, unless it is one that was sold before."""
        with self.lock:
            if self.has_sold(asked):
                return
            if is_right:
                self._sold.add(asked.headers.get("idempotency-key", ""))
            self.sales.append(Sale(asked, read, wrote, is_right))

    def has_sold(self, asked: Asked) -> bool:
        """Whether this very request was answered before, and may be answered again for nothing."""
        key = asked.headers.get("idempotency-key", "")
        return self.honours_keys and bool(key) and key in self._sold

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Clients that hang up are part of the game."""


class Handler(BaseHTTPRequestHandler):
    server: FaultServer
    asked: Asked
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        headers = {name.lower(): value for name, value in self.headers.items()}
        asked = self.asked = Asked(self.path, headers, body, *_shown(body))
        with self.server.counted(asked) as fault:
            time.sleep(self.server.latency)
            if fault is not None:
                return fault(self)
            if complaint := self._complaint(asked):
                return status(*complaint)(self)
            text = self.server.reply(asked)
            shape = _gemini if ":generateContent" in self.path else _anthropic if "/messages" in self.path else _openai
            self.send(200, json.dumps(shape(asked, text, self.server.digits)).encode())
            return self.server.sell(asked, asked.tokens, len(text.split()))

    def _complaint(self, asked: Asked) -> tuple[int, str] | None:
        given = asked.headers.get("authorization", "").removeprefix("Bearer ") or asked.headers.get(
            "x-api-key", asked.headers.get("x-goog-api-key")
        )
        if self.server.key is not None and given != self.server.key:
            return 401, "Incorrect API key provided"
        if self.server.model is not None and self.server.model not in (
            asked.body.get("model"),
            *re.split("[/:]", self.path),
        ):
            return 404, "The model does not exist"
        unknown = [name for name in self.server.unknown_fields if name in asked.body]
        return (400, self.server.complaint.format(unknown[0])) if unknown else None

    def send(self, code: int, body: bytes, **headers: str) -> None:
        self.send_response(code)
        for name, value in ({"Content-Type": "application/json", "Content-Length": str(len(body))} | headers).items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *unused: Any) -> None:
        pass


def _shown(body: dict[str, Any]) -> tuple[list[str], list[np.ndarray]]:
    texts, pictures = [], []
    turns = body.get("messages") or body.get("contents") or []
    for turn in turns:
        if isinstance(turn.get("content"), str):  # a system message
            turn["content"] = [{"type": "text", "text": turn["content"]}]
    for part in (part for turn in turns for part in turn.get("content") or turn.get("parts") or []):
        encoded = (
            part.get("image_url", {}).get("url", "").partition("base64,")[2]
            or part.get("source", {}).get("data")
            or part.get("inlineData", part.get("inline_data", {})).get("data")
        )
        if encoded:
            file = base64.b64decode(encoded.replace("-", "+").replace("_", "/"))
            pictures.append(np.asarray(Image.open(io.BytesIO(file))))
        else:
            texts.append(part["text"])
    return texts, pictures


VERSION = "m-2026-11-28"
"""What answers, as all providers say it beside a reply."""


def _openai(asked: Asked, text: str, digits: dict[str, float] | None) -> dict[str, Any]:
    choice: dict[str, Any] = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
    if asked.body.get("logprobs") and digits:
        choice["logprobs"] = {
            "content": [
                {"token": token, "logprob": 0.0, "top_logprobs": [{"token": t, "logprob": p} for t, p in others]}
                for token, others in _tokens(text, digits)
            ]
        }
    usage = {"prompt_tokens": asked.tokens, "completion_tokens": len(text.split())}
    return {"id": "x", "object": "chat.completion", "model": VERSION, "choices": [choice], "usage": usage}


def _gemini(asked: Asked, text: str, digits: dict[str, float] | None) -> dict[str, Any]:
    candidate: dict[str, Any] = {"content": {"role": "model", "parts": [{"text": text}]}, "finishReason": "STOP"}
    if digits:
        tokens = _tokens(text, digits)
        candidate["logprobsResult"] = {
            "chosenCandidates": [{"token": token, "logProbability": 0.0} for token, _ in tokens],
            "topCandidates": [
                {"candidates": [{"token": t, "logProbability": p} for t, p in others]} for _, others in tokens
            ],
        }
    usage = {"promptTokenCount": asked.tokens, "candidatesTokenCount": len(text.split())}
    return {"candidates": [candidate], "usageMetadata": usage, "modelVersion": VERSION}


def _anthropic(asked: Asked, text: str, digits: dict[str, float] | None) -> dict[str, Any]:
    return {
        "id": "m",
        "type": "message",
        "role": "assistant",
        "model": VERSION,
        "stop_reason": "end_turn",
        "content": [{"type": "text", "text": text}],
        "usage": {"input_tokens": asked.tokens, "output_tokens": len(text.split())},
    }


SHAPES = {"openai": _openai, "gemini": _gemini, "anthropic": _anthropic}
"""By provider: what a request, a text and probabilities make as the body of an answer."""


def _tokens(text: str, digits: dict[str, float]) -> list[tuple[str, list[tuple[str, float]]]]:
    """One token for each character; at a digit the given probabilities, elsewhere certainty."""
    probable = [(token, math.log(p)) for token, p in digits.items()]
    return [(c, probable if c.isdigit() else [(c, 0.0)]) for c in text]
