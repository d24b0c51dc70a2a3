"""New rewards for what was already seen, from the features that a replay buffer has kept."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from sightline.control.replay import CommittedReplayBuffer
from sightline.errors import BadInput
from sightline.rewards.zero_shot import GoalBaselineHead

ROWS_AT_ONCE = 1024


def relabel(buffer: CommittedReplayBuffer, reward: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
    """Pay for every committed transition anew, without one new pixel.

    Args:
        buffer: its rows are visited in ring order, also after it has wrapped round.
        reward: features [N, …] -> float32[N]; the reached states where the buffer keeps no features.

    Returns:
        float32[T, n_envs]: the new rewards of the committed rows, in the order of the ring.
    """
    kept = buffer.next_observations if buffer.features is None else buffer.features
    rows = buffer.filled_rows()
    for start in range(0, len(rows), ROWS_AT_ONCE):
        part = rows[start : start + ROWS_AT_ONCE]
        flat = kept[part].reshape(-1, *kept.shape[2:])
        buffer.commit(part, reward(flat).reshape(len(part), buffer.n_envs))
    rewards: np.ndarray = buffer.rewards[rows].copy()
    return rewards


def relabel_with_words(buffer: CommittedReplayBuffer, reward: GoalBaselineHead) -> np.ndarray:
    """Give every committed transition the reward of other words.

    Args:
        buffer: made to keep embeddings (recipe key `reward.keep_embeddings=true`).
        reward: the new words, as embedded by the same encoder (`sightline.rewards.zero_shot.embed_words`).

    Returns:
        As `relabel`.

    Raises:
        BadInput: the buffer keeps no embeddings, or those of another encoder.
    """
    if buffer.features is None:
        raise BadInput("this replay buffer keeps no embeddings; collect with reward.keep_embeddings=true")
    if buffer.features.shape[2:] != reward.goal.shape:
        raise BadInput(
            f"the buffer's embeddings have {buffer.features.shape[-1]} numbers and the words' {len(reward.goal)}: "
            "they come from different encoders"
        )
    return relabel(buffer, reward.score)
