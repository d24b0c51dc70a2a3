"""Relabel stored transitions with new rewards, from the features that a replay buffer has kept.

Who relabels: `off_policy.py`, after each fit of a learned reward and where a run begins with the replay buffer of
another run; `relabelled`, with other words. Only committed rows are relabelled. The pending chunk, which is collected
and not committed yet, gets the new reward when `reward_worker.py` commits it. On-policy learners store no transitions.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from sightline.config.loading import for_control
from sightline.control.replay import CommittedReplayBuffer
from sightline.errors import BadInput
from sightline.rewards.base import RewardModel, RewardStream
from sightline.rewards.config import reward_config
from sightline.rewards.zero_shot import ZeroShotReward
from sightline.runs.folder import RunFolder

ROWS_AT_ONCE = 1024


def relabel(buffer: CommittedReplayBuffer, model: RewardModel) -> np.ndarray:
    """Give every committed transition the reward that a model gives it now, without one new frame.

    Where the ring has overwritten the beginning of an episode, it is unknown what its oldest `window - 1` stored
    transitions followed on: their windows begin with the oldest of them.

    Args:
        buffer: keeps the model's features; models that read states alone need none.

    Returns:
        float32[T, n_envs]: the new rewards of the committed rows, in order of time.
    """
    rows = buffer.filled_rows()
    # A stream carries the steps that windows reach back to from one part to the next.
    stream = RewardStream(model)
    for start in range(0, len(rows), ROWS_AT_ONCE):
        part = rows[start : start + ROWS_AT_ONCE]
        clip = buffer.clip(part)
        # Models that read states alone keep no features: the states are in the clip.
        features = stream.embed(clip) if buffer.features is None else buffer.features[part]
        buffer.commit(part, stream.score(features, clip))
    rewards: np.ndarray = buffer.rewards[rows].copy()
    return rewards


def relabel_with_words(buffer: CommittedReplayBuffer, model: ZeroShotReward) -> np.ndarray:
    """Give every committed transition the reward of other words.

    Args:
        buffer: made to keep embeddings (recipe key `reward.keep_embeddings=true`).
        model: the new words, embedded by the same encoder.

    Returns:
        As `relabel`.

    Raises:
        BadInput: the buffer keeps no embeddings, or those of another encoder.
    """
    if buffer.features is None:
        raise BadInput("this replay buffer keeps no embeddings; collect with reward.keep_embeddings=true")
    # The embeddings of a frame's views lie one behind the other.
    expected = (model.views * len(model.head.goal),)
    if buffer.features.shape[2:] != expected:
        raise BadInput(
            f"the buffer's embeddings have {buffer.features.shape[-1]} numbers and the words' {expected[0]}: "
            "they come from different encoders"
        )
    return relabel(buffer, model)


def relabelled(
    run: RunFolder, goal: str | Sequence[str], baseline: str | Sequence[str], alpha: float | None, trust: bool = False
) -> np.ndarray:
    """The rewards of a run's stored transitions under other words: float32[T, n_envs], in order of time.

    Raises:
        BadInput: as `relabel_with_words`; or the run has no checkpoint, no reward of words, or names code of its own.
    """
    from sightline.control.state import buffer_of, latest_learner

    model = _reworded(run, goal, baseline, alpha)
    return relabel_with_words(buffer_of(latest_learner(run, trust)), model)


def relabelled_recipe(
    run: RunFolder, goal: str | Sequence[str], baseline: str | Sequence[str], alpha: float | None, trust: bool = False
) -> dict[str, Any]:
    """The recipe of a run that learns from another's stored transitions under other words.

    Raises:
        BadInput: the words make no reward, or the run has no reward of words, or names code of its own.
    """
    # The new run takes over what the folder's recipe names. Its stored transitions are looked at when it is built.
    document = run.trusted_recipe(trust, asks=False).model_dump(mode="json")
    model = _reworded(run, goal, baseline, alpha)
    document["reward"] |= {"alpha": alpha}
    document["wandb"] = None  # the new run is the user's, and so would be its project
    document["goal"] = list(model.goal)
    document["baseline"] = list(model.baseline)
    document["replay"] = str(run.path.resolve())
    document["dataset"] = None  # its transitions are among those of the run
    return document


def _reworded(
    run: RunFolder, goal: str | Sequence[str], baseline: str | Sequence[str], alpha: float | None
) -> ZeroShotReward:
    """The run's reward model with other words."""
    model = reward_config(for_control(run.recipe()).reward).reworded(goal, baseline, alpha)
    if not isinstance(model, ZeroShotReward):
        raise BadInput(f"the reward of '{run.path}' is not made of words, so other words mean nothing to it")
    return model
