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
        prompt_keys = [_prompt_key(conversation) for conversation in conversations]
        uniforms = None
        if self.temperature > 0:
            # One uniform number for each token, inverted through the cumulative distribution: a reply does not depend
            # on the batch that it is generated in.
            generators = [np.random.default_rng((CHANCE_OF_SAMPLING, *key)) for key in keys]
            uniforms = np.stack([generator.random(self.max_tokens) for generator in generators])
        samples = self._sample(prompts, prompt_keys, uniforms)
        return [Completion(sample, prompt) for sample, prompt in zip(samples, prompts, strict=True)]

    def _sample(
        self, prompts: Sequence[Prompt], prompt_keys: Sequence[Hashable], uniforms: np.ndarray | None
    ) -> list[Sample]:
        """Sample replies in the largest batches that are known to fit into memory. The size of a batch does not change
        the replies, for each has its own uniform numbers.

        Args:
            prompts: N of them.
            prompt_keys: equal prompts have equal keys.
            uniforms: float64[N, max_tokens], or None for greedy replies.

        Raises:
            RunFailed: a single reply does not fit into memory.
        """
        import torch

        samples: list[Sample] = []
        while len(samples) < len(prompts):
            start = len(samples)
            stop = start + (self.vlm.replies_at_once or len(prompts))
            batch = slice(start, stop)
            try:
                batch_uniforms = None if uniforms is None else uniforms[batch]
                samples += self._sample_batch(prompts[batch], prompt_keys[batch], batch_uniforms)
            except (torch.OutOfMemoryError, MemoryError) as error:
                tried = len(prompts[batch])
                if tried == 1:
                    raise RunFailed(
                        "out of memory while a single reply is written; lower replies.max_tokens, or take a smaller "
                        "model"
                    ) from error
                self.vlm.replies_at_once = tried // 2
        return samples

    def _sample_batch(
        self, prompts: Sequence[Prompt], prompt_keys: Sequence[Hashable], uniforms: np.ndarray | None
    ) -> list[Sample]:
        """Sample replies in one batch. Episodes of a group begin alike, and small games have few states: a prompt that
        occurs several times is passed through the model once, if enough prompts do."""
        distinct = dict(zip(prompt_keys, prompts, strict=True))
        prompt_of_reply: list[int] | None = None
        if len(distinct) <= WORTH_SHARING * len(prompts):
            numbers = {key: number for number, key in enumerate(distinct)}
            prompt_of_reply = [numbers[key] for key in prompt_keys]
            prompts = list(distinct.values())
        return self.vlm.generate(
            prompts,
            uniforms,
            self.temperature or 1.0,
            self.max_tokens,
            truncation=self.truncation,
            of=prompt_of_reply,
        )


def _prompt_key(conversation: Conversation) -> Hashable:
    """Everything that a prompt depends on: layout, pictures and reply of each turn."""
    turns = []
    for turn in conversation:
        digests = tuple(picture.digest for picture in turn.pictures)
        turns.append((turn.layout, digests, tuple(turn.reply)))
    return tuple(turns)
