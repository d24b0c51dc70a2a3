"""Optimiser step with gradient clipping, and the optimiser's state by parameter name.

Names, not positions: a state that was saved with one engine fits the same model under any other, sharded or not.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from sightline.errors import BadInput

if TYPE_CHECKING:
    import torch
    from torch import nn

OptimiserState = dict[str, dict[str, "torch.Tensor"]]
"""Name of a parameter -> its optimiser state (step, moments), full tensors on the CPU."""


def parameters_of(optimiser: torch.optim.Optimizer) -> list[torch.Tensor]:
    """All parameters of an optimiser, in its order."""
    return [parameter for group in optimiser.param_groups for parameter in group["params"]]


def clipped_step(optimiser: torch.optim.Optimizer, max_norm: float) -> float:
    """Clip the global gradient norm, update the weights, clear the gradients; see `Engine.step`."""
    import torch
    from torch.distributed.tensor import DTensor

    total = torch.nn.utils.clip_grad_norm_(parameters_of(optimiser), max_norm)
    norm = float(total.full_tensor() if isinstance(total, DTensor) else total)
    # One step with an infinite gradient would turn all weights and both moments into NaN.
    if math.isfinite(norm):
        optimiser.step()
    optimiser.zero_grad(set_to_none=True)
    return norm


def full_optimiser_state(module: nn.Module, optimiser: torch.optim.Optimizer, keep: bool = True) -> OptimiserState:
    """Full optimiser state of a module's parameters; those that never had a gradient are missing.

    Args:
        keep: False if the caller does not want it; gathering shards is a collective, so it has to take part all the
            same.
    """
    from torch.distributed.tensor import DTensor

    found: OptimiserState = {}
    for name, parameter in module.named_parameters():
        if parameter in optimiser.state:
            full = {
                key: value.full_tensor() if isinstance(value, DTensor) else value
                for key, value in optimiser.state[parameter].items()
            }
            if keep:
                found[name] = {key: value.detach().cpu().clone() for key, value in full.items()}
    return found


def load_full_optimiser_state(module: nn.Module, optimiser: torch.optim.Optimizer, state: OptimiserState) -> None:
    """Replace an optimiser's state by one that `full_optimiser_state` gave.

    Raises:
        BadInput: the state belongs to another model.
    """
    parameters = dict(module.named_parameters())
    unknown = [name for name in state if name not in parameters or not parameters[name].requires_grad]
    unfit = [
        name
        for name, tensors in state.items()
        if name in parameters and any(v.shape != parameters[name].shape for k, v in tensors.items() if k != "step")
    ]
    if unknown or unfit:
        raise BadInput(
            f"the saved optimiser is that of another model (it knows {(unknown + unfit)[0]}); "
            "were policy.freeze or policy.lora others?"
        )
    optimiser.state.clear()
    for name, tensors in state.items():
        # AdamW counts its steps on the CPU; its moments live beside the parameter.
        optimiser.state[parameters[name]] = {
            key: value.clone() if key == "step" else shard_like(value.clone(), parameters[name])
            for key, value in tensors.items()
        }


def shard_like(value: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """Move a full tensor to another's device, and shard it if the other is. Every process has the same value."""
    from torch.distributed.tensor import DTensor, distribute_tensor

    placed = value.detach().to(like.device)
    if not isinstance(like, DTensor):
        return placed
    # src_data_rank=None: each process cuts out its own shard, and nothing is sent
    return distribute_tensor(placed, like.device_mesh, like.placements, src_data_rank=None)
