"""Frames scaled to the size that a model reads: many in one call of torch, or one by one by Pillow."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image

from sightline.models.uploads import as_tensor

if TYPE_CHECKING:
    import torch

MODES = {Image.Resampling.BILINEAR: "bilinear", Image.Resampling.BICUBIC: "bicubic"}
"""Pillow's interpolations that torch has too, by torch's names."""


def resized_by_torch(frames: Any, size: tuple[int, int], resample: int) -> Any:
    """Scale all frames in one call, anti-aliased: uint8[N, H, W, 3] -> uint8[N, *size, 3].

    Torch rounds its weights to 16 bits where Pillow has 22: of frames of common sizes one value in a thousand differs
    from Pillow's at most, and by one. Interpolations that torch lacks are left to Pillow.

    Args:
        frames: of numpy, or of torch, which are scaled where they are.
        size: height and width.
        resample: Pillow's number of an interpolation.
    """
    if tuple(frames.shape[1:3]) == size:
        return frames
    mode = MODES.get(Image.Resampling(resample))
    if mode is None or not len(frames):
        return resized_by_pillow(frames, size, resample)
    is_array = isinstance(frames, np.ndarray)
    pixels = as_tensor(frames) if is_array else frames
    # Channels stay last in memory, which torch has the fastest way for.
    scaled = scaled_pixels(pixels.permute(0, 3, 1, 2), size, mode).permute(0, 2, 3, 1)
    return np.ascontiguousarray(scaled.numpy()) if is_array else scaled


def scaled_pixels(pixels: torch.Tensor, size: tuple[int, int], mode: str) -> torch.Tensor:
    """uint8[N, 3, H, W] -> uint8[N, 3, *size] on the same device, anti-aliased."""
    import torch

    if pixels.device.type == "cpu":
        return torch.nn.functional.interpolate(pixels, size, mode=mode, antialias=True)
    # Other devices have no such operation for whole numbers.
    scaled = torch.nn.functional.interpolate(pixels.float(), size, mode=mode, antialias=True)
    return scaled.round_().clamp_(0, 255).to(torch.uint8)


def resized_by_pillow(frames: Any, size: tuple[int, int], resample: int) -> Any:
    """Scale frames one by one, as the models' authors do: uint8[N, H, W, 3] -> uint8[N, *size, 3].

    Args:
        frames: of numpy, or of torch, which pass the host.
        size: height and width.
        resample: Pillow's number of an interpolation.
    """

    def resize(arrays: np.ndarray) -> np.ndarray:
        height, width = size
        small = np.empty((len(arrays), height, width, 3), np.uint8)
        for row, frame in zip(small, arrays, strict=True):
            row[...] = np.asarray(Image.fromarray(frame).resize((width, height), Image.Resampling(resample)))
        return small

    return on_the_host(resize, frames)


def on_the_host(resize: Callable[[np.ndarray], np.ndarray], frames: Any) -> Any:
    """What a function of arrays makes of frames of numpy, or of torch, where the result is on their device."""
    if isinstance(frames, np.ndarray):
        return resize(frames)
    return as_tensor(resize(frames.cpu().numpy())).to(frames.device)


def padded(frames: Any, rows: tuple[int, int], columns: tuple[int, int]) -> Any:
    """Frames with black rows before and after, and black columns, of numpy or torch."""
    if isinstance(frames, np.ndarray):
        return np.pad(frames, ((0, 0), rows, columns, (0, 0)))
    import torch

    # Torch counts from the last axis.
    return torch.nn.functional.pad(frames, (0, 0, *columns, *rows))


def shortest_side_cut(frames: Any, side: int, resample: int) -> Any:
    """Scale frames by torch until their shorter side is `side`, and cut the middle square out: uint8[N, H, W, 3] ->
    uint8[N, side, side, 3]. Sizes and places are rounded as torchvision's `Resize` and `CenterCrop` do it."""
    height, width = frames.shape[1:3]
    shorter = min(height, width)
    scaled = resized_by_torch(frames, (side * height // shorter, side * width // shorter), resample)
    top = round((scaled.shape[1] - side) / 2)
    left = round((scaled.shape[2] - side) / 2)
    return scaled[:, top : top + side, left : left + side]
