"""Evaluate what a run has chosen, again or on another panel."""

from __future__ import annotations

from typing import Any

from sightline.control.snapshot import load_policy
from sightline.control.training import greedy, prepare
from sightline.errors import BadInput
from sightline.evaluation.episodes import play_panel
from sightline.runs.checkpoints import CheckpointStore
from sightline.runs.folder import RunFolder


def evaluate_run(run: RunFolder, episodes: int, seed: int) -> dict[str, Any]:
    """Play a test panel with the run's chosen checkpoint.

    Args:
        run: a run with at least one evaluation.
        episodes: size of the panel.
        seed: which panel of that size.

    Returns:
        Success rate, returns and reward with intervals (`Episodes.summary`), and `chosen_step`.

    Raises:
        BadInput: the run has no whole checkpoint that was chosen yet.
    """
    best = CheckpointStore(run.checkpoints, "best", keep=1).latest()
    if best is None:
        raise BadInput(f"'{run.path}' has no chosen checkpoint yet; let it train until its first evaluation")
    setup = prepare(run.recipe())
    policy = greedy(load_policy(setup.recipe, best.path))
    panel = setup.panel("test", episodes, seed)
    played = play_panel(policy, setup.make, setup.task, panel, setup.reward_model)
    assert played is not None
    return {"chosen_step": best.step} | played.summary()
