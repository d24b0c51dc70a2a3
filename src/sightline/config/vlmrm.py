"""Configurations of vlmrm (Rocamonde et al., ICLR 2024): a whole one as a recipe, and each key's counterpart."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from sightline import registry
from sightline.config.learners import DQNLearner, SACLearner
from sightline.errors import BadInput

_ENVS = {
    "CartPole-v1": "cartpole",
    "MountainCarContinuous-v0": "mountain-car",
    "Humanoid-v4": "Humanoid-v5",
}


@dataclass(frozen=True)
class Counterpart:
    """Counterpart of a key of vlmrm in our recipes.

    Attributes:
        key: of our recipes; empty if there is none.
        note: what else there is to know, or what to do where there is no key.
        value: their value -> ours; None if that is no matter of translation.
    """

    key: str
    note: str = ""
    value: Callable[[Any], Any] | None = None


def _same(value: Any) -> Any:
    return value


def _from_table(table: dict[str, str]) -> Callable[[Any], Any]:
    return lambda value: table.get(str(value))


def _noise(noise: Any) -> Any:
    """Their noise on actions as ours: a deviation where that says it all."""
    if not isinstance(noise, dict):
        return None
    if noise.get("name") == "OrnsteinUhlenbeckActionNoise":
        settings = {key: noise[key] for key in ("sigma", "mean", "theta", "dt") if noise.get(key) is not None}
        return {"kind": "ornstein_uhlenbeck", **settings}
    if noise.get("mean"):
        return {"sigma": noise.get("sigma"), "mean": noise["mean"]}
    return noise.get("sigma")


def _layers(options: Any) -> Any:
    if not isinstance(options, dict):
        return None
    return options.get("net_arch")


COUNTERPARTS: dict[str, Counterpart] = {
    "env_name": Counterpart("env", value=lambda name: _ENVS.get(str(name), name)),
    "base_path": Counterpart("", "say --run-dir beside the command"),
    "tags": Counterpart("description", "write them into the text"),
    "run_hash": Counterpart("", "leave it out: a run folder is named by recipe and time"),
    "commit_hash": Counterpart("", "leave it out: a run folder keeps the versions of all packages"),
    **dict.fromkeys(
        ("run_name", "run_path", "dump_path", "checkpoints_path", "log_file", "tb_dir"),
        Counterpart("", "leave it out: a run folder has its own places; --run-dir names it"),
    ),
    "render_dim": Counterpart("", "leave it out: frames are drawn as large as the encoder reads them"),
    "is_clip_rewarded": Counterpart("reward.kind", value=lambda clip: "zero_shot" if clip else "ground_truth"),
    "reward.name": Counterpart("reward.kind", value=_from_table({"clip": "zero_shot", "ground_truth": "ground_truth"})),
    "reward.pretrained_model": Counterpart("reward.encoder", value=_same),
    "reward.target_prompts": Counterpart("goal", "a sentence or a list", _same),
    "reward.baseline_prompts": Counterpart("baseline", "a sentence or a list", _same),
    "reward.cache_dir": Counterpart("", "set the environment variable HF_HOME"),
    "reward.camera_config": Counterpart("env_options", "as default_camera_config, for Gymnasium's MuJoCo environments"),
    "reward.textured": Counterpart("env", "env=mountain-car-textured is the textured one"),
    **dict.fromkeys(
        ("reward.embed_dim", "reward.pretrained_config_dict"), Counterpart("", "leave it out: the encoder knows it")
    ),
    "rl.policy_name": Counterpart("learner.hidden", "the network follows from the observations; its widths are said"),
    "rl.n_steps": Counterpart("steps", value=_same),
    "rl.n_envs_per_worker": Counterpart("envs", "all environments together", _same),
    "rl.n_envs": Counterpart("envs", value=_same),
    **dict.fromkeys(("rl.n_workers", "rl.device_ids"), Counterpart("reward.device", "cuda:all, or a list of GPUs")),
    "rl.episode_length": Counterpart("episode_steps", value=_same),
    "rl.learning_starts": Counterpart("learner.learning_starts", value=_same),
    "rl.train_freq": Counterpart("learner.chunk", "vector steps, which need not be whole episodes", _same),
    "rl.batch_size": Counterpart("learner.batch_size", value=_same),
    "rl.gradient_steps": Counterpart("learner.gradient_steps", value=_same),
    "rl.action_noise": Counterpart("learner.action_noise", "a deviation, or a block", _noise),
    "rl.tau": Counterpart("learner.tau", value=_same),
    "rl.gamma": Counterpart("learner.gamma", value=_same),
    "rl.learning_rate": Counterpart("learner.learning_rate", value=_same),
    "rl.buffer_size": Counterpart("learner.buffer_size", value=_same),
    "rl.ent_coef": Counterpart("learner.ent_coef", "with learner.algorithm=SAC", _same),
    "rl.use_sde": Counterpart("learner.use_sde", "with learner.algorithm=SAC", _same),
    "rl.target_update_interval": Counterpart("learner.target_update_interval", "with learner.algorithm=DQN", _same),
    "rl.policy_kwargs": Counterpart("learner.hidden", "the widths; all else in learner.options.policy_kwargs", _layers),
    "rl.rl_kwargs": Counterpart(
        "learner.options", "but for what has a key of its own there, such as learner.exploration_fraction"
    ),
    "logging.checkpoint_freq": Counterpart("checkpoints.every", value=_same),
    "logging.video_freq": Counterpart("videos.every", value=_same),
    "logging.tensorboard_freq": Counterpart("tensorboard", "true or false"),
}
"""Key of vlmrm's `train`, or of the configuration that it writes into its run -> ours. Keys that mean the same in both
(seed, description, reward.alpha, reward.batch_size) are not listed."""


HUMANOID = "Humanoid-v4"
DEFAULTS: dict[str, Any] = {
    "reward.textured": True,
    "rl.tau": 0.005,
    "rl.gamma": 0.99,
    "rl.learning_rate": 3e-4,
    "rl.buffer_size": 1_000_000,
    "rl.ent_coef": "auto",
    "rl.use_sde": False,
    "rl.target_update_interval": 1,
}
"""What holds in vlmrm where a configuration says nothing, and something else in ours."""
WIDTHS = {"DQN": [64, 64], "SAC": [256, 256]}
"""Of Stable-Baselines3's `MlpPolicy`."""
_ALGORITHM_OF_KEY = {
    "rl.ent_coef": "SAC",
    "rl.use_sde": "SAC",
    "rl.action_noise": "SAC",
    "rl.target_update_interval": "DQN",
}
"""Keys that one of the two algorithms has."""
_SHARED = ("seed", "description", "reward.alpha", "reward.batch_size")


def is_vlmrm(document: Any) -> bool:
    """Whether a document is a whole configuration of vlmrm."""
    return isinstance(document, dict) and "env_name" in document and isinstance(document.get("rl"), dict)


def convert(document: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Convert a whole configuration of vlmrm.

    Args:
        document: what `vlmrm train` takes, or what it wrote into its run.

    Returns:
        A recipe as plain data, and notes on what could not be taken over as it is.

    Raises:
        BadInput: a value that is needed is missing, or is not of the kind that vlmrm takes.
    """
    flat = DEFAULTS | _flat(document)
    if not isinstance(flat["env_name"], str):
        raise BadInput("env_name must be the name of an environment")
    if not isinstance(flat.get("rl.n_envs", flat.get("rl.n_envs_per_worker")), int):
        raise BadInput("rl.n_envs_per_worker must be a whole number")
    for key in ("reward.camera_config", "rl.rl_kwargs", "rl.policy_kwargs"):
        if not isinstance(flat.get(key) or {}, dict):
            raise BadInput(f"{key} must be a map of keys and values, or null")
    # vlmrm takes DQN for its one task with discrete actions, and SAC for all others.
    algorithm = "DQN" if flat.get("env_name") == "CartPole-v1" else "SAC"
    recipe: dict[str, Any] = {"description": str(flat.get("description", "")), "env": ""}
    notes: list[str] = []
    for key, value in flat.items():
        counterpart = COUNTERPARTS.get(key)
        if key in _SHARED:
            counterpart = Counterpart(key, value=_same)
        if counterpart is None:
            notes.append(f"{key} is no key of vlmrm and was left out")
            continue
        # Their configurations carry the keys of both algorithms; a recipe may have those of its own only.
        if _ALGORITHM_OF_KEY.get(key, algorithm) != algorithm or value is None or counterpart.value is None:
            continue
        our_value = counterpart.value(value)
        if our_value is not None:
            _put(recipe, counterpart.key, our_value)
    recipe.setdefault("learner", {})["algorithm"] = algorithm
    recipe["learner"].setdefault("hidden", WIDTHS[algorithm])
    _take_over_options(recipe, flat)
    _take_over_env(recipe, flat, notes)
    if "rl.n_envs_per_worker" in flat and "rl.n_envs" not in flat:
        notes.append(f"envs={recipe['envs']} for each GPU that vlmrm used: multiply envs by their number")
    return recipe, notes


def _flat(document: dict[str, Any]) -> dict[str, Any]:
    """Keys of a configuration as `block.key`."""
    flat: dict[str, Any] = {}
    for name, value in document.items():
        if name in ("reward", "rl", "logging") and isinstance(value, dict):
            flat |= {f"{name}.{key}": inner for key, inner in value.items()}
        else:
            flat[str(name)] = value
    return flat


def _put(recipe: dict[str, Any], key: str, value: Any) -> None:
    *path, last = key.split(".")
    for part in path:
        recipe = recipe.setdefault(part, {})
    recipe[last] = value


def _take_over_options(recipe: dict[str, Any], flat: dict[str, Any]) -> None:
    """Arguments that vlmrm passes through to the algorithm and to its network."""
    learner = recipe["learner"]
    fields = DQNLearner.model_fields if learner["algorithm"] == "DQN" else SACLearner.model_fields
    options: dict[str, Any] = {}
    for name, value in (flat.get("rl.rl_kwargs") or {}).items():
        # Some arguments have a key of their own in a recipe.
        if name in fields:
            learner[name] = value
        else:
            options[name] = value
    network = dict(flat.get("rl.policy_kwargs") or {})
    network.pop("net_arch", None)  # `learner.hidden`
    if network:
        options["policy_kwargs"] = network
    learner.pop("options", None)
    if options:
        learner["options"] = options
    tags = flat.get("tags")
    if tags:
        recipe["description"] += f" ({', '.join(map(str, tags))})"


def _take_over_env(recipe: dict[str, Any], flat: dict[str, Any], notes: list[str]) -> None:
    """The environment with its camera and look."""
    is_textured = bool(flat["reward.textured"])
    camera = flat.get("reward.camera_config")
    name = flat.get("env_name")
    if name == "MountainCarContinuous-v0" and is_textured:
        recipe["env"] = "mountain-car-textured"
    recipe.pop("env_options", None)
    if name != HUMANOID:
        return
    # Every pose of the paper is a task of ours, with a check; for other sentences there is Gymnasium's humanoid.
    goals = list(flat.get("reward.target_prompts") or ())
    task = next((task for task, goal in _poses().items() if goals == [goal]), None)
    if task is None:
        recipe["env"] = "Humanoid-v5"
        recipe["env_options"] = {"terminate_when_unhealthy": False}
        if camera:
            # Theirs may follow the body; Gymnasium's takes the other settings.
            settings = {key: value for key, value in camera.items() if key != "trackbodyid"}
            recipe["env_options"]["default_camera_config"] = settings
        notes.append("no task of ours has this sentence, so success is unknown; 'sightline tasks' lists those that do")
        return
    recipe["env"] = task
    scene = "textured" if is_textured else "original"
    # As they draw and step it: OpenGL, and an action every 0.015 s.
    recipe["env_options"] = {"look": "gl", "scene": scene, "action_seconds": 0.015}
    recipe["training_options"] = {"physics": "gymnasium"}
    if camera:
        recipe["env_options"]["camera"] = {
            "look_at": camera.get("lookat", [0.0, 0.0, 1.0]),
            "distance": camera.get("distance", 4.0),
            "azimuth": camera.get("azimuth", 90.0),
            "elevation": camera.get("elevation", -45.0),
        }
    else:
        recipe["env_options"]["camera"] = "side"
        notes.append("without camera_config vlmrm's camera went with the body, from its side; camera=side stands still")
    notes.append("observations are our 48 numbers, not the 376 of Humanoid-v4")


def _poses() -> dict[str, str]:
    """Our tasks of the humanoid with their sentences."""
    names = [name for name in registry.names("env") if name.startswith("humanoid-")]
    return {name: registry.find("env", name).goal[0] for name in names}


def translations(document: dict[str, Any], is_ours: Callable[[str], bool] = lambda key: False) -> Iterator[str]:
    """Replacements for the keys of vlmrm that a document holds, a phrase each.

    Args:
        is_ours: whether the block at that place, perhaps a third party's, has a key of the name.
    """
    values: dict[str, Any] = {}
    for name, value in document.items():
        values[str(name)] = value
        if isinstance(value, dict):
            values |= {f"{name}.{key}": inner for key, inner in value.items()}
    for key, value in values.items():
        counterpart = COUNTERPARTS.get(key)
        if counterpart is None or is_ours(key):
            continue
        if not counterpart.key:
            yield f"{key}: {counterpart.note}"
            continue
        phrase = f"{key}: say {counterpart.key}"
        if counterpart.value is not None:
            our_value = counterpart.value(value)
            if our_value is not None:
                phrase += f"={_text(our_value)}"
        if counterpart.note:
            phrase += f" ({counterpart.note})"
        yield phrase


def _text(value: Any) -> str:
    """A value as it is written behind a key on the command line, shortened."""
    if isinstance(value, list | tuple):
        if len(value) != 1:
            return f"'{json.dumps(value, ensure_ascii=False, default=str)}'"  # JSON is YAML
        (value,) = value
    text = " ".join(str(value).split())
    if isinstance(value, bool):
        text = text.lower()
    if len(text) > 80:
        text = text[:79] + "…"
    if " " in text:
        return f'"{text}"'
    return text
