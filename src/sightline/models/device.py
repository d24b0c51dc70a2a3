"""Where tensors live."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sightline.errors import BadInput

if TYPE_CHECKING:
    import torch


def choose_device(name: str) -> torch.device:
    """A torch device by name; `auto` is the first of CUDA, MPS and CPU that is there.

    Raises:
        BadInput: there is no such device on this machine.
    """
    import torch

    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
    try:
        place = torch.device(name)
        torch.empty(0, device=place)
    except (RuntimeError, AssertionError) as error:
        raise BadInput(f"device '{name}' is not available here; use device=auto or device=cpu") from error
    return place
