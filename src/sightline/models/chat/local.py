"""A model in this process, of vision and language or of language alone: loaded, prompted and sampled as agents are."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, get_args

import numpy as np

from sightline.config.agents import WeightType
from sightline.errors import BadInput, RunFailed, nearest
from sightline.images import Picture
from sightline.models.chat.messages import Ask, ChatReply, ChatRequest, Rejected, Token
from sightline.models.device import choose_device, fast_dtype
from sightline.models.vlm.loading import reads_pictures
from sightline.models.vlm.types import ChatTurn, Prompt, Sample, TokenSequence
from sightline.models.vlm.words_only import READS_NO_PICTURES
from sightline.replies import with_common_marks

if TYPE_CHECKING:
    from sightline.models.chat.config import ChatModelConfig
    from sightline.models.vlm.model import VLM

GENERATION = ("min_new_tokens", "no_repeat_ngram_size", "repetition_penalty")
"""Options that are passed on to `generate`: those that change logits. How tokens are picked is in the request."""
OPENING = "\"'([{<"
"""Marks behind which a word stands without a space."""
OPTIONS = ("device", "dtype", "batch_size", *GENERATION)


class LocalModel:
    """A model of the image-text-to-text kind, loaded with the first connection, and kept; or a language model, loaded
    with the first request, since one that shows pictures is turned down before that.

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
    begins_replies: ClassVar[bool] = True

    @classmethod
    def of(cls, config: ChatModelConfig) -> LocalModel:
        """The model that a recipe names."""
        return cls(config.model, config.options)

    def __init__(self, model: str, options: Mapping[str, Any] | None = None) -> None:
        options = dict(options or {})
        for name in options:
            if name not in OPTIONS:
                raise BadInput(f"provider=local has no option '{name[:80]}'{nearest(name, OPTIONS)}")
        self._name = model
        self._device = str(options.get("device", "auto"))
        self._dtype: WeightType = options.get("dtype", "auto")
        if self._dtype not in get_args(WeightType):
            raise BadInput(f"provider=local: dtype must be one of {', '.join(get_args(WeightType))}")
        self._batch_size = int(options.get("batch_size", 16))
        self._generation = {name: options[name] for name in GENERATION if name in options}
        self._vlm: VLM | None = None

    @contextlib.asynccontextmanager
    async def connected(self) -> AsyncIterator[Ask]:
        reads = await asyncio.to_thread(reads_pictures, self._name)
        if reads:
            await asyncio.to_thread(self._load)
        waiting: list[tuple[ChatRequest, asyncio.Future[ChatReply]]] = []
        any_waiting = asyncio.Event()
        stop = threading.Event()

        async def ask(request: ChatRequest) -> ChatReply:
            if not reads and _shows_pictures(request):
                raise Rejected(f"'{self._name}' {READS_NO_PICTURES}")
            future: asyncio.Future[ChatReply] = asyncio.get_running_loop().create_future()
            waiting.append((request, future))
            any_waiting.set()
            return await future

        async def answer() -> None:
            while True:
                await any_waiting.wait()
                await asyncio.sleep(0.005)  # those that were sent together arrive together
                batch = self._next_batch(waiting)
                requests = [request for request, _ in batch]
                try:
                    replies = await asyncio.to_thread(self._generate, requests, stop)
                    for (_, future), reply in zip(batch, replies, strict=True):
                        if not future.done():
                            future.set_result(reply)
                except Exception as error:
                    for _, future in batch:
                        if not future.done():
                            future.set_exception(Rejected(f"the model '{self._name}' fails: {error}"))
                if not waiting:
                    any_waiting.clear()

        answering = asyncio.create_task(answer())
        try:
            yield ask
        finally:
            # The thread that generates cannot be cancelled; it asks `stop` after each token.
            stop.set()
            answering.cancel()

    def replies(self, requests: Sequence[ChatRequest]) -> list[ChatReply]:
        """Replies to requests that are alike but for their words and pictures, in batches that depend on nothing else:
        the same requests get the same replies, to the last digit."""
        self._check_readable(requests)
        replies: list[ChatReply] = []
        for start in range(0, len(requests), self._batch_size):
            batch = list(requests[start : start + self._batch_size])
            replies += self._generate(batch, threading.Event())
        return replies

    def choice_logprobs(self, requests: Sequence[ChatRequest], choices: Sequence[str]) -> np.ndarray:
        """Log-probabilities of the first token of replies, float64[N, C] in nats: how probable each choice is, of all
        tokens that the model might write there. Batches are as of `replies`.

        Raises:
            BadInput: a choice is not one token of this model, after the request's beginning of a reply.
        """
        import torch

        self._check_readable(requests)
        vlm = self._load()
        logprobs: list[np.ndarray] = []
        for start in range(0, len(requests), self._batch_size):
            sequences: list[TokenSequence] = []
            for request in requests[start : start + self._batch_size]:
                before, tokens = _choice_tokens(vlm, request.beginning, choices)
                prompt = _prompt(vlm, request, before)
                sequences += [TokenSequence.of_reply(prompt, np.array([token], np.int64)) for token in tokens]
            with torch.inference_mode():
                scored = vlm.score(sequences).logprobs
            logprobs.append(scored.double().cpu().numpy().reshape(-1, len(choices)))
        return np.concatenate([np.zeros((0, len(choices))), *logprobs])

    def _next_batch(
        self, waiting: list[tuple[ChatRequest, asyncio.Future[ChatReply]]]
    ) -> list[tuple[ChatRequest, asyncio.Future[ChatReply]]]:
        """Take the requests that can be sampled together with the oldest one, and leave the others waiting."""
        pending = [(request, future) for request, future in waiting if not future.done()]
        waiting.clear()
        batch: list[tuple[ChatRequest, asyncio.Future[ChatReply]]] = []
        for request, future in pending:
            is_alike = _sampling_settings(request) == _sampling_settings(pending[0][0])
            # One call of `generate` has one temperature and one limit for all its rows.
            if is_alike and len(batch) < self._batch_size:
                batch.append((request, future))
            else:
                waiting.append((request, future))
        return batch

    def _check_readable(self, requests: Sequence[ChatRequest]) -> None:
        """Refuse pictures for a language model, before it is loaded.

        Raises:
            BadInput: there are some.
        """
        if any(map(_shows_pictures, requests)) and not reads_pictures(self._name):
            raise BadInput(f"'{self._name}' {READS_NO_PICTURES}")

    def _load(self) -> VLM:
        if self._vlm is None:
            from sightline.models.vlm.loading import weights_known
            from sightline.models.vlm.model import load_vlm

            device = choose_device(self._device, weights_known(self._name))
            dtype = self._dtype
            if dtype == "auto" and device.type == "cuda" and fast_dtype(device).itemsize == 2:
                dtype = "bfloat16"  # nothing is trained
            self._vlm = load_vlm(self._name, dtype=dtype, device=device)
        return self._vlm

    def _generate(self, requests: list[ChatRequest], stop: threading.Event) -> list[ChatReply]:
        if not requests:  # whoever asked has gone
            return []
        vlm = self._load()
        first = requests[0]
        prompts = [_prompt(vlm, request) for request in requests]
        # A limit beyond what the model reads is lowered: most replies are far shorter than either.
        max_tokens = min(first.max_tokens, vlm.room_for_reply(prompts))
        # Fresh numbers each time: votes on one question are to differ.
        uniforms: np.ndarray | None = None
        if first.temperature:
            uniforms = np.random.default_rng().random((len(prompts), max_tokens))
        samples = vlm.generate(
            prompts,
            uniforms,
            first.temperature or 1.0,
            max_tokens,
            alternatives=first.alternatives,
            stop=stop.is_set,
            options=self._generation,
        )
        if stop.is_set():
            raise RunFailed("stopped")
        return [_reply(vlm, len(prompt.ids), sample) for prompt, sample in zip(prompts, samples, strict=True)]


def _shows_pictures(request: ChatRequest) -> bool:
    return any(isinstance(part, Picture) for part in request.parts)


def _prompt(vlm: VLM, request: ChatRequest, beginning: Sequence[int] | None = None) -> Prompt:
    """A request's prompt, with the ids of the beginning of its reply, or those of its words."""
    if beginning is None:
        beginning = vlm.tokens.encode(request.beginning) if request.beginning else []
    return vlm.encode([ChatTurn.of_parts(request.parts)], request.system, beginning)


def _choice_tokens(vlm: VLM, beginning: str, choices: Sequence[str]) -> tuple[list[int], list[int]]:
    """Ids of the beginning of a reply, and the one token by which each choice goes on from it.

    `True` where a reply begins and ` True` after words are different tokens: so they are found together with what
    stands before them. Digits are often tokens without a space, which is then the last token of the beginning.

    Raises:
        BadInput: a choice takes more tokens than one, or two of them begin alike.
    """
    # A word that goes on from a word is parted from it, and stands right behind an opening quote or bracket.
    is_parted = beginning and not beginning[-1].isspace() and beginning[-1] not in OPENING
    gap = " " if is_parted else ""
    whole = [vlm.tokens.encode(f"{beginning}{gap}{choice}") for choice in choices]
    starts = [vlm.tokens.encode(start) for start in (beginning, beginning + gap) if start] or [[]]
    before = whole[0][:-1]
    for choice, ids in zip(choices, whole, strict=True):
        if before not in starts or ids[:-1] != before:
            pieces = [vlm.decode([token]) for token in ids]
            raise BadInput(
                f"the choice '{choice}' is not one token of this model ({pieces}), and the probability of a part says "
                "something else; name other words in the prompt's section [choices]"
            )
    tokens = [ids[-1] for ids in whole]
    if len(set(tokens)) < len(tokens):
        raise BadInput(f"the choices {', '.join(choices)} are the same token of this model; name other words")
    return before, tokens


def _reply(vlm: VLM, prompt_tokens: int, sample: Sample) -> ChatReply:
    ids = sample.ids.tolist()
    if sample.finished:
        ids = ids[:-1]  # without the stop token
    tokens = []
    for token, most_probable in zip(ids, sample.alternatives, strict=False):
        alternatives = [(vlm.decode([other]), logprob) for other, logprob in most_probable]
        tokens.append(Token(vlm.decode([token]), tuple(alternatives)))
    # Whoever reads the reply later, from a store of labels too, does not know the model's own marks.
    text = with_common_marks(sample.text, vlm.tokens.thinking, sample.finished)
    return ChatReply(text, prompt_tokens, len(sample.ids), cut_off=not sample.finished, tokens=tuple(tokens))


def _sampling_settings(request: ChatRequest) -> tuple[float, int, int]:
    return request.temperature, request.max_tokens, request.alternatives
