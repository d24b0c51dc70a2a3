"""The gate: is a reward fit to be trained on, judged by what a user has before the first run?

No ground truth is needed. Pictures of the goal (given, or drawn by the task) are compared with those of random play:

    margin      mean reward of the goal's pictures less that of the others
    AUROC       chance that a picture of the goal is paid more than another one
    controls    margins of the same reward with words that mean nothing here, and of the baseline's words as the goal
    noise       change of the reward, in the median, when a picture moves by one pixel

An encoder places any sentence somewhere, so that a nonsense goal has an AUROC, too, and often a high one. What tells
words that are understood from those is the margin, which is several times as large.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from sightline.config.recipe import ControlRecipe
from sightline.envs.frames import rgb_frame
from sightline.envs.making import EnvMaker
from sightline.envs.stepping import close_env
from sightline.envs.tasks import find_task
from sightline.evaluation.statistics import ranks
from sightline.lab.contenders import Contender
from sightline.lab.pictures import sorted_pictures
from sightline.lab.scoring import ReadyReward, build_rewards, moved_by_a_pixel
from sightline.lab.sources import random_play, state_sweep
from sightline.models.encoders import shared_encoders
from sightline.rewards.base import RewardModel
from sightline.rewards.config import reward_config

NONSENSE = (
    "a telephone call about nothing",
    "the opinion of a retired wizard",
    "eleven kinds of silence",
    "cheese for the parliament",
    "a map of somebody's dreams",
    "the rules of a forgotten card game",
    "pyjamas on a volcano",
    "an election among mushrooms",
)
"""Goals of the controls, which no simulator shows."""
GOAL_PICTURES = 32
OTHER_PICTURES = 128
EPISODES = 4
"""Pictures that are compared, at most, and episodes of random play that the others are from."""
SECONDS = 60.0
"""Time after which no more pictures of random play are looked at."""
LEAST_PICTURES = 4
"""Pictures of the goal below which nothing is said."""
LEAST_AUROC = 0.9
LEAST_TIMES = 1.5
"""How often the largest margin of a control the margin has to be."""
MOST_NOISE = 0.5
"""Noise, in units of the margin, from which on it is warned of."""
PASSED, WARNED, REFUSED, UNKNOWN = "passed", "warned", "refused", "unknown"


@dataclass(frozen=True)
class GatePictures:
    """Pictures that a check compares: uint8[G, H, W, 3] of the goal, and uint8[N, H, W, 3] of random play."""

    goal: np.ndarray
    other: np.ndarray


def check_reward(recipe: ControlRecipe, goal_pictures: Path | None = None, seed: int = 0) -> dict[str, Any]:
    """Check the reward of a completed recipe; the result is plain data with `verdict` and `reason`.

    Args:
        goal_pictures: folder with pictures of the goal; None has the task draw them, if it can.
        seed: of what is drawn and played.

    Raises:
        BadInput, RunFailed: the reward cannot be made, or the pictures not be read.
    """
    began = time.monotonic()
    with shared_encoders():
        (ready,) = build_rewards([Contender("own", recipe)])
        if "frames" not in ready.model.needs:
            return _verdict(
                UNKNOWN, f"reward.kind={recipe.reward.kind} looks at no pictures, so there is nothing to check"
            )
        pictures = gather_pictures(ready, goal_pictures, seed)
        found = judge_pictures(ready.model, list(_controls(recipe)), pictures)
    return found | {"seconds": round(time.monotonic() - began, 1)}


# -- pictures ----------------------------------------------------------------------------------------------------------


def gather_pictures(ready: ReadyReward, folder: Path | None, seed: int) -> GatePictures:
    """Pictures of the goal and of random play, as small as the reward reads them."""
    shrink = ready.model.shrink_frames
    task = find_task(ready.contender.recipe.env)
    goal: list[np.ndarray] = []
    if folder is not None:
        warnings: list[str] = []
        source = sorted_pictures(folder, "--goal-pictures", True, warnings.append)
        for episode in source.episodes(ready.make, shrink):
            assert episode.frames is not None, "pictures"
            goal += list(shrink(episode.frames))
    elif task.show_goal is not None:
        goal = _drawn(ready.make, task.show_goal, seed, shrink)
    other: list[np.ndarray] = []
    began = time.monotonic()
    for episode in random_play(task, EPISODES, seed).episodes(ready.make, shrink):
        assert episode.frames is not None, "it renders"
        frames = episode.frames
        success = np.zeros(len(frames), bool) if episode.success is None else episode.success
        other += list(frames[~success])
        # What random play happens to reach is as good as a picture that is drawn.
        if folder is None and task.show_goal is None:
            goal += list(frames[success])
        if time.monotonic() - began > SECONDS:
            break
    sweep = state_sweep(task, seed)
    if folder is None and task.show_goal is None and sweep is not None:
        for episode in sweep.episodes(ready.make, shrink):
            if episode.success is not None and episode.frames is not None:
                goal += list(episode.frames[episode.success])
    rng = np.random.default_rng(seed)
    return GatePictures(_some(goal, GOAL_PICTURES, rng), _some(other, OTHER_PICTURES, rng))


def _drawn(
    make: EnvMaker, show_goal: Callable[[Any, np.random.Generator], None], seed: int, shrink: Any
) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    frames = []
    env = make()
    try:
        for number in range(GOAL_PICTURES):
            env.reset(seed=seed + number)
            show_goal(env.unwrapped, rng)
            frames.append(shrink(rgb_frame(env)[None])[0])
    finally:
        close_env(env)
    return frames


def _some(frames: Sequence[np.ndarray], most: int, rng: np.random.Generator) -> np.ndarray:
    """Some of the frames, uint8[M, H, W, 3]; none is an empty array."""
    chosen = sorted(rng.permutation(len(frames))[:most])
    return np.stack([frames[place] for place in chosen]) if chosen else np.zeros((0, 1, 1, 3), np.uint8)


# -- judgement ---------------------------------------------------------------------------------------------------------


def _controls(recipe: ControlRecipe) -> Iterator[tuple[str, RewardModel]]:
    """The same reward with words that mean nothing here, and with the baseline's as its goal; none without words."""
    block = reward_config(recipe.reward)
    alpha = block.words_alpha
    for sentence in NONSENSE:
        control = block.reworded([sentence], recipe.baseline, alpha)
        if control is None:
            return
        yield sentence, control
    if recipe.baseline:
        baseline = block.reworded(recipe.baseline, (), None)
        if baseline is not None:
            yield "the baseline", baseline


def judge_pictures(
    model: RewardModel, controls: Sequence[tuple[str, RewardModel]], pictures: GatePictures
) -> dict[str, Any]:
    """The verdict on a reward model, by its rewards of the pictures, and those of its controls."""
    counts = {"goal_pictures": len(pictures.goal), "other_pictures": len(pictures.other)}
    if not len(pictures.other):
        return _verdict(UNKNOWN, "random play has no picture beside the goal's", **counts)
    other = model(pictures.other)
    if np.ptp(other) == 0 and len(other) > 1:
        return _verdict(REFUSED, f"the reward is the same for all {len(other)} pictures of random play", **counts)
    if len(pictures.goal) < LEAST_PICTURES:
        reason = (
            f"there are {len(pictures.goal)} pictures of the goal, and {LEAST_PICTURES} are needed; give some by "
            "--goal-pictures DIR"
        )
        return _verdict(UNKNOWN, reason, **counts)
    goal = model(pictures.goal)
    margin = float(goal.mean() - other.mean())
    auroc = _auroc(goal, other)
    margins = {
        name: float(control(pictures.goal).mean() - control(pictures.other).mean()) for name, control in controls
    }
    noise = float(np.median(np.abs(model(moved_by_a_pixel(pictures.other)) - other)))
    numbers: dict[str, Any] = {
        **counts,
        "margin": margin,
        "auroc": auroc,
        "noise": noise,
        "controls": margins,
    }
    return _verdict(*_judged(margin, auroc, noise, margins), **numbers)


def _judged(margin: float, auroc: float, noise: float, margins: dict[str, float]) -> tuple[str, str]:
    """Verdict and reason."""
    if auroc < LEAST_AUROC:
        return REFUSED, (
            f"pictures of the goal are paid more than those of random play in {100 * auroc:.0f} % of pairs, and "
            f"{100 * LEAST_AUROC:.0f} % are needed"
        )
    if margins:
        name = max(margins, key=lambda control: margins[control])
        if margin < LEAST_TIMES * margins[name]:
            words = name if name == "the baseline" else f"the words '{name}'"
            return REFUSED, (
                f"the goal's pictures are paid {margin:.3f} more than random play, and {words} would pay "
                f"{margins[name]:.3f} more: the reward does not rest on the goal's words"
            )
    if noise > margin:
        return (
            REFUSED,
            f"moving a picture by one pixel changes the reward by {noise:.3f}, more than the goal: {margin:.3f}",
        )
    if noise > MOST_NOISE * margin:
        return WARNED, f"moving a picture by one pixel changes the reward by {noise:.3f}, the goal by {margin:.3f}"
    control = f"; the best of {len(margins)} controls: {max(margins.values()):.3f}" if margins else ""
    return PASSED, (f"the goal's pictures are paid {margin:.3f} more than random play (AUROC {auroc:.2f}){control}")


def _auroc(goal: np.ndarray, other: np.ndarray) -> float:
    """The chance that a picture of the goal is paid more than another one, ties counting one half."""
    count = len(goal)
    above = ranks(np.concatenate([goal, other]))[:count].sum() - count * (count - 1) / 2
    return float(above / (count * len(other)))


def _verdict(verdict: str, reason: str, **numbers: Any) -> dict[str, Any]:
    return {"verdict": verdict, "reason": reason, **numbers}
