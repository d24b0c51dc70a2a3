"""From turns to what the model reads in a forward pass, and how an update is divided into steps, shares and passes.

Where the next prompt begins with the prompt and the reply before it, token by token and picture by picture, both turns
are scored in one pass over the longer text: the same conditionals for half the work. Where it does not, for example
because the window dropped an old turn, a new passage begins. Either way each sampled token is scored exactly once,
given exactly what it was sampled given.
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
    """What is to be learned of one turn.

    Attributes:
        span: of its n tokens within the lesson's passage.
        logprobs: float32[n], as they were sampled.
        action: bool[n], which tokens make up the action; all others count as thoughts. None does if no action was
            read; such a reply is all thoughts.
        advantage: how much better the turn was than expected.
        target: what the value before the turn should have been; None for algorithms without values.
        value: what it was when the turn was played.
        credited: False if something else than the reply decided what was played: nothing is learned from the advantage
            then, while the value and the distance to the model before RL are those of any turn.
        reference: float32[n], log-probabilities under the model before RL; None if nobody asked.
    """

    span: TurnSpan
    logprobs: np.ndarray
    action: np.ndarray
    advantage: float
    target: float | None
    value: float
    credited: bool
    reference: np.ndarray | None = None


@dataclass(frozen=True, eq=False)
class TrainingSequence:
    """A passage and what is to be learned from it: one turn for each span of the passage, in the same order."""

    passage: TokenSequence
    turns: tuple[SequenceTurn, ...]

    @property
    def length(self) -> int:
        """Tokens of the passage."""
        return len(self.passage.prompt.ids) + len(self.passage.reply)


def build_sequences(trajectories: Iterable[Trajectory], credits: Iterable[Advantages | None]) -> list[TrainingSequence]:
    """What can be learned from trajectories, in their order.

    Left out are trajectories without credit, turns that another sampler replied to (no prompt), and replies of no
    tokens.

    Args:
        credits: one for each trajectory, with one advantage for each of its turns.
    """
    found: list[TrainingSequence] = []
    for trajectory, credit in zip(trajectories, credits, strict=True):
        if credit is not None:
            found += [_lesson(trajectory, credit, chain) for chain in _chains(trajectory.turns)]
    return found


def is_learned_from(turn: Turn) -> bool:
    """Whether a turn has tokens of the model that learns: a prompt, and a reply of at least one token."""
    return turn.prompt is not None and len(turn.sample.ids) > 0


def _chains(turns: Sequence[Turn]) -> list[list[int]]:
    """Indices of the turns that share a passage, for each passage."""
    chains: list[list[int]] = []
    for i, turn in enumerate(turns):
        if not is_learned_from(turn):
            continue
        assert turn.prompt is not None
        if chains and _extends(turn.prompt, turns[chains[-1][-1]]):
            chains[-1].append(i)
        else:
            chains.append([i])
    return chains


def _extends(prompt: Prompt, earlier: Turn) -> bool:
    """Whether a prompt begins with an earlier turn's prompt and reply, whatever follows, and shows its pictures
    first."""
    before = earlier.prompt
    if before is None:
        return False
    ids = np.concatenate([before.ids, earlier.sample.ids])
    return (
        np.array_equal(prompt.ids[: len(ids)], ids)
        and prompt.per_token.keys() == before.per_token.keys()
        and before.per_picture.keys() <= prompt.per_picture.keys()
        and all(_begins(prompt.per_token[name], part) for name, part in before.per_token.items())
        and all(_begins(prompt.per_picture[name], part) for name, part in before.per_picture.items())
    )


def _begins(whole: torch.Tensor, part: torch.Tensor) -> bool:
    """Whether the first rows of a tensor are those of another."""
    import torch

    return whole.dtype == part.dtype and torch.equal(whole[: len(part)], part)


def _lesson(trajectory: Trajectory, credit: Advantages, chain: list[int]) -> TrainingSequence:
    turns = tuple(_lesson_turn(trajectory.turns[i], credit, i) for i in chain)
    last = trajectory.turns[chain[-1]]
    assert last.prompt is not None
    passage = TokenSequence(last.prompt, np.asarray(last.sample.ids), tuple(turn.span for turn in turns))
    return TrainingSequence(passage, turns)


def _lesson_turn(turn: Turn, credit: Advantages, index: int) -> SequenceTurn:
    assert turn.prompt is not None
    start = len(turn.prompt.ids)
    choice = None if turn.choice is None else start + turn.choice
    return SequenceTurn(
        TurnSpan(start, start + len(turn.sample.ids), choice, turn.choices),
        np.asarray(turn.sample.logprobs, np.float32),
        np.asarray(turn.action_tokens, bool),
        float(credit.advantages[index]),
        None if credit.returns is None else float(credit.returns[index]),
        turn.value,
        turn.credited,
        turn.reference,
    )


def turns_in(build_sequences: Iterable[TrainingSequence]) -> int:
    """How many turns lessons hold."""
    return sum(len(lesson.turns) for lesson in build_sequences)


def minibatches(
    build_sequences: Sequence[TrainingSequence], turns_per_step: int, seed: int, update: int, epoch: int
) -> list[list[TrainingSequence]]:
    """The lessons of each optimiser step of an epoch, over all processes.

    All steps have about the same number of turns, so that none learns from a small rest: as many steps as are needed
    for none to exceed `turns_per_step`, but for lessons of several turns, which are never torn apart. Equal seed,
    update and epoch give equal steps.
    """
    total = turns_in(build_sequences)
    steps: list[list[TrainingSequence]] = [[] for _ in range(-(-total // turns_per_step))]
    before = 0
    for i in np.random.default_rng([seed, update, epoch]).permutation(len(build_sequences)):
        lesson = build_sequences[i]
        middle = before + len(lesson.turns) / 2
        steps[int(middle * len(steps) / total)].append(lesson)
        before += len(lesson.turns)
    return [step for step in steps if step]


def share(build_sequences: Sequence[TrainingSequence], rank: int, world: int) -> list[TrainingSequence]:
    """What one of `world` processes does of a step. It may be nothing; gradients must be added up all the same."""
    return list(build_sequences[rank::world])


def micro_batches(build_sequences: Sequence[TrainingSequence], turns: int) -> list[list[TrainingSequence]]:
    """The lessons of each forward pass: at most so many turns, except for a single lesson that has more.

    Lessons of similar length go together, so that little is padded.
    """
    passes: list[list[TrainingSequence]] = []
    for lesson in sorted(build_sequences, key=lambda lesson: lesson.length):
        if passes and turns_in(passes[-1]) + len(lesson.turns) <= turns:
            passes[-1].append(lesson)
        else:
            passes.append([lesson])
    return passes


def targets_of(build_sequences: Sequence[TrainingSequence], device: str | torch.device = "cpu") -> Targets:
    """What the scores of these lessons' passages are compared with, in the same order of tokens and turns."""
    import torch

    from sightline.agents.losses import Targets

    turns = [turn for lesson in build_sequences for turn in lesson.turns]
    lengths = [len(turn.logprobs) for turn in turns]

    def tensor(values: Any, dtype: torch.dtype) -> torch.Tensor:
        return torch.as_tensor(np.asarray(values), dtype=dtype).to(device)

    goals = [turn.target for turn in turns if turn.target is not None]
    if goals and len(goals) < len(turns):
        raise ValueError("some of the turns have a target for their value and some have none")
    return Targets(
        old_logprobs=tensor(np.concatenate([np.zeros(0), *(turn.logprobs for turn in turns)]), torch.float32),
        action=tensor(np.concatenate([np.zeros(0, bool), *(turn.action for turn in turns)]), torch.bool),
        turn_of=tensor(np.repeat(np.arange(len(turns)), lengths), torch.int64),
        advantages=tensor([turn.advantage for turn in turns], torch.float32),
        returns=tensor(goals, torch.float32) if goals else None,
        old_values=tensor([turn.value for turn in turns], torch.float32),
        credited=tensor([turn.credited for turn in turns], torch.bool),
        choosing=tensor([turn.span.choice is not None for turn in turns], torch.bool),
    )
