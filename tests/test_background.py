"""Evaluation in a process of its own gives the numbers of one in between, whatever happens to either."""

from __future__ import annotations

import gc
import json
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
import torch

from conftest import TINY, Finished, start_sightline, trained
from sightline.config.loading import for_control, load_recipe
from sightline.control.background import EvaluationProcess, wants_process
from sightline.rewards.base import RewardModel
from sightline.rewards.config import RewardSetup
from sightline.runs.state import read_state

Sightline = Callable[..., Finished]
ARGUMENTS = (
    *("cartpole", *TINY, "envs=2", "seed=3"),
    *("evaluation.every=128", "evaluation.episodes=1", "evaluation.test_episodes=1"),
)
BACKGROUND = (*ARGUMENTS, "evaluation.background=true")


def numbers_of(run: Path) -> dict[int, dict[str, Any]]:
    """Evaluations by step: they are written when they are done, and other records may come first."""
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()[1:]]
    found = [record for record in records if "evaluation/return" in record]
    assert len({record["step"] for record in found}) == len(found), "each once"
    return {record["step"]: record for record in found}


def result_of(run: Path) -> dict[str, Any]:
    result: dict[str, Any] = json.loads((run / "result.json").read_text())
    return {name: value for name, value in result.items() if name != "seconds"}


def check_same(run: Path, other: Path) -> None:
    assert numbers_of(run) == numbers_of(other) and len(numbers_of(run)) == 2
    assert result_of(run) == result_of(other)
    chosen = f"checkpoints/best-{result_of(run)['chosen_step']:012d}/policy.safetensors"
    assert (run / chosen).read_bytes() == (other / chosen).read_bytes()


@pytest.fixture(scope="module")
def in_between(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that evaluates in between."""
    return trained(tmp_path_factory.mktemp("in_between"), *ARGUMENTS)


def test_the_numbers_are_the_same(sightline: Sightline, tmp_path: Path, in_between: Path) -> None:
    done = sightline("train", *BACKGROUND, "--run-dir", tmp_path / "run")
    assert done.code == 0, done.err
    assert "warning" not in done.err
    check_same(tmp_path / "run", in_between)
    learners = [
        read_state(max((run / "checkpoints").glob("step-*")) / "learner.safetensors")["counters"]
        for run in (tmp_path / "run", in_between)
    ]
    assert learners[0]["num_timesteps"] == learners[1]["num_timesteps"] == 256


@pytest.mark.parametrize(("victim", "overrides"), [("parent", ()), ("group", ("workers=processes",))])
def test_kill_nine_ends_all_and_resuming_finds_the_same(
    sightline: Sightline, tmp_path: Path, in_between: Path, victim: str, overrides: tuple[str, ...]
) -> None:
    run = tmp_path / "run"
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    command = ("train", *BACKGROUND, *overrides, "--run-dir", run)
    process = start_sightline(*command, cwd=tmp_path, TMPDIR=str(temporary))
    deadline = time.monotonic() + 600
    while len(list((run / "checkpoints").glob("step-*"))) < 2:
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.01)
    others = psutil.Process(process.pid).children(recursive=True)
    assert others, "the one that evaluates, at least"
    # The process that evaluates is in a group of its own, and is not killed with the others.
    process.kill() if victim == "parent" else os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    _, alive = psutil.wait_procs(others, timeout=120)
    assert not alive, "its standard input has come to an end"
    assert not list(temporary.glob("sightline-*")), "the policies that were evaluated"
    kept = Path(shutil.copytree(run, tmp_path / "kept"))
    done = sightline("train", *BACKGROUND, *overrides, "--run-dir", kept, "--resume")
    assert done.code == 0, done.err
    check_same(kept, in_between)


def test_the_other_process_is_killed_in_the_middle_of_a_job(
    sightline: Sightline, tmp_path: Path, in_between: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "run"
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    submit = EvaluationProcess.submit

    def fatal(self: EvaluationProcess, *job: Any) -> None:
        submit(self, *job)
        for child in psutil.Process().children():
            if {"sightline.control.background", str(run)} <= set(child.cmdline()):
                child.kill()

    monkeypatch.setattr(EvaluationProcess, "submit", fatal)
    done = sightline("train", *BACKGROUND, "--run-dir", run)
    assert done.code == 0, done.err
    (warning,) = [line for line in done.lines if line.startswith("warning")]
    assert "evaluation in the background failed (its process has ended)" in warning
    check_same(run, in_between)
    gc.collect()
    assert not list(temporary.glob("sightline-*"))


def test_without_the_other_process_evaluations_are_made_in_between(
    sightline: Sightline, tmp_path: Path, in_between: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", shutil.which("true"))
    done = sightline("train", *BACKGROUND, "--run-dir", tmp_path / "run")
    assert done.code == 0, done.err
    (warning,) = [line for line in done.lines if line.startswith("warning")]
    assert "evaluation in the background failed (its process has ended)" in warning
    check_same(tmp_path / "run", in_between)


def test_what_cannot_be_built_there_is_said(tmp_path: Path) -> None:
    process = EvaluationProcess(tmp_path)
    try:
        process.submit(tmp_path, "validation", 2, True)
        assert "not a run folder" in str(process.reply(wait=True))
    finally:
        process.close()


def test_long_runs_have_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def wanted(*overrides: str, device: str = "cpu") -> bool:
        reward = RewardSetup(RewardModel(), encoder=SimpleNamespace(device=torch.device(device)))  # type: ignore[arg-type]
        return wants_process(for_control(load_recipe("cartpole", overrides)), reward)

    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1}, raising=False)
    assert wanted("steps=30000") and not wanted("steps=29999")
    assert not wanted("steps=30000", "evaluation.background=false")
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0}, raising=False)
    assert not wanted("steps=30000") and wanted("evaluation.background=true")


def test_a_gpu_holds_no_second_encoder(monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = for_control(load_recipe("cartpole", ["steps=30000"]))
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1}, raising=False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    for device, wanted in (("cpu", True), ("cuda:0", False)):
        encoder: Any = SimpleNamespace(device=torch.device(device))
        assert wants_process(recipe, RewardSetup(RewardModel(), encoder=encoder)) is wanted
    assert not wants_process(recipe, RewardSetup(RewardModel())), "nobody knows where that computes"
