"""Train a policy from a recipe, and go on exactly where a run was left."""

from __future__ import annotations

from typing import Any

from sightline.config.learners import OnPolicyLearner
from sightline.control.building import ControlSetup
from sightline.control.off_policy import OffPolicyTrainer
from sightline.control.on_policy import OnPolicyTrainer
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
        return session.carry_out(trainer_of(setup, session))


def trainer_of(setup: ControlSetup, session: RunSession) -> ControlTrainer:
    """The trainer for the recipe's kind of learner."""
    on_policy = isinstance(setup.recipe.learner, OnPolicyLearner)
    return OnPolicyTrainer(setup, session) if on_policy else OffPolicyTrainer(setup, session)
