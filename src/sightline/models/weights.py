"""The number of a model's weights, by the headers of its files."""

from __future__ import annotations

import math
from pathlib import Path

FILES = ("model*.safetensors", "open_clip_model*.safetensors")
"""Names of files of weights, in one part or in several; adapters and statistics have others."""


def count_weights(folder: Path) -> int | None:
    """Number of the weights in a model's folder; None where they are in another format, or damaged."""
    from safetensors import SafetensorError, safe_open

    files = [file for pattern in FILES for file in folder.glob(pattern)]
    count = 0
    try:
        for file in files:
            with safe_open(file, "numpy") as tensors:
                count += sum(math.prod(tensors.get_slice(name).get_shape()) for name in tensors.keys())  # noqa: SIM118
    except (SafetensorError, OSError):
        return None  # whoever loads it says what is wrong
    return count or None
