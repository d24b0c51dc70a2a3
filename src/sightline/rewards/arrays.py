"""Arrays of numpy or torch, on any device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np


def concatenated(arrays: Sequence[Any]) -> Any:
    """Arrays of numpy or torch, one after the other, in the kind and on the device of the last."""
    *earlier, last = arrays
    if not hasattr(last, "detach"):
        return np.concatenate([*map(to_numpy, earlier), last])
    import torch

    return torch.cat([*(torch.as_tensor(array, device=last.device) for array in earlier), last])


def to_numpy(array: Any) -> np.ndarray:
    """A numpy or torch array, from any device, as numpy."""
    if hasattr(array, "detach"):
        # numpy knows neither bfloat16 nor float8.
        if any(kind in str(array.dtype) for kind in ("bfloat16", "float8")):
            array = array.float()
        array = array.detach().cpu().numpy()
    return np.asarray(array)
