"""Which GPUs OpenGL draws with on a machine that has several, and which of them each process takes.

Simulators that need no display draw by EGL. What is known of its numbers of devices:

- They are not CUDA's. EGL lists the devices of all drivers in an order of its own, and hides none for
  `CUDA_VISIBLE_DEVICES`; CUDA sorts by speed unless told otherwise, and numbers only what it shows.
- NVIDIA's driver tells CUDA's number of a device of EGL (`EGL_NV_device_cuda`), and none for one that
  `CUDA_VISIBLE_DEVICES` hides. Devices of Mesa, which include drawing in software, have no such number.
- MuJoCo reads `MUJOCO_EGL_DEVICE_ID` as a process draws its first picture, and takes the first device that starts
  where it is not set; pyrender reads `EGL_DEVICE_ID`.

Run as a program, this file prints pairs of both numbers, EGL's first, as JSON.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import json
import os
import subprocess
import sys
from pathlib import Path

VARIABLES = ("MUJOCO_EGL_DEVICE_ID", "EGL_DEVICE_ID")
"""What simulators read EGL's number of a device from."""
GPU_UNUSED = (
    "this machine has a GPU, but EGL cannot draw with it: apt-get install libegl1, start a container with "
    "NVIDIA_DRIVER_CAPABILITIES=all (graphics is in it), or draw on the processor by MUJOCO_GL=osmesa (libosmesa6)"
)
CUDA_DEVICE = 0x323A
"""EGL_CUDA_DEVICE_NV: the attribute that holds CUDA's number."""
MOST = 64
"""Devices that are asked for."""


def gpus_here() -> int:
    """Number of NVIDIA's GPUs that this machine, or its container, shows."""
    return len(list(Path("/dev").glob("nvidia[0-9]*")))


@functools.cache
def drawing_gpus() -> tuple[int, ...]:
    """EGL's numbers of the GPUs that this process may use, in CUDA's order; empty where there is nothing to choose, or
    the user has chosen."""
    if gpus_here() < 2 or any(name in os.environ for name in VARIABLES):
        return ()
    cuda_numbers = _asked_of_egl()
    # A driver that does not heed the variable would have others' GPUs drawn with.
    shown = os.environ.get("CUDA_VISIBLE_DEVICES")
    if shown is not None and len(cuda_numbers) > len(shown.split(",")):
        return ()
    return tuple(sorted(cuda_numbers, key=lambda number: cuda_numbers[number]))


def drawing_variables(worker: int | None = None) -> dict[str, str]:
    """Environment variables that have a process draw with one of several GPUs; none where there is nothing to choose.

    Args:
        worker: number of a worker process, from 0; these take the GPUs in turn. None: this process itself.
    """
    from sightline.models.device import process_place  # not at the top: as a program this file is alone

    gpus = drawing_gpus()
    if not gpus:
        return {}
    # Processes of sweeps and of torchrun compute on a GPU each (`own_gpu`), and draw with that one.
    place = process_place()
    if place is None:
        place = worker
    if place is None and "CUDA_VISIBLE_DEVICES" in os.environ:
        place = 0
    if place is None:
        return {}
    return dict.fromkeys(VARIABLES, str(gpus[place % len(gpus)]))


def drawing_in_words() -> str | None:
    """Which GPUs worker processes draw with, in a line; None where there is nothing to choose."""
    gpus = drawing_gpus()
    numbers = sorted({drawing_variables(worker)[VARIABLES[0]] for worker in range(len(gpus))}, key=int)
    if not numbers:
        return None
    return f"worker processes that draw by EGL take its devices in turn: {', '.join(numbers)} ({VARIABLES[0]})"


def _asked_of_egl() -> dict[int, int]:
    """CUDA's numbers of the devices of EGL, by EGL's; empty if EGL cannot say."""
    # In a process of its own: drivers that are broken may end it, and software OpenGL must not be loaded before Triton
    # (`sightline.requirements.keep_llvms_apart`).
    with contextlib.suppress(OSError, subprocess.SubprocessError, ValueError):
        asked = subprocess.run(
            [sys.executable, "-I", "-S", __file__], capture_output=True, text=True, timeout=20, check=True
        )
        return {int(egl): int(cuda) for egl, cuda in json.loads(asked.stdout)}
    return {}


def _cuda_numbers() -> dict[int, int]:
    """CUDA's numbers of the devices of EGL, by EGL's, asked of the library in this process.

    Raises:
        OSError: there is no EGL.
    """
    library = ctypes.CDLL("libEGL.so.1")
    library.eglGetProcAddress.restype = ctypes.c_void_p
    list_devices = library.eglGetProcAddress(b"eglQueryDevicesEXT")
    attribute_of = library.eglGetProcAddress(b"eglQueryDeviceAttribEXT")
    if not (list_devices and attribute_of):
        return {}

    # EGLBoolean eglQueryDevicesEXT(EGLint most, EGLDeviceEXT *devices, EGLint *count)
    signature = ctypes.CFUNCTYPE(ctypes.c_uint, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)
    devices = (ctypes.c_void_p * MOST)()
    count = ctypes.c_int(0)
    if not signature(list_devices)(MOST, devices, ctypes.byref(count)):
        return {}

    # EGLBoolean eglQueryDeviceAttribEXT(EGLDeviceEXT device, EGLint attribute, EGLAttrib *value)
    signature = ctypes.CFUNCTYPE(ctypes.c_uint, ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p)
    numbers = {}
    for egl in range(count.value):
        value = ctypes.c_ssize_t(-1)
        has_number = signature(attribute_of)(devices[egl], CUDA_DEVICE, ctypes.byref(value))
        if has_number and value.value >= 0:
            numbers[egl] = value.value
    return numbers


if __name__ == "__main__":
    print(json.dumps(list(_cuda_numbers().items())))
