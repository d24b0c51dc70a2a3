"""What a process has for tensors: cores, devices, dtypes, and the random number generators."""

from __future__ import annotations

import contextlib
import os
import random
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from sightline.errors import BadInput

if TYPE_CHECKING:
    import torch


def available_cores() -> int:
    """Number of cores that this process may use."""
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity is not None else os.cpu_count() or 1


@contextlib.contextmanager
def random_states_kept() -> Iterator[None]:
    """Restore the states of the process's random number generators at the end.

    Stable-Baselines3 seeds all of them whenever it builds a learner; what is drawn afterwards must not begin again.
    """
    import torch

    python, numpy, of_torch = random.getstate(), np.random.get_state(), torch.get_rng_state()
    of_cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)
        torch.set_rng_state(of_torch)
        if of_cuda:
            torch.cuda.set_rng_state_all(of_cuda)


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
