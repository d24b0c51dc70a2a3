"""DDP engine: data parallelism with a full replica of the model on every process.

Not torch's DistributedDataParallel: that averages gradients, synchronises in every backward pass unless told otherwise,
and needs equally many passes on all processes. Here gradients are summed once for each optimiser step, and a process
runs as many passes as it has work, or none.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from sightline.agents.engines.engine import ProcessGroup, broadcast_weights
from sightline.agents.engines.optimisers import (
    OptimiserState,
    clipped_step,
    full_optimiser_state,
    load_full_optimiser_state,
    parameters_of,
)

if TYPE_CHECKING:
    import torch
    from torch import nn

    from sightline.models.vlm.model import VLM

BUCKET = 2**25
"""Gradient elements in one all-reduce: enough to keep the connection busy, little beside the gradients themselves."""


class DDP(ProcessGroup):
    """Engine with a replica of the model on every process; see `Engine`."""

    uniform_steps = False
    _module: nn.Module

    def prepare(self, vlm: VLM) -> None:
        broadcast_weights(vlm.scorer)
        self._module = vlm.scorer

    def full_params(self) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()

    def step(self, optimiser: torch.optim.Optimizer, max_norm: float) -> float:
        sum_gradients(parameters_of(optimiser))
        return clipped_step(optimiser, max_norm)

    def optimiser_state(self, optimiser: torch.optim.Optimizer) -> OptimiserState:
        return full_optimiser_state(self._module, optimiser) if self.rank == 0 else {}

    def load_optimiser_state(self, optimiser: torch.optim.Optimizer, state: OptimiserState) -> None:
        load_full_optimiser_state(self._module, optimiser, state)


def sum_gradients(parameters: Sequence[torch.Tensor]) -> None:
    """All-reduce gradients: the sum over all processes. A missing one counts as zero; those that no process has stay
    missing, as they would in one process (AdamW then skips the parameter, weight decay included)."""
    import torch
    import torch.distributed as dist

    if not parameters:
        return
    # All processes must reduce the same tensors, so they first agree on the parameters that have a gradient anywhere.
    present = torch.tensor([parameter.grad is not None for parameter in parameters], dtype=torch.uint8)
    dist.all_reduce(present, dist.ReduceOp.MAX)
    gradients = []
    for parameter, anywhere in zip(parameters, present.tolist(), strict=True):
        if anywhere and parameter.grad is None:  # another process has it, and waits for ours in the all-reduce
            parameter.grad = torch.zeros_like(parameter)
        if parameter.grad is not None:
            gradients.append(parameter.grad)
    for bucket in _buckets(gradients):
        # summed in float32 whatever the weights are: bfloat16 would round in every addition
        flat = torch.cat([gradient.reshape(-1).float() for gradient in bucket])
        dist.all_reduce(flat)
        start = 0
        for gradient in bucket:
            gradient.copy_(flat[start : start + gradient.numel()].view_as(gradient))
            start += gradient.numel()


def _buckets(gradients: Sequence[torch.Tensor]) -> Iterator[list[torch.Tensor]]:
    """Group gradients into buckets of up to `BUCKET` elements; a larger one is alone."""
    bucket: list[torch.Tensor] = []
    elements = 0
    for gradient in gradients:
        if bucket and elements + gradient.numel() > BUCKET:
            yield bucket
            bucket, elements = [], 0
        bucket.append(gradient)
        elements += gradient.numel()
    if bucket:
        yield bucket
