"""Replies, drawn token by token with random numbers that are given."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from sightline.errors import RunFailed
from sightline.models.vlm.tokens import Tokens
from sightline.models.vlm.types import Sample

if TYPE_CHECKING:
    import torch


def sample(
    model: Any,
    inputs: Mapping[str, torch.Tensor],
    tokens: Tokens,
    banned: torch.Tensor,
    uniforms: np.ndarray | None,
    temperature: float,
    max_tokens: int,
) -> list[Sample]:
    """A reply to each prompt.

    Args:
        model: what can `generate`.
        inputs: prompts, filled up on the left.
        banned: bool[V] where the model is.
        uniforms: float64[N, max_tokens] in [0, 1): a token is the first at which the cumulative probability exceeds
            the number of its row and place. So a reply depends on its prompt and its numbers, not on its neighbours.
            None: the most probable token always.
        temperature: what logits are divided by; with None it changes only what log-probabilities are told.
    """
    import torch
    import transformers

    picker = _picker(banned, uniforms, temperature)
    # the model's own habits (top-k, penalties, …) would warp the probabilities: nothing but these settings counts
    library: Any = transformers  # its types change with its version
    settings = library.GenerationConfig(
        max_new_tokens=max_tokens, do_sample=False, eos_token_id=sorted(tokens.stops), pad_token_id=tokens.pad
    )
    with _without_habits(model), torch.no_grad():
        model.generate(**inputs, generation_config=settings, logits_processor=library.LogitsProcessorList([picker]))
    picked = torch.stack(picker.picked, 1).cpu().numpy()
    logprobs = torch.stack(picker.logprobs, 1).cpu().numpy()
    replies = [_until_stop(tokens, ids, row) for ids, row in zip(picked, logprobs, strict=True)]
    if not all(np.isfinite(reply.logprobs).all() for reply in replies):
        raise RunFailed(
            "the model's probabilities are not finite; go on from an earlier checkpoint, or try policy.dtype=float32"
        )
    return replies


def _picker(banned: torch.Tensor, uniforms: np.ndarray | None, temperature: float) -> Any:
    """What tells `generate` which token comes next, and remembers it."""
    import torch
    from transformers import LogitsProcessor

    numbers = None if uniforms is None else torch.from_numpy(np.asarray(uniforms, np.float64))

    class Picker(LogitsProcessor):
        def __init__(self) -> None:
            self.picked: list[torch.Tensor] = []
            self.logprobs: list[torch.Tensor] = []

        def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
            logits = (scores.float() / temperature).masked_fill(banned, -torch.inf)
            chosen = logits.argmax(-1) if numbers is None else draw(logits, numbers[:, len(self.picked)])
            self.picked.append(chosen)
            self.logprobs.append(logits.gather(1, chosen[:, None])[:, 0] - logits.logsumexp(-1))
            only = torch.full_like(scores, -torch.inf)
            return only.scatter(1, chosen[:, None], 0.0)

    return Picker()


def draw(logits: torch.Tensor, uniforms: torch.Tensor) -> torch.Tensor:
    """Inverse transform sampling.

    Args:
        logits: float32[N, V]; minus infinity is never drawn.
        uniforms: float64[N] in [0, 1).

    Returns:
        int64[N].
    """
    import torch

    place = logits.device
    exact = logits.cpu() if place.type == "mps" else logits  # no float64 there
    cumulative = exact.double().softmax(-1).cumsum(-1)
    # a double below 1 times the total is below the total, so something is found; it has a probability, for only there
    # does the sum grow
    level = uniforms.to(exact.device)[:, None] * cumulative[:, -1:]
    found = torch.searchsorted(cumulative, level, right=True)[:, 0]
    return found.clamp(max=logits.shape[-1] - 1).to(place)  # nothing is found where probabilities are no numbers


@contextlib.contextmanager
def _without_habits(model: Any) -> Iterator[None]:
    """Within, the model has no generation settings of its own: `generate` would mix them into those it is given."""
    import transformers

    library: Any = transformers
    core = model.get_base_model() if hasattr(model, "get_base_model") else model
    own, core.generation_config = core.generation_config, library.GenerationConfig()
    try:
        yield
    finally:
        core.generation_config = own


def _until_stop(tokens: Tokens, ids: np.ndarray, logprobs: np.ndarray) -> Sample:
    stop = next((place for place, token in enumerate(ids.tolist()) if token in tokens.stops), None)
    length = len(ids) if stop is None else stop + 1
    said = ids[:length].astype(np.int64)
    return Sample(said, logprobs[:length].astype(np.float32), tokens.decode(said.tolist()), stop is not None)
