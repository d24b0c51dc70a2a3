"""State of a run between two chunks as files, from which it goes on as if nothing had happened.

    checkpoints/step-…/   learner.safetensors     weights, optimisers and counters of the learner
                          collection.safetensors  what the trainer keeps, reward model, episodes, RNG states
                          session.json            best score, warnings, size of the metrics (`session.py`)
    checkpoints/best-…/   policy.safetensors, reward.safetensors
    replay/               rows of the replay buffer and of the pool of segments: what only grows (`runs/archive.py`)

An off-policy trainer keeps the replay buffer's rewards and a pending chunk, an on-policy one the scale of rewards.

Files hold arrays and JSON, never code: the learner is built from the recipe, then takes over what is in the file.
"""

from __future__ import annotations

import inspect
import random
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import torch
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.noise import OrnsteinUhlenbeckActionNoise, VectorizedActionNoise
from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm
from stable_baselines3.common.save_util import recursive_getattr
from stable_baselines3.common.vec_env import VecEnv

from sightline.config.learners import OnPolicyLearner
from sightline.config.loading import for_control
from sightline.config.recipe import ControlRecipe
from sightline.control.collection import CollectingVecEnv, SpacesVecEnv
from sightline.control.learners import build_acting_learner, build_learner
from sightline.control.replay import CommittedReplayBuffer
from sightline.control.resolving import env_maker
from sightline.control.sb3 import last_observations, names_of_tensors, set_last_observations
from sightline.envs.stepping import close_env
from sightline.errors import BadInput
from sightline.evaluation.episode_stats import EpisodeStats
from sightline.models.device import random_states_kept
from sightline.rewards.base import OnlineRewardModel, RewardModel
from sightline.rewards.learned_state import save_reward
from sightline.runs.archive import Archives
from sightline.runs.folder import RunFolder
from sightline.runs.state import read_state, restoring, write_state
from sightline.session import chosen_checkpoint, newest_checkpoint

LEARNER = "learner.safetensors"
COLLECTION = "collection.safetensors"
POLICY = "policy.safetensors"


def save_run(
    folder: Path,
    model: BaseAlgorithm,
    reward_model: RewardModel,
    env: CollectingVecEnv,
    archives: Archives,
    trainer_state: Mapping[str, Any],
) -> None:
    """Write what `restore_run` needs.

    Args:
        trainer_state: the trainer's own part, by names that are not used here.
    """
    write_state(folder / LEARNER, learner_state(model))
    reward_state: dict[str, Any] = {}
    if isinstance(reward_model, OnlineRewardModel):
        reward_state = reward_model.state(archives)
    collection = {
        **trainer_state,
        "reward_model": reward_state,
        # After the reward model, which has just appended its new rows to the archives.
        "archives": archives.state(),
        "episodes": list(env.envs.episodes),
        # Unfinished episodes are kept as their actions, from which any environment can be brought back.
        "actions": [np.asarray(history) for history in env.envs.actions],
        "drawn": [np.asarray(history, bool) for history in env.envs.drawn],
        "reset_frames": env.envs.reset_frames,
        "sums": env.stats.state(),
        "finished": env.finished,
        "random": _random_state(model),
        "logged": dict(model.logger.name_to_value),
    }
    write_state(folder / COLLECTION, collection)


def restore_run(
    folder: Path,
    model: BaseAlgorithm,
    reward_model: RewardModel,
    env: CollectingVecEnv,
    archives: Archives,
    take_over: Callable[[Mapping[str, Any]], None],
) -> tuple[bool, dict[str, Any]]:
    """Bring back everything into a learner that was just built.

    Args:
        take_over: restores the trainer's own part; its errors mean that the checkpoint does not fit the recipe.

    Returns:
        Whether the environments came back in the very states that they had been left in (if not, their episodes were
        begun again); and what `set_random_state` takes, at the beginning of the next chunk.

    Raises:
        Damaged: a file is, or it does not fit the recipe.
    """
    restore_learner(model, folder)
    collection = read_state(folder / COLLECTION)
    with restoring(folder):
        archives.restore(collection["archives"])
        take_over(collection)
        if isinstance(reward_model, OnlineRewardModel):
            reward_model.restore(collection["reward_model"], archives)
        episodes = [int(count) for count in collection["episodes"]]
        actions = collection["actions"]
        finished = list(collection["finished"])
        random_state = dict(collection["random"])
        if len(episodes) != env.num_envs or len(actions) != env.num_envs:
            raise ValueError(f"{len(episodes)} environments instead of {env.num_envs}")
        # Rendering may change a simulator, so it is repeated where it was done; checkpoints of earlier versions do not
        # say where.
        without_rendering = [[False] * len(history) for history in actions]
        rendered = collection.get("drawn", without_rendering)
    # The actions of unfinished episodes are played again; what comes of it is compared with the last observations.
    repeats = env.envs.restore(episodes, actions, rendered, last_observations(model), collection.get("reset_frames"))
    with restoring(folder):
        if repeats:
            env.stats.restore(collection["sums"])
        else:
            set_last_observations(model, env.reset())
            env.stats = EpisodeStats(env.num_envs)
        env.finished = finished
        model.logger.name_to_value.update(collection["logged"])
    return repeats, random_state


def save_policy(folder: Path, model: BaseAlgorithm, reward: RewardModel) -> None:
    """Write a policy, and what a reward model has learned so far."""
    write_state(folder / POLICY, model.policy.state_dict())
    save_reward(folder, reward)


def learner_state(model: BaseAlgorithm) -> dict[str, Any]:
    """Everything that learning has changed in a learner, as plain data: weights and optimisers, single tensors such as
    SAC's entropy coefficient, and counters. What its constructor is told comes from the recipe and is left out."""
    _, tensors = names_of_tensors(model)
    # The buffers of replay and rollouts are objects, which are no counters: they are kept elsewhere.
    return {
        "parameters": model.get_parameters(),
        "tensors": {name: recursive_getattr(model, name).data for name in tensors},
        "counters": {name: value for name, value in vars(model).items() if _is_counter(model, name, value)},
    }


def restore_learner(model: BaseAlgorithm, folder: Path) -> None:
    """Take over what `learner_state` gave into a learner that the same recipe has built.

    Raises:
        Damaged: the file is, or it does not fit.
    """
    state = read_state(folder / LEARNER)
    with restoring(folder):
        expected, tensors = names_of_tensors(model)
        if set(state["parameters"]) != set(expected) or set(state["tensors"]) != set(tensors):
            raise ValueError("it is of another algorithm")
        model.set_parameters(state["parameters"], exact_match=True, device=model.device)
        for name, value in state["tensors"].items():
            recursive_getattr(model, name).data.copy_(value)
        for name, value in state["counters"].items():
            if not _is_counter(model, name, value):
                raise ValueError(f"{name} is no counter of {type(model).__name__}")
            setattr(model, name, value)


def _is_counter(model: BaseAlgorithm, name: str, value: Any) -> bool:
    """Recognise the plain attributes of a learner that learning changes: `num_timesteps`, `_last_obs`, ….

    SB3's classes do not say which of their attributes are state, and those of others have more. All plain attributes
    are, but for what the constructor was told.
    """
    if name not in vars(model) or name in inspect.signature(type(model)).parameters:
        return False
    if isinstance(value, dict):  # observations of several parts are a dictionary of arrays
        return bool(value) and all(isinstance(part, np.ndarray) for part in value.values())
    return value is None or isinstance(value, bool | int | float | np.ndarray)


def load_policy(recipe: ControlRecipe, folder: Path, env: VecEnv) -> BaseAlgorithm:
    """The learner of a chosen checkpoint, for acting only.

    Args:
        env: gives the spaces (see `acting_spaces`).

    Raises:
        Damaged: the file is, or it does not fit the recipe.
    """
    with random_states_kept():  # training may go on beside
        model = build_acting_learner(recipe, env)
    weights = read_state(folder / POLICY)
    with restoring(folder):
        model.policy.load_state_dict(weights)
    return model


def acting_spaces(make: Callable[[], gymnasium.Env[Any, Any]], count: int = 1) -> SpacesVecEnv:
    """The spaces of an environment, from which `build_learner` and `load_policy` can build."""
    env = make()
    try:
        return SpacesVecEnv(count, env.observation_space, env.action_space)
    finally:
        close_env(env)


def chosen_policy(run: RunFolder, trust: bool = False) -> BaseAlgorithm:
    """The policy that a run has chosen, as a learner of SB3: `predict` acts, `save` writes SB3's own kind of file.

    Args:
        trust: whether code that the run's recipe names may be imported.

    Raises:
        BadInput: nothing was chosen yet, or it is damaged, or the recipe names code of its own.
    """
    recipe = for_control(run.trusted_recipe(trust, asks=False, scores=False))
    folder = chosen_checkpoint(run).path
    spaces = acting_spaces(env_maker(recipe, None, render=False))
    return load_policy(recipe, folder, spaces)


def latest_learner(run: RunFolder, trust: bool = False, stated_keys: Sequence[str] = ()) -> OffPolicyAlgorithm:
    """The learner of a run's newest whole checkpoint, with its replay buffer: to relabel it, or to look into it.

    Args:
        trust: whether code that the run's recipe names may be imported.
        stated_keys: keys of its recipe that the user has stated with the same value.

    Raises:
        BadInput: the run has no whole checkpoint, or stored no transitions, or its recipe names code of its own.
        Damaged: the checkpoint does not fit the recipe.
    """
    recipe = for_control(run.trusted_recipe(trust, stated_keys, asks=False, scores=False))
    if isinstance(recipe.learner, OnPolicyLearner):
        raise BadInput(
            f"the run '{run.path}' has stored no transitions: {recipe.learner.algorithm} learns on-policy; collect "
            "with an off-policy learner (learner.algorithm=auto)"
        )
    checkpoint = newest_checkpoint(run)
    collection = read_state(checkpoint.path / COLLECTION)
    archives = Archives(run.replay)
    with restoring(checkpoint.path):
        archives.restore(collection["archives"])
        # Rows that wait for their rewards are in the checkpoint itself: they tell what is kept beside a transition.
        features = collection["replay"]["waiting"].get("features")
        shape, dtype = (None, np.float16) if features is None else (features.shape[2:], features.dtype)
        spaces = acting_spaces(env_maker(recipe, None, render=False), recipe.envs)
        model = build_learner(recipe, spaces, shape, dtype)
        buffer_of(model).restore(collection["replay"], archives["transitions"])
    restore_learner(model, checkpoint.path)
    return model


def buffer_of(model: OffPolicyAlgorithm) -> CommittedReplayBuffer:
    """The learner's replay buffer, which is always one of ours."""
    assert isinstance(model.replay_buffer, CommittedReplayBuffer)
    return model.replay_buffer


def _random_state(model: BaseAlgorithm) -> dict[str, Any]:
    """States of all random number generators that training draws from."""
    state: dict[str, Any] = {
        "python": random.getstate(),
        "numpy": np.random.get_state(),
        "torch": torch.get_rng_state(),
        "actions": model.action_space.np_random.bit_generator.state,
    }
    if torch.cuda.is_available():
        state["cuda"] = torch.cuda.get_rng_state_all()
    if _has_noise(model):
        # The exploration noise of this chunk was drawn already, just before SB3's callback.
        exploration = _exploration(model)
        state["noise"] = (exploration.exploration_mat.detach(), exploration.exploration_matrices.detach())
    if drifting := _drifting_noise(model):
        state["drift"] = [noise.noise_prev for noise in drifting]
    return state


def set_random_state(model: BaseAlgorithm, state: dict[str, Any]) -> None:
    """Go on drawing random numbers, and exploring, as when the snapshot was written."""
    random.setstate(state["python"])
    np.random.set_state(state["numpy"])
    torch.set_rng_state(state["torch"])
    model.action_space.np_random.bit_generator.state = state["actions"]
    if "cuda" in state and torch.cuda.is_available():
        torch.cuda.set_rng_state_all(state["cuda"][: torch.cuda.device_count()])
    if "noise" in state:
        matrix, matrices = state["noise"]
        exploration = _exploration(model)
        exploration.exploration_mat = matrix.to(model.device)
        exploration.exploration_matrices = matrices.to(model.device)
    for noise, value in zip(_drifting_noise(model), state.get("drift", ()), strict=True):
        noise.noise_prev = value.copy()


def _has_noise(model: BaseAlgorithm) -> bool:
    """True for state-dependent exploration whose noise outlives a chunk; on-policy trainers draw it anew for each."""
    return isinstance(model, OffPolicyAlgorithm) and bool(getattr(model, "use_sde", False))


def _drifting_noise(model: BaseAlgorithm) -> list[OrnsteinUhlenbeckActionNoise]:
    """The noise on the actions of each environment, if it is of the kind that goes on from its last value."""
    action_noise = getattr(model, "action_noise", None)
    noises = action_noise.noises if isinstance(action_noise, VectorizedActionNoise) else [action_noise]
    return [noise for noise in noises if isinstance(noise, OrnsteinUhlenbeckActionNoise)]


def _exploration(model: BaseAlgorithm) -> Any:
    """The distribution in which SB3's state-dependent exploration keeps its noise, if there is one."""
    actor: Any = model.policy.actor
    return actor.action_dist
