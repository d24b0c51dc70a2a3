"""From a completed recipe to all that it stands for: models loaded, the environment found, the teacher reached."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from sightline.config import (
    ChatTeacherConfig,
    ControlRecipe,
    EncoderTeacherConfig,
    GroundTruthConfig,
    HumanTeacherConfig,
    LearnedConfig,
    ScriptedTeacherConfig,
    ZeroShotConfig,
)
from sightline.control.learners import algorithm_class, check_learner, choose_policy
from sightline.control.resolving import env_maker
from sightline.envs.making import EnvMaker
from sightline.envs.tasks import Task, find_task
from sightline.envs.vector import rgb_frame
from sightline.evaluation.seeds import EvalSeeds, make_panel, played
from sightline.labels.types import Teacher
from sightline.models.encoders import Encoder, load_encoder
from sightline.rewards.base import RewardModel
from sightline.rewards.ground_truth import GroundTruthReward
from sightline.rewards.learned.reward import EnsembleReward, LadderReward, build_reward
from sightline.rewards.sparse import SparseReward
from sightline.rewards.zero_shot import ZeroShotReward, warn_of_unknown_words
from sightline.runs.metrics import check_wandb
from sightline.teachers.chat import ChatTeacher
from sightline.teachers.encoder import EncoderTeacher
from sightline.teachers.scripted import ScriptedTeacher

VIDEO_SIZE = (256, 256)
SHOWN_SIZE = (224, 224)
"""Height and width of frames that people and chat models judge, unless the recipe says otherwise."""
PLAIN_SIZE = (64, 64)
"""The same where nothing else asks for a size."""


@dataclass(frozen=True)
class ControlSetup:
    """Everything that a completed recipe stands for, apart from what learns the policy.

    Attributes:
        encoder: the one that the reward model reads frames with, if any.
        teacher: who judges frames; None if nobody does, or if people do (they need a run to be asked in).
    """

    recipe: ControlRecipe
    task: Task
    make: EnvMaker
    make_for_display: EnvMaker
    encoder: Encoder | None
    teacher: Teacher | None
    reward_model: RewardModel
    warnings: tuple[str, ...]

    def panel(self, name: str, episodes: int, seed: int = 0) -> EvalSeeds:
        """A panel of the recipe's environment; other options, time limits and rules of success make it another one."""
        make = self.make
        # The usual rule is left out, as all that is usual.
        rule = None if self.task.success == "any" else self.task.success
        game = played(make.env_id, env_options=make.options, episode_steps=make.episode_steps, success=rule)
        return make_panel(name, game, episodes, seed)

    @property
    def judge(self) -> RewardModel | None:
        """The reward model that evaluations report and checkpoints are chosen by; None where it sees nothing, so that
        return and success say it all."""
        return self.reward_model if self.reward_model.needs else None

    @property
    def learned(self) -> EnsembleReward | LadderReward | None:
        """The reward model, if it is one that a teacher's answers shape."""
        return self.reward_model if isinstance(self.reward_model, EnsembleReward | LadderReward) else None


def build(recipe: ControlRecipe, asks: bool = True) -> ControlSetup:
    """Load the models, find the environment and reach the teacher of a completed recipe.

    Args:
        asks: False leaves the teacher alone: to evaluate what it has taught, nobody needs its key or its server.

    Raises:
        BadInput, RunFailed: as the learner, the encoders, the words, the teacher and the environment say.
    """
    torch.set_num_threads(recipe.threads)
    check_learner(recipe)
    if recipe.wandb:
        check_wandb()
    setup = _prepare(recipe, asks)
    env = setup.make()
    _, warning = choose_policy(algorithm_class(recipe.learner.algorithm), env.observation_space)
    env.close()
    return setup if warning is None else replace(setup, warnings=(*setup.warnings, warning))


def _prepare(recipe: ControlRecipe, asks: bool) -> ControlSetup:
    display = env_maker(recipe, VIDEO_SIZE)
    task = find_task(recipe.env)
    match recipe.reward:
        case ZeroShotConfig() as config:
            encoder = load_encoder(config.encoder, config.device, config.dtype, config.batch_size)
            reward, warnings = _from_words(recipe, encoder, config.alpha)
            make = env_maker(recipe, (encoder.image_size, encoder.image_size))
            if config.keep_embeddings:
                reward.keeps_features, reward.feature_dtype = True, np.float16
            return ControlSetup(recipe, task, make, display, encoder, None, reward, warnings)
        case LearnedConfig() as config:
            return _prepare_to_learn(recipe, config, task, display, asks)
        case GroundTruthConfig(scale=scale):
            return _without_frames(recipe, task, display, GroundTruthReward(scale))
        case _:
            return _without_frames(recipe, task, display, SparseReward())


def _without_frames(recipe: ControlRecipe, task: Task, display: EnvMaker, reward: RewardModel) -> ControlSetup:
    return ControlSetup(recipe, task, env_maker(recipe, None, render=False), display, None, None, reward, ())


def _prepare_to_learn(
    recipe: ControlRecipe, config: LearnedConfig, task: Task, display: EnvMaker, asks: bool
) -> ControlSetup:
    encoder = None
    if config.model.kind == "embeddings":
        encoder = load_encoder(config.model.encoder, config.device, config.model.dtype)
    teacher, warnings = reach_teacher(recipe, config, encoder) if asks else (None, ())
    if encoder is not None:
        encoder.free_text_tower()
    make = env_maker(recipe, shown_size(config, encoder))
    shape, dtype = _seen(config, make)
    reward = build_reward(config, shape, encoder, recipe.seed, dtype)
    return ControlSetup(recipe, task, make, display, encoder, teacher, reward, warnings)


def reach_teacher(
    recipe: ControlRecipe, config: LearnedConfig, encoder: Encoder | None = None
) -> tuple[Teacher | None, tuple[str, ...]]:
    """Find the teacher, and make sure that it will answer.

    Args:
        encoder: one that is loaded already, to be shared if the teacher names the same.

    Returns:
        The teacher, None for people; and warnings about the words.

    Raises:
        BadInput, RunFailed: no key, no server, no such model.
    """
    match config.teacher:
        case HumanTeacherConfig():
            return None, ()
        case ScriptedTeacherConfig() as wanted:
            return ScriptedTeacher(wanted, recipe.seed), ()
        case ChatTeacherConfig() as wanted:
            chat = ChatTeacher(wanted)
            chat.check()
            return chat, ()
        case EncoderTeacherConfig() as wanted:
            if encoder is None or encoder.name != wanted.encoder:
                encoder = load_encoder(wanted.encoder, config.device)
            reward, warnings = _from_words(recipe, encoder, wanted.alpha)
            return EncoderTeacher(wanted, reward), warnings


def _from_words(recipe: ControlRecipe, encoder: Encoder, alpha: float | None) -> tuple[ZeroShotReward, tuple[str, ...]]:
    reward = ZeroShotReward(recipe.goal, recipe.baseline, alpha=alpha, encoder=encoder)
    warning = warn_of_unknown_words(encoder, (*recipe.goal, *recipe.baseline))
    encoder.free_text_tower()
    return reward, (warning,) if warning else ()


def shown_size(config: LearnedConfig, encoder: Encoder | None) -> tuple[int, int]:
    """Height and width of the frames that the teacher is shown."""
    if config.frame_size is not None:
        return config.frame_size
    if config.teacher.kind in ("chat", "human"):
        return SHOWN_SIZE
    return (encoder.image_size, encoder.image_size) if encoder else PLAIN_SIZE


def _seen(config: LearnedConfig, make: EnvMaker) -> tuple[tuple[int, ...], Any]:
    """Shape and dtype of what the reward model reads: one frame, or one state."""
    env = make()
    try:
        state, _ = env.reset(seed=0)
        seen = np.asarray(state) if config.model.kind == "states" else rgb_frame(env)
        return seen.shape, seen.dtype
    finally:
        env.close()
