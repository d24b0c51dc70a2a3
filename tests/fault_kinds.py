"""Everything that a chat server can do wrong, by name, with what has to become of the question; for OpenAI's interface.

Answers that are right but odd are here as well: they are paid for, so they have to be taken.
"""

from __future__ import annotations

import gzip
import json
import socket
import struct
import time
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from email.utils import formatdate
from enum import Enum
from typing import Any

from fault_server import SHAPES, Fault, Handler, status

KEY = "sk-of-nobody-0123456789abcdef"
"""The key that clients send; some servers repeat it."""
MEGABYTE = 2**20


class Fate(Enum):
    """What becomes of a question that meets a fault."""

    TAKEN = "taken: the answer is right"
    AGAIN = "asked again"
    LATER = "failed in a line; the same command asks it"
    REFUSED = "refused: a label, never asked again"
    UNREADABLE = "unparsable: a label, never asked again"
    UNSURE = "unsure: a label, never asked again"


@dataclass(frozen=True)
class Kind:
    """A kind of fault.

    Attributes:
        fates: what may become of the question.
    """

    fault: Fault
    fates: tuple[Fate, ...]


# -- how answers are sent ----------------------------------------------------------------------------------------------


def raw(handler: Handler, *parts: bytes, pause: float = 0.0) -> None:
    """Send bytes as they are, with a pause before each part but the first, and hang up."""
    handler.close_connection = True
    for i, part in enumerate(parts):
        if i and pause and handler.server.closing.wait(pause):
            return
        handler.wfile.write(part)


def head(code: str = "200 OK", *lines: str, kind: str = "application/json") -> bytes:
    return "\r\n".join([f"HTTP/1.1 {code}", f"Content-Type: {kind}", *lines, "", ""]).encode("latin-1")


def reset(handler: Handler) -> None:
    """Break the connection off, as a crashed server or a firewall does."""
    handler.close_connection = True
    handler.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    handler.connection.close()


def document_of(handler: Handler) -> dict[str, Any]:
    """The right answer, as OpenAI's interface has it."""
    return SHAPES["openai"](handler.asked, handler.server.reply(handler.asked), {"1": 1.0})


def sold(handler: Handler, document: Any, is_right: bool) -> None:
    """Note an answer that went out whole, with the tokens that it tells."""
    usage = document.get("usage")
    counts = [usage.get(name) if isinstance(usage, dict) else 0 for name in ("prompt_tokens", "completion_tokens")]
    read, wrote = (count if isinstance(count, int) and 0 <= count < 10**9 else 0 for count in counts)
    handler.server.sell(handler.asked, read, wrote, is_right)


def answer(
    change: Callable[[dict[str, Any]], Any] = lambda document: None,
    send: Callable[[Handler, bytes], None] = lambda handler, body: handler.send(200, body),
    write: Callable[[Any], bytes] = lambda document: json.dumps(document).encode(),
    is_right: bool = True,
) -> Fault:
    """A whole answer, which is paid for.

    Args:
        change: of the document, in place.
        send, write: how it goes out, and as which bytes.
    """

    def fault(handler: Handler) -> None:
        document = document_of(handler)
        change(document)
        send(handler, write(document))
        sold(handler, document, is_right)

    return fault


def packed(pack: Callable[[bytes], bytes], name: str) -> Callable[[Handler, bytes], None]:
    return lambda handler, body: handler.send(200, pack(body), Content_Encoding=name)


def raw_deflate(body: bytes) -> bytes:
    packer = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    return packer.compress(body) + packer.flush()


def chunked(*parts: bytes, end: bytes = b"0\r\n\r\n") -> bytes:
    return b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in parts) + end


def in_chunks(handler: Handler, body: bytes, end: bytes = b"0\r\n\r\n") -> None:
    size = max(len(body) // 5, 1)
    parts = [body[i : i + size] for i in range(0, len(body), size)]
    raw(handler, head("200 OK", "Transfer-Encoding: chunked") + chunked(*parts, end=end))


def dripping(handler: Handler, body: bytes) -> None:
    raw(handler, head("200 OK", f"Content-Length: {len(body)}"), *(body[i : i + 1] for i in range(len(body))))


def until_closed(handler: Handler, body: bytes) -> None:
    raw(handler, b"HTTP/1.0 200 OK\r\nContent-Type: application/json\r\n\r\n" + body)


def after_interim(*interim: str) -> Callable[[Handler, bytes], None]:
    before = b"".join(f"HTTP/1.1 {one}\r\n\r\n".encode() for one in interim)
    return lambda handler, body: raw(handler, before + head("200 OK", f"Content-Length: {len(body)}") + body)


def with_header(**headers: str) -> Callable[[Handler, bytes], None]:
    return lambda handler, body: handler.send(200, body, **headers)


# -- how documents are changed -----------------------------------------------------------------------------------------


def usage(value: Any) -> Callable[[dict[str, Any]], None]:
    return lambda document: document.update(usage=value)


def counted(value: Any) -> Callable[[dict[str, Any]], None]:
    return usage({"prompt_tokens": value, "completion_tokens": value})


def choice(**fields: Any) -> Callable[[dict[str, Any]], None]:
    return lambda document: document["choices"][0].update(fields)


def message(**fields: Any) -> Callable[[dict[str, Any]], None]:
    return lambda document: document["choices"][0]["message"].update(fields)


def content(change: Callable[[str], Any]) -> Callable[[dict[str, Any]], None]:
    def changed(document: dict[str, Any]) -> None:
        said = document["choices"][0]["message"]
        said["content"] = change(said["content"])

    return changed


def field(**fields: Any) -> Callable[[dict[str, Any]], None]:
    return lambda document: document.update(fields)


def without(name: str) -> Callable[[dict[str, Any]], None]:
    return lambda document: document.pop(name)


def doubled_keys(document: Any) -> bytes:
    return b'{"choices": [], "usage": null, ' + json.dumps(document).encode()[1:]


def not_utf8(document: Any) -> bytes:
    return json.dumps(document).encode().replace(b'"choices"', b'"note": "caf\xe9", "choices"')


# -- the kinds ---------------------------------------------------------------------------------------------------------


def page(code: int, text: str) -> Fault:
    body = f"<!DOCTYPE html><html><body><h1>{text}</h1></body></html>".encode()
    return lambda handler: handler.send(code, body, Content_Type="text/html")


def body(content: bytes) -> Fault:
    return lambda handler: handler.send(200, content)


def redirect(code: int, to: Callable[[Handler], str]) -> Fault:
    return lambda handler: handler.send(code, b"", Location=to(handler))


def later(handler: Handler) -> None:
    """The pause as a date."""
    status(429, "slow down", formatdate(time.time() + 1.5, usegmt=True))(handler)


def huge(handler: Handler) -> None:
    """100 MB in chunks, for as long as somebody reads."""
    raw(handler, head("200 OK", "Transfer-Encoding: chunked"), *[chunked(bytes(MEGABYTE), end=b"")] * 100, b"0\r\n\r\n")


BOMB = gzip.compress(bytes(100 * MEGABYTE), 9)
DEEP = b'{"choices": ' + b"[" * 100_000 + b"]" * 100_000 + b"}"
FOREVER = 600


def waits(*before: bytes) -> Fault:
    """Says this much, then nothing until somebody hangs up or the server is closed."""

    def fault(handler: Handler) -> None:
        handler.close_connection = True
        handler.wfile.write(b"".join(before))
        handler.server.closing.wait(FOREVER)

    return fault


def drips(*before: bytes) -> Fault:
    """A byte in every tenth of a second, for ever."""
    return lambda handler: raw(handler, b"".join(before), *[b" "] * 10 * FOREVER, pause=0.1)


def half_then(end: Callable[[Handler], None]) -> Fault:
    def fault(handler: Handler) -> None:
        text = json.dumps(document_of(handler)).encode()
        handler.close_connection = True
        handler.wfile.write(head("200 OK", f"Content-Length: {len(text)}") + text[: len(text) // 2])
        end(handler)

    return fault


def hang_up(handler: Handler) -> None:
    handler.close_connection = True


def missing_end(handler: Handler) -> None:
    """All of the answer, but not the last chunk that says so: it may be cut off."""
    in_chunks(handler, json.dumps(document_of(handler)).encode(), b"")


def reset_within_headers(handler: Handler) -> None:
    handler.wfile.write(b"HTTP/1.1 200 OK\r\nX")
    reset(handler)


def and_close(handler: Handler, text: bytes) -> None:
    handler.send(200, text)
    handler.close_connection = True


def longer_than_said(handler: Handler) -> None:
    text = json.dumps(document_of(handler)).encode()
    raw(handler, head("200 OK", f"Content-Length: {len(text) // 2}") + text)


def taken(fault: Fault) -> Kind:
    return Kind(fault, (Fate.TAKEN,))


def again(fault: Fault) -> Kind:
    return Kind(fault, (Fate.AGAIN,))


def failed(fault: Fault) -> Kind:
    return Kind(fault, (Fate.LATER,))


def understood_less(fault: Fault) -> Kind:
    """Asked again without what the server may not understand, while there is any of it left."""
    return Kind(fault, (Fate.AGAIN, Fate.LATER))


def empty(ended: str, **fields: Any) -> Fault:
    said = {"role": "assistant", "content": None} | fields
    return answer(choice(message=said, finish_reason=ended), is_right=False)


SLOW = {
    "never answers": again(waits()),
    "slow headers": again(drips(b"HTTP/1.1 200 OK\r\nX-Slow:")),
    "drips for ever": again(drips(head("200 OK", "Content-Length: 100000"))),
    "stops in the middle": again(half_then(lambda handler: waits()(handler))),
}
"""Kinds that end with the time-out."""

KINDS: dict[str, Kind] = {
    # statuses
    "400 of the context": understood_less(status(400, "the context is too long")),
    "403": failed(status(403, "permission denied for this project")),
    "403 by moderation": Kind(status(403, "Your input was flagged by moderation"), (Fate.REFUSED,)),
    "405": failed(page(405, "Method Not Allowed")),
    "408": again(status(408)),
    "409": again(status(409)),
    "413": failed(page(413, "Request Entity Too Large")),
    "418": failed(status(418, "I am a teapot")),
    "422": understood_less(status(422, "unprocessable")),
    "425": again(status(425)),
    "429": again(status(429, "too many requests")),
    "429 in 1 s": again(status(429, "too many requests", "1")),
    "429 with a date": again(later),
    "429 with nonsense": again(status(429, "too many requests", "soon")),
    "429 of the past": again(status(429, "too many requests", "Wed, 21 Oct 2015 07:28:00 GMT")),
    "451": failed(status(451, "unavailable for legal reasons")),
    "500": again(status(500, "internal error")),
    "500 with the key": again(status(500, f"cannot read the header Bearer {KEY}")),
    "501": failed(status(501, "not implemented")),
    "502 as a page": again(page(502, "Bad Gateway")),
    "503": again(status(503, "overloaded")),
    "503 in 1 s": again(status(503, "overloaded", "1")),
    "504": again(page(504, "Gateway Time-out")),
    "520": again(page(520, "Web server is returning an unknown error")),
    "524": again(page(524, "A timeout occurred")),
    "529": again(status(529, "overloaded_error")),
    "204": again(lambda handler: raw(handler, b"HTTP/1.1 204 No Content\r\n\r\n")),
    "201 with the answer": taken(answer(send=lambda handler, text: handler.send(201, text))),
    # redirects
    "redirect within the host": failed(redirect(307, lambda handler: "/v2/chat/completions")),
    "redirect to another host": failed(redirect(302, lambda handler: f"http://elsewhere.invalid/?key={KEY}")),
    "redirect in a loop": failed(redirect(301, lambda handler: handler.path)),
    "redirect to a file": failed(redirect(303, lambda handler: "file:///etc/passwd")),
    "redirect to nowhere": failed(lambda handler: handler.send(308, b"")),
    "redirect from https to http": failed(redirect(308, lambda handler: "http://127.0.0.1:1/v1/chat/completions")),
    # half, reset, closed
    "half": again(half_then(hang_up)),
    "half, then reset": again(half_then(reset)),
    "chunks cut off": again(lambda handler: in_chunks(handler, json.dumps(document_of(handler))[:-40].encode(), b"")),
    "no last chunk": again(missing_end),
    "longer than it says": again(longer_than_said),
    "hangs up": again(hang_up),
    "reset": again(reset),
    "reset within headers": again(reset_within_headers),
    "HTTP/0.9": again(lambda handler: raw(handler, b'{"choices": []}')),
    "no HTTP": again(lambda handler: raw(handler, bytes(range(128, 256)) * 9)),
    "endless headers": again(
        lambda handler: raw(handler, b"HTTP/1.1 200 OK\r\n", *[b"X-A: %s\r\n" % (b"a" * 999)] * 999)
    ),
    "two lengths": again(
        lambda handler: raw(handler, head("200 OK", "Content-Length: 2", "Content-Length: 3") + b"{}")
    ),
    "chunks of no size": again(lambda handler: raw(handler, head("200 OK", "Transfer-Encoding: chunked") + b"zz\r\n")),
    "status that is none": again(lambda handler: raw(handler, b"HTTP/1.1 twohundred OK\r\n\r\n")),
    # slow, but whole
    "drips an answer": taken(answer(send=dripping)),
    "in chunks": taken(answer(send=in_chunks)),
    "chunks with a trailer": taken(
        answer(send=lambda handler, text: in_chunks(handler, text, b"0\r\nX-Sum: 1\r\n\r\n"))
    ),
    "HTTP/1.0 until it is closed": taken(answer(send=until_closed)),
    "100 before": taken(answer(send=after_interim("100 Continue"))),
    "103 before": taken(answer(send=after_interim("102 Processing", "103 Early Hints\r\nLink: </a>"))),
    "closes after it": taken(answer(send=and_close)),
    # no chat completion
    "empty body": again(body(b"")),
    "page": again(page(200, f"We will be back soon, {KEY}")),
    "null": again(body(b"null")),
    "list": again(body(b"[1, 2]")),
    "number": again(body(b"7")),
    "string": again(body(b'"first"')),
    "empty object": again(body(b"{}")),
    "deep": again(body(DEEP)),
    "not a number": again(body(b'{"choices": NaN}')),
    "half a document": again(body(b'{"choices": [{"message": {"content": "fi')),
    "bytes": again(body(bytes(range(256)))),
    "no choices": again(answer(without("choices"), is_right=False)),
    "empty choices": again(answer(field(choices=[]), is_right=False)),
    "choices of null": again(answer(field(choices=[None]), is_right=False)),
    "choices as text": again(answer(field(choices="none"), is_right=False)),
    "error of code 503": again(body(b'{"error": {"message": "overloaded", "code": 503}}')),
    "error as text": again(body(b'{"error": "the model is loading"}')),
    "error within a choice": again(answer(choice(error={"message": "gone"}, finish_reason="error"), is_right=False)),
    "stream": again(body(b'data: {"choices": [{"delta": {"content": "first"}}]}\n\ndata: [DONE]\n\n')),
    # large and packed
    "100 MB": failed(huge),
    "gzip bomb": failed(lambda handler: handler.send(200, BOMB, Content_Encoding="gzip")),
    "gzip": taken(answer(send=packed(gzip.compress, "gzip"))),
    "deflate": taken(answer(send=packed(zlib.compress, "deflate"))),
    "raw deflate": taken(answer(send=packed(raw_deflate, "deflate"))),
    "gzip that is none": taken(answer(send=packed(lambda text: text, "gzip"))),
    "broken gzip": again(lambda handler: handler.send(200, b"\x1f\x8b\x08\x00broken", Content_Encoding="gzip")),
    "half of gzip": again(lambda handler: handler.send(200, gzip.compress(bytes(999))[:-9], Content_Encoding="gzip")),
    "unknown packing": again(lambda handler: handler.send(200, b"\x00\x01", Content_Encoding="br")),
    # odd, but right
    "content type of a page": taken(answer(send=with_header(Content_Type="text/html"))),
    "another charset": taken(answer(send=with_header(Content_Type="application/json; charset=utf-16"))),
    "byte order mark": taken(answer(write=lambda document: b"\xef\xbb\xbf" + json.dumps(document).encode())),
    "blank lines before": taken(answer(write=lambda document: b"\r\n \n" * 9 + json.dumps(document).encode())),
    "no UTF-8": taken(answer(write=not_utf8)),
    "double keys": taken(answer(write=doubled_keys)),
    "unknown fields": taken(answer(field(extra=[{"deep": [[[1]]]}], choice=None, object=7))),
    "content in parts": taken(answer(content(lambda text: [{"type": "text", "text": text[:5]}, {"text": text[5:]}]))),
    "content in texts": taken(answer(content(lambda text: [text[:5], {"type": "text", "text": text[5:]}]))),
    "content as an object": taken(answer(content(json.loads))),
    "content with the key": taken(answer(content(lambda text: text.replace('"reason": "', f'"reason": "{KEY} ')))),
    "in a code fence": taken(answer(content(lambda text: f"Here:\n```json\n{text}\n```"))),
    "usage missing": taken(answer(without("usage"))),
    "usage of null": taken(answer(usage(None))),
    "usage as text": taken(answer(usage("many"))),
    "usage as a list": taken(answer(usage([3, 4]))),
    "negative usage": taken(answer(counted(-5))),
    "usage in words": taken(answer(counted("many"))),
    "usage without end": taken(answer(counted(float("inf")))),
    "usage that is no number": taken(answer(counted(float("nan")))),
    "huge usage": taken(answer(counted(10**30))),
    "usage as objects": taken(answer(counted({"total": 3}))),
    "another version": taken(answer(field(model="m-2027-01-01"))),
    "version as a list": taken(answer(field(model=["m"]))),
    "version missing": taken(answer(without("model"))),
    "unknown end": taken(answer(choice(finish_reason={"type": "whatever"}))),
    "cut off behind the answer": taken(answer(choice(finish_reason="length"))),
    "broken log-probabilities": taken(answer(choice(logprobs={"content": [{"token": None}, {"logprob": "-"}, 3]}))),
    "log-probabilities as text": taken(answer(choice(logprobs="none"))),
    "two choices": taken(answer(lambda document: document["choices"].append({"index": 1, "message": None}))),
    # whole answers without a judgement
    "refusal": Kind(answer(message(content=None, refusal="I will not."), is_right=False), (Fate.REFUSED,)),
    "safety stop": Kind(answer(choice(finish_reason="content_filter"), is_right=False), (Fate.REFUSED,)),
    "400 by a filter": Kind(status(400, "flagged by content_filter"), (Fate.REFUSED,)),
    "content of null": failed(empty("stop")),
    "cut off before the answer": failed(empty("length")),
    "cut off within the answer": failed(
        answer(
            lambda document: document["choices"][0].update(message={"content": "{"}, finish_reason="length"),
            is_right=False,
        )
    ),
    "thoughts only": failed(empty("stop", reasoning_content="first?")),
    "tool call": failed(empty("tool_calls", tool_calls=[{"function": {"name": "look"}}])),
    "names both": Kind(
        answer(content(lambda text: '{"answer": "first"} {"answer": "second"}'), is_right=False), (Fate.UNREADABLE,)
    ),
    "names none": Kind(answer(content(lambda text: "Nice pictures!"), is_right=False), (Fate.UNREADABLE,)),
    "another schema": Kind(
        answer(content(lambda text: '{"nearest": 1, "certain": true}'), is_right=False), (Fate.UNREADABLE,)
    ),
    "unsure": Kind(answer(content(lambda text: '{"answer": "unsure"}'), is_right=False), (Fate.UNSURE,)),
    "declines": Kind(
        answer(content(lambda text: "I'm sorry, but I can't assist with that."), is_right=False), (Fate.REFUSED,)
    ),
} | SLOW

FATAL: dict[str, tuple[Fault, str]] = {
    "invalid key": (status(401, f"Incorrect API key provided: {KEY}"), "refuses the key in"),
    "no credit": (status(402, "Insufficient credits"), "wants to be paid first"),
    "no credit, as 429": (status(429, "You exceeded your current quota: insufficient_quota"), "wants to be paid first"),
    "no credit, within 200": (body(b'{"error": {"message": "no credits", "code": 402}}'), "wants to be paid first"),
    "model gone": (status(404, "The model `m` does not exist"), "knows no such model"),
    "quota of the day": (status(429, "Rate limit exceeded: free-models-per-day"), "a quota is used up"),
    "pause of an hour": (status(429, "too many requests", "3600"), "wants a pause of 3600 s"),
    "key expired, as 400": (status(400, "API key expired. Please renew the API key."), "refuses the key in"),
}
"""What no further question can be answered after -> what the line says."""

PERSISTENT: dict[str, tuple[Fault, str]] = {
    "403 for good": (status(403, "permission denied for this project"), "permission denied"),
    "page for good": (page(200, "This is a web site"), "no chat completion"),
    "reset for good": (reset, "breaks the connection off"),
    "500 for good": (status(500, "internal error"), "the server answers 500"),
    "redirect for good": (redirect(308, lambda handler: "/v2"), "the server answers 308"),
}
"""What is wrong with every request, though that cannot be known of one -> what the line says."""
