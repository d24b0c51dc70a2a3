"""Memory of runs against the size of what simulators draw, and against how long episodes are and how many are played.

    python benchmarks/frame_memory.py --out benchmarks/results/frame_memory.json

Each run is a process of its own; the peak of its memory (resident set) is reported in MB. Asked: to a policy pictures
of 1080p take at most 1.3 times as much as those of 64x64, and so do four times as many turns; to an agent four times as
many episodes, or turns. An agent's model is shown whole pictures: what larger ones take there is told and not bounded.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from running import at_size

HERE = Path(__file__).resolve()
GOAL = "goal=a bright picture"
POLICY = (
    *("steps=512", "learner.learning_starts=64", "learner.gradient_steps=4", "videos.final=true"),
    *("evaluation.episodes=25", "evaluation.test_episodes=25", "tensorboard=false"),
)
AGENT = (
    *("role=agent", "reward.kind=zero_shot", "prompt=Wait. {actions}", "actions=[stay,go]", "replies.thoughts=false"),
    *("replies.max_tokens=16", "steps=8", "rollouts.tasks=1", "rollouts.parallel=4", "evaluation.episodes=2"),
    *("evaluation.unparsable=random", "videos=false", "tensorboard=false", "algorithm.kind=grpo", "algorithm.group=2"),
    "evaluation.parallel=4",
)
SIZES = {"64x64": (64, 64), "600x800": (600, 800), "1080p": (1080, 1920)}
MOST = 1.3
TOLD = ("agent, 600x800 /", "agent, 1080p /")
"""Ratios that are not bounded."""


class Bright(gymnasium.Env[np.ndarray, np.int64]):
    """A simulator that draws at a size of its own: a gradient that moves with its time."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 30}

    def __init__(self, render_mode: str | None = None, height: int = 64, width: int = 64, turns: int = 40) -> None:
        self.render_mode, self.turns = render_mode, turns
        self.observation_space = spaces.Box(0, 1, (1,), np.float32)
        self.action_space = spaces.Discrete(2)
        across = np.linspace(0, 200, width).astype(np.uint8)
        self._canvas = np.broadcast_to(across[None, :, None], (height, width, 3))

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self._time, self._start = 0, int(self.np_random.integers(40))
        return self._state(), {"success": False}

    def step(self, action: np.int64) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self._time += 1
        return self._state(), 0.0, self._time >= self.turns, False, {"success": False}

    def render(self) -> np.ndarray:
        return self._canvas + np.uint8((self._start + self._time) % 50)

    def _state(self) -> np.ndarray:
        return np.array([self._time / self.turns], np.float32)


def peak(arguments: list[str]) -> float:
    """Peak of the memory of a training command, in MB."""
    # Of its children a process knows only the greatest peak so far: each command has a parent of its own.
    with tempfile.TemporaryDirectory() as folder:
        told = ["train", *at_size(*arguments), f"--run-dir={folder}/run"]
        command = [sys.executable, str(HERE), "--measure", *told]
        search = os.pathsep.join([str(HERE.parent), os.environ.get("PYTHONPATH", "")])
        done = subprocess.run(
            command, capture_output=True, text=True, cwd=folder, env=os.environ | {"PYTHONPATH": search}, check=False
        )
    if done.returncode:
        raise SystemExit(f"{' '.join(arguments)}: {done.stderr[-500:]}")
    return float(done.stdout.splitlines()[-1])


def measure(arguments: list[str]) -> None:
    """Carry out a command and print the peak of its memory in MB."""
    done = subprocess.run([sys.executable, "-m", "sightline", *arguments], stdout=subprocess.DEVNULL, check=False)
    if done.returncode:
        sys.exit(done.returncode)
    print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024)


def policy(size: tuple[int, int], *changes: str) -> list[str]:
    """Overrides that train a policy on what is drawn at a size."""
    drawn = (f"env_options.height={size[0]}", f"env_options.width={size[1]}")
    return [f"env={HERE.stem}:Bright", GOAL, *drawn, *POLICY, *changes]


def agent(size: tuple[int, int], episodes: int, turns: int) -> list[str]:
    """Overrides that train an agent a little; nearly all of it is evaluation."""
    played = (f"evaluation.test_episodes={episodes}", f"env_options.turns={turns}")
    return [*policy(size)[:4], *AGENT, *played]


def main() -> None:
    if sys.argv[1:2] == ["--measure"]:
        measure(sys.argv[2:])
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--only", choices=["policy", "agent"])
    arguments = parser.parse_args()
    runs: dict[str, list[str]] = {}
    if arguments.only != "agent":
        runs |= {f"policy, {name}": policy(size) for name, size in SIZES.items()}
        runs["policy, 1080p, 4 x turns"] = policy(SIZES["1080p"], "env_options.turns=160")
    if arguments.only != "policy":
        runs |= {f"agent, {name}": agent(size, 16, 20) for name, size in SIZES.items()}
        runs["agent, 600x800, 4 x episodes"] = agent(SIZES["600x800"], 64, 20)
        runs["agent, 600x800, 4 x turns"] = agent(SIZES["600x800"], 16, 80)
    megabytes = {}
    for name, command in runs.items():
        megabytes[name] = round(peak(command), 1)
        print(f"{name:32} {megabytes[name]:8.0f} MB", flush=True)
    ratios = {
        f"{name} / {base}": round(megabytes[name] / megabytes[base], 3)
        for name, base in (
            ("policy, 600x800", "policy, 64x64"),
            ("policy, 1080p", "policy, 64x64"),
            ("policy, 1080p, 4 x turns", "policy, 1080p"),
            ("agent, 600x800", "agent, 64x64"),
            ("agent, 1080p", "agent, 64x64"),
            ("agent, 600x800, 4 x episodes", "agent, 600x800"),
            ("agent, 600x800, 4 x turns", "agent, 600x800"),
        )
        if name in megabytes
    }
    for name, ratio in ratios.items():
        print(f"{name:48} {ratio:.2f}")
    result = {
        "command": " ".join(["python", "benchmarks/frame_memory.py", *sys.argv[1:]]),
        "peak, MB": megabytes,
        "ratios": ratios,
        "met": all(ratio <= MOST for name, ratio in ratios.items() if not name.startswith(TOLD)),
    }
    print("met" if result["met"] else f"not met: some ratio is above {MOST}")
    if arguments.out:
        arguments.out.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
