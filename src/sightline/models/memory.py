"""What to do when the memory of a device runs out."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import TypeVar

from sightline.errors import BadInput, RunFailed, warn

Result = TypeVar("Result")

SIGNS = ("out of memory", "ALLOC_FAILED", "can't allocate memory")
"""Words of torch's errors where memory runs out: its own, those of CUDA's libraries, and the host's."""


def ran_out_of_memory(error: Exception) -> bool:
    """Whether an exception of torch says that a device's memory does not suffice."""
    return any(sign in str(error) for sign in SIGNS)


def _reason(error: Exception) -> str:
    """An error of torch in one line, without its advice about settings."""
    return " ".join(str(error).split())[:160]


@contextlib.contextmanager
def room_on(device: str, model: str) -> Iterator[None]:
    """Context in which a model is put onto a device.

    Raises:
        BadInput: it does not fit.
    """
    try:
        yield
    except RuntimeError as error:
        if not ran_out_of_memory(error):
            raise
        raise BadInput(
            f"{model} does not fit into the memory of device={device} ({_reason(error)}); end what else uses it, take "
            "a smaller model, or another device, such as cpu"
        ) from error


class BatchSize:
    """Number of frames in a batch, which is halved once where memory runs out.

    Args:
        frames: the number to begin with.
        model: whose batches they are, as it is called in messages.
    """

    def __init__(self, frames: int, model: str) -> None:
        self.frames = frames
        self._model = model
        self._is_halved = False

    def fitting(self, compute: Callable[[int], Result]) -> Result:
        """What `compute` makes with this number of frames in a batch, or, if memory runs out, with half of it.

        Raises:
            RunFailed: memory runs out with half of it, too.
        """
        import torch

        while True:
            frames = self.frames
            try:
                return compute(frames)
            except RuntimeError as error:
                if not ran_out_of_memory(error):
                    raise
                self._halve(frames, error)
            # Outside of the exception, which holds on to what was computed.
            torch.cuda.empty_cache()

    def _halve(self, frames: int, error: Exception) -> None:
        if frames != self.frames:  # another thread has been here
            return
        if self._is_halved or frames == 1:
            raise RunFailed(
                f"{self._model} ran out of memory with batches of {frames} frames ({_reason(error)}); end what else "
                "uses the device, lower reward.batch_size, or take another device or a smaller model"
            ) from error
        self._is_halved = True
        self.frames = frames // 2
        warn(
            f"{self._model} ran out of memory with batches of {frames} frames ({_reason(error)}); it goes on with "
            f"{self.frames}"
        )
