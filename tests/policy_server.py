"""A small server with vLLM's interface that really generates: any folder with a model, one reply after the other.

with PolicyServer(folder) as server:
    …  # server.url, server.requests; its behaviour can be changed: `server.faults.other_ids = True`
"""

from __future__ import annotations

import base64
import io
import json
import threading
import time
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from sightline.images import Picture
from sightline.models.vlm.model import VLM, load_vlm
from sightline.models.vlm.types import ChatTurn, TokenSequence


@dataclass
class Faults:
    """What the server does wrong.

    Attributes:
        other_ids: reads another prompt than it was given.
        no_ids: tells no token ids, as most servers.
        other_name: answers as another model.
        keeps_weights: says that it has loaded new weights, and has not.
        no_reload: has no such endpoint.
        banned: samples a token that it should not.
        raw: tells log-probabilities at temperature 1, whatever it samples at.
        strips: leaves out the token that ends a reply.
        stalls: seconds that it waits in the middle of a reply.
        delay: seconds before each reply.
        busy: so many requests are refused at first.
        lives: replies after which all requests are refused; None for never.
    """

    other_ids: bool = False
    no_ids: bool = False
    other_name: bool = False
    keeps_weights: bool = False
    no_reload: bool = False
    banned: bool = False
    raw: bool = False
    strips: bool = False
    stalls: float = 0.0
    delay: float = 0.0
    busy: int = 0
    lives: int | None = None


class PolicyServer:
    """See the module.

    Attributes:
        vlm: what it serves.
        loaded: names of the folders that it was told to load.
    """

    lock = threading.Lock()
    """Of all servers: models cannot be loaded in two threads at once."""

    def __init__(self, model: str = "bundled", name: str = "tiny") -> None:
        self.vlm: VLM = load_vlm(model, device="cpu")
        self.name, self.faults = name, Faults()
        self.loaded: list[str] = []
        self.requests: list[str] = []
        handler = type("Handler", (_Handler,), {"server_of": self})
        self._http = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self.url = f"http://127.0.0.1:{self._http.server_address[1]}/v1"

    def __enter__(self) -> PolicyServer:
        threading.Thread(target=self._http.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *unused: Any) -> None:
        self._http.shutdown()
        self._http.server_close()

    def reload(self, folder: str) -> None:
        with self.lock:
            self.loaded.append(folder.rsplit("/", 1)[-1])
            # vLLM takes what all of these files hold for weights of the model.
            assert [file.name for file in Path(folder).glob("*.safetensors")] == ["model.safetensors"]
            if not self.faults.keeps_weights:
                self.vlm = load_vlm(folder, device="cpu")

    def complete(self, body: dict[str, Any]) -> dict[str, Any]:
        turns, texts, pictures = list[ChatTurn](), list[str](), list[Picture]()
        for message in body["messages"]:
            if message["role"] == "assistant":
                ids = (*self.vlm.tokens.encode(message["content"]), self.vlm.tokens.stop)
                turns.append(ChatTurn("\n".join(texts), tuple(pictures), ids, message["content"]))
                continue
            texts = [part["text"] for part in message["content"] if part["type"] == "text"]
            urls = [part["image_url"]["url"] for part in message["content"] if part["type"] == "image_url"]
            opened = [Image.open(io.BytesIO(base64.b64decode(url.partition(",")[2]))) for url in urls]
            pictures = [Picture(np.asarray(image.convert("RGB"))) for image in opened]
        with self.lock:
            prompt = self.vlm.encode([*turns, ChatTurn("\n".join(texts), tuple(pictures))])
            numbers = np.random.default_rng(body["seed"]).random((1, body["max_tokens"]))
            uniforms = numbers if body["temperature"] > 0 else None
            (sample,) = self.vlm.generate([prompt], uniforms, body["temperature"] or 1.0, body["max_tokens"])
        ids, read, logprobs = sample.ids.tolist(), prompt.ids.tolist(), sample.logprobs
        if self.faults.raw:
            logprobs = self.vlm.score([TokenSequence.of_reply(prompt, sample.ids)]).logprobs.detach().numpy()
        if self.faults.banned:
            ids[0] = self.vlm.tokens.pad
        told = len(ids) - int(self.faults.strips and sample.finished)
        choice: dict[str, Any] = {
            "message": {"role": "assistant", "content": sample.text},
            "finish_reason": "stop" if sample.finished else "length",
            "logprobs": {"content": [{"token": "", "logprob": float(one)} for one in logprobs[:told]]},
        }
        answer: dict[str, Any] = {"model": "another" if self.faults.other_name else body["model"], "choices": [choice]}
        if not self.faults.no_ids:
            choice["token_ids"] = ids[:told]
            answer["prompt_token_ids"] = read[:-1] if self.faults.other_ids else read
        return answer


class _Handler(BaseHTTPRequestHandler):
    server_of: PolicyServer
    protocol_version = "HTTP/1.1"

    def log_message(self, *unused: Any) -> None:
        """Say nothing."""

    def do_GET(self) -> None:
        self._send(200, {"data": [{"id": self.server_of.name}]})

    def do_POST(self) -> None:
        server, faults = self.server_of, self.server_of.faults
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])) or b"{}")
        server.requests.append(self.path)
        if faults.busy > 0:
            faults.busy -= 1
            self._send(503, {"error": {"message": "busy"}})
        elif faults.lives is not None and faults.lives <= 0:
            self._send(503, {"error": {"message": "lost"}})
        elif self.path == "/v1/chat/completions":
            if faults.lives is not None:
                faults.lives -= 1
            time.sleep(faults.delay)
            self._send(200, server.complete(body), faults.stalls)
        elif self.path == "/collective_rpc" and not faults.no_reload:
            assert body["method"] == "reload_weights"
            server.reload(body["kwargs"]["weights_path"])
            self._send(200, {"results": [None]})
        elif self.path in ("/reset_prefix_cache", "/reset_encoder_cache"):
            self._send(200, None)
        else:
            self._send(404, {"error": {"message": "not found"}})

    def _send(self, status: int, body: Any, stalls: float = 0.0) -> None:
        data = b"" if body is None else json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        half = len(data) // 2 if stalls else len(data)
        self.wfile.write(data[:half])
        for _ in range(int(stalls / 0.05)):  # a byte now and then, so that no single read takes long
            time.sleep(0.05)
            self.wfile.write(data[half : half + 1])
            half += 1
        self.wfile.write(data[half:])
