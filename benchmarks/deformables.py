"""Cloth, rope and water: are the tasks what they say, and how fast are they? Every claim of docs/results.md about that.

    PYTHONPATH=tools python benchmarks/deformables.py players [--episodes 100]
    PYTHONPATH=tools python benchmarks/deformables.py speed

- `players`: success at the end and returns of a script that knows the state, of random actions and of zeros, from
  random starts. A script has to succeed in 95 % of them, random play in 2 % at most.
- `speed`: steps, and pictures of 224 pixels, per second of processor time of one core.

Numbers go to benchmarks/results/deformables.json.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable, Sequence
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np

from running import keep, kept, sized
from sightline.envs.rendering import opengl_renderer, prepare_rendering
from sightline.evaluation.statistics import wilson
from sightline_tasks.deformables.cloth import FoldCloth
from sightline_tasks.deformables.rope import StraightenRope
from sightline_tasks.deformables.soft_body import SoftBody
from sightline_tasks.deformables.water import PassWater
from sightline_tasks.mujoco_rendering import import_mujoco

FILE = "deformables.json"
ENVS: dict[str, tuple[Callable[..., SoftBody], int]] = {
    "fold-cloth": (FoldCloth, 1),
    "fold-cloth, steps": (lambda **options: FoldCloth("steps", **options), 20),
    "straighten-rope": (StraightenRope, 40),
    "pass-water": (PassWater, 50),
}
"""Environments, and the actions of an episode."""


def play(env: SoftBody, actions: int, seed: int, choose: Callable[[], np.ndarray]) -> tuple[float, bool, bool]:
    """Return, success at the end, and whether the physics diverged."""
    env.reset(seed=seed)
    rewards = 0.0
    info: dict[str, Any] = {}
    for _ in range(actions):
        _, reward, terminated, _, info = env.step(choose())
        rewards += reward
        if terminated:
            break
    return rewards, info["success"], info["diverged"]


def choices(env: SoftBody) -> dict[str, Callable[[], np.ndarray]]:
    """Who plays: name -> next action."""
    rng, shape = np.random.default_rng(0), env.action_space.shape or ()
    return {
        "script": env.solution,
        "random": lambda: rng.uniform(-1, 1, shape),
        "nothing": lambda: np.zeros(shape),
    }


def players(tasks: Sequence[str], episodes: int) -> dict[str, Any]:
    found: dict[str, Any] = {}
    print("| task | player | success, % | return | diverged |\n|---|---|---|---|---|")
    for name in tasks:
        make, actions = ENVS[name]
        env = make()
        for player, choose in choices(env).items():
            rewards, success, diverged = zip(
                *(play(env, actions, seed, choose) for seed in range(episodes)), strict=True
            )
            low, high = wilson(sum(success), episodes)
            row: dict[str, Any] = {
                "success": float(np.mean(success)),
                "interval": [low, high],
                "return": float(np.mean(rewards)),
                "diverged": int(sum(diverged)),
            }
            found[f"{name}, {player}"] = row
            shares = f"{100 * row['success']:.0f} [{100 * low:.0f}, {100 * high:.0f}]"
            print(f"| {name} | {player} | {shares} | {row['return']:.2f} | {row['diverged']} |", flush=True)
        env.close()
    return found


def speed(tasks: Sequence[str], seconds: float) -> dict[str, Any]:
    found: dict[str, Any] = {}
    print("| task | steps/s | pictures/s |\n|---|---|---|")
    for name in tasks:
        make, actions = ENVS[name]
        env, rng = make(render_mode="rgb_array"), np.random.default_rng(0)
        env.reset(seed=0)
        env.render()
        spent, steps, pictures = 0.0, 0, 0
        while spent < seconds:
            env.reset(seed=steps)
            began = time.process_time()
            for _ in range(actions):
                env.step(rng.uniform(-1, 1, env.action_space.shape))
            spent += time.process_time() - began
            steps += actions
        began = time.process_time()
        while (drawing := time.process_time() - began) < seconds / 4:
            env.render()
            pictures += 1
        rates = {"steps_per_cpu_second": steps / spent, "pictures_per_cpu_second": pictures / drawing}
        found[name] = rates | {"opengl": opengl_renderer()}
        env.close()
        print(f"| {name} | {steps / spent:.0f} | {pictures / drawing:.0f} |", flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=["players", "speed"])
    parser.add_argument("--tasks", nargs="+", choices=ENVS, default=list(ENVS))
    parser.add_argument("--episodes", type=int, default=sized(100, 1))
    parser.add_argument(
        "--seconds", type=float, default=sized(20.0, 0.1), help="of processor time for each task's steps"
    )
    given = parser.parse_args()
    prepare_rendering()
    known = kept(FILE, given.part).get("rows", {})
    if given.part == "players":
        rows, setting = players(given.tasks, given.episodes), {"episodes": given.episodes}
    else:
        rows, setting = speed(given.tasks, given.seconds), {}
    keep(FILE, given.part, setting | {"mujoco": import_mujoco().__version__, "rows": known | rows})


if __name__ == "__main__":
    main()
