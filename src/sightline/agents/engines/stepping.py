"""One step of an optimiser."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


def parameters_of(optimiser: torch.optim.Optimizer) -> list[torch.Tensor]:
    """All that an optimiser changes, in its order."""
    return [parameter for group in optimiser.param_groups for parameter in group["params"]]


def clipped_step(optimiser: torch.optim.Optimizer, max_norm: float) -> float:
    """Clip the common norm of all gradients, change the weights, forget the gradients; see `Engine.step`."""
    import torch
    from torch.distributed.tensor import DTensor

    total = torch.nn.utils.clip_grad_norm_(parameters_of(optimiser), max_norm)
    norm = float(total.full_tensor() if isinstance(total, DTensor) else total)
    if math.isfinite(norm):
        optimiser.step()
    optimiser.zero_grad(set_to_none=True)
    return norm
