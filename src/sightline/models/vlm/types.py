"""What goes into a trainable vision-language model and what comes out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from sightline.images import Picture

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class ChatTurn:
    """What the model is shown once, and what it replied.

    Attributes:
        text: words, shown after the pictures.
        pictures: any number.
        reply: ids as they were sampled, with the one that ended the reply; empty for what is to be replied to now.
        reply_text: the reply's text, for those that read and write no ids.
    """

    text: str
    pictures: tuple[Picture, ...]
    reply: tuple[int, ...] = ()
    reply_text: str = ""


@dataclass(frozen=True, eq=False)
class Prompt:
    """Exchanges as the model reads them. Replies of earlier exchanges stand in it with the very ids that were sampled.

    Attributes:
        ids: int64[L].
        per_token: further tensors with one entry for each token, such as token types: name -> [L].
        per_picture: tensors whose first axis runs over pictures or patches: name -> [P, …].
    """

    ids: np.ndarray
    per_token: Mapping[str, torch.Tensor] = field(default_factory=dict)
    per_picture: Mapping[str, torch.Tensor] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Sample:
    """A reply as it was sampled.

    Attributes:
        ids: int64[n], with the token that ended it, if one did.
        logprobs: float32[n], natural logarithms, at the temperature of sampling, among the tokens that may be sampled.
        text: the reply without special tokens.
        finished: whether the model ended it; False if it was cut off.
    """

    ids: np.ndarray
    logprobs: np.ndarray
    text: str
    finished: bool


@dataclass(frozen=True)
class TurnSpan:
    """The tokens of one turn within a passage.

    Attributes:
        start, end: positions in the passage's ids; the token at `start` is the first that was sampled.
        choice: position of the token by which the legal actions differ first, None if none was read.
        choices: id of that token for each legal action.
    """

    start: int
    end: int
    choice: int | None = None
    choices: tuple[int, ...] = ()


@dataclass(frozen=True, eq=False)
class TokenSequence:
    """What is read in one forward pass: a prompt, the reply to it, and where the turns to be scored are.

    Attributes:
        prompt: the last turn's; it holds the earlier turns if they are scored as well.
        reply: int64[n], the last turn's sampled ids.
        spans: of the turns, in order; the last ends with the reply.
    """

    prompt: Prompt
    reply: np.ndarray
    spans: tuple[TurnSpan, ...]


@dataclass(frozen=True)
class TokenStats:
    """Numbers of some passages; T tokens and M turns, passage by passage, span by span.

    Attributes:
        logprobs: float32[T], of the tokens of all spans, at the temperature that was asked for.
        entropy: float32[T], of the distribution that each of these tokens was drawn from, in nats; without gradient.
        values: float32[M], of the state before each turn, read off at the last token before it; zeros without a value
            head.
        choice_entropy: float32[M], entropy among the legal actions alone (`TurnSpan.choices`), 0 without a choice.
    """

    logprobs: torch.Tensor
    entropy: torch.Tensor
    values: torch.Tensor
    choice_entropy: torch.Tensor
