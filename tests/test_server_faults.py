"""Questions to a chat server that does everything wrong, small: `benchmarks/server_faults.py` asks more of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

import server_faults
from fault_kinds import FATAL, KEY, KINDS, PERSISTENT, SLOW
from fault_server import FaultServer, brighter
from server_faults import KEY_ENV, Done, Plan, command, examine, fill, for_good, until_finished
from sightline.models.chat import calling

QUESTIONS = 60


@pytest.fixture
def start(sightline: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> Callable[[Sequence[str]], Done]:
    """The command, in this process; failures are tried again after milliseconds, and no server is waited for."""
    init = calling.Limits.__init__
    monkeypatch.setattr(calling.Limits, "__init__", lambda self, *a, **k: init(self, *a, **{"first_wait": 0.002} | k))
    monkeypatch.setenv(KEY_ENV, KEY)

    def carried_out(arguments: Sequence[str]) -> Done:
        done = sightline(*arguments)
        return Done(done.code, done.out, done.err)

    return carried_out


def test_every_kind_of_fault_ends_as_it_should(tmp_path: Path, start: Any) -> None:
    """Each question has one label, the right one, bought once."""
    kinds = [kind for kind in KINDS if kind not in SLOW and " in 1 s" not in kind and kind != "429 with a date"]
    plan = Plan.drawn(QUESTIONS, kinds, seed=0, share=0.95)
    store = tmp_path / "store"
    fill(store, QUESTIONS)
    with FaultServer(brighter, plan.choose, key=KEY) as server:
        commands = until_finished(plan, command(store, server, QUESTIONS), start)
    result = examine(store, server, plan, commands)
    assert result["wrong"] == []
    assert result["bought twice"] == 0 and result["kinds met"] >= 0.8 * len(kinds)


@pytest.mark.parametrize("kind", [*FATAL, *PERSISTENT])
def test_what_nothing_is_answered_after_ends_in_a_line(tmp_path: Path, start: Any, kind: str) -> None:
    assert for_good(tmp_path, kind, start)["wrong"] == []


@pytest.mark.parametrize("honours_keys", [False, True])
def test_a_kill_costs_no_more_than_what_was_under_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, start: Any, honours_keys: bool
) -> None:
    """And nothing at all where the server heeds idempotency keys."""
    monkeypatch.setattr(server_faults, "AT_ONCE", 4)
    monkeypatch.setattr(server_faults, "carry_out", start)  # the commands that are not killed
    kinds = ["500", "half", "reset", "gzip", "413", "refusal"]
    result = server_faults.with_kills(tmp_path, 20, seed=0, kills=1, honours_keys=honours_keys, kinds=kinds)
    assert result["wrong"] == [] and result["kills"] == 1
