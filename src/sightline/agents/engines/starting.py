"""Start an engine by name: join the process group that torchrun has started."""

from __future__ import annotations

import os
import time
from datetime import timedelta
from typing import TYPE_CHECKING, Literal

from sightline.agents.engines.engine import Engine, SingleProcess
from sightline.errors import BadInput, RunFailed
from sightline.models.device import own_gpu

if TYPE_CHECKING:
    from torch.distributed.distributed_c10d import Store

PATIENCE = timedelta(hours=6)
"""Timeout of collectives: one process may evaluate the model for hours while the others wait. If one dies, its
connections break, and the others end at once."""
FOR_ALL_TO_BEGIN = timedelta(minutes=10)
"""Time that processes have to meet. One that is refused on another machine never comes, and nothing says so."""
_POLL = 0.2
"""Seconds between two looks for the others."""


def start_engine(name: Literal["auto", "single", "ddp", "fsdp2"], device: str = "cpu") -> Engine:
    """Start an engine; with torchrun, join its process group.

    Args:
        name: `auto` is `ddp` with several processes, else `single`.
        device: the kind of the model's; with `cuda` each process of a machine takes a GPU of its own, which is the
            current one from then on.

    Raises:
        BadInput: processes were not started as the engine needs, or there are not enough GPUs.
    """
    # torchrun tells each process its place by environment variables.
    by_torchrun = "RANK" in os.environ and "WORLD_SIZE" in os.environ
    world = int(os.environ["WORLD_SIZE"]) if by_torchrun else 1
    if name == "auto":
        name = "ddp" if world > 1 else "single"
    if name == "single":
        if world > 1:
            raise BadInput(
                f"engine=single is for one process, and torchrun has started {world}; say engine=ddp or fsdp2"
            )
        return SingleProcess()
    if not by_torchrun:
        raise BadInput(
            f"engine={name} needs processes; start with: torchrun --nproc-per-node 2 -m sightline train … engine={name}"
        )
    _join(device)
    if name == "fsdp2":
        from sightline.agents.engines.fsdp2 import FSDP2

        return FSDP2()
    from sightline.agents.engines.ddp import DDP

    return DDP()


def _join(device: str) -> None:
    """Initialise torch.distributed; with GPUs both backends, gloo for objects on the CPU and nccl for tensors."""
    import torch
    import torch.distributed as dist
    from torch.distributed.rendezvous import rendezvous

    on_gpus = device == "cuda"
    if on_gpus:
        local_rank = int(os.environ.get("LOCAL_RANK", "0"))
        gpus = torch.cuda.device_count()
        if local_rank >= gpus:
            raise BadInput(
                f"there are more processes than GPUs on this machine ({gpus}); "
                f"start with torchrun --nproc-per-node {max(gpus, 1)}, or say device=cpu"
            )
        # The current device: nccl and tensors on plain "cuda" take it.
        torch.cuda.set_device(own_gpu())
    backend = "cpu:gloo,cuda:nccl" if on_gpus else "gloo"
    try:
        # The variables of torchrun name a store that all processes reach.
        store, rank, world = next(iter(rendezvous("env://", timeout=FOR_ALL_TO_BEGIN)))
        meet(store, rank, world)
        dist.init_process_group(backend, store=store, rank=rank, world_size=world, timeout=PATIENCE)
    except RunFailed:
        raise
    except (RuntimeError, ValueError) as error:
        reason = " ".join(str(error).split())[:200]
        raise RunFailed(f"the processes of this run do not find each other: {reason}") from error


def meet(store: Store, rank: int, world: int, seconds: float = FOR_ALL_TO_BEGIN.total_seconds()) -> None:
    """Wait until all processes are here; signals are heard meanwhile.

    Args:
        store: what they have in common.
        rank, world: which process of how many.
        seconds: how long.

    Raises:
        RunFailed: some did not come.
    """
    deadline = time.monotonic() + seconds
    store.set(_here(rank), "")
    for other in range(world):
        while not store.check([_here(other)]):
            if time.monotonic() > deadline:
                raise RunFailed(
                    f"process {other} of {world} has not begun after {seconds / 60:.0f} minutes; see what it said on "
                    "its machine"
                )
            time.sleep(_POLL)


def _here(rank: int) -> str:
    """Key by which a process says that it is here."""
    return f"sightline/here/{rank}"
