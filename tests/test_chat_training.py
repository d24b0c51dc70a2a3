"""Whole runs, tiny, taught by a chat model on a real socket: what is paid, what goes wrong, and what is asked again."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import re
import signal
import sqlite3
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from conftest import TINY, Finished
from fault_server import Asked, FaultServer, brighter, gemini_429, not_json, status
from sightline.labels.store import DATABASE, LabelStore, StoredLabel
from sightline.labels.types import Outcome, Segment
from sightline.models.chat import calling
from sightline.runs.metrics import read_metrics

Sightline = Callable[..., Finished]
RECIPE = "cartpole-preferences"
LITTLE = (
    *TINY,
    *(
        "steps=320",
        "reward.explore=128",
        "reward.every=64",
        "reward.questions=10",
        "reward.pool=40",
        "reward.reset_updates=3",
    ),
    *("reward.fitting.epochs=4", "reward.fitting.ensemble=2", "reward.frame_size=[64,64]"),
)
"""Two rounds of ten questions, asked at steps 128 and 192, of which each is asked in both orders."""
PRICES = ("reward.teacher.input_price=1000", "reward.teacher.output_price=3000")


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Failures are tried again after milliseconds."""
    init = calling.Limits.__init__
    monkeypatch.setattr(calling.Limits, "__init__", lambda self, *a, **k: init(self, *a, **{"first_wait": 0.002} | k))


def taught_by(server: FaultServer, *further: str) -> tuple[str, ...]:
    """The arguments of a run whose teacher is this server."""
    teacher = ("reward.teacher.kind=chat", "reward.teacher.model=m", f"reward.teacher.url={server.url}")
    return ("train", RECIPE, *LITTLE, *teacher, *PRICES, *further)


def lessons(run: Path) -> list[dict[str, Any]]:
    return [record for record in read_metrics(run / "metrics.jsonl") if "labels/asked" in record]


def labels_of(run: Path) -> list[StoredLabel]:
    with LabelStore(run / "labels") as store:
        return store.labels()


def check_ended(done: Finished, run: Path) -> None:
    assert done.code == 0, done.err
    assert "Traceback" not in done.err
    assert json.loads((run / "result.json").read_text())["episodes"] == 3


def test_a_chat_model_teaches_and_faults_pass(sightline: Sightline, tmp_path: Path) -> None:
    """Every token is accounted for, although a limit was reached and the server failed twice in mid-run."""
    faults = [None] * 4 + [status(429, retry_after="0.05"), None, status(500), not_json]
    with FaultServer(brighter, faults=faults) as server:
        done = sightline(*taught_by(server), "--run-dir", tmp_path / "run")
        probe, *asked = server.asked
    check_ended(done, tmp_path / "run")
    assert "failed" not in done.err
    labels, last = labels_of(tmp_path / "run"), lessons(tmp_path / "run")[-1]
    assert len(labels) == 20
    assert {label.answer.outcome for label in labels} <= {Outcome.FIRST, Outcome.SECOND, Outcome.EQUAL}
    exchanges = [exchange for label in labels for exchange in label.answer.exchanges]
    assert len(exchanges) == len(asked) == last["labels/requests"]
    errors = sorted(exchange.error[:22] for exchange in exchanges if exchange.error)
    assert errors[1:] == ["the server answers 429", "the server answers 500"]
    replied = [exchange for exchange in exchanges if not exchange.error]
    assert len(replied) == len(asked) - 3
    assert all(e.input_tokens > 200 and e.output_tokens > 3 for e in replied)
    read, wrote = (sum(getattr(e, f"{side}_tokens") for e in exchanges) for side in ("input", "output"))
    assert last["labels/tokens"] == read + wrote
    assert last["labels/cost"] == pytest.approx(read * 1000e-6 + wrote * 3000e-6)
    assert {picture.shape for a in asked for picture in a.pictures} == {(64, 64, 3)}
    assert len(probe.pictures) == 1


@pytest.mark.parametrize(("budget", "limit"), [("requests=13", 13), ("money=5", 5.0), ("tokens=4000", 4000)])
def test_a_budget_that_ends_in_mid_round_ends_the_asking_alone(
    sightline: Sightline, tmp_path: Path, budget: str, limit: float
) -> None:
    with FaultServer(brighter) as server:
        done = sightline(*taught_by(server, f"reward.budget.{budget}"), "--run-dir", tmp_path / "run")
    check_ended(done, tmp_path / "run")
    (said,) = (line for line in done.lines if "budget is reached" in line)
    assert "training goes on with" in said
    assert budget.split("=")[0] in said
    (only,) = lessons(tmp_path / "run")
    spent = only["labels/" + budget.split("=")[0].replace("money", "cost")]
    assert 0.6 * limit < spent <= limit
    assert 3 < only["labels/asked"] < 10
    assert len(server.asked) - 1 == only["labels/requests"], "nothing was asked later"


def test_a_refused_key_ends_it_before_it_begins(
    sightline: Sightline, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OWN_KEY", "wrong")
    with FaultServer(brighter, key="right") as server:
        done = sightline(*taught_by(server, "reward.teacher.key_env=OWN_KEY"), "--run-dir", tmp_path / "run")
        assert len(server.asked) == 1
    assert done.code == 2, done.err
    (line,) = done.lines
    assert "refuses the key in OWN_KEY" in line
    assert "wrong" not in line
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(("lives", "code"), [(1, 1), (21, 0)])
def test_a_server_that_dies_in_mid_run(sightline: Sightline, tmp_path: Path, lives: int, code: int) -> None:
    """After its check, or after the first of two rounds: either way the user is told what has failed."""
    with FaultServer(brighter, lives=lives) as server:
        done = sightline(*taught_by(server, "reward.teacher.retries=1"), "--run-dir", tmp_path / "run")
    assert done.code == code, done.err
    assert "Traceback" not in done.err
    assert sum("breaks the connection off" in line for line in done.lines) == 1, done.err
    labels = labels_of(tmp_path / "run")
    assert sum(label.answer.outcome is not Outcome.FAILED for label in labels) == (0 if lives == 1 else 10)


# -- interrupted while it is being taught ------------------------------------------------------------------------------


def pair_of(asked: Asked) -> frozenset[str]:
    """What a request shows, in whatever order."""
    return frozenset(Segment(picture[None], picture[:1, 0, 0]).digest for picture in asked.pictures)


def recorded(run: Path) -> int:
    """How many labels are on disk, seen from outside."""
    with contextlib.suppress(sqlite3.Error), contextlib.closing(sqlite3.connect(run / "labels" / DATABASE)) as database:
        return int(database.execute("SELECT COUNT(*) FROM labels").fetchone()[0])
    return 0


def wait_until(done: Callable[[], bool], process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + 90
    while not done():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_interrupted_in_mid_labelling_and_resumed(
    sightline: Sightline, sightline_process: Callable[..., Any], tmp_path: Path, number: signal.Signals
) -> None:
    """Two interviews are under way for ever; what was answered before is never asked again."""
    run, go_on = tmp_path / "run", threading.Event()
    number_of, held = itertools.count(1), []

    def reply(asked: Asked) -> str:
        if next(number_of) > 10:
            held.append(asked)
            go_on.wait(60)
        return brighter(asked)

    with FaultServer(reply) as server:
        two = ("reward.teacher.concurrency=2", "reward.teacher.timeout=3", "--run-dir", run)
        process = sightline_process(*taught_by(server, *map(str, two)))
        checkpoint = run / "checkpoints" / "step-000000000128" / "manifest.json"
        wait_until(lambda: len(held) >= 2 and recorded(run) >= 4 and checkpoint.exists(), process)
        if number == signal.SIGKILL:
            os.killpg(process.pid, number)
        else:
            process.send_signal(number)
        _, err = process.communicate(timeout=25)
        assert process.returncode == (-9 if number == signal.SIGKILL else 130), err
        assert "Traceback" not in err
        interrupted = labels_of(run)
        known = {frozenset(label.segments) for label in interrupted if label.answer.outcome is not Outcome.FAILED}
        assert 4 <= len(known) < 10
        given_up = [label.answer for label in interrupted if label.answer.outcome is Outcome.FAILED]
        if number == signal.SIGINT:
            assert [answer.reason for answer in given_up] == ["given up"] * 2
            assert all(answer.exchanges for answer in given_up), "what may have to be paid for is counted"
        go_on.set()
        before = len(server.asked)
        done = sightline("train", "--run-dir", run, "--resume")
        check_ended(done, run)
        again = [pair_of(asked) for asked in server.asked[before + 1 :]]
    assert "resuming from step" in done.err
    assert again
    assert not known & set(again)
    answered = [label for label in labels_of(run) if label.answer.outcome is not Outcome.FAILED]
    assert len(answered) == len({label.key for label in answered}) == 20


def test_a_quota_of_the_day_stops_a_run_that_goes_on_when_it_is_renewed(sightline: Sightline, tmp_path: Path) -> None:
    """The run saves, says why it stops, and buys no reply a second time."""
    run = tmp_path / "run"
    answered: list[tuple[bytes, ...]] = []

    def reply(asked: Asked) -> str:
        answered.append(tuple(picture.tobytes() for picture in asked.pictures))
        return brighter(asked)

    with FaultServer(reply, faults=[None] * 8 + [gemini_429("9s", per="Day")] * 100) as server:
        done = sightline(*taught_by(server, "reward.teacher.concurrency=2"), "--run-dir", run)
        assert done.code == 1 and "Traceback" not in done.err
        assert "answers no more: a quota is used up" in done.lines[-1]
        assert re.search(r"what was answered is kept; saved at step \d+, and --resume goes on", done.lines[-1])
        assert len(server.asked) <= 8 + 2  # no more than were under way
        again = sightline("train", "--run-dir", run, "--resume")
        assert again.code == 1 and "a quota is used up" in again.lines[-1]
        server.faults = []
        done = sightline("train", "--run-dir", run, "--resume")
    check_ended(done, run)
    pairs = [shown for shown in answered if len(shown) == 2]
    assert len(pairs) == len(set(pairs)), "bought twice"
    labels = [label for label in labels_of(run) if label.answer.outcome is not Outcome.FAILED]
    assert len(labels) == len({label.key for label in labels}) == 20
