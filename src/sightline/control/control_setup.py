"""Setup of a run with a policy, built from a completed recipe: models, environment and teacher."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium import spaces

from sightline.config.loading import for_control
from sightline.config.recipe import ControlRecipe
from sightline.control.learners import check_learner, spaces_in_words
from sightline.control.noticing import noticed_in
from sightline.control.resolving import env_maker
from sightline.envs.egl import GPU_UNUSED, gpus_here
from sightline.envs.frames import rgb_frame
from sightline.envs.making import EnvMaker
from sightline.envs.rendering import is_software, opengl_context, opengl_renderer
from sightline.envs.stepping import close_env
from sightline.envs.tasks import Task, find_task
from sightline.errors import BadInput
from sightline.evaluation.episodes import Episodes, Policy, play_panel, task_panel
from sightline.evaluation.seeds import EvalSeeds
from sightline.rewards.base import RewardModel, check_score_every
from sightline.rewards.config import RewardContext, RewardSetup, build_reward, reward_config
from sightline.runs.folder import open_run
from sightline.runs.metrics import check_wandb

VIDEO_SIZE = (256, 256)
STATES_IN_PARTS = (
    "the reward reads states as one array, and this environment's are of several parts, with pictures; choose parts by "
    "observation_keys=[…], or a reward that reads frames"
)


@dataclass(frozen=True)
class ControlSetup:
    """Setup of a resolved recipe: everything but the learner.

    Attributes:
        make: makes the environment whose frames are judged.
        make_for_training: makes it as the policy learns in it.
        make_for_display: makes the one that is judged with frames for people.
        reward: the reward model, and what goes with it.
        warnings: one line each.
    """

    recipe: ControlRecipe
    task: Task
    make: EnvMaker
    make_for_training: EnvMaker
    make_for_display: EnvMaker
    reward: RewardSetup
    warnings: tuple[str, ...]

    @property
    def reward_model(self) -> RewardModel:
        """The reward model that judges states."""
        return self.reward.model

    @property
    def judge(self) -> RewardModel | None:
        """The reward model that evaluations report and checkpoints are chosen by; None where it sees nothing, so that
        return and success say it all."""
        return self.reward_model if self.reward_model.needs else None

    @property
    def validation_panel(self) -> EvalSeeds:
        """The panel by which checkpoints are chosen."""
        return self.panel("validation", _known(self.recipe.evaluation.episodes))

    @property
    def test_panel(self) -> EvalSeeds:
        """The panel on which the chosen checkpoint is reported."""
        return self.panel("test", _known(self.recipe.evaluation.test_episodes))

    @property
    def untrained_panel(self) -> EvalSeeds:
        """The episodes of the test panel that the untrained policy plays."""
        evaluation = self.recipe.evaluation
        return self.panel("test", evaluation.untrained_episodes or _known(evaluation.test_episodes))

    def panel(self, name: str, episodes: int, seed: int = 0) -> EvalSeeds:
        """A panel of the recipe's environment; other options, time limits and rules of success make it another one."""
        return task_panel(self.task, self.make, name, episodes, seed)

    def play(
        self,
        policy: Policy,
        panel: EvalSeeds,
        judge: RewardModel | None,
        should_stop: Callable[[], bool] = lambda: False,
    ) -> Episodes | None:
        """Play a panel in environments as those of training; see `play_panel`."""
        recipe = self.recipe
        processes = 0
        if recipe.workers == "processes":  # environments that need processes of their own in training need them here
            processes = recipe.envs
        return play_panel(
            policy,
            self.make,
            self.task,
            panel,
            judge,
            should_stop,
            processes,
            recipe.step_timeout,
            needs_reward=recipe.reward.reads_own_reward,
            score_every=recipe.evaluation.score_every or 1,
        )


def _known(episodes: int | None) -> int:
    assert episodes is not None, "a completed recipe says it"
    return episodes


def build_setup(recipe: ControlRecipe, asks: bool = True, folder: Path | None = None) -> ControlSetup:
    """Load the models, find the environment and reach the teacher of a completed recipe.

    Args:
        asks: False leaves the teacher alone: evaluation of what it has taught needs neither its key nor its server.
        folder: of the run, where a reward keeps what it has paid for; None where it keeps nothing.

    Raises:
        BadInput, RunFailed: as the learner, the encoders, the words, the teacher and the environment say.
    """
    torch.set_num_threads(recipe.threads)
    check_learner(recipe)
    if recipe.wandb:
        check_wandb()
    context = RewardContext(
        recipe.goal, recipe.baseline, recipe.seed, asks, lambda *size: _first_observation(recipe, *size), folder
    )
    reward = build_reward(reward_config(recipe.reward), context)
    if recipe.replay is not None:
        _check_replay(recipe.replay, reward.model)
    check_score_every(reward.model, recipe.evaluation.score_every or 1)
    # One environment is made and looked at, so that what cannot work is refused before anything is collected.
    make = env_maker(recipe, reward.frame_size, render=reward.frames)
    env = make()
    warnings = [*reward.warnings, *reward.doubts]
    try:
        warnings += _how_it_is_read(recipe, env, reward.model)
        if reward.frames and (slow := _software_opengl(env)) is not None:
            warnings.append(slow)
        if asks:  # in a run that is only evaluated, training has noticed it
            warnings += noticed_in(env, recipe, reward)
    finally:
        close_env(env)
    return ControlSetup(
        recipe,
        find_task(recipe.env),
        make=make,
        make_for_training=env_maker(recipe, reward.frame_size, render=reward.frames, training=True),
        make_for_display=env_maker(recipe, VIDEO_SIZE),
        reward=reward,
        warnings=tuple(warnings),
    )


def _how_it_is_read(recipe: ControlRecipe, env: gymnasium.Env[Any, Any], model: RewardModel) -> list[str]:
    """What a policy reads and does, each in one line where it is not what the environment gives.

    Raises:
        BadInput: the algorithm, or the reward model, cannot read them.
    """
    space = env.observation_space
    if isinstance(space, spaces.Dict) and "states" in model.needs:
        raise BadInput(STATES_IN_PARTS)
    lines = spaces_in_words(recipe, env)
    if isinstance(space, spaces.Dict) and recipe.reward.teaching is not None:
        lines.append("before the first labels exploring is paid nothing: novelty is of states in one array")
    return lines


def _software_opengl(env: gymnasium.Env[Any, Any]) -> str | None:
    """Warning in one line if an environment's pictures are made by OpenGL on the processor.

    EGL does so without a word where a GPU's driver does not offer it.
    """
    if "mujoco" not in sys.modules:
        return None  # other simulators' contexts cannot be asked, so no frame is rendered for it
    before = opengl_context()  # perhaps of another environment of this process
    env.reset(seed=0)
    env.render()
    renderer = opengl_renderer()
    if renderer is None or not is_software(renderer) or opengl_context() == before:
        return None
    slow = f"pictures are made by OpenGL in software ({renderer}), which is slow"
    if gpus_here():
        return f"{slow}; {GPU_UNUSED}"
    return f"{slow}; on a machine with a GPU, the EGL of its driver is missing"


def _check_replay(folder: str, model: RewardModel) -> None:
    """Refuse a run whose stored transitions cannot be learned from.

    Raises:
        BadInput: there is no such run, it is an agent's, or it or this one keeps nothing of its frames.
    """
    source = for_control(open_run(Path(folder)).recipe())
    if "frames" in model.needs and source.reward.feature_bytes == 0:
        raise BadInput(
            f"replay: the run '{folder}' kept nothing of its frames; collect with reward.keep_embeddings=true"
        )
    if "frames" in model.needs and not model.keeps_features:
        raise BadInput(
            "replay: rewards are made from the embeddings that the run kept; say reward.keep_embeddings=true"
        )


def _first_observation(recipe: ControlRecipe, frame_size: tuple[int, int] | None, states: bool) -> np.ndarray:
    """The environment's first frame, or its first state."""
    env = env_maker(recipe, frame_size)()
    try:
        state, _ = env.reset(seed=0)
        if not states:
            return rgb_frame(env)
        if isinstance(state, dict):
            raise BadInput(STATES_IN_PARTS)
        return np.asarray(state)
    finally:
        close_env(env)
