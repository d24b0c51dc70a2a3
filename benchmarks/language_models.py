"""What a turn costs a language model on a CPU, and how far its sampler is from its learner.

    python benchmarks/language_models.py --model ./smollm2        # a quarter of an hour on one core

First turns of NumberLine in words are sampled and learned from by PPO, with float32 and bfloat16, whole weights and
LoRA, whose adapters are merged while replies are sampled, or not. Fresh adapters add nothing, so merging would round
nothing: these have weights as after some updates. `mismatch` is the mean of |p of the learner / p of the sampler - 1|
over tokens, `ratio` the mean of a reply's.

Results go to benchmarks/results/language_models.json and to stdout.
"""

from __future__ import annotations

import argparse
import os
import time
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

from running import keep, loaded, sized
from sightline.agents.agent_setup import build
from sightline.agents.resolving import resolve
from sightline.agents.rollouts import EpisodeTask
from sightline.config.loading import for_agent

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


def measured(overrides: tuple[str, ...], is_merged: bool, episodes: int) -> dict[str, Any]:
    """Sample one turn of each episode and learn from it; processor seconds of a turn, and the mismatch."""
    import torch

    setup = build(resolve(for_agent(loaded(*TOLD, "episode_steps=1", *overrides))))
    vlm = setup.vlm
    vlm.merges_adapters = is_merged
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


def main() -> None:
    parser = argparse.ArgumentParser(description="What a turn costs a language model on a CPU, and its mismatch.")
    parser.add_argument("--model", default="bundled", help="a folder, such as tools/smollm2.py makes")
    parser.add_argument("--episodes", type=int, default=sized(16, 2), help="turns that are sampled and learned")
    arguments = parser.parse_args()
    rows: dict[str, Any] = {}
    for name, (overrides, is_merged) in SETTINGS.items():
        # The bundled model's replies are longer, in tokens, than the recipe's limit.
        further = () if arguments.model != "bundled" else ("replies.max_tokens=64",)
        rows[name] = measured((f"policy.model={arguments.model}", *overrides, *further), is_merged, arguments.episodes)
        print(name, rows[name], flush=True)
        keep("language_models.json", "turns", {"model": arguments.model, "episodes": arguments.episodes, "rows": rows})


if __name__ == "__main__":
    main()
