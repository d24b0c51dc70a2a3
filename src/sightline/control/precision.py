"""The numbers that encoders compute in, as a run's recipe says them, so that it goes on in the same on any machine."""

from __future__ import annotations

from typing import Any

from sightline.config.basics import Strict
from sightline.config.recipe import ControlRecipe
from sightline.models.device import choose_devices, fast_dtype
from sightline.models.encoder_files import encoder_weights


def with_dtypes(recipe: ControlRecipe) -> ControlRecipe:
    """A completed recipe whose encoders' `dtype=auto` is the fastest one of this machine.

    That is bfloat16 where a GPU, or a processor by its instructions avx512_bf16 or amx_bf16, computes in it, and else
    float32. Embeddings of the bundled encoder differ by a cosine of .9999 between the two.

    Raises:
        BadInput: a device is not available here.
    """
    return recipe.model_copy(update={"reward": _resolved(recipe.reward)})


def _resolved(block: Strict, device: str = "auto") -> Strict:
    """A block, and those within it; the device of an encoder is its own block's, or that of the block around it."""
    values = dict(block)
    device = values.get("device", device)
    changes: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, Strict):
            changes[name] = _resolved(value, device)
        elif isinstance(value, tuple) and any(isinstance(part, Strict) for part in value):
            changes[name] = tuple(_resolved(part, device) for part in value)
    if "encoder" in values and values.get("dtype") == "auto":
        devices = choose_devices(device, encoder_weights(values["encoder"]))
        changes["dtype"] = str(fast_dtype(*devices)).removeprefix("torch.")
    return block.model_copy(update=changes)
