"""Parts that the two samplers with vLLM share, in this process and on a server: seeds, banned tokens, and checks of the
prompt and the reply."""

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
"""First number of the PRNG keys of vLLM's seeds."""
_BANNED = -100.0
"""Lowest logit bias that vLLM takes: the token's probability times 4e-44."""


def seed_of(key: Key) -> int:
    """Hash a PRNG key to a seed of 31 bits, as vLLM wants it."""
    sequence = np.random.SeedSequence((CHANCE_OF_SEEDS, *key))
    return int(sequence.generate_state(1)[0] >> 1)


def banned_biases(vlm: VLM) -> dict[int, float]:
    """Logit bias of each banned token: token id -> bias."""
    tokens = vlm.tokens.banned.nonzero().flatten().tolist()
    return {int(token): _BANNED for token in tokens}


def check_prompt(ids: Sequence[int], prompt: Prompt, who: str, advice: str) -> None:
    """Check that the prompt that vLLM has read is the learner's, id by id: log-probabilities under another prompt make
    wrong importance ratios.

    Args:
        ids: of the tokens that vLLM has read.
        prompt: the learner's.
        who: names the reader, for the message.
        advice: what to do about a difference, for the message.

    Raises:
        RunFailed: they differ.
    """
    if list(ids) != prompt.ids.tolist():
        raise RunFailed(
            f"{who} reads a prompt of {len(ids)} tokens where the learner reads another of {len(prompt.ids)}; {advice}"
        )


def completion_of(
    vlm: VLM, prompt: Prompt, ids: Sequence[int], logprobs: Sequence[float], version: int | None = None
) -> Completion:
    """Make a completion of sampled tokens and their log-probabilities."""
    finished = bool(ids) and ids[-1] in vlm.tokens.stops
    text = vlm.decode(ids)
    sample = Sample(np.array(ids, np.int64), np.array(logprobs, np.float32), text, finished)
    return Completion(sample, prompt, version)
