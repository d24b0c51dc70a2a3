"""What readers of RL4VLM look for: a CNN that learns the same games, the weight of thoughts, and replies without them.

    python benchmarks/rl4vlm.py cnn [--games numberline ezpoints points24 blackjack] [--seeds 3]
    python benchmarks/rl4vlm.py weights thoughts [--games numberline] [--seeds 3]

- `cnn`: a policy of Stable-Baselines3's `CnnPolicy` (three convolutions, some million weights, no words) learns each
  game from its picture and its own reward by PPO. Panels are those of agents, though under other hashes.
- `weights`: agents with another weight of the tokens that are not the action in the policy loss (RL4VLM's lambda). The
  KL term, which the published method lacks, is left out, or it would hold those tokens at any weight.
- `thoughts`: the same agents with thoughts before the action and without, both after a short warm start that teaches
  the form alone (random actions).

All are `sightline sweep` over some seeds, in which nothing else of a game's recipe changes but how long is learned and
tested: runs of before are kept, those cut off are resumed. "Fine-Tuning Large Vision-Language Models as Decision-Making
Agents via Reinforcement Learning", Zhai et al., NeurIPS 2024, tables 1 and 2 and section 6.

Results go to benchmarks/results/rl4vlm.json and to stdout.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

from running import keep, kept, percent, sightline, sized
from sightline.runs.folder import RunFolder

FILE = "rl4vlm.json"
STEPS = {"numberline": 4096, "ezpoints": 4096, "points24": 4096, "blackjack": 4096}
"""Of a CNN; the games' recipes for agents end after 1 600 to 240 000 turns."""
CNN = ("reward.kind=ground_truth", "learner.algorithm=PPO", "videos=false", "tensorboard=false")
OPTIONS = {
    "ezpoints": ("training_options.deals=pairs",),
    "points24": ("env_options.held_out=true", "training_options.held_out=false"),
}
"""Of a game, as in its recipe for agents: more deals that need *; hands that are kept for the test."""
TURNS = {"numberline": 2000, "ezpoints": 32000}
"""Of agents: about as many as a game's recipe learns in."""
AGENT = ("evaluation.episodes=64", "evaluation.test_episodes=100", "tensorboard=false", "videos=false")
FORM = ("warm_start.samples=3000", "warm_start.mistakes=1")
KEPT = (
    *("success_rate", "ci_low", "ci_high", "clean", "success_any", "return", "episodes", "panel", "truthful_replies"),
    *("illegal", "unparsable", "chosen_step", "seconds"),
)


def cnn(game: str, seeds: int, folder: Path) -> dict[str, Any]:
    """The command of a game's CNN, and its runs by seed."""
    steps = STEPS[game]
    panels = (f"evaluation.every={steps}", "evaluation.episodes=20", "evaluation.test_episodes=100")
    told = [f"env={game}", *CNN, f"steps={steps}", *OPTIONS.get(game, ()), *panels]
    return _swept(told, "seed", seeds, folder)


def weights(game: str, seeds: int, folder: Path) -> dict[str, Any]:
    """The command of a game's agents, and the runs of each weight by seed."""
    told = [
        game,
        *_turns(game),
        *AGENT,
        "update.kl_thoughts=0",
        "update.thought_weight=" + sized("0,0.2,0.5,0.8,1", "0,1"),
    ]
    return _swept(told, "update.thought_weight", seeds, folder)


def thoughts(game: str, seeds: int, folder: Path) -> dict[str, Any]:
    """The command of a game's agents, and the runs with and without thoughts by seed."""
    told = [
        game,
        *_turns(game),
        *AGENT,
        *FORM,
        "update.kl_thoughts=0",
        "update.thought_weight=0.5",
        "replies.max_tokens=96",
    ]
    return _swept([*told, "replies.thoughts=true,false"], "replies.thoughts", seeds, folder)


def _turns(game: str) -> tuple[str, ...]:
    """Turns of an agent; those of its recipe, where none are given."""
    return (f"steps={TURNS[game]}",) if game in TURNS else ()


PARTS = {"cnn": cnn, "weights": weights, "thoughts": thoughts}


def _swept(told: Sequence[str], varied: str, seeds: int, folder: Path) -> dict[str, Any]:
    """Carry a sweep over seeds out.

    Returns:
        `command`; and `rows`: value of the varied key -> its runs, those of before among them.
    """
    command = ["sweep", *told, f"seed=0..{seeds - 1}"]
    rows: dict[str, list[dict[str, Any]]] = {}
    for cell in sightline(*command, "--processes", "1", "--run-dir", str(folder))["cells"]:
        run = RunFolder(Path(cell["run"]))
        result = json.loads((run.path / "result.json").read_text())
        values = dict(part.split("=", 1) for part in cell["cell"].split(","))
        numbers = {key: result[key] for key in KEPT if result.get(key) is not None}
        numbers["before"] = {key: result["untrained"].get(key) for key in ("success_rate", "clean", "unparsable")}
        looks = {look: result[look].get("clean") for look in ("blank", "shuffled") if result.get(look)}
        row = "CNN" if varied == "seed" else values[varied]
        rows.setdefault(row, []).append({"seed": int(values["seed"])} | numbers | looks)
    return {"command": shlex.join(["sightline", *command]), "rows": rows}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="+", choices=list(PARTS))
    parser.add_argument("--games", nargs="+", choices=list(STEPS), default=["numberline"])
    parser.add_argument("--seeds", type=int, default=sized(3, 1), help="how many, from 0 on")
    parser.add_argument("--folder", type=Path, default=Path("runs/rl4vlm"), help="where the runs go")
    given = parser.parse_args()
    for part in given.parts:
        for game in given.games:
            measured = PARTS[part](game, given.seeds, given.folder / part / game)
            keep(FILE, part, kept(FILE, part) | {game: measured})
            for row, runs in measured["rows"].items():
                won = percent([(run["success_rate"], run["ci_low"], run["ci_high"]) for run in runs])
                clean = " ".join(f"{100 * run.get('clean', run['success_rate']):.0f}" for run in runs)
                print(f"{part}, {game}, {row}: won {won} %, without mistakes {clean} %", flush=True)


if __name__ == "__main__":
    main()
