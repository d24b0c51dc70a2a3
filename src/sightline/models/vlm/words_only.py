"""Language models among vision-language models: a tokenizer with the interface of a processor.

A processor makes tokens of words and tensors of pictures. A language model comes with a tokenizer alone, whose chat
template takes each message as one text instead of a list of parts.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sightline.errors import BadInput

READS_NO_PICTURES = (
    "is a language model, which reads no pictures; say text_only=true, or take a vision-language model such as Qwen3-VL"
)


class WordsOnly:
    """The processor of a language model.

    Attributes:
        tokenizer: the model's.
        image_processor: None; by that it is told from the processor of a vision-language model.
    """

    image_processor = None

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer

    @property
    def chat_template(self) -> Any:
        """The tokenizer's own."""
        return self.tokenizer.chat_template

    def apply_chat_template(self, messages: Sequence[dict[str, Any]], **options: Any) -> Any:
        """What the template writes of messages whose contents are lists of parts.

        Raises:
            BadInput: a part is a picture.
        """
        in_words = [message | {"content": _words(message["content"])} for message in messages]
        # Qwen3 would begin its replies with thoughts of thousands of tokens; other templates do not read the option.
        return self.tokenizer.apply_chat_template(in_words, **{"enable_thinking": False} | options)

    def __call__(self, text: list[str], images: Any = None, **options: Any) -> Any:
        """The token ids of texts.

        Raises:
            BadInput: there are pictures.
        """
        if images is not None:
            raise BadInput(f"the model {READS_NO_PICTURES}")
        return self.tokenizer(text, **options)

    def save_pretrained(self, folder: Path) -> None:
        """Save the tokenizer."""
        self.tokenizer.save_pretrained(folder)


def _words(parts: list[dict[str, Any]]) -> str:
    """The words of a message's parts, one after the other."""
    if any(part["type"] == "image" for part in parts):
        raise BadInput(f"the model {READS_NO_PICTURES}")
    return "".join(part["text"] for part in parts)
