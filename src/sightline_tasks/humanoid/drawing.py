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
    "original": HumanoidLook(
        sky_top=(15, 18, 22),
        sky_bottom=(102, 128, 153),
        tiles=((20, 22, 20), (163, 184, 163)),
        body=(204, 153, 102),
    ),
    "textured": HumanoidLook(
        sky_top=(86, 132, 196),
        sky_bottom=(214, 226, 238),
        tiles=((88, 86, 84), (104, 102, 99)),
        body=(190, 192, 196),
        tile=0.4,
        roughness=14.0,
        shine=0.5,
        noise_seed=3,
    ),
}


def draw_humanoid(ends: np.ndarray, radii: np.ndarray, view: View, size: Size, look: HumanoidLook) -> np.ndarray:
    """Picture of a humanoid: uint8[height, width, 3].

    Args:
        ends: [geoms, 2, 3], both ends of each capsule's axis (equal for spheres), metres.
        radii: [geoms], metres.
    """
    height = size[0] * OVERSAMPLING
    width = size[1] * OVERSAMPLING
    image = Image.fromarray(_scene(view, (height, width), look))
    draw = ImageDraw.Draw(image)
    focal = height / (2 * math.tan(math.radians(view.field_of_view) / 2))  # pixels per metre at a metre's distance

    # Shadows on the floor and limbs, in one go: NumPy's calls would take longer than the drawing.
    # [shadow or limb, geoms, 2 ends, 3]: across and down in pixels, depth in metres.
    on_floor = ends * np.array([1.0, 1.0, 0.0])
    projected = view.project(np.stack([on_floor, ends]))
    projected[..., 0] = (projected[..., 0] - 0.5) * height + width / 2
    projected[..., 1] *= height
    depths = projected[..., 2].mean(axis=2)
    pixel_radii = (radii * focal / depths).tolist()
    # What is behind the camera, or in it, cannot be drawn.
    is_visible = (projected[..., 2].min(axis=2) > 0.1).tolist()
    shadows, limbs = projected[..., :2].tolist()
    dark = _scaled(look.tiles[0], 0.6)
    for geom, shadow in enumerate(shadows):
        if is_visible[0][geom]:
            _limb(draw, shadow, 0.8 * pixel_radii[0][geom], dark, 0.0, flat=0.4)
    # Lit from above: the lighter parts of a limb are nearer to its upper edge.
    lights = ((1.0, 0.55), (0.78, 0.85), (0.42, 1.0 + look.shine))
    colours = [(share, _scaled(look.body, light)) for share, light in lights]
    for geom in np.argsort(-depths[1]).tolist():  # the farthest first: nearer limbs are drawn over it
        if is_visible[1][geom]:
            radius = pixel_radii[1][geom]
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
    y0 -= raised
    y1 -= raised
    # Of a limb that points at the camera, one end is enough.
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
    # Sky: from the colour at the horizon to that above, by the angle of the ray.
    elevation = np.degrees(np.arcsin(np.clip(rays[..., 2], 0, 1)))
    sky_share = np.clip(elevation / SKY_HEIGHT, 0, 1)[..., None]
    top = np.array(look.sky_top, float)
    bottom = np.array(look.sky_bottom, float)
    picture = bottom + (top - bottom) * sky_share
    # Floor: the place where a ray that goes down meets it.
    below = rays[..., 2] < -1e-3
    distance = np.where(below, view.place[2] / np.where(below, -rays[..., 2], 1), np.inf)
    x, y = (view.place[axis] + np.where(below, distance, 0) * rays[..., axis] for axis in (0, 1))
    is_odd = (np.floor(x / look.tile) + np.floor(y / look.tile)) % 2 > 0
    even_tile = np.array(look.tiles[0], float)
    odd_tile = np.array(look.tiles[1], float)
    floor = np.where(is_odd[..., None], odd_tile, even_tile)
    # Far away it takes on the colour of the horizon.
    haze = 1 - np.exp2(-np.where(below, distance, np.inf) / HAZE)
    picture = np.where(below[..., None], floor + (bottom - floor) * haze[..., None], picture)
    picture += look.roughness * value_noise(height, width, look.noise_seed)[..., None]
    pixels: np.ndarray = np.clip(picture, 0, 255).astype(np.uint8)
    return pixels
