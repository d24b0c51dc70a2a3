"""A key-value cache that writes new tokens behind those that it holds.

The library's own copies all keys and values for every token, which takes most of the time of long replies:

    library   k k k k + k  ->  k k k k k          all copied, token by token
    here      k k k k . . .    k k k k k . .      one written; all copied when the memory is used up
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer

from sightline.models.vlm.parts import without_adapters

if TYPE_CHECKING:
    import torch

SPARE_TOKENS = 64
"""Further tokens that memory is allocated for at a time."""


ATTENTION = {"attention", "full_attention"}
"""Kinds of layers that attend to all tokens, as configurations call them."""


class PreallocatedLayer(DynamicLayer):  # type: ignore[no-untyped-call]
    """Keys and values [rows, heads, tokens, size] of a layer, with memory for more tokens."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._allocate_nothing()

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Add the keys and values of some tokens; returns those of all tokens."""
        if not self.is_initialized:
            self._take_over_dtype_and_device(key_states, value_states)
        self.keys = self._key_buffer.append(self.keys, key_states)
        self.values = self._value_buffer.append(self.values, value_states)
        return self.keys, self.values

    def _take_over_dtype_and_device(self, *states: torch.Tensor) -> None:
        # Transformers 4 asks for the keys only.
        parameters = inspect.signature(self.lazy_initialization).parameters
        self.lazy_initialization(*states[: len(parameters)])

    def reorder_cache(self, beam_idx: torch.Tensor) -> None:
        """Keep some rows, or copies of them, and no longer the memory of all."""
        super().reorder_cache(beam_idx)  # type: ignore[arg-type]
        self._allocate_nothing()

    def _allocate_nothing(self) -> None:
        self._key_buffer = _Buffer()
        self._value_buffer = _Buffer()


class _Buffer:
    """A tensor at the beginning of a larger one."""

    def __init__(self) -> None:
        self._whole: torch.Tensor | None = None
        self._used: torch.Tensor | None = None

    def append(self, old: torch.Tensor | None, new: torch.Tensor) -> torch.Tensor:
        """`old` and `new` behind it, as one tensor; `old` is copied if it does not come from here, or no memory is
        left."""
        count = 0
        if old is not None and old.numel():
            count = old.shape[-2]
        total = count + new.shape[-2]
        if self._whole is None or old is not self._used or total > self._whole.shape[-2]:
            self._whole = new.new_empty((*new.shape[:-2], total + SPARE_TOKENS, new.shape[-1]))
            if old is not None and count:
                self._whole[..., :count, :] = old
        self._whole[..., count:total, :] = new
        # The same object is returned and remembered: by it the next call knows that `old` lies here already.
        self._used = self._whole[..., :total, :]
        return self._used


def preallocated_cache(model: Any) -> dict[str, Any]:
    """An empty cache as an input of `generate`; none for models whose layers hold something else than all tokens."""
    if not caches_all_tokens(model):
        return {}
    cache = _usual_cache(model)
    cache.layers = [PreallocatedLayer() for _ in cache.layers]
    return as_input(model, cache)


def caches_all_tokens(model: Any) -> bool:
    """Tell whether all layers attend to all tokens, instead of a window of the last ones or a state."""
    config = _text_config(model)
    # GPT-Neo's windows have names of their own, which the library's cache does not read.
    if "local" in getattr(config, "attention_layers", ()):
        return False
    # Transformers 4 makes its cache as if layers that keep a state, as LFM2's convolutions, attended to all tokens.
    if not ATTENTION.issuperset(getattr(config, "layer_types", None) or ()):
        return False
    layers = _usual_cache(model).layers
    return bool(layers) and all(type(layer) is DynamicLayer for layer in layers)


def as_input(model: Any, cache: Any) -> dict[str, Any]:
    """A cache as an input of a model, whose name depends on the version of the library."""
    parameters = inspect.signature(without_adapters(model).forward).parameters
    name = "cache" if "cache" in parameters else "past_key_values"
    return {name: cache}


def _usual_cache(model: Any) -> Any:
    return DynamicCache(config=_text_config(model))


def _text_config(model: Any) -> Any:
    return without_adapters(model).config.get_text_config(decoder=True)
