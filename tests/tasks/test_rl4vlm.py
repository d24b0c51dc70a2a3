"""Recipes with RL4VLM's settings, with a small random model of the class that they name (LLaVA 1.6 with Mistral)."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from conftest import Finished
from sightline.config.loading import for_agent, load_recipe
from tiny_families import build_family

GAMES = ("blackjack", "ezpoints", "household", "numberline", "points24")


@pytest.mark.parametrize("game", GAMES)
def test_recipes_have_the_published_settings(game: str) -> None:
    recipe = for_agent(load_recipe(f"{game}-rl4vlm"))
    policy, update, algorithm = recipe.policy, recipe.update, recipe.algorithm
    assert policy.lora is not None and (policy.lora.rank, policy.lora.alpha) == (128, 256)
    assert update.thought_weight == (0.2 if game == "household" else 0.5)
    assert (update.minibatch, update.epochs, update.clip_high, update.learning_rate) == (256, 4, 0.1, 1e-5)
    assert (algorithm.kind, algorithm.gamma, algorithm.gae_lambda) == ("ppo", 0.9, 0.95)  # type: ignore[attr-defined]
    assert recipe.steps == (12_000 if game == "household" else 15_000)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model") / "llava_next"
    build_family("llava_next", folder)
    return folder


@pytest.mark.parametrize("game", ["numberline", pytest.param("household", marks=pytest.mark.when_changed("tasks"))])
def test_they_train_a_model_of_that_class(
    game: str, model: Path, sightline: Callable[..., Finished], tmp_path: Path
) -> None:
    small = (
        *(f"policy.model={model}", "policy.lora.rank=2", "steps=4", "replies.max_tokens=80"),
        *("rollouts.tasks=2", "episode_steps=2", "env_options.render_size=[64,64]", "update.micro_batch=2"),
        *("evaluation.every=4", "evaluation.episodes=2", "evaluation.test_episodes=2", "videos=false"),
        "tensorboard=false",
    )
    done = sightline("train", f"{game}-rl4vlm", *small, "--run-dir", tmp_path / "run", "--json")
    assert done.code == 0, done.err
    assert 0 <= json.loads(done.out)["success_rate"] <= 1
    assert "replies cannot be read" in done.err, "a random model writes no JSON, and is told to be warm-started"
    kept = list((tmp_path / "run" / "checkpoints").glob("best-*"))
    assert kept and all((folder / "adapter_model.safetensors").exists() for folder in kept)
