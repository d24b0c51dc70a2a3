"""The length of sentences that a text tower reads: longer ones are refused, as tokenizers cut them without a word."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

from sightline.errors import BadInput

LONGEST = 1_000_000
"""Tokens; tokenizers whose files state no limit state a number that is larger."""
EXCERPT = 60
"""Characters of a sentence that a message shows of either part."""


def words_of(sentences: Sequence[str]) -> list[str]:
    """The words of sentences, each once; one without any, such as one of signs, counts as a word."""
    words: list[str] = []
    for sentence in sentences:
        words += re.findall(r"\w+", sentence) or [sentence]
    return list(dict.fromkeys(words))


def check_length(sentences: Sequence[str], fits: Callable[[str], bool], tokens: int, reader: str) -> None:
    """Refuse sentences whose end would be cut off.

    Args:
        fits: whether a text is read to its end.
        tokens: that are read, at most; for the message.
        reader: who reads them, for the message.

    Raises:
        BadInput: naming the first such sentence, and showing what would be cut off.
    """
    for sentence in sentences:
        if fits(sentence):
            continue
        # Bisection for where it would be cut: the first `fitting` characters fit, the first `too_many` do not.
        fitting = 0
        too_many = len(sentence)
        while too_many - fitting > 1:
            middle = (fitting + too_many) // 2
            if fits(sentence[:middle]):
                fitting = middle
            else:
                too_many = middle
        # The message shows whole words, where there is more than one.
        cut = sentence[: fitting + 1].rfind(" ") + 1 or fitting
        beginning = _excerpt(sentence[:cut])
        end = _excerpt(sentence[cut:])
        raise BadInput(
            f"{reader} reads {tokens} tokens of a sentence: of '{beginning}' it would never see the end, '{end}'; "
            "shorten it, or say it in several sentences, which are averaged"
        )


def _excerpt(text: str) -> str:
    """Beginning of a text, in one line."""
    text = " ".join(text.split())
    if len(text) > EXCERPT:
        return f"{text[:EXCERPT]}…"
    return text


def token_limit(tokenizer: Any, positions: Any) -> int:
    """Tokens of a sentence that a Hugging Face model reads, special ones included.

    Args:
        positions: that its text tower has; None if its configuration does not say.
    """
    limits = [getattr(tokenizer, "model_max_length", None), positions]
    return min([int(limit) for limit in limits if limit is not None] + [LONGEST])
