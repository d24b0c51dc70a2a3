"""Speeds: each stage alone, the whole loop beside what they allow, and no recipe that asks somebody else."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from conftest import TINY, TINY_ON_POLICY, Finished
from sightline import speed
from sightline.errors import BadInput
from sightline.speed import Speed, measure_speed

AGENT = ("env_options={}", "rollouts.tasks=3", "rollouts.parallel=3", "update.minibatch=4", "episode_steps=2")


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(speed, "SECONDS", 0.05)


def rates(measured: Speed) -> dict[str, float]:
    return {stage.stage: stage.rate for stage in measured.stages}


def test_a_policy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    measured = measure_speed("cartpole", TINY)
    drawn, scored, learned = rates(measured).values()
    assert measured.unit == "steps/s" and measured.whole > 0
    assert [stage.unit for stage in measured.stages] == ["steps/s", "frames/s", "steps/s"]
    # One frame a step, so that rates add up as resistances do.
    assert 1 / measured.in_turn == pytest.approx(1 / drawn + 1 / scored + 1 / learned)
    assert measured.beside is not None
    assert 1 / measured.beside == pytest.approx(max(1 / scored, 1 / drawn + 1 / learned))
    assert "learns on cpu" in measured.devices and "read on cpu" in measured.devices
    assert list(tmp_path.glob("sightline*")) == []


def test_a_policy_that_is_scored_now_and_then() -> None:
    """Every fourth step is a frame: scoring allows four times as many steps as frames."""
    pendulum = ("env=Pendulum-v1", "goal=a rod standing upright", "learner.algorithm=PPO", "learner.frames_every=4")
    measured = measure_speed(None, (*pendulum, *TINY_ON_POLICY, "episode_steps=200"))
    assert measured.recipe == "Pendulum-v1"
    drawn, scored, learned = rates(measured).values()
    assert 1 / measured.in_turn == pytest.approx(1 / drawn + 1 / (4 * scored) + 1 / learned)


def test_without_pictures() -> None:
    measured = measure_speed("cartpole", (*TINY, "reward.kind=ground_truth"), device="cpu")
    assert set(rates(measured)) == {"simulated", "scored", "learned"}
    assert {stage.unit for stage in measured.stages} == {"steps/s"}
    assert "read on" not in measured.devices


def test_large_chunks_are_measured_in_part() -> None:
    """As slow encoders need: a chunk may take longer than anybody waits."""
    keys = ("learner.chunk=4000", "learner.buffer_size=40000", "learner.gradient_steps=4000")
    measured = measure_speed("cartpole", (*TINY, *keys, "reward.kind=ground_truth"))
    assert 0 < measured.share < 0.5


def test_an_agent() -> None:
    measured = measure_speed("numberline", AGENT)
    written, learned = rates(measured).values()
    assert measured.unit == "tokens/s" and measured.whole > 0 and measured.beside is None
    assert 1 / measured.in_turn == pytest.approx(1 / written + 1 / learned)


@pytest.mark.parametrize("keys", [("reward.kind=learned",), ("reward.kind=http", "reward.url=https://example.org")])
def test_nobody_is_asked(keys: tuple[str, ...]) -> None:
    with pytest.raises(BadInput, match="may cost money; add reward"):
        measure_speed("cartpole", keys)


def test_the_command(sightline: Callable[..., Finished]) -> None:
    done = sightline("doctor", "--speed", "cartpole", *TINY, "reward.kind=ground_truth")
    assert done.code == 0 and "the whole loop" in done.out and "one after the other" in done.out
    refusals = {
        ("cartpole",): "add --speed",
        ("--device", "cpu"): "add --speed",
        ("--speed", "nowhere"): "nowhere",
    }
    for arguments, expected in refusals.items():
        done = sightline("doctor", *arguments)
        assert done.code == 2 and len(done.lines) == 1 and expected in done.lines[0]
