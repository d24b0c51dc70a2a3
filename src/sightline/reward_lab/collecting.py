"""Collect episodes as a data set: who plays, which rewards judge what is seen, and where it is written."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from sightline.config.loading import for_control, load_recipe
from sightline.config.recipe import ControlRecipe
from sightline.control.resolving import env_maker
from sightline.control.run_evaluation import chosen_setup
from sightline.datasets.episode import Episode
from sightline.datasets.lerobot_writing import LeRobotWriter
from sightline.datasets.pictures import PictureWriter
from sightline.datasets.stored import EpisodeWriter, StoredEpisode, is_successful
from sightline.envs.tasks import SuccessRule, find_task
from sightline.errors import BadInput, RunFailed, warn
from sightline.evaluation.agreement import share
from sightline.reward_lab.collection import Collection
from sightline.reward_lab.contenders import as_overrides, contenders, load_task
from sightline.reward_lab.scoring import build_rewards
from sightline.reward_lab.sources import Source, random_play, scripted_play, trained_play
from sightline.rewards.base import Clip, RewardModel
from sightline.runs.folder import RunFolder
from sightline.runs.stopping import StopRequests


@dataclass(frozen=True)
class Collected:
    """What was collected.

    Attributes:
        path: the folder.
        success: by the task's rule; None where the environment does not state it.
        signal_number: of the signal that ended it early; None if nothing did.
    """

    path: Path
    episodes: int
    steps: int
    source: str
    rewards: list[str]
    success: dict[str, Any] | None
    signal_number: int | None

    def document(self) -> dict[str, Any]:
        """All but the signal, as plain data."""
        numbers = {name: value for name, value in vars(self).items() if name != "signal_number"}
        return numbers | {"path": str(self.path)}


def collect(collection: Collection, show: Callable[[int], None] = lambda episodes: None) -> Collected:
    """Play episodes and write them as a data set, each as soon as it has ended.

    What was finished stays, whatever ends it.

    Args:
        show: is told the number of episodes so far.

    Raises:
        BadInput, RunFailed: in one line.
    """
    out = Path(collection.out).expanduser()
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise BadInput(f"--out: '{out}' is there already; name a folder that is new or empty")
    run = RunFolder(Path(collection.source))
    is_run = run.recipe_file.is_file()
    recipe = _recipe(collection, run if is_run else None)
    models, sizes = _rewards(collection, recipe, run if is_run else None)
    size = (collection.size, collection.size) if collection.size else max(filter(None, sizes), default=None)
    make = env_maker(recipe, size)
    source = _source(collection, recipe, run if is_run else None)
    writer: EpisodeWriter
    if collection.format == "pictures":
        writer = PictureWriter(out)
    else:
        writer = LeRobotWriter(out, pictures=collection.lossless, robot=recipe.env)
    rule = find_task(recipe.env).success
    instruction = recipe.goal[0] if recipe.goal else None
    steps = 0
    successes: list[bool | None] = []
    with StopRequests() as stop, writer:
        for index, episode in enumerate(source.episodes(make, lambda frames: frames)):
            stored = judged(replace(episode, instruction=instruction), models, rule)
            writer.add(replace(stored, index=index))
            steps += episode.steps
            successes.append(stored.succeeded)
            show(index + 1)
            if stop.requested():
                break
    known = [success for success in successes if success is not None]
    return Collected(
        out,
        len(successes),
        steps,
        source.name,
        list(models),
        vars(share(known)) if known else None,
        stop.signal_number,
    )


def _recipe(collection: Collection, run: RunFolder | None) -> ControlRecipe:
    """The recipe of what is played, with its words where it has any."""
    if run is None:
        recipe = load_task(str(collection.source), as_overrides(collection.overrides))
    else:
        recipe = for_control(run.trusted_recipe(collection.trust, asks=False))
        if collection.overrides:
            overrides = as_overrides(collection.overrides)
            recipe = for_control(load_recipe(recipe.model_dump(mode="json"), overrides, own=False))
    if recipe.goal:
        return recipe
    return recipe.model_copy(update={"goal": find_task(recipe.env).goal})


def _rewards(
    collection: Collection, recipe: ControlRecipe, run: RunFolder | None
) -> tuple[dict[str, RewardModel], list[Any]]:
    """The reward models by their names, and the sizes of frames that they ask for."""
    models: dict[str, RewardModel] = {}
    sizes: list[Any] = []
    named: dict[str, list[str]] = {}
    for name, stated in (collection.rewards or {}).items():
        if isinstance(stated, RewardModel):
            models[name] = stated
        else:
            named[name] = as_overrides(stated)
    # The run's own reward, with what it has learned.
    own = [name for name, overrides in named.items() if run is not None and not overrides]
    for name in own:
        assert run is not None, "only a run's reward is its own"
        setup = chosen_setup(run, collection.trust)[0].reward
        models[name] = setup.model
        sizes.append(setup.frame_size)
        del named[name]
    if not named:
        return models, sizes
    task = str(run.recipe_file) if run is not None else str(collection.source)
    for reward in build_rewards(contenders(task, as_overrides(collection.overrides), named)):
        if reward.make.options != env_maker(recipe, None).options:
            raise BadInput(f"reward '{reward.name}' has env_options of its own, and one set of pictures is drawn")
        for line in (*reward.setup.warnings, *reward.setup.doubts):
            warn(f"reward '{reward.name}': {line}")
        models[reward.name] = reward.model
        sizes.append(reward.setup.frame_size)
    return models, sizes


def _source(collection: Collection, recipe: ControlRecipe, run: RunFolder | None) -> Source:
    """Who plays.

    Raises:
        BadInput: a run's policy without a run, or a script where there is none.
    """
    task = find_task(recipe.env)
    player = collection.policy or ("random" if run is None else "run")
    if player == "random":
        return random_play(task, collection.episodes, collection.seed)
    if player == "scripted":
        source = scripted_play(task, env_maker(recipe, None), collection.episodes, collection.seed)
        if source is None:
            raise BadInput(f"'{recipe.env}' has no script that plays it; leave out --policy, for random play")
        return source
    if run is None:
        raise BadInput(f"'{collection.source}' is no run, and has no policy; say --policy random or scripted")
    return trained_play(run, recipe.env, collection.episodes, collection.seed, collection.trust)


def judged(episode: Episode, models: Mapping[str, RewardModel], rule: SuccessRule) -> StoredEpisode:
    """An episode with the rewards of all models, and whether it is a success by the task's rule.

    Raises:
        RunFailed: a model failed, or gave no finite number.
    """
    rewards: dict[str, np.ndarray] = {}
    reset_rewards: dict[str, float] = {}
    for name, model in models.items():
        try:
            rewards[name] = model(episode.clip())[:, 0]
            reset = _reset_reward(model, episode)
        except (BadInput, RunFailed) as error:
            raise type(error)(f"reward '{name}': {error}") from error
        if math.isfinite(reset):
            reset_rewards[name] = reset
    succeeded = None if episode.success is None else is_successful(episode.success, rule)
    return StoredEpisode.of(episode, succeeded=succeeded, rewards=rewards, reset_rewards=reset_rewards)


def _reset_reward(model: RewardModel, episode: Episode) -> float:
    """The reward of the state before the first step, as if it were reached; NaN where it cannot be judged by itself."""
    seen: dict[str, Any] = {}
    for need, array in (("frames", episode.reset_frame), ("states", episode.reset_state)):
        if need in model.needs:
            if array is None:
                return math.nan
            seen[need] = array[None, None]
    # What reads neither is of the step.
    if not seen:
        return math.nan
    return float(model(Clip(np.ones((1, 1), bool), instruction=episode.instruction, **seen))[0, 0])
