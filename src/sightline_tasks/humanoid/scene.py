"""Two scenes for MuJoCo's renderer: Gymnasium's own, and one with a sky, a stone floor and a metal body.

The textures are computed here, from smooth noise; no picture is loaded. The bodies, and so the physics, are the same.
"""

from __future__ import annotations

import io
from functools import cache
from pathlib import Path
from typing import Literal
from xml.etree import ElementTree

import numpy as np
from PIL import Image

from sightline_tasks.drawing import value_noise

Scene = Literal["original", "textured"]

PIXELS = 256
"""Height and width of a texture."""


@cache
def scene_xml(scene: Scene) -> tuple[str, dict[str, bytes]]:
    """MuJoCo's text of the humanoid in a scene, and the files that it names."""
    import gymnasium.envs

    text = (Path(gymnasium.envs.__path__[0]) / "mujoco" / "assets" / "humanoid.xml").read_text(encoding="utf-8")
    if scene == "original":
        return text, {}
    # The same bodies with other materials and another light.
    root = ElementTree.fromstring(text)
    textures = {"sky": ("skybox", _sky()), "stone": ("2d", _stone()), "metal": ("cube", _metal())}
    assets = root.find("asset")
    light = root.find("worldbody/light")
    assert assets is not None and light is not None
    assets.clear()
    for name, (kind, _) in textures.items():
        ElementTree.SubElement(assets, "texture", name=name, type=kind, file=f"{name}.png")
    # The names of the materials are those that the geoms of the original refer to.
    plain = {"reflectance": "0", "shininess": "0", "specular": "0"}
    ElementTree.SubElement(assets, "material", plain, name="MatPlane", texture="stone", texrepeat="20 20")
    ElementTree.SubElement(assets, "material", name="geom", texture="metal", shininess="1", specular="1")
    light.attrib |= {"diffuse": "1 1 1", "specular": ".5 .5 .5", "pos": "0 0 1", "dir": "0 0 -1.5"}
    for geom in root.iter("geom"):
        geom.attrib.pop("rgba", None)
    default = root.find("default/geom")
    assert default is not None
    default.attrib["rgba"] = "1 1 1 1"
    files = {f"{name}.png": png for name, (_, png) in textures.items()}
    return ElementTree.tostring(root, encoding="unicode"), files


def _sky() -> bytes:
    """Blue above, bright at the horizon (which is in the middle), with clouds."""
    down = np.linspace(-1, 1, PIXELS)[:, None, None]
    horizon = np.array([214, 226, 238.0])
    zenith = np.array([86, 132, 196.0])
    sky = horizon + np.clip(-down, 0, 1) * (zenith - horizon)
    clouds = np.clip(value_noise(PIXELS, PIXELS, 3), 0, 1)[..., None] * 90
    return _png(sky + clouds)


def _stone() -> bytes:
    """Four grey tiles with joints between them."""
    half = PIXELS // 2
    tiles = np.full((PIXELS, PIXELS), 96.0)
    tiles[:half, :half] += 12
    tiles[half:, half:] += 8
    place = np.arange(PIXELS) % half
    is_joint = np.minimum(place, half - 1 - place) < 2
    tiles[is_joint] = 60
    tiles[:, is_joint] = 60
    grey = tiles + 22 * value_noise(PIXELS, PIXELS, 5)
    return _png(grey[..., None].repeat(3, axis=2))


def _metal() -> bytes:
    """Light grey, brushed along one direction."""
    strokes = np.random.default_rng(7).normal(0, 7, (PIXELS, 1)).repeat(PIXELS, axis=1)
    grey = 196 + strokes + 6 * value_noise(PIXELS, PIXELS, 8)
    return _png(grey[..., None].repeat(3, axis=2))


def _png(pixels: np.ndarray) -> bytes:
    file = io.BytesIO()
    Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8)).save(file, "PNG")
    return file.getvalue()
