"""Does a language model that others trained learn to read by RL, and what does a turn of it cost on a CPU?

    python benchmarks/language_models.py learn --model ./smollm2 --seeds 0 1 2
    python benchmarks/language_models.py turns --model ./smollm2      # a quarter of an hour on one core
    python benchmarks/language_models.py prefixes --model ./smollm2   # five minutes

- `learn`: whole `sightline train numberline-smollm2` commands, about an hour of one core each, which are resumed where
  they were cut off: games won without a mistake on the test panel, before and after RL, by the words of the game, of
  other states, and without any. `--rewards others` trains the control: everything is the same, but the rewards are
  those that the same actions earn in another game, of which the model is told nothing. `--game` takes another game
  with the same settings.
- `turns`: first turns of NumberLine in words are sampled and learned from by PPO, with float32 and bfloat16, whole
  weights and LoRA, whose adapters are merged while replies are sampled, or not. Fresh adapters add nothing, so merging
  would round nothing: these have weights as after some updates. `mismatch` is the mean of |p of the learner / p of the
  sampler - 1| over tokens, `ratio` the mean of a reply's.
- `prefixes`: the same in float32, with LoRA on queries and values, where what all prompts of a batch begin with is read
  once, and where it is read with each.

Results go to benchmarks/results/language_models.json and to stdout.
"""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np

from running import keep, kept, loaded, sightline, sized
from sightline.agents.agent_setup import build
from sightline.agents.resolving import resolve
from sightline.agents.rollouts import EpisodeTask
from sightline.config.loading import for_agent
from sightline.envs.games.contract import Observation
from sightline.evaluation.statistics import wilson
from sightline_tasks.games.number_line import NumberLine

FILE = "language_models.json"

# -- learning ----------------------------------------------------------------------------------------------------------


class OthersRewards(NumberLine):
    """NumberLine with the rewards that the same actions earn in another game, which is not described.

    Rewards follow the actions by the same rule, and are as frequent; only their relation to the words is gone.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._other = NumberLine(**options)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        first = super().reset(seed=seed)
        # Drawn from the game's own generator: another deal in every episode, and the same one when it is repeated.
        self._other.reset(seed=int(self.np_random.integers(2**31)))
        return first

    def step(self, action: np.int64) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        observation, _, terminated, truncated, info = super().step(action)
        _, reward, won, out_of_time, _ = self._other.step(action)
        if won or out_of_time:
            self._other.reset()
        return observation, reward, terminated, truncated, info


REWARDS: dict[str, tuple[str, ...]] = {"own": (), "others": ("env=language_models:OthersRewards",)}
"""Overrides by whose rewards are paid."""
GAMES: dict[str, tuple[str, ...]] = {
    "numberline": (),
    # Chance decides more than the action there, so more games are played.
    "blackjack": ("env=blackjack", "replies.max_tokens=48", "evaluation.test_episodes=1000"),
    # Deals that need * are as frequent as those that need +. By the game's own rewards it soon closes every formula at
    # once, which costs least. Which of thirteen actions is legal, and which sign is right, takes many small steps on
    # the expert's replies; RL at the recipe's rate undid what fewer steps had taught (docs/log.md).
    "ezpoints": (
        "env=ezpoints",
        "replies.max_tokens=64",
        "replies.penalty=0.2",
        "reward.kind=success",
        "rollouts.train_env_options={deals: pairs}",
        "policy.lora={rank: 16, alpha: 32, targets: all-linear}",
        "warm_start.samples=2048",
        "warm_start.mistakes=0",
        "warm_start.batch=8",
        "warm_start.learning_rate=0.0005",
        "update.learning_rate=0.00002",
        "update.micro_batch=16",
        "steps=900",
    ),
    # Six moves are enough; whoever does not read would walk on for a hundred.
    "frozenlake": ("env=frozenlake", "replies.max_tokens=64", "episode_steps=20"),
}
"""Overrides of the recipe by game. Facts of these games are longer than those of NumberLine."""
LOOKS = {"before RL": "untrained", "words of other states": "shuffled", "no words": "blank", "random play": "random"}


def learn(model: str, game: str, rewards: str, seeds: list[int], folder: Path) -> None:
    """Part `learn`: train, or go on, and keep a row for each seed, apart by game, rewards and kind of processor."""
    import torch

    processor = "GPU" if torch.cuda.is_available() else "CPU"
    part = f"learn {game} on a {processor}, rewards: {rewards}"
    for seed in seeds:
        run = folder / f"{game}-{rewards}-{seed}"
        told = ("numberline-smollm2", f"policy.model={model}", f"seed={seed}", *GAMES[game], *REWARDS[rewards])
        result = sightline("train", *told, "--run-dir", str(run), "--resume-or-start")
        row = {"after RL": faultless(result)}
        for name, key in LOOKS.items():
            row[name] = faultless(result[key])
        row |= {"chosen step": result["chosen_step"], "seconds": round(result["seconds"])}
        # Read again: another process may have kept other rows meanwhile.
        keep(FILE, part, kept(FILE, part) | {f"seed {seed}": row})
        print(f"{part}, seed {seed}: {row}", flush=True)


def faultless(numbers: dict[str, Any]) -> str | None:
    """Games won without a mistake, in per cent, with their interval of 95 %; None where none was played.

    Where a game counts no mistakes, those that are won.
    """
    share = numbers.get("clean", numbers.get("success_rate"))
    if share is None:
        return None
    episodes = int(numbers["episodes"])
    low, high = wilson(round(share * episodes), episodes)
    return f"{100 * share:.0f} % [{100 * low:.0f}, {100 * high:.0f}]"


# -- turns -------------------------------------------------------------------------------------------------------------

TOLD = ("numberline-smollm2", "warm_start=null", "threads=1", "device=cpu", "update.learning_rate=1e-12")
ALL = ("policy.lora.rank=8", "policy.lora.alpha=16", "policy.lora.targets=all-linear")
TWO = ("policy.lora.rank=8", "policy.lora.alpha=16", "policy.lora.targets=[q_proj, v_proj]")
SETTINGS: dict[str, tuple[tuple[str, ...], bool]] = {
    "float32, whole weights": (("policy.lora=null", "policy.dtype=float32"), False),
    "float32, LoRA on all": ((*ALL, "policy.dtype=float32"), False),
    "float32, LoRA on all, merged": ((*ALL, "policy.dtype=float32"), True),
    "float32, LoRA on q and v": ((*TWO, "policy.dtype=float32"), False),
    "float32, LoRA on q and v, merged": ((*TWO, "policy.dtype=float32"), True),
    "bfloat16, LoRA on all": ((*ALL, "policy.dtype=bfloat16"), False),
    "bfloat16, LoRA on all, merged": ((*ALL, "policy.dtype=bfloat16"), True),
    "bfloat16, LoRA on q and v": ((*TWO, "policy.dtype=bfloat16"), False),
    "bfloat16, LoRA on q and v, merged": ((*TWO, "policy.dtype=bfloat16"), True),
}
"""Overrides, and whether adapters are merged."""
SPREAD = 1e-3
"""Standard deviation of the weights of adapters, those that begin at zero."""


def measured(
    overrides: tuple[str, ...], is_merged: bool, episodes: int, shares_prefixes: bool = True
) -> dict[str, Any]:
    """Sample one turn of each episode and learn from it; processor seconds of a turn, and the mismatch."""
    import torch

    setup = build(resolve(for_agent(loaded(*TOLD, "episode_steps=1", *overrides))))
    vlm = setup.vlm
    vlm.merges_adapters = is_merged
    vlm.shares_prefixes = vlm.shares_prefixes and shares_prefixes
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, weight in vlm.model.named_parameters():
            if "lora_B" in name:
                weight.normal_(0, SPREAD, generator=generator)
    setup.engine.prepare(vlm)
    learner = setup.learner()
    worker = setup.rollout_worker(training=True)
    sampler = setup.sampler(training=True)
    worker.play(sampler, [EpisodeTask(1000)])  # what is computed once
    start = time.process_time()
    played = worker.play(sampler, [EpisodeTask(seed) for seed in range(episodes)])
    sampled = time.process_time() - start
    start = time.process_time()
    compared = learner.compute_values(played)
    learned = learner.learn(played, learner.compute_advantages(played), 0, 0.0)
    turns = sum(len(episode.turns) for episode in played)
    replies = [len(turn.sample.ids) for episode in played for turn in episode.turns]
    return {
        "sampled, CPU s a turn": round(sampled / turns, 3),
        "learned, CPU s a turn": round((time.process_time() - start) / turns, 3),
        "tokens of a reply": round(sum(replies) / turns, 1),
        "mismatch": compared["mismatch"] / compared["mismatch_tokens"],
        "mismatch_max": compared["mismatch_max"],
        "ratio": learned["update/ratio"],
        "ratio_max": learned["update/ratio_max"],
    }


def turns(model: str, episodes: int) -> None:
    """Part `turns`."""
    rows: dict[str, Any] = {}
    for name, (overrides, is_merged) in SETTINGS.items():
        # The bundled model's replies are longer, in tokens, than the recipe's limit.
        further = () if model != "bundled" else ("replies.max_tokens=64",)
        rows[name] = measured((f"policy.model={model}", *overrides, *further), is_merged, episodes)
        print(name, rows[name], flush=True)
        keep(FILE, "turns", {"model": Path(model).name, "episodes": episodes, "rows": rows})


def prefixes(model: str, episodes: int) -> None:
    """Part `prefixes`."""
    overrides, is_merged = SETTINGS["float32, LoRA on q and v, merged"]
    rows: dict[str, Any] = {}
    for game in ("numberline", "frozenlake"):
        for name, shares in (("read once", True), ("read with each", False)):
            told = (f"policy.model={model}", *overrides, *GAMES[game])
            rows[f"{game}, {name}"] = measured(told, is_merged, episodes, shares)
            print(game, name, rows[f"{game}, {name}"], flush=True)
            keep(FILE, "prefixes", {"model": Path(model).name, "episodes": episodes, "rows": rows})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=["learn", "turns", "prefixes"])
    parser.add_argument("--model", default="bundled", help="a folder, such as tools/smollm2.py makes")
    parser.add_argument(
        "--episodes", type=int, default=sized(16, 2), help="so many are sampled and learned, but for `learn`"
    )
    parser.add_argument("--seeds", type=int, nargs="+", default=[0], help="of `learn`")
    parser.add_argument("--game", choices=list(GAMES), default="numberline", help="of `learn`")
    parser.add_argument("--rewards", choices=list(REWARDS), default="own", help="of `learn`")
    parser.add_argument("--runs", type=Path, default=Path("runs/language-models"), help="folder of the runs of `learn`")
    given = parser.parse_args()
    if given.part == "turns":
        turns(given.model, given.episodes)
    elif given.part == "prefixes":
        prefixes(given.model, given.episodes)
    else:
        learn(given.model, given.game, given.rewards, given.seeds, given.runs)


if __name__ == "__main__":
    main()
