"""Training sequences: turns laid out in token sequences, and their division into optimiser steps and microbatches.

Where the next prompt begins with the prompt and the reply before it, token by token and picture by picture, both turns
are trained in one forward pass over the longer sequence: the shared prefix is computed once. An episode of three turns
with a window of three:

    prompt 1   rules img1                                -> reply 1
    prompt 2   rules img1 reply1 img2                    -> reply 2
    prompt 3   rules img1 reply1 img2 reply2 img3        -> reply 3

    sequence   rules img1 | a a a A | img2 | b b B | img3 | c c c C |      prompt 3 and reply 3
    loss mask    .    .     1 1 1 1    .     1 1 1    .     1 1 1 1        sampled tokens only
    action       .    .     . . . 1    .     . . 1    .     . . . 1        weight 1, others `thought_weight`
    turn         .    .     0 0 0 0    .     1 1 1    .     2 2 2 2        which advantage, which value
    value             ^                ^              ^                    read at the last token before a reply

Causal attention makes this exact: a token's log-probability depends on the tokens before it only, and those are the
ones that it was sampled after. Where a prompt does not extend the one before, for example because the window dropped an
old turn, a new sequence begins. Either way each sampled token is trained exactly once.

The loss mask (completion mask, labels of -100 elsewhere) is no tensor here: `TurnSpan` says which tokens of a sequence
were sampled, `VLM.score` returns the log-probabilities of these alone, and all that it returns is in the loss. Weights
within a reply, and turns that do not count in the policy loss: `losses._clipped_surrogate`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from sightline.agents.types import Advantages, Trajectory, Turn
from sightline.models.vlm.types import Prompt, TokenSequence, TurnSpan

if TYPE_CHECKING:
    import torch

    from sightline.agents.losses import Targets


@dataclass(frozen=True, eq=False)
class SequenceTurn:
    """One turn of a training sequence.

    Attributes:
        turn: the turn; its log-probabilities, action tokens, value and reference log-probabilities are trained on.
        span: its sampled tokens within the sequence.
        advantage: of the turn.
        value_target: target of the value before the reply; None for algorithms without a critic.
    """

    turn: Turn
    span: TurnSpan
    advantage: float
    value_target: float | None


@dataclass(frozen=True, eq=False)
class TrainingSequence:
    """A token sequence and its turns: one for each span, in the same order."""

    tokens: TokenSequence
    turns: tuple[SequenceTurn, ...]


def build_sequences(
    trajectories: Iterable[Trajectory], advantages: Iterable[Advantages | None] | None = None
) -> list[TrainingSequence]:
    """Build the training sequences of trajectories, in their order.

    Left out are trajectories without advantages, turns of another sampler than the policy (no prompt), and replies of
    no tokens.

    Args:
        advantages: of each trajectory; None builds sequences to be scored only: all trajectories, with advantages 0.
    """
    trajectories = list(trajectories)
    if advantages is None:
        # Values and reference log-probs are needed before advantages exist.
        advantages = [Advantages(np.zeros(len(trajectory.turns))) for trajectory in trajectories]
    sequences: list[TrainingSequence] = []
    for trajectory, episode_advantages in zip(trajectories, advantages, strict=True):
        if episode_advantages is None:
            continue
        for chain in _chains(trajectory.turns):
            turns = tuple(_sequence_turn(trajectory.turns[i], episode_advantages, i) for i in chain)
            spans = tuple(turn.span for turn in turns)
            # The last prompt contains all earlier prompts and replies of the chain.
            last = turns[-1].turn
            assert last.prompt is not None
            tokens = TokenSequence(last.prompt, np.asarray(last.sample.ids), spans)
            sequences.append(TrainingSequence(tokens, turns))
    return sequences


def _sequence_turn(turn: Turn, advantages: Advantages, index: int) -> SequenceTurn:
    assert turn.prompt is not None
    # A reply begins where its prompt ends, in the merged sequence as well: that begins with this prompt.
    start = len(turn.prompt.ids)
    end = start + len(turn.sample.ids)
    # Counted from the beginning of the sequence instead of the reply's.
    choice = None if turn.choice is None else start + turn.choice
    span = TurnSpan(start, end, choice, turn.choices, turn.sample.support)
    value_target = None if advantages.returns is None else float(advantages.returns[index])
    return SequenceTurn(turn, span, float(advantages.advantages[index]), value_target)


def _chains(turns: Sequence[Turn]) -> list[list[int]]:
    """Indices of the turns of each sequence: turns whose prompts extend each other."""
    chains: list[list[int]] = []
    for i, turn in enumerate(turns):
        if turn.prompt is None or not len(turn.sample.ids):
            continue  # no tokens of the policy
        if chains and _extends(turn.prompt, turns[chains[-1][-1]]):
            chains[-1].append(i)
        else:
            chains.append([i])
    return chains


def _extends(prompt: Prompt, earlier: Turn) -> bool:
    """Tell whether a prompt begins with an earlier turn's prompt, pictures and reply, whatever follows."""
    before = earlier.prompt
    if before is None:
        return False
    prefix = np.concatenate([before.ids, earlier.sample.ids])
    if not np.array_equal(prompt.ids[: len(prefix)], prefix):
        return False
    # Ids alone are not enough: all pictures have the same placeholder tokens.
    if prompt.per_token.keys() != before.per_token.keys() or not before.per_picture.keys() <= prompt.per_picture.keys():
        return False
    return all(_starts_with(prompt.per_token[name], part) for name, part in before.per_token.items()) and all(
        _starts_with(prompt.per_picture[name], part) for name, part in before.per_picture.items()
    )


def _starts_with(tensor: torch.Tensor, prefix: torch.Tensor) -> bool:
    """Tell whether the first rows of a tensor equal another tensor."""
    import torch

    return tensor.dtype == prefix.dtype and torch.equal(tensor[: len(prefix)], prefix)


def count_turns(sequences: Iterable[TrainingSequence]) -> int:
    """Count the turns of sequences: the unit of batch sizes and of the loss."""
    return sum(len(sequence.turns) for sequence in sequences)


def minibatches(turns: Sequence[int], turns_per_step: int, seed: int, update: int, epoch: int) -> list[list[int]]:
    """Shuffle the sequences of an epoch and divide them into optimiser steps, over all processes.

    All steps have about the same number of turns, so that none trains on a small rest: as many steps as are needed for
    none to exceed `turns_per_step`, except that a sequence of several turns is never split. Equal seed, update and
    epoch give equal steps.

    Args:
        turns: number of turns of each sequence.

    Returns:
        The indices of each step's sequences.
    """
    total = sum(turns)
    count = -(-total // turns_per_step)  # rounded up
    steps: list[list[int]] = [[] for _ in range(count)]
    order = np.random.default_rng([seed, update, epoch]).permutation(len(turns))
    before = 0
    for i in order.tolist():
        # All turns in a row, cut into equal steps: a sequence goes to the step that its middle falls into.
        middle = before + turns[i] / 2
        steps[int(middle * count / total)].append(i)
        before += turns[i]
    # Where sequences are longer than a step, no middle may fall into one.
    return [step for step in steps if step]


def microbatches(sequences: Sequence[TrainingSequence], max_turns: int) -> list[list[TrainingSequence]]:
    """Divide sequences into forward passes of at most `max_turns` turns, except for a single sequence that has more.

    Sequences of similar length go together, to waste little on padding, and replies to the same prompt, which is read
    once. The loss is divided by the turns of the whole step, so this division changes no gradient.
    """
    batches: list[list[TrainingSequence]] = []

    def sort_key(sequence: TrainingSequence) -> tuple[int, bytes, int]:
        prompt = sequence.tokens.prompt
        return len(prompt.ids), prompt.digest, len(sequence.tokens.reply)

    for sequence in sorted(sequences, key=sort_key):
        if batches and count_turns(batches[-1]) + len(sequence.turns) <= max_turns:
            batches[-1].append(sequence)
        else:
            batches.append([sequence])
    return batches


def build_targets(sequences: Sequence[TrainingSequence], device: str | torch.device = "cpu") -> Targets:
    """Build the loss's targets of a microbatch, in the order of its tokens and turns."""
    import torch

    from sightline.agents.losses import Targets

    turns: list[SequenceTurn] = []
    for sequence in sequences:
        turns += sequence.turns
    returns = [turn.value_target for turn in turns if turn.value_target is not None]
    if returns and len(returns) < len(turns):
        raise ValueError("some of the turns have a target for their value and some have none")
    # Flat over tokens, without padding: turns of all sequences one after the other, as `VLM.score` returns them.
    #
    #     turn      0             1         2
    #     old       a a a A       b b B     c c c C        float32[T]
    #     turn_of   0 0 0 0       1 1 1     2 2 2 2        int64[T]
    lengths = [len(turn.turn.sample.ids) for turn in turns]
    # An array without elements comes first, since nothing cannot be concatenated.
    sampler_logprobs: list[np.ndarray] = [np.zeros(0)]
    old_logprobs: list[np.ndarray] = [np.zeros(0)]
    action: list[np.ndarray] = [np.zeros(0, bool)]
    for turn in turns:
        by_sampler = np.asarray(turn.turn.sample.logprobs, np.float32)
        by_learner = turn.turn.old_logprobs
        sampler_logprobs.append(by_sampler)
        # Without those of the learner, the sampler's are the same but for rounding.
        old_logprobs.append(by_sampler if by_learner is None else by_learner)
        action.append(np.asarray(turn.turn.action_tokens, bool))

    def tensor(values: Any, dtype: torch.dtype) -> torch.Tensor:
        return torch.as_tensor(np.asarray(values), dtype=dtype).to(device)

    return Targets(
        old_logprobs=tensor(np.concatenate(old_logprobs), torch.float32),
        sampler_logprobs=tensor(np.concatenate(sampler_logprobs), torch.float32),
        action=tensor(np.concatenate(action), torch.bool),
        turn_of=tensor(np.repeat(np.arange(len(turns)), lengths), torch.int64),
        advantages=tensor([turn.advantage for turn in turns], torch.float32),
        returns=tensor(returns, torch.float32) if returns else None,
        old_values=tensor([turn.turn.value for turn in turns], torch.float32),
        on_policy=tensor([turn.turn.on_policy for turn in turns], torch.bool),
        has_choice=tensor([turn.span.choice is not None for turn in turns], torch.bool),
    )
