"""A whole model on every process; gradients are added up once for each step.

Not torch's DistributedDataParallel: that averages, and adds up in every backward pass unless told otherwise, and all
processes must make equally many. Here a process makes as many passes as it has work, or none.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from sightline.agents.engines.optimisers import OptimiserState, load_optimiser_state, optimiser_state
from sightline.agents.engines.processes import Processes, share_weights
from sightline.agents.engines.stepping import clipped_step, parameters_of

if TYPE_CHECKING:
    import torch
    from torch import nn

    from sightline.models.vlm.model import VLM

BUCKET = 2**25
"""Numbers that are sent at once: enough to keep the connection busy, little beside the gradients themselves."""


class DDP(Processes):
    """Replicas of the model; see `Engine`."""

    lockstep = False
    _module: nn.Module

    def prepare(self, vlm: VLM) -> None:
        share_weights(vlm.scorer)
        self._module = vlm.scorer

    def whole(self) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()

    def step(self, optimiser: torch.optim.Optimizer, max_norm: float) -> float:
        add_gradients(parameters_of(optimiser))
        return clipped_step(optimiser, max_norm)

    def optimiser_state(self, optimiser: torch.optim.Optimizer) -> OptimiserState:
        return optimiser_state(self._module, optimiser) if self.rank == 0 else {}

    def load_optimiser_state(self, optimiser: torch.optim.Optimizer, state: OptimiserState) -> None:
        load_optimiser_state(self._module, optimiser, state)


def add_gradients(parameters: Sequence[torch.Tensor]) -> None:
    """Put the sum over all processes into every gradient. One that is missing counts as zero; those that no process has
    stay missing, as they would in one process."""
    import torch
    import torch.distributed as dist

    if not parameters:
        return
    there = torch.tensor([parameter.grad is not None for parameter in parameters], dtype=torch.uint8)
    dist.all_reduce(there, dist.ReduceOp.MAX)
    gradients = []
    for parameter, known in zip(parameters, there.tolist(), strict=True):
        if known and parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
        if parameter.grad is not None:
            gradients.append(parameter.grad)
    for bucket in _buckets(gradients):
        flat = torch.cat([gradient.reshape(-1).float() for gradient in bucket])
        dist.all_reduce(flat)
        at = 0
        for gradient in bucket:
            gradient.copy_(flat[at : at + gradient.numel()].view_as(gradient))
            at += gradient.numel()


def _buckets(gradients: Sequence[torch.Tensor]) -> Iterator[list[torch.Tensor]]:
    bucket: list[torch.Tensor] = []
    numbers = 0
    for gradient in gradients:
        if bucket and numbers + gradient.numel() > BUCKET:
            yield bucket
            bucket, numbers = [], 0
        bucket.append(gradient)
        numbers += gradient.numel()
    if bucket:
        yield bucket
