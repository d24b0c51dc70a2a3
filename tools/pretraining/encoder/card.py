"""Measure a trained encoder on held-out states, looks and wordings, and write its model card.

    PYTHONPATH=tools python -m pretraining.encoder.card FOLDER --command "…" --seconds 600

Numbers come from scenes drawn with a seed that training never uses. Wordings marked as held out in `captions.py` were
never trained on.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np

from pretraining.encoder.captions import ALL_PHRASES, CARTPOLE_ANGLES, Phrase, plain_wording
from pretraining.encoder.scenes import Scenes, sample_scenes
from sightline.envs.control.cartpole import LOOKS as CARTPOLE_LOOKS
from sightline.envs.control.cartpole import TRACK, draw_cartpole
from sightline.envs.control.mountain_car import FLAG, LEFT, draw_mountain_car
from sightline.envs.control.mountain_car import LOOKS as MOUNTAIN_CAR_LOOKS
from sightline.models.encoders import Encoder, load_encoder
from sightline.rewards.zero_shot import ZeroShotReward

HELD_OUT_SEED = 987_654_321
GOAL, BASELINE = ("pole vertically upright on top of the cart",), ("pole and cart",)
FLAG_GOAL = ("a car at the peak of the mountain, next to the yellow flag",)
FLAG_BASELINE = ("a car in the mountain",)
NONSENSE = (
    "a bowl of soup on the moon",
    "quarterly earnings report",
    "purple elephants dancing",
    "seven wonders of chess",
    "midnight jazz trumpet",
)


def rank_correlation(a: np.ndarray, b: np.ndarray) -> float:
    """Spearman's rank correlation (ties by average rank)."""
    ranks = [np.unique(values, return_inverse=True)[1] for values in (a, b)]
    means = [np.array([np.argsort(np.argsort(r, kind="stable"))[r == v].mean() for v in r]) for r in ranks]
    return float(np.corrcoef(np.stack(means))[0, 1])


def measure(encoder: Encoder) -> dict[str, Any]:
    """All held-out numbers of the card."""
    rng = np.random.default_rng(HELD_OUT_SEED)
    scenes = sample_scenes(2000, encoder.image_size, rng, standard_look=0.0)
    images = encoder.embed_frames(scenes.frames)
    return {
        "retrieval": {
            "wordings of training": retrieval(encoder, scenes, images, held_out=False),
            "wordings held out": retrieval(encoder, scenes, images, held_out=True),
        },
        "cartpole": {look: cartpole_correlations(encoder, look, GOAL, BASELINE) for look in sorted(CARTPOLE_LOOKS)},
        "cartpole, wordings held out": {
            plain_wording(wording): cartpole_correlations(encoder, "plain", (plain_wording(wording),), BASELINE)
            for wording in CARTPOLE_ANGLES[0].held_out
        },
        "cartpole, nonsense": {goal: cartpole_correlations(encoder, "plain", (goal,), BASELINE) for goal in NONSENSE},
        "mountain car": {look: mountain_car_correlation(encoder, look) for look in sorted(MOUNTAIN_CAR_LOOKS)},
    }


def retrieval(encoder: Encoder, scenes: Scenes, images: np.ndarray, held_out: bool) -> dict[str, float]:
    """How often the picture that a sentence likes best is one of which it is true, and the mean average precision.

    A sentence with a vague word counts as true within the middle width of its region.
    """
    first, precisions, chance = [], [], []
    for world, phrases in ALL_PHRASES.items():
        for phrase in phrases:
            truth = (scenes.world == world) & _middle(phrase, scenes)
            for wording in phrase.held_out if held_out else phrase.wordings:
                similarity = images @ encoder.embed_texts([plain_wording(wording)])[0]
                ordered = truth[np.argsort(-similarity)]
                hits = np.flatnonzero(ordered)
                first.append(bool(ordered[0]))
                precisions.append(float(np.mean(np.arange(1, len(hits) + 1) / (hits + 1))))
                chance.append(float(truth.mean()))
    return {
        "sentences": len(first),
        "first is true": float(np.mean(first)),
        "mean average precision": float(np.mean(precisions)),
        "chance": float(np.mean(chance)),
    }


def _middle(phrase: Phrase, scenes: Scenes) -> np.ndarray:
    region = phrase.region
    assert region is not None
    distance = np.abs(getattr(scenes, region.quantity) - region.centre)
    if region.quantity == "angle":
        distance = np.minimum(distance, 2 * np.pi - distance)
    return np.asarray(distance <= np.sqrt(region.nearest * region.farthest))


def cartpole_correlations(
    encoder: Encoder, look: str, goal: tuple[str, ...], baseline: tuple[str, ...]
) -> dict[str, float]:
    """Rank correlation of the reward with -|angle|, within 0.5 rad and over the circle, over random cart positions."""
    rng = np.random.default_rng(HELD_OUT_SEED + 1)
    angles = np.concatenate([rng.uniform(-0.5, 0.5, 400), rng.uniform(-np.pi, np.pi, 400)])
    positions = rng.uniform(-0.9 * TRACK, 0.9 * TRACK, len(angles))
    size = (encoder.image_size, encoder.image_size)
    frames = [draw_cartpole(x, a, size, CARTPOLE_LOOKS[look]) for x, a in zip(positions, angles, strict=True)]
    rewards = ZeroShotReward(goal, baseline, encoder=encoder)(np.stack(frames))
    return {
        "near": rank_correlation(rewards[:400], -np.abs(angles[:400])),
        "circle": rank_correlation(rewards[400:], -np.abs(angles[400:])),
    }


def mountain_car_correlation(encoder: Encoder, look: str) -> float:
    """Rank correlation of the reward with the nearness to the flag."""
    positions = np.random.default_rng(HELD_OUT_SEED + 2).uniform(LEFT, FLAG, 400)
    size = (encoder.image_size, encoder.image_size)
    frames = np.stack([draw_mountain_car(x, size, MOUNTAIN_CAR_LOOKS[look]) for x in positions])
    rewards = ZeroShotReward(FLAG_GOAL, FLAG_BASELINE, encoder=encoder)(frames)
    return rank_correlation(rewards, positions)


def card(numbers: dict[str, Any], command: str, seconds: float, parameters: int, size: int) -> str:
    """The model card, in Markdown."""
    seen, unseen = numbers["retrieval"]["wordings of training"], numbers["retrieval"]["wordings held out"]

    def correlations(rows: dict[str, dict[str, float]]) -> str:
        return "\n".join(f"| {name} | {row['near']:+.2f} | {row['circle']:+.2f} |" for name, row in rows.items())

    flags = "\n".join(f"| {name} | {value:+.2f} |" for name, value in numbers["mountain car"].items())
    return f"""# The bundled image-text encoder

A tiny dual encoder in open_clip's format: a modified ResNet for 64x64 pictures and a two-layer causal transformer over
a vocabulary of whole words, with a common space of 128 numbers. {parameters:,} parameters, {size / 1e6:.1f} MB.

**For trying Sightline on a laptop, offline, in minutes. It knows three toy worlds and about eighty words, and is not
for science.**

## Training

- Pictures: fresh random states of a cart with a pole, a car on a mountain, and a rod on an axle, drawn by us in random
  colours, proportions, backgrounds, textures and sizes; a third of them in the looks of our own tasks.
- Sentences: made from the state, in many wordings with synonyms, articles and prefixes; a vague word such as "upright"
  is true of a region whose width is drawn anew each time. Sentences of unknown words are true of every picture.
- Loss: SigLIP's sigmoid loss, where the label says whether the sentence is true of the picture.
- Command: `{command}`; {seconds:.0f} s on two shared CPU cores (one thread).

## Held-out numbers

States drawn with another seed, looks never seen (random ones), printed by `pretraining.encoder.card`.

| sentences | count | best picture is true | mean average precision | chance |
|---|---|---|---|---|
| wordings of training | {seen["sentences"]} | {seen["first is true"]:.2f} | {seen["mean average precision"]:.2f} | \
{seen["chance"]:.2f} |
| wordings held out | {unseen["sentences"]} | {unseen["first is true"]:.2f} | {unseen["mean average precision"]:.2f} | \
{unseen["chance"]:.2f} |

Rank correlation of the reward (goal, baseline "pole and cart", alpha 0.5) with the nearness of the pole to upright,
within 0.5 rad and over the whole circle, over random cart positions:

| CartPole look, goal of the recipe | within 0.5 rad | circle |
|---|---|---|
{correlations(numbers["cartpole"])}

| CartPole, wordings never trained on | within 0.5 rad | circle |
|---|---|---|
{correlations(numbers["cartpole, wordings held out"])}

| CartPole, nonsense: a policy should learn nothing useful from these | within 0.5 rad | circle |
|---|---|---|
{correlations(numbers["cartpole, nonsense"])}

| MountainCar look | with the nearness to the flag |
|---|---|
{flags}

## What it cannot do

- Any picture other than such drawings: photographs, robots and three-dimensional scenes are noise to it.
- Any word outside its vocabulary: it maps all of them to one unknown token, and Sightline warns. All sentences of
  unknown words mean the same to it. A sentence of known words about another world (a car, for a picture of a pole) is
  no nonsense to it but a comparison, and may correlate with anything.
- Grammar beyond its templates, negation, numbers, colours, motion.
- Far from upright the reward is not monotone: it rises a little when the pole hangs straight down, for "straight up"
  and "straight down" share words and shapes.
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--command", required=True, help="the training command, to be quoted")
    parser.add_argument("--seconds", type=float, required=True, help="how long training took")
    arguments = parser.parse_args()
    folder: Path = arguments.folder
    numbers = measure(load_encoder(f"local-dir:{folder}", device="cpu"))
    weights = folder / "open_clip_model.safetensors"
    text = card(numbers, arguments.command, arguments.seconds, _parameters(weights), weights.stat().st_size)
    (folder / "metrics.json").write_text(json.dumps(numbers, indent=2) + "\n")
    (folder / "README.md").write_text(text)
    print(text)


def _parameters(weights: Path) -> int:
    from safetensors import safe_open

    with safe_open(str(weights), framework="np") as tensors:
        return sum(int(np.prod(tensors.get_slice(name).get_shape())) for name in tensors.keys())  # noqa: SIM118


if __name__ == "__main__":
    main()
