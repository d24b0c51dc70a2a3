"""Does an agent learn from one sentence to balance a pole, and does it do what other sentences say?

    python benchmarks/cartpole_agent.py learn --jobs 2
    python benchmarks/cartpole_agent.py rules

- `learn`: whole `sightline train cartpole-agent` commands: three seeds with the recipe's sentence, and two opposite
  sentences with one seed. How long each takes, what the untrained and the chosen model do on the test panel with real,
  blank and shuffled pictures, and where the cart is in the last turns of the test episodes that were kept.
- `rules`: what simple rules reach in the same environment that are told the facts, with and without mistakes: how good
  eyes have to be, and how many steps a turn may take.

`--jobs` commands run beside each other, one thread each. Results go to benchmarks/results/cartpole_agent.json.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np

from running import keep, run_folder, train
from sightline.envs.control.cartpole import CartPole
from sightline.evaluation.statistics import wilson
from sightline.runs.folder import RunFolder

FILE = "cartpole_agent.json"
RECIPE = "cartpole-agent"
SEEDS = (0, 1, 2)
EDGES = {side: (f"goal=the cart at the {side} edge", "baseline=pole and cart") for side in ("right", "left")}
LAST_TURNS = 20
KEPT = ("success_rate", "ci_low", "ci_high", "return", "reward", "truthful_replies", "unparsable", "episodes", "panel")
EPISODES, TURNS = 100, 100


def learn(jobs: int) -> dict[str, Any]:
    """Train, and read off what came of it."""
    asked: dict[str, tuple[int, tuple[str, ...]]] = {f"balance, seed {seed}": (seed, ()) for seed in SEEDS}
    asked |= {f"{side} edge, seed 0": (0, words) for side, words in EDGES.items()}
    with tempfile.TemporaryDirectory() as place, ThreadPoolExecutor(jobs) as pool:

        def one(name: str) -> dict[str, Any]:
            seed, words = asked[name]
            result = train(name, (RECIPE, *words), seed, Path(place))
            found = {key: result[key] for key in KEPT} | {"seconds": round(result["wall_seconds"])}
            found |= {look: {key: result[look][key] for key in KEPT} for look in ("blank", "shuffled", "untrained")}
            return found | {"cart": cart_at_the_end(run_folder(name, seed, Path(place)))}

        return dict(zip(asked, pool.map(one, asked), strict=True))


def cart_at_the_end(run: Path) -> dict[str, float]:
    """Shares of the last turns of the kept test episodes in which the cart is left, in the middle or right."""
    log = json.loads((RunFolder(run).path / "trajectories" / "test-real.json").read_text())
    seen = Counter(turn["facts"]["cart"] for episode in log["episodes"] for turn in episode["turns"][-LAST_TURNS:])
    return {side: round(seen[side] / seen.total(), 3) for side in ("left", "middle", "right")}


def rules() -> dict[str, Any]:
    """Share of episodes in which rules hold the pole."""

    def leaning(env: CartPole) -> str:
        return env.facts()["leaning"]

    asked: dict[str, tuple[Callable[[CartPole], str], float, int]] = {
        "to where it falls, else leans": (CartPole.oracle, 0.0, 1),
        "to where it falls, else leans, 10 % of pushes wrong": (CartPole.oracle, 0.1, 1),
        "to where it falls, else leans, 20 % of pushes wrong": (CartPole.oracle, 0.2, 1),
        "to where it falls, else leans, two steps a turn": (CartPole.oracle, 0.0, 2),
        "to where it falls, else leans, two steps a turn, 10 % of pushes wrong": (CartPole.oracle, 0.1, 2),
        "to where it leans": (leaning, 0.0, 1),
        "at random": (lambda env: "no", 0.0, 1),
    }
    found = {}
    for name, (rule, wrong, steps) in asked.items():
        held = sum(holds(rule, wrong, steps, seed) for seed in range(EPISODES))
        low, high = wilson(held, EPISODES)
        found[name] = {"held": held / EPISODES, "ci_low": low, "ci_high": high, "episodes": EPISODES}
        print(f"{name}: {100 * held / EPISODES:.0f} % [{100 * low:.0f}, {100 * high:.0f}]")
    return found


def holds(rule: Callable[[CartPole], str], wrong: float, steps: int, seed: int) -> bool:
    """True if a rule holds the pole through an episode; where it says neither side, a coin decides."""
    env, chance = CartPole(), np.random.default_rng(seed)
    env.reset(seed=seed)
    for _ in range(TURNS):
        said = rule(env)
        right = said == "right" if said in env.action_names else chance.random() < 0.5
        right ^= chance.random() < wrong
        for _ in range(steps):
            *_, info = env.step(np.int64(right))
            if not info["success"]:
                return False
    return True


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=("learn", "rules"))
    parser.add_argument("--jobs", type=int, default=1)
    given = parser.parse_args()
    found = learn(given.jobs) if given.part == "learn" else rules()
    keep(FILE, given.part, found, given.jobs)


if __name__ == "__main__":
    main()
