"""Web server of the label page, on loopback only, where people answer the questions of a label store.

Loopback is open to every user of this machine, so a visitor needs the key, which is part of the printed address and
nowhere else: the first visit exchanges it for a cookie. Other pages in the same browser must be able neither to answer
nor to read. So a request has to name this exact address (no DNS rebinding), must not come from another site, and to
change anything it must carry the token that only the label page was given, in a header that no form can send. Frames
are served by their content hash, and no other files are served.
"""

from __future__ import annotations

import errno
import hmac
import json
import re
import secrets
from collections.abc import Callable, Collection
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import resources
from pathlib import Path
from typing import Any, get_args

from sightline.errors import BadInput, RunFailed
from sightline.labels.store import LabelStore, existing_store
from sightline.runs.files import MAX_PICTURE, read_bytes
from sightline.teachers.queue import Choice, LabelQueue, NotWaiting

HOST = "127.0.0.1"
NAMES = ("127.0.0.1", "localhost", "[::1]")
MAX_BODY = 4096
"""Maximum size of a request body in bytes; no answer is longer."""
FRAME = re.compile(r"/frames/([0-9a-f]{64})\.png")
TAB = re.compile(r"[0-9a-zA-Z-]{8,64}")
VISIT = re.compile(r"/\?key=([0-9A-Za-z_-]{1,200})")
TOKEN_HEADER = "X-Sightline-Token"
NO_KEY = "this page opens only by the address, with its ?key=…, that 'sightline label serve' printed; use that one"


class RequestRefused(Exception):
    """Raised to refuse a request: carries the HTTP status and the reason to send."""

    def __init__(self, status: HTTPStatus, reason: str) -> None:
        super().__init__(reason)
        self.status = status


def serve(path: Path, who: str, port: int, say: Callable[[str], None]) -> None:
    """Serve the label page of a run or a label store until Ctrl-C.

    Args:
        path: a run folder or a label store; a run may be training meanwhile.
        who: the person's name, recorded with each answer.
        port: 0 takes any that is free.
        say: tells the user one line.

    Raises:
        BadInput: there is no such store, the name is empty, or the port is taken.
    """
    check_person(who)
    with LabelStore(existing_store(path)) as store:
        serve_store(store, who, port, say)


def check_person(who: str) -> None:
    """Refuse the name of a person that is none.

    Raises:
        BadInput: it is empty.
    """
    if not who.strip():
        raise BadInput("--name is empty; say yours, for it is recorded with your answers")


def serve_store(
    store: LabelStore, who: str, port: int, say: Callable[[str], None], signatures: Collection[str] = ()
) -> None:
    """Serve the label page of an open store until Ctrl-C; see `serve`.

    Args:
        signatures: of the teachers whose questions are shown; of all if empty.
    """
    with PageServer(store, who, port, signatures) as server:
        say(f"label page: {server.address} (Ctrl-C ends it)")
        try:
            server.serve_forever(poll_interval=0.2)
        except KeyboardInterrupt:
            count = server.queue.answered
            answers = "1 answer" if count == 1 else f"{count} answers"
            say(f"label page closed; {answers} recorded")


class PageServer(ThreadingHTTPServer):
    """HTTP server of the label page, on loopback only.

    Attributes:
        queue: the label queue, which hands out questions and records answers.
        token: token that requests that change something must carry.
        key: secret that a visitor without a cookie must give.
        home: the page's address without the key, for visitors with the cookie.
        address: the page's address with the key, for the person at this terminal only.

    Raises:
        BadInput: the port is taken, or not allowed.
    """

    daemon_threads = True

    def __init__(self, store: LabelStore, who: str, port: int, signatures: Collection[str] = ()) -> None:
        self.queue = LabelQueue(store, who, signatures)
        self.token = secrets.token_hex(16)
        self.key = secrets.token_urlsafe(24)
        self.template = (resources.files("sightline.teachers") / "templates" / "label_page.html").read_text("utf-8")
        try:
            super().__init__((HOST, port), _Handler)
        except OSError as error:
            if error.errno not in (errno.EADDRINUSE, errno.EACCES):
                raise RunFailed(f"the label page cannot be served: {error.strerror or error}") from error
            reason = "not allowed"
            if error.errno == errno.EADDRINUSE:
                reason = "in use"
            raise BadInput(f"port {port} is {reason}; name another, such as --port {max(port, 1024) + 1}") from error
        # Names that a request may call this server by: another one is a page elsewhere whose name leads here.
        self.own_hosts = {f"{name}:{self.server_port}" for name in NAMES}
        if self.server_port == 80:
            self.own_hosts |= set(NAMES)
        self.home = f"http://{HOST}:{self.server_port}/"
        self.address = f"{self.home}?key={self.key}"
        self.cookie = f"sightline-{self.server_port}"  # browsers do not keep the cookies of ports apart

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore a browser that disconnects in the middle of a reply."""


class _Handler(BaseHTTPRequestHandler):
    """Request handler of the label page: checks access, then serves the page, frames, questions and answers."""

    server: PageServer
    protocol_version = "HTTP/1.1"
    timeout = 30
    disable_nagle_algorithm = True

    def do_GET(self) -> None:
        self._answer(self._get)

    def do_POST(self) -> None:
        self._answer(self._post)

    def do_other(self) -> None:
        self._answer(self._refuse_method)

    do_HEAD = do_PUT = do_PATCH = do_DELETE = do_OPTIONS = do_TRACE = do_CONNECT = do_other

    # -- requests ------------------------------------------------------------------------------------------------

    def _get(self) -> None:
        visit = VISIT.fullmatch(self.path)
        self._check_where_from(navigation_allowed=self.path == "/" or visit is not None)
        if visit:
            self._check_key(visit[1])
            self._let_in()
            return
        self._check_cookie()
        if self.path == "/":
            nonce = secrets.token_hex(16)
            page = self.server.template.replace("{{nonce}}", nonce).replace("{{token}}", self.server.token)
            self._send(HTTPStatus.OK, page.encode(), "text/html; charset=utf-8", nonce=nonce)
        elif frame := FRAME.fullmatch(self.path):
            digest = frame[1]
            file = self.server.queue.store.folder / "frames" / digest[:2] / f"{digest}.png"
            try:
                picture = read_bytes(file, MAX_PICTURE)
            except (OSError, BadInput):
                raise RequestRefused(HTTPStatus.NOT_FOUND, "no such frame") from None
            self._send(HTTPStatus.OK, picture, "image/png", cache="private, max-age=86400, immutable")
        else:
            raise RequestRefused(HTTPStatus.NOT_FOUND, "nothing is here")

    def _post(self) -> None:
        self._check_where_from(navigation_allowed=False)
        self._check_cookie()
        if not hmac.compare_digest(self.headers.get(TOKEN_HEADER, "").encode(), self.server.token.encode()):
            raise RequestRefused(
                HTTPStatus.FORBIDDEN, "the page is from an earlier server; open the address that was printed"
            )
        message = self._body()
        tab = message.get("tab")
        if not isinstance(tab, str) or not TAB.fullmatch(tab):
            raise RequestRefused(HTTPStatus.BAD_REQUEST, "say which tab asks")
        queue = self.server.queue
        match self.path:
            case "/api/next":
                reply = queue.next(tab)
            case "/api/hold":
                reply = queue.hold(tab, _text(message, "key"))
            case "/api/undo":
                reply = queue.undo(tab)
            case "/api/answer":
                reply = self._record(tab, message)
            case _:
                raise RequestRefused(HTTPStatus.NOT_FOUND, "nothing is here")
        self._send_json(HTTPStatus.OK, reply)

    def _record(self, tab: str, message: dict[str, Any]) -> dict[str, Any]:
        choice: Any = message.get("said")
        if choice not in get_args(Choice):
            raise RequestRefused(HTTPStatus.BAD_REQUEST, f"'said' is one of {', '.join(get_args(Choice))}")
        value = None
        if choice == "value":
            value = _number(message, "value")
        key = _text(message, "key")
        seconds = _number(message, "seconds")
        try:
            return self.server.queue.answer(tab, key, choice, value, seconds)
        except NotWaiting:
            raise RequestRefused(
                HTTPStatus.CONFLICT, "that question was answered elsewhere, or is no longer asked"
            ) from None
        except ValueError as error:
            raise RequestRefused(HTTPStatus.BAD_REQUEST, str(error)) from None

    def _refuse_method(self) -> None:
        raise RequestRefused(HTTPStatus.METHOD_NOT_ALLOWED, "only GET and POST")

    # -- access checks -------------------------------------------------------------------------------------------

    def _check_where_from(self, navigation_allowed: bool) -> None:
        hosts = self.headers.get_all("Host") or []
        if len(hosts) != 1 or hosts[0].lower() not in self.server.own_hosts:
            raise RequestRefused(HTTPStatus.FORBIDDEN, f"this page answers at {self.server.home} only")
        origins = self.headers.get_all("Origin") or []
        if any(origin.lower() != f"http://{hosts[0].lower()}" for origin in origins):
            raise RequestRefused(HTTPStatus.FORBIDDEN, "other sites may not ask")
        # A link to the page, from anywhere, does no harm: the page can be seen in no frame, and does nothing by itself.
        if navigation_allowed and self.headers.get("Sec-Fetch-Mode") == "navigate":
            return
        if self.headers.get("Sec-Fetch-Site", "same-origin") not in ("same-origin", "none"):
            raise RequestRefused(HTTPStatus.FORBIDDEN, "other sites may not ask")

    def _check_cookie(self) -> None:
        cookies = ";".join(self.headers.get_all("Cookie") or []).split(";")
        values = dict(cookie.strip().partition("=")[::2] for cookie in cookies)
        self._check_key(values.get(self.server.cookie, ""))

    def _check_key(self, key: str) -> None:
        # In constant time, so that a guess cannot be improved by the time that its refusal takes.
        if not hmac.compare_digest(key.encode(), self.server.key.encode()):
            raise RequestRefused(HTTPStatus.FORBIDDEN, NO_KEY)

    def _let_in(self) -> None:
        """Set the cookie and redirect to the page itself, so that the key does not stay in the address bar."""
        cookie = f"{self.server.cookie}={self.server.key}; Path=/; HttpOnly; SameSite=Strict"
        self._send(HTTPStatus.SEE_OTHER, b"", "text/plain; charset=utf-8", more={"Location": "/", "Set-Cookie": cookie})

    def _body(self) -> dict[str, Any]:
        if self.headers.get_content_type() != "application/json" or "Content-Type" not in self.headers:
            raise RequestRefused(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "send application/json")
        lengths = self.headers.get_all("Content-Length") or []
        if "Transfer-Encoding" in self.headers or len(lengths) != 1 or not re.fullmatch(r"[0-9]{1,18}", lengths[0]):
            raise RequestRefused(HTTPStatus.LENGTH_REQUIRED, "say how long the body is")
        if int(lengths[0]) > MAX_BODY:
            raise RequestRefused(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"no more than {MAX_BODY} bytes")
        try:
            document = json.loads(self.rfile.read(int(lengths[0])))
        except (ValueError, RecursionError):  # no JSON, or nested without end
            document = None
        if not isinstance(document, dict):
            raise RequestRefused(HTTPStatus.BAD_REQUEST, "send a JSON object")
        return document

    # -- responses -----------------------------------------------------------------------------------------------

    def _answer(self, method: Callable[[], None]) -> None:
        try:
            method()
        except RequestRefused as refusal:
            self.close_connection = True  # its body, if any, was not read
            if self.command == "GET" and (self.path == "/" or self.path.startswith("/?")):
                self._send(refusal.status, f"{refusal}\n".encode(), "text/plain; charset=utf-8")
            else:
                self._send_json(refusal.status, {"error": str(refusal)})
        except (BadInput, RunFailed) as error:
            self._send_json(HTTPStatus.INTERNAL_SERVER_ERROR, {"error": str(error)})

    def _send_json(self, status: HTTPStatus, document: Any) -> None:
        self._send(status, json.dumps(document).encode(), "application/json")

    def _send(
        self,
        status: HTTPStatus,
        body: bytes,
        kind: str,
        cache: str = "no-store",
        nonce: str = "",
        more: dict[str, str] | None = None,
    ) -> None:
        sources = ""
        if nonce:
            # The page's own script and style carry the nonce; nothing else may run or load.
            sources = (
                f"script-src 'nonce-{nonce}'; style-src 'nonce-{nonce}'; img-src 'self' data:; connect-src 'self'; "
            )
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", cache)
        self.send_header(
            "Content-Security-Policy",
            f"default-src 'none'; {sources}base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
        )
        for name, value in (
            ("X-Frame-Options", "DENY"),
            ("X-Content-Type-Options", "nosniff"),
            ("Referrer-Policy", "no-referrer"),
            ("Cross-Origin-Resource-Policy", "same-origin"),
            ("Cross-Origin-Opener-Policy", "same-origin"),
            *(more or {}).items(),
        ):
            self.send_header(name, value)
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def version_string(self) -> str:
        return "sightline"

    def log_message(self, *unused: Any) -> None:
        """Log nothing: requests should not fill the terminal."""


def _text(message: dict[str, Any], name: str) -> str:
    value = message.get(name)
    if not isinstance(value, str):
        raise RequestRefused(HTTPStatus.BAD_REQUEST, f"'{name}' must be text")
    return value


def _number(message: dict[str, Any], name: str) -> float:
    value = message.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise RequestRefused(HTTPStatus.BAD_REQUEST, f"'{name}' must be a number")
    try:
        return float(value)
    except OverflowError:
        raise RequestRefused(HTTPStatus.BAD_REQUEST, f"'{name}' must be a number") from None
