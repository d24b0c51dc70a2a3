"""Padding and batching of prompts with different lengths and numbers of pictures.

Two rows of a batch (p: token of the prompt, r: token of the reply, .: padding):

    side="left", for generation               side="right", for scoring
        . . p p p                                 p p p r .        attention_mask   1 1 1 1 0
        p p p p p                                 p p p r r                         1 1 1 1 1

    every prompt ends in the last column,     every position counts from column 0, so spans index
    where `generate` reads the next token     the batch as they index the sequence's own ids

Where prompts begin alike and are read in two parts, that beginning (a) stays at the left, before the padding:

    prefix=2, side="left"
        a a . p p
        a a p p p

The attention mask hides the padding only. Which tokens count in the loss is said by the spans of a sequence; see
`scoring.py`.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

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
    prefix: int = 0,
) -> dict[str, torch.Tensor]:
    """Pad rows of token ids to one length and collect all model inputs.

    Args:
        rows: N arrays int64[L_i]: a prompt's ids, optionally followed by reply ids.
        prompts: the prompts that the rows begin with; their per-token tensors are extended with zeros.
        pad: padding id.
        side: padding side: left for generation, right for scoring.
        nested: names of picture tensors that the model expects with an extra leading axis of size 1.
        prefix: so many tokens of each row stay to the left of its padding.

    Returns:
        `input_ids` and `attention_mask` int64[N, L], further per-token tensors [N, L], and picture tensors [P, …],
        concatenated over the rows.
    """
    import torch

    longest = max(len(row) for row in rows)

    def padded(values: torch.Tensor, fill: int) -> torch.Tensor:
        padding = longest - len(values)
        before_and_after = (padding, 0) if side == "left" else (0, padding)
        rest = torch.nn.functional.pad(values[prefix:], before_and_after, value=fill)
        return torch.cat([values[:prefix], rest])

    ids = [torch.from_numpy(np.asarray(row, np.int64)) for row in rows]
    inputs = {
        "input_ids": torch.stack([padded(row, pad) for row in ids]),
        "attention_mask": torch.stack([padded(torch.ones_like(row), 0) for row in ids]),
    }
    for name in tensor_names(prompt.per_token for prompt in prompts):
        columns = []
        for row, prompt in zip(ids, prompts, strict=True):
            # A prompt made without such a tensor, and the reply, are text, which is type 0.
            of_prompt = prompt.per_token.get(name, row.new_zeros(0))
            of_reply = of_prompt.new_zeros(len(row) - len(of_prompt))
            columns.append(padded(torch.cat([of_prompt, of_reply]), 0))
        inputs[name] = torch.stack(columns)
    for name in tensor_names(prompt.per_picture for prompt in prompts):
        # Models match pictures to their placeholder tokens by order alone, so rows need no separator.
        pictures = join_pictures([prompt.per_picture[name] for prompt in prompts if name in prompt.per_picture])
        inputs[name] = pictures[None] if name in nested else pictures
    return inputs


def tensor_names(mappings: Iterable[Mapping[str, Any]]) -> list[str]:
    """All names of some mappings, each once, in the order in which they first appear."""
    return list(dict.fromkeys(itertools.chain.from_iterable(mappings)))


def join_pictures(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """Concatenate tensors [P, …] along the first axis; in the other axes, smaller ones are padded with zeros."""
    import torch

    if len(tensors) == 1:
        return tensors[0]
    shapes = [tensor.shape[1:] for tensor in tensors]
    largest = [max(sizes) for sizes in zip(*shapes, strict=True)]
    padded = []
    for tensor, shape in zip(tensors, shapes, strict=True):
        padding: list[int] = []
        # torch's pad takes (before, after) pairs from the last axis to the first.
        for size, target in zip(reversed(shape), reversed(largest), strict=True):
            padding += [0, target - size]
        padded.append(torch.nn.functional.pad(tensor, padding) if any(padding) else tensor)
    return torch.cat(padded)
