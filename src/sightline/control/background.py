"""Evaluation in a process of its own, so that training does not wait for it.

    this process    learn ── save policy to a folder ── learn ── learn ── … ── read the numbers ── learn
                                  │ {"folder", "panel", …}                          ▲ summary
    the other one                 └──────────► play the panel, score its frames ────┘

Evaluation draws no random numbers, so its numbers are those that this process would have found. The other process is
`python -m sightline.control.background RUN`: it builds everything from the run's recipe, reads jobs from its standard
input, one JSON document per line, and ends when that is closed, which also happens if this process is killed.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import queue
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

import torch

from sightline.config.loading import for_control
from sightline.config.recipe import ControlRecipe
from sightline.control.control_setup import ControlSetup, build_setup
from sightline.control.learners import greedy
from sightline.control.state import acting_spaces, load_policy
from sightline.envs.workers import kill_children
from sightline.errors import BadInput, RunFailed, reason_of
from sightline.models.device import available_cores
from sightline.rewards.base import Interrupted
from sightline.rewards.config import RewardSetup
from sightline.rewards.learned_state import as_learned
from sightline.runs.folder import RunFolder
from sightline.runs.stopping import give_up_if_overdue
from sightline.runs.temporary import TemporaryFolder
from sightline.runs.working_folder import SAFE

WORTH_IT = 30_000
"""Transitions from which on a run is long enough for the seconds that a process takes to start."""


def wants_process(recipe: ControlRecipe, reward: RewardSetup) -> bool:
    """True if evaluations of this recipe are made in another process."""
    in_background = recipe.evaluation.background
    if in_background == "auto":
        may_fit = not torch.cuda.is_available() or _is_on_cpu(reward.encoder or reward.model)
        return recipe.steps >= WORTH_IT and available_cores() > 1 and may_fit
    return in_background


def _is_on_cpu(model: Any) -> bool:
    """Whether a model says that it is on the CPU: on a GPU a second copy may not fit."""
    device = getattr(model, "device", None)
    return device is not None and device.type == "cpu"


def evaluate_policy_in(
    setup: ControlSetup,
    folder: Path,
    panel: str,
    episodes: int,
    with_reward: bool,
    stop: Callable[[], bool] = lambda: False,
) -> dict[str, Any]:
    """Play a panel by a saved policy, judged by what the reward model had learned when it was saved.

    Args:
        folder: written by `save_policy`.
        panel: name of the panel.
        with_reward: False leaves out the reward model.
        stop: asked between steps; if it says so, the rest is not played.

    Returns:
        See `Episodes.summary`.

    Raises:
        Interrupted: `stop` said so.
    """
    policy = greedy(load_policy(setup.recipe, folder, acting_spaces(setup.make)))
    with as_learned(folder, setup.reward_model):
        judge = setup.judge if with_reward else None
        episodes_played = setup.play(policy, setup.panel(panel, episodes), judge, stop)
    if episodes_played is None:
        raise Interrupted
    return episodes_played.summary()


class EvaluationProcess:
    """The other process. It loads Python, torch and the models while this one collects its first transitions.

    Args:
        run: the run folder, with its recipe.
    """

    def __init__(self, run: Path) -> None:
        self._replies: queue.Queue[dict[str, Any]] = queue.Queue()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "sightline.control.background", str(run)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=os.environ | SAFE,
            start_new_session=True,  # Ctrl-C is for this process
        )
        self._reader = threading.Thread(target=self._read, args=(self._process.stdout,), daemon=True)
        self._reader.start()

    def submit(self, folder: Path, panel: str, episodes: int, with_reward: bool) -> None:
        """Have a policy evaluated; see `evaluate_policy_in`. Its reply comes after those of the jobs before."""
        assert self._process.stdin is not None, "it was made a pipe"
        job = {"folder": str(folder), "panel": panel, "episodes": episodes, "with_reward": with_reward}
        with contextlib.suppress(BrokenPipeError):  # it has ended; the reply says so
            self._process.stdin.write(json.dumps(job) + "\n")
            self._process.stdin.flush()

    def reply(self, wait: bool) -> dict[str, Any] | None:
        """The next job's reply, `{"summary": …}` or `{"error": …}`; None if it is not there yet."""
        while True:
            try:
                return self._replies.get(block=wait, timeout=0.2)
            except queue.Empty:
                give_up_if_overdue()
                # The reader ends with the process; a reply that it has read before is still taken.
                if not (self._reader.is_alive() or self._replies.qsize()):
                    return {"error": "its process has ended"}
                if not wait:
                    return None

    def close(self) -> None:
        """End the process, with those that it has started."""
        kill_children(self._process.pid)
        self._process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=5)

    def _read(self, stream: IO[str]) -> None:
        for line in stream:
            with contextlib.suppress(ValueError):  # printed by a library before the first job
                reply = json.loads(line)
                if isinstance(reply, dict):
                    self._replies.put(reply)


class BackgroundValidation:
    """Validation of a policy while training goes on; see `sightline.session.Validation`.

    Args:
        process: plays.
        save: writes the policy into a folder.
        panel, episodes, with_reward: as in `evaluate_policy_in`.
        instead: evaluates a folder in this process, if the other one cannot; gets the reason.
    """

    def __init__(
        self,
        process: EvaluationProcess,
        save: Callable[[Path], None],
        panel: str,
        episodes: int,
        with_reward: bool,
        instead: Callable[[Path, str], dict[str, Any]],
    ) -> None:
        self._process = process
        self._instead = instead
        self._folder = TemporaryFolder("policy")
        save(self._folder.path)
        process.submit(self._folder.path, panel, episodes, with_reward)

    def numbers(self, wait: bool) -> dict[str, Any] | None:
        """See `Validation`."""
        reply = self._process.reply(wait)
        if reply is None:
            return None
        if "summary" in reply:
            summary: dict[str, Any] = reply["summary"]
            return summary
        return self._instead(self._folder.path, str(reply.get("error")))

    def save(self, folder: Path | None) -> None:
        """See `Validation`."""
        assert folder is not None, "a policy on states learns in one process"
        for file in self._folder.path.iterdir():
            shutil.copyfile(file, folder / file.name)

    def cancel(self) -> None:
        """See `Validation`."""
        self._process.close()
        self._folder.remove()


def _setup(run: Path) -> ControlSetup:
    # The process that asks has built the same; what it trusts needs no second question.
    recipe = for_control(RunFolder(run).trusted_recipe(trust=True, asks=False))
    return build_setup(recipe, asks=False, folder=run)


def _serve(run: Path) -> None:
    """Reply to jobs from standard input until it is closed."""
    # Both streams are for these two processes alone: what simulators print, also from C, is no reply.
    replies = os.fdopen(os.dup(1), "w")
    jobs = os.fdopen(os.dup(0))
    os.dup2(2, 1)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    queued: queue.Queue[dict[str, Any]] = queue.Queue()
    threading.Thread(target=_read_jobs, args=(jobs, queued), daemon=True).start()
    setup = functools.cache(lambda: _setup(run))
    with contextlib.suppress(Exception, SystemExit):  # each job's reply says so
        setup()
    while True:
        job = queued.get()  # without end: the thread ends this process
        try:
            folder = Path(job["folder"])
            summary = evaluate_policy_in(setup(), folder, job["panel"], job["episodes"], job["with_reward"])
            reply: dict[str, Any] = {"summary": summary}
        except (BadInput, RunFailed) as error:
            reply = {"error": str(error)}
        except (Exception, SystemExit) as error:
            reply = {"error": reason_of(error)}
        replies.write(json.dumps(reply) + "\n")
        replies.flush()


def _read_jobs(stream: IO[str], queued: queue.Queue[dict[str, Any]]) -> None:
    """Take jobs as they come. When the stream ends, the process that asks is gone: end this one, whatever it is doing,
    and remove what the other one would have removed."""
    folders = set()
    for line in stream:
        job = json.loads(line)
        folders.add(job["folder"])
        queued.put(job)
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)
    kill_children()
    os._exit(1)


if __name__ == "__main__":
    _serve(Path(sys.argv[1]))
