"""A key-value cache that writes new tokens behind those that it holds.

The library's own copies all keys and values for every token, which takes most of the time of long replies:

    library   k k k k + k  ->  k k k k k          all copied, token by token
    here      k k k k . . .    k k k k k . .      one written; all copied when the room is used up
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer

from sightline.models.vlm.parts import without_adapters

if TYPE_CHECKING:
    import torch

ROOM = 64
"""Tokens that are made room for at a time."""


class RoomyLayer(DynamicLayer):  # type: ignore[no-untyped-call]
    """Keys and values [rows, heads, tokens, size] of a layer, with room for more tokens."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._rooms = _Room(), _Room()

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Add the keys and values of some tokens; returns those of all tokens."""
        if not self.is_initialized:
            self._begin(key_states, value_states)
        self.keys = self._rooms[0].append(self.keys, key_states)
        self.values = self._rooms[1].append(self.values, value_states)
        return self.keys, self.values

    def _begin(self, *states: torch.Tensor) -> None:
        """Take over the dtype and device of the first tokens."""
        # Transformers 4 asks for the keys only.
        taken = inspect.signature(self.lazy_initialization).parameters
        self.lazy_initialization(*states[: len(taken)])

    def batch_select_indices(self, indices: torch.Tensor) -> None:
        """Keep some rows, or copies of them, and no longer the memory of all."""
        super().batch_select_indices(indices)
        self._rooms = _Room(), _Room()


class _Room:
    """A tensor at the beginning of a larger one."""

    def __init__(self) -> None:
        self._whole: torch.Tensor | None = None
        self._used: torch.Tensor | None = None

    def append(self, held: torch.Tensor | None, new: torch.Tensor) -> torch.Tensor:
        """`held` and `new` behind it, as one tensor; `held` is copied if it does not come from here, or there is no
        room left."""
        count = held.shape[-2] if held is not None and held.numel() else 0
        total = count + new.shape[-2]
        if self._whole is None or held is not self._used or total > self._whole.shape[-2]:
            self._whole = new.new_empty((*new.shape[:-2], total + ROOM, new.shape[-1]))
            if held is not None and count:
                self._whole[..., :count, :] = held
        self._whole[..., count:total, :] = new
        self._used = self._whole[..., :total, :]
        return self._used


def roomy_cache(model: Any) -> dict[str, Any]:
    """An empty cache as an input of `generate`; none for models whose layers hold something else than all tokens."""
    if not all_tokens_kept(model):
        return {}
    cache = _usual_cache(model)
    cache.layers = [RoomyLayer() for _ in cache.layers]
    return as_input(model, cache)


def all_tokens_kept(model: Any) -> bool:
    """Tell whether all layers attend to all tokens, instead of a window of the last ones or a state."""
    layers = _usual_cache(model).layers
    return bool(layers) and all(type(layer) is DynamicLayer for layer in layers)


def with_rows(cache: Any, of: torch.Tensor) -> Any:
    """The cache with some of its rows, or copies of them, int64[N]; it is changed in place."""
    cache.batch_select_indices(of)
    return cache


def as_input(model: Any, cache: Any) -> dict[str, Any]:
    """A cache as an input of a model, whose name depends on the version of the library."""
    names = inspect.signature(without_adapters(model).forward).parameters
    return {"cache" if "cache" in names else "past_key_values": cache}


def _usual_cache(model: Any) -> Any:
    return DynamicCache(config=without_adapters(model).config.get_text_config(decoder=True))
