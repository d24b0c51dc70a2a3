"""Beginnings that are read once for several rows: their keys and values, handed to each.

Equal prompts are read once for all replies to them. A language model is told the rules of a game in each prompt: what
all prompts of a batch begin with is read once. `scoring.py` has a picture of the rows.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from sightline.models.vlm.parts import without_adapters
from sightline.models.vlm.types import Prompt

if TYPE_CHECKING:
    import torch

WORTH_SHARING = 0.75
"""Largest share of a batch's prompts, or tokens, that is left to read where equal ones are read once: it takes one more
pass."""

LONG_ROPE = {"longrope", "su"}
"""Names of LongRoPE in configurations."""


def common_prefix(prompts: Sequence[Prompt]) -> int:
    """Number of tokens with which all prompts begin alike; 0 where a model is given more than tokens, such as pictures.

    At least two tokens of each prompt stay apart: the last one is read before each reply, one more with the prompt.
    """
    if any(prompt.per_token or prompt.per_picture for prompt in prompts):
        return 0
    shortest = min(len(prompt.ids) for prompt in prompts)
    ids = np.stack([prompt.ids[:shortest] for prompt in prompts])
    differs = (ids != ids[0]).any(0)
    alike = int(differs.argmax()) if differs.any() else shortest
    return max(0, min(alike, shortest - 2))


def is_worth_sharing(prefix: int, rows: int, tokens: int, otherwise: int) -> bool:
    """Tell whether reading a prefix once pays for the further pass.

    Args:
        prefix: tokens with which all rows begin.
        rows: their number.
        tokens: of all rows.
        otherwise: tokens that would be read without it.
    """
    return tokens - prefix * (rows - 1) <= WORTH_SHARING * otherwise


def cache_for_rows(model: Any, output: Any, of: torch.Tensor) -> dict[str, Any]:
    """Cache of prompts that a model has read, as an input by which rows continue after them.

    Args:
        output: of the pass over P prompts; its cache is changed in place.
        of: int64[N], the prompt after which each of N rows continues. Gradients of the rows of a prompt are summed.
    """
    from sightline.models.vlm.caching import as_input

    cache = output.get("cache") or output["past_key_values"]
    # By the one method that layers with a state of their own, as Mamba's and LFM2's, have too.
    cache.reorder_cache(of)
    return as_input(model, cache)


def shifted_modules(model: Any) -> list[Any]:
    """Modules that count positions of pictures in their own way; `rope_deltas` [P, 1] says how far the positions after
    each of the prompts that were read last are from the usual."""
    import torch

    return [module for module in _counting_modules(model) if isinstance(module.rope_deltas, torch.Tensor)]


@contextlib.contextmanager
def recorded_positions(model: Any) -> Iterator[list[torch.Tensor]]:
    """The positions int64[A, P, L] on A axes that a model gives to the tokens of prompts that it reads within the
    context; empty if it counts in the usual way.

    `rope_deltas` would say it shorter, but some versions of Transformers count from the padded length of a prompt.
    """
    recorded: list[torch.Tensor] = []

    def record(_: Any, __: Any, keywords: dict[str, Any]) -> None:
        if keywords.get("position_ids") is not None:
            recorded.append(keywords["position_ids"])

    with contextlib.ExitStack() as hooks:
        for module in _counting_modules(model):
            handle = module.language_model.register_forward_pre_hook(record, with_kwargs=True)
            hooks.callback(handle.remove)
        yield recorded


def positions_after(recorded: list[torch.Tensor], mask: torch.Tensor) -> torch.Tensor:
    """The position int64[P, 1] of the token after each prompt, from `recorded_positions` and the attention mask
    [P, L]."""
    if not recorded:
        return mask.sum(1, keepdim=True)
    # A fourth axis, which comes first where there is one, counts the tokens as text.
    time_height_width = recorded[-1].reshape(-1, *mask.shape)[-3:]
    # A picture's axes advance by its height and width, so the next token comes after the largest position on any axis.
    largest = time_height_width.masked_fill(mask == 0, -1).amax((0, 2))
    return largest[:, None] + 1


def _counting_modules(model: Any) -> list[Any]:
    """Modules that count positions of pictures in their own way."""
    return [module for module in model.modules() if hasattr(module, "rope_deltas")]


def can_share(model: Any) -> bool:
    """Tell whether several replies can be scored after one reading of their prompt.

    Prompts of a batch are padded on the right there. Attention over all tokens does not see the gap before a reply;
    layers that see a window of the last tokens, or keep a state, would count it.
    """
    from sightline.models.vlm.caching import caches_all_tokens

    takes_positions = "position_ids" in inspect.signature(without_adapters(model).forward).parameters
    can_record = all(hasattr(module, "language_model") for module in _counting_modules(model))
    return takes_positions and can_record and caches_all_tokens(model) and not _turns_by_length(model)


def _turns_by_length(model: Any) -> bool:
    """Tell whether positions turn keys by other angles in a long pass than in a short one, as LongRoPE's do (Phi-3):
    keys of a beginning, read apart, would not be those of a whole prompt."""
    config = without_adapters(model).config.get_text_config(decoder=True)
    # A name of Transformers 5, and one of Transformers 4; some families have the same for each kind of layer.
    rope = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None) or {}
    of_layers = [value for value in rope.values() if isinstance(value, dict)]
    kinds = {options.get("rope_type") or options.get("type") for options in (rope, *of_layers)}
    return not kinds.isdisjoint(LONG_ROPE)
