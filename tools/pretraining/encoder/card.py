"""Measure a trained encoder on held-out states, looks and wordings, and write its model card.

    PYTHONPATH=tools python -m pretraining.encoder.card FOLDER --command "…" --seconds 600

Numbers come from scenes drawn with a seed that training never uses. Wordings marked as held out in `captions.py` were
never trained on.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from pretraining.encoder.captions import CARTPOLE_ANGLES, LANGUAGE
from pretraining.encoder.humanoid import body_renderer, skeleton, to_actions
from pretraining.encoder.language import Language, Phrase, Scenes
from pretraining.encoder.scenes import HUMANOID, sample_scenes
from sightline.evaluation.statistics import wilson
from sightline.models.encoder_base import Encoder
from sightline.models.encoders import load_encoder
from sightline.rewards.zero_shot import ZeroShotReward
from sightline_tasks.control.cartpole import LOOKS as CARTPOLE_LOOKS
from sightline_tasks.control.cartpole import TRACK, draw_cartpole
from sightline_tasks.control.mountain_car import FLAG, LEFT, draw_mountain_car
from sightline_tasks.control.mountain_car import LOOKS as MOUNTAIN_CAR_LOOKS
from sightline_tasks.humanoid.body import JOINTS, ROOT
from sightline_tasks.humanoid.drawing import LOOKS as HUMANOID_LOOKS
from sightline_tasks.humanoid.drawing import draw_humanoid
from sightline_tasks.humanoid.env import CAMERAS
from sightline_tasks.humanoid.poses import POSES, place
from sightline_tasks.humanoid.scene import Scene
from sightline_tasks.humanoid.simulation import Simulation

HELD_OUT_SEED = 987_654_321
STATES = 400
"""Of each rank correlation."""
ROBOT, LYING = ("a humanoid robot",), "a humanoid robot lying on the floor"
GOAL, BASELINE = ("pole vertically upright on top of the cart",), ("pole and cart",)
HUMANOID_PICTURES: tuple[tuple[str, Scene, str], ...] = (
    ("drawn", "original", "front"),
    ("drawn", "original", "close"),
    ("drawn", "original", "side"),
    ("drawn", "original", "facing"),
    ("drawn", "textured", "front"),
    ("drawn", "textured", "close"),
    ("gl", "original", "close"),
    ("gl", "textured", "close"),
)
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
    scenes = sample_scenes(2000, encoder.image_size, rng, standard_looks=False)
    images = encoder.embed_frames(scenes.frames)
    toys = {world: phrases for world, phrases in LANGUAGE.phrases.items() if world != HUMANOID}
    said = {"toy worlds": toys, "humanoid": {HUMANOID: LANGUAGE.phrases[HUMANOID]}}
    return {
        "retrieval": {
            f"{name}, {which}": retrieval(encoder, LANGUAGE, scenes, images, phrases, held_out=which == "held out")
            for name, phrases in said.items()
            for which in ("of training", "held out")
        },
        "cartpole": {look: cartpole_correlations(encoder, look, GOAL, BASELINE) for look in sorted(CARTPOLE_LOOKS)},
        "cartpole, wordings held out": {
            LANGUAGE.plain(wording): cartpole_correlations(encoder, "plain", (LANGUAGE.plain(wording),), BASELINE)
            for wording in CARTPOLE_ANGLES[0].held_out
        },
        "cartpole, nonsense": {goal: cartpole_correlations(encoder, "plain", (goal,), BASELINE) for goal in NONSENSE},
        "mountain car": {look: mountain_car_correlation(encoder, look) for look in sorted(MOUNTAIN_CAR_LOOKS)},
        "humanoid": {
            f"{look}, {scene}, {camera}": humanoid_matching(encoder, look, scene, camera)
            for look, scene, camera in HUMANOID_PICTURES
        },
    }


def retrieval(
    encoder: Encoder,
    language: Language,
    scenes: Scenes,
    images: np.ndarray,
    said: Mapping[int, Sequence[Phrase]],
    held_out: bool,
) -> dict[str, float]:
    """How often the picture that a sentence likes best is one of which it is true, and the mean average precision.

    A sentence with a vague word counts as true within the middle width of its region.
    """
    first, precisions, chance = [], [], []
    for world, phrases in said.items():
        for phrase in phrases:
            truth = (scenes.world == world) & phrase.region.middle(scenes)
            for wording in phrase.held_out if held_out else phrase.wordings:
                similarity = images @ encoder.embed_texts([language.plain(wording)])[0]
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


def cartpole_correlations(
    encoder: Encoder, look: str, goal: tuple[str, ...], baseline: tuple[str, ...]
) -> dict[str, float]:
    """Rank correlation of the reward with -|angle|, within 0.5 rad and over the circle, over random cart positions."""
    rng = np.random.default_rng(HELD_OUT_SEED + 1)
    angles = np.concatenate([rng.uniform(-0.5, 0.5, STATES), rng.uniform(-np.pi, np.pi, STATES)])
    positions = rng.uniform(-0.9 * TRACK, 0.9 * TRACK, len(angles))
    size = (encoder.image_size, encoder.image_size)
    frames = [draw_cartpole(x, a, size, CARTPOLE_LOOKS[look]) for x, a in zip(positions, angles, strict=True)]
    rewards = ZeroShotReward(goal, baseline, encoder=encoder)(np.stack(frames))
    return {
        "near": rank_correlation(rewards[:STATES], -np.abs(angles[:STATES])),
        "circle": rank_correlation(rewards[STATES:], -np.abs(angles[STATES:])),
    }


def mountain_car_correlation(encoder: Encoder, look: str) -> float:
    """Rank correlation of the reward with the nearness to the flag."""
    positions = np.random.default_rng(HELD_OUT_SEED + 2).uniform(LEFT, FLAG, STATES)
    size = (encoder.image_size, encoder.image_size)
    frames = np.stack([draw_mountain_car(x, size, MOUNTAIN_CAR_LOOKS[look]) for x in positions])
    rewards = ZeroShotReward(FLAG_GOAL, FLAG_BASELINE, encoder=encoder)(frames)
    return rank_correlation(rewards, positions)


@cache
def humanoid_states(count: int) -> tuple[np.ndarray, np.ndarray]:
    """States from simulations, and which pose each is in by the geometric checks.

    Another generator than that of training: bodies begin in a pose of the package or above the floor, are driven to a
    pose with noise, and move, tip over and fall by the true physics.

    Returns:
        float64[N, 24], `count` of each pose; and int[N]: the index of the only pose of `POSES` that holds, or their
        number for lying.
    """
    rng = np.random.default_rng(HELD_OUT_SEED + 3)
    bones, names = skeleton(), list(POSES)
    simulation = Simulation(1, "gymnasium", "position")
    joints = simulation.model.actuator_trnid[:, 0] - 1
    found: dict[int, list[np.ndarray]] = {i: [] for i in range(len(names) + 1)}
    while min(map(len, found.values())) < count:
        wanted = [name for i, name in enumerate(names) if len(found[i]) < count] or names
        pose = POSES[wanted[int(rng.integers(len(wanted)))]]
        simulation.reset([0], [rng])
        start = place(bones, pose.angles, pose.lean) if rng.random() < 0.8 else bones.rest()
        start[ROOT:] += rng.normal(0, np.radians(5), JOINTS)
        simulation.data[0].qpos[:] = start
        targets = place(bones, pose.angles)[ROOT:][joints] + rng.normal(0, np.radians(8), JOINTS)
        actions = to_actions(simulation.model, targets)
        for _ in range(int(rng.integers(1, 40))):
            simulation.step(actions[None])
        posture = simulation.posture
        holds = [bool(other.holds(posture, bones)[0]) for other in POSES.values()]
        holds[0] &= not any(holds[1:])  # whoever raises its arms stands, too
        lies = bool(posture.up[0] < 0.4 and posture.head[0, 2] < 0.5)
        if any(holds) or lies:
            label = holds.index(True) if any(holds) else len(names)
            if len(found[label]) < count:
                found[label].append(simulation.qpos[0].copy())
    return np.concatenate([np.stack(each) for each in found.values()]), np.repeat(list(found), count)


def humanoid_matching(encoder: Encoder, look: str, scene: Scene, camera: str, count: int = 40) -> dict[str, Any]:
    """How well sentences match the pictures of simulated bodies.

    Returns:
        `matched`: share of pictures whose most similar sentence, of the eight of the tasks and one for lying, is the
        right one; `by pose`, the same for each; `auc`: how often the reward of a pose's sentence ranks a picture of it
        above one of another pose.
    """
    states, labels = humanoid_states(count)
    if look == "gl":
        renderer = body_renderer(scene, encoder.image_size)
        pictures = np.stack([renderer.render(state, CAMERAS[camera]) for state in states])
    else:
        size, radii = (encoder.image_size, encoder.image_size), skeleton().radii
        ends = skeleton().posture(states).ends
        pictures = np.stack([draw_humanoid(each, radii, CAMERAS[camera], size, HUMANOID_LOOKS[scene]) for each in ends])
    sentences = [*(pose.goal for pose in POSES.values()), LYING]
    said = (encoder.embed_frames(pictures) @ encoder.embed_texts(sentences).T).argmax(axis=1)
    posed = labels < len(POSES)
    areas = {}
    for i, pose in enumerate(POSES.values()):
        rewards = ZeroShotReward((pose.goal,), ROBOT, encoder=encoder)(pictures[posed])
        areas[pose.name] = auc(rewards, labels[posed] == i)
    return {
        "matched": float((said == labels).mean()),
        "pictures": len(labels),
        "by pose": {name: float((said[labels == i] == i).mean()) for i, name in enumerate([*POSES, "lying"])},
        "auc": areas,
    }


def auc(rewards: np.ndarray, positive: np.ndarray) -> float:
    """Area under the ROC curve: share of pairs in which what is positive, bool[N], has the higher reward, [N]."""
    return float((rewards[positive][:, None] > rewards[~positive]).mean())


def interval(correlation: float, count: int) -> tuple[float, float]:
    """95 % interval of a rank correlation (Bonett and Wright, 2000)."""
    middle, error = np.arctanh(correlation), np.sqrt((1 + correlation**2 / 2) / (count - 3))
    return float(np.tanh(middle - 1.96 * error)), float(np.tanh(middle + 1.96 * error))


def correlation(value: float, count: int = STATES) -> str:
    """A rank correlation over so many states, with its interval."""
    low, high = interval(value, count)
    return f"{value:+.2f} [{low:+.2f}, {high:+.2f}]"


def share(value: float, count: int) -> str:
    """A share of so many, with its interval."""
    low, high = wilson(round(value * count), count)
    return f"{value:.2f} [{low:.2f}, {high:.2f}]"


def card(numbers: dict[str, Any], command: str, seconds: float, parameters: int, size: int) -> str:
    """The model card, in Markdown."""

    def correlations(rows: dict[str, dict[str, float]]) -> str:
        cells = ((name, correlation(row["near"]), correlation(row["circle"])) for name, row in rows.items())
        return "\n".join(f"| {' | '.join(row)} |" for row in cells)

    retrieved = "\n".join(
        f"| {name} | {row['sentences']} | {share(row['first is true'], row['sentences'])} "
        f"| {row['mean average precision']:.2f} | {row['chance']:.2f} |"
        for name, row in numbers["retrieval"].items()
    )
    flags = "\n".join(f"| {name} | {correlation(value)} |" for name, value in numbers["mountain car"].items())
    bodies = numbers["humanoid"]
    matched = "\n".join(
        f"| {name} | {share(row['matched'], row['pictures'])} | "
        f"{' | '.join(f'{each:.2f}' for each in row['by pose'].values())} |"
        for name, row in bodies.items()
    )
    ranked = "\n".join(
        f"| {name} | {' | '.join(f'{auc:.3f}' for auc in row['auc'].values())} |" for name, row in bodies.items()
    )
    poses = " | ".join(POSES)
    rule = "|---" * (len(POSES) + 1) + "|"
    return f"""# The bundled image-text encoder

A tiny dual encoder in open_clip's format: a modified ResNet for 64x64 pictures and a two-layer causal transformer over
a vocabulary of {len(LANGUAGE.vocabulary())} words, with a common space of 128 numbers. {parameters:,} parameters,
{size / 1e6:.1f} MB.

**For trying Sightline on a laptop, offline, in minutes. It knows four small worlds, was taught the very poses of the
humanoid's tasks, and is not for science.**

## Training

- Pictures: fresh random states of a cart with a pole, a car on a mountain, a rod on an axle and a humanoid, drawn by us
  in random colours, proportions, backgrounds, textures and sizes; a third of them (of humanoids, 70 %) in the looks of
  our own tasks. One in seven humanoids is rendered by MuJoCo. Humanoids are drawn part by part, legs and arms each from
  a range between two examples or anywhere within the joints' limits; no simulation and no check of a pose is used.
- Sentences: made from the state, in many wordings with synonyms, articles and prefixes; a vague word such as "upright"
  is the truer the nearer the state is to its centre. Sentences of unknown words are true of every picture.
- Loss: SigLIP's sigmoid loss, where the label says how true the sentence is of the picture.
- Command: `{command}`; {seconds:.0f} s on two shared CPU cores (one thread).
- Statistics of its pictures, by which others are told apart: `PYTHONPATH=tools python -m pretraining.encoder.taught
  --worlds bundled`.

## Held-out numbers

States drawn with another seed, printed by `pretraining.encoder.card`, with 95 % intervals. Sentences among pictures in
random looks, never those of our tasks:

| sentences | count | best picture is true | mean average precision | chance |
|---|---|---|---|---|
{retrieved}

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

The humanoid's postures come from simulations and are told apart by the geometric checks of the tasks. Share of pictures
whose most similar sentence, of the eight tasks' and "{LYING}", is the right one:

| picture | all | {poses} | lying |
|---|---{rule}
{matched}

How often a pose's reward (baseline "{ROBOT[0]}") ranks a picture of it above one of another pose:

| picture | {poses} |
{rule}
{ranked}

## What it cannot do

- Any picture other than such drawings: photographs, other robots and other three-dimensional scenes are noise to it.
- Any word outside its vocabulary: it maps all of them to one unknown token, and Sightline warns. All sentences of
  unknown words mean the same to it. A sentence of known words about another world (a car, for a picture of a pole) is
  no nonsense to it but a comparison, and may correlate with anything.
- Grammar beyond its templates, negation, numbers, colours, motion.
- Far from upright the reward is not monotone: it rises a little when the pole hangs straight down, for "straight up"
  and "straight down" share words and shapes.
"""


def write_card(
    description: str | None,
    measure: Callable[[Encoder], dict[str, Any]],
    card: Callable[[dict[str, Any], str, float, int, int], str],
) -> None:
    """The command of an encoder's card: measure the encoder in a folder, and write its numbers and its card there.

    Args:
        description: of the command.
        measure: gives all held-out numbers.
        card: the text, from these, the training command and its seconds, the parameters and the bytes.
    """
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--command", required=True, help="the training command, to be quoted")
    parser.add_argument("--seconds", type=float, required=True, help="how long training took")
    arguments = parser.parse_args()
    folder: Path = arguments.folder
    numbers = measure(load_encoder(f"local-dir:{folder}", device="cpu"))
    weights = folder / "open_clip_model.safetensors"
    text = card(numbers, arguments.command, arguments.seconds, parameters_of(weights), weights.stat().st_size)
    (folder / "metrics.json").write_text(json.dumps(numbers, indent=2) + "\n")
    (folder / "README.md").write_text(text)
    print(text)


def parameters_of(weights: Path) -> int:
    """How many numbers a safetensors file holds."""
    from safetensors import safe_open

    with safe_open(str(weights), framework="np") as tensors:
        return sum(int(np.prod(tensors.get_slice(name).get_shape())) for name in tensors.keys())  # noqa: SIM118


if __name__ == "__main__":
    write_card(__doc__, measure, card)
