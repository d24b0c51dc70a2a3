"""DDP engine: data parallelism with a full replica of the model on every process, by torch's DistributedDataParallel.

    passes of a step    the model itself, without communication (what DDP calls `no_sync`): as many as there is work
    end of the step     one pass through DDP, which changes no gradient: DDP then adds up what has been accumulated

So a process may have more passes than another, or none, and one that runs out of memory can be retried.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from sightline.agents.engines.engine import ProcessGroup
from sightline.agents.engines.optimisers import clipped_step

if TYPE_CHECKING:
    from sightline.models.vlm.model import VLM


class DDP(ProcessGroup):
    """Engine with a replica of the model on every process; see `Engine`."""

    uniform_steps = False
    _replica: DistributedDataParallel

    def prepare(self, vlm: VLM) -> None:
        self._module = vlm.scorer
        # Takes over the weights of process 0. A parameter without gradient on any process stays without one, as in one
        # process: AdamW then skips it, weight decay included.
        self._replica = DistributedDataParallel(
            _LastPass(vlm.scorer), find_unused_parameters=True, gradient_as_bucket_view=True
        )

    def full_params(self) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()

    def step(self, optimiser: torch.optim.Optimizer, max_norm: float) -> float:
        self._replica().backward()
        for parameter in self._module.parameters():
            if parameter.grad is not None:
                parameter.grad.mul_(self.world)  # DDP's mean to the sum
        return clipped_step(optimiser, max_norm)

    def close(self) -> None:
        vars(self).pop("_replica", None)  # it holds on to the process group
        super().close()


class _LastPass(nn.Module):
    """A pass of no effect, after which DDP communicates."""

    def __init__(self, scorer: nn.Module) -> None:
        super().__init__()
        self.scorer = scorer

    def forward(self) -> torch.Tensor:
        # The parameter nearest to the output: it has a gradient in any case.
        *_, last = (parameter for parameter in self.scorer.parameters() if parameter.requires_grad)
        return 0.0 * last.sum()
