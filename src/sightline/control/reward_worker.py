"""Chunks are read in the background while the next chunk is collected and learned from.

The rewards of a chunk are always committed at the end of the *next* chunk, however long reading took. That costs one
chunk of delay, and makes a run depend on nothing but its seed.
"""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from sightline.control.sources import Aside, Source


@dataclass(frozen=True)
class _Pending:
    rows: np.ndarray
    aside: Aside
    features: Future[np.ndarray]


class RewardWorker:
    """Scores one chunk behind.

    Args:
        source: where rewards come from; its buffer is where they go.
    """

    def __init__(self, source: Source) -> None:
        self.source = source
        self._buffer = source.buffer
        self._worker = ThreadPoolExecutor(max_workers=1, thread_name_prefix="scorer")
        self._pending: _Pending | None = None

    def end_of_chunk(self, frames: np.ndarray | None) -> np.ndarray | None:
        """Start to read the chunk that just ended and commit the one before.

        Args:
            frames: uint8[T, N, H, W, 3]; must stay unchanged until the call after this one.

        Returns:
            float32[T, N], the rewards that were committed; None at the first chunk.
        """
        rows = self._buffer.take_new_rows()
        seen = self._seen(frames, rows)
        aside = self.source.set_aside(frames, rows)
        submitted = _Pending(rows, aside, self._worker.submit(self._read, seen))
        before, self._pending = self._pending, submitted
        return None if before is None else self._commit(before)

    def finish(self) -> np.ndarray | None:
        """Commit what is still pending; call it when collection has ended."""
        before, self._pending = self._pending, None
        return None if before is None else self._commit(before)

    def close(self) -> None:
        self._worker.shutdown(wait=True, cancel_futures=True)

    def state(self) -> dict[str, np.ndarray]:
        """The pending chunk, for a checkpoint: its reading is waited for, but not committed."""
        if self._pending is None:
            return {}
        aside = {f"aside_{name}": array for name, array in self._pending.aside.items()}
        return {"rows": self._pending.rows, "features": self._pending.features.result()} | aside

    def restore(self, state: dict[str, np.ndarray]) -> None:
        """Take over what `state` gave."""
        self._pending = None
        if state:
            done: Future[np.ndarray] = Future()
            done.set_result(state["features"])
            aside = {k.removeprefix("aside_"): array for k, array in state.items() if k.startswith("aside_")}
            self._pending = _Pending(state["rows"], aside, done)

    def _seen(self, frames: np.ndarray | None, rows: np.ndarray) -> np.ndarray:
        """[T, N, …] of what the source reads."""
        if self.source.reads == "frames":
            assert frames is not None, "an environment that a reward model looks at renders frames"
            return frames
        if self.source.reads == "states":
            return np.asarray(self._buffer.next_observations[rows])
        return np.zeros((len(rows), self._buffer.n_envs, 0), np.float32)

    def _read(self, seen: np.ndarray) -> np.ndarray:
        steps, envs = seen.shape[:2]
        features = self.source.read(seen.reshape(steps * envs, *seen.shape[2:]))
        return features.reshape(steps, envs, *features.shape[1:])

    def _commit(self, pending: _Pending) -> np.ndarray:
        features = pending.features.result()
        rewards = self.source.pay(features, pending.rows, pending.aside)
        self._buffer.commit(pending.rows, rewards, features)
        return rewards
