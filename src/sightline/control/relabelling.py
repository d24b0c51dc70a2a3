"""New rewards for what was already seen, from the features that a replay buffer has kept."""

from __future__ import annotations

import numpy as np

from sightline.control.replay import CommittedReplayBuffer
from sightline.errors import BadInput
from sightline.rewards.base import RewardModel, RewardStream
from sightline.rewards.zero_shot import ZeroShotReward

ROWS_AT_ONCE = 1024


def relabel(buffer: CommittedReplayBuffer, model: RewardModel) -> np.ndarray:
    """Give every committed transition the reward that a model gives it now, without one new frame.

    Args:
        buffer: keeps the model's features; models that read states alone need none.

    Returns:
        float32[T, n_envs]: the new rewards of the committed rows, in order of time.
    """
    rows, stream = buffer.filled_rows(), RewardStream(model)
    for start in range(0, len(rows), ROWS_AT_ONCE):
        part = rows[start : start + ROWS_AT_ONCE]
        clip = buffer.clip(part)
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
    if buffer.features.shape[2:] != model.head.goal.shape:
        raise BadInput(
            f"the buffer's embeddings have {buffer.features.shape[-1]} numbers and the words' {len(model.head.goal)}: "
            "they come from different encoders"
        )
    return relabel(buffer, model)
