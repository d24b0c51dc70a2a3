"""Frames made smaller as soon as they are taken, by the model's own preprocessing, so that nothing else is kept.

frame, 1080x1920 ──resize, crop──► 224x224, uint8 ──scale, standardise──► what the image tower reads
                 └─ a shrinker ─┘                                         the same, bit for bit
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

Shrink = Callable[[np.ndarray], np.ndarray]
"""Frames uint8[N, H, W, 3] -> uint8[N, h, w, 3]."""


class Shrinker:
    """Makes frames smaller where that changes nothing for their reader, and gives all others back as they are.

    Whether it changes anything is tried out once for each size, with noise: preprocessing comes from strangers' files.

    Args:
        resize: makes frames smaller; frames that it has made are not changed by it again.
        changes_nothing: (frames, the same made smaller) -> whether they are the same to their reader.
    """

    def __init__(self, resize: Shrink, changes_nothing: Callable[[np.ndarray, np.ndarray], bool]) -> None:
        self._resize, self._changes_nothing = resize, changes_nothing
        self._shrinks: dict[tuple[int, ...], bool] = {}

    def __call__(self, frames: np.ndarray) -> np.ndarray:
        shape = frames.shape[1:]
        if shape not in self._shrinks:
            self._shrinks[shape] = self._is_tried(shape)
        return self._resize(frames) if self._shrinks[shape] and len(frames) else frames

    def _is_tried(self, shape: tuple[int, ...]) -> bool:
        noise = np.random.default_rng(0).integers(0, 256, (2, *shape), np.uint8)
        try:
            small = self._resize(noise)
            is_smaller = small.dtype == np.uint8 and small.ndim == 4 and small.size < noise.size
            return is_smaller and self._changes_nothing(noise, small)
        except Exception:  # a reader that cannot do with it reads frames as they are
            return False


def resized_by(image_processor: Any, frames: np.ndarray) -> np.ndarray:
    """Frames uint8[N, H, W, 3] as a processor of Hugging Face resizes and crops them, uint8[N, h, w, 3].

    Raises:
        ValueError: it makes something else of pictures, such as patches.
    """
    inputs = image_processor(images=list(frames), do_rescale=False, do_normalize=False, return_tensors="pt")
    pixels = inputs["pixel_values"].numpy()
    if pixels.dtype != np.uint8 or pixels.ndim != 4:
        raise ValueError(f"the processor makes {pixels.dtype}{list(pixels.shape)} of frames")
    return np.ascontiguousarray(np.moveaxis(pixels, 1, -1))


def equal_inputs(ones: Mapping[str, Any], others: Mapping[str, Any]) -> bool:
    """Whether two inputs of a model hold equal tensors, bit for bit."""
    import torch

    return ones.keys() == others.keys() and all(torch.equal(ones[name], others[name]) for name in ones)
