"""Measure the encoder of cloth, rope and water on states that the physics made, and write its model card.

    PYTHONPATH=tools python -m pretraining.encoder.deformables_card FOLDER --command "…" --seconds 600

Pictures come from the tasks themselves: random play, the scripted solution and the solution with noise, from random
starts. Training has seen no state of a simulation.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from pretraining.encoder.card import (
    HELD_OUT_SEED,
    NONSENSE,
    correlation,
    rank_correlation,
    retrieval,
    share,
    write_card,
)
from pretraining.encoder.deformables import LANGUAGE, sample_scenes
from sightline.envs.tasks import Task
from sightline.models.encoder_base import Encoder
from sightline.rewards.zero_shot import ZeroShotReward
from sightline_tasks.deformables import cloth, rope, water
from sightline_tasks.deformables.cloth import FoldCloth
from sightline_tasks.deformables.rope import StraightenRope
from sightline_tasks.deformables.soft_body import SoftBody
from sightline_tasks.deformables.water import PassWater

STATES, PAIRS = 240, 2000
"""Pictures of each row, and pairs of them."""
CLOSE = 0.1
"""Difference of the ground truth, as a share of its range, below which a pair is close."""
TASKS: dict[str, tuple[Task, Callable[..., SoftBody], int, tuple[str, ...], tuple[str, ...]]] = {
    "fold-cloth": (cloth.TASK, FoldCloth, 1, tuple(cloth.CLOTHS), tuple(cloth.CAMERAS)),
    "straighten-rope": (rope.TASK, StraightenRope, 40, tuple(rope.ROPES), tuple(rope.CAMERAS)),
    "pass-water": (water.TASK, PassWater, 50, tuple(water.WATERS), tuple(water.CAMERAS)),
}
"""Task, environment, actions of an episode, looks and cameras."""


def played(name: str) -> tuple[list[np.ndarray], np.ndarray, np.ndarray]:
    """States of a task, with their ground truth, float[N], and success, bool[N].

    A third each of random play, of the scripted solution, and of that with noise.
    """
    _, make, actions, _, _ = TASKS[name]
    env, rng = make(), np.random.default_rng(1)
    states: list[np.ndarray] = []
    rewards: list[float] = []
    success: list[bool] = []
    episode = 0
    while len(states) < STATES:
        env.reset(seed=HELD_OUT_SEED + episode)
        for step in range(actions):
            noise = (2.0, 0.0, rng.exponential(0.15))[episode % 3]
            action = np.clip(env.solution() + noise * rng.normal(size=env.action_space.shape), -1, 1)
            _, reward, terminated, _, info = env.step(action)
            # Of long episodes one state in ten, and the last.
            if actions == 1 or (step + episode) % 10 == 0 or step == actions - 1:
                states.append(env.state)
                rewards.append(reward)
                success.append(info["success"])
            if terminated:
                break
        episode += 1
    return states, np.array(rewards), np.array(success)


def pictures(name: str, states: Sequence[np.ndarray], look: str, camera: str, size: int) -> np.ndarray:
    """uint8[N, size, size, 3] of a task's states, as the task draws them."""
    env = TASKS[name][1](look=look, camera=camera, render_mode="rgb_array", render_size=(size, size))
    env.reset(seed=0)
    frames = []
    for state in states:
        env.state = state
        frames.append(env.render())
    env.close()
    return np.stack(frames)


def judged(rewards: np.ndarray, truth: np.ndarray, success: np.ndarray) -> dict[str, float]:
    """How well rewards rank states.

    Returns:
        `rank`, rank correlation with the ground truth; `pairs` and `close pairs`, share of random pairs, and of those
        of nearly equal truth, of which the better is preferred; `auc`, how often a success is ranked above a failure.
    """
    first, second = np.random.default_rng(2).integers(len(truth), size=(2, 20 * PAIRS))
    differ = truth[first] != truth[second]
    close = differ & (np.abs(truth[first] - truth[second]) < CLOSE * np.ptp(truth))
    right = (rewards[first] > rewards[second]) == (truth[first] > truth[second])
    found = {
        "rank": rank_correlation(rewards, truth),
        "pairs": float(right[differ][:PAIRS].mean()),
        "close pairs": float(right[close][:PAIRS].mean()),
    }
    if 0 < success.sum() < len(success):
        found["auc"] = float((rewards[success][:, None] > rewards[~success]).mean())
    return found


def measure(encoder: Encoder) -> dict[str, Any]:
    """All numbers of the card."""
    scenes = sample_scenes(1500, encoder.image_size, np.random.default_rng(HELD_OUT_SEED), standard_looks=False)
    images = encoder.embed_frames(scenes.frames)
    numbers: dict[str, Any] = {
        "retrieval": {
            which: retrieval(encoder, LANGUAGE, scenes, images, LANGUAGE.phrases, held_out=which == "held out")
            for which in ("of training", "held out")
        },
        "ranking": {},
        "nonsense": {},
    }
    for name, (task, _, _, looks, cameras) in TASKS.items():
        states, truth, success = played(name)
        for look, camera in [(look, cameras[0]) for look in looks] + [(looks[0], camera) for camera in cameras[1:]]:
            frames = pictures(name, states, look, camera, encoder.image_size)
            reward = ZeroShotReward(task.goal, task.baseline, encoder=encoder)
            numbers["ranking"][f"{name}, {look}, {camera}"] = judged(reward(frames), truth, success)
            if (look, camera) == (looks[0], cameras[0]):
                said = [ZeroShotReward(goal, task.baseline, encoder=encoder)(frames) for goal in NONSENSE]
                numbers["nonsense"][name] = [judged(rewards, truth, success)["pairs"] for rewards in said]
    return numbers


def card(numbers: dict[str, Any], command: str, seconds: float, parameters: int, size: int) -> str:
    """The model card, in Markdown."""
    retrieved = "\n".join(
        f"| {name} | {row['sentences']} | {share(row['first is true'], row['sentences'])} "
        f"| {row['mean average precision']:.2f} | {row['chance']:.2f} |"
        for name, row in numbers["retrieval"].items()
    )
    ranked = "\n".join(
        f"| {name} | {correlation(row['rank'], STATES)} | {100 * row['pairs']:.0f} % "
        f"| {100 * row['close pairs']:.0f} % | {format(row['auc'], '.3f') if 'auc' in row else '–'} |"
        for name, row in numbers["ranking"].items()
    )
    nonsense = "\n".join(
        f"| {name} | {', '.join(f'{100 * value:.0f} %' for value in values)} |"
        for name, values in numbers["nonsense"].items()
    )
    close = [row["close pairs"] for name, row in numbers["ranking"].items() if not name.startswith("pass-water")]
    return f"""# The bundled encoder of cloth, rope and water

A tiny dual encoder in open_clip's format, as the other bundled one: a modified ResNet for 64x64 pictures and a
two-layer causal transformer over a vocabulary of {len(LANGUAGE.vocabulary())} words. {parameters:,} parameters,
{size / 1e6:.1f} MB. Its name is `bundled-deformables`.

**For trying Sightline on a laptop, offline, in minutes. It knows the pictures of three tasks of ours, was taught their
goals' very words, and is not for science.**

## Training

- Pictures: a cloth folded, dragged or lifted anywhere, a rope in a random curve, balls in a glass and on the table, all
  laid by geometry: no state of a simulation, no policy and no reward of a task is used. MuJoCo draws them with the
  tasks' models, in all of their colours, from about their cameras; 60 % in the first look, from the first camera.
- Sentences: made from the state, in many wordings; the truer, the nearer the state is to what they say.
- Command: `{command}`; {seconds:.0f} s on one shared CPU core.
- Statistics of its pictures, by which others are told apart: `PYTHONPATH=tools python -m pretraining.encoder.taught
  --worlds deformables`.

## Held-out numbers

Sentences among pictures drawn with another seed:

| sentences | count | best picture is true | mean average precision | chance |
|---|---|---|---|---|
{retrieved}

States that the physics made, in each task (random play, the script, the script with noise): rank correlation of the
reward of the task's own words with the ground truth; share of pairs of which the better one is preferred, which is what
a teacher is asked; the same for pairs whose truth differs by less than a tenth of its range; and how often a success is
ranked above a failure.

| task, look, camera | rank correlation | pairs | close pairs | AUC of success |
|---|---|---|---|---|
{ranked}

Pairs of which the better is preferred under five sentences of unknown words; 50 % is no preference. All such sentences
mean the same to the encoder, and less than 50 % is a preference for the worse:

| task | nonsense |
|---|---|
{nonsense}

## What it cannot do

- Any picture that is not of these three tasks: photographs, hands, other cloths and glasses are noise to it.
- Any word outside its vocabulary. Colours mean nothing to it: "blue balls" are any balls.
- Judge fine differences of a cloth or a rope: of close pairs it prefers the better one in
  {100 * min(close):.0f} to {100 * max(close):.0f} % (see above).
"""


if __name__ == "__main__":
    write_card(__doc__, measure, card)
