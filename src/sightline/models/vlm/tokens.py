"""The vocabulary of a model: stop tokens, banned tokens, and the character span of each token in a reply's text."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from sightline.errors import BadInput
from sightline.models.vlm.template import common_length, end_of_turn, thinking_of
from sightline.replies import Thinking, marks_thought

if TYPE_CHECKING:
    import torch

UNREADABLE = "\ufffd"
"""Replacement character: written by decoders for bytes that do not form a character (yet)."""
PLACEHOLDER = re.compile(r"(image|video|audio|vision|boi|eoi).*token(_id|_index|_ids)$")
"""Names under which processors and configurations keep the ids of their media placeholders."""


class Tokens:
    """The vocabulary of a model, restricted to what replies need.

    Attributes:
        stops: ids of the stop tokens.
        stop: the stop token that the model usually ends a reply with.
        thinking: how thoughts are marked in replies. These marks are part of a reply, even where they are special.
        banned: bool[V], true for tokens that can never be part of a reply: other special tokens, picture placeholders,
            and rows of the output layer without a token. Stop tokens are not banned.
        pad: padding id; it is always masked, so its value never matters.

    Raises:
        BadInput: the model has no stop token.
    """

    def __init__(self, processor: Any, model: Any) -> None:
        import torch

        tokenizer = processor.tokenizer
        self._tokenizer = tokenizer
        placeholders = _placeholder_ids(processor) | _placeholder_ids(model.config)
        configured = _id_set(model.generation_config.eos_token_id) | _id_set(tokenizer.eos_token_id)
        self.thinking = thinking_of(processor)
        marks = _mark_ids(tokenizer, self.thinking) - configured - placeholders
        # The template's own end is one, whatever the configurations say; but not one after which thinking goes over
        # into the reply, as Harmony's does.
        template_end = end_of_turn(processor)
        own_end: set[int] = set()
        if template_end is not None:
            own_end = {template_end} - marks - placeholders
        self.stops = frozenset(configured | own_end)
        if not self.stops:
            raise BadInput("the model has no stop token (eos_token); take an instruction-tuned model")
        usual = next(iter(own_end), tokenizer.eos_token_id)
        self.stop = int(usual) if usual in self.stops else min(self.stops)
        self.pad = int(tokenizer.pad_token_id if tokenizer.pad_token_id is not None else min(self.stops))
        # Marks of thoughts are part of replies, even where they are special; placeholders never are, even where they
        # are not.
        special = {int(token) for token, added in tokenizer.added_tokens_decoder.items() if added.special}
        special |= {int(token) for token in tokenizer.all_special_ids}
        special = (special - marks) | placeholders
        self._unseen = frozenset(special | self.stops)
        rows = int(model.get_output_embeddings().weight.shape[0])
        self.banned: torch.Tensor = torch.zeros(rows, dtype=torch.bool)
        # Output layers are often padded to a multiple of 64 rows; those beyond the tokenizer decode to nothing.
        self.banned[len(tokenizer) :] = True
        self.banned[[token for token in special - self.stops if token < rows]] = True
        self._pieces: dict[int, str] = {}
        # Some decoders drop a leading space, so a token's text is measured after that of another token.
        self._anchor = self.encode("a")[-1:]
        self._anchor_length = len(self._plain(self._anchor))

    def encode(self, text: str) -> list[int]:
        """Tokenise a text without special tokens. (The ids that a model samples for a text often differ from these.)"""
        return [int(token) for token in self._tokenizer(text, add_special_tokens=False)["input_ids"]]

    def decode(self, ids: Sequence[int]) -> str:
        """Decode token ids to text, leaving out special and stop tokens."""
        return self._plain([int(token) for token in ids if int(token) not in self._unseen])

    def offsets(self, ids: Sequence[int]) -> list[tuple[int, int]]:
        """Character span (start, end) of each token in `decode(ids)`.

        Together the spans cover the text, in order. Tokens that are not in the text have an empty span at their place.
        If a character's bytes are spread over several tokens, each of these spans the whole character.
        """
        #   ids       [ 314 | 88 | 902 | <end> ]
        #   text        act   ion  ": up             decode(ids) == 'action": up'
        #   offsets    (0,3) (3,6) (6,11) (11,11)    stop tokens are not in the text: an empty span
        ids = [int(token) for token in ids]
        text = self.decode(ids)
        for token in ids:
            if token not in self._pieces:
                piece = ""
                if token not in self._unseen:
                    piece = self._plain([*self._anchor, token])[self._anchor_length :]
                self._pieces[token] = piece
        pieces = [self._pieces[token] for token in ids]
        joined = "".join(pieces)
        # Adding up the pieces is linear in the reply's length. It is right only if they join to the text, which they
        # do not where a character is spread over tokens or where a token's text depends on its neighbours.
        cut = len(joined) - len(text)  # some decoders drop a space at the very beginning
        if UNREADABLE in joined or cut not in (0, 1) or joined[cut:] != text or joined[:cut].strip():
            return self._offsets_by_prefixes(ids, text)
        spans = []
        start = -cut
        for piece in pieces:
            end = start + len(piece)
            spans.append((max(start, 0), max(end, 0)))
            start = end
        return spans

    def _offsets_by_prefixes(self, ids: list[int], text: str) -> list[tuple[int, int]]:
        """Offsets for any decoder, by decoding every prefix: a token spans what its prefix adds to the one before.

        Quadratic in the reply's length, so it is only the fallback of `offsets`.
        """
        spans = []
        start = 0
        for count, token in enumerate(ids, 1):
            if token in self._unseen:
                spans.append((start, start))
                continue
            prefix = self.decode(ids[:count])
            end = max(start, common_length(prefix, text))
            # Where the prefix ends in other characters, the next one has begun, and later tokens finish it.
            is_unfinished = len(prefix) > end and end < len(text)
            begin = start
            if end == start and not is_unfinished and prefix.endswith(UNREADABLE):
                begin = max(start - 1, 0)  # one more stray byte of what is written as a single unreadable character
            spans.append((begin, end + is_unfinished))
            start = end
        return spans

    def _plain(self, ids: list[int]) -> str:
        if not ids:
            return ""
        text: str = self._tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)
        return text


def _id_set(ids: int | Sequence[int] | None) -> set[int]:
    if ids is None:
        return set()
    if isinstance(ids, int):
        return {int(ids)}
    return {int(token) for token in ids}


def _mark_ids(tokenizer: Any, thinking: Thinking) -> set[int]:
    """Ids of the added tokens of which marks around thoughts are made: the model's own, and those of its vocabulary
    that read like common ones."""
    added = {int(token): str(text) for token, text in tokenizer.added_tokens_decoder.items()}
    ids = {token for token, text in added.items() if marks_thought(text)}
    for mark in thinking.marks():
        ids |= {int(token) for token in tokenizer(mark, add_special_tokens=False)["input_ids"]} & set(added)
    return ids


def _placeholder_ids(owner: Any) -> set[int]:
    """Ids that a processor or a configuration reserves as placeholders of pictures, audio and video."""
    ids: set[int] = set()
    for name, value in vars(owner).items():
        if not PLACEHOLDER.match(name):
            continue
        is_list = isinstance(value, (list, tuple)) and all(isinstance(token, int) for token in value)
        if isinstance(value, int) or is_list:
            ids |= {token for token in _id_set(value) if token >= 0}
    return ids
