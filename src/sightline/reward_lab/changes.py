"""Small changes of frames that leave what they show as it is, so that a reward should hardly change."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping

import numpy as np
from PIL import Image

JPEG_QUALITY = 85


def moved_by_a_pixel(frames: np.ndarray) -> np.ndarray:
    """Frames [..., H, W, 3] moved to the right by one pixel; the column at the left edge is doubled."""
    return np.concatenate([frames[..., :1, :], frames[..., :-1, :]], axis=-2)


def through_jpeg(frames: np.ndarray) -> np.ndarray:
    """Frames uint8[..., H, W, 3] as JPEG of quality 85 keeps them."""
    return _each(frames, _kept_by_jpeg)


def halved_and_back(frames: np.ndarray) -> np.ndarray:
    """Frames uint8[..., H, W, 3] made half as wide and high, and as large as they were again (bilinear)."""
    return _each(frames, _halved_and_back)


CHANGES: Mapping[str, Callable[[np.ndarray], np.ndarray]] = {
    "same": np.copy,
    "shifted": moved_by_a_pixel,
    "jpeg": through_jpeg,
    "halved": halved_and_back,
}
"""Changes by name. The first is none: what a reward says of the same frame twice differs by its own chance alone."""


def _each(frames: np.ndarray, change: Callable[[Image.Image], Image.Image]) -> np.ndarray:
    pictures = frames.reshape(-1, *frames.shape[-3:])
    changed = [np.asarray(change(Image.fromarray(picture))) for picture in pictures]
    return np.stack(changed).reshape(frames.shape)


def _kept_by_jpeg(picture: Image.Image) -> Image.Image:
    file = io.BytesIO()
    picture.save(file, "JPEG", quality=JPEG_QUALITY)
    return Image.open(file)


def _halved_and_back(picture: Image.Image) -> Image.Image:
    half = (max(1, picture.width // 2), max(1, picture.height // 2))
    return picture.resize(half, Image.Resampling.BILINEAR).resize(picture.size, Image.Resampling.BILINEAR)
