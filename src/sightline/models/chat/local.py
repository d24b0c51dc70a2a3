"""A vision-language model in this process, loaded, prompted and sampled as agents are (`models/vlm`)."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, get_args

import numpy as np

from sightline.config.agents import WeightType
from sightline.errors import BadInput, RunFailed, nearest
from sightline.models.chat.messages import Ask, ChatReply, ChatRequest, Rejected, Token
from sightline.models.device import choose_device, fast_dtype
from sightline.models.vlm.types import ChatTurn, Sample
from sightline.replies import with_common_marks

if TYPE_CHECKING:
    from sightline.models.chat.config import ChatModelConfig
    from sightline.models.vlm.model import VLM

GENERATION = ("min_new_tokens", "no_repeat_ngram_size", "repetition_penalty")
"""Options that are passed on to `generate`: those that change logits. How tokens are picked is in the request."""
OPTIONS = ("device", "dtype", "batch_size", *GENERATION)


class LocalModel:
    """A model of the image-text-to-text kind. It is loaded with the first connection, and kept.

    Requests that come while it is busy are answered together, in one batch.

    Args:
        model: `bundled`, a folder, or `owner/name` on the hub.
        options: `device`, `dtype` (`auto`: bfloat16 on a GPU, else float32), `batch_size`, and those of `GENERATION`.

    Raises:
        BadInput: there is no such option or data type; by `connected`: there is no such model, or it does not read
            pictures and chat.
    """

    where = "this machine"
    batched = True
    hosted: ClassVar[bool] = False

    @classmethod
    def of(cls, config: ChatModelConfig) -> LocalModel:
        """The model that a recipe names."""
        return cls(config.model, config.options)

    def __init__(self, model: str, options: Mapping[str, Any] | None = None) -> None:
        said = dict(options or {})
        for name in said:
            if name not in OPTIONS:
                raise BadInput(f"provider=local has no option '{name[:80]}'{nearest(name, OPTIONS)}")
        self._name, self._device = model, str(said.get("device", "auto"))
        self._dtype: WeightType = said.get("dtype", "auto")
        if self._dtype not in get_args(WeightType):
            raise BadInput(f"provider=local: dtype must be one of {', '.join(get_args(WeightType))}")
        self._batch_size = int(said.get("batch_size", 16))
        self._generation = {name: said[name] for name in GENERATION if name in said}
        self._vlm: VLM | None = None

    @contextlib.asynccontextmanager
    async def connected(self) -> AsyncIterator[Ask]:
        vlm = await asyncio.to_thread(self._load)
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
                    replies = await asyncio.to_thread(self._generate, vlm, requests, stop)
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
        """Take what goes together with the oldest request: the same way of writing."""
        waiting[:] = [(request, future) for request, future in waiting if not future.done()]
        alike = [pair for pair in waiting if _manner(pair[0]) == _manner(waiting[0][0])][: self._batch_size]
        waiting[:] = [pair for pair in waiting if all(pair is not chosen for chosen in alike)]
        return alike

    def _load(self) -> VLM:
        if self._vlm is None:
            from sightline.models.vlm.model import load_vlm

            device, dtype = choose_device(self._device), self._dtype
            if dtype == "auto" and device.type == "cuda" and fast_dtype(device).itemsize == 2:
                dtype = "bfloat16"  # nothing is trained
            self._vlm = load_vlm(self._name, dtype=dtype, device=device)
        return self._vlm

    def _generate(self, vlm: VLM, requests: list[ChatRequest], stop: threading.Event) -> list[ChatReply]:
        if not requests:  # whoever asked has gone
            return []
        first = requests[0]
        prompts = [vlm.encode([ChatTurn.of_parts(request.parts)]) for request in requests]
        # Fresh numbers each time: votes on one question are to differ.
        uniforms = np.random.default_rng().random((len(prompts), first.max_tokens)) if first.temperature else None
        samples = vlm.generate(
            prompts,
            uniforms,
            first.temperature or 1.0,
            first.max_tokens,
            alternatives=first.alternatives,
            stop=stop.is_set,
            options=self._generation,
        )
        if stop.is_set():
            raise RunFailed("stopped")
        return [_reply(vlm, len(prompt.ids), made) for prompt, made in zip(prompts, samples, strict=True)]


def _reply(vlm: VLM, read: int, made: Sample) -> ChatReply:
    spoken = made.ids.tolist()[: len(made.ids) - made.finished]
    tokens = tuple(
        Token(vlm.decode([token]), tuple((vlm.decode([other]), logprob) for other, logprob in best))
        for token, best in zip(spoken, made.alternatives, strict=False)
    )
    # Whoever reads the reply later, from a store of labels too, does not know the model's own marks.
    text = with_common_marks(made.text, vlm.tokens.thinking, made.finished)
    return ChatReply(text, read, len(made.ids), cut_off=not made.finished, tokens=tokens)


def _manner(request: ChatRequest) -> tuple[float, int, int]:
    return request.temperature, request.max_tokens, request.alternatives
