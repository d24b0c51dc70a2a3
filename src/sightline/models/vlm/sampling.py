"""Sampling of replies by inverting the cumulative distribution at given random numbers.

    token             a      b          c       d
    probability      0.1    0.5        0.1     0.3
    cumulative    0 ──┴───────────┴──────┴────────── 1
                     0.1         0.6    0.7
    u = 0.42              ▲ b: the first token whose cumulative probability exceeds u

One uniform number per token makes a reply a function of its prompt and its numbers alone: it does not change with the
other rows of a batch, with the batch size, or with the random state of the process (but for rounding, which can turn a
token in bfloat16). So a resumed run samples the same replies, and so does a run on another number of processes.

The tokens of R replies while they are written (p: token of the prompt, r: of the reply, e: stop token, .: padding):

    `generate`'s sequences      . . p p p | r r r e         `_picked` [R, M]       r r r e
    prompts padded left,        p p p p p | r r r r         of the replies         r r r r
    replies behind them                   |                 alone                  0 1 2 3
                                          column `_prompt`                         the place: a column of `uniforms`
"""

from __future__ import annotations

import contextlib
import copy
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
import transformers
from transformers import LogitsProcessor, StoppingCriteria

from sightline.errors import RunFailed
from sightline.models.vlm.caching import preallocated_cache
from sightline.models.vlm.loading import without_future_warnings
from sightline.models.vlm.parts import without_adapters
from sightline.models.vlm.shared_prompts import cache_for_rows, shifted_modules
from sightline.models.vlm.tokens import Tokens
from sightline.models.vlm.types import EVERY_TOKEN, Sample, Truncation

_LIBRARY: Any = transformers  # its types change with its version
WORTH_A_PASS = 24
"""Tokens between two passes, at least: it takes some time to begin one."""
_UNSAMPLED = -1
"""In place of a token that was not sampled."""


def sample(
    model: Any,
    inputs: Mapping[str, torch.Tensor],
    tokens: Tokens,
    banned: torch.Tensor,
    uniforms: np.ndarray | None,
    temperature: float,
    max_tokens: int,
    alternatives: int = 0,
    stop: Callable[[], bool] | None = None,
    options: Mapping[str, Any] | None = None,
    truncation: Truncation = EVERY_TOKEN,
    of: Sequence[int] | None = None,
    prefix: int = 0,
) -> list[Sample]:
    """Sample a reply to each of N prompts, or several to each.

    Args:
        model: a Hugging Face model with `generate`.
        inputs: model inputs of the prompts, padded on the left.
        tokens: the vocabulary, with its stop tokens.
        banned: bool[V], true for tokens that are never sampled, on the model's device.
        uniforms: float64[N, max_tokens] in [0, 1), the random number of each row and position; None decodes greedily.
        temperature: divisor of the logits. With greedy decoding it changes only the returned log-probabilities.
        max_tokens: token limit of a reply.
        alternatives: number of the most probable tokens that are returned for each place.
        stop: asked after each token; once it is true, all replies are cut off where they are.
        options: further fields of `GenerationConfig` that change logits, such as `min_new_tokens`.
        truncation: tokens that may be sampled at all; the samples say which these were.
        of: for each reply the prompt that it is to, as an index into `inputs`; None for one reply to each. A prompt is
            read once, whatever the number of its replies, which `uniforms` has the rows of.
        prefix: so many columns at the left are alike in all prompts, and are read once.

    Raises:
        RunFailed: the model's probabilities are not finite.
    """
    prompts, prompt_length = inputs["input_ids"].shape
    replies = prompts if of is None else len(of)
    shape = (replies, prompt_length, max_tokens)
    writer = _Writer(shape, tokens, banned, uniforms, temperature, truncation, alternatives)
    # `do_sample=False`, although tokens are sampled: the processor has already chosen, and leaves `generate` only one
    # token with a finite score to take the maximum of.
    settings = _LIBRARY.GenerationConfig(
        max_new_tokens=max_tokens,
        do_sample=False,
        eos_token_id=sorted(tokens.stops),
        pad_token_id=tokens.pad,
        **options or {},
    )
    in_passes = not options  # they may count from the first token, and each pass would begin anew
    with _without_own_settings(model), without_future_warnings(), torch.no_grad():
        inputs = dict(inputs) | preallocated_cache(model)
        if prefix:
            inputs = _after_prefix(model, inputs, prefix, settings)
        if of is not None:
            inputs = _fanned_out(model, inputs, of, settings)
        _write(model, inputs, settings, writer, in_passes, stop)
    samples = writer.samples()
    if not all(np.isfinite(sample.logprobs).all() for sample in samples):
        raise RunFailed(
            "the model's probabilities are not finite; resume from an earlier checkpoint, or try policy.dtype=float32"
        )
    return samples


def _after_prefix(model: Any, inputs: Mapping[str, torch.Tensor], prefix: int, settings: Any) -> dict[str, Any]:
    """Read the columns that all prompts have alike, once, and give every prompt a copy of their keys and values."""
    first_row = {name: tensor[:1, :prefix] for name, tensor in _per_token(inputs).items()}
    rows = torch.zeros(len(inputs["input_ids"]), dtype=torch.int64, device=inputs["input_ids"].device)
    return dict(inputs) | _read(model, dict(inputs) | first_row, rows, settings)


def _fanned_out(model: Any, inputs: Mapping[str, torch.Tensor], of: Sequence[int], settings: Any) -> dict[str, Any]:
    """Read each prompt but for its last token, and give every reply a copy of its keys and values.

    inputs      p p p p      of = 0 0 0 1 1       cache   p p p      to be read   p
                q q q q                                   p p p                   p
                                                          p p p                   p
                                                          q q q                   q
                                                          q q q                   q
    """
    per_token = _per_token(inputs)
    but_last_token = {name: tensor[:, :-1] for name, tensor in per_token.items()}
    rows = torch.as_tensor(of, device=inputs["input_ids"].device)
    cache = _read(model, dict(inputs) | but_last_token, rows, settings)
    return {name: tensor[rows] for name, tensor in per_token.items()} | cache


def _read(model: Any, inputs: Mapping[str, Any], rows: torch.Tensor, settings: Any) -> dict[str, Any]:
    """Read inputs, and return their cache for some of their rows, or several copies of them, as an input."""
    # `generate` and not `forward`, for each family's own preparation of inputs; the token that it adds is not used.
    one_token = copy.deepcopy(settings)
    one_token.max_new_tokens = 1
    one_token.return_dict_in_generate = True
    output = model.generate(**inputs, generation_config=one_token)
    return _cache_of_rows(model, output, rows)


def _write(
    model: Any,
    inputs: Mapping[str, torch.Tensor],
    settings: Any,
    writer: _Writer,
    in_passes: bool,
    stop: Callable[[], bool] | None,
) -> None:
    """Let the model write all replies, in passes: once half of those of a pass have ended, the others go on alone.

    Else a batch would be computed as a whole, and its cache grow, until the longest reply of all has ended.

    pass 1   a a .           pass 2             pass 3
             b b b .
             c c c c    ->   c c .         ->
             d d d d         d d d d            d d d .
    """
    settings.return_dict_in_generate = True
    while True:
        settings.max_new_tokens = writer.max_tokens - writer.place
        end_of_pass = _EndOfPass(writer, in_passes, stop)
        hooks = {
            "logits_processor": _LIBRARY.LogitsProcessorList([writer]),
            "stopping_criteria": _LIBRARY.StoppingCriteriaList([end_of_pass]),
        }
        output = model.generate(**inputs, generation_config=settings, **hooks)
        unfinished = writer.end_pass(output.sequences)
        if not end_of_pass.half or not len(unfinished) or writer.place == writer.max_tokens:
            return
        inputs = _inputs_of_next_pass(model, inputs, output, unfinished)
        writer.continue_with(unfinished)


def _inputs_of_next_pass(
    model: Any, inputs: Mapping[str, torch.Tensor], output: Any, rows: torch.Tensor
) -> dict[str, Any]:
    """Inputs by which some rows continue after what was written of them."""
    new = output.sequences.shape[1] - inputs["input_ids"].shape[1]
    per_token = {}
    for name, tensor in _per_token(inputs).items():
        # What is said of the last token of a prompt holds for those after it: it is text, and no padding.
        of_new = tensor[:, -1:].expand(-1, new)
        per_token[name] = torch.cat([tensor, of_new], 1)[rows]
    return per_token | {"input_ids": output.sequences[rows]} | _cache_of_rows(model, output, rows)


def _per_token(inputs: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    """The inputs that say something of each token, such as their ids and whether they are padding."""
    shape = inputs["input_ids"].shape
    tensors = {name: value for name, value in inputs.items() if getattr(value, "shape", None) == shape}
    return {name: tensor for name, tensor in tensors.items() if not tensor.is_floating_point()}


def _cache_of_rows(model: Any, output: Any, rows: torch.Tensor) -> dict[str, Any]:
    """Cache of what a model has read, for some of the rows, or for several copies of them."""
    for module in shifted_modules(model):  # they remember a shift for each row
        module.rope_deltas = module.rope_deltas[rows]
    return cache_for_rows(model, output, rows)


class _Writer(LogitsProcessor):
    """Logits processor that samples the next token of replies, forces `generate` to take it, and records it.

    Args:
        shape: number of replies R, tokens of the padded prompts, and token limit of a reply M.
        others: see `sample`.

    Attributes:
        place: tokens that the replies had when the last pass ended.
        rows: int64, the replies that are being written in this pass, in the order of its batch.
        ended: bool, whether each of these has a stop token.
    """

    def __init__(
        self,
        shape: tuple[int, int, int],
        tokens: Tokens,
        banned: torch.Tensor,
        uniforms: np.ndarray | None,
        temperature: float,
        truncation: Truncation,
        alternatives: int,
    ) -> None:
        replies, self._prompt, self.max_tokens = shape
        self._tokens = tokens
        self._banned = banned
        self._temperature = temperature
        self._truncation = truncation
        self._alternative_count = alternatives
        device = banned.device
        # MPS has no float64
        self._exact = torch.device("cpu") if device.type == "mps" else device
        self._uniforms: torch.Tensor | None = None
        if uniforms is not None:
            self._uniforms = torch.from_numpy(np.asarray(uniforms, np.float64)).to(self._exact)
        self._stops = torch.tensor(sorted(tokens.stops), device=device)
        self._picked = torch.full((replies, self.max_tokens), _UNSAMPLED, device=device)
        self._logprobs = torch.zeros((replies, self.max_tokens), device=device)
        self._alternatives: list[list[tuple[tuple[int, float], ...]]] = [[] for _ in range(replies)]
        self._support: list[list[np.ndarray]] = [[] for _ in range(replies)]
        self.place = 0
        self.rows = torch.arange(replies, device=device)
        self.ended: torch.Tensor
        self.continue_with(self.rows)

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        # Counted anew each time: `generate` may ask for one token more than it takes, where asking whether all replies
        # have ended would wait for the device (`DeferredStopCheck`).
        place = input_ids.shape[1] - self._prompt
        logits = (scores.float() / self._temperature).masked_fill(self._banned, -torch.inf)
        if self._truncation != EVERY_TOKEN:
            support = sampling_support(logits, self._truncation)
            logits = logits.masked_fill(~support, -torch.inf)
            self._record_support(support, place)
        chosen = logits.argmax(-1) if self._uniforms is None else draw(logits, self._uniforms[self._exact_rows, place])
        # The same logits give token and log-probability, so what is recorded is what was sampled from.
        chosen_logits = logits.gather(1, chosen[:, None])[:, 0]
        self._picked[self.rows, place] = chosen
        self._logprobs[self.rows, place] = chosen_logits - logits.logsumexp(-1)
        if self._alternative_count:
            self._record_alternatives(scores, place)
        self.ended = self.ended | torch.isin(chosen, self._stops)
        # `generate` takes the largest score: all but that of the chosen token are minus infinity.
        return scores.fill_(-torch.inf).scatter_(1, chosen[:, None], 0.0)

    def _record_support(self, support: torch.Tensor, place: int) -> None:
        """Record which ids, bool[rows, V], could be sampled at a place."""
        ids = support.nonzero()[:, 1].int().cpu().numpy()
        ends = np.cumsum(support.sum(1).tolist())
        for row, of_row in zip(self._row_list, np.split(ids, ends[:-1]), strict=True):
            self._support[row][place:] = [of_row]

    def _record_alternatives(self, scores: torch.Tensor, place: int) -> None:
        """Record the most probable tokens at a place by logits [rows, V], untruncated, at temperature 1."""
        logprobs = scores.float().masked_fill(self._banned, -torch.inf).log_softmax(-1)
        best = logprobs.topk(min(self._alternative_count, logprobs.shape[-1]))
        for row, ids, values in zip(self._row_list, best.indices.tolist(), best.values.tolist(), strict=True):
            self._alternatives[row][place:] = [tuple(zip(ids, values, strict=True))]

    def end_pass(self, sequences: torch.Tensor) -> torch.Tensor:
        """Note how far a pass has come; returns which of its rows have not ended.

        Args:
            sequences: int64[rows, tokens], prompts and replies as `generate` returns them.
        """
        self.place = sequences.shape[1] - self._prompt
        ended = torch.isin(self._picked[self.rows, : self.place], self._stops).any(1)
        return (~ended).nonzero()[:, 0]

    def continue_with(self, rows: torch.Tensor) -> None:
        """Write only some rows of the last pass in the next one."""
        self.rows = self.rows[rows]
        # The same rows where the random numbers lie, and as a list: both are needed for each token.
        self._exact_rows = self.rows.to(self._exact)
        self._row_list = self.rows.tolist()
        self.ended = torch.zeros(len(self.rows), dtype=torch.bool, device=self.rows.device)

    def samples(self) -> list[Sample]:
        """All replies, as far as they are written."""
        stops = torch.isin(self._picked, self._stops).cpu().numpy()
        picked = self._picked.cpu().numpy()
        logprobs = self._logprobs.cpu().numpy()
        samples = []
        for row, is_stop in enumerate(stops[:, : self.place]):
            # `generate` goes on with a reply that has ended until all of a pass have: what it says then does not count.
            ended = bool(is_stop.any())
            length = int(is_stop.argmax()) + 1 if ended else self.place
            ids = picked[row, :length].astype(np.int64)
            sample = Sample(
                ids,
                logprobs[row, :length].copy(),
                self._tokens.decode(ids.tolist()),
                ended,
                alternatives=tuple(self._alternatives[row][:length]),
                support=tuple(self._support[row][:length]),
            )
            samples.append(sample)
        return samples


class _EndOfPass(StoppingCriteria):
    """Stopping criterion of `generate` that ends a pass once half of its replies have ended, or `stop` says so.

    Attributes:
        half: whether it was the former, a tensor where the device was asked: `generate` waits for it anyway.
    """

    def __init__(self, writer: _Writer, in_passes: bool, stop: Callable[[], bool] | None) -> None:
        self.half: torch.Tensor | bool = False
        self._writer = writer
        self._in_passes = in_passes
        self._stop = stop
        self._calls = 0

    def __call__(self, input_ids: torch.Tensor, scores: Any, **unused: Any) -> torch.Tensor:
        self._calls += 1
        ended = self._writer.ended
        if self._stop is not None and self._stop():
            return torch.ones_like(ended)
        if self._in_passes and self._calls >= WORTH_A_PASS:
            half = 2 * ended.sum() >= len(ended)
            self.half = half
            return half.expand(len(ended))
        return torch.zeros_like(ended)


def sampling_support(logits: torch.Tensor, truncation: Truncation) -> torch.Tensor:
    """Tell which tokens may be sampled; the most probable one always may, and equally probable ones stay together.

    Args:
        logits: float32[N, V]; tokens at minus infinity are never sampled.

    Returns:
        bool[N, V].
    """
    support = logits > -torch.inf
    if 0 < truncation.top_k < logits.shape[-1]:
        smallest = logits.topk(truncation.top_k).values[:, -1:]
        support &= logits >= smallest
    if truncation.top_p < 1:
        probabilities = logits.masked_fill(~support, -torch.inf).double().softmax(-1)
        descending = probabilities.sort(descending=True).values
        # As many as are needed to reach top_p: a token counts while those before it have not reached it.
        before = descending.cumsum(-1) - descending
        needed = (before < truncation.top_p).sum(-1, keepdim=True)
        last = (needed - 1).clamp(min=0)  # NaN needs none
        support &= probabilities >= descending.gather(1, last)
    if truncation.min_p > 0:
        largest = logits.max(-1, keepdim=True).values
        support &= logits >= largest + math.log(truncation.min_p)
    return support


def draw(logits: torch.Tensor, uniforms: torch.Tensor) -> torch.Tensor:
    """Sample one token per row by inverse transform sampling.

    Args:
        logits: float32[N, V]; tokens at minus infinity are never sampled.
        uniforms: float64[N] in [0, 1).

    Returns:
        int64[N], token ids.
    """
    device = logits.device
    exact = logits.cpu() if device.type == "mps" else logits  # MPS has no float64
    # float64: below 1, float32 sums have steps of 6e-8, more than the probability of most tokens of a large vocabulary.
    cumulative = exact.double().softmax(-1).cumsum_(-1)
    # The total differs from 1 by rounding. A uniform number below 1 times the total is below the total, so a token is
    # always found. `right=True` finds the first sum above the level: a token of probability 0 adds nothing to the sum
    # and is never found.
    level = uniforms.to(exact.device)[:, None] * cumulative[:, -1:]
    ids = torch.searchsorted(cumulative, level, right=True)[:, 0]
    # NaN probabilities find nothing, which is an index past the end; `sample` reports them by their log-probabilities.
    return ids.clamp(max=logits.shape[-1] - 1).to(device)


@contextlib.contextmanager
def _without_own_settings(model: Any) -> Iterator[None]:
    """Within the context, the model has no generation settings of its own.

    `generate` merges them into the settings it is given, and top-k, top-p or penalties would change the probabilities.
    """
    core = without_adapters(model)
    own = core.generation_config
    core.generation_config = _LIBRARY.GenerationConfig()
    try:
        yield
    finally:
        core.generation_config = own
