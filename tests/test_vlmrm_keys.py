"""Configurations of vlmrm: each of their keys is answered with ours."""

from __future__ import annotations

import re
import shlex
from typing import Any

import pytest
import yaml

from sightline.config.loading import _block_at, load_recipe
from sightline.config.recipe import ControlRecipe
from sightline.config.vlmrm import COUNTERPARTS
from sightline.errors import BadInput

THEIRS = """
env_name: CartPole-v1
base_path: /data/runs/training
seed: 42
description: A published kind of configuration
tags: [training, CartPole-v1, CLIP]
reward:
  name: clip
  pretrained_model: ViT-g-14/laion2b_s34b_b88k
  batch_size: 1600
  alpha: 0.5
  target_prompts: [pole vertically upright, on top of the cart]
  baseline_prompts: [pole and cart]
  cache_dir: /data/.cache
  camera_config: {distance: 3.5, azimuth: 180.0}
  textured: true
rl:
  policy_name: MlpPolicy
  n_steps: 3000000
  n_envs_per_worker: 2
  episode_length: 200
  learning_starts: 75000
  train_freq: 200
  batch_size: 64
  gradient_steps: 50
  action_noise: {name: NormalActionNoise, mean: 0.0, sigma: 0.2}
  tau: 0.01
  gamma: 0.98
  learning_rate: 0.0023
  buffer_size: 50000
  ent_coef: auto
  use_sde: false
  target_update_interval: 10
  policy_kwargs: {net_arch: [64, 64]}
  rl_kwargs: {exploration_fraction: 0.2}
logging:
  checkpoint_freq: 10000
  video_freq: 10000
  tensorboard_freq: 100
"""
SHARED = ("seed", "description", "reward.alpha", "reward.batch_size")
"""Keys that both have, in the same meaning."""


def leaves_of(document: dict[str, Any]) -> set[str]:
    inner = {f"{name}.{key}" for name in ("reward", "rl", "logging") for key in document[name]}
    return {name for name in document if name not in ("reward", "rl", "logging")} | inner


def said_of(document: Any) -> str:
    with pytest.raises(BadInput) as told:
        load_recipe(yaml.safe_dump(document))
    assert "\n" not in str(told.value)
    return str(told.value)


@pytest.mark.parametrize("ours", sorted({found.key for found in COUNTERPARTS.values() if found.key} | set(SHARED)))
@pytest.mark.parametrize("algorithm", ["SAC", "DQN"])
def test_every_counterpart_is_a_key_of_a_recipe(ours: str, algorithm: str) -> None:
    """Some are of one algorithm only, which the note says."""
    only = {"learner.ent_coef": "SAC", "learner.use_sde": "SAC", "learner.target_update_interval": "DQN"}
    if only.get(ours, algorithm) != algorithm:
        notes = {found.note for found in COUNTERPARTS.values() if found.key == ours}
        assert any(f"learner.algorithm={only[ours]}" in note for note in notes)
        return
    *parents, last = ours.split(".")
    owner = _block_at({"learner": {"algorithm": algorithm}}, parents)
    assert owner is not None and last in owner.model_fields


@pytest.mark.parametrize("theirs", sorted(COUNTERPARTS))
def test_each_key_alone_is_answered_in_one_line(theirs: str) -> None:
    counterpart = COUNTERPARTS[theirs]
    assert counterpart.key or counterpart.note
    with pytest.raises(BadInput) as told:
        load_recipe("cartpole", [f"{theirs}=7"])
    assert f"{theirs}: " in str(told.value) and "\n" not in str(told.value)
    assert counterpart.key in str(told.value) and counterpart.note in str(told.value)


def test_all_keys_of_a_configuration_are_answered_at_once() -> None:
    document = yaml.safe_load(THEIRS)
    assert leaves_of(document) - set(SHARED) <= set(COUNTERPARTS)
    said = said_of(document)
    for key in leaves_of(document) - set(SHARED):
        assert f"{key}: " in said
    assert not re.search(r"\b(seed|description|reward\.alpha|reward\.batch_size): ", said)


def test_values_are_translated_and_what_is_said_can_be_trained() -> None:
    said = said_of(yaml.safe_load(THEIRS))
    phrases = [phrase.partition(": say ")[2].partition(" (")[0] for phrase in said.split("; ")]
    ours = [shlex.split(phrase)[0] for phrase in phrases if "=" in phrase]
    algorithm = ["learner.algorithm=DQN"]
    # What is the other algorithm's is left out, as its note says.
    ours = [pair for pair in ours if not pair.startswith(("learner.ent_coef", "learner.use_sde"))]
    recipe = load_recipe(None, [*algorithm, *ours])
    assert isinstance(recipe, ControlRecipe)
    assert (recipe.env, recipe.steps, recipe.envs, recipe.episode_steps) == ("cartpole", 3_000_000, 2, 200)
    assert recipe.goal == ("pole vertically upright", "on top of the cart")
    assert recipe.baseline == ("pole and cart",)
    assert recipe.reward.kind == "zero_shot" and recipe.reward.encoder == "ViT-g-14/laion2b_s34b_b88k"
    assert (recipe.learner.chunk, recipe.learner.hidden, recipe.learner.action_noise) == (200, (64, 64), 0.2)
    assert recipe.checkpoints.every == 10_000


def test_other_unknown_keys_are_told_of_as_before() -> None:
    with pytest.raises(BadInput, match="unknown key 'rl'"):
        load_recipe("cartpole", ["rl.nonsense=3"])
    with pytest.raises(BadInput, match="unknown key 'logging'"):
        load_recipe("cartpole", ["logging=3"])
