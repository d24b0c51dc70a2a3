"""Reward servers for tests: ours around a reward model of a test, and one that answers as it is told."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import numpy as np

from sightline.rewards.arrays import to_numpy
from sightline.rewards.base import Clip, RewardModel
from sightline.rewards.servers.serving import RewardServer, ServedReward
from sightline.rewards.servers.wire import FormPart, parts_of

INFO = {
    "version": 1,
    "model": "a model",
    "needs": ["frames"],
    "scope": "frame",
    "window": 1,
    "max_frames": None,
    "size": None,
    "range": None,
    "deterministic": True,
}


class Brightness(RewardModel):
    """The mean of a frame, which no batch changes."""

    def reward(self, clip: Clip) -> np.ndarray:
        return np.asarray(to_numpy(clip.frames).mean(axis=(2, 3, 4)) / 255, np.float32)


@contextlib.contextmanager
def serving(server: ThreadingHTTPServer) -> Iterator[None]:
    """Context in which a server answers, in a thread."""
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@contextlib.contextmanager
def served(model: RewardModel, name: str = "brightness", port: int = 0, **settings: Any) -> Iterator[RewardServer]:
    """Our server around a model."""
    with RewardServer(ServedReward(model, name), port=port, **settings) as server, serving(server):
        yield server


ANSWERING = threading.Lock()
"""Held by the server of this process that answers, one at a time: reading the header of an array is not safe in two
threads of Python 3.11 (`ast.literal_eval`)."""


class TellingServer(ThreadingHTTPServer):
    """A server that answers as it is told.

    Args:
        answer: the parts of a request, its path and the number of requests before it -> status and body; a
            document becomes JSON; None closes the connection.
        info: path -> document, of GET.

    Attributes:
        asked: path and parts of each request.
    """

    daemon_threads = True

    def __init__(self, answer: Callable[[dict[str, FormPart], int], Any], info: dict[str, Any] | None = None) -> None:
        self.answer = answer
        self.info = {"/info": INFO} if info is None else info
        self.asked: list[tuple[str, dict[str, FormPart]]] = []
        self.headers: list[Any] = []
        super().__init__(("127.0.0.1", 0), _Handler)
        self.address = f"http://127.0.0.1:{self.server_port}"


class _Handler(BaseHTTPRequestHandler):
    server: TellingServer
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self.server.headers.append(self.headers)
        document = self.server.info.get(self.path)
        self._send(404 if document is None else 200, document)

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        parts = parts_of(body, self.headers["Content-Type"])
        number = len(self.server.asked)
        self.server.asked.append((self.path, parts))
        with ANSWERING:
            answer = self.server.answer(parts, number)
        if answer is None:
            self.close_connection = True
            return
        status, document = answer if isinstance(answer, tuple) else (200, answer)
        self._send(status, document)

    def _send(self, status: int, document: Any) -> None:
        body = document if isinstance(document, bytes) else json.dumps(document).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        with contextlib.suppress(OSError):
            self.wfile.write(body)

    def log_message(self, *unused: Any) -> None:
        """Log nothing."""


@contextlib.contextmanager
def telling(
    answer: Callable[[dict[str, FormPart], int], Any], info: dict[str, Any] | None = None
) -> Iterator[TellingServer]:
    with TellingServer(answer, info) as server, serving(server):
        yield server
