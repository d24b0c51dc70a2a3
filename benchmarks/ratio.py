"""Is the importance ratio one as long as no weight has changed? In bfloat16 that is worth a look on a GPU.

    python benchmarks/ratio.py
    python benchmarks/ratio.py --overrides policy.model=Qwen/Qwen3-VL-2B-Instruct policy.freeze=[vision]

Episodes of NumberLine are played and learned from at a learning rate of 1e-12, with whole weights and with adapters:
how far the sampler is from the learner (`mismatch`, for each token), and the largest ratio of a reply.

Results go to benchmarks/results/ratio.json and to stdout.
"""

from __future__ import annotations

import argparse
import os
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

from running import keep, loaded, sized
from sightline.agents.agent_setup import build
from sightline.agents.resolving import resolve
from sightline.agents.rollouts import EpisodeTask
from sightline.config.loading import for_agent

FROZEN = ("update.learning_rate=1e-12", "update.thought_weight=1", "update.kl_thoughts=0", "algorithm.kind=grpo")
LEARNERS = {"whole weights": (), "adapters": ("policy.lora.rank=8", "policy.dtype=bfloat16")}


def measured(overrides: list[str]) -> dict[str, Any]:
    """Play and learn once, and return what became of the ratios."""
    setup = build(resolve(for_agent(loaded("numberline", *FROZEN, *overrides))))
    tasks = [EpisodeTask(seed, member) for seed in range(sized(8, 2)) for member in range(4)]
    played = setup.rollout_worker(training=True).play(setup.sampler(training=True), tasks)
    setup.engine.prepare(setup.vlm)
    learner = setup.learner()
    compared = learner.compute_values(played)
    learned = learner.learn(played, learner.compute_advantages(played), 0, 0.0)
    return {
        "device": str(setup.vlm.device),
        "mismatch_max": compared["mismatch_max"],
        "ratio": learned["update/ratio"],
        "ratio_max": learned["update/ratio_max"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="Is the importance ratio one as long as no weight has changed?")
    parser.add_argument("--overrides", nargs="*", default=[], help="recipe keys for both learners")
    overrides = parser.parse_args().overrides
    results = {name: measured([*keys, *overrides]) for name, keys in LEARNERS.items()}
    for name, numbers in results.items():
        print(name, numbers)
    keep("ratio.json", "ratio", results)


if __name__ == "__main__":
    main()
