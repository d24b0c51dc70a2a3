"""Frames scaled to the size that a model reads: many in one call of torch, or one by one by Pillow."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from PIL import Image

if TYPE_CHECKING:
    import torch

MODES = {Image.Resampling.BILINEAR: "bilinear", Image.Resampling.BICUBIC: "bicubic"}
"""Pillow's interpolations that torch has too, by torch's names."""


def resized_by_torch(frames: np.ndarray, size: tuple[int, int], resample: int) -> np.ndarray:
    """Scale all frames in one call, anti-aliased: uint8[N, H, W, 3] -> uint8[N, *size, 3].

    Torch rounds its weights to 16 bits where Pillow has 22: of drawn frames one value in a thousand differs from
    Pillow's at most, and by one. Interpolations that torch lacks are left to Pillow.

    Args:
        size: height and width.
        resample: Pillow's number of an interpolation.
    """
    import torch

    if frames.shape[1:3] == size:
        return frames
    mode = MODES.get(Image.Resampling(resample))
    if mode is None or not len(frames):
        return resized_by_pillow(frames, size, resample)
    # Torch warns of arrays that may not be written into; nothing here does.
    pixels = torch.from_numpy(np.require(frames, requirements=["C", "W"]))
    # Channels stay last in memory, which torch has the fastest way for.
    scaled = scaled_pixels(pixels.permute(0, 3, 1, 2), size, mode)
    return np.ascontiguousarray(scaled.permute(0, 2, 3, 1).numpy())


def scaled_pixels(pixels: torch.Tensor, size: tuple[int, int], mode: str) -> torch.Tensor:
    """uint8[N, 3, H, W] -> uint8[N, 3, *size] on the same device, anti-aliased."""
    import torch

    if pixels.device.type == "cpu":
        return torch.nn.functional.interpolate(pixels, size, mode=mode, antialias=True)
    # Other devices have no such operation for whole numbers.
    scaled = torch.nn.functional.interpolate(pixels.float(), size, mode=mode, antialias=True)
    return scaled.round_().clamp_(0, 255).to(torch.uint8)


def resized_by_pillow(frames: np.ndarray, size: tuple[int, int], resample: int) -> np.ndarray:
    """Scale frames one by one, as the models' authors do: uint8[N, H, W, 3] -> uint8[N, *size, 3].

    Args:
        size: height and width.
        resample: Pillow's number of an interpolation.
    """
    height, width = size
    small = np.empty((len(frames), height, width, 3), np.uint8)
    for row, frame in zip(small, frames, strict=True):
        row[...] = np.asarray(Image.fromarray(frame).resize((width, height), Image.Resampling(resample)))
    return small


def shortest_side_cut(frames: np.ndarray, side: int, resample: int) -> np.ndarray:
    """Scale frames by torch until their shorter side is `side`, and cut the middle square out: uint8[N, H, W, 3] ->
    uint8[N, side, side, 3]. Sizes and places are rounded as torchvision's `Resize` and `CenterCrop` do it."""
    height, width = frames.shape[1:3]
    shorter = min(height, width)
    scaled = resized_by_torch(frames, (side * height // shorter, side * width // shorter), resample)
    top = round((scaled.shape[1] - side) / 2)
    left = round((scaled.shape[2] - side) / 2)
    return scaled[:, top : top + side, left : left + side]
