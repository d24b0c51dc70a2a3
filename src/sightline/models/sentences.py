"""The length of sentences that a text tower reads: longer ones are refused, as tokenizers cut them without a word."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

from sightline.errors import BadInput

LONGEST = 1_000_000
"""Tokens; tokenizers whose files state no limit state a number that is larger."""
SHOWN = 60
"""Characters of a sentence that a message shows of either part."""


def words_of(sentences: Sequence[str]) -> list[str]:
    """The words of sentences, each once; one without any, such as one of signs, counts as a word."""
    return list(dict.fromkeys(word for sentence in sentences for word in re.findall(r"\w+", sentence) or [sentence]))


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
        read, never = 0, len(sentence)
        while never - read > 1:  # the first `read` characters fit, the first `never` do not
            middle = (read + never) // 2
            read, never = (middle, never) if fits(sentence[:middle]) else (read, middle)
        words = sentence[: read + 1].rfind(" ") + 1 or read
        kept, cut = (" ".join(part.split()) for part in (sentence[:words], sentence[words:]))  # the line is one
        kept = kept if len(kept) <= SHOWN else f"{kept[:SHOWN]}…"
        cut = cut if len(cut) <= SHOWN else f"{cut[:SHOWN]}…"
        raise BadInput(
            f"{reader} reads {tokens} tokens of a sentence: of '{kept}' it would never see the end, '{cut}'; "
            "shorten it, or say it in several sentences, which are averaged"
        )


def token_limit(tokenizer: Any, positions: Any) -> int:
    """Tokens of a sentence that a Hugging Face model reads, special ones included.

    Args:
        positions: that its text tower has; None if its configuration does not say.
    """
    stated = [int(limit) for limit in (getattr(tokenizer, "model_max_length", None), positions) if limit is not None]
    return min([*stated, LONGEST])
