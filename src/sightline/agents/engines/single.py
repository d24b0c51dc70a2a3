"""One process."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, TypeVar

from sightline.agents.engines.optimisers import OptimiserState, load_optimiser_state, optimiser_state
from sightline.agents.engines.stepping import clipped_step

if TYPE_CHECKING:
    import torch
    from torch import nn

    from sightline.models.vlm.model import VLM

T = TypeVar("T")


class SingleProcess:
    """All work is done here; see `Engine`."""

    rank = 0
    world = 1
    lockstep = False
    _module: nn.Module

    def prepare(self, vlm: VLM) -> None:
        self._module = vlm.scorer

    def whole(self) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()

    def step(self, optimiser: torch.optim.Optimizer, max_norm: float) -> float:
        return clipped_step(optimiser, max_norm)

    def gather(self, mine: T) -> list[T]:
        return [mine]

    def largest(self, number: int) -> int:
        return number

    def optimiser_state(self, optimiser: torch.optim.Optimizer) -> OptimiserState:
        return optimiser_state(self._module, optimiser)

    def load_optimiser_state(self, optimiser: torch.optim.Optimizer, state: OptimiserState) -> None:
        load_optimiser_state(self._module, optimiser, state)

    def close(self) -> None:
        return None
