"""A vision-language model of Hugging Face in this process, through its own processor and chat template."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from sightline.errors import RunFailed
from sightline.models.chat.messages import Ask, ChatReply, ChatRequest, Part, Rejected, Token
from sightline.models.device import choose_device

if TYPE_CHECKING:
    from sightline.models.chat.config import ChatModelConfig


class LocalModel:
    """A model of the image-text-to-text kind. It is loaded with the first connection, and kept.

    Requests that come while it is busy are answered together, in one batch, with padding on the left so that all
    replies begin at the same place.

    Args:
        model: a folder, or `owner/name` on the hub.
        options: further arguments of `generate`; and `device`, `dtype` and `batch_size`.

    Raises:
        BadInput (by `connected`): there is no such model, or it does not read pictures and chat.
    """

    where = "this machine"
    batched = True
    hosted: ClassVar[bool] = False

    @classmethod
    def of(cls, config: ChatModelConfig) -> LocalModel:
        """The model that a recipe names."""
        return cls(config.model, config.options)

    def __init__(self, model: str, options: Mapping[str, Any] | None = None) -> None:
        self._name, self._options = model, dict(options or {})
        self._device = str(self._options.pop("device", "auto"))
        self._dtype = str(self._options.pop("dtype", "auto"))
        self._batch_size = int(self._options.pop("batch_size", 16))
        self._loaded: tuple[Any, Any] | None = None

    @contextlib.asynccontextmanager
    async def connected(self) -> AsyncIterator[Ask]:
        processor, model = await asyncio.to_thread(self._load)
        waiting: list[tuple[ChatRequest, asyncio.Future[ChatReply]]] = []
        come, stop = asyncio.Event(), threading.Event()

        async def ask(request: ChatRequest) -> ChatReply:
            future: asyncio.Future[ChatReply] = asyncio.get_running_loop().create_future()
            waiting.append((request, future))
            come.set()
            return await future

        async def answer() -> None:
            while True:
                await come.wait()
                await asyncio.sleep(0.005)  # those that were sent together arrive together
                batch = self._next_batch(waiting)
                requests = [request for request, _ in batch]
                try:
                    replies = await asyncio.to_thread(self._generate, processor, model, requests, stop)
                    for (_, future), reply in zip(batch, replies, strict=True):
                        if not future.done():
                            future.set_result(reply)
                except Exception as error:
                    for _, future in batch:
                        if not future.done():
                            future.set_exception(Rejected(f"the model '{self._name}' fails: {error}"))
                if not waiting:
                    come.clear()

        answering = asyncio.create_task(answer())
        try:
            yield ask
        finally:
            stop.set()
            answering.cancel()

    def _next_batch(
        self, waiting: list[tuple[ChatRequest, asyncio.Future[ChatReply]]]
    ) -> list[tuple[ChatRequest, asyncio.Future[ChatReply]]]:
        """Take what goes together with the oldest request: as many pictures, and the same way of writing."""
        waiting[:] = [(request, future) for request, future in waiting if not future.done()]
        alike = [pair for pair in waiting if _manner(pair[0]) == _manner(waiting[0][0])][: self._batch_size]
        waiting[:] = [pair for pair in waiting if all(pair is not chosen for chosen in alike)]
        return alike

    def _load(self) -> tuple[Any, Any]:
        if self._loaded is None:
            from sightline.models.vlm.loading import load_pretrained

            device = choose_device(self._device)
            dtype = self._dtype
            if dtype == "auto":
                dtype = "bfloat16" if device.type == "cuda" else "float32"
            processor, model = load_pretrained(self._name, dtype)
            processor.tokenizer.padding_side = "left"
            self._loaded = processor, model.to(device).eval()
        return self._loaded

    def _generate(
        self, processor: Any, model: Any, requests: list[ChatRequest], stop: threading.Event
    ) -> list[ChatReply]:
        if not requests:  # whoever asked has gone
            return []
        import torch
        from transformers import StoppingCriteria, StoppingCriteriaList

        class Stopped(StoppingCriteria):
            def __call__(self, ids: Any, scores: Any, **unused: Any) -> Any:
                return torch.full((len(ids),), stop.is_set(), device=ids.device)

        inputs = processor.apply_chat_template(
            [[{"role": "user", "content": [_part(part) for part in request.parts]}] for request in requests],
            add_generation_prompt=True,
            tokenize=True,
            return_dict=True,
            return_tensors="pt",
            processor_kwargs={"padding": True},
        ).to(model.device, dtype=model.dtype)
        first = requests[0]
        sampling = {"do_sample": True, "temperature": first.temperature} if first.temperature else {"do_sample": False}
        arguments = {
            "max_new_tokens": first.max_tokens,
            "pad_token_id": processor.tokenizer.pad_token_id,
            "stopping_criteria": StoppingCriteriaList([Stopped()]),
            **sampling,
            **self._options,
        }
        with torch.inference_mode():
            made = model.generate(
                **inputs, **arguments, return_dict_in_generate=True, output_logits=bool(first.alternatives)
            )
        if stop.is_set():
            raise RunFailed("stopped")
        length = inputs["input_ids"].shape[1]
        ends = _end_tokens(model, processor)
        return [
            self._reply(
                processor,
                int(inputs["attention_mask"][row].sum()),
                made.sequences[row, length:].tolist(),
                [step[row] for step in made.logits] if first.alternatives else [],
                ends,
                request,
            )
            for row, request in enumerate(requests)
        ]

    def _reply(
        self, processor: Any, read: int, written: list[int], logits: list[Any], ends: set[int], request: ChatRequest
    ) -> ChatReply:
        last = next((place for place, token in enumerate(written) if token in ends), None)
        spoken = written if last is None else written[:last]
        tokens = []
        for token, scores in zip(spoken, logits, strict=False):
            best = scores.float().log_softmax(-1).topk(min(request.alternatives, len(scores)))
            texts = [processor.tokenizer.decode([other]) for other in best.indices.tolist()]
            tokens.append(
                Token(processor.tokenizer.decode([token]), tuple(zip(texts, best.values.tolist(), strict=True)))
            )
        text = processor.tokenizer.decode(spoken, skip_special_tokens=True)
        return ChatReply(text, read, len(spoken) + (last is not None), cut_off=last is None, tokens=tuple(tokens))


def _manner(request: ChatRequest) -> tuple[int, float, int, int]:
    pictures = sum(not isinstance(part, str) for part in request.parts)
    return pictures, request.temperature, request.max_tokens, request.alternatives


def _part(part: Part) -> dict[str, Any]:
    if isinstance(part, str):
        return {"type": "text", "text": part}
    from PIL import Image

    return {"type": "image", "image": Image.fromarray(part.pixels)}


def _end_tokens(model: Any, processor: Any) -> set[int]:
    """Tokens that end a reply: those of the model, and padding after it."""
    of_model = model.generation_config.eos_token_id
    listed = of_model if isinstance(of_model, list) else [of_model]
    return {
        token
        for token in (*listed, processor.tokenizer.eos_token_id, processor.tokenizer.pad_token_id)
        if token is not None
    }
