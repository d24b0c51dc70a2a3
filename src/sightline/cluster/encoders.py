"""Encoders on the machines of a cluster: frames travel there at the encoder's own size, and embeddings come back.

    this machine   frames ──► shrunk ──► batches of `batch_size` ──► embeddings, in order ──► score ──► rewards
                                          │  as they would be here        ▲
    the cluster                           └──► workers, each with ────────┘
                                               the same encoder

Batches are those that this machine would compute, since the rounding of a product depends on their size. Who computed
which one shows nowhere: a lost worker's batch is computed by another. Where workers and this machine are alike,
embeddings are equal bit for bit, which is tried out before anything depends on it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, cast

import numpy as np

from sightline.errors import BadInput, warn
from sightline.models.encoder_base import Encoder, TowerPair
from sightline.models.worker_pool import LoopThread, NoResult, WorkerPool
from sightline.rewards.base import RewardModel, Unavailable

AT_ONCE = 2
"""Batches under way with a worker: one travels while it computes another."""
RETRIES = 3
"""Failures in a row that a worker is forgiven; Ray starts it again meanwhile, on another node if need be."""
FIRST_WAIT = 1.0
"""Seconds before a worker that has failed is probed."""
ROUNDING = 0.1
"""Difference of two embeddings' numbers, which lie between -1 and 1, beyond which they are not of one encoder."""


@dataclass(frozen=True)
class Cluster:
    """Where encoders compute.

    Attributes:
        address: see `connected`.
        workers: copies of the encoder; None for one on each node.
        gpus: of each worker, which may be a fraction.
    """

    address: str
    workers: int | None = None
    gpus: float = 0.0


class EncoderWorker(Protocol):
    """A copy of an encoder elsewhere."""

    where: str

    async def embed(self, frames: np.ndarray) -> np.ndarray:
        """float32[N, D] embeddings of one batch uint8[N, H, W, 3].

        Raises:
            NoResult: it is lost, or has failed.
        """

    async def probe(self) -> None:
        """Wait until it is there.

        Raises:
            NoResult: it is not, or not in time.
        """


class RemoteEncoder:
    """An encoder whose frames are embedded by workers elsewhere; for all else it is the encoder of this machine.

    Args:
        local: the encoder.
        workers: copies of it.
    """

    reads_tensors = False

    def __init__(self, local: TowerPair, workers: Sequence[EncoderWorker]) -> None:
        self._local = local
        self.workers = list(workers)
        self._thread = LoopThread()
        self._pool = WorkerPool(
            self.workers,
            lambda worker: worker.probe(),
            at_once=AT_ONCE,
            retries=RETRIES,
            first_wait=FIRST_WAIT,
        )

    def __getattr__(self, name: str) -> Any:
        return getattr(self._local, name)

    def embed_frames(self, frames: np.ndarray) -> np.ndarray:
        """Embed frames: uint8[N, H, W, 3] -> float32[N, D], in the batches in which this machine would.

        Raises:
            Unavailable: no worker is left.
        """
        if not len(frames):
            return np.asarray(self._local.embed_frames(frames))
        small = self._local.shrink_frames(frames)
        size = self._local.batch_frames
        batches = [small[start : start + size] for start in range(0, len(small), size)]
        embeddings: dict[int, np.ndarray] = {}

        async def embed(worker: EncoderWorker, number: int) -> None:
            embeddings[number] = await worker.embed(np.ascontiguousarray(batches[number]))

        try:
            self._thread.result(self._pool.carry_out(len(batches), embed))
        except NoResult as reason:
            raise Unavailable(
                f"none of the {len(self.workers)} encoders on the cluster answers any more: {reason}"
            ) from reason
        return np.concatenate([embeddings[number] for number in range(len(batches))])

    def compare(self) -> float:
        """The largest difference of any worker's embeddings from this machine's; 0 where all are equal bit for bit.

        Raises:
            BadInput: a worker has another encoder.
            Unavailable: it does not answer.
        """
        side = self._local.image_size
        count = min(self._local.batch_frames, 32)
        noise = np.random.default_rng(0).integers(0, 256, (count, side, side, 3), np.uint8)
        here = np.asarray(self._local.embed_frames(noise))
        largest = 0.0
        for worker in self.workers:
            try:
                remote = self._thread.result(worker.embed(noise))
            except NoResult as reason:
                raise Unavailable(f"the encoder on {worker.where} does not answer: {reason}") from reason
            difference = np.inf
            if remote.shape == here.shape:
                difference = float(np.abs(remote.astype(np.float64) - here).max())
            if not difference <= ROUNDING:
                raise BadInput(
                    f"encoder '{self._local.name}' on {worker.where} gives other embeddings than here; install the "
                    "same packages and weights on all machines"
                )
            largest = max(largest, difference)
        return largest


@contextlib.contextmanager
def embedding_on(model: RewardModel, cluster: Cluster) -> Iterator[str]:
    """Context in which a reward model's encoders compute on a cluster; gives what that comes to, in a line.

    Raises:
        BadInput: the model has no encoder, the cluster cannot be joined or has no room, or its packages differ.
    """
    from sightline.cluster.connecting import connected

    with connected(cluster.address) as ray:
        from sightline.cluster.actors import start_workers

        lines: list[str] = []

        def elsewhere(local: Encoder) -> Encoder:
            remote = RemoteEncoder(_ours(local), start_workers(ray, _ours(local), cluster))
            lines.append(_in_words(remote, cluster))
            return cast("Encoder", remote)  # what it lacks, `__getattr__` finds in the local one

        if not model.compute_elsewhere(elsewhere):
            raise BadInput(
                "--cluster moves encoders of images, and this reward has none; leave it out, or ask servers by "
                "reward.kind=http"
            )
        yield "; ".join(lines)


def _ours(encoder: Encoder) -> TowerPair:
    """An encoder that workers can load by its name.

    Raises:
        BadInput: it is of somebody else.
    """
    if not isinstance(encoder, TowerPair) or not encoder.settings:
        raise BadInput(f"--cluster needs an encoder that is loaded by its name, not {type(encoder).__name__}")
    return encoder


def _in_words(remote: RemoteEncoder, cluster: Cluster) -> str:
    """What frames are embedded by; a difference from this machine is warned of."""
    difference = remote.compare()
    if difference:
        warn(
            f"the encoders of the cluster {cluster.address} round otherwise than this machine (by up to "
            f"{difference:.1g}): the run is repeated bit for bit only on machines like these"
        )
    places = sorted({worker.where for worker in remote.workers})
    equal = "not equal bit for bit to this machine's" if difference else "equal bit for bit to this machine's"
    workers = "1 worker" if len(remote.workers) == 1 else f"{len(remote.workers)} workers"
    return f"frames are embedded by {workers} on {', '.join(places)}, {equal}"
