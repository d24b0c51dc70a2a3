"""Probabilities of what was replied, and values of what was shown, in one forward pass."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils import _pytree

from sightline.models.vlm.batches import stack
from sightline.models.vlm.types import TokenSequence, TokenStats

ENTROPY_ROWS = 1024
"""Tokens whose entropies are computed at once: it needs no gradient, so it need not take much memory either."""

# FSDP looks for the tensors of an output, to come back to its module in the backward pass
_pytree.register_dataclass(TokenStats, field_names=[field.name for field in fields(TokenStats)])


@dataclass(frozen=True, eq=False)
class Batch:
    """Some passages, ready to be read; T tokens, M turns, C of them with a choice among K at most.

    Attributes:
        inputs: what the model is called with; passages are filled up on the right.
        rows, columns: int64[T], where the logits of each token to be scored are.
        targets: int64[T], these tokens.
        value_rows, value_columns: int64[M], the last token before each turn.
        choice_tokens: int64[C], which of the T tokens decides.
        choice_turns: int64[C], of which of the M turns.
        choices: int64[C, K], what it could have been; -1 for nothing.
    """

    inputs: dict[str, torch.Tensor]
    rows: torch.Tensor
    columns: torch.Tensor
    targets: torch.Tensor
    value_rows: torch.Tensor
    value_columns: torch.Tensor
    choice_tokens: torch.Tensor
    choice_turns: torch.Tensor
    choices: torch.Tensor

    def to(self, device: torch.device, floats: torch.dtype) -> Batch:
        """The same on a device, with pictures as floats of a type."""
        inputs = {
            name: tensor.to(device, dtype=floats if tensor.is_floating_point() else None, non_blocking=True)
            for name, tensor in self.inputs.items()
        }
        others = {field.name: getattr(self, field.name).to(device) for field in fields(self) if field.name != "inputs"}
        return Batch(inputs, **others)


def collate(passages: Sequence[TokenSequence], pad: int, nested: frozenset[str] = frozenset()) -> Batch:
    """Passages side by side, on the CPU.

    Args:
        pad: id to fill up with.
        nested: see `batches.stack`.
    """
    rows: list[int] = []
    columns: list[int] = []
    targets: list[int] = []
    value_rows: list[int] = []
    value_columns: list[int] = []
    choice_tokens: list[int] = []
    choice_turns: list[int] = []
    choices: list[torch.Tensor] = []
    whole = [np.concatenate([passage.prompt.ids, passage.reply]).astype(np.int64) for passage in passages]
    for row, (passage, ids) in enumerate(zip(passages, whole, strict=True)):
        for span in passage.spans:
            if span.choice is not None and len(set(span.choices)) > 1:
                choice_tokens.append(len(targets) + span.choice - span.start)
                choice_turns.append(len(value_rows))
                choices.append(torch.tensor(sorted(set(span.choices))))
            value_rows.append(row)
            value_columns.append(span.start - 1)
            rows += [row] * (span.end - span.start)
            columns += range(span.start - 1, span.end - 1)
            targets += ids[span.start : span.end].tolist()
    listed = nn.utils.rnn.pad_sequence(choices, True, -1) if choices else torch.zeros((0, 1), dtype=torch.int64)
    inputs = stack(whole, [passage.prompt for passage in passages], pad, "right", nested)

    def numbers(listed: list[int]) -> torch.Tensor:
        return torch.tensor(listed, dtype=torch.int64)

    return Batch(
        inputs,
        rows=numbers(rows),
        columns=numbers(columns),
        targets=numbers(targets),
        value_rows=numbers(value_rows),
        value_columns=numbers(value_columns),
        choice_tokens=numbers(choice_tokens),
        choice_turns=numbers(choice_turns),
        choices=listed,
    )


class PolicyWithValueHead(nn.Module):
    """A model, and what reads a value off it: all that is trained, in one module.

    Args:
        model: of Hugging Face, possibly with adapters.
        banned: bool[V], tokens without probability.
        value_head: a value for each turn; zeros without.
        autocast: arithmetic of matrix products; None: that of the weights.
    """

    banned: torch.Tensor

    def __init__(self, model: Any, banned: torch.Tensor, value_head: bool, autocast: torch.dtype | None = None) -> None:
        super().__init__()
        self.model = model
        self.value_head = ValueHead(int(model.get_output_embeddings().weight.shape[1])) if value_head else None
        self.autocast = autocast
        self.register_buffer("banned", banned, persistent=False)

    def forward(self, batch: Batch, temperature: float) -> TokenStats:
        with self.arithmetic():
            raw, states = self._read(batch)
        scaled = raw.float() / temperature
        logits = scaled.masked_fill(self.banned, -torch.inf)
        logprobs = logits.gather(1, batch.targets[:, None])[:, 0] - logits.logsumexp(-1)
        choice_entropy = raw.new_zeros(len(batch.value_rows), dtype=torch.float32)
        if len(batch.choices):
            among = scaled[batch.choice_tokens].gather(1, batch.choices.clamp(min=0))
            entropies = _entropy(among.masked_fill(batch.choices < 0, -torch.inf))
            choice_entropy = choice_entropy.index_copy(0, batch.choice_turns, entropies)
        return TokenStats(logprobs, self._entropies(logits), self._values(states), choice_entropy)

    def arithmetic(self) -> contextlib.AbstractContextManager[Any]:
        """In which the model has to be called, also for sampling."""
        if self.autocast is None:
            return contextlib.nullcontext()
        return torch.autocast(self.banned.device.type, self.autocast)

    def _read(self, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        """Logits [T, V] of what is scored, and final hidden states [M, H] before each turn.

        Only these rows ever get logits: the output layer is given no others. Pictures and prompts, most of what is
        read, cost nothing there, and a batch of unequal prompts no more than its tokens.
        """
        states: list[torch.Tensor] = []

        def pick(_: nn.Module, arguments: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
            hidden, *rest = arguments
            states.append(hidden[batch.value_rows, batch.value_columns])
            return (hidden[batch.rows, batch.columns][None], *rest)

        with _before(self.model.get_output_embeddings(), pick):
            logits = self.model(**batch.inputs, use_cache=False).logits[0]
        return logits, states[0]

    @torch.no_grad()
    def _entropies(self, logits: torch.Tensor) -> torch.Tensor:
        parts = [_entropy(some) for some in torch.split(logits, ENTROPY_ROWS)]
        return torch.cat(parts) if parts else logits.new_zeros(0)

    def _values(self, states: torch.Tensor) -> torch.Tensor:
        if self.value_head is None:
            return torch.zeros(len(states), device=states.device)
        values: torch.Tensor = self.value_head(states)
        return values


class ValueHead(nn.Module):
    """A small network that says 0 before it has learned: [M, H] -> float32[M]."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.hidden, self.value = nn.Linear(width, width), nn.Linear(width, 1)
        nn.init.zeros_(self.value.weight)
        nn.init.zeros_(self.value.bias)

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        values: torch.Tensor = self.value(torch.tanh(self.hidden(states.float())))
        return values[:, 0].clone()  # FSDP wants no view of what it has made


def _entropy(logits: torch.Tensor) -> torch.Tensor:
    """Of each row, in nats; minus infinity is a probability of 0."""
    log_probabilities = logits.log_softmax(-1)
    finite = log_probabilities.masked_fill(logits == -torch.inf, 0.0)
    return -(log_probabilities.exp() * finite).sum(-1)


@contextlib.contextmanager
def _before(module: nn.Module, hook: Any) -> Iterator[None]:
    handle = module.register_forward_pre_hook(hook, prepend=True)
    try:
        yield
    finally:
        handle.remove()
