"""Reinforcement learning guided by vision-language models.

    import sightline as sl

    reward = sl.ZeroShotReward("pole vertically upright on top of the cart", "pole and cart")
    env = sl.wrap(gymnasium.make("sightline.envs:sightline/CartPole-v0", render_mode="rgb_array"), reward)
    run = sl.train("cartpole", steps=20_000)

Everything is imported when it is first used, so `import sightline` is fast and needs nothing but Python.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_PUBLIC = {
    # rewards
    "Clip": "sightline.rewards.base",
    "RewardModel": "sightline.rewards.base",
    "ZeroShotReward": "sightline.rewards.zero_shot",
    "ProgressReward": "sightline.rewards.progress",
    "LearnedReward": "sightline.rewards.learned.reward",
    "wrap": "sightline.rewards.wrap",
    "RecordFrame": "sightline.rewards.wrap",
    "LeRobotReward": "sightline.rewards.lerobot",
    # teachers and labels
    "Teacher": "sightline.labels.types",
    "Answer": "sightline.labels.types",
    "ChatTeacher": "sightline.teachers.chat",
    "EncoderTeacher": "sightline.teachers.encoder",
    "ScriptedTeacher": "sightline.teachers.scripted",
    "LabelStore": "sightline.labels.store",
    "fit_reward": "sightline.preferences.fit",
    # runs
    "train": "sightline.api",
    "evaluate": "sightline.api",
    "Run": "sightline.api",
    # plug-ins
    "register": "sightline.registry",
    "RewardConfig": "sightline.config.blocks",
    "TeacherConfig": "sightline.config.blocks",
    "FeedbackConfig": "sightline.config.blocks",
    "AlgorithmConfig": "sightline.config.blocks",
    "RewardSetup": "sightline.rewards.building",
    # errors
    "BadInput": "sightline.errors",
    "RunFailed": "sightline.errors",
}
"""Public name -> module."""

__all__ = [
    "AlgorithmConfig",
    "Answer",
    "BadInput",
    "ChatTeacher",
    "Clip",
    "EncoderTeacher",
    "FeedbackConfig",
    "LabelStore",
    "LeRobotReward",
    "LearnedReward",
    "ProgressReward",
    "RecordFrame",
    "RewardConfig",
    "RewardModel",
    "RewardSetup",
    "Run",
    "RunFailed",
    "ScriptedTeacher",
    "Teacher",
    "TeacherConfig",
    "ZeroShotReward",
    "__version__",
    "evaluate",
    "fit_reward",
    "register",
    "train",
    "wrap",
]

if TYPE_CHECKING:
    from sightline.api import Run, evaluate, train
    from sightline.config.blocks import AlgorithmConfig, FeedbackConfig, RewardConfig, TeacherConfig
    from sightline.errors import BadInput, RunFailed
    from sightline.labels.store import LabelStore
    from sightline.labels.types import Answer, Teacher
    from sightline.preferences.fit import fit_reward
    from sightline.registry import register
    from sightline.rewards.base import Clip, RewardModel
    from sightline.rewards.building import RewardSetup
    from sightline.rewards.learned.reward import LearnedReward
    from sightline.rewards.lerobot import LeRobotReward
    from sightline.rewards.progress import ProgressReward
    from sightline.rewards.wrap import RecordFrame, wrap
    from sightline.rewards.zero_shot import ZeroShotReward
    from sightline.teachers.chat import ChatTeacher
    from sightline.teachers.encoder import EncoderTeacher
    from sightline.teachers.scripted import ScriptedTeacher


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module 'sightline' has no attribute '{name}'")
    found = getattr(importlib.import_module(_PUBLIC[name]), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted(__all__)
