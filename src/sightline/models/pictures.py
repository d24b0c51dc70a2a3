"""A picture on its way to a model."""

from __future__ import annotations

import base64
import hashlib
import io
from dataclasses import dataclass
from functools import cached_property

import numpy as np


@dataclass(frozen=True, eq=False)
class Picture:
    """A picture: uint8[H, W, 3]. Equal pictures have equal digests."""

    pixels: np.ndarray

    @cached_property
    def digest(self) -> str:
        """16 hexadecimal digits that change with the size and with any pixel."""
        shape = str(self.pixels.shape).encode()
        return hashlib.sha256(shape + np.ascontiguousarray(self.pixels).tobytes()).hexdigest()[:16]

    @cached_property
    def png(self) -> bytes:
        """The picture as a PNG file: no loss, and every provider reads it. Made once, quickly rather than small."""
        from PIL import Image

        file = io.BytesIO()
        Image.fromarray(self.pixels).save(file, "PNG", compress_level=1)
        return file.getvalue()

    @property
    def base64(self) -> str:
        return base64.b64encode(self.png).decode()
