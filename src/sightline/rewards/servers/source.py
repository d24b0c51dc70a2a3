"""What a reward server offers: the reward of a recipe, of a run, or a learned one in a folder."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from sightline.config.loading import for_control, load_recipe
from sightline.config.recipe import ControlRecipe
from sightline.envs.tasks import find_task
from sightline.errors import BadInput
from sightline.rewards.config import RewardContext, build_reward, resolved_words, reward_config
from sightline.rewards.learned.reward import CONFIG, IN_RUN, LearnedReward
from sightline.rewards.servers.serving import ServedReward
from sightline.runs.folder import RunFolder

NO_ENV = "rewards"
"""Name of the environment of a recipe that says only a reward. It is never made: a server steps nothing."""


def served_reward(source: str | None, overrides: Sequence[str], trust: bool) -> tuple[ServedReward, tuple[str, ...]]:
    """Load what is to be served, and warn of it.

    Args:
        source: a recipe, a run folder, or the folder of a learned reward; None for what `overrides` say alone.
        overrides: keys of a recipe.
        trust: whether code that a run's recipe names may be imported.

    Returns:
        The reward, and warnings, one line each.

    Raises:
        BadInput: there is none, or it is learned and the folder holds nothing learned yet.
    """
    folder = Path(source) if source is not None and Path(source).is_dir() else None
    if folder is not None and any((place / CONFIG).is_file() for place in (folder, folder / IN_RUN)):
        _refuse_overrides(overrides)
        return _learned(folder), ()
    if folder is not None:
        _refuse_overrides(overrides)
        run = RunFolder(folder)
        if not run.recipe_file.is_file():
            raise BadInput(f"'{folder}' holds neither a run nor a learned reward")
        return _of_recipe(for_control(run.trusted_recipe(trust, asks=False)))
    stated_env = [] if source is not None or any(key.startswith("env=") for key in overrides) else [f"env={NO_ENV}"]
    return _of_recipe(for_control(load_recipe(source, [*stated_env, *overrides])))


def _learned(folder: Path) -> ServedReward:
    """A learned reward, and its name with a digest of all that it has learned."""
    reward = LearnedReward.load(folder)
    content = hashlib.sha256()
    place = folder if (folder / CONFIG).is_file() else folder / IN_RUN
    for file in sorted(place.iterdir()):
        if file.is_file():
            content.update(file.read_bytes())
    size = None
    if "frames" in reward.needs and len(reward.seen_shape) == 3:
        size = (reward.seen_shape[0], reward.seen_shape[1])
    return ServedReward(reward, f"learned {content.hexdigest()[:12]}", size)


def _of_recipe(recipe: ControlRecipe) -> tuple[ServedReward, tuple[str, ...]]:
    """The reward that a recipe describes, with the words of its task where it has none."""
    block = reward_config(recipe.reward)
    if block.teaching is not None:
        raise BadInput(f"reward.kind={block.kind} is learned in a run; name the folder of one that has ended")
    words = {"goal": list(recipe.goal), "baseline": list(recipe.baseline)}
    if recipe.env != NO_ENV:
        words = resolved_words(recipe, find_task(recipe.env))
    goal = tuple(words["goal"])
    baseline = tuple(words["baseline"])
    if block.needs_words and not goal:
        raise BadInput(f"reward.kind={block.kind} needs a goal; say goal=…")
    setup = build_reward(block, RewardContext(goal, baseline, recipe.seed, False, _blank))
    facts = block.model_dump(mode="json") | {"goal": goal, "baseline": baseline}
    digest = hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:12]
    name = " ".join([block.kind, digest, *goal])
    # What the blank frame gives cause to doubt is not said.
    return ServedReward(setup.model, name[:500], setup.frame_size), setup.warnings


def _blank(size: tuple[int, int] | None, states: bool) -> np.ndarray:
    """A black frame in place of the environment's first, which a server does not have."""
    if states:
        raise BadInput("this reward is made for the states of one environment; serve the folder of a run that has it")
    return np.zeros((*(size or (64, 64)), 3), np.uint8)


def _refuse_overrides(overrides: Sequence[str]) -> None:
    if overrides:
        raise BadInput(f"{overrides[0].partition('=')[0]}=… is for a recipe; a folder is served as it is")
