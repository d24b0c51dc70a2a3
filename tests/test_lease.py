"""One owner: who comes second is refused, who is gone is replaced, who was stopped for too long writes nothing more."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from conftest import TINY, Finished, start_sightline, trained
from sightline.errors import BadInput, RunFailed
from sightline.runs import lease as leases
from sightline.runs.files import read_document, write_document
from sightline.runs.folder import check_free, check_plain
from sightline.runs.lease import LEASE, Lease, LeaseLost, take_lease
from sightline.runs.metrics import read_metrics

Sightline = Callable[..., Finished]
ENDLESS = ("cartpole", *TINY, "steps=400000", "checkpoints.every=64", "evaluation.every=100000")
"""A run that lives as long as it is let."""


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that has come to its end; tests work on copies."""
    return trained(tmp_path_factory.mktemp("finished"), "cartpole", *TINY)


@pytest.fixture
def lease(tmp_path: Path) -> Iterator[Lease]:
    held = take_lease(tmp_path)
    yield held
    held.release()


def gone(folder: Path, **changes: Any) -> None:
    """Leave a lease as another process would have left it."""
    holder = {
        "id": "other",
        "host": "elsewhere",
        "pid": 1,
        "process_started": 0.0,
        "started": "then",
        "heartbeat": "then",
    }
    write_document(folder / LEASE, holder | changes)


def test_a_lease_says_who_holds_it(lease: Lease, tmp_path: Path) -> None:
    document = json.loads((tmp_path / LEASE).read_text())
    assert document["format"] == 1
    assert document["pid"] == os.getpid()
    assert {"id", "host", "process_started", "started", "heartbeat"} <= set(document)
    with lease.writing(), lease.writing():  # nested
        (tmp_path / "file").write_text("mine")


def test_who_comes_second_is_refused_in_one_line_that_names_the_owner(lease: Lease, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=f"is being written by process {os.getpid()} on ") as caught:
        take_lease(tmp_path)
    assert "\n" not in str(caught.value)
    with lease.writing():
        pass


def test_a_folder_that_is_gone_is_said_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    lease = take_lease(tmp_path / "run")
    shutil.rmtree(tmp_path / "run")
    with pytest.raises(RunFailed, match="is gone, which this process was writing"), lease.writing():
        pass
    lease.release()


def test_a_released_folder_is_free(lease: Lease, tmp_path: Path) -> None:
    lease.release()
    assert not (tmp_path / LEASE).exists()
    second = take_lease(tmp_path)
    lease.release()  # once more: it is another's by now
    with second.writing():
        pass
    with pytest.raises(LeaseLost), lease.writing():
        raise AssertionError("nothing is written")
    second.release()


@pytest.mark.parametrize(
    "changes",
    [{"pid": 2**22 + 1}, {"pid": "no number"}, {"process_started": 12.0}],
    ids=["no such process", "damaged", "its number is another's"],
)
def test_a_holder_that_is_gone_is_replaced_at_once(tmp_path: Path, changes: dict[str, Any]) -> None:
    alive = {"machine": leases._machine(), "pid": os.getpid(), "process_started": leases._started(os.getpid())}
    gone(tmp_path, **alive)
    with pytest.raises(BadInput, match="is being written"):
        take_lease(tmp_path)
    gone(tmp_path, **(alive | changes))
    take_lease(tmp_path).release()


def test_processes_of_other_containers_are_not_looked_for_here(tmp_path: Path) -> None:
    """Where host names are equal, process numbers need not mean the same."""
    gone(tmp_path, host=leases.platform.node(), machine="another boot, or another container", pid=2**22 + 1)
    with pytest.raises(BadInput, match="is being written"):
        take_lease(tmp_path)


def test_a_lock_that_somebody_keeps_does_not_end_the_heartbeat(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leases, "TIMEOUT", 0.6)
    locked = leases._locked
    monkeypatch.setattr(leases, "_locked", lambda folder: locked(folder, patience=0.05))
    held = take_lease(tmp_path)
    reader = os.open(tmp_path, os.O_RDONLY)
    fcntl.flock(reader, fcntl.LOCK_SH)
    time.sleep(0.4)
    assert held._thread.is_alive()
    with pytest.raises(BadInput, match="try again later"), held.writing():
        raise AssertionError("nothing is written")
    os.close(reader)
    with held.writing():
        pass
    held.release()
    assert not (tmp_path / LEASE).exists()


def test_a_forked_child_does_not_keep_the_lock(lease: Lease, tmp_path: Path) -> None:
    with lease.writing():
        child = os.fork()
        if not child:
            time.sleep(30)
            os._exit(0)
    try:
        with leases._locked(tmp_path, patience=0.0):
            pass
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def test_what_a_kill_left_of_a_lease_holds_nobody_back(tmp_path: Path) -> None:
    (tmp_path / f".{LEASE}.12-34.writing").write_text("half")
    check_free(tmp_path)


@pytest.mark.parametrize("text", ["", "[]", '{"format": 2}', "\0"])
def test_a_damaged_lease_holds_nobody_back(tmp_path: Path, text: str) -> None:
    (tmp_path / LEASE).write_text(text)
    take_lease(tmp_path).release()


@pytest.mark.parametrize(("age", "free"), [(10, False), (59, False), (61, True), (-(10**6), True)])
def test_a_holder_elsewhere_is_replaced_once_it_is_silent(tmp_path: Path, age: int, free: bool) -> None:
    gone(tmp_path)
    then = time.time() - age
    os.utime(tmp_path / LEASE, (then, then))
    if free:
        take_lease(tmp_path).release()
        return
    with pytest.raises(BadInput, match="process 1 on elsewhere"):
        take_lease(tmp_path)


def test_an_owner_that_lost_its_lease_writes_nothing_more(lease: Lease, tmp_path: Path) -> None:
    gone(tmp_path)
    with pytest.raises(LeaseLost, match=r"belongs to process 1 on elsewhere .* writes nothing more"), lease.writing():
        raise AssertionError("nothing is written")
    lease.release()
    assert read_document(tmp_path / LEASE)["id"] == "other", "what is another's stays"


def test_a_heartbeat_is_renewed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leases, "TIMEOUT", 0.3)
    held = take_lease(tmp_path)
    time.sleep(0.7)
    with pytest.raises(BadInput, match="is being written"):
        take_lease(tmp_path)
    held.release()


def test_of_many_that_begin_together_one_wins(tmp_path: Path) -> None:
    won: list[Lease] = []
    lost: list[BadInput] = []
    barrier = threading.Barrier(8)

    def begin() -> None:
        barrier.wait()
        try:
            won.append(take_lease(tmp_path))
        except BadInput as error:
            lost.append(error)

    threads = [threading.Thread(target=begin) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(won), len(lost)) == (1, 7)
    won[0].release()


def test_nobody_takes_over_in_the_middle_of_a_write(
    lease: Lease, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However long the write takes, and however silent the owner is meanwhile."""
    locked = leases._locked
    monkeypatch.setattr(leases, "_locked", lambda folder: locked(folder, patience=0.1))
    with lease.writing():
        then = time.time() - 1000
        os.utime(tmp_path / LEASE, (then, then))
        with pytest.raises(BadInput, match="at this moment"):
            Lease(tmp_path).take()


def test_a_file_that_goes_while_the_folder_is_looked_at_is_no_link(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A running training renames its temporary files; looking at its folder must not fail on one of them."""
    (tmp_path / "recipe.yaml").write_text("")
    monkeypatch.setattr("os.walk", lambda path: iter([(str(path), [], ["recipe.yaml", ".tmp-gone"])]))
    check_plain(tmp_path)


# -- commands ----------------------------------------------------------------------------------------------------------


def steps(run: Path) -> list[int]:
    return [record["step"] for record in read_metrics(run / "metrics.jsonl")]


def wait_for(condition: Callable[[], bool], process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + 600
    while not condition():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """The command in a process of its own; whatever still runs in the end is killed."""
    started: list[subprocess.Popen[str]] = []

    def begin(*arguments: Any, **environment: str) -> subprocess.Popen[str]:
        started.append(start_sightline(*arguments, cwd=tmp_path, **environment))
        return started[-1]

    yield begin
    for process in started:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGKILL)
        process.communicate()


def test_a_second_starter_and_a_second_resumer_are_refused(
    sightline: Sightline, start: Callable[..., subprocess.Popen[str]], tmp_path: Path
) -> None:
    run = tmp_path / "run"
    first = start("train", *ENDLESS, "--run-dir", run)
    wait_for(lambda: (run / "checkpoints").is_dir() and len(list((run / "checkpoints").glob("step-*"))) > 1, first)
    for options in ((), ("--resume",)):
        refused = sightline("train", *ENDLESS, "--run-dir", run, *options)
        (line,) = refused.lines
        # Who would begin a run there has to choose another folder; who would go on with it has to try again later.
        assert refused.code == (75 if f"process {first.pid}" in line else 2)
        assert f"process {first.pid}" in line or "exists already" in line
    assert f"is being written by process {first.pid} on" in refused.err
    first.send_signal(signal.SIGTERM)
    _, err = first.communicate(timeout=600)
    assert first.returncode == 143, err
    assert not (run / LEASE).exists()
    told = steps(run)
    assert told == sorted(told), "nobody else has written"


@pytest.mark.parametrize("resumed", [False, True], ids=["two starters", "two resumers"])
def test_of_two_at_once_one_goes_on_and_one_is_told(
    sightline: Sightline,
    start: Callable[..., subprocess.Popen[str]],
    finished: Path,
    tmp_path: Path,
    resumed: bool,
) -> None:
    run = tmp_path / "run"
    arguments = ("train", "cartpole", *TINY, "--run-dir", run)
    if resumed:
        shutil.copytree(finished, run)
        arguments = ("train", "--run-dir", run, "--resume", "steps=384")
    both = [start(*arguments) for _ in range(2)]
    outcomes = sorted((process.wait(timeout=900), process.communicate()[1]) for process in both)
    assert [code for code, _ in outcomes] in ([0, 2], [0, 75]), outcomes
    (line,) = outcomes[1][1].splitlines()
    assert "is being written by process" in line or "exists already" in line
    alone = Path(shutil.copytree(finished, tmp_path / "alone"))
    if resumed:
        assert sightline("train", "--run-dir", alone, "--resume", "steps=384").code == 0
    assert steps(run) == steps(alone), "nobody else has written"


def stop_between_writes(process: subprocess.Popen[str], run: Path) -> None:
    """In the middle of a write it would keep the lock, and nobody could take over."""
    while True:
        os.kill(process.pid, signal.SIGSTOP)
        time.sleep(0.05)  # threads on other cores stop a moment later
        with contextlib.suppress(BadInput), leases._locked(run, patience=0.0):
            return
        os.kill(process.pid, signal.SIGCONT)
        time.sleep(0.05)


def test_an_owner_that_was_stopped_and_woken_writes_nothing_more(
    sightline: Sightline, start: Callable[..., subprocess.Popen[str]], tmp_path: Path
) -> None:
    run = tmp_path / "run"
    first = start("train", *ENDLESS, "--run-dir", run, SIGHTLINE_LEASE_TIMEOUT="1")
    wait_for(lambda: (run / "checkpoints").is_dir() and len(list((run / "checkpoints").glob("step-*"))) > 1, first)
    stop_between_writes(first, run)
    early = start("train", "--run-dir", run, "--resume", SIGHTLINE_LEASE_TIMEOUT="600")
    assert early.wait(timeout=600) == 75
    assert f"process {first.pid}" in early.communicate()[1]
    time.sleep(1.5)
    second = start("train", "--run-dir", run, "--resume", SIGHTLINE_LEASE_TIMEOUT="1")
    wait_for(lambda: read_document(run / LEASE).get("pid") == second.pid, second)
    stop_between_writes(second, run)  # so that whatever changes now was changed by the first
    frozen = {file: file.stat().st_mtime_ns for file in run.rglob("*") if file.is_file()}
    os.kill(first.pid, signal.SIGCONT)
    _, err = first.communicate(timeout=600)
    assert first.returncode == 1, err
    assert f"belongs to process {second.pid}" in err.splitlines()[-1]
    assert {file: file.stat().st_mtime_ns for file in run.rglob("*") if file.is_file()} == frozen
    assert any(file.parent.parent.name == "checkpoints" for file in frozen)
    os.kill(second.pid, signal.SIGCONT)


# -- longer runs -------------------------------------------------------------------------------------------------------


def test_a_finished_run_can_be_made_longer(sightline: Sightline, finished: Path, tmp_path: Path) -> None:
    run = Path(shutil.copytree(finished, tmp_path / "run"))
    before = read_metrics(run / "metrics.jsonl")
    identity, short = read_document(run / "run.json")["id"], read_document(run / "result.json")
    copy = Path(shutil.copytree(run, tmp_path / "copy"))
    done = sightline("train", "--run-dir", run, "--resume", "steps=384")
    assert done.code == 0, done.err
    assert "resuming from step 256" in done.err
    after = read_metrics(run / "metrics.jsonl")
    assert after[: len(before)] == before, "what was measured stays"
    assert after[-1]["step"] == 384
    assert "steps: 384" in (run / "recipe.yaml").read_text()
    assert read_document(run / "run.json")["id"] == identity
    assert read_document(run / "result-256.json") == short
    again = sightline("train", "cartpole", *TINY, "steps=384", "--run-dir", copy, "--resume")
    assert again.code == 0, again.err
    without_time = [{k: v for k, v in record.items() if not k.startswith("time/")} for record in after]
    theirs = read_metrics(copy / "metrics.jsonl")
    assert [{k: v for k, v in record.items() if not k.startswith("time/")} for record in theirs] == without_time


@pytest.mark.parametrize("override", ["steps=128", "seed=3", "learner.gamma=0.5"])
def test_a_run_is_made_neither_shorter_nor_another(
    sightline: Sightline, finished: Path, tmp_path: Path, override: str
) -> None:
    run = Path(shutil.copytree(finished, tmp_path / "run"))
    recipe = (run / "recipe.yaml").read_bytes()
    refused = sightline("train", "cartpole", *TINY, override, "--run-dir", run, "--resume")
    assert (refused.code, len(refused.lines)) == (2, 1)
    assert override.partition("=")[0] in refused.err
    assert (run / "recipe.yaml").read_bytes() == recipe


@pytest.mark.parametrize("place", ["link", "link/below", "file/below", "a" * 300])
def test_a_folder_that_cannot_be_is_refused_before_anything_is_loaded(
    sightline: Sightline, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    (tmp_path / "file").write_text("a file")
    monkeypatch.setattr("sightline.models.encoders.load_encoder", lambda *_: pytest.fail("nothing is loaded"))
    refused = sightline("train", "cartpole", *TINY, "--run-dir", tmp_path / place)
    assert (refused.code, len(refused.lines)) == (2, 1), refused.err
    assert "--debug" not in refused.err
    assert not (tmp_path / "nowhere").exists() or place == "link/below"


def test_what_fails_while_it_is_prepared_leaves_no_folder(sightline: Sightline, tmp_path: Path) -> None:
    refused = sightline(
        "train", "cartpole", *TINY, "reward.encoder=local-dir:/nowhere", "--run-dir", tmp_path / "a" / "run"
    )
    assert refused.code == 2
    assert not (tmp_path / "a" / "run").exists()
