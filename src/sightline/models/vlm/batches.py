"""Prompts of different lengths and different numbers of pictures side by side."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Literal

import numpy as np

from sightline.models.vlm.types import Prompt

if TYPE_CHECKING:
    import torch


def stack(
    rows: Sequence[np.ndarray],
    prompts: Sequence[Prompt],
    pad: int,
    side: Literal["left", "right"],
    nested: Collection[str],
) -> dict[str, torch.Tensor]:
    """What a model is called with.

    Args:
        rows: int64[L] each: a prompt's ids, or more that follow them.
        prompts: to which the rows belong; their further tensors are filled up with zeros.
        pad: id to fill up with.
        side: where.
        nested: names of picture tensors that the model wants with one more axis in front.

    Returns:
        `input_ids` and `attention_mask` int64[N, L], further tensors of tokens [N, L], and tensors of pictures with
        those of all rows one after the other.
    """
    import torch

    longest = max(len(row) for row in rows)

    def filled(values: torch.Tensor, fill: int) -> torch.Tensor:
        missing = longest - len(values)
        before, after = (missing, 0) if side == "left" else (0, missing)
        return torch.nn.functional.pad(values, (before, after), value=fill)

    ids = [torch.from_numpy(np.asarray(row, np.int64)) for row in rows]
    inputs = {
        "input_ids": torch.stack([filled(row, pad) for row in ids]),
        "attention_mask": torch.stack([filled(torch.ones_like(row), 0) for row in ids]),
    }
    for name in dict.fromkeys(name for prompt in prompts for name in prompt.per_token):
        columns = []
        for row, prompt in zip(ids, prompts, strict=True):
            known = prompt.per_token.get(name, row.new_zeros(0))
            columns.append(filled(torch.cat([known, known.new_zeros(len(row) - len(known))]), 0))
        inputs[name] = torch.stack(columns)
    for name in dict.fromkeys(name for prompt in prompts for name in prompt.per_picture):
        together = join_pictures([prompt.per_picture[name] for prompt in prompts if name in prompt.per_picture])
        inputs[name] = together[None] if name in nested else together
    return inputs


def join_pictures(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """Tensors [P, …] one after the other; where they differ in size, smaller ones are filled up with zeros."""
    import torch

    if len(tensors) == 1:
        return tensors[0]
    sizes = [max(tensor.shape[axis] for tensor in tensors) for axis in range(1, tensors[0].ndim)]
    grown = []
    for tensor in tensors:
        missing = [want - have for want, have in zip(sizes, tensor.shape[1:], strict=True)]
        padding = [amount for missed in reversed(missing) for amount in (0, missed)]
        grown.append(torch.nn.functional.pad(tensor, padding) if any(missing) else tensor)
    return torch.cat(grown)
