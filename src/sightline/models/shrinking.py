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
        self._resize = resize
        self._changes_nothing = changes_nothing
        self._can_shrink: dict[tuple[int, ...], bool] = {}

    def __call__(self, frames: np.ndarray) -> np.ndarray:
        # Once for each size: whether a resize is repeatable may depend on it.
        shape = frames.shape[1:]
        if shape not in self._can_shrink:
            self._can_shrink[shape] = self._try_with_noise(shape)
        if self._can_shrink[shape] and len(frames):
            return self._resize(frames)
        return frames

    def _try_with_noise(self, shape: tuple[int, ...]) -> bool:
        """Tell whether frames [H, W, 3] become smaller, and nothing changes for their reader."""
        noise = np.random.default_rng(0).integers(0, 256, (2, *shape), np.uint8)
        try:
            small = self._resize(noise)
            is_picture = small.dtype == np.uint8 and small.ndim == 4
            return is_picture and small.size < noise.size and self._changes_nothing(noise, small)
        except Exception:  # a reader that cannot do with it reads frames as they are
            return False


def resized_by(image_processor: Any, frames: Any) -> Any:
    """Frames of numpy or torch as a processor of Hugging Face resizes and crops them: uint8[N, H, W, 3] -> uint8[N, h,
    w, 3].

    Raises:
        ValueError: it makes something else of pictures, such as patches.
    """
    inputs = image_processor(images=list(frames), do_rescale=False, do_normalize=False, return_tensors="pt")
    pixels = inputs["pixel_values"]
    if not str(pixels.dtype).endswith("uint8") or pixels.ndim != 4:
        raise ValueError(f"the processor makes {pixels.dtype}{list(pixels.shape)} of frames")
    small = pixels.permute(0, 2, 3, 1).contiguous()
    return small.numpy() if isinstance(frames, np.ndarray) else small


def takes_tensors(image_processor: Any) -> bool:
    """Whether a processor of Hugging Face works where its pictures are, by torchvision: Pillow's work on the host."""
    names = {kind.__name__ for kind in type(image_processor).__mro__}
    return bool(names & {"TorchvisionBackend", "BaseImageProcessorFast"})


def equal_inputs(first: Mapping[str, Any], second: Mapping[str, Any]) -> bool:
    """Whether two inputs of a model hold equal tensors, bit for bit."""
    import torch

    if first.keys() != second.keys():
        return False
    return all(torch.equal(first[name], second[name]) for name in first)
