"""Log-probabilities and entropies of replies, and values of the states before them, in one forward pass.

The logits at position i are the prediction of token i + 1. So a token at position p is scored by the logits at p - 1,
and the value of a turn is computed from the hidden state of the last token before its reply, which has seen the prompt
and nothing of the reply. A sequence of two turns (p: prompt, r: reply):

    position    0    1    2    3    4    5    6    7    8    9
    token       p    p    p    r1   r1   p    p    r2   r2   r2
    loss mask   0    0    0    1    1    0    0    1    1    1       the tokens of all spans
    span                     [ start=3   end=5 [   [ start=7        end=10 [
    logits                2    3              6    7    8            `columns`: start - 1 … end - 2
    targets               r1   r1             r2   r2   r2           `targets`: the tokens at columns + 1
    value                 V1                  V2                     `value_columns`: start - 1

The loss mask is never a tensor: `rows`, `columns` and `targets` list the T places where it is 1, row after row, and the
statistics, advantages and losses of these tokens are flat tensors [T] in the same order. Only these places go through
the output layer; see `PolicyWithValueHead._logits_and_states`.

Episodes of a group begin alike, and small games have few states: many replies are to the same prompt. Such a prompt is
read once, and its keys and values are handed to all replies, in learning as in sampling. A reply is read with the last
token of its prompt before it, which predicts its first one:

    inputs     p p p .     `of` = 0 0 0 1 1     keys, values  p p p .  +  replies  p r r r     mask  1 1 1 0 1 1 1 1
               q q q q                                        p p p .              p r r .           1 1 1 0 1 1 1 0
                                                              p p p .              p r r r           1 1 1 0 1 1 1 1
                                                              q q q q              q r . .           1 1 1 1 1 1 0 0
                                                              q q q q              q r r r           1 1 1 1 1 1 1 1

Gradients flow back through the keys and values to the prompt: they are those of reading it once for each reply.

Where prompts differ, those of a language model still begin alike, with the rules of the game: that beginning is read
once in the place of whole prompts, and the rest of each prompt with its replies.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils import _pytree

from sightline.models.vlm.batches import stack
from sightline.models.vlm.shared_prompts import (
    WORTH_SHARING,
    cache_for_rows,
    common_prefix,
    is_worth_sharing,
    positions_after,
    recorded_positions,
)
from sightline.models.vlm.types import Prompt, TokenSequence, TokenStats

ENTROPY_ROWS = 1024
"""Tokens whose entropies are computed at once; without gradient, smaller parts only save memory."""

# FSDP hooks into the backward pass by the tensors of a module's output, which it finds through pytree
_pytree.register_pytree_node(
    TokenStats,
    lambda stats: ([getattr(stats, field.name) for field in fields(TokenStats)], None),
    lambda values, _: TokenStats(*values),
)


@dataclass(frozen=True, eq=False)
class Batch:
    """A batch of sequences with T scored tokens and M turns, C of them with a choice among at most K actions.

    Attributes:
        inputs: model inputs, padded on the right: of whole sequences, or of the beginnings that several share, which
            are prompts without their last tokens, or what all prompts begin with.
        rest: model inputs [N, R] of what follows these beginnings, padded on the right; empty if none are shared.
        of: int64[N], the beginning of each sequence; empty if none are shared.
        rows, columns: int64[T], position of the logits of each scored token, in the sequences or else in `rest`.
        targets: int64[T], ids of the scored tokens.
        value_rows, value_columns: int64[M], position of the last token before each reply.
        choice_tokens: int64[C], indices into the T tokens: the token that decides between the legal actions.
        choice_turns: int64[C], indices into the M turns.
        choices: int64[C, K], ids that this token can have, padded with -1.
        support: int64[T, K], ids that could be sampled in the place of each token, padded with -1; [T, 0] where all
            could.
    """

    inputs: dict[str, torch.Tensor]
    rest: dict[str, torch.Tensor]
    of: torch.Tensor
    rows: torch.Tensor
    columns: torch.Tensor
    targets: torch.Tensor
    value_rows: torch.Tensor
    value_columns: torch.Tensor
    choice_tokens: torch.Tensor
    choice_turns: torch.Tensor
    choices: torch.Tensor
    support: torch.Tensor

    def to(self, device: torch.device, floats: torch.dtype) -> Batch:
        """Copy to a device, with floating-point inputs (pictures) cast to a dtype."""

        def placed(value: Any) -> Any:
            if isinstance(value, dict):
                return {name: placed(tensor) for name, tensor in value.items()}
            dtype = floats if value.is_floating_point() else None
            return value.to(device, dtype=dtype, non_blocking=True)

        return Batch(**{field.name: placed(getattr(self, field.name)) for field in fields(self)})


def collate(
    sequences: Sequence[TokenSequence],
    pad: int,
    nested: frozenset[str] = frozenset(),
    shares_prompts: bool = False,
    shares_prefixes: bool = False,
) -> Batch:
    """Pad and batch sequences, on the CPU.

    Args:
        sequences: prompts, replies and the spans to score.
        pad: padding id.
        nested: see `batches.stack`.
        shares_prompts: read equal prompts once, if there are enough of them and each sequence is a prompt and the reply
            to it.
        shares_prefixes: read what all prompts begin with once, where that saves more.
    """
    beginnings: list[Prompt] = []
    of: list[int] = []
    if shares_prompts:
        beginnings, of = _equal_prompts(sequences)
    if shares_prefixes:
        beginnings, of = _with_common_prefix(sequences, beginnings, of)

    # List the scored tokens, and the places in the batch whose outputs are read for them.
    rows: list[int] = []
    columns: list[int] = []
    targets: list[int] = []
    value_rows: list[int] = []
    value_columns: list[int] = []
    choice_tokens: list[int] = []
    choice_turns: list[int] = []
    choices: list[torch.Tensor] = []
    support: list[torch.Tensor] = []
    whole = [np.concatenate([sequence.prompt.ids, sequence.reply]).astype(np.int64) for sequence in sequences]
    for row, (sequence, ids) in enumerate(zip(sequences, whole, strict=True)):
        # Columns count from the first token that is not read with a shared beginning.
        offset = len(beginnings[of[row]].ids) if of else 0
        for span in sequence.spans:
            # Actions may share their first token; a choice among one has entropy 0 and is left out.
            if span.choice is not None and len(set(span.choices)) > 1:
                choice_tokens.append(len(targets) + span.choice - span.start)
                choice_turns.append(len(value_rows))
                choices.append(torch.tensor(sorted(set(span.choices))))
            # One value per turn, not per token: the critic judges the state that the turn's prompt shows.
            last_of_prompt = span.start - 1 - offset
            value_rows.append(row)
            value_columns.append(last_of_prompt)
            # The logits that predict a token are those of the token before it.
            count = span.end - span.start
            rows += [row] * count
            columns += range(last_of_prompt, last_of_prompt + count)
            targets += ids[span.start : span.end].tolist()
            support += [torch.from_numpy(candidates).long() for candidates in span.support]
    padded_choices = torch.zeros((0, 1), dtype=torch.int64)
    if choices:
        padded_choices = nn.utils.rnn.pad_sequence(choices, batch_first=True, padding_value=-1)
    padded_support = torch.zeros((len(targets), 0), dtype=torch.int64)
    if support:
        padded_support = nn.utils.rnn.pad_sequence(support, batch_first=True, padding_value=-1)

    # Lay the tokens out: whole sequences, or beginnings and what follows them apart.
    rest: dict[str, torch.Tensor] = {}
    if of:
        inputs, rest = _stack_apart(sequences, beginnings, of, pad, nested)
    else:
        inputs = stack(whole, [sequence.prompt for sequence in sequences], pad, "right", nested)

    def indices(values: list[int]) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.int64)

    return Batch(
        inputs,
        rest,
        indices(of),
        rows=indices(rows),
        columns=indices(columns),
        targets=indices(targets),
        value_rows=indices(value_rows),
        value_columns=indices(value_columns),
        choice_tokens=indices(choice_tokens),
        choice_turns=indices(choice_turns),
        choices=padded_choices,
        support=padded_support,
    )


def _equal_prompts(sequences: Sequence[TokenSequence]) -> tuple[list[Prompt], list[int]]:
    """The different prompts but for their last tokens, and which of them each sequence has.

    Nothing, if reading them once saves less than the further pass over them costs, or earlier turns are scored as well.
    """
    prompts = {sequence.prompt.digest: sequence.prompt for sequence in sequences}
    if len(prompts) > WORTH_SHARING * len(sequences) or not all(map(_is_one_turn, sequences)):
        return [], []
    index_of = {digest: index for index, digest in enumerate(prompts)}
    # The last token is read again before each reply, whose first one it predicts.
    beginnings = [_part(prompt, slice(-1), prompt.per_picture) for prompt in prompts.values()]
    return beginnings, [index_of[sequence.prompt.digest] for sequence in sequences]


def _with_common_prefix(
    sequences: Sequence[TokenSequence], beginnings: list[Prompt], of: list[int]
) -> tuple[list[Prompt], list[int]]:
    """What all prompts begin with as the only beginning, if fewer tokens are read then; else those that are given."""
    if not sequences:
        return beginnings, of
    # Nothing that is scored, or predicts it, is read with the beginning.
    room = min(sequence.spans[0].start - 1 for sequence in sequences)
    prefix = min(room, common_prefix([sequence.prompt for sequence in sequences]))
    tokens = sum(sequence.length for sequence in sequences)
    read = tokens
    if of:
        lengths = [len(beginning.ids) for beginning in beginnings]
        read += sum(lengths) - sum(lengths[index] for index in of)
    if not is_worth_sharing(prefix, len(sequences), tokens, read):
        return beginnings, of
    return [_part(sequences[0].prompt, slice(prefix), {})], [0] * len(sequences)


def _is_one_turn(sequence: TokenSequence) -> bool:
    """Tell whether a sequence is a prompt and the reply to it."""
    return len(sequence.spans) == 1 and sequence.spans[0].start == len(sequence.prompt.ids) > 1


def _part(prompt: Prompt, which: slice, pictures: Mapping[str, torch.Tensor]) -> Prompt:
    """Some tokens of a prompt."""
    per_token = {name: tensor[which] for name, tensor in prompt.per_token.items()}
    return Prompt(prompt.ids[which], per_token, pictures)


def _stack_apart(
    sequences: Sequence[TokenSequence],
    beginnings: Sequence[Prompt],
    of: Sequence[int],
    pad: int,
    nested: frozenset[str],
) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """Model inputs of the shared beginnings, and of what follows them in each sequence: the rest of its prompt, and the
    reply."""
    rests = []
    rows = []
    for sequence, index in zip(sequences, of, strict=True):
        rest = _part(sequence.prompt, slice(len(beginnings[index].ids), None), {})
        rests.append(rest)
        # A reply's last token predicts nothing that is scored.
        rows.append(np.concatenate([rest.ids, sequence.reply[:-1]]))
    inputs = stack([beginning.ids for beginning in beginnings], beginnings, pad, "right", nested)
    return inputs, stack(rows, rests, pad, "right", nested)


class PolicyWithValueHead(nn.Module):
    """A language model with a value head: everything that is trained, in one module.

    Args:
        model: a Hugging Face model, possibly with adapters.
        banned: bool[V], true for tokens of probability 0.
        value_head: add a value head; without one, values are zeros.
        autocast: dtype of matrix products; None uses that of the weights.
    """

    banned: torch.Tensor

    def __init__(self, model: Any, banned: torch.Tensor, value_head: bool, autocast: torch.dtype | None = None) -> None:
        super().__init__()
        self.model = model
        self.value_head: ValueHead | None = None
        if value_head:
            self.value_head = ValueHead(int(model.get_output_embeddings().weight.shape[1]))
        self.autocast = autocast
        self.register_buffer("banned", banned, persistent=False)

    def forward(self, batch: Batch, temperature: float) -> TokenStats:
        """Score a batch at a sampling temperature; see `TokenStats`."""
        with self.arithmetic():
            raw, states = self._logits_and_states(batch)
        # The same temperature and the same banned tokens as in sampling, or the ratio of new to old probabilities
        # would differ from 1 before any update.
        logits = raw.float() / temperature
        del raw  # each is [T, V] in float32, and may be the largest tensor of all
        # Of the legal actions, banned or not; picked before the others are banned in place.
        choices: torch.Tensor | None = None
        if len(batch.choices):
            choices = _select(logits[batch.choice_tokens], batch.choices)
        logits.masked_fill_(self.banned, -torch.inf)
        # Sampled from a part of the vocabulary: the same part, or old and new probabilities would be of different
        # distributions.
        candidates = logits
        if batch.support.shape[1]:
            candidates = _select(logits, batch.support)
        target_logits = logits.gather(1, batch.targets[:, None])[:, 0]
        logprobs = target_logits - candidates.logsumexp(-1)
        # The entropy is a metric, not a loss, and its gradient would keep copies of [T, V] alive.
        with torch.no_grad():
            parts = [_entropy(part) for part in torch.split(logits, ENTROPY_ROWS)]
            entropy = torch.cat(parts) if parts else logits.new_zeros(0)
        if self.value_head is not None:
            values = self.value_head(states)
        else:
            values = torch.zeros(len(states), device=states.device)
        choice_entropy = logits.new_zeros(len(batch.value_rows))
        if choices is not None:
            # Entropy over the legal actions alone, with gradient: the exploration bonus of the policy loss.
            choice_entropy = choice_entropy.index_copy(0, batch.choice_turns, _entropy(choices))
        return TokenStats(logprobs, entropy, values, choice_entropy)

    @contextlib.contextmanager
    def arithmetic(self) -> Iterator[None]:
        """How the model computes: its autocast, and attention without cuDNN. Sampling has to use it too, to agree with
        scoring."""
        autocast: contextlib.AbstractContextManager[Any] = contextlib.nullcontext()
        if self.autocast is not None:
            autocast = torch.autocast(self.banned.device.type, self.autocast)
        with autocast, _without_cudnn_attention():
            yield

    def _logits_and_states(self, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        """Logits [T, V] of the scored tokens, and final hidden states [M, H] of the last token before each reply.

        Logits of a whole batch, [N, L, V], would be by far its largest tensor, and most positions are pictures and
        prompts. So a hook before the output layer picks the T rows that are scored.
        """
        states: list[torch.Tensor] = []

        def pick(_: nn.Module, arguments: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
            hidden, *rest = arguments
            states.append(hidden[batch.value_rows, batch.value_columns])
            return (hidden[batch.rows, batch.columns][None], *rest)

        inputs: dict[str, Any] = batch.inputs
        if batch.rest:
            inputs = self._after_beginnings(batch)
        with _pre_hook(self.model.get_output_embeddings(), pick):
            logits = self.model(**inputs, use_cache=bool(batch.rest)).logits[0]
        return logits, states[0]

    def _after_beginnings(self, batch: Batch) -> dict[str, Any]:
        """Read the shared beginnings, and return the model inputs of what follows them."""

        def nothing(_: nn.Module, arguments: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
            return (arguments[0][:, :0], *arguments[1:])  # no logits: nothing in a beginning is scored

        hook = _pre_hook(self.model.get_output_embeddings(), nothing)
        with hook, recorded_positions(self.model) as recorded:
            output = self.model(**batch.inputs, use_cache=True)
        # What follows attends to its beginning, but not to what pads it: 1 1 1 0 and 1 1 1 1 in the picture above.
        begun_mask = batch.inputs["attention_mask"]
        rest_mask = batch.rest["attention_mask"]
        mask = torch.cat([begun_mask[batch.of], rest_mask], 1)
        # Every position counts from the beginning's end, whatever it was padded with.
        first = positions_after(recorded, begun_mask)[batch.of]
        positions = first + torch.arange(rest_mask.shape[1], device=rest_mask.device)
        further = {"attention_mask": mask, "position_ids": positions}
        return batch.rest | further | cache_for_rows(self.model, output, batch.of)


class ValueHead(nn.Module):
    """Two-layer value head, [M, H] -> float32[M], initialised to output 0."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.hidden = nn.Linear(width, width)
        self.value = nn.Linear(width, 1)
        nn.init.zeros_(self.value.weight)
        nn.init.zeros_(self.value.bias)

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        values: torch.Tensor = self.value(torch.tanh(self.hidden(states.float())))
        return values[:, 0].clone()  # FSDP does not allow a module to return a view of its output


def _select(logits: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    """Logits [T, K] of ids int64[T, K]; those of padding, which is -1, are minus infinity."""
    return logits.gather(1, ids.clamp(min=0)).masked_fill(ids < 0, -torch.inf)


def _entropy(logits: torch.Tensor) -> torch.Tensor:
    """Entropy of each row in nats; logits of minus infinity are probabilities of 0."""
    log_probabilities = logits.log_softmax(-1)
    finite = log_probabilities.masked_fill(logits == -torch.inf, 0.0)
    return -(log_probabilities.exp() * finite).sum(-1)


@contextlib.contextmanager
def _without_cudnn_attention() -> Iterator[None]:
    """Within the context, torch does not choose cuDNN for attention.

    cuDNN plans its computation anew for each length, so for each token that is sampled: on an H200, a millisecond in
    each layer, which was half of all time. Torch's other kernels are as fast without.
    """
    cuda: Any = torch.backends.cuda  # not all of it has types
    usual = cuda.cudnn_sdp_enabled()
    cuda.enable_cudnn_sdp(False)
    try:
        yield
    finally:
        cuda.enable_cudnn_sdp(usual)


@contextlib.contextmanager
def _pre_hook(module: nn.Module, hook: Any) -> Iterator[None]:
    """Install a forward pre-hook, before all others, within the context."""
    handle = module.register_forward_pre_hook(hook, prepend=True)
    try:
        yield
    finally:
        handle.remove()
