"""Human evaluation of a run: people say of episodes of its chosen policy whether they are a success.

The episodes are played once, into the run folder (`people/step-…`), so that all people see the same ones.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

from sightline.datasets import lerobot_layout as layout
from sightline.reports.run_page import write_report
from sightline.reward_lab.collecting import collect
from sightline.reward_lab.collection import Collection
from sightline.runs.folder import RunFolder, check_plain
from sightline.runs.lease import take_lease
from sightline.runs.state import restoring
from sightline.runs.stopping import GivenUp
from sightline.session import chosen_checkpoint
from sightline.teachers.success import serve_success

SIDE = 224
"""Sides of the frames in pixels, where the environment can be told: what people see of larger ones is no more."""


def serve_run(
    run: RunFolder,
    who: str,
    port: int,
    say: Callable[[str], None],
    count: int,
    goal: str | None = None,
    seed: int = 0,
    trust: bool = False,
) -> None:
    """Serve the label page with a question about each episode, until Ctrl-C; then write the run's report again.

    Args:
        who: the person's name; several people answer the same questions, each under a name of their own.
        count: episodes.
        goal: in words; None: that of the recipe.
        seed: of the episodes and of the order in which they are shown.
        trust: whether code that the run's recipe names may be imported.

    Raises:
        BadInput: the run has chosen nothing yet, is an agent's, names code of its own, or has no goal.
        Busy: another process is playing the episodes.
        GivenUp: a signal ended the play.
    """
    if not trust:  # a stranger's run may hold links that lead elsewhere
        check_plain(run.path)
    folder = run.people(chosen_checkpoint(run).step)
    # Two people may start at the same time: one of them plays, and the other is told to wait.
    folder.parent.mkdir(exist_ok=True)
    lease = take_lease(folder.parent)
    try:
        if not (folder / layout.INFO).is_file():
            _play(run, folder, say, count, seed, trust)
    finally:
        lease.release()
    serve_success(folder, who, port, say, count, episodes=True, goal=goal, seed=seed)
    with restoring(run.path):
        say(f"report: {write_report(run.path)}")


def _play(run: RunFolder, folder: Path, say: Callable[[str], None], count: int, seed: int, trust: bool) -> None:
    """Play the episodes. No reward judges them: nobody is to see any, and some cost money."""
    shutil.rmtree(folder, ignore_errors=True)  # of a process that was killed before its first file was whole
    say(f"{count} episodes of the run's policy are played, into '{folder}'")
    collected = collect(Collection(run.path, folder, episodes=count, seed=seed, size=SIDE, trust=trust))
    if collected.signal_number is not None:
        raise GivenUp(collected.signal_number)
