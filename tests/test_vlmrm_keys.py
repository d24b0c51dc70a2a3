"""Configurations of vlmrm: a whole one becomes a recipe, and each of their keys is answered with ours."""

from __future__ import annotations

import copy
import json
import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from conftest import Finished
from sightline import roles
from sightline.config.learners import ActionNoise, DQNLearner, SACLearner
from sightline.config.loading import _block_at, leaves, load_recipe
from sightline.config.recipe import ControlRecipe, Recipe
from sightline.config.vlmrm import COUNTERPARTS, convert
from sightline.errors import BadInput
from sightline_tasks.cameras import View
from sightline_tasks.humanoid.env import CAMERAS

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
    assert (recipe.learner.chunk, recipe.learner.hidden) == (200, (64, 64))
    assert recipe.learner.action_noise == ActionNoise(sigma=0.2)
    assert recipe.checkpoints.every == 10_000


def test_other_unknown_keys_are_told_of_as_before() -> None:
    with pytest.raises(BadInput, match="unknown key 'rl'"):
        load_recipe("cartpole", ["rl.nonsense=3"])
    with pytest.raises(BadInput, match="unknown key 'logging'"):
        load_recipe("cartpole", ["logging=3"])


# -- whole configurations ----------------------------------------------------------------------------------------------

KNEELING: dict[str, Any] = {
    "env_name": "Humanoid-v4",
    "base_path": "/data/runs",
    "seed": 42,
    "description": "Humanoid kneeling",
    "tags": ["kneeling", "clip"],
    "reward": {
        "name": "clip",
        "pretrained_model": "ViT-bigG-14/laion2b_s39b_b160k",
        "batch_size": 3200,
        "alpha": 0.0,
        "target_prompts": ["a humanoid robot kneeling"],
        "baseline_prompts": ["a humanoid robot"],
        "cache_dir": "/data/cache",
        "camera_config": {
            "trackbodyid": 1,
            "distance": 3.5,
            "lookat": [0.0, 0.0, 1.0],
            "elevation": -10.0,
            "azimuth": 180.0,
        },
    },
    "rl": {
        "policy_name": "MlpPolicy",
        "n_steps": 10_000_000,
        "n_envs_per_worker": 8,
        "episode_length": 100,
        "learning_starts": 50_000,
        "train_freq": 100,
        "batch_size": 512,
        "gradient_steps": 100,
        "tau": 0.005,
        "gamma": 0.95,
        "learning_rate": 6e-4,
    },
    "logging": {"checkpoint_freq": 128_000, "video_freq": 128_000},
}
"""The published settings of the humanoid's kneeling."""


def converted(document: dict[str, Any]) -> Recipe:
    recipe, notes = convert(document)
    assert all("\n" not in note for note in notes)
    return load_recipe(recipe)


def test_the_published_humanoid_is_our_recipe_of_that_name() -> None:
    """Ours says how many environments there were on four GPUs, and that they have processes of their own."""
    theirs, ours = (roles.complete(recipe) for recipe in (converted(KNEELING), load_recipe("humanoid-kneeling-vlmrm")))
    first, second = leaves(theirs), leaves(ours)
    different = {key for key in {*first, *second} if first.get(key) != second.get(key)}
    camera = {key for key in different if key.startswith("env_options.camera")}
    assert different == {"description", "envs", "workers"} | camera
    view = {"look_at": [0.0, 0.0, 1.0], "distance": 3.5, "azimuth": 180.0, "elevation": -10.0}
    assert theirs.env_options["camera"] == view
    assert CAMERAS[ours.env_options["camera"]] == View((0.0, 0.0, 1.0), 3.5, 180, -10)


def test_a_configuration_of_cartpole() -> None:
    recipe = converted(yaml.safe_load(THEIRS))
    assert isinstance(recipe, ControlRecipe) and isinstance(recipe.learner, DQNLearner)
    assert (recipe.env, recipe.steps, recipe.envs, recipe.episode_steps) == ("cartpole", 3_000_000, 2, 200)
    assert (recipe.learner.exploration_fraction, recipe.learner.target_update_interval) == (0.2, 10)
    assert recipe.learner.action_noise is None  # theirs ignores it for DQN
    assert recipe.description == "A published kind of configuration (training, CartPole-v1, CLIP)"


def test_what_holds_there_without_being_said_holds_in_the_recipe() -> None:
    document = yaml.safe_load(THEIRS) | {"env_name": "MountainCarContinuous-v0"}
    document["rl"] = {key: document["rl"][key] for key in ("n_steps", "n_envs_per_worker", "episode_length")}
    document["rl"] |= {"learning_starts": 100, "train_freq": 200, "batch_size": 64, "gradient_steps": 1}
    del document["reward"]["textured"]
    recipe = converted(document)
    assert isinstance(recipe, ControlRecipe) and isinstance(recipe.learner, SACLearner)
    assert recipe.env == "mountain-car-textured"
    assert (recipe.learner.tau, recipe.learner.gamma, recipe.learner.learning_rate) == (0.005, 0.99, 3e-4)
    assert (recipe.learner.buffer_size, recipe.learner.ent_coef) == (1_000_000, "auto")
    assert recipe.learner.hidden == (256, 256)


def test_their_noises() -> None:
    document = copy.deepcopy(KNEELING)
    drift = {"name": "OrnsteinUhlenbeckActionNoise", "mean": 0.1, "sigma": 0.2, "theta": 0.3, "dt": 0.01}
    for theirs, ours in (
        (drift, ActionNoise(kind="ornstein_uhlenbeck", mean=0.1, sigma=0.2, theta=0.3, dt=0.01)),
        ({"name": "NormalActionNoise", "mean": 0.0, "sigma": 0.2}, ActionNoise(sigma=0.2)),
        ({"name": "NormalActionNoise", "mean": 0.1, "sigma": 0.2}, ActionNoise(mean=0.1, sigma=0.2)),
    ):
        document["rl"]["action_noise"] = theirs
        recipe = converted(document)
        assert isinstance(recipe, ControlRecipe) and isinstance(recipe.learner, SACLearner)
        assert recipe.learner.action_noise == ours


def test_a_humanoid_that_does_something_else() -> None:
    document = copy.deepcopy(KNEELING)
    document["reward"]["target_prompts"] = ["a humanoid robot dancing"]
    recipe, notes = convert(document)
    assert load_recipe(recipe).env == "Humanoid-v5"
    assert recipe["env_options"]["default_camera_config"]["distance"] == 3.5
    assert any("success is unknown" in note for note in notes)
    assert any("multiply envs" in note for note in notes)


def test_converting_on_the_command_line(sightline: Callable[..., Finished], tmp_path: Path) -> None:
    theirs, ours = tmp_path / "theirs.json", tmp_path / "ours.yaml"
    theirs.write_text(json.dumps(KNEELING))
    refused = sightline("train", theirs)
    assert refused.code == 2 and "'sightline convert'" in refused.err
    done = sightline("convert", theirs)
    assert done.code == 0, done.err
    assert "note: envs=8" in done.err
    ours.write_text(done.out)
    tried = sightline("train", ours, "--dry-run")
    assert tried.code == 0, tried.err
    broken = [KNEELING | {"reward": KNEELING["reward"] | {"camera_config": "front"}}]
    broken += [KNEELING | {"rl": KNEELING["rl"] | {key: "x"}} for key in ("rl_kwargs", "policy_kwargs")]
    broken += [KNEELING | {"rl": KNEELING["rl"] | {"n_envs_per_worker": None}}, KNEELING | {"env_name": None}]
    said_of_broken = ("camera_config", "rl_kwargs", "policy_kwargs", "n_envs_per_worker", "env_name")
    for text, said in (
        *(("env: cartpole", "no configuration of vlmrm"), ("[1]", "must be a YAML map")),
        *zip(map(json.dumps, broken), said_of_broken, strict=True),
    ):
        theirs.write_text(text)
        wrong = sightline("convert", theirs)
        assert wrong.code == 2 and said in wrong.err and len(wrong.lines) == 1
