"""Reinforcement learning guided by vision-language models.

    import sightline as sl

    reward = sl.ZeroShotReward("pole vertically upright on top of the cart", "pole and cart")
    env = sl.wrap(gymnasium.make("sightline/CartPole-v0", render_mode="rgb_array"), reward)
    run = sl.train("cartpole", steps=20_000)

Everything is imported when it is first used, so `import sightline` is fast and needs nothing but Python. Our
environments are registered with Gymnasium if it is imported, or as soon as it is.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False  # type checkers take it for true; importing `typing` would take half of the time

if TYPE_CHECKING:
    from sightline.envs.record_frame import RecordFrame
    from sightline.rewards.base import Clip, RewardModel
    from sightline.rewards.lerobot import LeRobotReward
    from sightline.rewards.scopes import Scope
    from sightline.rewards.wrap import wrap
    from sightline.rewards.zero_shot import ZeroShotReward

__version__ = "0.1.0"

_PUBLIC = {
    # rewards
    "Clip": "sightline.rewards.base:Clip",
    "RewardModel": "sightline.rewards.base:RewardModel",
    "Scope": "sightline.rewards.scopes:Scope",
    "ZeroShotReward": "sightline.rewards.zero_shot:ZeroShotReward",
    "HTTPReward": "sightline.rewards.http:HTTPReward",
    "ProgressReward": "sightline.rewards.progress:ProgressReward",
    "LearnedReward": "sightline.rewards.learned.reward:LearnedReward",
    "JudgeReward": "sightline.rewards.judge:JudgeReward",
    "wrap": "sightline.rewards.wrap:wrap",
    "RecordFrame": "sightline.envs.record_frame:RecordFrame",
    "LeRobotReward": "sightline.rewards.lerobot:LeRobotReward",
    # teachers and labels
    "Teacher": "sightline.labels.types:Teacher",
    "Answer": "sightline.labels.types:Answer",
    "ChatTeacher": "sightline.teachers.chat:ChatTeacher",
    "EncoderTeacher": "sightline.teachers.encoder:EncoderTeacher",
    "ScriptedTeacher": "sightline.teachers.scripted:ScriptedTeacher",
    "LabelStore": "sightline.labels.store:LabelStore",
    "fit_reward": "sightline.preferences.fit:fit_reward",
    # runs
    "train": "sightline.api:train",
    "evaluate": "sightline.api:evaluate",
    "lab": "sightline.api:lab",
    "collect": "sightline.api:collect",
    "Run": "sightline.api:Run",
    # games
    "text_game": "sightline.envs.games.text_game:text_game",
    # plug-ins
    "register": "sightline.registry:register",
    "RewardConfig": "sightline.rewards.config:RewardConfig",
    "TeacherConfig": "sightline.teachers.base:TeacherConfig",
    "FeedbackConfig": "sightline.preferences.feedback.base:FeedbackConfig",
    "AlgorithmConfig": "sightline.agents.algorithms.base:AlgorithmConfig",
    "RewardSetup": "sightline.rewards.config:RewardSetup",
    # errors
    "BadInput": "sightline.errors:BadInput",
    "RunFailed": "sightline.errors:RunFailed",
}
"""Public name -> where it is."""

__all__ = [
    "AlgorithmConfig",
    "Answer",
    "BadInput",
    "ChatTeacher",
    "Clip",
    "EncoderTeacher",
    "FeedbackConfig",
    "HTTPReward",
    "JudgeReward",
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
    "Scope",
    "ScriptedTeacher",
    "Teacher",
    "TeacherConfig",
    "ZeroShotReward",
    "__version__",
    "collect",
    "evaluate",
    "fit_reward",
    "lab",
    "register",
    "text_game",
    "train",
    "wrap",
]

if TYPE_CHECKING:
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import Any

    from sightline.agents.algorithms.base import AlgorithmConfig
    from sightline.api import Run, collect, evaluate, lab, train
    from sightline.envs.games.text_game import text_game
    from sightline.envs.record_frame import RecordFrame
    from sightline.errors import BadInput, RunFailed
    from sightline.labels.store import LabelStore
    from sightline.labels.types import Answer, Teacher
    from sightline.preferences.feedback.base import FeedbackConfig
    from sightline.preferences.fit import fit_reward
    from sightline.registry import register
    from sightline.rewards.base import Clip, RewardModel
    from sightline.rewards.config import RewardConfig, RewardSetup
    from sightline.rewards.http import HTTPReward
    from sightline.rewards.judge import JudgeReward
    from sightline.rewards.learned.reward import LearnedReward
    from sightline.rewards.lerobot import LeRobotReward
    from sightline.rewards.progress import ProgressReward
    from sightline.rewards.scopes import Scope
    from sightline.rewards.wrap import wrap
    from sightline.rewards.zero_shot import ZeroShotReward
    from sightline.teachers.base import TeacherConfig
    from sightline.teachers.chat import ChatTeacher
    from sightline.teachers.encoder import EncoderTeacher
    from sightline.teachers.scripted import ScriptedTeacher


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module 'sightline' has no attribute '{name}'")
    import importlib

    from sightline.requirements import fitting_versions

    module, _, attribute = _PUBLIC[name].partition(":")
    with fitting_versions():
        value = getattr(importlib.import_module(module), attribute)
    globals()[name] = value  # from now on it is found without this function
    return value


class _WaitForGymnasium:
    """Import hook that registers our environments as soon as Gymnasium has been imported.

    Python asks the finders in `sys.meta_path` where a module is. This one waits for `gymnasium`, lets the usual finders
    find it, and adds a step to its import. It knows no other module, and is gone after that one.
    """

    @classmethod
    def find_spec(cls, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if name != "gymnasium":
            return None
        import importlib.util

        # Without this one in the list, the question goes to the usual finders.
        sys.meta_path.remove(cls)
        spec = importlib.util.find_spec(name)
        if spec is None or spec.loader is None:
            return spec
        run_gymnasium = spec.loader.exec_module

        def run_and_register(module: ModuleType) -> None:
            run_gymnasium(module)
            importlib.import_module("sightline.envs")  # registers them

        spec.loader.exec_module = run_and_register  # type: ignore[method-assign]
        return spec


# `import gymnasium` may stand before or after `import sightline`. (An entry of None says that it cannot be imported,
# which is reported where it is needed.)
if sys.modules.get("gymnasium") is not None:
    from sightline import envs as _envs  # noqa: F401
else:
    sys.meta_path.insert(0, _WaitForGymnasium)


def __dir__() -> list[str]:
    return sorted(__all__)
