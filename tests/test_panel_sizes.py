"""How many episodes are evaluated where a recipe leaves it open, and in what numbers its encoder computes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from conftest import Finished
from sightline.config.loading import for_control, load_recipe
from sightline.config.recipe import ControlRecipe
from sightline.control import precision
from sightline.control.panel_sizes import evaluation_share, resolved_evaluation
from sightline.control.precision import with_dtypes
from sightline.control.training import length_of_run
from sightline.errors import BadInput


def recipe_of(*overrides: str) -> ControlRecipe:
    return for_control(load_recipe("cartpole", ["evaluation={}", *overrides]))


@pytest.mark.parametrize(
    ("steps", "horizon", "expected"),
    [
        # (steps between validations, episodes of a validation, of the test, of the untrained policy)
        (2_000, 500, (667, 5, 20, 20)),
        (10_000, 200, (2_000, 5, 25, 20)),
        (40_000, 200, (4_000, 10, 100, 20)),
        (1_000_000, 200, (100_000, 16, 100, 20)),
        (1, 1, (1, 5, 20, 20)),
    ],
)
def test_panels_by_steps_and_horizon(steps: int, horizon: int, expected: tuple[int, ...]) -> None:
    evaluation = resolved_evaluation(recipe_of(f"steps={steps}"), horizon)
    numbers = (evaluation.every, evaluation.episodes, evaluation.test_episodes, evaluation.untrained_episodes)
    assert numbers == expected
    assert evaluation.score_every == 4


@given(steps=st.integers(1, 10_000_000), horizon=st.integers(1, 10_000))
def test_evaluation_takes_no_more_steps_than_training_unless_it_would_say_nothing(steps: int, horizon: int) -> None:
    recipe = recipe_of(f"steps={steps}")
    evaluation = resolved_evaluation(recipe, horizon)
    share = evaluation_share(recipe.model_copy(update={"evaluation": evaluation}), horizon)
    fewest = (3 + 1) * 5 + 20 + 20
    assert share.steps <= max(1.25 * steps, 0) + fewest * horizon
    assert evaluation.test_episodes is not None and 20 <= evaluation.test_episodes <= 100


def test_what_is_said_counts() -> None:
    said = "evaluation={every: 100, episodes: 7, test_episodes: 9, untrained_episodes: 3, score_every: 2}"
    evaluation = resolved_evaluation(recipe_of(said), 10_000)
    assert evaluation == recipe_of(said).evaluation


@pytest.mark.parametrize(
    ("reward", "every"),
    [
        ("zero_shot", 4),
        ("progress", 1),
        ("ground_truth", 1),
        ("learned", 4),
        ("sum reward.terms=[{weight: 1, reward: {kind: zero_shot}}]", 4),
        ("sum reward.terms=[{weight: 1, reward: {kind: zero_shot}}, {weight: 1, reward: {kind: ground_truth}}]", 1),
    ],
)
def test_only_rewards_of_single_pictures_are_sampled(reward: str, every: int) -> None:
    plain = for_control(load_recipe(None, ["env=CartPole-v1", "goal=a pole", *f"reward.kind={reward}".split(" ", 1)]))
    assert resolved_evaluation(plain, 500).score_every == every


def test_a_reward_of_several_steps_is_not_sampled(sightline: Any) -> None:
    done: Finished = sightline(
        *("train", "mountain-car-progress", "steps=64", "evaluation.score_every=2", "evaluation.episodes=1")
    )
    assert done.code == 2
    assert sightline("train", "mountain-car-progress", "evaluation.score_every=2", "--dry-run").err == done.err
    assert "score_every=2 leaves out pictures, and this reward compares 8 steps" in done.err


def test_the_dry_run_tells_what_evaluation_takes(sightline: Any) -> None:
    done: Finished = sightline("train", "cartpole", "evaluation={every: 3000}", "--dry-run")
    # four validations of 7 episodes, a test of 30 and an untrained policy of 20, of 200 steps each; 12,032 are trained
    assert done.lines[-1] == "evaluation  at most 15,600 steps, 56 % of all, and 3,900 pictures, 24 % of all"


@pytest.mark.parametrize(
    ("steps", "every", "validations"),
    [
        # chunks of 16 steps in 8 environments: 128
        (12_000, 1_200, 10),
        (12_000, 3_000, 4),
        (12_000, 5_000, 3),
        (500, 50, 4),
        (100, 1_000, 1),
    ],
)
def test_validations_come_at_the_ends_of_chunks(steps: int, every: int, validations: int) -> None:
    more = "evaluation={episodes: 1, test_episodes: 1, untrained_episodes: 1, score_every: 1, every: " + f"{every}}}"
    recipe = recipe_of(more, "learner.chunk=16", "envs=8").model_copy(update={"steps": steps})
    assert evaluation_share(recipe, 10).steps == (validations + 2) * 10


def test_a_run_that_ends_before_anything_is_learned_says_so(sightline: Any) -> None:
    never: Finished = sightline("train", "cartpole", "steps=500", "--dry-run")
    assert "learning    begins after 1,000 steps, and the run ends before: raise steps" in never.lines
    late: Finished = sightline("train", "cartpole", "steps=2000", "--dry-run")
    assert "learning    begins" not in late.out + late.err
    told = length_of_run(recipe_of("steps=500", "evaluation={every: 50}"))
    assert told.endswith(
        "evaluated every 128; nothing is learned, since learner.learning_starts=1,000: raise steps, or lower it"
    )


def test_the_untrained_policy_plays_a_part_of_the_test() -> None:
    with pytest.raises(BadInput, match="untrained_episodes=30 are the first of test_episodes=21; lower the one"):
        recipe_of("evaluation={untrained_episodes: 30, test_episodes: 21}")
    evaluation = resolved_evaluation(recipe_of("evaluation={untrained_episodes: 30}", "steps=500"), 200)
    assert (evaluation.untrained_episodes, evaluation.test_episodes) == (30, 30)


# -- dtypes ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fast", [torch.bfloat16, torch.float32])
def test_a_run_says_what_its_encoders_compute_in(monkeypatch: pytest.MonkeyPatch, fast: torch.dtype) -> None:
    monkeypatch.setattr(precision, "fast_dtype", lambda *devices: fast)
    name = str(fast).removeprefix("torch.")

    def dtype_of(*overrides: str) -> dict[str, Any]:
        reward: dict[str, Any] = with_dtypes(recipe_of(*overrides)).reward.model_dump()
        return reward

    assert dtype_of()["dtype"] == name
    assert dtype_of("reward.device=cpu:0,cpu:1")["dtype"] == name
    assert dtype_of("reward.dtype=float16")["dtype"] == "float16"
    assert dtype_of("reward.kind=learned")["model"]["dtype"] == name
    terms = "reward.terms=[{weight: 1, reward: {kind: zero_shot}}, {weight: 1, reward: {kind: ground_truth}}]"
    assert dtype_of("reward.kind=sum", terms)["terms"][0]["reward"]["dtype"] == name


def test_a_device_that_is_not_there() -> None:
    with pytest.raises(BadInput, match="device 'cuda:77' is not available here"):
        with_dtypes(recipe_of("reward.device=cuda:77"))


def test_a_run_says_on_which_devices_it_computes(
    monkeypatch: pytest.MonkeyPatch, sightline: Any, tmp_path: Any
) -> None:
    from conftest import TINY

    line = "the policy learns on cpu (auto: "
    done: Finished = sightline("train", "cartpole", *TINY, "--run-dir", tmp_path / "without")
    assert done.code == 0 and line not in done.err, "without a GPU there is no choice"
    monkeypatch.setattr("sightline.control.trainer.has_gpu", lambda: True)
    done = sightline("train", "cartpole", *TINY, "reward.device=cpu:0,cpu:1", "--run-dir", tmp_path / "with")
    assert done.code == 0
    (said,) = [text for text in done.lines if line in text]
    assert said.endswith("weights; a GPU pays from 20,000,000 on); frames are read on cpu:0, cpu:1 (as stated)")


def test_a_run_keeps_its_dtype_when_it_goes_on(monkeypatch: pytest.MonkeyPatch, train_run: Any) -> None:
    from conftest import TINY

    monkeypatch.setattr(precision, "fast_dtype", lambda device: torch.bfloat16)
    run = train_run("cartpole", *TINY)
    monkeypatch.setattr(precision, "fast_dtype", lambda device: torch.float32)
    train_run("cartpole", *TINY, "steps=320", "--resume")
    from sightline.runs.folder import RunFolder

    recipe = for_control(RunFolder(run).recipe())
    assert recipe.reward.model_dump()["dtype"] == "bfloat16" and recipe.steps == 320


def test_a_torch_that_cannot_tell_what_the_processor_does_computes_in_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    """As torch 2.6, the oldest that is allowed."""
    from sightline.models.device import fast_dtype

    monkeypatch.delattr(torch.cpu, "get_capabilities", raising=False)
    assert fast_dtype(torch.device("cpu")) is torch.float32
