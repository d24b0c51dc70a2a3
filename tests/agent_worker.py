"""Commands that are killed: a process that never learns itself forks a child for each of them.

    python tests/agent_worker.py [MODULE …] < jobs.json

A job is `{"arguments": […], "log": file, "die": null}`, or with `"die": [place, time, signal]`: the child is sent that
signal when it is for the so-manieth time at that place. Its exit codes are printed, as a list, in the end. (Forking
spares the seconds in which libraries are loaded, those of the modules that are named included; torch learns in no child
of a process that has learned.)
"""

from __future__ import annotations

import importlib
import json
import os
import pkgutil
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib.figure  # noqa: F401
import peft  # noqa: F401
import torch

import sightline.reports.run_page
import sightline.reports.trajectories_page  # noqa: F401
from empty_plots import leave_plots_empty
from forked import forked
from light_runs import lighten_runs
from sightline.agents import training  # noqa: F401
from sightline.cli.commands import main
from sightline.models.vlm.model import load_vlm
from sightline.runs.stopping import StopRequests

PLACES = {
    "reply": "sightline.agents.samplers.policy.PolicySampler.generate",
    "warm start": "sightline.models.vlm.model.VLM.score",
    "step": "sightline.agents.learning.PolicyLearner._step",
    "update": "sightline.agents.learning.PolicyLearner.learn",
    "saving": "sightline.models.vlm.model.VLM.save",
    "saved": "sightline.session.RunSession.save",
    "recording": "sightline.agents.training.write_trajectory_log",
    "collecting": "sightline.envs.frame_vector.FrameVectorEnv.step",
    "lesson": "sightline.preferences.rounds.PreferenceLearner.learn",
    "evaluating": "sightline.control.control_setup.play_panel",
}
"""Name -> what is called there; the last three are of policies on states."""


def prepare_to_die(place: str, time: int, number: int) -> None:
    """Have this process sent a signal within the so-manieth call of a place: after its work, before it is known. The
    place `clock` is wherever it is after so many milliseconds."""
    if place == "clock":
        timer = threading.Timer(time / 1000, os.kill, (os.getpid(), number))
        timer.daemon = True
        timer.start()
        return
    StopRequests.overdue = lambda self, seconds=0.0: False  # type: ignore[method-assign]  # however slow this machine is
    owner_path, _, name = PLACES[place].rpartition(".")
    owner = pkgutil.resolve_name(owner_path)
    original: Callable[..., Any] = getattr(owner, name)
    calls = [0]

    def deadly(*arguments: Any, **named: Any) -> Any:
        done = original(*arguments, **named)
        calls[0] += 1
        if calls[0] == time:
            os.kill(os.getpid(), number)
        return done

    setattr(owner, name, deadly)


def run(job: dict[str, Any]) -> int:
    """Carry out a job in a child of its own; gives its exit code, or minus the signal that ended it."""
    return os.waitstatus_to_exitcode(os.waitpid(start(job), 0)[1])


def start(job: dict[str, Any], prepare: Callable[[], object] = lambda: None) -> int:
    """Begin a job in a child of its own, which calls `prepare` first; gives the child's process id."""

    def carry_out() -> None:
        prepare()
        if job["die"] is not None:
            prepare_to_die(*job["die"])
        sys.argv = ["sightline", *job["arguments"]]
        main()

    return forked(Path(job["log"]), carry_out)


if __name__ == "__main__":
    torch.set_num_threads(1)
    leave_plots_empty()
    lighten_runs()
    for module in sys.argv[1:]:
        importlib.import_module(module)
    load_vlm(value_head=True, device="cpu")  # what is imported here need not be in every child
    print(json.dumps([run(job) for job in json.load(sys.stdin)]))
