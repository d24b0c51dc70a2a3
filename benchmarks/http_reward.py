"""What it costs that a reward comes from a server, on this machine.

    python benchmarks/http_reward.py speed learn

- `speed`: frames per second of the recipe cartpole's reward (the bundled encoder at 64 pixels) through `sightline
  serve-reward` in a process of its own, beside the same reward in this process; in turn, the median of five rounds.
  Every frame is another one, so that no answer is known. Asked: at least 0.8 times as many.
- `learn`: `cartpole` learned from the server's rewards, one seed. Asked: success.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np

from running import keep, sized, train
from sightline.rewards.base import RewardModel
from sightline.rewards.http import HTTPReward
from sightline.rewards.servers.source import served_reward

FILE = "http_reward.json"
FRAMES = sized(2048, 16)
ROUNDS = sized(5, 1)
LEAST_SPEED = 0.8
"""Of the frames per second in this process."""
LEAST_SUCCESS = 0.9
"""Share of test episodes."""


@contextmanager
def server() -> Iterator[str]:
    """The address of `sightline serve-reward cartpole` in a process of its own."""
    command = [sys.executable, "-m", "sightline", "serve-reward", "cartpole", "--port", "0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None, "it is a pipe"
        words = process.stdout.readline().split()
        if len(words) < 3:
            raise SystemExit("the server did not start")
        yield words[2]
    finally:
        process.terminate()
        process.wait()


def frames_per_second(reward: RewardModel, frames: np.ndarray) -> float:
    began = time.perf_counter()
    reward(frames)
    return len(frames) / (time.perf_counter() - began)


def speed() -> dict[str, Any]:
    rng = np.random.default_rng(0)
    here = served_reward("cartpole", [], False)[0].model
    rates: dict[str, list[float]] = {"in this process": [], "from a server": []}
    with server() as url:
        rewards = {"in this process": here, "from a server": HTTPReward(url)}
        # The first round is not counted: both load what they need.
        for number in range(ROUNDS + 1):
            frames = rng.integers(0, 256, (FRAMES, 64, 64, 3), np.uint8)
            for name, reward in rewards.items():
                rate = frames_per_second(reward, frames)
                if number:
                    rates[name].append(rate)
    medians = {name: round(float(np.median(of_name))) for name, of_name in rates.items()}
    ratio = round(medians["from a server"] / medians["in this process"], 3)
    return {"frames": FRAMES, "frames per second": medians, "ratio": ratio, "met": ratio >= LEAST_SPEED}


def learn() -> dict[str, Any]:
    with server() as url, tempfile.TemporaryDirectory() as folder:
        result = train("cartpole", ("cartpole", "reward.kind=http", f"reward.url={url}"), 0, Path(folder))
    success = result["success_rate"]
    facts = {"seed": 0, "success": success, "return": result["return"], "seconds": round(result["wall_seconds"])}
    return facts | {"met": success >= LEAST_SUCCESS}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="+", choices=["speed", "learn"])
    for part in parser.parse_args().parts:
        found = {"speed": speed, "learn": learn}[part]()
        print(json.dumps(found, indent=1), flush=True)
        keep(FILE, part, {"command": f"python benchmarks/http_reward.py {part}"} | found)


if __name__ == "__main__":
    main()
