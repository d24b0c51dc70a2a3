"""What it costs that a reward comes from a server, on this machine.

    python benchmarks/http_reward.py speed learn [--rewards NAME…] [--seeds N…]

- `speed`: frames per second of the recipe cartpole's reward (the bundled encoder at 64 pixels) through `sightline
  serve-reward` in a process of its own, beside the same reward in this process; in turn, the median of five rounds.
  Every frame is another one, so that no answer is known. Asked: at least 0.8 times as many.
- `learn`: `cartpole` learned from the server's rewards, with three seeds, and as a control from those of a server that
  serves words that mean nothing here. What is done is kept, and the same command goes on. Asked: success in every seed,
  and in no control.
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

from running import folder_of, keep, learn_rows, sized, train
from sightline.rewards.base import RewardModel
from sightline.rewards.http import HTTPReward
from sightline.rewards.servers.source import served_reward

FILE = "http_reward.json"
FRAMES = sized(2048, 16)
ROUNDS = sized(5, 1)
LEAST_SPEED = 0.8
"""Of the frames per second in this process."""
SEEDS = sized((0, 1, 2), (0,))
LEAST_SUCCESS = 0.9
"""Share of test episodes of each seed with the task's own words."""
MOST_SUCCESS = 0.1
"""The same of the control."""
SERVED = {"words": (), "control: nonsense": ("goal=a bowl of soup on the moon",)}
"""Name of a row -> overrides of the recipe that is served."""


@contextmanager
def server(*overrides: str) -> Iterator[str]:
    """The address of `sightline serve-reward cartpole` in a process of its own."""
    command = [sys.executable, "-m", "sightline", "serve-reward", "cartpole", *overrides, "--port", "0"]
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


def trained(name: str, seed: int) -> dict[str, Any]:
    """What a server's rewards make of the recipe with one seed."""
    with server(*SERVED[name]) as url, tempfile.TemporaryDirectory() as folder:
        overrides = ("reward.kind=http", f"reward.url={url}")
        result = train(folder_of(name), ("cartpole", *overrides), seed, Path(folder))
    return {part: result[part] for part in ("success_rate", "ci_low", "ci_high", "return", "wall_seconds")}


def judged(rows: dict[str, Any]) -> dict[str, Any]:
    """All runs so far, and whether the task's own words succeed with every seed, and the control with none."""
    successes = {
        name: [rows[key]["success_rate"] for seed in SEEDS if (key := f"{name}, {seed}") in rows] for name in SERVED
    }
    is_complete = all(len(of_name) == len(SEEDS) for of_name in successes.values())
    words, control = successes.values()
    return {"runs": rows, "met": is_complete and min(words) >= LEAST_SUCCESS and max(control) <= MOST_SUCCESS}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="+", choices=["speed", "learn"])
    parser.add_argument("--rewards", nargs="+", default=list(SERVED), choices=list(SERVED))
    parser.add_argument("--seeds", nargs="+", type=int, default=list(SEEDS))
    given = parser.parse_args()
    for part in given.parts:
        if part == "speed":
            found = speed()
            keep(FILE, part, {"command": "python benchmarks/http_reward.py speed"} | found)
        else:
            found = learn_rows(FILE, given.rewards, given.seeds, trained, judged)
        print(json.dumps(found, indent=1), flush=True)


if __name__ == "__main__":
    main()
