"""Our reward server: offers a reward model of this process by the protocol sightline v1.

    sightline serve-reward cartpole              reward.kind=http reward.url=http://localhost:8701

Requests are read in a thread each, bounded in size, and scored one after the other. A server on this machine answers
whoever is on it; one that other machines can reach takes TLS and a token. Browsers are turned away: a page from
elsewhere has no business here.
"""

from __future__ import annotations

import errno
import hmac
import ipaddress
import json
import os
import re
import ssl
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np

from sightline.errors import BadInput, RunFailed, reason_of
from sightline.models.chat.endpoints import read_key
from sightline.rewards.base import Clip, OnlineRewardModel, RewardModel
from sightline.rewards.scopes import Past, Scope, ScopeKind
from sightline.rewards.servers.protocols import VERSION
from sightline.rewards.servers.wire import FormPart, Malformed, array_of, field_of, parts_of

MAX_BODY = 256 * 2**20
"""Bytes of a request, at most."""
MOST_CLIPS = 4096
"""Clips of a request, at most."""
TOKEN_ENV = "SIGHTLINE_REWARD_TOKEN"
"""Environment variable with the token that requests must carry."""


@dataclass(frozen=True)
class ServedReward:
    """A reward model, and what its server says of it.

    Attributes:
        name: with all that its rewards depend on, in one line.
        size: height and width at which frames are best sent; None for any.
    """

    model: RewardModel
    name: str
    size: tuple[int, int] | None = None

    def __post_init__(self) -> None:
        name = type(self.model).__name__
        if not self.model.needs:
            raise BadInput(
                f"{name} is paid by the environment itself, which a server does not see; serve another reward"
            )
        if isinstance(self.model, OnlineRewardModel) or not self.model.ready:
            raise BadInput(f"{name} has learned nothing yet, so its rewards mean nothing; serve one that was fitted")
        if self.model.sees_past and (self.model.window > 1 or "states" in self.model.needs):
            raise BadInput(
                f"{name} compares steps whose frames a request does not hold; serve its plain values, and say every=… "
                "and output=difference where they are asked for"
            )

    def info(self) -> dict[str, Any]:
        """The document at /info."""
        scope = self.model.scope
        kind: ScopeKind = "frame" if self.model.window == 1 else "window"
        window = self.model.window
        max_frames = None
        if self.model.sees_past:
            kind = scope.kind
            if kind == "window":
                window = scope.frames
            else:
                max_frames = scope.frames
        return {
            "version": VERSION,
            "model": self.name,
            "needs": sorted(self.model.needs),
            "scope": kind,
            "window": window,
            "max_frames": max_frames,
            "size": None if self.size is None else list(self.size),
            "range": None,
            "deterministic": True,
        }

    def score(self, body: bytes, content_type: str) -> dict[str, Any]:
        """The document that answers a request.

        Raises:
            Refusal: it is not as the protocol says.
        """
        try:
            parts = parts_of(body, content_type)
            part = parts.get("request")
            if part is None:
                raise Malformed("the form has no part 'request'")
            document = _parsed(part.content)
            version = field_of(document, "version", int)
            if version != VERSION:
                raise Malformed(f"version {version} of the protocol is not known here; this is {VERSION}")
            clips = field_of(document, "clips", list)
            wants_all = field_of(document, "want", str) == "frames"
        except Malformed as error:
            raise Refusal(HTTPStatus.BAD_REQUEST, str(error)) from error
        if len(clips) > MOST_CLIPS:
            raise Refusal(HTTPStatus.BAD_REQUEST, f"no more than {MOST_CLIPS} clips in a request")
        rewards = [self._rewards_of(clip, number, parts, wants_all) for number, clip in enumerate(clips)]
        rows = [row.tolist() if wants_all else row[-1:].tolist() for row in rewards]
        return {"version": VERSION, "model": self.name, "rewards": rows}

    def _rewards_of(self, fields: Any, number: int, parts: Mapping[str, FormPart], wants_all: bool) -> np.ndarray:
        """float32[T], the rewards of a clip's frames, or at least that of the last."""
        clip_id = str(fields.get("id", number))[:80] if isinstance(fields, dict) else str(number)
        try:
            arrays = _arrays(fields, parts, self.model.needs)
        except Malformed as error:
            raise Refusal(HTTPStatus.BAD_REQUEST, str(error), clip_id) from error
        count = len(next(iter(arrays.values())))
        if self.model.window == 1 and not self.model.sees_past:
            # Frames that are judged alone: one step of as many environments, as `reward(frames)` takes them.
            clip = Clip.of_arrays(
                {"first": np.ones((1, count), bool)} | {name: array[None] for name, array in arrays.items()}
            )
            return np.asarray(self._scored(clip, clip_id)[0])
        steps = fields.get("t")
        if not isinstance(steps, list) or len(steps) != count or not all(isinstance(step, int) for step in steps):
            raise Refusal(HTTPStatus.BAD_REQUEST, "a clip needs 't', the step of each frame", clip_id)
        if self.model.sees_past:
            clip = _clip_of_prefixes(arrays["frames"], self.model.scope, wants_all, clip_id)
            return np.asarray(self._scored(clip, clip_id)[0])
        first = (np.array(steps) <= 1)[:, None]
        clip = Clip.of_arrays({"first": first} | {name: array[:, None] for name, array in arrays.items()})
        return np.asarray(self._scored(clip, clip_id)[:, 0])

    def _scored(self, clip: Clip, clip_id: str) -> np.ndarray:
        try:
            rewards: np.ndarray = self.model(clip)
            return rewards
        except BadInput as error:  # about what was sent
            raise Refusal(HTTPStatus.UNPROCESSABLE_ENTITY, str(error), clip_id) from error


def _clip_of_prefixes(frames: np.ndarray, scope: Scope, wants_all: bool, clip_id: str) -> Clip:
    """The frames of an episode so far, uint8[F, H, W, 3], as a clip of one step: that of the last of them; with
    `wants_all` one environment for each of them, which ends with it."""
    if scope.kind != "window" and len(frames) > scope.frames:
        raise Refusal(HTTPStatus.UNPROCESSABLE_ENTITY, f"a clip has at most {scope.frames} frames here", clip_id)
    lasts = range(len(frames)) if wants_all else [len(frames) - 1]
    pasts = []
    for env, last in enumerate(lasts):
        # Whoever asks has picked the frames: they are all that there is, one for each step.
        steps = np.arange(max(last - scope.frames + 1, 0), last)
        pasts.append(Past(np.zeros_like(steps), np.full_like(steps, env), steps, frames[steps]))
    whole = np.ones((1, len(lasts)), bool)
    return Clip(whole, frames[list(lasts)][None], ended=whole, past=Past.joined(pasts))


class Refusal(Exception):
    """Raised to answer a request with an error.

    Attributes:
        status: of the answer.
        clip: that it is about; empty for the whole request.
    """

    def __init__(self, status: HTTPStatus, reason: str, clip: str = "") -> None:
        super().__init__(reason)
        self.status = status
        self.clip = clip


def serve_reward(
    reward: ServedReward, host: str, port: int, certificate: Path | None, say: Callable[[str], None]
) -> None:
    """Offer a reward until Ctrl-C.

    Args:
        host: address to listen at.
        port: 0 takes any that is free.
        certificate: a PEM file with certificate and key, for TLS.
        say: tells the user one line.

    Raises:
        BadInput: the port is taken; the token cannot be one; or other machines could reach a server without TLS, or
            without a token.
    """
    token = ""
    if os.environ.get(TOKEN_ENV, "").strip():
        token = read_key(TOKEN_ENV)  # which refuses one that no client could send
    if not _is_loopback(host):
        if certificate is None:
            raise BadInput(
                f"--host {host} can be reached by other machines, and frames and the token would go there in plain "
                "text: say --certificate FILE, or leave --host out and let them in by ssh -L "
                f"{port}:localhost:{port} THIS_MACHINE"
            )
        if not token:
            raise BadInput(f"--host {host} can be reached by other machines; set the environment variable {TOKEN_ENV}")
    with RewardServer(reward, host, port, token, certificate) as server:
        say(f"reward server: {server.address} ({reward.name}); Ctrl-C ends it")
        try:
            server.serve_forever(poll_interval=0.2)
        except KeyboardInterrupt:
            say(f"reward server closed; {server.answered} requests answered")


def _is_loopback(host: str) -> bool:
    """Whether only this machine can reach an address."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class RewardServer(ThreadingHTTPServer):
    """HTTP server of a reward model.

    Args:
        reward: what is offered.
        host, port: where; port 0 takes any that is free.
        token: that requests must carry; empty for none.
        certificate: a PEM file with certificate and key, for TLS; None for plain HTTP.

    Attributes:
        answered: requests that were answered with rewards.

    Raises:
        BadInput: the port is taken, or not allowed; or the certificate cannot be read.
    """

    daemon_threads = True
    request_queue_size = 64

    def __init__(
        self,
        reward: ServedReward,
        host: str = "127.0.0.1",
        port: int = 0,
        token: str = "",
        certificate: Path | None = None,
    ) -> None:
        self.reward = reward
        self.token = token
        self.answered = 0
        _keep_freed_memory()
        self.scoring = threading.Lock()
        """One request is scored at a time: the model has the whole device."""
        try:
            super().__init__((host, port), _RewardHandler)
        except OSError as error:
            if error.errno not in (errno.EADDRINUSE, errno.EACCES):
                raise RunFailed(f"the reward cannot be served at {host}: {error.strerror or error}") from error
            reason = "in use" if error.errno == errno.EADDRINUSE else "not allowed"
            raise BadInput(f"port {port} is {reason}; name another, such as --port {max(port, 1024) + 1}") from error
        scheme = "http"
        if certificate is not None:
            self.socket = _with_tls(self.socket, certificate)
            scheme = "https"
        self.address = f"{scheme}://{host}:{self.server_port}"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore a client that disconnects in the middle."""


def _keep_freed_memory() -> None:
    """Have the C library keep the memory that a request frees for the next one.

    glibc returns to the system what exceeds twice the largest block that was ever freed, and then the kernel clears the
    same pages for every request, a sixth of the server's time. So a large block is freed once, below the 32 MB up to
    which glibc learns from it.
    """
    np.empty(31 * 2**20, np.uint8)


def _with_tls(socket: Any, certificate: Path) -> ssl.SSLSocket:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(certificate)
    except OSError as error:  # errors of `ssl` are of this class
        raise BadInput(f"'{certificate}' holds no certificate and key that can be read: {error}") from error
    # Without the handshake here: a client that never ends it would keep all others waiting.
    return context.wrap_socket(socket, server_side=True, do_handshake_on_connect=False)


class _RewardHandler(BaseHTTPRequestHandler):
    """Request handler of a reward server."""

    server: RewardServer
    protocol_version = "HTTP/1.1"
    timeout = 120
    disable_nagle_algorithm = True

    def do_GET(self) -> None:
        self._answer(self._get)

    def do_POST(self) -> None:
        self._answer(self._post)

    def _get(self) -> dict[str, Any]:
        if self.path != "/info":
            raise Refusal(HTTPStatus.NOT_FOUND, "there is GET /info and POST /score")
        return self.server.reward.info()

    def _post(self) -> dict[str, Any]:
        if self.path != "/score":
            raise Refusal(HTTPStatus.NOT_FOUND, "there is GET /info and POST /score")
        body = self._body()
        with self.server.scoring:
            document = self.server.reward.score(body, self.headers.get("Content-Type", ""))
            self.server.answered += 1
        return document

    def _check_access(self) -> None:
        if "Origin" in self.headers:
            raise Refusal(HTTPStatus.FORBIDDEN, "pages in a browser may not ask")
        expected = f"Bearer {self.server.token}"
        # In constant time, so that a guess cannot be improved by the time that its refusal takes.
        credentials = self.headers.get("Authorization", "")
        if self.server.token and not hmac.compare_digest(credentials.encode(), expected.encode()):
            raise Refusal(HTTPStatus.UNAUTHORIZED, f"the token of {TOKEN_ENV} is needed; name a variable by key_env")

    def _body(self) -> bytes:
        lengths = self.headers.get_all("Content-Length") or []
        if "Transfer-Encoding" in self.headers or len(lengths) != 1 or not re.fullmatch(r"[0-9]{1,18}", lengths[0]):
            raise Refusal(HTTPStatus.LENGTH_REQUIRED, "say how long the body is")
        length = int(lengths[0])
        if length > MAX_BODY:
            raise Refusal(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"no more than {MAX_BODY // 2**20} MB in a request")
        body = self.rfile.read(length)
        if len(body) < length:
            raise ConnectionError("the client has gone")
        return body

    def _answer(self, method: Callable[[], dict[str, Any]]) -> None:
        try:
            self._check_access()
            self._send(HTTPStatus.OK, method())
        except Refusal as refusal:
            self.close_connection = True  # its body, if any, was perhaps not read
            error = {"code": refusal.status.phrase.lower().replace(" ", "_"), "message": str(refusal)}
            if refusal.clip:
                error["clip"] = refusal.clip
            self._send(refusal.status, {"error": error})
        except ConnectionError:
            self.close_connection = True
        except Exception as error:  # of the model: the next request may go well
            self.close_connection = True
            line = str(error) if isinstance(error, BadInput | RunFailed) else reason_of(error)
            self._send(HTTPStatus.INTERNAL_SERVER_ERROR, {"error": {"code": "failed", "message": line[:500]}})

    def _send(self, status: HTTPStatus, document: Mapping[str, Any]) -> None:
        body = json.dumps(document).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(body)

    def version_string(self) -> str:
        return "sightline"

    def log_message(self, *unused: Any) -> None:
        """Log nothing: requests should not fill the terminal."""


def _parsed(content: bytes) -> Any:
    try:
        return json.loads(content)
    except (ValueError, RecursionError) as error:
        raise Malformed("the part 'request' is no JSON") from error


def _arrays(fields: Any, parts: Mapping[str, FormPart], needs: frozenset[Any]) -> dict[str, np.ndarray]:
    """Frames uint8[T, H, W, 3] and states float32[T, …] of a clip, as far as they are needed.

    Raises:
        Malformed: they are missing, or no such arrays.
    """
    arrays: dict[str, np.ndarray] = {}
    if "frames" in needs:
        name = field_of(fields, "frames", (str, dict), "a clip")
        if isinstance(name, dict):
            if len(name) != 1:
                raise Malformed(f"a clip shows {len(name)} cameras, and this model reads one")
            name = next(iter(name.values()))
        frames = _array(parts, name, np.uint8)
        if frames.ndim != 4 or frames.shape[-1] != 3 or 0 in frames.shape:
            raise Malformed(f"frames must be uint8[T, H, W, 3], not of shape {list(frames.shape)}")
        arrays["frames"] = frames
    if "states" in needs:
        states = _array(parts, field_of(fields, "states", str, "a clip"), np.float32)
        if states.ndim < 2 or not len(states) or not np.isfinite(states).all():
            raise Malformed(f"states must be finite float32[T, …], not of shape {list(states.shape)}")
        arrays["states"] = states
    if len({len(array) for array in arrays.values()}) > 1:
        raise Malformed("a clip has another number of frames than of states")
    return arrays


def _array(parts: Mapping[str, FormPart], name: Any, dtype: type[np.generic]) -> np.ndarray:
    part = parts.get(name) if isinstance(name, str) else None
    if part is None:
        raise Malformed(f"the form has no part '{str(name)[:80]}'")
    return array_of(part.content, dtype, f"part '{part.name[:80]}'")
