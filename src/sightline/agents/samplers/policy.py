"""Sampler: the policy itself, in this process."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np

from sightline.agents.samplers import Completion, Conversation, Key
from sightline.errors import RunFailed
from sightline.models.vlm.model import VLM
from sightline.models.vlm.shared_prompts import WORTH_SHARING
from sightline.models.vlm.types import EVERY_TOKEN, Prompt, Sample, Truncation

CHANCE_OF_SAMPLING = 1
"""First number of the PRNG keys of sampling, so that they differ from those of random actions."""


@dataclass(frozen=True)
class PolicySampler:
    """Samples replies with the present weights of the policy.

    Attributes:
        vlm: the policy.
        temperature: 1 samples from the model's distribution; 0 is greedy.
        max_tokens: of a reply.
        truncation: tokens that may be sampled at all.
    """

    vlm: VLM
    temperature: float
    max_tokens: int
    truncation: Truncation = EVERY_TOKEN

    def generate(self, conversations: Sequence[Conversation], keys: Sequence[Key]) -> list[Completion]:
        """See `Sampler`."""
        if not conversations:
            return []
        prompts = [self.vlm.encode(conversation) for conversation in conversations]
        uniforms = None
        if self.temperature > 0:
            # One uniform number for each token, inverted through the cumulative distribution: a reply does not depend
            # on the batch that it is generated in.
            generators = [np.random.default_rng((CHANCE_OF_SAMPLING, *key)) for key in keys]
            uniforms = np.stack([generator.random(self.max_tokens) for generator in generators])
        samples = self._sample(prompts, [_key(conversation) for conversation in conversations], uniforms)
        return [Completion(sample, prompt) for sample, prompt in zip(samples, prompts, strict=True)]

    def _sample(
        self, prompts: Sequence[Prompt], states: Sequence[Hashable], uniforms: np.ndarray | None
    ) -> list[Sample]:
        """Sample replies; if memory runs out in two halves, with the same result: each has its own uniform numbers.

        Episodes of a group begin alike, and small games have few states: what is shown several times is read once.
        """
        import torch

        prompt_of = dict(zip(states, prompts, strict=True))
        place = {state: i for i, state in enumerate(prompt_of)}
        shared = len(prompt_of) <= WORTH_SHARING * len(prompts)
        try:
            return self.vlm.generate(
                list(prompt_of.values()) if shared else prompts,
                uniforms,
                self.temperature or 1.0,
                self.max_tokens,
                truncation=self.truncation,
                of=[place[state] for state in states] if shared else None,
            )
        except (torch.OutOfMemoryError, MemoryError) as error:
            if len(prompts) == 1:
                raise RunFailed(
                    "out of memory while a single reply is written; lower replies.max_tokens, or take a smaller model"
                ) from error
        half = len(prompts) // 2
        above, below = (None, None) if uniforms is None else (uniforms[:half], uniforms[half:])
        return self._sample(prompts[:half], states[:half], above) + self._sample(prompts[half:], states[half:], below)


def _key(conversation: Conversation) -> Hashable:
    """What a prompt depends on."""
    return tuple(
        (turn.layout, tuple(picture.digest for picture in turn.pictures), tuple(turn.reply)) for turn in conversation
    )
