"""What vLLM in this process and a server have in common: seeds, banned tokens, and the check of what they have read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from sightline.agents.samplers import Completion, Key
from sightline.errors import RunFailed
from sightline.models.vlm.types import Prompt, Sample

if TYPE_CHECKING:
    from sightline.models.vlm.model import VLM

CHANCE_OF_SEEDS = 3
"""First number of the PRNG keys of their seeds."""
_BANNED = -100.0
"""Lowest logit bias that vLLM takes: the token's probability times 4e-44."""


def seed_of(key: Key) -> int:
    """Hash a PRNG key to a seed of 31 bits, as vLLM wants it."""
    return int(np.random.SeedSequence((CHANCE_OF_SEEDS, *key)).generate_state(1)[0] >> 1)


def banned_biases(vlm: VLM) -> dict[int, float]:
    """Logit bias of each banned token."""
    return {int(token): _BANNED for token in vlm.tokens.banned.nonzero().flatten().tolist()}


def check_prompt(read: Sequence[int], prompt: Prompt, who: str, advice: str) -> None:
    """Check that a prompt is the learner's, id by id: under another one log-probabilities make wrong ratios.

    Raises:
        RunFailed: it is another.
    """
    if list(read) != prompt.ids.tolist():
        raise RunFailed(
            f"{who} reads a prompt of {len(read)} tokens where the learner reads another of {len(prompt.ids)}; {advice}"
        )


def completion_of(
    vlm: VLM, prompt: Prompt, ids: Sequence[int], logprobs: Sequence[float], version: int | None = None
) -> Completion:
    """The completion that some tokens and their log-probabilities are."""
    finished = bool(ids) and ids[-1] in vlm.tokens.stops
    sample = Sample(np.array(ids, np.int64), np.array(logprobs, np.float32), vlm.decode(ids), finished)
    return Completion(sample, prompt, version)
