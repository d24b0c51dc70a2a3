"""Runs that are paid by a server: one that dies and comes back changes nothing of them."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from conftest import TINY, TINY_ON_POLICY, Finished, result_of
from reward_servers import telling
from sightline.reports.pages import whole
from sightline.rewards.servers import client
from sightline.rewards.servers.answers import FILE, KeptAnswers
from sightline.rewards.servers.wire import FormPart
from sightline.runs.metrics import read_metrics

Sightline = Callable[..., Finished]
LEARNERS = {
    "off-policy": ("cartpole", *TINY),
    "on-policy": ("cartpole", *TINY_ON_POLICY, "learner.algorithm=PPO"),
    "noisy": ("mountain-car", *TINY, "learner.algorithm=SAC", "learner.use_sde=true"),
}


@pytest.fixture(autouse=True)
def _quick_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "FIRST_WAIT", 0.001)


def brightness(parts: dict[str, FormPart]) -> dict[str, Any]:
    clips = json.loads(parts["request"].content)["clips"]
    frames = [np.load(io.BytesIO(parts[clip["frames"]].content), allow_pickle=False) for clip in clips]
    rows = [(clip.mean(axis=(1, 2, 3)) / 255).astype(np.float32).tolist() for clip in frames]
    return {"version": 1, "model": "a model", "rewards": rows}


def test_what_rewards_have_cost_is_said_at_the_end_and_in_the_report(sightline: Sightline, tmp_path: Path) -> None:
    with telling(lambda parts, number: brightness(parts)) as server:
        done = sightline("train", *told("off-policy", server.address, tmp_path / "run"))
        # All that was asked in training, tests and pictures; and what the server is.
        requests = len(server.asked) + 1
    frames = int(KeptAnswers(tmp_path / "run" / FILE).costs()["frames"])
    line = f"{whole(requests)} requests, {whole(frames)} frames, "
    assert f"rewards     {line}" in done.out
    page = (tmp_path / "run" / "report.html").read_text("utf-8")
    assert f"<dt>Rewards have cost</dt><dd>{line}" in page


def told(name: str, address: str, run: Path) -> list[str]:
    return [*LEARNERS[name], f"reward={{kind: http, url: '{address}', batch: 16, retries: 0}}", f"--run-dir={run}"]


def numbers(run: Path) -> list[dict[str, Any]]:
    """What a run has logged, but for times and what was paid."""
    kept = []
    for row in read_metrics(run / "metrics.jsonl"):
        names = [name for name in row if not name.startswith("time") and name not in COUNTED]
        kept.append({name: row[name] for name in names})
    return kept


COUNTED = {f"reward/{name}" for name in ("requests", "failed_requests", "seconds", "frames", "unanswered")}


@pytest.mark.parametrize("name", LEARNERS)
def test_a_server_that_dies_and_comes_back_changes_nothing(sightline: Sightline, tmp_path: Path, name: str) -> None:
    with telling(lambda parts, number: brightness(parts)) as server:
        whole = tmp_path / "whole"
        assert sightline("train", *told(name, server.address, whole)).code == 0
        total = len(server.asked)
        # It dies at several places of the run: in training, in an evaluation, at the end.
        for share in (0.2, 0.5, 0.8):
            run = tmp_path / f"{share}"
            alive_until = len(server.asked) + int(share * total)
            server.answer = lambda parts, number, end=alive_until: brightness(parts) if number < end else (500, b"dead")
            done = sightline("train", *told(name, server.address, run))
            assert done.code == 1 and "gives no rewards" in done.lines[-1] and "--resume goes on" in done.lines[-1]
            before = len(server.asked)
            server.answer = lambda parts, number: brightness(parts)
            done = sightline("train", *told(name, server.address, run), "--resume")
            assert done.code == 0, done.err
            assert numbers(run) == numbers(whole) and result_of(run) == result_of(whole)
            # What was answered before is not paid for again.
            assert len(server.asked) - before <= total - int(share * total) + client.AT_ONCE


def bright(parts: dict[str, FormPart], number: int) -> Any:
    return brightness(parts)


def test_a_run_goes_on_with_servers_at_other_addresses(sightline: Sightline, tmp_path: Path) -> None:
    with telling(lambda parts, number: brightness(parts)) as server:
        assert sightline("train", *told("off-policy", server.address, tmp_path / "whole")).code == 0
        half = len(server.asked) // 2
    run = tmp_path / "run"
    with telling(lambda parts, number: brightness(parts) if number < half else (500, b"dead")) as server:
        done = sightline("train", *told("off-policy", server.address, run))
        assert done.code == 1 and "gives no rewards" in done.lines[-1]
    with telling(bright) as one, telling(bright) as two:
        # Another word of the recipe is another run, but an address is none.
        assert sightline("train", f"--run-dir={run}", "reward.batch=8", "--resume").code == 2
        done = sightline("train", f"--run-dir={run}", f"reward.url=[{one.address}, {two.address}]", "--resume")
        assert done.code == 0, done.err
        assert one.asked and two.asked
    assert numbers(run) == numbers(tmp_path / "whole") and result_of(run) == result_of(tmp_path / "whole")
    assert two.address in (run / "recipe.yaml").read_text("utf-8")
