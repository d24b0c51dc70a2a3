"""Rewards for the chunks of a run: a chunk is embedded in the background while the next one is collected.

    collect chunk 1 │ collect chunk 2            │ collect chunk 3
                    │ embed chunk 1 (a thread)   │ embed chunk 2
                    │                            └ score and commit chunk 1

The rewards of a chunk are always committed at the end of the *next* chunk, however long embedding took. That costs one
chunk of delay, and makes a run depend on nothing but its seed.

A model may give no rewards for now (`Unavailable`), as when its server is down. Chunks that are not embedded then are
kept with their frames, also in a checkpoint, and embedded once the run goes on.
"""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np

from sightline.control.replay import CommittedReplayBuffer
from sightline.rewards.base import Clip, OnlineRewardModel, RewardModel, RewardStream, Unavailable
from sightline.runs.stopping import awaited


@dataclass(frozen=True)
class _Pending:
    """A chunk whose rewards are due at the end of the next: its replay rows, its clip, its features, and what an online
    reward model has captured of its frames."""

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
        self._pending: list[_Pending] = []
        self._unavailable: Unavailable | None = None

    def end_of_chunk(self, clip: Clip) -> np.ndarray | None:
        """Start to embed the chunk that just ended and commit the one before.

        Args:
            clip: its frames must stay unchanged until the call after this one.

        Returns:
            float32[T, N], the rewards that were committed; None at the first chunk.

        Raises:
            Unavailable: the model gives none; `commit_due` tries once more.
        """
        rows = self._buffer.take_new_rows()
        captured: dict[str, np.ndarray] = {}
        if isinstance(self.model, OnlineRewardModel):
            # While the frames are there; the next chunk but one overwrites them.
            captured = self.model.capture(clip)
        self._submit(rows, clip, captured)
        return self.commit_due()

    def commit_due(self) -> np.ndarray | None:
        """Commit the chunk before the newest, if it is not committed yet; as `end_of_chunk`."""
        # One chunk late, even if the embedding is done by now: else rewards would depend on how fast this machine is.
        if len(self._pending) < 2:
            return None
        return self._commit_oldest()

    @property
    def is_overdue(self) -> bool:
        """Whether a chunk should have been committed, and the model gave no rewards."""
        return len(self._pending) > 1

    def finish(self) -> np.ndarray | None:
        """Commit what is still pending; call it when collection has ended."""
        return self._commit_oldest() if self._pending else None

    def close(self) -> None:
        """End the thread; what is pending is lost."""
        self._worker.shutdown(wait=True, cancel_futures=True)

    def state(self) -> dict[str, Any]:
        """The pending chunks and what windows reach back to, for a checkpoint: embedded and not committed, or, where
        the model gives no rewards for now, with their frames."""
        pending = []
        for chunk in self._pending:
            features: np.ndarray | None = None
            clip = chunk.clip.without_frames()
            try:
                features = awaited(chunk.features)
            except Unavailable:
                clip = chunk.clip
            pending.append({"rows": chunk.rows, "features": features, "clip": clip.state(), "captured": chunk.captured})
        return {"pending": pending, "stream": self._stream.state()}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take over what `state` gave; what was not embedded is begun."""
        self._pending = []
        self._stream.restore(state["stream"])
        chunks = state["pending"] or []
        if isinstance(chunks, Mapping):  # the one chunk that checkpoints of earlier versions have
            chunks = [chunks]
        for chunk in chunks:
            clip = Clip.of_state(chunk["clip"])
            if chunk["features"] is None:
                self._submit(chunk["rows"], clip, dict(chunk["captured"]))
                continue
            features: Future[np.ndarray] = Future()
            features.set_result(chunk["features"])
            self._pending.append(_Pending(chunk["rows"], clip, features, dict(chunk["captured"])))

    def _submit(self, rows: np.ndarray, clip: Clip, captured: dict[str, np.ndarray]) -> None:
        """Start to embed a chunk."""
        self._pending.append(_Pending(rows, clip, self._worker.submit(self._embed, clip), captured))

    def _embed(self, clip: Clip) -> np.ndarray:
        # In order, or windows would reach back to the wrong steps: after a chunk without rewards there are none.
        if self._unavailable is not None:
            raise self._unavailable
        try:
            return self._stream.embed(clip)
        except Unavailable as reason:
            self._unavailable = reason
            raise

    def _commit_oldest(self) -> np.ndarray:
        """Commit the oldest pending chunk; it stays pending if the model gives no rewards.

        Raises:
            Unavailable: it gives none.
        """
        chunk = self._pending[0]
        features = awaited(chunk.features)
        clip = chunk.clip.without_frames()
        if isinstance(self.model, OnlineRewardModel):
            self.model.collected(features, clip, chunk.captured)
        rewards = self._stream.score(features, clip)
        self._buffer.commit(chunk.rows, rewards, features)
        self._pending.pop(0)
        return rewards
