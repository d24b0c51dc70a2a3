"""FSDP2 engine: each process keeps its shard of the weights, gradients and optimiser state (torch's FSDP2; Zhao et al.
2023, arXiv 2304.11277; Rajbhandari et al. 2020, arXiv 1910.02054).

    training   layer by layer: all-gather weights, compute, free them; reduce-scatter the gradients (summed)
    rollouts   `full_params`: all-gather everything once into a twin of the model without shards, then every process
               works on its own

So all processes run equally many training passes (`uniform_steps`), while rollouts, scoring and saving are not bound to
each other.

The arithmetic is that of the other engines (products in bfloat16 on GPUs by autocast, weights and sums in float32), so
that the same numbers come out, and saved weights are exact.
"""

from __future__ import annotations

import contextlib
import copy
import warnings
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from sightline.agents.engines.engine import ProcessGroup
from sightline.errors import BadInput

if TYPE_CHECKING:
    from torch import nn

    from sightline.models.vlm.model import VLM


class FSDP2(ProcessGroup):
    """Engine with a shard of the model on every process; see `Engine`."""

    _vlm: VLM
    _twin: nn.Module

    def __init__(self) -> None:
        super().__init__()
        self.uniform_steps = self.world > 1

    def prepare(self, vlm: VLM) -> None:
        import torch
        from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard

        if vlm.four_bit:
            raise BadInput("weights of 4 bits cannot be kept in shards; say engine=ddp, or policy.four_bit=false")
        self._vlm = vlm
        self._module = vlm.scorer
        self._twin = _without_weights(vlm.scorer)
        # Gradients of a shared prompt reach its layers by keys and values, where FSDP does not gather their weights.
        vlm.shares_prompts = vlm.shares_prefixes = False
        weights = vlm.scorer.state_dict() if self.rank == 0 else {}
        mesh = init_device_mesh(vlm.device.type, (self.world,))
        precision = MixedPrecisionPolicy(reduce_dtype=torch.float32)
        units = layers_in(vlm.scorer)
        if vlm.scorer.value_head is not None:
            # It is in float32 whatever the model is, and a group of shards has one type.
            units.append(vlm.scorer.value_head)
        for unit in units:
            fully_shard(unit, mesh=mesh, mp_policy=precision)
        # What is outside of all layers is needed again at the beginning of the backward pass.
        fully_shard(vlm.scorer, mesh=mesh, mp_policy=precision, reshard_after_forward=False)
        for module in vlm.scorer.modules():
            if isinstance(module, FSDPModule):
                module.set_gradient_divide_factor(1.0)  # add, do not average …
                module.set_force_sum_reduction_for_comms(True)  # … and not by multiplying with 1 first: gloo cannot
        # Each process has loaded or initialised its own copy; a value head, for one, is random.
        from_first = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)
        set_model_state_dict(vlm.scorer, weights, options=from_first)
        # Values are a view, and nobody writes into scores.
        warnings.filterwarnings("ignore", r"FSDP2-wrapped module \(FSDPScorer\) returned a view", UserWarning)

    @contextlib.contextmanager
    def full_params(self) -> Iterator[None]:
        import torch
        from torch.distributed.tensor import distribute_tensor

        if self._vlm.scorer is self._twin:  # entered already; the outer one gives the weights back
            yield
            return
        # The twin's parameter, empty so far -> the shard that this process has of it.
        pairs: list[tuple[Any, Any]] = list(zip(self._twin.parameters(), self._module.parameters(), strict=True))
        with torch.no_grad():
            for weights, shard in pairs:
                weights.data = shard.full_tensor()
        self._vlm.scorer = self._twin  # type: ignore[assignment]
        try:
            yield
        finally:
            self._vlm.scorer = self._module  # type: ignore[assignment]
            with torch.no_grad():
                for weights, shard in pairs:
                    # Weights may have been loaded meanwhile. src_data_rank=None: each process cuts out its own shard,
                    # and nothing is sent.
                    placed = distribute_tensor(weights.data, shard.device_mesh, shard.placements, src_data_rank=None)
                    shard.copy_(placed)
                    weights.data = weights.new_empty(0)


def _without_weights(module: nn.Module) -> nn.Module:
    """Copy of a module whose parameters are empty."""
    from torch import nn

    # `deepcopy` takes what it finds in its memo for copied already.
    memo: dict[int, Any] = {}
    for parameter in module.parameters():
        memo[id(parameter)] = nn.Parameter(parameter.new_empty(0), parameter.requires_grad)
    return copy.deepcopy(module, memo)


def layers_in(module: nn.Module) -> list[nn.Module]:
    """Transformer layers, the units of sharding: the members of the outermost module lists, whatever the model."""
    from torch import nn

    layers: list[nn.Module] = []
    for child in module.children():
        if not isinstance(child, nn.ModuleList):
            layers += layers_in(child)
            continue
        for member in child:
            candidates: list[nn.Module] = [member]
            if isinstance(member, (nn.ModuleList, nn.ModuleDict)):
                # A list of lists: neither has a forward pass of its own, before which weights could be gathered.
                candidates = layers_in(member)
            layers += [layer for layer in candidates if next(layer.parameters(), None) is not None]
    return layers
