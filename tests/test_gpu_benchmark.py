"""Of what `benchmarks/gpu.py` measures, rows that fail and parts that are too slow lose nothing else."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

import gpu
import running
from gpu import PARTS, Part, device_here, ended, lacks, measure, measure_all


@pytest.fixture(autouse=True)
def _smallest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running, "RESULTS", tmp_path)
    monkeypatch.setattr(gpu, "SMALLEST", True)


def one_fails(models: Path, device: str) -> Iterator[gpu.Row]:
    yield "first", lambda: 1.0
    yield "second", lambda: [][1]
    yield "a command that failed", lambda: sys.exit(2)
    yield "third", lambda: str(models)


def test_a_row_that_fails_loses_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(PARTS, "tried", Part(one_fails, 1))
    assert not measure("tried", tmp_path)
    numbers = running.kept(gpu.FILE, "tried")
    assert numbers["first"] == 1.0 and numbers["third"] == str(tmp_path)
    assert "IndexError" in numbers["second"]["failed"]
    assert "SystemExit" in numbers["a command that failed"]["failed"]
    assert numbers["torch"] and numbers["device"]


def test_rows_are_written_as_they_come(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[dict[str, Any]] = []

    def rows(models: Path, device: str) -> Iterator[gpu.Row]:
        yield "first", lambda: 1.0
        seen.append(running.kept(gpu.FILE, "tried"))
        yield "second", lambda: 2.0

    monkeypatch.setitem(PARTS, "tried", Part(rows, 1))
    assert measure("tried", tmp_path)
    assert seen[0]["first"] == 1.0 and "second" not in seen[0]


def test_parts_that_lack_something_are_named_and_the_others_run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    parts = {
        "no package": Part(one_fails, 1, ("numpy", "no_such_package")),
        "slow": Part(one_fails, 7),
        "last": Part(one_fails, 3),
    }
    asked: list[tuple[str, float]] = []

    def run(command: list[str], seconds: float) -> str | None:
        asked.append((command[2], seconds))
        running.keep(gpu.FILE, command[2], {"first": 1.0})
        return "not done after 7 s" if command[2] == "slow" else None

    monkeypatch.setattr(gpu, "PARTS", parts)
    monkeypatch.setattr(gpu, "ended", run)
    assert not measure_all()
    assert asked == [("slow", 7), ("last", 3)]
    assert "no package: needs no_such_package" in capsys.readouterr().out
    assert running.kept(gpu.FILE, "no package") == {"skipped": "needs no_such_package"}
    assert running.kept(gpu.FILE, "slow") == {"first": 1.0, "ended": "not done after 7 s"}
    assert running.kept(gpu.FILE, "last") == {"first": 1.0}


def test_a_command_that_takes_too_long_is_ended_with_its_children(tmp_path: Path) -> None:
    note = tmp_path / "child"
    starts = f"sleep 60 & echo $! > {note}; mv {note} {note}.pid; sleep 60"
    assert ended(["bash", "-c", starts], 2) == "not done after 2 s"
    child = int(note.with_suffix(".pid").read_text())
    deadline = time.monotonic() + 30
    while _lives(child):  # a busy machine takes a while to end it
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert ended([sys.executable, "-c", "raise SystemExit(3)"], 60) == "ended with code 3"
    assert ended([sys.executable, "-c", ""], 60) is None


def _lives(process: int) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        return psutil.Process(process).status() != psutil.STATUS_ZOMBIE
    return False


def test_all_parts_together_take_nine_minutes_at_most() -> None:
    assert sum(part.seconds for part in PARTS.values()) <= 540


def test_without_a_gpu_only_the_smallest_size_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu.torch.cuda, "is_available", lambda: False)
    assert device_here() == "cpu" and lacks(Part(one_fails, 1)) is None
    monkeypatch.setattr(gpu, "SMALLEST", False)
    assert device_here() is None and lacks(Part(one_fails, 1)) == "needs a GPU"
