"""Cameras: where a picture is taken from, for MuJoCo's renderer and for pictures that we draw ourselves."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from sightline.errors import BadInput, one_of


@dataclass(frozen=True)
class View:
    """Pose of a camera. It never rolls, so frames are always upright and never mirrored.

    Attributes:
        look_at: x, y and z (up) of the middle of the picture, in metres.
        distance: from there, in metres.
        azimuth: horizontal direction of sight in degrees: 0 looks along x, 90 along y.
        elevation: degrees above the horizontal; negative looks down.
        field_of_view: vertical, in degrees.

    Raises:
        ValueError: a number is missing, not finite, or impossible.
    """

    look_at: tuple[float, float, float]
    distance: float
    azimuth: float
    elevation: float
    field_of_view: float = 45.0

    def __post_init__(self) -> None:
        numbers = (*self.look_at, self.distance, self.azimuth, self.elevation, self.field_of_view)
        if len(self.look_at) != 3 or not all(math.isfinite(number) for number in numbers):
            raise ValueError("look_at must be three numbers, and the others one each")
        if self.distance <= 0 or not 0 < self.field_of_view < 180:
            raise ValueError("distance must be above 0, and field_of_view between 0 and 180 degrees")

    @cached_property
    def axes(self) -> np.ndarray:
        """float64[3, 3], rows: the picture's right, its up, and the direction of sight."""
        azimuth, elevation = math.radians(self.azimuth), math.radians(self.elevation)
        level = math.cos(elevation)
        sight = np.array([level * math.cos(azimuth), level * math.sin(azimuth), math.sin(elevation)])
        right = np.array([math.sin(azimuth), -math.cos(azimuth), 0.0])
        return np.stack([right, np.cross(right, sight), sight])

    @cached_property
    def place(self) -> np.ndarray:
        """float64[3], where the camera is, in metres."""
        return np.asarray(np.asarray(self.look_at) - self.distance * self.axes[2])

    def project(self, points: np.ndarray) -> np.ndarray:
        """Project points float[..., 3] of the world: [..., 3] of right, down (fractions of a square picture, 0.5 is the
        middle) and depth in metres. Points behind the camera have a negative depth."""
        seen = (points - self.place) @ self.axes.T
        depth = seen[..., 2]
        size = 2 * math.tan(math.radians(self.field_of_view) / 2) * np.where(np.abs(depth) < 1e-6, 1e-6, depth)
        return np.stack([0.5 + seen[..., 0] / size, 0.5 - seen[..., 1] / size, depth], axis=-1)


Camera = str | View | Mapping[str, Any]
"""What a user names a camera by: a preset, a view, or its fields."""


def view_of(camera: Camera, presets: Mapping[str, View]) -> View:
    """The view of a preset, or of a user.

    Raises:
        BadInput: there is no camera of that name, or the fields are not a view's.
    """
    if isinstance(camera, View):
        return camera
    if isinstance(camera, str):
        return presets[one_of("camera", camera, presets)]
    try:
        fields = dict(camera)
        return View(**fields | {"look_at": tuple(float(part) for part in fields["look_at"])})
    except (TypeError, KeyError, ValueError) as error:
        raise BadInput(
            "camera must be a name or have look_at: [x, y, z], distance (above 0), azimuth and elevation (and "
            f"field_of_view, between 0 and 180), not {camera!r:.80}"
        ) from error
