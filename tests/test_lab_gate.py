"""The check of a reward before training: what passes, what is refused, and what a run keeps of it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from conftest import TINY, Finished
from sightline.control.resolving import resolve
from sightline.errors import BadInput
from sightline.reports.verdicts import check_verdict
from sightline.reward_lab.contenders import load_task
from sightline.reward_lab.gate import GatePictures, check_reward, judge_pictures
from sightline.rewards.base import Clip, RewardModel
from sightline.roles import check


class Scaled(RewardModel):
    """Mean of a frame times a factor."""

    def __init__(self, factor: float) -> None:
        self.factor = factor

    def embed(self, clip: Clip) -> np.ndarray:
        return np.asarray(clip.frames).mean(axis=(2, 3, 4), dtype=np.float32)

    def score(self, features: np.ndarray, clip: Clip) -> np.ndarray:
        return features * np.float32(self.factor)


class LeftColumn(RewardModel):
    """A twentieth of the mean, and all of the difference of the two columns at the left edge."""

    def reward(self, clip: Clip) -> np.ndarray:
        frames = np.asarray(clip.frames).astype(np.float32)
        edge = frames[:, :, :, 0].mean(axis=(2, 3)) - frames[:, :, :, 1].mean(axis=(2, 3))
        return np.asarray(frames.mean(axis=(2, 3, 4)) / 20 + edge, np.float32)


class Slow(Scaled):
    """Takes a second a picture, by a clock that it moves itself."""

    def __init__(self, clock: list[float]) -> None:
        super().__init__(1.0)
        self.clock = clock

    def embed(self, clip: Clip) -> np.ndarray:
        self.clock[0] += clip.first.size
        return super().embed(clip)


def greys(levels: Any) -> np.ndarray:
    """uint8[N, 4, 4, 3]; the left column is lighter by 40."""
    frames = np.stack([np.full((4, 4, 3), level, np.uint8) for level in levels])
    frames[:, :, 0] += 40
    return frames


PICTURES = GatePictures(goal=greys(range(100, 108)), other=greys(range(0, 80, 4)))
"""Means: 113.5 of the goal's pictures, 48 of the others."""


def test_the_numbers_of_a_check() -> None:
    found = judge_pictures(Scaled(1.0), [("nonsense", Scaled(0.5)), ("the baseline", Scaled(-1.0))], PICTURES)
    assert found["verdict"] == "passed"
    assert found["margin"] == pytest.approx(103.5 - 38)
    assert found["auroc"] == 1.0 and found["goal_pictures"] == 8 and found["other_pictures"] == 20
    assert found["controls"] == {"nonsense": pytest.approx(65.5 / 2), "the baseline": pytest.approx(-65.5)}
    assert found["noise"] == pytest.approx(10)  # the second column gets the 40 of the first


@pytest.mark.parametrize(
    ("model", "controls", "expected"),
    [
        (Scaled(0.0), [], "is the same for all 20 pictures"),
        (Scaled(-1.0), [], "in 0 % of pairs"),
        (Scaled(1.0), [("pyjamas", Scaled(0.7))], "the words 'pyjamas' would pay 45.850"),
        (Scaled(1.0), [("the baseline", Scaled(0.7))], "and the baseline would pay"),
        (LeftColumn(), [], "by one pixel changes the reward by"),
    ],
)
def test_rewards_that_are_refused(model: RewardModel, controls: Any, expected: str) -> None:
    found = judge_pictures(model, controls, PICTURES)
    assert found["verdict"] == "refused" and expected in found["reason"], found["reason"]


def test_a_slow_model_reads_fewer_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr("sightline.reward_lab.gate.time.monotonic", lambda: clock[0])
    many = GatePictures(greys(range(100, 132)), greys(range(64)).repeat(2, axis=0))
    found = judge_pictures(Slow(clock), [("nonsense", Scaled(0.1))], many)
    # 50 of 192 seconds are there: as large a share of 32 and of 128 pictures is read.
    assert (found["goal_pictures"], found["other_pictures"]) == (8, 33) and found["verdict"] == "passed"
    assert clock[0] < 85


def test_what_cannot_be_judged_is_said() -> None:
    few = judge_pictures(Scaled(1.0), [], GatePictures(PICTURES.goal[:3], PICTURES.other))
    assert few["verdict"] == "unknown" and "3 pictures of the goal, and 4 are needed" in few["reason"]
    none = judge_pictures(Scaled(1.0), [], GatePictures(PICTURES.goal, PICTURES.other[:0]))
    assert none["verdict"] == "unknown" and none["other_pictures"] == 0
    own = check_reward(resolve(load_task("cartpole", ["reward.kind=ground_truth"])))
    judged = check_reward(resolve(load_task("cartpole-judge", [])))
    assert judged["verdict"] == "unknown" and "several pictures in their order" in judged["reason"]
    assert own["verdict"] == "unknown" and "not of pictures alone" in own["reason"]


@pytest.mark.parametrize("recipe", ["cartpole", "mountain-car-progress"])
def test_bundled_recipes_pass(recipe: str) -> None:
    found = check_reward(resolve(load_task(recipe, [])), seed=1)
    assert found["verdict"] == "passed", found["reason"]
    assert found["goal_pictures"] >= 8 and found["other_pictures"] == 128 and len(found["controls"]) == 9


def test_nonsense_is_refused_and_no_run_is_begun(sightline: Callable[..., Finished], tmp_path: Path) -> None:
    run = tmp_path / "run"
    done = sightline("train", "cartpole", "goal=a committee of owls", "--check", "--run-dir", run)
    assert done.code == 2 and not run.exists()
    assert done.lines[-1].startswith("sightline: the reward fails the check: ")
    assert done.lines[-1].endswith("to train all the same leave out --check")


def test_a_run_keeps_its_check_and_the_report_quotes_it(sightline: Callable[..., Finished], tmp_path: Path) -> None:
    run = tmp_path / "run"
    done = sightline("train", "cartpole", *TINY, "--check", "--run-dir", run, "--json")
    assert done.code == 0 and any(line.startswith("check       passed: ") for line in done.lines)
    found = json.loads((run / "check.json").read_text())
    assert found["verdict"] == "passed"
    page = (run / "report.html").read_text()
    assert "Did the reward pass its check?" in page and f"{found['controls']['cheese for the parliament']}"
    assert "paid" in page


def test_pictures_of_the_users_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "goal").mkdir()
    for number in range(6):
        Image.fromarray(np.full((64, 64, 3), 40 * number, np.uint8)).save(tmp_path / "goal" / f"{number}.png")
    recipe = resolve(load_task("cartpole", []))
    # Plain grey is no pole that stands upright, and no picture that the encoder was taught.
    with pytest.raises(BadInput, match="fails the check"):
        check(recipe, tmp_path / "goal")
    assert "warning: --goal-pictures: these pictures are unlike those" in capsys.readouterr().err


def test_what_the_encoder_does_not_know_is_said_where_no_run_begins(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(BadInput, match="fails the check"):
        check(resolve(load_task("cartpole", ["goal=a blorp of owls"])))
    assert "warning: encoder 'bundled' does not know the word" in capsys.readouterr().err


def test_pictures_of_several_sizes_are_refused(tmp_path: Path) -> None:
    for side in (32, 80):
        Image.fromarray(np.zeros((side, side, 3), np.uint8)).save(tmp_path / f"{side}.png")
    warnings: list[str] = []
    (tmp_path / "broken.png").write_bytes(b"no picture")
    with pytest.raises(BadInput, match="several sizes"):
        check_reward(resolve(load_task("cartpole", [])), tmp_path, warn=warnings.append)
    assert "cannot be read: 1" in warnings[0]


def test_goal_pictures_need_the_check(sightline: Callable[..., Finished], tmp_path: Path) -> None:
    done = sightline("train", "cartpole", "--goal-pictures", tmp_path)
    assert done.code == 2 and "--goal-pictures are looked at by --check" in done.err


def test_the_verdict_of_a_check() -> None:
    assert check_verdict({}) is None
    verdict = check_verdict({"verdict": "warned", "reason": "it is noisy"})
    assert verdict is not None and (verdict.answer, verdict.because, verdict.good) == ("Warned", "It is noisy.", False)
