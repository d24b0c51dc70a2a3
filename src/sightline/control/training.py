"""Train a policy from a recipe, and go on exactly where a run was left."""

from __future__ import annotations

from typing import Any

from sightline.config.learners import OnPolicyLearner
from sightline.config.recipe import ControlRecipe
from sightline.control.control_setup import ControlSetup
from sightline.control.off_policy import OffPolicyTrainer
from sightline.control.on_policy import OnPolicyTrainer
from sightline.control.panel_sizes import collected_steps, learning_begins, learns_nothing
from sightline.control.trainer import ControlTrainer
from sightline.runs.folder import RunFolder
from sightline.runs.progress import Progress
from sightline.runs.stopping import StopRequests
from sightline.session import RunSession


def train(setup: ControlSetup, run: RunFolder, progress: Progress, resume: bool = False) -> dict[str, Any]:
    """Carry out a recipe in a run folder.

    Args:
        setup: the models, the environment and the recipe.
        run: the run folder; owned by this process (`sightline.runs.folder.owned_run`).
        progress: is told how it goes.
        resume: go on from the newest whole checkpoint; without one, start from the beginning.

    Returns:
        The content of the run's `result.json`: the chosen checkpoint on the test panel, and the untrained policy.

    Raises:
        Stopped: a signal asked for it; what can be resumed is saved.
        RunFailed: in one line; earlier checkpoints are whole.
    """
    with StopRequests() as stop:
        session = RunSession(setup.recipe, run, progress, stop, resume)
        for warning in setup.warnings:
            session.warn(warning)
        session.write_json("warnings.json", {"warnings": session.state.warnings})
        progress.say(length_of_run(setup.recipe))
        trainer = trainer_of(setup, session)
        places = trainer.places()
        if places is not None:
            progress.say(places)
        return session.carry_out(trainer)


def length_of_run(recipe: ControlRecipe) -> str:
    """What is about to be done, in a line: whole chunks are collected, which may be more steps than the recipe says."""
    chunk = recipe.learner.chunk * recipe.envs
    steps = collected_steps(recipe)
    line = f"training for {steps:,} steps"
    if steps != recipe.steps:
        line += f" (steps={recipe.steps:,}, in whole chunks of {chunk:,}: learner.chunk={recipe.learner.chunk} of "
        line += f"envs={recipe.envs})"
    if recipe.evaluation.every:
        line += f", evaluated every {max(recipe.evaluation.every, chunk):,}"
    if learns_nothing(recipe):
        line += (
            f"; nothing is learned, since learner.learning_starts={learning_begins(recipe):,}: raise steps, or lower it"
        )
    return line


def trainer_of(setup: ControlSetup, session: RunSession) -> ControlTrainer:
    """The trainer for the recipe's kind of learner."""
    if isinstance(setup.recipe.learner, OnPolicyLearner):
        return OnPolicyTrainer(setup, session)
    return OffPolicyTrainer(setup, session)
