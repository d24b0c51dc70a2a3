"""Ray actors that hold encoders. Ray starts a lost one again, on another node if its own is gone."""

from __future__ import annotations

import asyncio
import math
import platform
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from sightline import __version__
from sightline.cluster.encoders import Cluster
from sightline.errors import BadInput
from sightline.models.encoder_base import TowerPair
from sightline.models.worker_pool import NoResult

START_SECONDS = 300.0
"""Time that all workers have to load their encoder."""
PROBE_SECONDS = 120.0
"""Time that a worker has to be there again."""


class EncoderHolder:
    """What runs in an actor: an encoder, loaded as the driver's was.

    Args:
        settings: arguments of `load_encoder`.
        threads: of torch, on which the last digits of a product may depend.
    """

    def __init__(self, settings: tuple[Any, ...], threads: int) -> None:
        import torch

        from sightline.models.encoders import load_encoder

        torch.set_num_threads(threads)
        self._encoder = load_encoder(*settings)
        self._encoder.free_text_tower()

    def about(self) -> tuple[str, str]:
        """The name of its machine, and the version of Sightline there."""
        return platform.node(), __version__

    def embed(self, frames: np.ndarray) -> np.ndarray:
        """float32[N, D] embeddings of one batch uint8[N, H, W, 3]."""
        # A copy: what Ray hands out may not be written to, of which torch would warn.
        return np.asarray(self._encoder.embed_frames(frames.copy()))


class RayWorker:
    """A worker of `RemoteEncoder` that asks an actor."""

    def __init__(self, ray: Any, actor: Any, where: str) -> None:
        self._ray = ray
        self._actor = actor
        self.where = where

    async def embed(self, frames: np.ndarray) -> np.ndarray:
        return np.asarray(await self._answer(self._actor.embed.remote(frames)))

    async def probe(self) -> None:
        # Waits while the actor is started again.
        await self._answer(self._actor.about.remote(), PROBE_SECONDS)

    async def _answer(self, reference: Any, seconds: float | None = None) -> Any:
        errors = self._ray.exceptions
        try:
            return await asyncio.wait_for(_as_coroutine(reference), seconds)
        except TimeoutError as error:
            raise NoResult(f"the encoder on {self.where} is not there again after {seconds:g} s") from error
        except errors.RayTaskError as error:
            raise NoResult(f"the encoder on {self.where} failed: {_line(error)}") from error
        except errors.ActorUnavailableError as error:  # whose text is of sockets
            raise NoResult(f"the encoder on {self.where} cannot be reached") from error
        except errors.ActorDiedError as error:
            raise NoResult(f"the encoder on {self.where} is lost: {_line(error)}", is_final=True) from error
        except errors.RayError as error:
            raise NoResult(f"the encoder on {self.where} is lost: {_line(error)}") from error


async def _as_coroutine(reference: Any) -> Any:
    return await reference


def _line(error: Exception) -> str:
    """The last line of an error of Ray, whose text holds a traceback."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1][:200] if lines else type(error).__name__


def nodes_with_room(nodes: Sequence[Mapping[str, Any]], cpus: float, gpus: float) -> int:
    """How many nodes have so many processors and GPUs, whether or not they are free; a head often lends none.

    Args:
        nodes: as `ray.nodes()` describes them.

    Raises:
        BadInput: none.
    """
    needs = {"CPU": cpus, "GPU": gpus}
    fitting = [
        node
        for node in nodes
        if node["Alive"] and all(node["Resources"].get(name, 0) >= amount for name, amount in needs.items())
    ]
    if not fitting:
        raise BadInput(
            f"no node of the cluster has {cpus:g} CPU and {gpus:g} GPU, which an encoder needs: say threads=1, or "
            "--cluster-gpus"
        )
    return len(fitting)


def start_workers(ray: Any, encoder: TowerPair, cluster: Cluster) -> list[RayWorker]:
    """Copies of an encoder on the nodes of a cluster, spread over them.

    Raises:
        BadInput: there is no room for them, they cannot load it, or another version of Sightline is there.
    """
    import torch

    threads = torch.get_num_threads()
    count = cluster.workers or nodes_with_room(ray.nodes(), threads, cluster.gpus)
    name, device, *options = encoder.settings
    if cluster.gpus:
        device = "cuda"
    remote = ray.remote(EncoderHolder).options(
        num_cpus=threads,
        num_gpus=cluster.gpus,
        max_restarts=-1,
        # A batch that was under way is given to whoever is free.
        max_task_retries=0,
        scheduling_strategy="SPREAD",
    )
    actors = [remote.remote((name, device, *options), threads) for _ in range(count)]
    answers = [actor.about.remote() for actor in actors]
    ready, _ = ray.wait(answers, num_returns=count, timeout=START_SECONDS)
    if len(ready) < count:
        free = {name: math.floor(amount * 100) / 100 for name, amount in ray.available_resources().items()}
        raise BadInput(
            f"only {len(ready)} of {count} encoders have started on the cluster within {START_SECONDS:.0f} s; each "
            f"needs {threads} CPU and {cluster.gpus:g} GPU, and free are {free.get('CPU', 0):g} and "
            f"{free.get('GPU', 0):g}: say --cluster-workers or --cluster-gpus"
        )
    try:
        abouts = ray.get(answers)
    except ray.exceptions.RayError as error:
        raise BadInput(f"the encoder cannot be loaded on the cluster: {_line(error)}") from error
    for where, version in abouts:
        if version != __version__:
            raise BadInput(f"Sightline {version} is on {where}, and {__version__} here; install the same one")
    return [RayWorker(ray, actor, where) for actor, (where, _) in zip(actors, abouts, strict=True)]
