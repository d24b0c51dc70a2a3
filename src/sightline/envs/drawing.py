"""Small anti-aliased pictures, drawn directly at the size asked for.

Every picture of ours is drawn by Pillow on a canvas twice as large as asked for and then averaged down, which smooths
all edges. Coordinates are fractions of the picture: (0, 0) is the top left corner and (1, 1) the bottom right one.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import TypeVar

import numpy as np
from PIL import Image, ImageDraw

from sightline.errors import BadInput, nearest

Colour = tuple[int, int, int]
Point = tuple[float, float]
Size = tuple[int, int]
"""Height and width in pixels, in numpy's order."""

OVERSAMPLING = 2


class Canvas:
    """A picture in the making.

    Args:
        size: height and width of the finished picture in pixels.
        background: one colour, or a uint8 array of the *canvas's* own size (see :func:`texture`).
    """

    def __init__(self, size: Size, background: Colour | np.ndarray) -> None:
        self.height, self.width = size[0] * OVERSAMPLING, size[1] * OVERSAMPLING
        if isinstance(background, np.ndarray):
            self._image = Image.fromarray(background)
        else:
            self._image = Image.new("RGB", (self.width, self.height), background)
        self._draw = ImageDraw.Draw(self._image)

    def polygon(self, points: list[Point], colour: Colour) -> None:
        self._draw.polygon([(x * self.width, y * self.height) for x, y in points], fill=colour)

    def disc(self, centre: Point, radius: float, colour: Colour) -> None:
        """A filled circle; the radius is a fraction of the picture's height."""
        x, y, r = centre[0] * self.width, centre[1] * self.height, radius * self.height
        self._draw.ellipse((x - r, y - r, x + r, y + r), fill=colour)

    def rectangle(self, left: float, top: float, right: float, bottom: float, colour: Colour) -> None:
        self._draw.rectangle(
            (left * self.width, top * self.height, right * self.width, bottom * self.height), fill=colour
        )

    def canvas_pixels(self) -> np.ndarray:
        """The oversampled picture, to be used as the background of another canvas."""
        return np.asarray(self._image).copy()

    def pixels(self) -> np.ndarray:
        """The finished picture: uint8[height, width, 3]."""
        return np.asarray(self._image.reduce(OVERSAMPLING))


Look = TypeVar("Look")


def choose_look(look: str | Look, looks: Mapping[str, Look]) -> Look:
    """A look by its name, or the look itself.

    Raises:
        BadInput: there is no look of that name.
    """
    if not isinstance(look, str):
        return look
    if look not in looks:
        raise BadInput(f"there is no look '{look}'{nearest(look, looks)}")
    return looks[look]


def turn(points: list[Point], angle: float, about: Point, aspect: float = 1.0) -> list[Point]:
    """Turn points clockwise on the picture by `angle` radians; `aspect` is the picture's width over its height."""
    cos, sin = np.cos(angle), np.sin(angle)
    turned = []
    for x, y in points:
        dx, dy = (x - about[0]) * aspect, y - about[1]
        turned.append((about[0] + (cos * dx - sin * dy) / aspect, about[1] + sin * dx + cos * dy))
    return turned


@lru_cache(maxsize=64)
def _value_noise(height: int, width: int, seed: int) -> np.ndarray:
    """Smooth noise in [-1, 1]: a few octaves of random grids, enlarged and added up."""
    rng = np.random.default_rng(seed)
    total = np.zeros((height, width), np.float32)
    for cells, weight in ((3, 0.5), (7, 0.3), (17, 0.2)):
        grid = (rng.random((cells, cells)) * 255).astype(np.uint8)
        enlarged = Image.fromarray(grid).resize((width, height), Image.Resampling.BICUBIC)
        total += weight * (np.asarray(enlarged, np.float32) / 127.5 - 1.0)
    return total


def texture(size: Size, top: Colour, bottom: Colour, roughness: float, seed: int) -> np.ndarray:
    """A vertical gradient between two colours with smooth noise on it, at the canvas's size.

    Args:
        size: height and width of the finished picture in pixels.
        roughness: amplitude of the noise in grey levels, 0 to 255.
        seed: which noise; equal arguments give equal pixels.
    """
    height, width = size[0] * OVERSAMPLING, size[1] * OVERSAMPLING
    down = np.linspace(0, 1, height, dtype=np.float32)[:, None, None]
    gradient = np.asarray(top, np.float32) * (1 - down) + np.asarray(bottom, np.float32) * down
    noise = roughness * _value_noise(height, width, seed)[:, :, None]
    return np.clip(gradient + noise, 0, 255).astype(np.uint8)
