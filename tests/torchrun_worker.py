"""Runs on two "machines" of one process each: `python torchrun_worker.py JOBS`, the jobs in JSON.

A job is `{"arguments": […], "log": file}`, the arguments of a command of ours. For each machine a process is forked
that does what `torchrun` does with its own command line, but for the worker: that is forked, too, so that libraries are
imported once. Exit codes of the machines are printed, as a list of pairs; `LOG.NUMBER` is what was said.
"""

from __future__ import annotations

import importlib
import json
import os
import socket
import sys
from pathlib import Path
from typing import Any

import torch
from torch.distributed.launcher.api import elastic_launch
from torch.distributed.run import config_from_args, parse_args

import sightline.reports.run_page
import sightline.reports.trajectories_page  # noqa: F401
from empty_plots import leave_plots_empty
from engine_worker import LIBRARIES
from forked import forked
from light_runs import lighten_runs
from sightline.agents import training  # noqa: F401
from sightline.cli.commands import main

MACHINES = 2


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def start(job: dict[str, Any], number: int, port: int) -> int:
    """Begin a job on a machine; gives the process id of its torchrun."""

    def carry_out() -> None:
        meeting = ["--rdzv-backend", "c10d", "--rdzv-endpoint", f"127.0.0.1:{port}", "--start-method", "fork"]
        options = ["--nnodes", str(MACHINES), "--node-rank", str(number), "--nproc-per-node", "1", *meeting]
        config, _, _ = config_from_args(parse_args([*options, "-m", "sightline", *job["arguments"]]))
        elastic_launch(config, command)(*job["arguments"])

    return forked(Path(f"{job['log']}.{number}"), carry_out)


def command(*arguments: str) -> None:
    """A command of ours, as its process."""
    sys.argv = ["sightline", *arguments]
    try:
        main()
    except SystemExit as end:
        if end.code:  # a launcher of functions waits for what those return that succeed
            raise


def run(job: dict[str, Any]) -> list[int]:
    """Carry out a job on all machines; gives their exit codes."""
    port = free_port()
    started = [start(job, number, port) for number in range(MACHINES)]
    return [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in started]


if __name__ == "__main__":
    torch.set_num_threads(1)
    leave_plots_empty()
    lighten_runs()
    for library in LIBRARIES:
        importlib.import_module(library)
    print(json.dumps([run(job) for job in json.loads(sys.argv[1])]))
