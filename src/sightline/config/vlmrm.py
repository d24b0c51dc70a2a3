"""Keys of vlmrm's configurations (Rocamonde et al., ICLR 2024), and their counterparts in our recipes."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

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


def _deviation(noise: Any) -> Any:
    return noise.get("sigma") if isinstance(noise, dict) else None


def _layers(options: Any) -> Any:
    return options.get("net_arch") if isinstance(options, dict) else None


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
    **dict.fromkeys(("rl.n_workers", "rl.device_ids"), Counterpart("reward.device", "one encoder scores all frames")),
    "rl.episode_length": Counterpart("episode_steps", value=_same),
    "rl.learning_starts": Counterpart("learner.learning_starts", value=_same),
    "rl.train_freq": Counterpart("learner.chunk", "vector steps, which need not be whole episodes", _same),
    "rl.batch_size": Counterpart("learner.batch_size", value=_same),
    "rl.gradient_steps": Counterpart("learner.gradient_steps", value=_same),
    "rl.action_noise": Counterpart("learner.action_noise", "the deviation of Gaussian noise", _deviation),
    "rl.tau": Counterpart("learner.tau", value=_same),
    "rl.gamma": Counterpart("learner.gamma", value=_same),
    "rl.learning_rate": Counterpart("learner.learning_rate", value=_same),
    "rl.buffer_size": Counterpart("learner.buffer_size", value=_same),
    "rl.ent_coef": Counterpart("learner.ent_coef", "with learner.algorithm=SAC", _same),
    "rl.use_sde": Counterpart("learner.use_sde", "with learner.algorithm=SAC", _same),
    "rl.target_update_interval": Counterpart("learner.target_update_interval", "with learner.algorithm=DQN", _same),
    "rl.policy_kwargs": Counterpart("learner.hidden", "the widths; all else in learner.options.policy_kwargs", _layers),
    "rl.rl_kwargs": Counterpart("learner.options", "DQN's exploration has keys of its own beside it"),
    "logging.checkpoint_freq": Counterpart("checkpoints.every", value=_same),
    "logging.video_freq": Counterpart("videos.every", value=_same),
    "logging.tensorboard_freq": Counterpart("tensorboard", "true or false"),
}
"""Key of vlmrm's `train`, or of the configuration that it writes into its run -> ours. Keys that mean the same in both
(seed, description, reward.alpha, reward.batch_size) are not listed."""


def translations(document: dict[str, Any], is_ours: Callable[[str], bool] = lambda key: False) -> Iterator[str]:
    """Replacements for the keys of vlmrm that a document holds, a phrase each.

    Args:
        is_ours: whether the block at that place, perhaps a third party's, has a key of the name.
    """
    held: dict[str, Any] = {}
    for name, value in document.items():
        inner = value if isinstance(value, dict) else {}
        held |= {str(name): value} | {f"{name}.{key}": inner[key] for key in inner}
    for key, value in held.items():
        if (counterpart := COUNTERPARTS.get(key)) is None or is_ours(key):
            continue
        ours = None if counterpart.value is None else counterpart.value(value)
        said = counterpart.key if ours is None else f"{counterpart.key}={_text(ours)}"
        note = f" ({counterpart.note})" if counterpart.note else ""
        yield f"{key}: say {said}{note}" if said else f"{key}: {counterpart.note}"


def _text(value: Any) -> str:
    """A value as it is written behind a key on the command line, shortened."""
    if isinstance(value, list | tuple):
        if len(value) != 1:
            return f"'{json.dumps(value, ensure_ascii=False, default=str)}'"  # JSON is YAML
        (value,) = value
    text = str(value).lower() if isinstance(value, bool) else " ".join(str(value).split())
    text = text if len(text) <= 80 else text[:79] + "…"
    return f'"{text}"' if " " in text else text
