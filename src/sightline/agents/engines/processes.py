"""What the processes of a group tell each other."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, TypeVar

from sightline.errors import RunFailed

if TYPE_CHECKING:
    from torch import nn

T = TypeVar("T")


class Processes:
    """The processes that torch.distributed has joined.

    Numbers and objects go by way of the CPU, so that nobody waits for a GPU, or with one.
    """

    def __init__(self) -> None:
        import torch.distributed as dist

        self.rank, self.world = dist.get_rank(), dist.get_world_size()

    def gather(self, mine: T) -> list[T]:
        """What every process has, by rank."""
        import torch.distributed as dist

        everyones: list[T | None] = [None] * self.world
        with _in_company():
            dist.all_gather_object(everyones, mine)
        return everyones  # type: ignore[return-value]

    def largest(self, number: int) -> int:
        """The largest of the processes' numbers."""
        import torch
        import torch.distributed as dist

        known = torch.tensor([number])
        with _in_company():
            dist.all_reduce(known, dist.ReduceOp.MAX)
        return int(known)

    def close(self) -> None:
        """Leave the group; calling it again changes nothing."""
        import torch.distributed as dist

        if dist.is_initialized():
            dist.destroy_process_group()


@contextlib.contextmanager
def _in_company() -> Iterator[None]:
    """Say in one line that the others are gone."""
    try:
        yield
    except RuntimeError as error:
        raise RunFailed("another process has ended before its time; see what it said") from error


def share_weights(module: nn.Module) -> None:
    """Give all processes the weights and buffers of process 0, bit for bit."""
    import torch
    import torch.distributed as dist

    with torch.no_grad():
        for tensor in (*module.parameters(), *module.buffers()):
            sent = tensor.detach().contiguous()
            if sent.numel():
                dist.broadcast(sent.reshape(-1).view(torch.uint8), src=0)  # as bytes: backends do not know all types
                if sent.data_ptr() != tensor.data_ptr():
                    tensor.copy_(sent)
