"""The policy itself replies, in this process."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sightline.agents.samplers import Completion, Conversation, Key
from sightline.errors import RunFailed
from sightline.models.vlm.model import VLM
from sightline.models.vlm.types import Prompt, Sample

CHANCE_OF_SAMPLING = 1


@dataclass(frozen=True)
class PolicySampler:
    """A model, asked as it is now.

    Attributes:
        vlm: the model.
        temperature: 1 samples from the model as it is; 0 takes the most probable token.
        max_tokens: of a reply.
    """

    vlm: VLM
    temperature: float
    max_tokens: int

    def ask(self, conversations: Sequence[Conversation], keys: Sequence[Key]) -> list[Completion]:
        """See `Sampler`."""
        prompts = [self.vlm.encode(conversation) for conversation in conversations]
        uniforms = None
        if self.temperature > 0:
            chances = [np.random.default_rng((CHANCE_OF_SAMPLING, *key)) for key in keys]
            uniforms = np.stack([chance.random(self.max_tokens) for chance in chances])
        samples = self._written(prompts, uniforms)
        return [Completion(sample, prompt) for sample, prompt in zip(samples, prompts, strict=True)]

    def _written(self, prompts: Sequence[Prompt], uniforms: np.ndarray | None) -> list[Sample]:
        """Replies; in halves if memory runs out, to the same effect, for each has its own numbers."""
        import torch

        try:
            return self.vlm.generate(prompts, uniforms, self.temperature or 1.0, self.max_tokens)
        except (torch.OutOfMemoryError, MemoryError) as error:
            if len(prompts) == 1:
                raise RunFailed(
                    "out of memory while a single reply is written; lower replies.max_tokens, or take a smaller model"
                ) from error
        half = len(prompts) // 2
        first, second = (None, None) if uniforms is None else (uniforms[:half], uniforms[half:])
        return self._written(prompts[:half], first) + self._written(prompts[half:], second)
