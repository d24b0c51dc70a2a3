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
from sightline.envs.tasks import find_task
from sightline.errors import BadInput
from sightline.evaluation.statistics import Groups
from sightline.models.encoders import shared_encoders
from sightline.reports.lab_page import LEAST_AUROC
from sightline.reward_lab.changes import moved_by_a_pixel
from sightline.reward_lab.contenders import Contender
from sightline.reward_lab.measures.success_detection import area_under_curve
from sightline.reward_lab.pictures import sorted_pictures
from sightline.reward_lab.scoring import ReadyReward, build_rewards
from sightline.reward_lab.sources import Source, random_play, shown_goals, state_sweep
from sightline.rewards.base import Clip, RewardModel, RewardStream
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
MOVED_PICTURES = 32
EPISODES = 4
"""Pictures that are compared, at most; those that are moved by a pixel; and episodes of random play that are played."""
SECONDS = 50.0
"""Time for playing, and time for reading pictures: a large model on a small machine reads fewer of them."""
TIMED_PICTURES = 4
LEAST_PICTURES = 4
"""Pictures of the goal below which nothing is said."""
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


def check_reward(
    recipe: ControlRecipe, goal_pictures: Path | None = None, seed: int = 0, warn: Callable[[str], None] = print
) -> dict[str, Any]:
    """Check the reward of a completed recipe; the result is plain data with `verdict` and `reason`, and the `warnings`
    that its training would begin with.

    Args:
        goal_pictures: folder with pictures of the goal; None has the task draw them, if it can.
        seed: of what is drawn and played.
        warn: is told of pictures of the folder that cannot be read, or not be judged, in a line.

    Raises:
        BadInput, RunFailed: the reward cannot be made, or the pictures not be read.
    """
    began = time.monotonic()
    with shared_encoders():
        (ready,) = build_rewards([Contender("own", recipe)])
        if ready.model.needs != {"frames"}:
            return _verdict(
                UNKNOWN, f"reward.kind={recipe.reward.kind} is not of pictures alone, which is all that is checked"
            )
        if not ready.model.judges_stills:
            return _verdict(
                UNKNOWN,
                "the reward is of several pictures in their order, and single ones are all that is checked; "
                "'sightline lab' plays whole episodes",
            )
        pictures = gather_pictures(ready, goal_pictures, seed, warn)
        document = judge_pictures(ready.model, list(_controls(recipe)), pictures)
    document["warnings"] = [*ready.setup.warnings, *ready.setup.doubts]
    return document | {"seconds": round(time.monotonic() - began, 1)}


# -- pictures ----------------------------------------------------------------------------------------------------------


def gather_pictures(ready: ReadyReward, folder: Path | None, seed: int, warn: Callable[[str], None]) -> GatePictures:
    """Pictures of the goal and of random play, as small as the reward reads them."""
    task = find_task(ready.contender.recipe.env)
    own_goals: list[Source | None] = [shown_goals(task, GOAL_PICTURES, seed)]
    if folder is not None:
        own_goals = [sorted_pictures(folder, "--goal-pictures", True, warn)]
    elif own_goals == [None]:
        # What is reached at random is as good as what is drawn.
        own_goals = [state_sweep(task, seed), random_play(task, EPISODES, seed)]
    goal = [frames for source in own_goals if source is not None for frames in _of(source, ready, True)]
    if folder is not None and len({frame.shape for frame in goal}) == 1:
        for line in ready.model.doubts(np.stack(goal)):
            warn(f"--goal-pictures: {line}")
    other = list(_of(random_play(task, EPISODES, seed), ready, False))
    rng = np.random.default_rng(seed)
    return GatePictures(_some(goal, GOAL_PICTURES, rng), _some(other, OTHER_PICTURES, rng))


def _of(source: Source, ready: ReadyReward, success: bool) -> Iterator[np.ndarray]:
    """Frames uint8[H, W, 3] of a source that are a success, or those that are none, as far as the time goes."""
    shrink = ready.model.shrink_frames
    deadline = time.monotonic() + SECONDS
    for episode in source.episodes(ready.make, shrink):
        frames = episode.frames
        assert frames is not None, "a source of pictures"
        if not source.plays:
            frames = shrink(frames)
        is_success = np.zeros(len(frames), bool) if episode.success is None else episode.success
        yield from frames[is_success == success]
        if time.monotonic() > deadline:
            return


def _some(frames: Sequence[np.ndarray], most: int, rng: np.random.Generator) -> np.ndarray:
    """Some of the frames in an order drawn at random, uint8[M, H, W, 3]; none is an empty array.

    Raises:
        BadInput: they are of several sizes.
    """
    if not frames:
        return np.zeros((0, 1, 1, 3), np.uint8)
    if len({frame.shape for frame in frames}) > 1:
        raise BadInput("--goal-pictures: the pictures are of several sizes; make them alike")
    return np.stack([frames[place] for place in rng.permutation(len(frames))[:most]])


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
    """The verdict on a reward model, by its rewards of the pictures, and those of its controls.

    Args:
        controls: with their names; they score the features that the model embeds.
    """
    goal, other = _affordable(model, pictures)
    counts: dict[str, Any] = {"goal_pictures": len(goal), "other_pictures": len(other)}
    if not len(other):
        return _verdict(UNKNOWN, "random play has no picture beside the goal's", **counts)
    names = [name for name, _ in controls]
    models = [model, *(control for _, control in controls)]
    of_other = _rewards(models, other)
    if np.ptp(of_other[0]) == 0 and len(other) > 1:
        return _verdict(REFUSED, f"the reward is the same for all {len(other)} pictures of random play", **counts)
    if len(goal) < LEAST_PICTURES:
        reason = (
            f"there are {len(goal)} pictures of the goal, and {LEAST_PICTURES} are needed; give some by "
            "--goal-pictures DIR"
        )
        return _verdict(UNKNOWN, reason, **counts)
    of_goal = _rewards(models, goal)
    # The reward's own margin, and then those of its controls.
    margin, *of_controls = (of_goal.mean(axis=1) - of_other.mean(axis=1)).tolist()
    margins = dict(zip(names, of_controls, strict=True))
    auroc = _auroc(of_goal[0], of_other[0])
    of_moved = _rewards([model], moved_by_a_pixel(other[:MOVED_PICTURES]))[0]
    noise = float(np.median(np.abs(of_moved - of_other[0, :MOVED_PICTURES])))
    numbers = counts | {"margin": margin, "auroc": auroc, "noise": noise, "controls": margins}
    verdict, reason = _judged(margin, auroc, noise, margins)
    return _verdict(verdict, reason, **numbers)


def _affordable(model: RewardModel, pictures: GatePictures) -> tuple[np.ndarray, np.ndarray]:
    """As many pictures as the model can read in time, of the goal and of random play."""
    sample = pictures.other[:TIMED_PICTURES]
    if not len(sample):
        return pictures.goal, pictures.other
    model(sample[:1])  # the first call of a model takes longer
    began = time.monotonic()
    model(sample)
    seconds = (time.monotonic() - began) / len(sample)
    share = min(1.0, SECONDS / (seconds * (GOAL_PICTURES + OTHER_PICTURES + MOVED_PICTURES)))
    goals = max(LEAST_PICTURES, round(share * len(pictures.goal)))
    others = max(LEAST_PICTURES, round(share * len(pictures.other)))
    return pictures.goal[:goals], pictures.other[:others]


def _rewards(models: Sequence[RewardModel], frames: np.ndarray) -> np.ndarray:
    """float32[models, N] rewards of N frames by models that score the features of the first."""
    clip = Clip.of_states(frozenset({"frames"}), frames)
    features = RewardStream(models[0]).embed(clip)
    return np.stack([RewardStream(model).score(features, clip)[0] for model in models])


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
    rewards = np.concatenate([goal, other])
    shows_goal = (np.arange(len(rewards)) < len(goal)).astype(np.float64)
    area = area_under_curve(Groups(rewards), shows_goal, np.ones(len(rewards)))
    assert area is not None, "there are pictures of both kinds"
    return area


def _verdict(verdict: str, reason: str, **numbers: Any) -> dict[str, Any]:
    return {"verdict": verdict, "reason": reason, **numbers}
