"""Does the lab foretell training? Six rewards on three tasks, judged before training and then trained on.

    python benchmarks/foretells.py judge train [--tasks cartpole mountain-car humanoid-kneeling]

- `judge`: `sightline lab` of all six, on its own episodes.
- `train`: three seeds of each, 54 runs in all, one after the other; what is done is kept, and the same command goes on.
- `compare`: of all pairs of rewards of a task whose intervals of success do not overlap, the share in the order of
  the lab's AUROC by frames; a tie of it is wrong. Asked: at least 90 %. Made again after each part, too.

The measure was named before the first of these runs: AUROC by frames is known wherever an environment states success,
which the ground truth of a task's own reward is not (Mountain Car's pays each step alike until the end).

Success of a reward is the mean over its seeds. Its interval reaches from the lowest bound of a seed to the highest, so
that seeds that differ make it wide. Results go to benchmarks/results/foretells.json.
"""

from __future__ import annotations

import argparse
import itertools
import os
import tempfile
from pathlib import Path
from statistics import mean
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
# Runs and the lab find the reward of this file by its name.
os.environ["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])

import numpy as np

from running import folder_of, keep, kept, sightline, sized, train
from sightline.images import pixel_digest
from sightline.rewards.arrays import to_numpy
from sightline.rewards.base import Clip, RewardModel

FILE = "foretells.json"
SEEDS = sized((0, 1, 2), (0,))
LEAST_RIGHT = 0.9
WRONG_WORDS = {
    "cartpole": "pole lying on its side, far from upright",
    "mountain-car": "a car at the bottom of the valley",
    "humanoid-kneeling": "a humanoid robot standing upright",
}
"""What the same encoder can see as well, and is not the goal."""


class NoiseReward(RewardModel):
    """A number that says nothing: drawn at random for each picture, the same for equal ones."""

    def reward(self, clip: Clip) -> np.ndarray:
        """float32[T, N], from a normal distribution."""
        frames = to_numpy(clip.frames)
        rewards = np.zeros(clip.shape, np.float32)
        for place in np.ndindex(*clip.shape):
            seed = int(pixel_digest(frames[place])[:16], 16)
            rewards[place] = np.random.default_rng(seed).normal()
        return rewards


def rewards_of(task: str) -> dict[str, tuple[str, ...]]:
    """Name -> overrides of the task's recipe."""
    return {
        "own": (),
        "alpha 0": ("reward.alpha=0",),
        "alpha 1": ("reward.alpha=1",),
        "wrong words": (f"goal={WRONG_WORDS[task]}",),
        "another encoder": ("reward.encoder=bundled-deformables",),
        "noise": ("reward={kind: 'foretells:NoiseReward'}",),
    }


def judge(task: str) -> dict[str, Any]:
    """The lab's AUROC of each reward, with its interval."""
    options = []
    for name, overrides in rewards_of(task).items():
        options += ["--reward", "=".join([name, ",".join(overrides)]) if overrides else name]
    document = sightline("lab", task, *options, *sized((), ("--episodes", "1", "--play", "random")))
    judged = {}
    for name, reward in document["rewards"].items():
        judged[name] = {key: reward.get("auroc", {}).get(key) for key in ("value", "low", "high", "undefined")}
    return judged


def train_all(task: str, folder: Path) -> None:
    """Train on each reward with each seed, but for those whose success is known already."""
    for name, overrides in rewards_of(task).items():
        for seed in SEEDS:
            rows = kept(FILE, "train")
            key = f"{task}, {name}, {seed}"
            if key in rows:
                continue
            result = train(folder_of(f"{task} {name}"), (task, *overrides), seed, folder)
            success = {part: result[part] for part in ("success_rate", "ci_low", "ci_high")}
            keep(FILE, "train", kept(FILE, "train") | {key: success})


def compare(tasks: list[str]) -> dict[str, Any]:
    """How many pairs of rewards are told apart by training, and how many of those the lab put into the same order."""
    judged, trained = kept(FILE, "judge"), kept(FILE, "train")
    pairs = []
    for task in tasks:
        outcomes = {}
        for name in rewards_of(task):
            runs = [trained[key] for seed in SEEDS if (key := f"{task}, {name}, {seed}") in trained]
            if runs and judged.get(task, {}).get(name, {}).get("value") is not None:
                outcomes[name] = runs
        for first, second in itertools.combinations(outcomes, 2):
            low = {name: min(run["ci_low"] for run in outcomes[name]) for name in (first, second)}
            high = {name: max(run["ci_high"] for run in outcomes[name]) for name in (first, second)}
            if low[first] <= high[second] and low[second] <= high[first]:
                continue  # training does not tell them apart
            better, worse = sorted(
                (first, second), key=lambda name: mean(run["success_rate"] for run in outcomes[name]), reverse=True
            )
            is_right = judged[task][better]["value"] > judged[task][worse]["value"]
            pairs.append({"task": task, "better": better, "worse": worse, "foretold": is_right})
    right = sum(pair["foretold"] for pair in pairs)
    share = right / len(pairs) if pairs else None
    return {"pairs": pairs, "right": right, "of": len(pairs), "met": share is not None and share >= LEAST_RIGHT}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="+", choices=["judge", "train", "compare"])
    parser.add_argument("--tasks", nargs="+", default=sized(list(WRONG_WORDS), ["cartpole"]), choices=list(WRONG_WORDS))
    given = parser.parse_args()
    for part in given.parts:
        for task in given.tasks:
            if part == "judge":
                keep(FILE, "judge", kept(FILE, "judge") | {task: judge(task)})
                print(task, kept(FILE, "judge")[task], flush=True)
            elif part == "train":
                with tempfile.TemporaryDirectory() as folder:
                    train_all(task, Path(folder))
    found = compare(list(WRONG_WORDS))
    keep(FILE, "compare", found)
    print(f"{found['right']} of {found['of']} pairs foretold", found["pairs"])


if __name__ == "__main__":
    main()
