"""Does an agent learn from one sentence to balance a pole, and does it do what other sentences say?

    python benchmarks/cartpole_agent.py balance --folder runs/cartpole-agent
    python benchmarks/cartpole_agent.py edges --folder runs/cartpole-agent
    python benchmarks/cartpole_agent.py rules

- `balance`: `sightline sweep cartpole-agent` over three seeds with the recipe's sentence; `edges`: over two opposite
  sentences with one seed. How long each run takes, what the untrained and the chosen model do on the test panel with
  real, blank and shuffled pictures, and where the cart is in the last turns of the test episodes that were kept. As
  many runs as cores go on beside each other, one thread each. The same command goes on where it was cut off.
- `rules`: what simple rules reach in the same environment that are told the facts, with and without mistakes: how good
  eyes have to be, and how many steps a turn may take.

Results go to benchmarks/results/cartpole_agent.json.
"""

from __future__ import annotations

import argparse
import json
import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np

from running import keep, sightline, sized
from sightline.evaluation.statistics import wilson
from sightline.models.device import available_cores
from sightline.runs.folder import RunFolder
from sightline_tasks.control.cartpole import CartPole

FILE = "cartpole_agent.json"
RECIPE = "cartpole-agent"
SWEEPS = {
    "balance": (sized("seed=0..2", "seed=0..0"),),
    "edges": ("goal='the cart at the right edge','the cart at the left edge'", "baseline=pole and cart", "seed=0"),
}
LAST_TURNS = 20
KEPT = ("success_rate", "ci_low", "ci_high", "return", "reward", "truthful_replies", "unparsable", "episodes", "panel")
EPISODES, TURNS = sized(100, 2), 100


def learn(name: str, folder: Path) -> dict[str, Any]:
    """Train what a sweep asks for, and read off what came of it."""
    found = {}
    for cell in sightline("sweep", RECIPE, *SWEEPS[name], "--run-dir", str(folder / name))["cells"]:
        run = RunFolder(Path(cell["run"]))
        result = run.read_json("result.json") or {}
        numbers = {key: result[key] for key in KEPT} | {"seconds": round(result["seconds"])}
        numbers |= {look: {key: result[look][key] for key in KEPT} for look in ("blank", "shuffled", "untrained")}
        found[cell["cell"]] = numbers | {"cart": cart_at_the_end(run)}
    return found


def cart_at_the_end(run: RunFolder) -> dict[str, float]:
    """Shares of the last turns of the kept test episodes in which the cart is left, in the middle or right."""
    log = json.loads((run.path / "trajectories" / "test-real.json").read_text())
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
    parser.add_argument("part", choices=(*SWEEPS, "rules"))
    parser.add_argument("--folder", type=Path, default=Path("runs/cartpole-agent"), help="where the runs go")
    given = parser.parse_args()
    if given.part == "rules":
        keep(FILE, "rules", rules())
    else:
        keep(FILE, given.part, learn(given.part, given.folder), jobs=available_cores())


if __name__ == "__main__":
    main()
