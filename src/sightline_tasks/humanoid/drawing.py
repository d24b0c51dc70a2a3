"""Drawn look of the humanoid: shaded limbs in perspective, by Pillow, without OpenGL.

The camera is that of MuJoCo's renderer. A frame of 64 pixels takes about half a millisecond; software OpenGL needs a
hundred of them with shadows and reflections.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from PIL import Image, ImageDraw

from sightline.envs.frames import Size
from sightline_tasks.cameras import View
from sightline_tasks.drawing import OVERSAMPLING, Colour, value_noise

SKY_HEIGHT = 60.0
"""Degrees above the horizon over which the sky changes its colour."""
HAZE = 12.0
"""Distance in metres at which the floor has taken on half of the horizon's colour."""


@dataclass(frozen=True)
class HumanoidLook:
    """Colours and textures of the drawn scene.

    Attributes:
        sky_top, sky_bottom: colours of the sky.
        tiles: the two colours of the floor.
        tile: side of a tile, in metres.
        roughness: amplitude of the noise on floor and sky in grey levels.
        body: colour of the limbs; their edges are darker and their middle is lighter.
        shine: how much lighter, 0 to 1.
        noise_seed: seed of the noise.
    """

    sky_top: Colour
    sky_bottom: Colour
    tiles: tuple[Colour, Colour]
    body: Colour
    tile: float = 0.5
    roughness: float = 0.0
    shine: float = 0.35
    noise_seed: int = 0


LOOKS = {
    "original": HumanoidLook((15, 18, 22), (102, 128, 153), ((20, 22, 20), (163, 184, 163)), (204, 153, 102)),
    "textured": HumanoidLook(
        (86, 132, 196), (214, 226, 238), ((88, 86, 84), (104, 102, 99)), (190, 192, 196), 0.4, 14.0, 0.5, 3
    ),
}


def draw_humanoid(ends: np.ndarray, radii: np.ndarray, view: View, size: Size, look: HumanoidLook) -> np.ndarray:
    """Picture of a humanoid: uint8[height, width, 3].

    Args:
        ends: [geoms, 2, 3], both ends of each capsule's axis (equal for spheres), metres.
        radii: [geoms], metres.
    """
    height, width = size[0] * OVERSAMPLING, size[1] * OVERSAMPLING
    image = Image.fromarray(_scene(view, (height, width), look))
    draw = ImageDraw.Draw(image)
    focal = height / (2 * math.tan(math.radians(view.field_of_view) / 2))  # pixels per metre at a metre's distance

    # Shadows on the floor and limbs, in one go: NumPy's calls would take longer than the drawing.
    seen = view.project(np.stack([ends * np.array([1.0, 1.0, 0.0]), ends]))
    seen[..., 0] = (seen[..., 0] - 0.5) * height + width / 2
    seen[..., 1] *= height
    depths = seen[..., 2].mean(axis=2)
    thick = (radii * focal / depths).tolist()
    # What is behind the camera, or in it, cannot be drawn.
    drawn = (seen[..., 2].min(axis=2) > 0.1).tolist()
    shadows, limbs = seen[..., :2].tolist()
    dark = _scaled(look.tiles[0], 0.6)
    for geom, shadow in enumerate(shadows):
        if drawn[0][geom]:
            _limb(draw, shadow, 0.8 * thick[0][geom], dark, 0.0, flat=0.4)
    # Lit from above: the lighter parts of a limb are nearer to its upper edge.
    lights = ((1.0, 0.55), (0.78, 0.85), (0.42, 1.0 + look.shine))
    colours = [(share, _scaled(look.body, light)) for share, light in lights]
    for geom in np.argsort(-depths[1]).tolist():  # the farthest first: nearer limbs are drawn over it
        if drawn[1][geom]:
            radius = thick[1][geom]
            for share, colour in colours:
                _limb(draw, limbs[geom], share * radius, colour, (1 - share) * radius * 0.5)
    return np.asarray(image.reduce(OVERSAMPLING), np.uint8)


def _limb(
    draw: ImageDraw.ImageDraw,
    ends: list[list[float]],
    radius: float,
    colour: Colour,
    raised: float,
    flat: float = 1.0,
) -> None:
    """Draw a capsule of one colour, some pixels higher; `flat` squeezes its ends vertically, as of a shadow."""
    (x0, y0), (x1, y1) = ends
    y0, y1 = y0 - raised, y1 - raised
    if abs(x0 - x1) + abs(y0 - y1) > 0.5:
        draw.line((x0, y0, x1, y1), fill=colour, width=max(1, round(2 * radius * flat)))
        draw.ellipse((x1 - radius, y1 - radius * flat, x1 + radius, y1 + radius * flat), fill=colour)
    draw.ellipse((x0 - radius, y0 - radius * flat, x0 + radius, y0 + radius * flat), fill=colour)


def _scaled(colour: Colour, light: float) -> Colour:
    r, g, b = (min(255, round(part * light)) for part in colour)
    return r, g, b


@lru_cache(maxsize=16)  # a few cameras; one that tracks the body is never again where it was
def _scene(view: View, canvas: Size, look: HumanoidLook) -> np.ndarray:
    """Sky and floor without the humanoid: uint8[canvas height, canvas width, 3], by where each pixel's ray ends."""
    height, width = canvas
    slope = math.tan(math.radians(view.field_of_view) / 2)
    right = (np.arange(width) + 0.5 - width / 2) / (height / 2) * slope
    up = (height / 2 - np.arange(height) - 0.5) / (height / 2) * slope
    axes = view.axes
    rays = right[None, :, None] * axes[0] + up[:, None, None] * axes[1] + axes[2]
    rays /= np.linalg.norm(rays, axis=2, keepdims=True)
    sky_share = np.clip(np.degrees(np.arcsin(np.clip(rays[..., 2], 0, 1))) / SKY_HEIGHT, 0, 1)[..., None]
    top, bottom = np.array(look.sky_top, float), np.array(look.sky_bottom, float)
    picture = bottom + (top - bottom) * sky_share
    below = rays[..., 2] < -1e-3
    far = np.where(below, view.place[2] / np.where(below, -rays[..., 2], 1), np.inf)
    x, y = (view.place[axis] + np.where(below, far, 0) * rays[..., axis] for axis in (0, 1))
    odd = (np.floor(x / look.tile) + np.floor(y / look.tile)) % 2 > 0
    floor = np.where(odd[..., None], np.array(look.tiles[1], float), np.array(look.tiles[0], float))
    haze = 1 - np.exp2(-np.where(below, far, np.inf) / HAZE)
    picture = np.where(below[..., None], floor + (bottom - floor) * haze[..., None], picture)
    picture += look.roughness * value_noise(height, width, look.noise_seed)[..., None]
    pixels: np.ndarray = np.clip(picture, 0, 255).astype(np.uint8)
    return pixels
