"""Prompts of conversations with pictures, token in, token out, built by the model's own chat template and processor.

A policy gradient needs the log-probabilities of the ids that were sampled. Decoding a reply and tokenising its text
again gives other ids, since a text has many tokenisations, and a template may also strip or rewrite earlier replies. So
only the text between replies is rendered and tokenised; replies are inserted as ids:

    turn 1   <bos><user> picture 1, text 1 <end><assistant>     segment 1   tokenised
                                                    reply 1     ids         as sampled, with their stop token
    turn 2   <end><user> picture 2, text 2 <end><assistant>     segment 2   tokenised, first token dropped: the reply
                                                    reply 2     ids         has ended already
    turn 3   <end><user> …

So the prompt of turn n begins with the prompt and the reply of turn n - 1, always, and the turns of an episode can be
scored in one forward pass (`vlm/scoring.py`). The loss counts the tokens of replies alone.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from sightline.errors import BadInput
from sightline.images import Picture
from sightline.models.vlm.batches import join_pictures, tensor_names
from sightline.models.vlm.template import USER
from sightline.models.vlm.types import ChatTurn, Prompt

if TYPE_CHECKING:
    import torch

Outline = tuple[tuple[str | None, ...], ...]
"""Layout of each turn, texts and None for pictures: all of a conversation that a chat template is given, but for the
replies."""
MARK = "REPLY-{}-STANDS-HERE-{}"
"""Stand-in for a reply while the template is rendered: its turn, and a number that makes it unique."""
CACHE_BYTES = 256 * 2**20
TAIL = 16
"""Tokens at the end of a prompt by which a cut is noticed."""
TOKEN_CACHE_ENTRIES = 4096
"""Number of segments whose token ids are cached apart from their pictures."""


class PromptEncoder:
    """Builder of prompts from conversations, with a cache of their segments.

    The first segment of a prompt is everything before the first reply; each later one is the text between two replies.
    A segment is rendered with its turn as the last one of the conversation, so it does not depend on later turns.

    Attributes:
        nested: names of picture tensors to which the model expects an extra leading axis.

    Args:
        processor: the model's processor.
        stops: ids of the stop tokens.
        cache_bytes: memory limit of the cache of segments.

    Raises:
        BadInput: the chat template or the processor does not support such conversations.
    """

    def __init__(self, processor: Any, stops: frozenset[int], cache_bytes: int = CACHE_BYTES) -> None:
        self._processor = processor
        self._stops = stops
        self._cache: OrderedDict[tuple[Any, ...], tuple[Prompt, int]] = OrderedDict()
        self._free_bytes = cache_bytes
        self._segment_text = lru_cache(maxsize=4096)(self._render_segment)
        # Both properties are found by running the processor, which itself reads `nested`: hence the order.
        self.nested: frozenset[str] = frozenset()
        self._token_cache: OrderedDict[tuple[Any, ...], Prompt] = OrderedDict()
        self._split_pictures = False
        if self.reads_pictures:
            self.nested = self._find_nested()
            self._split_pictures = self._can_split_pictures()
        elif USER not in self._segment_text(((USER,),)):
            raise BadInput("the model's chat template leaves the user's words out; take an instruction-tuned model")

    @property
    def reads_pictures(self) -> bool:
        """False for a language model."""
        return self._processor.image_processor is not None

    def encode(self, turns: Sequence[ChatTurn], system: str = "", beginning: Sequence[int] = ()) -> Prompt:
        """Build the prompt of a conversation whose last turn has no reply yet.

        Args:
            turns: the conversation.
            system: what the model is told before the first turn; empty for nothing.
            beginning: ids of the first tokens of the reply that is asked for.

        Raises:
            BadInput: the chat template or the processor does not support such a conversation.
        """
        outline: Outline = tuple(turn.layout for turn in turns)
        parts: list[Prompt] = []
        for number, turn in enumerate(turns):
            text = self._segment_text(outline[: number + 1], system)
            segment = self._segment(text, turn.pictures, first=number == 0)
            if number and self._ends_twice(turns[number - 1].reply, segment.ids):
                per_token = {name: tensor[1:] for name, tensor in segment.per_token.items()}
                segment = Prompt(segment.ids[1:], per_token, segment.per_picture)
            parts.append(segment)
            if number < len(turns) - 1:
                parts.append(Prompt(np.asarray(turn.reply, np.int64)))
        if beginning:
            parts.append(Prompt(np.asarray(beginning, np.int64)))
        return _concatenate(parts)

    def unexpanded(self, turns: Sequence[ChatTurn]) -> list[int]:
        """Token ids of the same prompt with one placeholder per picture, for servers that expand pictures themselves.

        Raises:
            BadInput: as `encode`.
        """
        outline: Outline = tuple(turn.layout for turn in turns)
        ids: list[int] = []
        for number, turn in enumerate(turns):
            text = self._segment_text(outline[: number + 1])
            adds_bos = self._adds_bos(text, first=number == 0)
            segment = self._processor.tokenizer(text, add_special_tokens=adds_bos)["input_ids"]
            if number and self._ends_twice(turns[number - 1].reply, segment):
                segment = segment[1:]
            ids += segment
            if number < len(turns) - 1:
                ids += turn.reply
        return ids

    def _ends_twice(self, reply: Sequence[int], segment: Sequence[int] | np.ndarray) -> bool:
        """Tell whether a segment begins with the stop token that the reply before it was sampled with.

        The template closes that reply; one that was sampled to its end is closed already, one that was cut off is not.
        """
        if not reply or not len(segment):
            return False
        return reply[-1] in self._stops and bool(segment[0] == reply[-1])

    def _render_segment(self, outline: Outline, system: str = "") -> str:
        """Text that the chat template writes from the last reply on; for a single turn, all that it writes."""
        # A user's text could hold the mark, by chance or on purpose; the salt makes one that it does not hold.
        texts = system
        for layout in outline:
            texts += "".join(part for part in layout if part is not None)
        salt = next(number for number in range(len(texts) + 2) if f"-HERE-{number}" not in texts)
        messages: list[dict[str, Any]] = []
        if system:
            messages.append({"role": "system", "content": [_content_part(system)]})
        for number, layout in enumerate(outline):
            messages.append({"role": "user", "content": [_content_part(part) for part in layout]})
            if number < len(outline) - 1:
                messages.append({"role": "assistant", "content": [_content_part(MARK.format(number, salt))]})
        try:
            text: str = self._processor.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        except BadInput:  # of a model that reads no pictures
            raise
        except Exception as error:  # templates are programs, and raise exceptions of any type
            reason = " ".join(str(error).split())[:200]
            raise BadInput(
                f"the model's chat template cannot write {len(outline)} turns of words and pictures: {reason}"
            ) from error
        if system.strip() not in text:
            raise BadInput(
                "the model's chat template leaves the system message out; put its words at the beginning of the user's"
            )
        if len(outline) == 1:
            return text
        _, mark, after = text.rpartition(MARK.format(len(outline) - 2, salt))
        if not mark:
            raise BadInput("the model's chat template leaves earlier replies out; take rollouts.window=1")
        return after

    def _segment(self, text: str, pictures: tuple[Picture, ...], first: bool) -> Prompt:
        """Token ids and picture tensors of a segment, from the cache if it was built before.

        Args:
            text: what the template writes.
            pictures: those of the segment's turn.
            first: the segment begins the prompt, and so needs a beginning-of-sequence token.
        """
        key = (text, tuple(picture.digest for picture in pictures), first)
        if key in self._cache:
            self._cache.move_to_end(key)
            return self._cache[key][0]
        segment = self._build_segment(text, pictures, first)
        # Preprocessed pictures take megabytes each, so the cache is limited by bytes, not by entries.
        tensors = [*segment.per_token.values(), *segment.per_picture.values()]
        size = segment.ids.nbytes + sum(tensor.nbytes for tensor in tensors)
        self._cache[key] = (segment, size)
        self._free_bytes -= size
        while self._free_bytes < 0:  # drop the segments that were used longest ago
            _, (_, dropped_size) = self._cache.popitem(last=False)
            self._free_bytes += dropped_size
        return segment

    def _build_segment(self, text: str, pictures: tuple[Picture, ...], first: bool) -> Prompt:
        # In games the text of a turn often repeats while its picture changes. Token ids depend on a picture's size
        # only, so the tokenizer need not run again.
        key = (text, tuple(picture.pixels.shape for picture in pictures), first)
        if self._split_pictures and pictures and key in self._token_cache:
            tokens = self._token_cache[key]
            return Prompt(tokens.ids, tokens.per_token, self._unnested(self._process_pictures(pictures)))
        inputs = self._process(text, pictures, first)
        length = inputs["input_ids"].shape[1]
        per_token = {}
        per_picture = {}
        for name, tensor in inputs.items():
            if name.endswith("token_type_ids") and tuple(tensor.shape) == (1, length):
                per_token[name] = tensor[0]
            elif name not in ("input_ids", "attention_mask"):
                per_picture[name] = tensor
        ids = inputs["input_ids"][0].numpy().astype(np.int64)
        if self._split_pictures:
            self._token_cache[key] = Prompt(ids, per_token)
            if len(self._token_cache) > TOKEN_CACHE_ENTRIES:
                self._token_cache.popitem(last=False)
        return Prompt(ids, per_token, self._unnested(per_picture))

    def _unnested(self, tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        nested = {name: tensor[0] for name, tensor in tensors.items() if name in self.nested}
        return tensors | nested

    def _process_pictures(self, pictures: tuple[Picture, ...]) -> dict[str, torch.Tensor]:
        from PIL import Image

        images = [[Image.fromarray(picture.pixels) for picture in pictures]]
        return dict(self._processor.image_processor(images, return_tensors="pt"))

    def _can_split_pictures(self) -> bool:
        """True if pictures of one size differ only in the tensors that the image processor makes of them.

        Then token ids can be cached apart from pictures. Found out by trying, as processors do not declare it.
        """
        rng = np.random.default_rng(0)
        text = self._segment_text(((None, "a"),))
        try:
            for size in ((64, 64), (96, 160)):
                first = Picture(rng.integers(0, 256, (*size, 3), np.uint8))
                second = Picture(rng.integers(0, 256, (*size, 3), np.uint8))
                inputs = self._process(text, (first,), first=True)
                inputs_of_second = self._process(text, (second,), first=True)
                pictures = self._process_pictures((first,))
                of_tokens = {name for name in inputs if name not in pictures}
                if not of_tokens <= {"input_ids", "attention_mask", "token_type_ids", "mm_token_type_ids"}:
                    return False
                if not all(_equal(inputs[name], inputs_of_second[name]) for name in of_tokens):
                    return False
                if not all(name in inputs and _equal(inputs[name], tensor) for name, tensor in pictures.items()):
                    return False
        except Exception:  # some image processors cannot be called alone; then text and pictures go together, as usual
            return False
        return True

    def _process(self, text: str, pictures: tuple[Picture, ...], first: bool) -> dict[str, torch.Tensor]:
        from PIL import Image

        images = None
        if pictures:
            images = [[Image.fromarray(picture.pixels) for picture in pictures]]
        try:
            inputs = self._processor(
                text=[text], images=images, add_special_tokens=self._adds_bos(text, first), return_tensors="pt"
            )
        except (ValueError, TypeError, KeyError, IndexError, RuntimeError, ImportError) as error:
            reason = " ".join(str(error).split())[:200]
            advice = self._advice_on_marks(text, pictures)
            raise BadInput(f"the model's processor cannot read {len(pictures)} pictures: {reason}{advice}") from error
        self._check_whole(text, inputs["input_ids"][0].tolist())
        return dict(inputs)

    def _advice_on_marks(self, text: str, pictures: tuple[Picture, ...]) -> str:
        """Advice where a prompt's own words hold what the model reads as a picture's place; empty where they do not."""
        mark = getattr(self._processor, "image_token", None) or "<image>"
        if not isinstance(mark, str) or text.count(mark) <= len(pictures):
            return ""
        return f"; the prompt holds '{mark}', which stands for a picture: leave it out, pictures are put in front"

    def _check_whole(self, text: str, ids: list[int]) -> None:
        """Refuse a prompt that the processor has cut: a picture may take many tokens, but never less than its mark.

        Raises:
            BadInput: showing what would be cut off.
        """
        whole = self._processor.tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]
        limit = getattr(self._processor.tokenizer, "model_max_length", None)
        may_be_cut = len(ids) == limit and ids[-TAIL:] != whole[-TAIL:]
        if len(ids) >= len(whole) and not may_be_cut:
            return
        last = self._processor.tokenizer.decode(whole[-TAIL:])
        raise BadInput(
            f"the model's processor cuts prompts at {len(ids)} tokens: this one would lose its end, '…{last}'; "
            "shorten it, show fewer pictures, or raise model_max_length in the model's tokenizer_config.json"
        )

    def _adds_bos(self, text: str, first: bool) -> bool:
        """True if the tokenizer has to add special tokens: at the start of a prompt whose template writes no BOS."""
        start = getattr(self._processor.tokenizer, "bos_token", None)
        return first and not (start and text.startswith(start))

    def _find_nested(self) -> frozenset[str]:
        """Names of the picture tensors with an extra leading axis of size 1, found by processing two pictures."""
        grey = Picture(np.full((64, 64, 3), 100, np.uint8))
        try:
            inputs = self._process(self._segment_text(((None, None, "a"),)), (grey, grey), first=True)
        except BadInput:
            # A few models read one picture at most; one that cannot read that either is refused.
            self._process(self._segment_text(((None, "a"),)), (grey,), first=True)
            return frozenset()
        # Two pictures in a tensor of length 1: the first axis counts conversations, the second one pictures.
        pixels = inputs.get("pixel_values")
        if pixels is None or len(pixels) != 1:
            return frozenset()
        of_pictures = set(inputs) - {"input_ids", "attention_mask"}
        return frozenset(name for name in of_pictures if not name.endswith("token_type_ids") and len(inputs[name]) == 1)


def _content_part(part: str | None) -> dict[str, str]:
    """A text, or None for a picture, as a part of a message's content."""
    if part is None:
        return {"type": "image"}
    return {"type": "text", "text": part}


def _equal(a: torch.Tensor, b: torch.Tensor) -> bool:
    import torch

    return a.dtype == b.dtype and torch.equal(a, b)


def _concatenate(parts: Sequence[Prompt]) -> Prompt:
    import torch

    per_token = {}
    for name in tensor_names(part.per_token for part in parts):
        # Replies come without such tensors: their tokens are text, which is type 0.
        dtype = next(part.per_token[name].dtype for part in parts if name in part.per_token)
        columns = [part.per_token.get(name, torch.zeros(len(part.ids), dtype=dtype)) for part in parts]
        per_token[name] = torch.cat(columns)
    per_picture = {}
    for name in tensor_names(part.per_picture for part in parts):
        per_picture[name] = join_pictures([part.per_picture[name] for part in parts if name in part.per_picture])
    return Prompt(np.concatenate([part.ids for part in parts]), per_token, per_picture)
