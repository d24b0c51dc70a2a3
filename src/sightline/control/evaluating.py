"""Evaluate what a run has chosen, again or on another panel."""

from __future__ import annotations

from typing import Any

from sightline.config import for_control
from sightline.control.preparing import prepare
from sightline.control.snapshot import chosen_policy
from sightline.control.training import greedy
from sightline.evaluation.episodes import play_panel
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
    step, learner, learned = chosen_policy(run)
    setup = prepare(for_control(run.recipe()))
    if setup.learned is not None:
        setup.learned.restore(learned)
    panel = setup.panel("test", episodes, seed)
    played = play_panel(greedy(learner), setup.make, setup.task, panel, setup.reward_model)
    assert played is not None
    return {"chosen_step": step} | played.summary()
