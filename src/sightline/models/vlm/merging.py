"""Adapters that are merged into the weights while replies are sampled.

An adapted layer computes W x + B A x, three products where merged it is one: for each token of each reply. W is not
computed back from W + B A, which would round, but put back as it was:

    layer.weight    W ────► copy, into which PEFT adds B A ────► W, the same tensor
                            └─ replies are sampled ─┘
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch


@contextlib.contextmanager
def merged_adapters(model: Any) -> Iterator[None]:
    """Within the context, a model's LoRA adapters are part of its weights; afterwards all is as before, bit for bit.

    Takes the memory of the adapted weights once more. What is computed is that of the adapters but for rounding: to
    the dtype of the weights, which is coarse in bfloat16.
    """
    originals: list[tuple[Any, torch.Tensor]] = []
    try:
        for layer in _adapted_layers(model):
            weight = layer.get_base_layer().weight
            originals.append((layer, weight.data))
            weight.data = weight.data.clone()
            layer.merge()
        yield
    finally:
        for layer, original in originals:
            layer.get_base_layer().weight.data = original
            layer.merged_adapters.clear()


def _adapted_layers(model: Any) -> list[Any]:
    """PEFT's layers around those that have adapters and one weight: not experts, whose weights lie in one tensor; they
    are computed beside their adapters. None without PEFT."""
    layers = [module for module in model.modules() if hasattr(module, "lora_A") and hasattr(module, "merge")]
    return [layer for layer in layers if hasattr(layer.get_base_layer(), "weight")]
