"""From what is shown to what a model reads, through the model's own chat template and processor.

Token in, token out: earlier replies stand in a prompt with the very ids that were sampled, not with those that the
tokenizer makes of their text (the two differ: a text has many tokenisations).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from sightline.errors import BadInput
from sightline.images import Picture
from sightline.models.vlm.batches import join_pictures
from sightline.models.vlm.types import ChatTurn, Prompt

if TYPE_CHECKING:
    import torch

Turns = tuple[tuple[str, int], ...]
"""Words and number of pictures of each exchange."""
MARK = "REPLY-{}-STANDS-HERE-{}"
CACHE_BYTES = 256 * 2**20
ALIKE = 4096
"""Texts whose tokens are remembered beside pictures of a size."""


class PromptEncoder:
    """Makes prompts.

    A prompt is made of segments: all up to where the first reply begins; then, for each later exchange, what comes
    between the reply before it and its own. Each segment is what the template writes when that exchange is the last
    one, so a prompt begins with the prompt before it and the reply to that, always.

    Attributes:
        nested: names of picture tensors to which the model wants another axis in front.

    Args:
        processor: of the model.
        stops: ids that end a reply.
        cache_bytes: what may be kept of segments that were made before.

    Raises:
        BadInput: the template or the processor cannot do this.
    """

    def __init__(self, processor: Any, stops: frozenset[int], cache_bytes: int = CACHE_BYTES) -> None:
        self._processor, self._stops = processor, stops
        self._cache: OrderedDict[tuple[Any, ...], tuple[Prompt, int]] = OrderedDict()
        self._free = cache_bytes
        self._written = lru_cache(maxsize=4096)(self._write)
        self.nested: frozenset[str] = frozenset()
        self.nested = self._find_nested()
        self._alike: OrderedDict[tuple[Any, ...], Prompt] = OrderedDict()
        self._apart = self._reads_pictures_apart()

    def encode(self, exchanges: Sequence[ChatTurn]) -> Prompt:
        """The prompt to be replied to after some exchanges, of which the last has no reply yet.

        Raises:
            BadInput: see above.
        """
        turns: Turns = tuple((exchange.text, len(exchange.pictures)) for exchange in exchanges)
        ids: list[np.ndarray] = []
        parts: list[Prompt] = []
        for number, exchange in enumerate(exchanges):
            segment = self._segment(self._written(turns[: number + 1]), exchange.pictures, first=number == 0)
            before = exchanges[number - 1].reply if number else ()
            ends_twice = bool(before) and before[-1] in self._stops and segment.ids[:1].tolist() == [before[-1]]
            parts.append(_without_first(segment) if ends_twice else segment)
            ids.append(parts[-1].ids)
            if number < len(exchanges) - 1:
                reply = np.asarray(exchange.reply, np.int64)
                parts.append(Prompt(reply))
                ids.append(reply)
        return _joined(parts)

    def unexpanded(self, exchanges: Sequence[ChatTurn]) -> list[int]:
        """Ids of the same prompt with one placeholder for each picture, as servers that place pictures want them."""
        turns: Turns = tuple((exchange.text, len(exchange.pictures)) for exchange in exchanges)
        ids: list[int] = []
        for number, exchange in enumerate(exchanges):
            text = self._written(turns[: number + 1])
            piece = self._processor.tokenizer(text, add_special_tokens=self._begins(text, number == 0))["input_ids"]
            before = exchanges[number - 1].reply if number else ()
            ends_twice = bool(before) and before[-1] in self._stops and piece[:1] == [before[-1]]
            ids += piece[1:] if ends_twice else piece
            if number < len(exchanges) - 1:
                ids += exchange.reply
        return ids

    def usual_stop(self) -> int | None:
        """The token that ends a reply in this template's conversations; None if that cannot be seen."""
        try:
            segment = self._segment(self._written((("a", 0), ("a", 0))), (), first=False)
        except BadInput:
            return None
        begins = int(segment.ids[0]) if len(segment.ids) else None
        return begins if begins in self._stops else None

    def _write(self, turns: Turns) -> str:
        """What the template writes between the last reply but one and the last one."""
        texts = "".join(text for text, _ in turns)
        salt = next(number for number in range(len(texts) + 2) if f"-HERE-{number}" not in texts)
        messages: list[dict[str, Any]] = []
        for number, (text, pictures) in enumerate(turns):
            shown = [{"type": "image"}] * pictures + [{"type": "text", "text": text}]
            messages.append({"role": "user", "content": shown})
            if number < len(turns) - 1:
                said = MARK.format(number, salt)
                messages.append({"role": "assistant", "content": [{"type": "text", "text": said}]})
        try:
            written: str = self._processor.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        except Exception as error:  # templates are programs of their own
            said = " ".join(str(error).split())[:200]
            raise BadInput(
                f"the model's chat template cannot write {len(turns)} turns with pictures: {said}"
            ) from error
        if len(turns) == 1:
            return written
        _, mark, after = written.rpartition(MARK.format(len(turns) - 2, salt))
        if not mark:
            raise BadInput("the model's chat template leaves earlier replies out; take rollouts.window=1")
        return after

    def _segment(self, text: str, pictures: tuple[Picture, ...], first: bool) -> Prompt:
        key = (text, tuple(picture.digest for picture in pictures), first)
        if key in self._cache:
            self._cache.move_to_end(key)
            return self._cache[key][0]
        made = self._read(text, pictures, first)
        size = made.ids.nbytes + sum(tensor.nbytes for tensor in (*made.per_token.values(), *made.per_picture.values()))
        self._cache[key] = made, size
        self._free -= size
        while self._free < 0:
            self._free += self._cache.popitem(last=False)[1][1]
        return made

    def _read(self, text: str, pictures: tuple[Picture, ...], first: bool) -> Prompt:
        sizes = text, tuple(picture.pixels.shape for picture in pictures), first
        alike = self._alike.get(sizes) if self._apart and pictures else None
        if alike is not None:
            return Prompt(alike.ids, alike.per_token, self._pictures(self._process_pictures(pictures)))
        made = self._process(text, pictures, first)
        length = made["input_ids"].shape[1]
        per_token, per_picture = {}, {}
        for name, tensor in made.items():
            if name.endswith("token_type_ids") and tuple(tensor.shape) == (1, length):
                per_token[name] = tensor[0]
            elif name not in ("input_ids", "attention_mask"):
                per_picture[name] = tensor
        prompt = Prompt(made["input_ids"][0].numpy().astype(np.int64), per_token, self._pictures(per_picture))
        if self._apart:
            self._alike[sizes] = Prompt(prompt.ids, prompt.per_token)
            if len(self._alike) > ALIKE:
                self._alike.popitem(last=False)
        return prompt

    def _pictures(self, made: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        return {name: tensor[0] if name in self.nested else tensor for name, tensor in made.items()}

    def _process_pictures(self, pictures: tuple[Picture, ...]) -> dict[str, torch.Tensor]:
        from PIL import Image

        images = [[Image.fromarray(picture.pixels) for picture in pictures]]
        return dict(self._processor.image_processor(images, return_tensors="pt"))

    def _reads_pictures_apart(self) -> bool:
        """Whether pictures of one size differ in nothing but the tensors that the image processor makes of them: then
        the words need not be cut into tokens again for each picture. Seen by trying."""
        rng = np.random.default_rng(0)
        text = self._written((("a", 1),))
        try:
            for size in ((64, 64), (96, 160)):
                one, other = (Picture(rng.integers(0, 256, (*size, 3), np.uint8)) for _ in range(2))
                whole, again = (self._process(text, (picture,), first=True) for picture in (one, other))
                alone = self._process_pictures((one,))
                rest = {name for name in whole if name not in alone}
                if not rest <= {"input_ids", "attention_mask", "token_type_ids", "mm_token_type_ids"}:
                    return False
                if not all(_equal(whole[name], again[name]) for name in rest):
                    return False
                if not all(name in whole and _equal(whole[name], tensor) for name, tensor in alone.items()):
                    return False
        except Exception:  # image processors are programs of their own; without this way there is the usual one
            return False
        return True

    def _process(self, text: str, pictures: tuple[Picture, ...], first: bool) -> dict[str, torch.Tensor]:
        from PIL import Image

        images = [[Image.fromarray(picture.pixels) for picture in pictures]] if pictures else None
        try:
            made = self._processor(
                text=[text], images=images, add_special_tokens=self._begins(text, first), return_tensors="pt"
            )
        except (ValueError, TypeError, KeyError, IndexError, RuntimeError, ImportError) as error:
            said = " ".join(str(error).split())[:200]
            raise BadInput(f"the model's processor cannot read {len(pictures)} pictures: {said}") from error
        return dict(made)

    def _begins(self, text: str, first: bool) -> bool:
        """Whether the tokenizer is to write the beginning of a text: where the template does not write it itself, as in
        the library's own chats."""
        start = getattr(self._processor.tokenizer, "bos_token", None)
        return first and not (start and text.startswith(start))

    def _find_nested(self) -> frozenset[str]:
        """Tensors that come with an axis of size 1 in front of that of the pictures: seen by giving two pictures."""
        grey = Picture(np.full((64, 64, 3), 100, np.uint8))
        for count in (2, 1):  # a few models read one picture at most
            try:
                made = self._process(self._written((("a", count),)), (grey,) * count, first=True)
            except BadInput:
                if count == 1:
                    raise
                continue
            pixels = made.get("pixel_values")
            if count == 1 or pixels is None or len(pixels) != 1:
                return frozenset()
            tokens = {"input_ids", "attention_mask"}
            return frozenset(
                name
                for name, tensor in made.items()
                if name not in tokens and not name.endswith("token_type_ids") and len(tensor) == 1
            )
        return frozenset()


def _equal(a: torch.Tensor, b: torch.Tensor) -> bool:
    import torch

    return a.dtype == b.dtype and torch.equal(a, b)


def _without_first(segment: Prompt) -> Prompt:
    shorter = {name: tensor[1:] for name, tensor in segment.per_token.items()}
    return Prompt(segment.ids[1:], shorter, segment.per_picture)


def _joined(parts: Sequence[Prompt]) -> Prompt:
    import torch

    per_token = {}
    for name in dict.fromkeys(name for part in parts for name in part.per_token):
        dtype = next(part.per_token[name].dtype for part in parts if name in part.per_token)
        columns = [part.per_token.get(name, torch.zeros(len(part.ids), dtype=dtype)) for part in parts]
        per_token[name] = torch.cat(columns)
    per_picture = {
        name: join_pictures([part.per_picture[name] for part in parts if name in part.per_picture])
        for name in dict.fromkeys(name for part in parts for name in part.per_picture)
    }
    return Prompt(np.concatenate([part.ids for part in parts]), per_token, per_picture)
