"""Checkpoints: the state of a run between two chunks as files, from which it goes on as if nothing had happened.

    checkpoints/step-…/   learner.safetensors   weights, optimisers and counters of the learner
                          session.safetensors   replay buffer's rewards, pending chunk, reward source, episodes, chance
                          best_policy…, best_reward…   what was chosen so far
    checkpoints/best-…/   policy.safetensors, reward.safetensors
    replay/               rows of the replay buffer and of the pool of segments: what only grows (`runs/archive.py`)

Files hold arrays and JSON, never code: the learner is built from the recipe, then takes over what is in the file.
"""

from __future__ import annotations

import inspect
import random
import shutil
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import torch
from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm
from stable_baselines3.common.save_util import recursive_getattr
from stable_baselines3.common.vec_env import VecEnv

from sightline.config.loading import for_control
from sightline.config.recipe import ControlRecipe
from sightline.control.collection import CollectingVecEnv, SpacesVecEnv
from sightline.control.learners import build_learner
from sightline.control.replay import CommittedReplayBuffer
from sightline.control.resolving import env_maker
from sightline.control.reward_worker import RewardWorker
from sightline.errors import BadInput, Damaged, RunFailed
from sightline.evaluation.episode_stats import EpisodeStats
from sightline.rewards.base import OnlineRewardModel
from sightline.runs.archive import Archives
from sightline.runs.checkpoints import CheckpointStore
from sightline.runs.folder import RunFolder
from sightline.runs.state import read_state, restoring, write_state

LEARNER, SESSION = "learner.safetensors", "session.safetensors"
POLICY, REWARD = "policy.safetensors", "reward.safetensors"


@dataclass
class TrainerState:
    """Trainer state beside the learner, the environments and the random number generators.

    Attributes:
        best_score: the best reward under the words on the validation panel so far.
        best_step: when that was.
        boundary_step: the last step at which evaluation and checkpoints were seen to.
        seconds: time spent so far, over all sessions.
    """

    best_score: float = -np.inf
    best_step: int | None = None
    boundary_step: int = 0
    seconds: float = 0.0


class ControlCheckpoints:
    """Checkpoints of a run with a policy: those to go on from, and the best so far.

    Args:
        run: whose they are.
        keep: how many to keep to go on from.
    """

    def __init__(self, run: RunFolder, keep: int) -> None:
        self.steps = CheckpointStore(run, "step", keep)
        self.best = CheckpointStore(run, "best", keep=1)
        self.archives = Archives(run.replay)

    def save(
        self, model: OffPolicyAlgorithm, worker: RewardWorker, env: CollectingVecEnv, counters: TrainerState
    ) -> None:
        """Write a checkpoint from which the run can be resumed."""

        def write(folder: Path) -> dict[str, str]:
            buffer, online = buffer_of(model), worker.model
            buffer.archive_to(self.archives["transitions"])
            write_state(folder / LEARNER, learner_state(model))
            session = {
                "replay": buffer.state(),
                "rewards": worker.state(),
                "reward_model": online.state(self.archives) if isinstance(online, OnlineRewardModel) else {},
                "archives": self.archives.state(),
                "episodes": list(env.envs.episodes),
                # Unfinished episodes are kept as their actions, from which any environment can be brought back.
                "actions": [np.asarray(history) for history in env.envs.actions],
                "sums": env.stats.state(),
                "finished": env.finished,
                "counters": asdict(counters),
                "random": _random_state(model),
                "logged": dict(model.logger.name_to_value),
            }
            write_state(folder / SESSION, session)
            best = self.best.latest()
            if best is not None:
                _copy_chosen(best.path, folder, to_best=True)
            elif counters.best_step is not None:
                raise RunFailed(
                    f"the chosen checkpoint of step {counters.best_step} is gone or damaged; go on with --resume"
                )
            return self.archives.digests()

        self.steps.save(model.num_timesteps, write)

    def save_best(self, step: int, model: OffPolicyAlgorithm, reward: dict[str, Any]) -> None:
        """Keep the policy, and what a reward model has learned, as the best so far."""

        def write(folder: Path) -> None:
            write_state(folder / POLICY, model.policy.state_dict())
            if reward:
                write_state(folder / REWARD, reward)

        self.best.save(step, write)

    def bring_back_best(self, folder: Path, step: int | None) -> None:
        """Make the best of a checkpoint the best again: a later one was chosen in steps that will be repeated."""
        self.best.clear()
        if step is not None:
            self.best.save(step, lambda best: _copy_chosen(folder, best, to_best=False))

    def restore(
        self, folder: Path, model: OffPolicyAlgorithm, worker: RewardWorker, env: CollectingVecEnv
    ) -> tuple[TrainerState, bool, dict[str, Any]]:
        """Bring back everything into a learner that was just built.

        Returns:
            The counters; whether the environments came back in the very states that they had been left in (if not,
            their episodes were begun again); and what `set_random_state` takes, at the beginning of the next chunk.

        Raises:
            Damaged: a file is, or it does not fit the recipe.
        """
        restore_learner(model, folder)
        session = read_state(folder / SESSION)
        if isinstance(session, dict) and "rewards" not in session and "pending" in session:
            raise BadInput(
                f"'{folder}' was written by an earlier version and cannot be resumed; 'sightline evaluate' and "
                "'report' still work on its run"
            )
        with restoring(folder):
            self.archives.restore(session["archives"])
            buffer_of(model).restore(session["replay"], self.archives["transitions"])
            worker.restore(session["rewards"])
            if isinstance(worker.model, OnlineRewardModel):
                worker.model.restore(session["reward_model"], self.archives)
            counters = TrainerState(**session["counters"])
            episodes, actions = [int(count) for count in session["episodes"]], session["actions"]
            finished, random_state = list(session["finished"]), dict(session["random"])
            if len(episodes) != env.num_envs or len(actions) != env.num_envs:
                raise ValueError(f"{len(episodes)} environments instead of {env.num_envs}")
        states = env.envs.restore(episodes, actions)
        same = np.array_equal(states, np.asarray(model._last_obs))
        with restoring(folder):
            if same:
                env.stats.restore(session["sums"])
            else:
                model._last_obs = env.reset()
                env.stats = EpisodeStats(env.num_envs)
                # The next row begins new episodes, so the newest one ends those that cannot be gone on with.
                buffer = buffer_of(model)
                newest = (buffer.rows_added - 1) % buffer.buffer_size
                buffer.timeouts[newest] = np.maximum(buffer.timeouts[newest], 1 - buffer.dones[newest])
                buffer.dones[newest] = 1
            env.finished = finished
            model.logger.name_to_value.update(session["logged"])
        return counters, same, random_state


def learner_state(model: OffPolicyAlgorithm) -> dict[str, Any]:
    """Everything that learning has changed in a learner, as plain data: weights and optimisers, single tensors such as
    SAC's entropy coefficient, and counters. What its constructor is told comes from the recipe and is left out."""
    _, tensors = model._get_torch_save_params()
    return {
        "parameters": model.get_parameters(),
        "tensors": {name: recursive_getattr(model, name).data for name in tensors},
        "counters": {name: value for name, value in vars(model).items() if _is_counter(model, name, value)},
    }


def restore_learner(model: OffPolicyAlgorithm, folder: Path) -> None:
    """Take over what `learner_state` gave into a learner that the same recipe has built.

    Raises:
        Damaged: the file is, or it does not fit.
    """
    state = read_state(folder / LEARNER)
    with restoring(folder):
        expected, tensors = model._get_torch_save_params()
        if set(state["parameters"]) != set(expected) or set(state["tensors"]) != set(tensors):
            raise ValueError("it is of another algorithm")
        model.set_parameters(state["parameters"], exact_match=True, device=model.device)
        for name, value in state["tensors"].items():
            recursive_getattr(model, name).data.copy_(value)
        for name, value in state["counters"].items():
            if not _is_counter(model, name, value):
                raise ValueError(f"{name} is no counter of {type(model).__name__}")
            setattr(model, name, value)


def _is_counter(model: OffPolicyAlgorithm, name: str, value: Any) -> bool:
    """Recognise the plain attributes of a learner that learning changes: `num_timesteps`, `_last_obs`, ….

    SB3's classes do not say which of their attributes are state, and those of others have more. All plain attributes
    are, but for what the constructor was told.
    """
    if name not in vars(model) or name in inspect.signature(type(model)).parameters:
        return False
    return value is None or isinstance(value, bool | int | float | np.ndarray)


def load_policy(recipe: ControlRecipe, folder: Path, env: VecEnv) -> OffPolicyAlgorithm:
    """The learner of a chosen checkpoint, for acting only.

    Args:
        env: gives the spaces (see `acting_spaces`).

    Raises:
        Damaged: the file is, or it does not fit the recipe.
    """
    # It never stores a transition.
    acting = recipe.model_copy(update={"learner": recipe.learner.model_copy(update={"buffer_size": env.num_envs})})
    model = build_learner(acting, env, None, np.float16)
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
        env.close()


def chosen_policy(run: RunFolder, trust: bool = False) -> OffPolicyAlgorithm:
    """The policy that a run has chosen, as a learner of SB3: `predict` acts, `save` writes SB3's own kind of file.

    Args:
        trust: whether code that the run's recipe names may be imported.

    Raises:
        BadInput: nothing was chosen yet, or it is damaged, or the recipe names code of its own.
    """
    recipe = for_control(run.trusted_recipe(trust, asks=False))
    _, folder = chosen_checkpoint(run)
    return load_policy(recipe, folder, acting_spaces(env_maker(recipe, None, render=False)))


def latest_learner(run: RunFolder, trust: bool = False, stated: Sequence[str] = ()) -> OffPolicyAlgorithm:
    """The learner of a run's newest whole checkpoint, with its replay buffer: to relabel it, or to look into it.

    Args:
        trust: whether code that the run's recipe names may be imported.
        stated: keys of its recipe that the user has stated with the same value.

    Raises:
        BadInput: the run has no whole checkpoint, or its recipe names code of its own.
        Damaged: the checkpoint does not fit the recipe.
    """
    recipe = for_control(run.trusted_recipe(trust, stated, asks=False))
    found = CheckpointStore(run, "step", keep=1).latest()
    if found is None:
        raise BadInput(f"'{run.path}' has no whole checkpoint yet")
    session, archives = read_state(found.path / SESSION), Archives(run.replay)
    with restoring(found.path):
        archives.restore(session["archives"])
        features = session["replay"]["waiting"].get("features")
        kept = (None, np.float16) if features is None else (features.shape[2:], features.dtype)
        model = build_learner(recipe, acting_spaces(env_maker(recipe, None, render=False), recipe.envs), *kept)
        buffer_of(model).restore(session["replay"], archives["transitions"])
    restore_learner(model, found.path)
    return model


def chosen_checkpoint(run: RunFolder) -> tuple[int, Path]:
    """Step and folder of the checkpoint that the reward model chose.

    Raises:
        BadInput: none was chosen yet.
        Damaged: it is.
    """
    best = CheckpointStore(run, "best", keep=1)
    found = best.latest()
    if found is not None:
        return found.step, found.path
    for damaged in best.all():
        raise Damaged(
            f"the chosen checkpoint '{damaged.path}' is damaged ({damaged.damage()}); go on with --resume, which "
            "brings it back from a whole checkpoint of the run, or train again"
        )
    raise BadInput(f"'{run.path}' has no chosen checkpoint yet; let it train until its first evaluation")


def learned_reward(folder: Path) -> dict[str, Any] | None:
    """The state of the reward model that a checkpoint was chosen by; None if it was not learned."""
    if not (folder / REWARD).exists():
        return None
    state = read_state(folder / REWARD)
    if not isinstance(state, dict):
        raise Damaged(f"'{folder / REWARD}' is damaged: it holds no reward model")
    return state


def buffer_of(model: OffPolicyAlgorithm) -> CommittedReplayBuffer:
    """The learner's replay buffer, which is always one of ours."""
    assert isinstance(model.replay_buffer, CommittedReplayBuffer)
    return model.replay_buffer


def _copy_chosen(source: Path, target: Path, to_best: bool) -> None:
    """Copy a policy and its reward from one checkpoint into another; the best one so far has a place of its own."""
    for name in (POLICY, REWARD):
        ours, best = (source / name, target / f"best_{name}") if to_best else (source / f"best_{name}", target / name)
        if ours.is_file():
            shutil.copyfile(ours, best)


def _random_state(model: OffPolicyAlgorithm) -> dict[str, Any]:
    """States of all random number generators that training draws from."""
    state: dict[str, Any] = {
        "python": random.getstate(),
        "numpy": np.random.get_state(),
        "torch": torch.get_rng_state(),
        "actions": model.action_space.np_random.bit_generator.state,
    }
    if torch.cuda.is_available():
        state["cuda"] = torch.cuda.get_rng_state_all()
    if getattr(model, "use_sde", False):
        # The exploration noise of this chunk was drawn already, just before SB3's callback.
        noise = _exploration(model)
        state["noise"] = noise.exploration_mat.detach(), noise.exploration_matrices.detach()
    return state


def set_random_state(model: OffPolicyAlgorithm, state: dict[str, Any]) -> None:
    """Go on drawing random numbers, and exploring, as when the snapshot was written."""
    random.setstate(state["python"])
    np.random.set_state(state["numpy"])
    torch.set_rng_state(state["torch"])
    model.action_space.np_random.bit_generator.state = state["actions"]
    if "cuda" in state and torch.cuda.is_available():
        torch.cuda.set_rng_state_all(state["cuda"][: torch.cuda.device_count()])
    if "noise" in state:
        noise = _exploration(model)
        noise.exploration_mat, noise.exploration_matrices = (part.to(model.device) for part in state["noise"])


def _exploration(model: OffPolicyAlgorithm) -> Any:
    """The distribution in which SB3's state-dependent exploration keeps its noise, if there is one."""
    actor: Any = model.policy.actor
    return actor.action_dist
