"""Resolve a recipe to what a run needs: the task's words, a learner that fits its actions, its environment."""

from __future__ import annotations

import math
from typing import Any

import gymnasium
from gymnasium import spaces
from gymnasium.wrappers import TimeLimit

from sightline import registry
from sightline.config.learners import (
    AutoLearner,
    DQNLearner,
    LearnerConfig,
    OffPolicyLearner,
    OnPolicyLearner,
    PPOLearner,
    SACLearner,
    nearest_divisor,
)
from sightline.config.loading import for_control, validate_recipe
from sightline.config.recipe import ControlRecipe
from sightline.control.dataset_replay import completed_dataset
from sightline.control.panel_sizes import evaluation_share, learning_begins, learns_nothing, resolved_evaluation
from sightline.control.sizes import EnvironmentShapes, check_memory, space_of
from sightline.envs.actions import COMBINATIONS, combinations, describe_actions
from sightline.envs.frames import Size, rgb_frame
from sightline.envs.gymnasium_api import layers_of
from sightline.envs.making import DEFAULT_EPISODE_STEPS, EnvMaker
from sightline.envs.observations import Misfit, misfit
from sightline.envs.spaces import describe_observations
from sightline.envs.stepping import close_env
from sightline.envs.tasks import find_task
from sightline.errors import BadInput, RunFailed, reason_and_place
from sightline.rewards.config import resolved_words


def env_maker(recipe: ControlRecipe, frame_size: Size | None, render: bool = True, training: bool = False) -> EnvMaker:
    """Factory of the recipe's environment.

    Args:
        frame_size: height and width of the frames that are wanted, None for the environment's own.
        render: False if no frames are needed.
        training: make it as a policy learns in it, not as it is evaluated in it.
    """
    task = find_task(recipe.env)
    options = task.env_options | recipe.env_options
    if training:
        options |= task.training_options if recipe.training_options is None else recipe.training_options
    # Off-policy learners make one choice, and `auto` becomes one that fits.
    learner = recipe.learner
    enumerates = isinstance(learner, OffPolicyLearner) and not isinstance(learner, AutoLearner)
    return EnvMaker(
        task.env,
        options,
        recipe.episode_steps,
        frame_size,
        render,
        recipe.rescale_observations,
        tuple(registry.names("env")),
        recipe.success_from or task.success_from,
        observation_keys=recipe.observation_keys,
        enumerates=enumerates,
        task=recipe.env,
    )


def resolve(recipe: ControlRecipe) -> ControlRecipe:
    """Fill in what the recipe leaves to its environment; the result says everything.

    Raises:
        BadInput: no goal for an environment that is no task of ours, or an empty one for a task; an environment that
            cannot be made.
        RunFailed: an environment that cannot be built or rendered on this machine.
    """
    document = recipe.model_dump(mode="json")
    task = find_task(recipe.env)
    # Said in full, so that a run goes on in the look that it began with: another picture is another reward.
    document["env_options"] = task.env_options | recipe.env_options
    if recipe.training_options is None:
        document["training_options"] = dict(task.training_options)
    frames = recipe.reward.needs_frames
    env = env_maker(recipe, frame_size=None, render=frames)()
    try:
        shapes = _shapes_of(env, task.env, frames)
        if recipe.success_from not in (None, "reward"):
            _check_success(env)
    finally:
        close_env(env)
    _check_training_options(recipe)
    # After the environment: there are no words for one that does not exist.
    document |= resolved_words(recipe, task)
    learner = _resolved_learner(recipe.learner, shapes.actions, recipe.envs)
    document["learner"] = learner.model_dump(mode="json")
    document["evaluation"] = resolved_evaluation(recipe, shapes.horizon).model_dump(mode="json")
    document["checkpoints"]["every"] = recipe.checkpoints.every or max(recipe.steps // 10, 1)
    completed = for_control(validate_recipe(document))
    if completed.dataset is not None:
        actions = _chosen_actions(learner, shapes.actions)
        completed = completed.model_copy(update={"dataset": completed_dataset(completed, shapes.states, actions)})
    check_memory(completed, shapes)
    return completed


def _chosen_actions(learner: LearnerConfig, actions: spaces.Space[Any]) -> spaces.Space[Any]:
    """The space that a learner chooses from: one that makes a single choice is given combinations of several."""
    if isinstance(learner, OnPolicyLearner) or isinstance(actions, spaces.Box | spaces.Discrete):
        return actions
    return spaces.Discrete(combinations(actions))


def _check_training_options(recipe: ControlRecipe) -> None:
    """Make the environment once as a policy learns in it, if that differs from the one that it is evaluated in.

    Raises:
        BadInput: it does not take its options.
    """
    maker = env_maker(recipe, frame_size=None, render=False, training=True)
    if maker.options == env_maker(recipe, frame_size=None, render=False).options:
        return
    try:
        close_env(maker())
    except BadInput as error:
        raise BadInput(str(error).replace("env_options", "training_options")) from error


def describe(recipe: ControlRecipe) -> list[str]:
    """What a completed recipe comes to, in lines: first what its policy reads and does, where that is not what the
    environment gives; then memory, disk space, and what its evaluation takes. (The environment is made once: for some
    that takes seconds.)

    Raises:
        BadInput, RunFailed: as for `resolve`.
    """
    frames = recipe.reward.needs_frames
    task = find_task(recipe.env)
    frame_size: Size | None = None
    if recipe.reward.frame_pixels is not None:
        # Some environments draw at the size that is asked for: a square, as encoders read it.
        side = math.isqrt(recipe.reward.frame_pixels)
        frame_size = (side, side)
    env = env_maker(recipe, frame_size, render=frames)()
    try:
        shapes = _shapes_of(env, task.env, frames)
        spaces_in_words = _spaces_in_words(recipe, env)
    finally:
        close_env(env)
    lines = [*spaces_in_words, *space_of(recipe, shapes).splitlines()]
    if learns_nothing(recipe):
        lines.append(
            f"learning    begins after {learning_begins(recipe):,} steps, and the run ends before: raise steps"
        )
    return [*lines, _evaluation_in_words(recipe, shapes.horizon)]


def _evaluation_in_words(recipe: ControlRecipe, horizon: int) -> str:
    share = evaluation_share(recipe, horizon)
    line = f"evaluation  at most {share.steps:,} steps, {share.of_steps:.0%} of all"
    if share.pictures:
        line += f", and {share.pictures:,} pictures, {share.of_pictures:.0%} of all"
    return line.replace("%", " %")


def _spaces_in_words(recipe: ControlRecipe, env: gymnasium.Env[Any, Any]) -> list[str]:
    if describe_observations(env, convolves=True) is None and describe_actions(env) is None:
        return []
    from sightline.control.learners import spaces_in_words  # loads torch

    return [f"spaces      {line}" for line in spaces_in_words(recipe, env)]


def _fitting(learner: AutoLearner, actions: spaces.Space[Any]) -> LearnerConfig:
    """DQN for one choice, and for few combinations of several; PPO for many; SAC for continuous actions.

    Raises:
        BadInput: a key was set that PPO does not have.
    """
    values = learner.model_dump(exclude_unset=True, exclude_none=True, exclude={"algorithm"})
    if isinstance(actions, spaces.Box):
        return SACLearner(**values)
    if combinations(actions) <= COMBINATIONS or isinstance(actions, spaces.Discrete):
        return DQNLearner(**values)
    foreign = [name for name in values if name not in PPOLearner.model_fields]
    if foreign:
        raise BadInput(
            f"learner.{foreign[0]} is no key of PPO, by which several choices at once ({actions}) are learned; leave "
            "it out"
        )
    return PPOLearner(**values)


def _shapes_of(env: gymnasium.Env[Any, Any], name: str, frames: bool) -> EnvironmentShapes:
    """Begin one episode, to see what the environment gives.

    Raises:
        BadInput: its first observation does not fit the environment's space.
        RunFailed: it cannot be begun or rendered.
    """
    try:
        state, _ = env.reset(seed=0)
    except (BadInput, RunFailed):
        raise
    except Misfit as error:
        raise BadInput(f"reset() of '{name}' gave an observation {error}; fix the environment") from None
    except (Exception, SystemExit) as error:
        reason = reason_and_place(error)
        raise RunFailed(f"environment '{name}' failed in reset(seed=0): {reason}; fix the environment") from error
    wrong = misfit(env.observation_space, state)
    if wrong is not None:
        raise BadInput(f"reset() of '{name}' gave an observation {wrong}; fix the environment")
    frame = rgb_frame(env).shape if frames else None
    # Gymnasium has no public name for the limit; an environment without a registration has no `spec` either.
    limits = [layer.get_wrapper_attr("_max_episode_steps") for layer in layers_of(env) if isinstance(layer, TimeLimit)]
    return EnvironmentShapes(env.observation_space, env.action_space, frame, min(limits, default=DEFAULT_EPISODE_STEPS))


def _check_success(env: gymnasium.Env[Any, Any]) -> None:
    """Take one step of an environment that was begun: it has to hold the info that `success_from` names.

    Raises:
        BadInput: it does not.
    """
    env.action_space.seed(0)
    try:
        env.step(env.action_space.sample())
    except BadInput:
        raise
    except RunFailed as error:
        raise BadInput(str(error)) from error
    except Exception:  # whatever else is wrong with its steps is said when they are made
        return


def _resolved_learner(learner: LearnerConfig, actions: spaces.Space[Any], envs: int) -> LearnerConfig:
    """The recipe's learner, or the one that fits the actions; with a batch size that fits the number of environments.

    Raises:
        BadInput: the learner is not for such actions.
    """
    discrete = not isinstance(actions, spaces.Box)
    if isinstance(learner, AutoLearner):
        learner = _fitting(learner, actions)
    if isinstance(learner, PPOLearner) and learner.batch_size is None:
        chunk = learner.chunk * envs
        learner = learner.model_copy(update={"batch_size": nearest_divisor(chunk, chunk // 4)})
    if isinstance(learner, OffPolicyLearner) and learner.action_noise is not None and discrete:
        raise BadInput(
            "learner.action_noise is for continuous actions and this environment's are discrete; leave it out"
        )
    if isinstance(learner, OnPolicyLearner) and learner.action_cost and discrete:
        raise BadInput("learner.action_cost is of continuous actions and this environment's are discrete; leave it out")
    if learner.algorithm == "DQN" and not discrete:
        raise BadInput("DQN needs discrete actions and this environment's are continuous; say learner.algorithm=SAC")
    if learner.algorithm == "SAC" and discrete:
        raise BadInput("SAC needs continuous actions and this environment's are discrete; say learner.algorithm=DQN")
    return learner
