"""Evaluate a run's chosen checkpoint, again or on another panel."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sightline.config.loading import for_control, load_recipe
from sightline.control.control_setup import ControlSetup, build_setup
from sightline.control.learners import greedy
from sightline.control.state import acting_spaces, load_policy
from sightline.errors import BadInput
from sightline.rewards.learned_state import learned_reward
from sightline.runs.folder import RunFolder
from sightline.runs.state import restoring
from sightline.session import chosen_checkpoint

EPISODES = ("episode_steps", "env_options")
"""Keys of a recipe that say which episodes are played, and nothing of what was learned."""


def evaluate_run(
    run: RunFolder, episodes: int, seed: int, trust: bool = False, overrides: Sequence[str] = ()
) -> dict[str, Any]:
    """Play a test panel with the run's chosen checkpoint.

    Args:
        run: a run with at least one evaluation.
        episodes: size of the panel.
        seed: which panel of that size.
        trust: whether code that the run's recipe names may be imported.
        overrides: of the recipe's `episode_steps` and `env_options`: other episodes than those of the run.

    Returns:
        Success rate and return with 95 % intervals, and the mean reward (`Episodes.summary`); and `chosen_step`.

    Raises:
        BadInput: the run has no whole checkpoint that was chosen yet, or names code of its own; or an override is of
            another key.
    """
    setup, step, folder = chosen_setup(run, trust, overrides)
    learner = load_policy(setup.recipe, folder, acting_spaces(setup.make))
    panel = setup.panel("test", episodes, seed)
    episodes_played = setup.play(greedy(learner), panel, setup.judge)
    assert episodes_played is not None, "nothing stops it"
    return {"chosen_step": step} | episodes_played.summary()


def chosen_setup(run: RunFolder, trust: bool = False, overrides: Sequence[str] = ()) -> tuple[ControlSetup, int, Path]:
    """The setup of a run, its reward model as it was when the chosen checkpoint was chosen; that checkpoint's step and
    folder.

    Raises:
        BadInput: the run has no whole checkpoint that was chosen yet, or names code of its own.
    """
    recipe = for_control(run.trusted_recipe(trust, asks=False))
    # Other keys would evaluate another policy or reward than the run's.
    for override in overrides:
        key = override.partition("=")[0]
        if key.partition(".")[0] not in EPISODES:
            raise BadInput(f"{key} is of the training; a run is evaluated with other {' and '.join(EPISODES)} alone")
    if overrides:
        recipe = for_control(load_recipe(recipe.model_dump(mode="json"), overrides, own=False))
    checkpoint = chosen_checkpoint(run)
    setup = build_setup(recipe, asks=False)
    if setup.reward_model.state_dict():
        with restoring(checkpoint.path):
            setup.reward_model.load_state_dict(learned_reward(checkpoint.path) or {})
    return setup, checkpoint.step, checkpoint.path
