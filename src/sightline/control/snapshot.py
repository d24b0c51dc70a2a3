"""The state of a run between two chunks, as files: all that is needed to go on as if nothing had happened."""

from __future__ import annotations

import pickle
import random
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm

from sightline.config import ControlRecipe, for_control
from sightline.control.collection import CollectingVecEnv, EpisodeSums
from sightline.control.learners import algorithm_class, keep_log_in_memory
from sightline.control.replay import CommittedReplayBuffer
from sightline.control.scoring import Scorer
from sightline.errors import BadInput
from sightline.runs.checkpoints import CheckpointStore
from sightline.runs.folder import RunFolder

MODEL, REWARD = "model.zip", "reward.pt"
REPLAY, PENDING, SOURCE, REST = "replay.npz", "pending.npz", "source.pt", "rest.pkl"


@dataclass
class Counters:
    """What a run remembers apart from its learner, its environments and its random numbers.

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


def write_snapshot(
    folder: Path, model: OffPolicyAlgorithm, scorer: Scorer, env: CollectingVecEnv, counters: Counters
) -> None:
    """Fill a folder. Unfinished episodes are kept as their actions, from which any environment can be brought back."""
    model.save(folder / MODEL)
    _save_arrays(folder / REPLAY, buffer_of(model).state())
    _save_arrays(folder / PENDING, scorer.state())
    save_state(folder / SOURCE, scorer.source.state())
    rest = {
        "episodes": env.envs.episodes,
        "actions": env.envs.actions,
        "sums": env.sums,
        "finished": env.finished,
        "counters": asdict(counters),
        "random": _random_state(model),
        "logged": dict(model.logger.name_to_value),
    }
    (folder / REST).write_bytes(pickle.dumps(rest))


def load_policy(recipe: ControlRecipe, folder: Path) -> OffPolicyAlgorithm:
    """The learner of a checkpoint, for acting only."""
    return _load_model(recipe, folder, env=None)


def load_learner(recipe: ControlRecipe, folder: Path, env: CollectingVecEnv | None = None) -> OffPolicyAlgorithm:
    """The learner of a checkpoint with its replay buffer; with an environment, ready to go on."""
    model = _load_model(recipe, folder, env)
    with np.load(folder / REPLAY) as arrays:
        buffer_of(model).restore(dict(arrays))
    return model


def latest_learner(run: RunFolder) -> OffPolicyAlgorithm:
    """The learner of a run's newest whole checkpoint, with its replay buffer: to relabel it, or to look into it.

    Raises:
        BadInput: the run has no whole checkpoint.
    """
    found = CheckpointStore(run.checkpoints, "step", keep=1).latest()
    if found is None:
        raise BadInput(f"'{run.path}' has no whole checkpoint yet")
    return load_learner(for_control(run.recipe()), found.path)


def save_state(file: Path, state: dict[str, Any]) -> None:
    """Write nested plain data with arrays and tensors."""
    with file.open("wb") as stream:
        torch.save(state, stream)


def load_state(file: Path) -> dict[str, Any]:
    """What `save_state` wrote; empty if there is no such file."""
    if not file.is_file():
        return {}
    state: dict[str, Any] = torch.load(file, map_location="cpu", weights_only=False)
    return state


def copy_model(source: Path, target: Path, to_best: bool) -> None:
    """Copy a policy and its reward from one checkpoint into another; the best one so far has a place of its own."""
    for name in (MODEL, REWARD):
        ours, best = (source / name, target / f"best_{name}") if to_best else (source / f"best_{name}", target / name)
        if ours.is_file():
            shutil.copyfile(ours, best)


def chosen_policy(run: RunFolder) -> tuple[int, OffPolicyAlgorithm, dict[str, Any]]:
    """The checkpoint that the reward model chose: its step, its learner for acting only, and the state of the reward
    model if it was learned.

    Raises:
        BadInput: no checkpoint was chosen yet.
    """
    best = CheckpointStore(run.checkpoints, "best", keep=1).latest()
    if best is None:
        raise BadInput(f"'{run.path}' has no chosen checkpoint yet; let it train until its first evaluation")
    return best.step, load_policy(for_control(run.recipe()), best.path), load_state(best.path / REWARD)


def restore_session(
    folder: Path, model: OffPolicyAlgorithm, scorer: Scorer, env: CollectingVecEnv
) -> tuple[Counters, bool, dict[str, Any]]:
    """Bring back the rest: pending rewards, unfinished episodes, counters.

    Returns:
        The counters; whether the environments came back in the very states that they had been left in (if not, their
        episodes were begun anew); and what `set_random_state` takes, to be set at the beginning of the next chunk.
    """
    with np.load(folder / PENDING) as arrays:
        scorer.restore(dict(arrays))
    scorer.source.restore(load_state(folder / SOURCE))
    rest = pickle.loads((folder / REST).read_bytes())
    states = env.envs.restore(rest["episodes"], rest["actions"])
    env.sums, env.finished = rest["sums"], rest["finished"]
    same = np.array_equal(states, np.asarray(model._last_obs))
    if not same:
        model._last_obs = env.reset()
        env.sums = EpisodeSums(env.num_envs)
    model.logger.name_to_value.update(rest["logged"])
    return Counters(**rest["counters"]), same, rest["random"]


def buffer_of(model: OffPolicyAlgorithm) -> CommittedReplayBuffer:
    """The learner's replay buffer, which is always one of ours."""
    assert isinstance(model.replay_buffer, CommittedReplayBuffer)
    return model.replay_buffer


def _load_model(recipe: ControlRecipe, folder: Path, env: CollectingVecEnv | None) -> OffPolicyAlgorithm:
    algorithm = algorithm_class(recipe.learner.algorithm)
    model = algorithm.load(folder / MODEL, env=env, device=recipe.device, force_reset=False)
    keep_log_in_memory(model)
    return model


def _save_arrays(file: Path, arrays: dict[str, np.ndarray]) -> None:
    np.savez(file, **arrays)  # type: ignore[arg-type]


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
        noise.exploration_mat, noise.exploration_matrices = state["noise"]


def _exploration(model: OffPolicyAlgorithm) -> Any:
    """Where SB3's state-dependent exploration keeps its noise."""
    actor: Any = model.policy.actor
    return actor.action_dist
