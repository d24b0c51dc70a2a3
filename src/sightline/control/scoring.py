"""Chunks of frames are scored in the background while the next chunk is collected and learned from.

The rewards of a chunk are always committed at the end of the *next* chunk, however long scoring took. That costs one
chunk of delay, and makes a run depend on nothing but its seed.
"""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from sightline.control.replay import CommittedReplayBuffer
from sightline.rewards.zero_shot import ZeroShotReward


@dataclass(frozen=True)
class Scores:
    """Rewards of a chunk: float32[T, N]; embeddings float32[T, N, D] or None."""

    rewards: np.ndarray
    embeddings: np.ndarray | None


@dataclass(frozen=True)
class _Pending:
    rows: np.ndarray
    scores: Future[Scores]


class Scorer:
    """Scores one chunk behind.

    Args:
        reward_model: scores frames; None takes the environment's own reward (through the very same path).
        buffer: where the rewards go.
    """

    def __init__(self, reward_model: ZeroShotReward | None, buffer: CommittedReplayBuffer) -> None:
        self._reward_model = reward_model
        self._buffer = buffer
        self._worker = ThreadPoolExecutor(max_workers=1, thread_name_prefix="scorer")
        self._pending: _Pending | None = None

    def end_of_chunk(self, frames: np.ndarray | None) -> Scores | None:
        """Start to score the chunk that just ended and commit the one before.

        Args:
            frames: uint8[T, N, H, W, 3]; must stay unchanged until the call after this one.

        Returns:
            The scores that were committed, None at the first chunk.
        """
        rows = self._buffer.take_new_rows()
        submitted = _Pending(rows, self._worker.submit(self._score, frames, self._buffer.true_rewards[rows]))
        before, self._pending = self._pending, submitted
        return None if before is None else self._commit(before)

    def finish(self) -> Scores | None:
        """Commit what is still pending; call it when collection has ended."""
        before, self._pending = self._pending, None
        return None if before is None else self._commit(before)

    def close(self) -> None:
        self._worker.shutdown(wait=True, cancel_futures=True)

    def state(self) -> dict[str, np.ndarray]:
        """The pending chunk, for a checkpoint: its scores are waited for, but not committed."""
        if self._pending is None:
            return {}
        scores = self._pending.scores.result()
        state = {"rows": self._pending.rows, "rewards": scores.rewards}
        return state if scores.embeddings is None else state | {"embeddings": scores.embeddings}

    def restore(self, state: dict[str, np.ndarray]) -> None:
        """Take over what `state` gave."""
        self._pending = None
        if state:
            done: Future[Scores] = Future()
            done.set_result(Scores(state["rewards"], state.get("embeddings")))
            self._pending = _Pending(state["rows"], done)

    def _score(self, frames: np.ndarray | None, true_rewards: np.ndarray) -> Scores:
        if self._reward_model is None:
            return Scores(true_rewards.copy(), None)
        assert frames is not None, "an environment that a reward model looks at renders frames"
        chunk = frames.shape[:2]
        embeddings = self._reward_model.embed(frames.reshape(-1, *frames.shape[2:]))
        return Scores(self._reward_model.score(embeddings).reshape(chunk), embeddings.reshape(*chunk, -1))

    def _commit(self, pending: _Pending) -> Scores:
        scores = pending.scores.result()
        self._buffer.commit(pending.rows, scores.rewards, scores.embeddings)
        return scores
