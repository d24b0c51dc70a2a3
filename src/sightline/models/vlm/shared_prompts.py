"""Prompts that are read once for several replies: their keys and values, handed to each."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Iterator
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

    return [module for module in _counting_modules(model) if isinstance(module.rope_deltas, torch.Tensor)]


@contextlib.contextmanager
def positions_told(model: Any) -> Iterator[list[torch.Tensor]]:
    """The positions int64[A, P, L] on A axes that a model gives to the tokens of prompts that it reads within the
    context; empty if it counts in the usual way.

    `rope_deltas` would say it shorter, but some versions of Transformers count from the padded length of a prompt.
    """
    told: list[torch.Tensor] = []

    def listen(_: Any, __: Any, named: dict[str, Any]) -> None:
        if named.get("position_ids") is not None:
            told.append(named["position_ids"])

    with contextlib.ExitStack() as hooks:
        for module in _counting_modules(model):
            handle = module.language_model.register_forward_pre_hook(listen, with_kwargs=True)
            hooks.callback(handle.remove)
        yield told


def positions_after(told: list[torch.Tensor], mask: torch.Tensor) -> torch.Tensor:
    """The position int64[P, 1] of the token after each prompt, from `positions_told` and the attention mask [P, L]."""
    if not told:
        return mask.sum(1, keepdim=True)
    # A fourth axis, which comes first where there is one, counts the tokens as text.
    time_height_width = told[-1].reshape(-1, *mask.shape)[-3:]
    return time_height_width.masked_fill(mask == 0, -1).amax((0, 2))[:, None] + 1


def _counting_modules(model: Any) -> list[Any]:
    """Modules that count positions of pictures in their own way."""
    return [module for module in model.modules() if hasattr(module, "rope_deltas")]


def can_share(model: Any) -> bool:
    """Tell whether several replies can be scored after one reading of their prompt.

    Prompts of a batch are padded on the right there. To attention over all tokens the gap before a reply is nothing;
    layers that see a window of the last tokens, or keep a state, would count it.
    """
    from sightline.models.vlm.caching import all_tokens_kept

    takes_positions = "position_ids" in inspect.signature(without_adapters(model).forward).parameters
    positions_known = all(hasattr(module, "language_model") for module in _counting_modules(model))
    return takes_positions and positions_known and all_tokens_kept(model)
