"""Other words for what was already seen: new rewards from the embeddings that a replay buffer has kept."""

from __future__ import annotations

import numpy as np

from sightline.control.replay import CommittedReplayBuffer
from sightline.errors import BadInput
from sightline.rewards.zero_shot import GoalBaseline

ROWS_AT_ONCE = 4096


def relabel(buffer: CommittedReplayBuffer, reward: GoalBaseline) -> np.ndarray:
    """Give every committed transition the reward of other words, without one new pixel.

    Args:
        buffer: made with `embedding_size` (recipe key `reward.keep_embeddings=true`).
        reward: the new words, as embedded by the same encoder (`sightline.rewards.zero_shot.embed_words`).

    Returns:
        float32[T, n_envs]: the new rewards of the committed rows, in the order of the ring.

    Raises:
        BadInput: the buffer keeps no embeddings, or those of another encoder.
    """
    if buffer.embeddings is None:
        raise BadInput("this replay buffer keeps no embeddings; collect with reward.keep_embeddings=true")
    if buffer.embeddings.shape[-1] != len(reward.goal):
        raise BadInput(
            f"the buffer's embeddings have {buffer.embeddings.shape[-1]} numbers and the words' {len(reward.goal)}: "
            "they come from different encoders"
        )
    rows = buffer.filled_rows()
    for start in range(0, len(rows), ROWS_AT_ONCE):
        part = rows[start : start + ROWS_AT_ONCE]
        flat = buffer.embeddings[part].reshape(-1, len(reward.goal))
        buffer.commit(part, reward.score(flat).reshape(len(part), buffer.n_envs))
    rewards: np.ndarray = buffer.rewards[rows].copy()
    return rewards
