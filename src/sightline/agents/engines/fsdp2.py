"""FSDP2 engine: each process keeps its shard of the weights, gradients and optimiser state (torch's FSDP2; Zhao et al.
2023, arXiv 2304.11277; Rajbhandari et al. 2020, arXiv 1910.02054).

    training   layer by layer: all-gather weights, compute, free them; reduce-scatter the gradients (summed)
    rollouts   `full_params`: all-gather everything once, then every process works on its own

So all processes run equally many training passes (`uniform_steps`), while rollouts, scoring and saving are not bound to
each other.

The arithmetic is that of the other engines (products in bfloat16 on GPUs by autocast, weights and sums in float32), so
that the same numbers come out, and saved weights are exact.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from sightline.agents.engines.engine import ProcessGroup, broadcast_weights
from sightline.agents.engines.optimisers import (
    OptimiserState,
    clipped_step,
    full_optimiser_state,
    load_full_optimiser_state,
    shard_like,
)
from sightline.errors import BadInput

if TYPE_CHECKING:
    import torch
    from torch import nn

    from sightline.models.vlm.model import VLM

HOOKS = (
    *("_forward_pre_hooks", "_forward_hooks", "_state_dict_pre_hooks"),
    *("_load_state_dict_pre_hooks", "_load_state_dict_post_hooks"),
)
"""Attributes of a module that hold FSDP's hooks of passes, saving and loading."""


class FSDP2(ProcessGroup):
    """Engine with a shard of the model on every process; see `Engine`."""

    _module: Any

    def __init__(self) -> None:
        super().__init__()
        self.uniform_steps = self.world > 1
        self._is_full = False

    def prepare(self, vlm: VLM) -> None:
        import torch
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

        if vlm.four_bit:
            raise BadInput("weights of 4 bits cannot be kept in shards; say engine=ddp, or policy.four_bit=false")
        broadcast_weights(vlm.scorer)
        mesh = init_device_mesh(vlm.device.type, (self.world,))
        precision = MixedPrecisionPolicy(reduce_dtype=torch.float32)
        # the value head is in float32 whatever the model is, and a group of shards has one type
        heads = [vlm.scorer.value_head] if vlm.scorer.value_head is not None else []
        for layer in (*layers_in(vlm.scorer), *heads):
            fully_shard(layer, mesh=mesh, mp_policy=precision)
        # what is outside of all layers is needed again at the beginning of the backward pass
        fully_shard(vlm.scorer, mesh=mesh, mp_policy=precision, reshard_after_forward=False)
        for module in _sharded(vlm.scorer):
            module.set_gradient_divide_factor(1.0)  # add, do not average …
            module.set_force_sum_reduction_for_comms(True)  # … and not by multiplying with 1 first, which gloo cannot
        for module in vlm.scorer.modules():
            if hasattr(module, "generate"):  # else Hugging Face makes all processes write equally many tokens
                setattr(module, "_is_fsdp_managed_module", False)  # noqa: B010
        # values are a view; nobody writes into scores
        warnings.filterwarnings("ignore", r"FSDP2-wrapped module \(FSDPScorer\) returned a view", UserWarning)
        self._module = vlm.scorer

    @contextlib.contextmanager
    def full_params(self) -> Iterator[None]:
        import torch

        if self._is_full:  # entered already; the outer one reshards
            yield
            return
        shards = dict(self._module.named_parameters())
        for module in _sharded(self._module):
            module.unshard()
        self._is_full = True
        try:
            with _without_hooks(self._module):
                yield
        finally:
            self._is_full = False
            # Weights may have been loaded meanwhile: copy this process's part of them into its shards.
            weights = dict(self._module.named_parameters())
            with torch.no_grad():
                for name, shard in shards.items():
                    shard.to_local().copy_(shard_like(weights[name], shard).to_local())  # type: ignore[attr-defined]
            for module in _sharded(self._module):
                module.reshard()

    def step(self, optimiser: torch.optim.Optimizer, max_norm: float) -> float:
        return clipped_step(optimiser, max_norm)  # gradients were summed by the backward passes

    def optimiser_state(self, optimiser: torch.optim.Optimizer) -> OptimiserState:
        return full_optimiser_state(self._module, optimiser, keep=self.rank == 0)

    def load_optimiser_state(self, optimiser: torch.optim.Optimizer, state: OptimiserState) -> None:
        load_full_optimiser_state(self._module, optimiser, state)


def layers_in(module: nn.Module) -> list[nn.Module]:
    """Transformer layers, the units of sharding: the members of the outermost module lists, whatever the model."""
    from torch import nn

    found: list[nn.Module] = []
    for child in module.children():
        if isinstance(child, nn.ModuleList):
            for member in child:
                inside = layers_in(member) if isinstance(member, (nn.ModuleList, nn.ModuleDict)) else [member]
                found += [layer for layer in inside if any(True for _ in layer.parameters())]
        else:
            found += layers_in(child)
    return found


def _sharded(module: nn.Module) -> Iterator[Any]:
    from torch.distributed.fsdp import FSDPModule

    return (part for part in module.modules() if isinstance(part, FSDPModule))


@contextlib.contextmanager
def _without_hooks(module: nn.Module) -> Iterator[None]:
    """Switch FSDP's hooks off while entered: weights are neither gathered nor freed, and state dicts hold plain
    tensors."""
    taken: list[tuple[dict[int, Any], dict[int, Any]]] = []
    for part in module.modules():
        for name in HOOKS:
            hooks = getattr(part, name)
            fsdp_keys = [
                key
                for key, hook in hooks.items()
                if str(getattr(hook, "__module__", "")).startswith("torch.distributed.fsdp")
            ]
            if fsdp_keys:
                taken.append((hooks, dict(hooks)))
                for key in fsdp_keys:
                    del hooks[key]
    try:
        yield
    finally:
        for hooks, before in taken:
            # Keep hooks that were added meanwhile, behind the ones that come back: their order is that of calls.
            since = {key: hook for key, hook in hooks.items() if key not in before}
            hooks.clear()
            hooks.update(before | since)
