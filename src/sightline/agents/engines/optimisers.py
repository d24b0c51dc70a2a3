"""Optimiser step with gradient clipping, and the optimiser's state by parameter name.

Names, not positions: a state that was saved with one engine fits the same model under any other, sharded or not.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from sightline.errors import BadInput

if TYPE_CHECKING:
    import torch
    from torch import nn

OptimiserState = dict[str, Any]
"""`state`: name of a parameter -> step and moments, full tensors on the CPU; `param_groups`: settings. Empty before the
first step."""


def clipped_step(optimiser: torch.optim.Optimizer, max_norm: float) -> float:
    """Clip the global gradient norm, update the weights, clear the gradients; see `Engine.step`."""
    import torch
    from torch.distributed.tensor import DTensor

    parameters = [parameter for group in optimiser.param_groups for parameter in group["params"]]
    total = torch.nn.utils.clip_grad_norm_(parameters, max_norm)
    if isinstance(total, DTensor):
        total = total.full_tensor()
    norm = float(total)
    # One step with an infinite gradient would turn all weights and both moments into NaN.
    if math.isfinite(norm):
        optimiser.step()
    optimiser.zero_grad(set_to_none=True)
    return norm


def full_optimiser_state(module: nn.Module, optimiser: torch.optim.Optimizer) -> OptimiserState:
    """Full optimiser state of a module's parameters, on process 0; an empty one on the others."""
    from torch.distributed.checkpoint.state_dict import StateDictOptions, get_optimizer_state_dict

    # Where there is none, torch would make one by a step of no length, and count that step.
    if not optimiser.state:
        return {}
    gathered = StateDictOptions(full_state_dict=True, cpu_offload=True)
    return dict(get_optimizer_state_dict(module, optimiser, options=gathered))


def load_full_optimiser_state(module: nn.Module, optimiser: torch.optim.Optimizer, state: OptimiserState) -> None:
    """Replace an optimiser's state by one that `full_optimiser_state` gave.

    Raises:
        BadInput: the state belongs to another model.
    """
    from torch.distributed.checkpoint.state_dict import StateDictOptions, set_optimizer_state_dict

    optimiser.state.clear()
    optimiser.zero_grad(set_to_none=True)  # or torch would take the state as complete
    if not state:
        return
    _check(module, state["state"])
    settings: list[dict[str, Any]] = []
    for group in optimiser.param_groups:
        own = dict(group)
        del own["params"]
        settings.append(own)
    full = StateDictOptions(full_state_dict=True, strict=False)
    set_optimizer_state_dict(module, optimiser, state, options=full)
    for group, own in zip(optimiser.param_groups, settings, strict=True):
        group.update(own)  # the recipe's, not the file's
    # Torch makes up a state, of one step, for parameters that never had a gradient.
    for name, parameter in module.named_parameters():
        if name not in state["state"]:
            optimiser.state.pop(parameter, None)


def _check(module: nn.Module, moments: dict[str, dict[str, torch.Tensor]]) -> None:
    """Complain of a state that torch would load in part, or not at all, without a word."""
    shapes = {name: parameter.shape for name, parameter in module.named_parameters() if parameter.requires_grad}
    for name, tensors in moments.items():
        # The count of steps is a scalar; the moments have the shape of their parameter.
        moment_shapes = [tensor.shape for key, tensor in tensors.items() if key != "step"]
        if name not in shapes or any(shape != shapes[name] for shape in moment_shapes):
            raise BadInput(
                f"the saved optimiser is that of another model (it knows {name}); were policy.freeze or policy.lora "
                "others?"
            )
