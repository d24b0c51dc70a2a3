"""Frames on their way to a device: as whole numbers, from pinned memory, while the device computes."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import torch

UNDER_WAY = 2
"""Batches of a call on a GPU at a time: one is computed while the next is prepared and copied. More would only fill its
memory."""


class Uploads:
    """Uploads of the batches of one call to one device. None but a GPU's copies anything.

    host    | prepare 1 | prepare 2 |    wait    | prepare 3 |
    copy                | 1 |       | 2 |                    | 3 |
    compute                 |          1         |     2     …
    """

    def __init__(self, device: torch.device) -> None:
        import torch

        self._device = device
        self._computed: deque[Any] = deque()
        self._copies: Any = None
        if device.type == "cuda":
            self._copies = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def upload(self, frames: Any) -> Any:
        """Frames uint8[N, H, W, 3] on the device, without a wait for their copy; arrays of numpy stay what they are
        where the device is not CUDA's."""
        import torch

        is_tensor = isinstance(frames, torch.Tensor)
        if self._copies is None:
            return frames.to(self._device) if is_tensor else frames
        pixels = frames if is_tensor else as_tensor(frames)
        if pixels.device.type != "cpu":
            return pixels.to(self._device)
        if len(self._computed) == UNDER_WAY:
            self._computed.popleft().synchronize()
        computing = torch.cuda.current_stream(self._device)
        with torch.cuda.stream(self._copies):
            # Torch gives pinned memory away again when the copy is over.
            uploaded = pixels.pin_memory().to(self._device, non_blocking=True)
        computing.wait_stream(self._copies)
        # Nor is this given away before it was computed with, though it belongs to the stream of the copies.
        uploaded.record_stream(computing)
        return uploaded

    def computed(self) -> None:
        """Note that all work on the batch has been handed to the device."""
        import torch

        if self._copies is not None:
            self._computed.append(torch.cuda.current_stream(self._device).record_event())


def as_tensor(frames: np.ndarray) -> torch.Tensor:
    """Frames as a tensor that shares their memory, unless they are read-only, of which torch would warn."""
    import torch

    return torch.from_numpy(np.require(frames, requirements=["C", "W"]))
