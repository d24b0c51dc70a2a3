"""What a process has for tensors: cores, devices, dtypes, and the random number generators."""

from __future__ import annotations

import contextlib
import itertools
import os
import random
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from sightline.errors import BadInput

if TYPE_CHECKING:
    import torch


def available_cores() -> int:
    """Number of cores that this process may use."""
    affinity = getattr(os, "sched_getaffinity", None)  # not on macOS and Windows
    if affinity is not None:
        return len(affinity(0))
    return os.cpu_count() or 1


CGROUPS = (
    ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
    ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"),
)
"""Files of a container's limit and use of memory, by versions 2 and 1 of Linux' control groups."""


SHARE = 0.9
"""Share of the free memory that may be filled with what is known beforehand."""


def memory_for_use() -> float:
    """Bytes of memory that may be filled with what is known beforehand; the rest is for everything else."""
    return SHARE * available_memory()


def check_room(needed: float, what: str, advice: str) -> None:
    """Refuse what does not fit into memory, before it is made: some systems promise more than they have, and end the
    process once it is used.

    Args:
        needed: bytes.
        what: what is to be made.
        advice: what to do about it.

    Raises:
        BadInput: it does not fit.
    """
    if needed > memory_for_use():
        raise BadInput(
            f"{what} would take {readable_size(needed)}, and {readable_size(available_memory())} of memory are left "
            f"here: {advice}"
        )


LEARNED_COPIES = 4
"""Numbers in memory for each weight that is learned: itself, its gradient, and the two moments of Adam."""


def check_layers(widths: Sequence[int], networks: int, key: str) -> None:
    """Refuse networks that cannot be learned in this machine's memory.

    Args:
        widths: of the input and of all layers.
        networks: number of networks of these widths.
        key: the recipe's key that states the layers.

    Raises:
        BadInput: they do not fit.
    """
    weights = networks * weights_of_layers(widths)
    check_room(
        4.0 * LEARNED_COPIES * weights, f"learning {weights:,} weights ({key}={list(widths[1:])})", f"lower {key}"
    )


def weights_of_layers(widths: Sequence[int]) -> int:
    """Number of weights of plain layers; `widths` are those of the input and of all layers."""
    # A layer has a weight from each input, and a bias.
    return sum((before + 1) * after for before, after in itertools.pairwise(widths))


def readable_size(count: float) -> str:
    """Bytes in readable units."""
    for unit, size in (("GB", 1e9), ("MB", 1e6)):
        if count >= size:
            return f"{count / size:.3g} {unit}"
    return f"{count / 1e3:.3g} kB"


def available_memory() -> int:
    """Bytes of memory that this process may still take: the machine's, or what is left of a container's or a process's
    limit."""
    import psutil

    available = [int(psutil.virtual_memory().available)]
    for limit_file, usage_file in CGROUPS:
        # Without a limit there are no such files, or they hold a word, or more than any machine has.
        with contextlib.suppress(OSError, ValueError):
            usage = int(Path(usage_file).read_text())
            usage -= _cached_files(Path(usage_file).with_name("memory.stat"))
            available.append(int(Path(limit_file).read_text()) - usage)
    with contextlib.suppress(ImportError, OSError):  # not on Windows
        import resource

        limit, _ = resource.getrlimit(resource.RLIMIT_AS)
        if limit != resource.RLIM_INFINITY:
            available.append(limit - int(psutil.Process().memory_info().vms))
    return max(min(available), 0)


def memory_taken() -> int:
    """Bytes of memory that this process and those that it has started take."""
    import psutil

    own = psutil.Process()
    taken = 0
    for process in (own, *own.children(recursive=True)):
        with contextlib.suppress(psutil.Error):  # it has just ended
            taken += int(process.memory_info().rss)
    return taken


def _cached_files(statistics: Path) -> int:
    """Bytes of a container's memory that hold copies of files, which make room when it is needed."""
    pairs = (line.split() for line in statistics.read_text().splitlines())
    return sum(int(count) for name, count in pairs if name in ("active_file", "inactive_file"))


@contextlib.contextmanager
def random_states_kept() -> Iterator[None]:
    """Restore the states of the process's random number generators at the end.

    Stable-Baselines3 seeds all of them whenever it builds a learner; what is drawn afterwards must not begin again.
    """
    import torch

    python_state = random.getstate()
    numpy_state = np.random.get_state()
    torch_state = torch.get_rng_state()
    cuda_states: list[torch.Tensor] = []
    if torch.cuda.is_available():
        cuda_states = torch.cuda.get_rng_state_all()
    try:
        yield
    finally:
        random.setstate(python_state)
        np.random.set_state(numpy_state)
        torch.set_rng_state(torch_state)
        if cuda_states:
            torch.cuda.set_rng_state_all(cuda_states)


SMALL_MODEL = 20_000_000
"""Number of weights below which a model stays on the CPU where the device is left open.

A GPU takes some ten microseconds to start each operation, however few numbers it works on, and a small model is many
small operations. On an H200 our own models, of one to two million weights, lost or gained little: `train numberline`
took 75 seconds, and 44 on the CPU beside it; `train cartpole` 77, and 93. Most encoders that others have trained have
more than 50 million.
"""


def choose_device(name: str, weights: int | None = None) -> torch.device:
    """Choose one torch device by name; see `choose_devices`.

    Raises:
        BadInput: the device is not available on this machine, or the name stands for several.
    """
    devices = choose_devices(name, weights)
    if "," in str(name) or str(name).endswith(ALL):
        raise BadInput(
            f"device={name} names several devices, and only the encoders of rewards are spread over several "
            "(reward.device); say one, such as cuda:0"
        )
    return devices[0]


ALL = ":all"
"""End of a name that stands for all devices of a kind."""


def choose_devices(names: str, weights: int | None = None) -> tuple[torch.device, ...]:
    """Choose torch devices by name.

    Args:
        names: `auto`, which is the first available of CUDA, MPS and CPU, but the CPU for small models; a device of
            torch's, such as `cpu`, `cuda` or `cuda:1`; `cuda:all`, which is each GPU; or several devices of one kind,
            separated by commas. `auto` and `cuda` are a process's own GPU where torchrun or a sweep has started it.
        weights: number of the model's weights; None for one that is not small (`SMALL_MODEL`), such as convolutions,
            which use each weight many times.

    Raises:
        BadInput: a device is not available on this machine, or stands there twice, or they are of different kinds.
    """
    if not isinstance(names, str) and type(names).__name__ != "device":
        raise BadInput(f"a device is named by text, such as 'auto' or 'cpu:0,cpu:1', not by {type(names).__name__}")
    devices: list[torch.device] = []
    for name in str(names).split(","):
        devices += _devices_of(name.strip(), weights)
    places = [(device.type, device.index or 0) for device in devices]
    for place in places:
        if places.count(place) > 1:
            raise BadInput(f"device={names} names {place[0]}:{place[1]} twice; name each device once")
    # Rewards would depend on which device was free: each kind rounds in its own way.
    if len({device.type for device in devices}) > 1:
        raise BadInput(f"device={names} mixes kinds of devices, which round differently; say those of one kind")
    return tuple(devices)


def has_gpu() -> bool:
    """Whether torch sees a GPU."""
    import torch

    return torch.cuda.is_available() or torch.backends.mps.is_available()


def _devices_of(name: str, weights: int | None) -> list[torch.device]:
    """The devices of one name, each tried out.

    Raises:
        BadInput: there is none, or it cannot be used.
    """
    import torch

    if name == "auto":
        is_small = weights is not None and weights < SMALL_MODEL
        name = "cpu"
        if torch.cuda.is_available() and not is_small:
            name = "cuda"
        elif torch.backends.mps.is_available() and not is_small:
            name = "mps"
    gpus = torch.cuda.device_count()
    try:
        if name == f"cuda{ALL}":
            devices = [torch.device("cuda", index) for index in range(max(gpus, 1))]
        elif name == "cuda" and gpus:
            # With its number: the current GPU is another one in each thread.
            devices = [torch.device("cuda", own_gpu())]
        else:
            devices = [torch.device(name)]
        # CUDA devices can be named where there are none; computing on one is the test.
        for device in devices:
            torch.zeros(1, device=device).item()
    except (AssertionError, RuntimeError, ImportError) as error:
        raise BadInput(f"device '{name}' is not available here: {_why_not(name, gpus, error)}") from error
    return devices


SLOT = "SIGHTLINE_SLOT"
"""Environment variable by which a sweep numbers the runs that it carries out at the same time, from 0."""


def own_gpu() -> int:
    """Number of this process's GPU: processes that torchrun or a sweep has started take one after the other; any other
    process has its current one."""
    import torch

    place = process_place()
    if place is None:
        return torch.cuda.current_device()
    # Some launchers show each process a single GPU, its own.
    return place % torch.cuda.device_count()


def process_place() -> int | None:
    """Number of this process among those of its machine that torchrun or a sweep has started, from 0; None if neither
    has started it."""
    if "LOCAL_RANK" not in os.environ and SLOT not in os.environ:
        return None
    slot = int(os.environ.get(SLOT, "0"))
    processes_of_a_run = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    return slot * processes_of_a_run + int(os.environ.get("LOCAL_RANK", "0"))


def _why_not(name: str, gpus: int, error: Exception) -> str:
    """Why a device cannot be used, and what to say instead."""
    kind, colon, number = name.partition(":")
    if kind != "cuda" or not (number.isdecimal() or number == "all" or not colon):
        return (
            "say auto, cpu, cuda or cuda:1; an encoder of a reward may also take cuda:all, or several (cuda:0,cuda:1)"
        )
    if not gpus:
        return "torch sees no GPU ('sightline doctor' tells what it sees); say auto or cpu"
    if number.isdecimal() and int(number) >= gpus:
        return f"torch sees {gpus} GPU{'s' if gpus > 1 else ''}, counted from cuda:0; say auto"
    reason = " ".join(str(error).split())[:200]
    return f"{reason}; say another one, or cpu"


def devices_in_words(names: str, devices: Sequence[torch.device], weights: int | None) -> str:
    """Devices that were chosen, and why.

    >>> cpu (auto: 1,033,745 weights; a GPU pays from 20,000,000 on)
    """
    listed = ", ".join(map(str, devices))
    if names != "auto":
        return f"{listed} (as stated)"
    if weights is None:
        return f"{listed} (auto)"
    return f"{listed} (auto: {weights:,} weights; a GPU pays from {SMALL_MODEL:,} on)"


def fast_dtype(*devices: torch.device) -> torch.dtype:
    """Fastest safe dtype of devices: bfloat16 if the hardware of all supports it (float32's range, 8 bits of
    precision)."""
    import torch

    return torch.bfloat16 if all(map(_has_bfloat16, devices)) else torch.float32


def _has_bfloat16(device: torch.device) -> bool:
    import torch

    if device.type == "cuda":
        with torch.cuda.device(device):
            return bool(torch.cuda.is_bf16_supported())
    if device.type != "cpu":
        return False
    capabilities: Mapping[str, object] = {}
    with contextlib.suppress(AttributeError):  # torch tells it since 2.7
        capabilities = torch.cpu.get_capabilities()
    return bool(capabilities.get("avx512_bf16") or capabilities.get("amx_bf16"))


def dtype_for(dtype: str, device: torch.device) -> torch.dtype:
    """The dtype of a name; `auto` is bfloat16 on CUDA and float32 elsewhere."""
    import torch

    if dtype == "auto":
        dtype = "bfloat16" if device.type == "cuda" else "float32"
    torch_dtype: torch.dtype = getattr(torch, dtype)
    return torch_dtype
