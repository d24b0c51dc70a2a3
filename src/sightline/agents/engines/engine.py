"""What learning needs of the processes that it runs on."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Protocol, TypeVar

from sightline.agents.engines.optimisers import OptimiserState

if TYPE_CHECKING:
    import torch

    from sightline.models.vlm.model import VLM

T = TypeVar("T")


class Engine(Protocol):
    """One process among `world`, which is number `rank`. All of them call the same methods in the same order.

    Weights are equal on all processes, whole or in shards. Each process plays and scores its share of the episodes, and
    makes the backward passes of its share of a step. The gradients of all are added up, not averaged: the result is
    that of one process.

    Attributes:
        rank, world: which process of how many.
        lockstep: whether all processes must make equally many forward and backward passes, see `passes`. Then a pass
            that breaks off on one of them leaves the others waiting, so it cannot be tried again.
    """

    rank: int
    world: int
    lockstep: bool

    def prepare(self, vlm: VLM) -> None:
        """Bring the weights into the form in which they learn, those of process 0 on all; before an optimiser is made
        of them.

        Raises:
            BadInput: the model cannot learn in this way.
        """
        ...

    def whole(self) -> AbstractContextManager[None]:
        """While entered, this process has a whole model of plain tensors: it may generate, score without gradient, keep
        a reference, save and load, as often as it likes, whatever the others do.

        What is changed must be changed alike on all processes; it stays after leaving.
        """
        ...

    def step(self, optimiser: torch.optim.Optimizer, max_norm: float) -> float:
        """Add up the gradients of all processes, clip their common norm, change the weights, forget the gradients.

        Returns:
            The norm before clipping. If it is not finite, the weights are left as they are.
        """
        ...

    def gather(self, mine: T) -> list[T]:
        """What every process has, by rank."""
        ...

    def largest(self, number: int) -> int:
        """The largest of the processes' numbers."""
        ...

    def optimiser_state(self, optimiser: torch.optim.Optimizer) -> OptimiserState:
        """The whole state of an optimiser, whatever the engine: one engine's state can be loaded by another. Process 0
        gets it, the others get nothing. Not to be called within `whole`."""
        ...

    def load_optimiser_state(self, optimiser: torch.optim.Optimizer, state: OptimiserState) -> None:
        """Take over what `optimiser_state` gave to process 0; every process has to bring it. Not to be called within
        `whole`.

        Raises:
            BadInput: it is that of another model.
        """
        ...

    def close(self) -> None:
        """Leave the group of processes."""
        ...


def passes(engine: Engine, mine: Sequence[T], spare: T) -> list[tuple[T, bool]]:
    """The forward passes that this process makes of a step, and whether each counts.

    Args:
        mine: its share; may be empty.
        spare: what it reads where others have more to do and wait for it; the loss of that is to be taken times zero.
    """
    count = engine.largest(len(mine)) if engine.lockstep else len(mine)
    return [(few, True) for few in mine] + [(spare, False)] * (count - len(mine))
