"""Prompts that are read once for several replies: their keys and values, handed to each."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

from sightline.models.vlm.parts import without_adapters

if TYPE_CHECKING:
    import torch

WORTH_SHARING = 0.75
"""Share of different prompts up to which equal ones are read once: it takes a pass more."""


def handed_on(model: Any, read: Any, of: torch.Tensor) -> dict[str, Any]:
    """Input of a model by which it goes on after prompts that it has read.

    Args:
        read: output of the pass over P prompts.
        of: int64[N], which of them each of N rows goes on after. Gradients of the rows of a prompt are summed.
    """
    from sightline.models.vlm.caching import as_input, with_rows

    cache = read.get("cache") or read["past_key_values"]
    return as_input(model, with_rows(cache, of))


def shifted_modules(model: Any) -> list[Any]:
    """Modules that count positions of pictures in their own way; `rope_deltas` [P, 1] says how far the positions after
    each of the prompts that were read last are from the usual."""
    import torch

    return [module for module in model.modules() if isinstance(getattr(module, "rope_deltas", None), torch.Tensor)]


def can_share(model: Any) -> bool:
    """Tell whether several replies can be scored after one reading of their prompt.

    Prompts of a batch are padded on the right there. To attention over all tokens the gap before a reply is nothing;
    layers that see a window of the last tokens, or keep a state, would count it.
    """
    from sightline.models.vlm.caching import all_tokens_kept

    takes_positions = "position_ids" in inspect.signature(without_adapters(model).forward).parameters
    return takes_positions and all_tokens_kept(model)
