"""A run notices while it goes that nothing can be learned, and says it once; so does its report."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sightline as sl
from sightline.control.noticing import RunWatch
from sightline.reports.verdicts import next_steps, verdicts
from sightline.rewards.base import Clip, RewardModel
from sightline.rewards.config import RewardSetup
from sightline.rewards.ground_truth import GroundTruthReward

TINY = {
    "env": "odd_pictures:Walk",
    "goal": "the bar is at the right",
    "steps": 64,
    "envs": 2,
    "learner.chunk": 16,
    "evaluation.episodes": 1,
    "evaluation.test_episodes": 1,
    "videos.final": False,
}


def trained(folder: Path, **settings: Any) -> sl.Run:
    return sl.train(None, **{**TINY, **settings}, run_dir=folder)


@pytest.mark.parametrize(
    ("settings", "constant", "warned"),
    [
        ({"env_options": {"draws": "black"}}, ["pictures", "reward"], "nothing can be learned from these pictures"),
        ({"env_options": {"draws": "start"}}, ["pictures"], "nothing can be learned from these pictures"),
        ({"env_options": {"draws": "bar"}}, None, None),
        (
            {"env_options": {"pays": "nothing"}, "reward.kind": "ground_truth"},
            ["reward"],
            "the environment's own reward",
        ),
        ({"env_options": {"draws": "black"}, "workers": "processes"}, ["pictures", "reward"], "nothing can be learned"),
    ],
)
def test_the_result_of_a_run_says_what_never_varied(
    tmp_path: Path, settings: dict[str, Any], constant: list[str] | None, warned: str | None
) -> None:
    run = trained(tmp_path / "run", **settings)
    assert run.result.get("constant") == constant
    said = (tmp_path / "run" / "warnings.json").read_text()
    assert said.count("nothing can be learned from these") <= 1, "it is said once"
    assert warned in said if warned else "nothing can be" not in said
    page = (tmp_path / "run" / "report.html").read_text()
    assert ("It could not" in page) == bool(constant) and not (constant and "Train longer" in page)


def test_verdicts_name_what_never_varied_in_place_of_more_steps() -> None:
    result = {"constant": ["pictures", "reward"], "success_rate": 0.0, "ci_low": 0.0, "ci_high": 0.1}
    (verdict,) = verdicts({"steps": 100}, result, [])
    assert (verdict.answer, verdict.good) == ("It could not", False)
    assert verdict.because == (
        "In all of training the pictures showed nothing that changed and the reward was the same at every step."
    )
    (step,) = next_steps({"steps": 100}, result, [])
    assert step.startswith("Look at the pictures")
    (step,) = next_steps({"steps": 100}, result | {"constant": ["reward"]}, [])
    assert step.startswith("Pay with something that varies")
    assert verdicts({"steps": 100}, {"constant": "damaged"}, []) == []


class Brightness(RewardModel):
    """Stands for a model of pictures."""


def clip(frames: np.ndarray, begins: int = 0) -> Clip:
    first = np.zeros(frames.shape[:2], bool)
    first[begins] = True
    states = np.arange(first.size, dtype=np.float32).reshape(*first.shape, 1)
    return Clip(first, frames=frames, states=states)


def test_a_watch_is_content_as_soon_as_pictures_and_rewards_vary() -> None:
    watch, rng = RunWatch(RewardSetup(Brightness(), encoder=object())), np.random.default_rng(0)  # type: ignore[arg-type]
    still = np.full((8, 2, 4, 4, 3), 9, np.uint8)
    watch.see(clip(still))
    watch.see_rewards(np.full((8, 2), 0.3))
    assert watch.constant == ["pictures", "reward"]
    (line,) = watch.complaints()
    assert line.startswith("nothing can be learned from these pictures: all pictures of the first 8 steps are of one")
    watch.see(clip(rng.integers(0, 256, still.shape, np.uint8)))
    assert watch.constant == ["reward"]
    (line,) = watch.complaints()
    assert line.startswith("nothing can be learned from this reward: it was the same in the first ")
    watch.see_rewards(np.array([[0.3, 0.31]]))
    assert watch.constant == [] and not list(watch.complaints())


@pytest.mark.parametrize(("paid", "constant"), [(1.0, []), (0.0, ["reward"])])
def test_a_reward_of_1_for_every_step_can_be_learned_from(paid: float, constant: list[str]) -> None:
    watch = RunWatch(RewardSetup(GroundTruthReward(), frames=False))
    watch.see_rewards(np.full((8, 2), paid))
    assert watch.constant == constant and not list(watch.complaints())
