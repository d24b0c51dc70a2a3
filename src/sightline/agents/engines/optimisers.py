"""The state of an optimiser by names of parameters, so that it fits the same model however that is spread out."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sightline.errors import BadInput

if TYPE_CHECKING:
    import torch
    from torch import nn

OptimiserState = dict[str, dict[str, "torch.Tensor"]]
"""Name of a parameter -> what the optimiser remembers of it, whole and on the CPU."""


def optimiser_state(module: nn.Module, optimiser: torch.optim.Optimizer, keep: bool = True) -> OptimiserState:
    """What an optimiser remembers of a module's parameters; those that never had a gradient are missing.

    Args:
        keep: whether the caller wants it; if the tensors are in shards all processes have to take part all the same.
    """
    found: OptimiserState = {}
    for name, parameter in module.named_parameters():
        if parameter in optimiser.state:
            remembered = {key: _whole(value) for key, value in optimiser.state[parameter].items()}
            if keep:
                found[name] = {key: value.detach().cpu().clone() for key, value in remembered.items()}
    return found


def load_optimiser_state(module: nn.Module, optimiser: torch.optim.Optimizer, state: OptimiserState) -> None:
    """Make an optimiser remember what `optimiser_state` gave, and nothing else.

    Raises:
        BadInput: the state is that of another model.
    """
    parameters = dict(module.named_parameters())
    unknown = [name for name in state if name not in parameters or not parameters[name].requires_grad]
    unfit = [
        name
        for name, remembered in state.items()
        if name in parameters and any(v.shape != parameters[name].shape for k, v in remembered.items() if k != "step")
    ]
    if unknown or unfit:
        raise BadInput(
            f"the saved optimiser is that of another model (it knows {(unknown + unfit)[0]}); "
            "were policy.freeze or policy.lora others?"
        )
    optimiser.state.clear()
    for name, remembered in state.items():
        # AdamW counts its steps on the CPU; all else lies where the parameter does
        optimiser.state[parameters[name]] = {
            key: value.clone() if key == "step" else spread(value.clone(), parameters[name])
            for key, value in remembered.items()
        }


def spread(value: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """A whole tensor, moved to where another lies, in shards if that is. Every process has the same value."""
    from torch.distributed.tensor import DTensor, distribute_tensor

    placed = value.detach().to(like.device)
    if not isinstance(like, DTensor):
        return placed
    # src_data_rank=None: each process cuts out its own shard, and nothing is sent
    return distribute_tensor(placed, like.device_mesh, like.placements, src_data_rank=None)


def _whole(value: torch.Tensor) -> torch.Tensor:
    from torch.distributed.tensor import DTensor

    return value.full_tensor() if isinstance(value, DTensor) else value
