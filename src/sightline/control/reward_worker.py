"""Rewards for the chunks of a run: a chunk is embedded in the background while the next one is collected.

    collect chunk 1 │ collect chunk 2            │ collect chunk 3
                    │ embed chunk 1 (a thread)   │ embed chunk 2
                    │                            └ score and commit chunk 1

The rewards of a chunk are always committed at the end of the *next* chunk, however long embedding took. That costs one
chunk of delay, and makes a run depend on nothing but its seed.
"""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from sightline.control.replay import CommittedReplayBuffer
from sightline.rewards.base import Clip, OnlineRewardModel, RewardModel, RewardStream
from sightline.runs.stopping import awaited


@dataclass(frozen=True)
class _Pending:
    """A chunk whose rewards are due at the end of the next: its replay rows, the clip without frames, its features, and
    what an online reward model has captured of its frames."""

    rows: np.ndarray
    clip: Clip
    features: Future[np.ndarray]
    captured: dict[str, np.ndarray]


class RewardWorker:
    """Worker that gives transitions their rewards, one chunk behind.

    Args:
        buffer: whose rows wait for rewards.
        model: judges them.
    """

    def __init__(self, buffer: CommittedReplayBuffer, model: RewardModel) -> None:
        self.model = model
        self._buffer = buffer
        self._stream = RewardStream(model)
        self._worker = ThreadPoolExecutor(max_workers=1, thread_name_prefix="rewards")
        self._pending: _Pending | None = None

    def end_of_chunk(self, clip: Clip) -> np.ndarray | None:
        """Start to embed the chunk that just ended and commit the one before.

        Args:
            clip: its frames must stay unchanged until the call after this one.

        Returns:
            float32[T, N], the rewards that were committed; None at the first chunk.
        """
        previous = self._pending
        rows = self._buffer.take_new_rows()
        captured: dict[str, np.ndarray] = {}
        if isinstance(self.model, OnlineRewardModel):
            # While the frames are there; the next chunk but one overwrites them.
            captured = self.model.capture(clip)
        features = self._worker.submit(self._stream.embed, clip)
        self._pending = _Pending(rows, replace(clip, frames=None), features, captured)
        # One chunk late, even if the embedding is done by now: else rewards would depend on how fast this machine is.
        if previous is None:
            return None
        return self._commit(previous)

    def finish(self) -> np.ndarray | None:
        """Commit what is still pending; call it when collection has ended."""
        pending = self._pending
        self._pending = None
        if pending is None:
            return None
        return self._commit(pending)

    def close(self) -> None:
        """End the thread; what is pending is lost."""
        self._worker.shutdown(wait=True, cancel_futures=True)

    def state(self) -> dict[str, Any]:
        """The pending chunk and what windows reach back to, for a checkpoint; it is embedded, but not committed."""
        pending = None
        if self._pending is not None:
            pending = {
                "rows": self._pending.rows,
                "features": awaited(self._pending.features),
                "clip": self._pending.clip.arrays(),
                "captured": self._pending.captured,
            }
        return {"pending": pending, "stream": self._stream.state()}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take over what `state` gave."""
        self._pending = None
        self._stream.restore(state["stream"])
        pending = state["pending"]
        if pending is not None:
            features: Future[np.ndarray] = Future()
            features.set_result(pending["features"])
            clip = Clip.of_arrays(pending["clip"])
            self._pending = _Pending(pending["rows"], clip, features, dict(pending["captured"]))

    def _commit(self, chunk: _Pending) -> np.ndarray:
        features = awaited(chunk.features)
        if isinstance(self.model, OnlineRewardModel):
            self.model.collected(features, chunk.clip, chunk.captured)
        rewards = self._stream.score(features, chunk.clip)
        self._buffer.commit(chunk.rows, rewards, features)
        return rewards
