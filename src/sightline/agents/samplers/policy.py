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
        """Sample replies, as many at once as memory is known to suffice for: each has its own uniform numbers, so the
        result is the same.

        Raises:
            RunFailed: it does not suffice for one.
        """
        import torch

        samples: list[Sample] = []
        while len(samples) < len(prompts):
            at_once = slice(len(samples), len(samples) + (self.vlm.replies_at_once or len(prompts)))
            try:
                numbers = None if uniforms is None else uniforms[at_once]
                samples += self._sample_at_once(prompts[at_once], states[at_once], numbers)
            except (torch.OutOfMemoryError, MemoryError) as error:
                tried = len(prompts[at_once])
                if tried == 1:
                    raise RunFailed(
                        "out of memory while a single reply is written; lower replies.max_tokens, or take a smaller "
                        "model"
                    ) from error
                self.vlm.replies_at_once = tried // 2
        return samples

    def _sample_at_once(
        self, prompts: Sequence[Prompt], states: Sequence[Hashable], uniforms: np.ndarray | None
    ) -> list[Sample]:
        """Sample replies in one batch. Episodes of a group begin alike, and small games have few states: what is shown
        several times is read once."""
        prompt_of = dict(zip(states, prompts, strict=True))
        place = {state: i for i, state in enumerate(prompt_of)}
        shared = len(prompt_of) <= WORTH_SHARING * len(prompts)
        return self.vlm.generate(
            list(prompt_of.values()) if shared else prompts,
            uniforms,
            self.temperature or 1.0,
            self.max_tokens,
            truncation=self.truncation,
            of=[place[state] for state in states] if shared else None,
        )


def _key(conversation: Conversation) -> Hashable:
    """What a prompt depends on."""
    return tuple(
        (turn.layout, tuple(picture.digest for picture in turn.pictures), tuple(turn.reply)) for turn in conversation
    )
