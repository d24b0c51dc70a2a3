"""Padding and batching of prompts with different lengths and numbers of pictures."""

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
    """Pad rows of token ids to one length and collect all model inputs.

    Args:
        rows: N arrays int64[L_i]: a prompt's ids, optionally followed by reply ids.
        prompts: the prompts that the rows begin with; their per-token tensors are extended with zeros.
        pad: padding id.
        side: padding side: left for generation, right for scoring.
        nested: names of picture tensors that the model expects with an extra leading axis of size 1.

    Returns:
        `input_ids` and `attention_mask` int64[N, L], further per-token tensors [N, L], and picture tensors [P, …],
        concatenated over the rows.
    """
    import torch

    longest = max(len(row) for row in rows)

    def filled(values: torch.Tensor, fill: int) -> torch.Tensor:
        missing = longest - len(values)
        before, after = (missing, 0) if side == "left" else (0, missing)
        return torch.nn.functional.pad(values, (before, after), value=fill)

    #   side="left": every prompt ends in the last column,    side="right": every position counts from column 0,
    #   where `generate` reads the next token                 so spans index the batch as they index their own ids
    #       . . p p p                                             p p p r .
    #       p p p p p                                             p p p r r
    ids = [torch.from_numpy(np.asarray(row, np.int64)) for row in rows]
    inputs = {
        "input_ids": torch.stack([filled(row, pad) for row in ids]),
        "attention_mask": torch.stack([filled(torch.ones_like(row), 0) for row in ids]),
    }
    for name in dict.fromkeys(name for prompt in prompts for name in prompt.per_token):
        columns = []
        for row, prompt in zip(ids, prompts, strict=True):
            # Tokens of the reply are text, which is type 0.
            known = prompt.per_token.get(name, row.new_zeros(0))
            columns.append(filled(torch.cat([known, known.new_zeros(len(row) - len(known))]), 0))
        inputs[name] = torch.stack(columns)
    for name in dict.fromkeys(name for prompt in prompts for name in prompt.per_picture):
        # Models match pictures to their placeholder tokens by order alone, so rows need no separator.
        together = join_pictures([prompt.per_picture[name] for prompt in prompts if name in prompt.per_picture])
        inputs[name] = together[None] if name in nested else together
    return inputs


def join_pictures(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """Concatenate tensors [P, …] along the first axis; in the other axes, smaller ones are padded with zeros."""
    import torch

    if len(tensors) == 1:
        return tensors[0]
    sizes = [max(tensor.shape[axis] for tensor in tensors) for axis in range(1, tensors[0].ndim)]
    grown = []
    for tensor in tensors:
        missing = [want - have for want, have in zip(sizes, tensor.shape[1:], strict=True)]
        # torch's pad takes (before, after) pairs from the last axis to the first
        padding = [amount for missed in reversed(missing) for amount in (0, missed)]
        grown.append(torch.nn.functional.pad(tensor, padding) if any(missing) else tensor)
    return torch.cat(grown)
