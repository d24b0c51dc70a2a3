"""Other people's shells, disks and settings: each works, or ends in one line that says what to do."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from PIL import Image

import sightline as sl
from conftest import TINY, Finished
from odd_environments import Walk
from sightline.doctor import examine
from sightline.envs.workers import Worker, shared_picture
from sightline.errors import BadInput
from sightline.evaluation.video import write_scored_video
from sightline.labels.store import LabelStore
from sightline.models.vlm.loading import folder_of
from sightline.runs import lease
from sightline.runs.folder import RunFolder, default_run_path, latest_runs
from sightline.runs.metrics import Metrics
from test_label_run import fill, pairs

Sightline = Callable[..., Finished]
NOT_TEXT = os.fsdecode(b"run-\xff")


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from sightline.config.loading import load_recipe
    from sightline.roles import complete, train

    path = tmp_path_factory.mktemp("finished") / "run"
    train(complete(load_recipe("cartpole", TINY)), path, "finished", resume=False)
    return path


def check_one_line(done: Finished, code: int, *expected: str) -> None:
    assert (done.code, len(done.lines)) == (code, 1), done.err
    assert all(part in done.err for part in expected), done.err
    assert "--debug" not in done.err


# -- folders -----------------------------------------------------------------------------------------------------------


class Wanderer(Walk):
    """A simulator that looks for its files in a folder of its own, and stays there."""

    def __init__(self, render_mode: str | None = None, home: str = "/") -> None:
        super().__init__(render_mode)
        os.chdir(home)


def test_an_environment_that_changes_the_working_folder(sightline: Sightline, tmp_path: Path) -> None:
    home = tmp_path / "assets"
    home.mkdir()
    keys = (f"env={__name__}:Wanderer", f"env_options.home={home}", "reward.kind=ground_truth", "episode_steps=20")
    done = sightline("train", *keys, *TINY, "--run-dir", "mine")
    assert done.code == 0, done.err
    assert done.out.splitlines()[-1] == f"report      {Path('mine', 'report.html')}"
    assert (tmp_path / "work" / "mine" / "report.html").is_file()
    assert not list(home.iterdir())


# -- names -------------------------------------------------------------------------------------------------------------


def test_the_home_folder_by_its_sign(sightline: Sightline, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    done = sightline("train", "cartpole", *TINY, "--run-dir=~/mine")
    assert done.code == 0, done.err
    assert (tmp_path / "mine" / "result.json").is_file() and not Path("~").exists()
    assert sightline("report", tmp_path / "mine", "--out=~/page.html").code == 0
    assert (tmp_path / "page.html").is_file()


def test_a_home_that_nobody_knows(sightline: Sightline, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a user who is not known on this machine, or in a container whose user has neither `HOME` nor a name."""
    Image.new("RGB", (8, 8)).save(tmp_path / "picture.png")
    done = sightline("score", tmp_path / "picture.png", "--goal", "a pole", "--model", "~nobody-of-that-name/encoder")
    check_one_line(done, 2, "~nobody-of-that-name")
    assert "RuntimeError" not in done.err
    assert folder_of("~nobody-of-that-name/model") == Path("~nobody-of-that-name/model")
    with pytest.raises(BadInput, match="is not a run folder"):
        sl.train(run_dir="~nobody-of-that-name/run", resume=True)


def test_a_film_goes_where_its_path_leads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_scored_video(Path("~") / "film.mp4", np.zeros((2, 8, 8, 3), np.uint8), np.zeros(2), 5, "")
    assert (tmp_path / "~" / "film.mp4").is_file()


@pytest.mark.parametrize("command", ["train", "resume", "report", "evaluate"])
def test_a_name_that_is_no_text_is_refused_before_anything_is_loaded(
    sightline: Sightline, finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    monkeypatch.setattr("sightline.models.encoders.load_encoder", lambda *_: pytest.fail("nothing is loaded"))
    run = tmp_path / NOT_TEXT
    if command == "train":
        done = sightline("train", "cartpole", *TINY, "--run-dir", run)
        assert not run.exists()
    else:
        shutil.copytree(finished, run)
        resume = ("train", "--run-dir", run, "--resume")
        done = sightline(*(resume if command == "resume" else (command, run)))
    check_one_line(done, 2, "is not text in utf-8", r"run-\udcff", "rename it")


def test_two_runs_that_begin_at_the_same_time_have_two_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sightline.runs.folder.datetime", _Frozen)
    names = []
    for _ in range(3):
        names.append(default_run_path("cartpole"))
        names[-1].mkdir(parents=True)
    stem = "cartpole-20261128-100000-005"
    assert [name.name for name in names] == [stem, f"{stem}-2", f"{stem}-2-2"]


class _Frozen(datetime):
    @classmethod
    def now(cls, tz: Any = None) -> Any:
        return datetime(2026, 11, 28, 10, 0, 0, 5000, tz)


def test_the_newest_run_is_that_by_the_clock_of_the_world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    # Begun in Tokyo, and then in New York, where the time of day is an earlier one.
    created = {
        "cartpole-20261128-200000": "2026-11-28T11:00:00+00:00",
        "cartpole-20261128-070000-123": "2026-11-28T12:00:00.123+00:00",
        "cartpole-20261128-070000-123-2": "2026-11-28T12:00:00.456+00:00",
        "cartpole-20251128-070000": None,  # it has no time of its own
    }
    for name, time in created.items():
        run = RunFolder(tmp_path / "runs" / name)
        run.path.mkdir(parents=True)
        run.write_text("recipe.yaml", "format: 1")
        if time is not None:
            run.write_json("run.json", {"id": name, "created": time})
    newest = [run.path.name for run in latest_runs("cartpole")]
    assert newest == [list(created)[index] for index in (2, 1, 0, 3)]


# -- what others own ---------------------------------------------------------------------------------------------------


def test_labels_of_a_store_that_cannot_be_written_are_read(
    sightline: Sightline, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = fill(tmp_path / "store", *pairs(6))
    before = {file.name: file.read_bytes() for file in store.iterdir() if file.is_file()}
    _forbid_writing(store, monkeypatch)
    check_one_line(sightline("label", "stats", store), 2, "--html", "cannot be written to")
    done = sightline("label", "stats", store, "--html", "page.html")
    assert done.code == 0 and Path("page.html").is_file(), done.err
    assert sightline("label", "export", store, "labels.parquet").code == 0
    assert {file.name: file.read_bytes() for file in store.iterdir() if file.is_file()} == before
    with LabelStore(store, read_only=True) as opened:
        assert len(opened.labels()) == 6


def _forbid_writing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests run as root, who may write everywhere."""
    access = os.access

    def allowed(path: Any, mode: int, **named: Any) -> bool:
        return not (mode == os.W_OK and Path(path).is_relative_to(folder)) and access(path, mode, **named)

    monkeypatch.setattr(os, "access", allowed)


def test_a_new_label_store_where_nothing_can_be_written(sightline: Sightline, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: Path, *_: Any, **named: Any) -> None:
        raise PermissionError(13, "Permission denied", str(self))

    monkeypatch.setattr(Path, "mkdir", refuse)
    done = sightline("label", "import", "labels.parquet", "--into", "store")
    check_one_line(done, 2, "the label store 'store' cannot be opened: Permission denied")


def test_the_report_of_a_run_that_cannot_be_written(
    sightline: Sightline, finished: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = (finished / "report.html").read_bytes()
    _forbid_writing(finished, monkeypatch)
    check_one_line(sightline("report", finished), 2, "--out", "cannot be written to")
    done = sightline("report", finished, "--out", "page.html")
    assert done.code == 0, done.err
    assert Path("page.html").read_bytes() == before == (finished / "report.html").read_bytes()


@pytest.mark.parametrize("command", ["evaluate", "report"])
def test_a_folder_that_this_user_may_not_enter(
    sightline: Sightline, finished: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    def refuse(self: Path, **named: Any) -> Any:
        raise PermissionError(13, "Permission denied", str(self))

    monkeypatch.setattr(Path, "is_file", refuse)
    check_one_line(sightline(command, finished), 2, f"{finished}", "Permission denied")


def test_a_disk_that_is_full(sightline: Sightline, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: Metrics, step: int, values: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Metrics, "write", fail)
    done = sightline("train", "cartpole", *TINY, "--run-dir", tmp_path / "run")
    assert done.code == 1
    expected = "sightline: No space left on device; what was saved before is whole, and --resume goes on from it"
    assert done.lines[-1] == expected


# -- shells and settings -----------------------------------------------------------------------------------------------


def test_a_recipe_through_a_pipe(sightline: Sightline, tmp_path: Path) -> None:
    pipe = tmp_path / "63"
    os.mkfifo(pipe)

    def with_recipe(*arguments: Any) -> Finished:
        text = "env: cartpole\nsteps: 320\ngoal: a pole\n"
        writer = threading.Thread(target=lambda: pipe.write_text(text), daemon=True)
        writer.start()
        return sightline(*arguments)

    done = with_recipe("train", pipe, "seed=3", "--dry-run")
    assert done.code == 0, done.err
    assert "steps: 320" in done.out and "seed: 3" in done.out
    check_one_line(sightline("sweep", pipe, "seed=0..1", "--run-dir", "sweep"), 2, "cannot come from stdin or a pipe")


def test_a_working_folder_that_is_gone(tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    script = f"cd {gone} && rmdir {gone} && {sys.executable} -m sightline train cartpole"
    done = subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr == "sightline: the working folder has been removed; change to another one first\n"


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (OSError(24, "Too many open files"), "ulimit -n"),
        (BlockingIOError(11, "Resource temporarily unavailable"), "ulimit -u"),
        (RuntimeError("can't start new thread"), "ulimit -u"),
        (OSError(12, "Cannot allocate memory"), "ulimit -v"),
        (ImportError("libtorch_cpu.so: failed to map segment from shared object"), "ulimit -v"),
        (FileNotFoundError(2, "No usable temporary directory found in ['/tmp']"), "TMPDIR"),
    ],
)
def test_limits_of_an_account(
    sightline: Sightline, monkeypatch: pytest.MonkeyPatch, error: Exception, expected: str
) -> None:
    def fail(*_: Any) -> Any:
        raise error

    monkeypatch.setattr("sightline.cli.commands.print_rows", fail)
    done = sightline("recipes")
    check_one_line(done, 1, expected)
    assert type(error).__name__ not in done.err


def test_an_account_that_may_start_no_thread(sightline: Sightline, monkeypatch: pytest.MonkeyPatch) -> None:
    """Libraries would send SIGINT to this process when they are loaded, as if the user had interrupted it."""

    def refuse(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    done = sightline("score", "picture.png", "--goal", "a pole")
    check_one_line(done, 1, "no more processes or threads", "ulimit -u")


def test_threads_are_tried_all_at_a_time_and_end(sightline: Sightline, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    alive: list[threading.Thread] = []
    start = threading.Thread.start

    def note(self: threading.Thread) -> None:
        start(self)
        alive.append(self)
        assert all(thread.is_alive() for thread in alive)

    monkeypatch.setattr(threading.Thread, "start", note)
    assert sightline("recipes").code == 0
    assert len(alive) == 3
    for thread in alive:
        thread.join(5)
        assert not thread.is_alive()


def test_doctor_without_a_folder_for_temporary_files(sightline: Sightline, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is loaded: torch, left half loaded, ends its process by a fault."""

    def refuse() -> Any:
        raise FileNotFoundError(2, "No usable temporary directory found in ['/tmp', '/var/tmp']")

    monkeypatch.setattr("tempfile.gettempdir", refuse)
    monkeypatch.setattr("sightline.doctor._processor", lambda: pytest.fail("nothing is loaded"))
    check_one_line(sightline("doctor"), 1, "TMPDIR=DIR")


def test_pictures_are_sent_where_no_folder_can_be_written_to(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> Any:
        raise FileNotFoundError(2, "No usable temporary directory found in ['/tmp', '/var/tmp']")

    monkeypatch.setattr("tempfile.mkdtemp", refuse)
    monkeypatch.setattr("tempfile.gettempdir", refuse)
    assert shared_picture(cast(Worker, None), (4, 4, 3)) is None


@pytest.mark.parametrize(
    ("text", "seconds"),
    [(None, 60), ("", 60), ("soon", 60), ("nan", 60), ("0", 1), ("-5", 1), ("120", 120), ("inf", 365 * 24 * 3600)],
)
def test_times_of_a_lease(text: str | None, seconds: float) -> None:
    assert lease.timeout_from(text) == seconds


def test_a_lease_that_never_ends_is_renewed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease, "TIMEOUT", lease.timeout_from("inf"))
    failed: list[Any] = []
    monkeypatch.setattr(threading, "excepthook", failed.append)
    held = lease.take_lease(tmp_path)
    held.release()
    for thread in threading.enumerate():
        if thread.name == "lease":
            thread.join(5)
    assert not failed


def test_an_ffmpeg_that_is_not_there(sightline: Sightline, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("IMAGEIO_FFMPEG_EXE", "/nowhere/ffmpeg")
    (videos,) = [check for check in examine() if check.name == "videos"]
    assert not videos.works and "IMAGEIO_FFMPEG_EXE" in videos.detail and videos.fix == "unset it"
    arguments = [one for one in TINY if not one.startswith("videos")]
    done = sightline("train", "cartpole", *arguments, "videos=true", "--run-dir", tmp_path / "run")
    assert done.code == 0, done.err
    assert "the pictures of the report are not complete" in done.err
