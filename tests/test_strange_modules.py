"""Files in the working folder never stand in for modules, in no process; a user's own modules are still found there."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import sightline
from sightline import doctor
from sightline.control.background import EvaluationProcess
from sightline.control.learners import algorithm_class
from sightline.envs.making import EnvMaker
from sightline.envs.workers import Worker
from sightline.errors import BadInput
from sightline.runs.working_folder import safe_children

NAMES = ("numpy", "pickle", "statistics", "typing", "torch", "typer", "mujoco", "gymnasium", "multiprocessing")
MARK = "strange-code-ran"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A working folder whose files leave a mark when they are run."""
    for name in NAMES:
        (tmp_path / f"{name}.py").write_text(f"open({str(tmp_path / MARK)!r}, 'w').close()\nraise SystemExit(3)\n")
    monkeypatch.chdir(tmp_path)
    # Without what the tests themselves have on the path.
    monkeypatch.setenv("PYTHONPATH", str(Path(sightline.__file__).parents[1]))
    yield tmp_path
    assert not (tmp_path / MARK).exists()


def test_worker_processes_take_nothing_from_it(folder: Path) -> None:
    worker = Worker(dict)
    try:
        worker.ready()
        worker.begin("__setitem__", 1, 2)()
        assert worker.begin("__getitem__", 1)() == 2
    finally:
        worker.kill()
    assert "PYTHONSAFEPATH" not in os.environ or os.environ["PYTHONSAFEPATH"]


def test_the_background_evaluation_takes_nothing_from_it(folder: Path) -> None:
    process = EvaluationProcess(folder)
    try:
        process.submit(folder, "validation", 1, False)
        reply = process.reply(wait=True)
    finally:
        process.close()
    assert reply == {"error": f"'{folder}' is not a run folder: it has no recipe.yaml"}


@pytest.mark.parametrize("arguments", [["recipes"], ["doctor", "--help"], ["report", "."]])
def test_the_command_takes_nothing_from_it(arguments: list[str], folder: Path) -> None:
    done = subprocess.run([sys.executable, "-m", "sightline", *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == (2 if arguments[0] == "report" else 0), done.stderr
    assert "Traceback" not in done.stderr


def test_tries_of_the_doctor_take_nothing_from_it(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    environments: list[dict[str, str]] = []

    def run(command: list[str], **options: Any) -> subprocess.CompletedProcess[str]:
        environments.append(options["env"])
        return subprocess.CompletedProcess(command, 1, "", "no")

    monkeypatch.setattr(doctor.subprocess, "run", run)
    monkeypatch.setattr(doctor, "_version", lambda name: "1")
    doctor.examine()
    assert environments and all(environment["PYTHONSAFEPATH"] == "1" for environment in environments)


def test_environments_of_the_working_folder_are_found_behind_all_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    program = "import gymnasium\nclass Toy(gymnasium.Env): pass\n"
    for name in ("own_toy", "colorsys", "json", "sightline"):
        (tmp_path / f"{name}.py").write_text(program)
    monkeypatch.delitem(sys.modules, "colorsys", raising=False)
    with pytest.raises(BadInput, match="Toy"):  # it is found, and is no environment that could be used
        EnvMaker("own_toy:Toy").as_it_is()
    assert sys.modules.pop("own_toy").__file__ == str(tmp_path / "own_toy.py")
    for name in ("colorsys", "json"):
        with pytest.raises(BadInput, match=rf"the working folder's {name}.py has the name of another module.*rename"):
            EnvMaker(f"{name}:Toy").as_it_is()
        assert "site-packages" not in str(sys.modules[name].__file__)
        assert not str(sys.modules[name].__file__).startswith(str(tmp_path))
    assert sys.path[-1] == str(tmp_path)


def test_learners_of_the_working_folder_are_found_and_stand_in_for_no_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from sightline.config.learners import OtherLearner

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "own_learner.py").write_text("from stable_baselines3 import SAC\nclass Mine(SAC): pass\n")
    monkeypatch.setitem(sys.modules, "sb3_contrib", None)  # as if it were not installed
    with pytest.raises(BadInput):
        algorithm_class(OtherLearner(algorithm="sb3_contrib.TQC"))
    assert str(tmp_path) not in sys.path
    assert algorithm_class(OtherLearner(algorithm="own_learner.Mine")).__name__ == "Mine"


def test_the_environment_is_as_it_was_after_a_child_is_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    for before in (None, "", "1"):
        monkeypatch.delenv("PYTHONSAFEPATH", raising=False)
        if before is not None:
            monkeypatch.setenv("PYTHONSAFEPATH", before)
        with safe_children():
            assert os.environ["PYTHONSAFEPATH"] == "1"
        assert os.environ.get("PYTHONSAFEPATH") == before
