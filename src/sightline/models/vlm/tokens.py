"""Which tokens a reply may hold, which end it, and where each stands in its text."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from sightline.errors import BadInput

if TYPE_CHECKING:
    import torch

UNREADABLE = "\ufffd"
"""What decoders write for bytes that are no character (yet)."""
PLACEHOLDER = re.compile(r"(image|video|audio|vision|boi|eoi).*token(_id|_index|_ids)$")


class Tokens:
    """The vocabulary of a model, as far as replies are concerned.

    Attributes:
        stops: ids that end a reply.
        banned: bool[V], true for what can never be part of a reply: special tokens, placeholders of pictures, and rows
            of the output layer that stand for no token. What ends a reply is not banned.
        stop: that of them which usually does.
        pad: an id to fill up with; what it is never matters.

    Raises:
        BadInput: nothing ends a reply.
    """

    def __init__(self, processor: Any, model: Any) -> None:
        import torch

        tokenizer = processor.tokenizer
        self._tokenizer = tokenizer
        self.stops = frozenset(_listed(model.generation_config.eos_token_id) | _listed(tokenizer.eos_token_id))
        if not self.stops:
            raise BadInput("the model has no token that ends a reply (eos_token); take a model that was tuned to chat")
        usual = tokenizer.eos_token_id
        self.stop = int(usual) if usual in self.stops else min(self.stops)
        self.pad = int(tokenizer.pad_token_id if tokenizer.pad_token_id is not None else min(self.stops))
        special = _special_ids(tokenizer) | _placeholder_ids(processor) | _placeholder_ids(model.config)
        self._unseen = frozenset(special | self.stops)
        rows = int(model.get_output_embeddings().weight.shape[0])
        self.banned: torch.Tensor = torch.zeros(rows, dtype=torch.bool)
        self.banned[len(tokenizer) :] = True
        self.banned[[token for token in special - self.stops if token < rows]] = True
        self._pieces: dict[int, str] = {}
        self._anchor = self.encode("a")[-1:]
        self._anchored = len(self._plain(self._anchor))

    def encode(self, text: str) -> list[int]:
        """Tokens of a text as the tokenizer cuts it, with nothing added. (Models often cut it in other ways.)"""
        return [int(token) for token in self._tokenizer(text, add_special_tokens=False)["input_ids"]]

    def decode(self, ids: Sequence[int]) -> str:
        """The text of some tokens, without those that are special or end replies."""
        return self._plain([int(token) for token in ids if int(token) not in self._unseen])

    def offsets(self, ids: Sequence[int]) -> list[tuple[int, int]]:
        """Where each token's characters stand in `decode(ids)`: (start, end) for each.

        Together the spans cover the text, in order. Tokens that are not in the text have an empty span at their place.
        If a character's bytes are spread over several tokens, each of these has the whole character.
        """
        ids = [int(token) for token in ids]
        text = self.decode(ids)
        pieces = [self._piece(token) for token in ids]
        joined = "".join(pieces)
        cut = len(joined) - len(text)  # some decoders drop a space at the very beginning
        if UNREADABLE in joined or cut not in (0, 1) or joined[cut:] != text or joined[:cut].strip():
            return self._offsets_by_prefixes(ids, text)
        spans, place = [], -cut
        for piece in pieces:
            spans.append((max(place, 0), max(place + len(piece), 0)))
            place += len(piece)
        return spans

    def _offsets_by_prefixes(self, ids: list[int], text: str) -> list[tuple[int, int]]:
        """The same for any decoder: a token's place is where the text of all before it and that of all with it part."""
        spans, start = [], 0
        for count, token in enumerate(ids, 1):
            if token in self._unseen:
                spans.append((start, start))
                continue
            so_far = self.decode(ids[:count])
            end = max(start, _common_prefix(so_far, text))
            unfinished = len(so_far) > end and end < len(text)  # the next character has begun, later tokens finish it
            first = start
            if end == start and not unfinished and so_far.endswith(UNREADABLE):
                first = max(start - 1, 0)  # one more stray byte of what is written as a single unreadable character
            spans.append((first, end + unfinished))
            start = end
        return spans

    def _piece(self, token: int) -> str:
        """The text of a token after other text; known tokens are remembered."""
        if token not in self._pieces:
            alone = "" if token in self._unseen else self._plain([*self._anchor, token])[self._anchored :]
            self._pieces[token] = alone
        return self._pieces[token]

    def _plain(self, ids: list[int]) -> str:
        if not ids:
            return ""
        text: str = self._tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)
        return text


def _listed(ids: int | Sequence[int] | None) -> set[int]:
    if ids is None:
        return set()
    return {int(ids)} if isinstance(ids, int) else {int(token) for token in ids}


def _special_ids(tokenizer: Any) -> set[int]:
    added = {int(token) for token, what in tokenizer.added_tokens_decoder.items() if what.special}
    return added | {int(token) for token in tokenizer.all_special_ids}


def _placeholder_ids(owner: Any) -> set[int]:
    """Ids that a processor or a configuration reserves for pictures, sound and film."""
    values = {name: value for name, value in vars(owner).items() if PLACEHOLDER.match(name)}
    ids: set[int] = set()
    for value in values.values():
        if isinstance(value, int) or (isinstance(value, (list, tuple)) and all(isinstance(one, int) for one in value)):
            ids |= {token for token in _listed(value) if token >= 0}
    return ids


def _common_prefix(left: str, right: str) -> int:
    shorter = min(len(left), len(right))
    return next((place for place in range(shorter) if left[place] != right[place]), shorter)
