"""From the name of an engine to the processes that it works on."""

from __future__ import annotations

import os
from datetime import timedelta
from typing import Literal

from sightline.agents.engines.engine import Engine
from sightline.errors import BadInput

PATIENCE = timedelta(hours=6)
"""How long processes wait for each other: one of them may examine the model while the others have nothing to do. If one
ends before its time, torchrun ends the others at once."""


def start_engine(name: Literal["auto", "single", "ddp", "fsdp2"], device: str = "auto") -> Engine:
    """Join the processes that torchrun has started, if it has.

    Args:
        name: `auto` is `ddp` with several processes, else `single`.
        device: where the model will live, see `choose_device`; with CUDA each process of a machine takes a GPU of its
            own, which is the current one from then on.

    Raises:
        BadInput: processes were not started as the engine needs, or there are not enough GPUs.
    """
    started = "RANK" in os.environ and "WORLD_SIZE" in os.environ
    world = int(os.environ["WORLD_SIZE"]) if started else 1
    if name == "auto":
        name = "ddp" if world > 1 else "single"
    if name == "single":
        from sightline.agents.engines.single import SingleProcess

        if world > 1:
            raise BadInput(
                f"engine=single is for one process, and torchrun has started {world}; say engine=ddp or fsdp2"
            )
        return SingleProcess()
    if not started:
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
    import torch
    import torch.distributed as dist

    on_gpus = device.startswith("cuda") or (device == "auto" and torch.cuda.is_available())
    if on_gpus:
        place = int(os.environ.get("LOCAL_RANK", "0"))
        if place >= torch.cuda.device_count():
            raise BadInput(
                f"there are more processes than GPUs on this machine ({torch.cuda.device_count()}); "
                f"start with torchrun --nproc-per-node {max(torch.cuda.device_count(), 1)}, or say device=cpu"
            )
        torch.cuda.set_device(place)
    dist.init_process_group("cpu:gloo,cuda:nccl" if on_gpus else "gloo", timeout=PATIENCE)
