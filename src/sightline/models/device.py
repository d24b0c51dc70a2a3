"""Devices and dtypes of tensors."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from sightline.errors import BadInput

if TYPE_CHECKING:
    import torch


def available_cores() -> int:
    """Number of cores that this process may use."""
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity is not None else os.cpu_count() or 1


def choose_device(name: str) -> torch.device:
    """Choose a torch device by name; `auto` is the first available of CUDA, MPS and CPU.

    Raises:
        BadInput: the device is not available on this machine.
    """
    import torch

    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
    try:
        # CUDA devices can be named where there are none; allocating on one is the test.
        place = torch.device(name)
        torch.empty(0, device=place)
    except (AssertionError, RuntimeError, TypeError) as error:
        raise BadInput(f"device '{name}' is not available here; use device=auto or device=cpu") from error
    return place


def fast_dtype(device: torch.device) -> torch.dtype:
    """Fastest safe dtype of a device: bfloat16 if the hardware supports it (float32's range, 8 bits of precision)."""
    import torch

    if device.type == "cuda":
        return torch.bfloat16 if torch.cuda.is_bf16_supported() else torch.float32
    cpu = torch.cpu.get_capabilities() if device.type == "cpu" else {}
    return torch.bfloat16 if cpu.get("avx512_bf16") or cpu.get("amx_bf16") else torch.float32
