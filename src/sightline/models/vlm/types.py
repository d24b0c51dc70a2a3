"""Inputs and outputs of a trainable vision-language model: prompts, sampled replies, token statistics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import blake2b
from typing import TYPE_CHECKING

import numpy as np

from sightline.images import Picture

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class ChatTurn:
    """One turn of a conversation: a user message with pictures, and the model's reply to it.

    Attributes:
        text: the user's text, placed after the pictures unless `order` says otherwise.
        pictures: any number.
        reply: the sampled token ids, including the stop token; empty in the turn that is to be replied to now.
        reply_text: the reply's text, for samplers that do not expose token ids.
        order: texts of the message, and None for each picture, in the order in which they are shown; empty for all
            pictures and then the text.
    """

    text: str
    pictures: tuple[Picture, ...]
    reply: tuple[int, ...] = ()
    reply_text: str = ""
    order: tuple[str | None, ...] = ()

    @classmethod
    def of_parts(cls, parts: Sequence[str | Picture]) -> ChatTurn:
        """Turn whose texts and pictures take turns, without a reply."""
        texts: list[str] = []
        pictures: list[Picture] = []
        order: list[str | None] = []
        for part in parts:
            if isinstance(part, str):
                texts.append(part)
                order.append(part)
            else:
                pictures.append(part)
                order.append(None)
        return cls("\n".join(texts), tuple(pictures), order=tuple(order))

    @property
    def layout(self) -> tuple[str | None, ...]:
        """Texts in order, with None for each picture."""
        return self.order or (*(None,) * len(self.pictures), self.text)


@dataclass(frozen=True, eq=False)
class Prompt:
    """A tokenised conversation with its picture tensors. Earlier replies keep the ids that were sampled.

    Attributes:
        ids: int64[L].
        per_token: further model inputs with one entry per token, such as token types: name -> [L].
        per_picture: model inputs whose first axis runs over pictures or patches: name -> [P, …].
    """

    ids: np.ndarray
    per_token: Mapping[str, torch.Tensor] = field(default_factory=dict)
    per_picture: Mapping[str, torch.Tensor] = field(default_factory=dict)

    @cached_property
    def digest(self) -> bytes:
        """Digest of ids and tensors: prompts that show a model the same have equal ones."""
        import torch

        digest = blake2b(self.ids.tobytes(), digest_size=16)
        for name, tensor in sorted({**self.per_token, **self.per_picture}.items()):
            # Name, shape and dtype too: equal bytes may be other tensors.
            digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}".encode())
            digest.update(tensor.contiguous().flatten().view(torch.uint8).numpy().tobytes())
        return digest.digest()


@dataclass(frozen=True)
class Truncation:
    """Which tokens may be sampled at all; applied in this order, as Hugging Face does.

    Attributes:
        top_k: only so many of the most probable; 0 for all.
        top_p: only the most probable ones that together have this probability (nucleus sampling, Holtzman et al. 2020).
        min_p: none that is less probable than this share of the most probable one (Nguyen et al. 2025).
    """

    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0


EVERY_TOKEN = Truncation()
"""Nothing is cut off."""


@dataclass(frozen=True, eq=False)
class Sample:
    """A sampled reply with its log-probabilities.

    Attributes:
        ids: int64[n], including the stop token if there is one.
        logprobs: float32[n], log-probabilities (nats) at the sampling temperature, normalised over the tokens that are
            not banned and, with a truncation, in the support.
        text: the reply without special tokens.
        finished: true if the reply ended with a stop token, false if it reached the token limit.
        alternatives: for each token the most probable ones at its place, as (id, log-probability at temperature 1);
            empty unless they were asked for.
        support: for each token the ids, int32[K] in ascending order, that the truncation of sampling left at its place;
            empty without one.
    """

    ids: np.ndarray
    logprobs: np.ndarray
    text: str
    finished: bool
    alternatives: tuple[tuple[tuple[int, float], ...], ...] = ()
    support: tuple[np.ndarray, ...] = ()


@dataclass(frozen=True)
class TurnSpan:
    """Token positions of one turn's reply within a sequence.

    Attributes:
        start, end: half-open range of positions in the sequence's ids; `start` is the first sampled token.
        choice: position of the first token at which the legal actions differ; None if the reply held no action.
        choices: id of that token for each legal action.
        support: `Sample.support`: probabilities are normalised over these tokens alone; empty for all.
    """

    start: int
    end: int
    choice: int | None = None
    choices: tuple[int, ...] = ()
    support: tuple[np.ndarray, ...] = ()


@dataclass(frozen=True, eq=False)
class TokenSequence:
    """One row of a scoring batch: a prompt, the reply to it, and the spans of the turns to score.

    Attributes:
        prompt: the last turn's prompt; it contains the earlier turns if these are scored as well.
        reply: int64[n], sampled ids of the last turn.
        spans: the turns to score, in order; the last one ends where the reply ends.
    """

    prompt: Prompt
    reply: np.ndarray
    spans: tuple[TurnSpan, ...]

    @classmethod
    def of_reply(cls, prompt: Prompt, reply: np.ndarray) -> TokenSequence:
        """A prompt and a reply to it, all of which is scored."""
        start = len(prompt.ids)
        return cls(prompt, reply, (TurnSpan(start, start + len(reply)),))

    @property
    def length(self) -> int:
        """Number of tokens."""
        return len(self.prompt.ids) + len(self.reply)


@dataclass(frozen=True)
class TokenStats:
    """Log-probabilities, entropies and values of a batch of T scored tokens and M turns, ordered by sequence and span.

    Attributes:
        logprobs: float32[T], log-probabilities (nats) at the given temperature of the tokens of all spans.
        entropy: float32[T], entropy (nats) over all tokens that are not banned, whatever a truncation left of them in
            sampling; without gradient.
        values: float32[M], value of the state before each turn, computed at the last prompt token; zeros without a
            value head.
        choice_entropy: float32[M], entropy (nats) over the legal actions alone (`TurnSpan.choices`); 0 without a
            choice.
    """

    logprobs: torch.Tensor
    entropy: torch.Tensor
    values: torch.Tensor
    choice_entropy: torch.Tensor
