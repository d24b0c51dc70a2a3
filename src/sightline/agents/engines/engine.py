"""Engine: what training needs of the processes it runs on; and the engine of a single process.

rank 0   rollouts --+           +-- forward/backward of its share --+
                    +-- gather -+                                    +-- sum gradients -- clip -- optimiser step
rank 1   rollouts --+           +-- forward/backward of its share --+
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Protocol, TypeVar

from sightline.agents.engines.optimisers import (
    OptimiserState,
    clipped_step,
    full_optimiser_state,
    load_full_optimiser_state,
)
from sightline.errors import RunFailed

if TYPE_CHECKING:
    import torch
    from torch import nn

    from sightline.models.vlm.model import VLM

T = TypeVar("T")


class Engine(Protocol):
    """One process of `world`, the one with number `rank`. All processes call the same methods in the same order.

    Weights are equal on all processes, replicated or sharded. Each process plays and scores its share of the episodes,
    and runs the backward passes of its share of an optimiser step. Gradients are summed over processes, not averaged:
    the loss is already divided by the number of turns of the whole step, so the sum is the gradient of one process.

    Attributes:
        rank, world: which process of how many.
        uniform_steps: all processes must run the same number of forward and backward passes, see
            `padded_microbatches`. A pass that fails on one of them leaves the others waiting, so it cannot be retried.
    """

    rank: int
    world: int
    uniform_steps: bool

    def prepare(self, vlm: VLM) -> None:
        """Replicate or shard the weights, those of process 0 on all; call it before an optimiser is built.

        Raises:
            BadInput: the model cannot be trained with this engine.
        """
        ...

    def full_params(self) -> AbstractContextManager[None]:
        """While entered, this process has a full model of plain tensors: it may generate, score without gradient, keep
        a reference, save and load, as often as it likes, whatever the others do.

        Changes must be the same on all processes; they stay after leaving.
        """
        ...

    def step(self, optimiser: torch.optim.Optimizer, max_norm: float) -> float:
        """Sum the gradients of all processes, clip their global norm, update the weights, clear the gradients.

        Returns:
            The norm before clipping. If it is not finite, the weights are left as they are.
        """
        ...

    def gather(self, local: T) -> list[T]:
        """Gather one object from every process, by rank."""
        ...

    def largest(self, number: int) -> int:
        """Maximum of a number over processes."""
        ...

    def optimiser_state(self, optimiser: torch.optim.Optimizer) -> OptimiserState:
        """Full optimiser state, the same for every engine, so that another engine can load it. Process 0 gets it, the
        others get an empty one. Not to be called within `full_params`."""
        ...

    def load_optimiser_state(self, optimiser: torch.optim.Optimizer, state: OptimiserState) -> None:
        """Load the state that `optimiser_state` gave to process 0; every process has to pass it. Not to be called
        within `full_params`.

        Raises:
            BadInput: the state belongs to another model.
        """
        ...

    def close(self) -> None:
        """Leave the process group."""
        ...


def padded_microbatches(engine: Engine, microbatches: Sequence[T], padding: T) -> list[tuple[T, bool]]:
    """Microbatches of this process in an optimiser step, each with whether it counts.

        rank 0   mb  mb  mb        uniform_steps: a collective runs in every layer of every pass,
        rank 1   mb  pad pad       so a process with less work takes part with padding

    Args:
        microbatches: this process's share; may be empty.
        padding: input of the passes that only keep up with the other processes; their scores take part in no loss.
    """
    passes = [(batch, True) for batch in microbatches]
    # Without collectives inside of a pass nobody waits, and a process with no work runs no pass at all.
    if engine.uniform_steps:
        passes += [(padding, False)] * (engine.largest(len(microbatches)) - len(microbatches))
    return passes


class _OneModel:
    """Base of all engines: what concerns the module that `prepare` was given, and its optimiser."""

    _module: nn.Module

    def step(self, optimiser: torch.optim.Optimizer, max_norm: float) -> float:
        """Clip and update, where gradients are summed already."""
        return clipped_step(optimiser, max_norm)

    def optimiser_state(self, optimiser: torch.optim.Optimizer) -> OptimiserState:
        return full_optimiser_state(self._module, optimiser)

    def load_optimiser_state(self, optimiser: torch.optim.Optimizer, state: OptimiserState) -> None:
        load_full_optimiser_state(self._module, optimiser, state)


class SingleProcess(_OneModel):
    """Engine of one process; see `Engine`."""

    rank = 0
    world = 1
    uniform_steps = False

    def prepare(self, vlm: VLM) -> None:
        # For the names of its parameters, by which the optimiser's state is saved.
        self._module = vlm.scorer

    def full_params(self) -> AbstractContextManager[None]:
        return contextlib.nullcontext()

    def gather(self, local: T) -> list[T]:
        return [local]

    def largest(self, number: int) -> int:
        return number

    def close(self) -> None:
        return None


class ProcessGroup(_OneModel):
    """Base of the engines on several processes: the group that torch.distributed has joined.

    Numbers and objects are exchanged on the CPU, so that nothing waits for a GPU, or on one.
    """

    def __init__(self) -> None:
        import torch.distributed as dist

        self.rank = dist.get_rank()
        self.world = dist.get_world_size()

    def gather(self, local: T) -> list[T]:
        """Gather one object from every process, by rank."""
        import torch.distributed as dist

        # As pickles: episodes are objects of any size, and every process sees those of all.
        gathered: list[T | None] = [None] * self.world
        with _lost_peer_reported():
            dist.all_gather_object(gathered, local)
        return gathered  # type: ignore[return-value]

    def largest(self, number: int) -> int:
        """Maximum of a number over processes."""
        import torch
        import torch.distributed as dist

        maximum = torch.tensor([number])  # on the CPU: gloo
        with _lost_peer_reported():
            dist.all_reduce(maximum, dist.ReduceOp.MAX)
        return int(maximum)

    def close(self) -> None:
        """Leave the process group; calling it again changes nothing."""
        import torch.distributed as dist

        if dist.is_initialized():
            dist.destroy_process_group()


@contextlib.contextmanager
def _lost_peer_reported() -> Iterator[None]:
    """Turn the backend's stack trace about a lost process into one line."""
    try:
        yield
    except RuntimeError as error:
        raise RunFailed("another process has ended before its time; see what it said") from error
