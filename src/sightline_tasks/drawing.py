"""Drawing of small anti-aliased pictures, directly at the requested size.

Pillow draws on a canvas of twice the size, which is then averaged down; this smooths all edges. Coordinates are
fractions of the picture: (0, 0) is the top left corner and (1, 1) the bottom right one.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import TypeVar

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from sightline.envs.frames import Size
from sightline.errors import BadInput, RunFailed, nearest

Colour = tuple[int, int, int]
Point = tuple[float, float]

OVERSAMPLING = 2
CAPITALS = 0.729
"""Height of DejaVu's capitals and digits, as a share of the font's size."""


@lru_cache(maxsize=256)
def font(pixels: int, bold: bool = True) -> ImageFont.FreeTypeFont:
    """Load DejaVu Sans at a size in pixels, from the files of matplotlib (without importing it, which takes long).

    Raises:
        RunFailed: matplotlib's fonts are missing.
    """
    found = importlib.util.find_spec("matplotlib")
    if found is None or found.origin is None:
        raise RunFailed("letters cannot be drawn without matplotlib's fonts; reinstall with: pip install matplotlib")
    file = Path(found.origin).parent / "mpl-data" / "fonts" / "ttf" / f"DejaVuSans{'-Bold' if bold else ''}.ttf"
    if not file.exists():
        raise RunFailed(f"the font {file} is missing; reinstall with: pip install --force-reinstall matplotlib")
    return ImageFont.truetype(str(file), max(1, pixels), layout_engine=ImageFont.Layout.BASIC)


@lru_cache(maxsize=4096)
def fitting_font(words: str, pixels: int, width: float, bold: bool) -> ImageFont.FreeTypeFont:
    """Font of at most the given size in which the words are at most `width` pixels wide."""
    length = font(pixels, bold).getlength(words)
    while length > width and pixels > 1:
        pixels = max(1, min(pixels - 1, int(pixels * width / length)))
        length = font(pixels, bold).getlength(words)
    return font(pixels, bold)


class Canvas:
    """Canvas to draw a picture on, at twice its size.

    Args:
        size: height and width of the finished picture in pixels.
        background: one colour, or a uint8 array of the *canvas's* size (see :func:`texture`).
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
        """Draw a filled circle; the radius is a fraction of the picture's height."""
        x, y, r = centre[0] * self.width, centre[1] * self.height, radius * self.height
        self._draw.ellipse((x - r, y - r, x + r, y + r), fill=colour)

    def rectangle(self, left: float, top: float, right: float, bottom: float, colour: Colour) -> None:
        self._draw.rectangle(
            (left * self.width, top * self.height, right * self.width, bottom * self.height), fill=colour
        )

    def text(
        self,
        at: Point,
        words: str,
        size: float,
        colour: Colour,
        bold: bool = True,
        align: str = "m",
        width: float = 1.0,
    ) -> None:
        """Write one line of text in DejaVu Sans.

        Args:
            at: anchor point, vertically in the middle of the line; horizontally its left end, middle or right end, by
                `align`.
            words: the text.
            size: height of capitals and digits, as a fraction of the picture's height.
            colour: of the letters.
            bold: use the bold font.
            align: `l`, `m` or `r`.
            width: greatest width, as a fraction of the picture's; longer lines are shrunk.
        """
        letters = fitting_font(words, round(size * self.height / CAPITALS), width * self.width, bold)
        baseline = at[1] * self.height + letters.size * CAPITALS / 2
        self._draw.text((at[0] * self.width, baseline), words, fill=colour, font=letters, anchor=align + "s")

    def paste(self, picture: Image.Image, left: float, top: float) -> None:
        """Paste an RGBA picture of the canvas's resolution, with its top left corner at (left, top)."""
        self._image.paste(picture, (round(left * self.width), round(top * self.height)), picture)

    def canvas_pixels(self) -> np.ndarray:
        """Oversampled picture, for use as the background of another canvas: uint8[2 * height, 2 * width, 3]."""
        return np.asarray(self._image).copy()

    def pixels(self) -> np.ndarray:
        """Finished picture: uint8[height, width, 3]."""
        return np.asarray(self._image.reduce(OVERSAMPLING))


Look = TypeVar("Look")


def choose_look(look: str | Look, looks: Mapping[str, Look]) -> Look:
    """Look up a colour scheme by its name; a scheme is returned as it is.

    Raises:
        BadInput: there is no look of that name, or it is neither a name nor a scheme.
    """
    if isinstance(look, str):
        if look in looks:
            return looks[look]
    elif isinstance(look, tuple(map(type, looks.values()))):
        return look
    raise BadInput(f"there is no look '{look}'{nearest(str(look), looks)}")


def turn(points: list[Point], angle: float, about: Point, aspect: float = 1.0) -> list[Point]:
    """Rotate points clockwise on the picture by `angle` radians; `aspect` is the picture's width over its height."""
    cos, sin = np.cos(angle), np.sin(angle)
    turned = []
    for x, y in points:
        dx, dy = (x - about[0]) * aspect, y - about[1]
        turned.append((about[0] + (cos * dx - sin * dy) / aspect, about[1] + sin * dx + cos * dy))
    return turned


@lru_cache(maxsize=64)
def value_noise(height: int, width: int, seed: int) -> np.ndarray:
    """Smooth noise in [-1, 1]: a few octaves of random grids, enlarged and added up."""
    rng = np.random.default_rng(seed)
    total = np.zeros((height, width), np.float32)
    for cells, weight in ((3, 0.5), (7, 0.3), (17, 0.2)):
        grid = (rng.random((cells, cells)) * 255).astype(np.uint8)
        enlarged = Image.fromarray(grid).resize((width, height), Image.Resampling.BICUBIC)
        total += weight * (np.asarray(enlarged, np.float32) / 127.5 - 1.0)
    return total


def texture(size: Size, top: Colour, bottom: Colour, roughness: float, seed: int) -> np.ndarray:
    """Vertical gradient between two colours with smooth noise: uint8[2 * height, 2 * width, 3], for `Canvas`.

    Args:
        size: height and width of the finished picture in pixels.
        top, bottom: colours.
        roughness: amplitude of the noise in grey levels, 0 to 255.
        seed: seed of the noise; equal arguments give equal pixels.
    """
    height, width = size[0] * OVERSAMPLING, size[1] * OVERSAMPLING
    down = np.linspace(0, 1, height, dtype=np.float32)[:, None, None]
    gradient = np.asarray(top, np.float32) * (1 - down) + np.asarray(bottom, np.float32) * down
    noise = roughness * value_noise(height, width, seed)[:, :, None]
    return np.clip(gradient + noise, 0, 255).astype(np.uint8)
