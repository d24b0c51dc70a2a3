"""A reward server for LeRobot's reward models, by the protocol sightline v1 (docs/reward-servers.md).

    python lerobot_reward_server.py lerobot/Robometer-4B --scope prefix

It runs in LeRobot's own environment (0.6 or later) and needs nothing of Sightline. One request is answered at a time.
"""

from __future__ import annotations

import argparse
import io
import json
import math
from collections.abc import Callable
from email import message_from_bytes
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import numpy as np
import torch

Rewards = Callable[[dict[str, Any]], torch.Tensor]
"""What gives the rewards (B,) of a batch in LeRobot's form."""


class LeRobotServer(HTTPServer):
    """HTTP server of a reward model, on this machine.

    Args:
        rewards: of a batch with images [B, C, H, W], or [B, T, C, H, W] for scope `prefix`, from 0 to 1, and `task`.
        name: with all that rewards depend on.
        scope: `frame`, or `prefix` for a model that reads all frames since the reset.
        image_key: of the batch.
        port: 0 takes any that is free.
    """

    def __init__(self, rewards: Rewards, name: str, scope: str, image_key: str, port: int) -> None:
        super().__init__(("127.0.0.1", port), Handler)
        self.rewards, self.name, self.scope, self.image_key = rewards, name, scope, image_key

    def info(self) -> dict[str, Any]:
        facts = {"version": 1, "model": self.name, "needs": ["frames", "instruction"], "scope": self.scope}
        return facts | {"window": 1, "max_frames": None, "size": None, "range": None, "deterministic": True}

    @torch.no_grad()
    def score(self, form: bytes) -> dict[str, Any]:
        parts = {}
        for part in message_from_bytes(form).get_payload():
            parts[part.get_param("name", header="content-disposition")] = part.get_payload(decode=True)
        request, rows = json.loads(parts["request"]), []
        if request["version"] != 1:
            raise ValueError("version 1 of the protocol is the one that is spoken here")
        for clip in request["clips"]:
            frames = np.load(io.BytesIO(parts[clip["frames"]]), allow_pickle=False)
            images = torch.from_numpy(frames).permute(0, 3, 1, 2) / 255
            if request["want"] == "last" and self.scope == "frame":
                images = images[-1:]
            batches = [images]
            if self.scope == "prefix":
                # Prefixes differ in length, so each is a batch of its own.
                ends = range(1, len(images) + 1) if request["want"] == "frames" else [len(images)]
                batches = [images[None, :end] for end in ends]
            values = []
            for batch in batches:
                tasks = [clip["instruction"]] * len(batch)
                values += self.rewards({self.image_key: batch, "task": tasks}).float().flatten().tolist()
            rows.append([value if math.isfinite(value) else None for value in values])
        return {"version": 1, "model": self.name, "rewards": rows}


class Handler(BaseHTTPRequestHandler):
    server: LeRobotServer

    def do_GET(self) -> None:
        self.send(200, self.server.info())

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        try:
            self.send(200, self.server.score(f"Content-Type: {self.headers['Content-Type']}\r\n\r\n".encode() + body))
        except Exception as error:
            self.send(500, {"error": {"code": "failed", "message": f"{type(error).__name__}: {error}"[:500]}})

    def send(self, status: int, document: dict[str, Any]) -> None:
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.end_headers()
        self.wfile.write(json.dumps(document).encode())

    def log_message(self, *unused: Any) -> None:
        """Log nothing."""


def load(path: str) -> Rewards:
    """The rewards of a model in a folder or on the Hugging Face Hub, behind its preprocessor."""
    from lerobot.configs.rewards import RewardModelConfig
    from lerobot.rewards.factory import make_reward_model, make_reward_pre_post_processors

    config = RewardModelConfig.from_pretrained(path)
    config.pretrained_path = path
    model = make_reward_model(config).eval()
    # The model reads what its preprocessor makes of images and words, and no images.
    preprocess, _ = make_reward_pre_post_processors(config)
    return lambda batch: model.compute_reward(preprocess(batch))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="a folder, or a name on the Hugging Face Hub")
    parser.add_argument("--scope", choices=["frame", "prefix"], default="frame", help="what a reward depends on")
    parser.add_argument("--image-key", default="observation.images.top", help="of the images in a batch")
    parser.add_argument("--port", type=int, default=8701)
    given = parser.parse_args()
    server = LeRobotServer(load(given.model), given.model, given.scope, given.image_key, given.port)
    print(f"reward server: http://localhost:{server.server_port}", flush=True)
    server.serve_forever()
