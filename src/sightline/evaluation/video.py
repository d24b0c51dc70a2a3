"""Videos of a policy's frames with the reward curve below them."""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

OVERSAMPLING = 2
"""Oversampling factor: the strip is drawn this much larger and averaged down, which smooths lines and letters."""
MIN_HEIGHT = 384
"""Minimum height in pixels, to which smaller pictures are enlarged by a whole factor."""
MAX_HEIGHT = 512
"""Maximum height in pixels, to which larger pictures are made smaller."""
MIN_WIDTH = 256
"""Minimum width in pixels; narrower pictures get margins, so that the caption has room."""

# Colours of the strip: its ground and upper edge, the reward as a number, the caption; the curve to come, the curve so
# far, and the dot at its end.
PAPER = "#FFFFFF"
RULE = "#DCE2E8"
INK = "#334155"
MUTED = "#64748B"
AHEAD = "#CDD5DE"
PAST = "#0072B2"
NOW = "#D55E00"


def at_video_size(frames: np.ndarray) -> np.ndarray:
    """Frames uint8[N, H, W, 3], made smaller where they are taller than videos are: uint8[N, h, w, 3]."""
    height, width = frames.shape[1:3]
    if height <= MAX_HEIGHT:
        return frames
    from PIL import Image

    size = (max(1, round(width * MAX_HEIGHT / height)), MAX_HEIGHT)
    small = [Image.fromarray(frame).resize(size, Image.Resampling.BOX) for frame in frames]
    return np.stack([np.asarray(picture) for picture in small])


class Reel(Sequence[np.ndarray]):
    """Frames of an episode, uint8[H, W, 3] each and all of one size, compressed without loss.

    A thousand frames of a video's size would take a gigabyte as an array.
    """

    def __init__(self, frames: Iterable[np.ndarray] = ()) -> None:
        self._compressed: list[bytes] = []
        self._shape: tuple[int, ...] = ()
        for frame in frames:
            self.append(frame)

    def append(self, frame: np.ndarray) -> None:
        """Add a frame at the end."""
        self._shape = frame.shape
        self._compressed.append(zlib.compress(frame.tobytes(), 1))

    def __len__(self) -> int:
        return len(self._compressed)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self[place] for place in range(*index.indices(len(self)))]
        pixels = zlib.decompress(self._compressed[index])
        return np.frombuffer(pixels, np.uint8).reshape(self._shape)

    @property
    def shape(self) -> tuple[int, ...]:
        """(T, H, W, 3)."""
        return (len(self), *self._shape)


@dataclass(frozen=True)
class Film:
    """Episode to be shown: T frames, rewards float[T], and one line about it."""

    frames: Reel
    rewards: np.ndarray
    fps: int
    caption: str


def write_scored_video(
    path: Path,
    frames: np.ndarray | Reel,
    rewards: np.ndarray,
    fps: int,
    caption: str,
    limits: tuple[float, float] | None = None,
) -> None:
    """Write an H.264 video that shows each frame above the curve of its rewards.

    The video is written beside `path` and renamed when it is whole, so a killed process leaves no half video there.

    Args:
        path: path of the video, `….mp4`; its folder is created if missing.
        frames: uint8[T, H, W, 3], T >= 1.
        rewards: float[T]; those that are not finite leave gaps in the curve.
        caption: one line below the picture, cut where it is too long.
        limits: rewards at the bottom and at the top of the strip; equal limits make two videos comparable. Default:
            the lowest and the highest of `rewards`.
    """
    import imageio.v2 as imageio

    are_pictures = len(frames) > 0 and frames[0].dtype == np.uint8 and len(frames.shape) == 4 and frames.shape[3] == 3
    if not are_pictures:
        raise ValueError(f"frames must be uint8[T, H, W, 3] with T >= 1, not {list(frames.shape)}")
    if rewards.shape != (len(frames),):
        raise ValueError(f"{len(frames)} frames need as many rewards, not an array of shape {list(rewards.shape)}")
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.stem}.part.mp4")
    try:
        writer: Any = imageio.get_writer(
            os.path.abspath(part),  # imageio takes a `~` at the beginning for the home folder
            format="FFMPEG",
            fps=fps,
            codec="libx264",
            pixelformat="yuv420p",
            quality=7,
            macro_block_size=2,
            ffmpeg_log_level="error",  # it warns of films of a few frames
            # Three fifths of the usual preset's time, for files that are an eighth larger.
            output_params=["-preset", "veryfast", "-movflags", "+faststart", "-threads", "1"],
        )
        # Used as a context itself, imageio's writer would leave FFmpeg running after an error.
        with closing(writer):
            for picture in _scored_pictures(frames, rewards, caption, limits or _limits(rewards)):
                writer.append_data(picture)
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)


def _limits(rewards: np.ndarray) -> tuple[float, float]:
    finite = rewards[np.isfinite(rewards)]
    if not len(finite):
        return 0.0, 0.0
    return float(finite.min()), float(finite.max())


def _scored_pictures(
    frames: np.ndarray | Reel, rewards: np.ndarray, caption: str, limits: tuple[float, float]
) -> Iterator[np.ndarray]:
    """Compose each frame, enlarged, above its strip: uint8[H', W', 3] with even sides."""
    height, width = frames.shape[1:3]
    factor = -(-MIN_HEIGHT // height)
    full_width = _even(max(width * factor, MIN_WIDTH))
    full_height = _even(height * factor)
    # Margins, white, put the frame into the middle.
    top = (full_height - height * factor) // 2
    left = (full_width - width * factor) // 2
    strip = _Strip(full_width, rewards, caption, limits)
    for index, frame in enumerate(frames):
        picture = np.full((full_height, full_width, 3), 255, np.uint8)
        enlarged = frame.repeat(factor, axis=0).repeat(factor, axis=1)
        picture[top : top + height * factor, left : left + width * factor] = enlarged
        yield np.concatenate([picture, strip.at(index)])


def _even(size: int) -> int:
    """The size, or one more: H.264 stores colours of two by two pixels."""
    return size + size % 2


class _Strip:
    """Strip with the reward curve, which grows from frame to frame; the range is fixed in advance.

    Only the new part is drawn for each frame: the curve so far stays on one canvas.
    """

    def __init__(self, width: int, rewards: np.ndarray, caption: str, limits: tuple[float, float]) -> None:
        from PIL import Image, ImageDraw

        self._rewards = rewards
        self._unit = width * OVERSAMPLING / 384  # all lengths below are for a strip 384 pixels wide
        self._font = _font(round(15 * self._unit))
        height = _even(round(width * 0.27))
        self._canvas = Image.new("RGB", (width * OVERSAMPLING, height * OVERSAMPLING), PAPER)
        self._points = self._place_points(limits)
        draw = ImageDraw.Draw(self._canvas)
        draw.line((0, 0, self._canvas.width, 0), fill=RULE, width=round(2 * self._unit))
        for index in range(1, len(rewards)):
            self._draw_segment(draw, index, AHEAD, 1.5)
        # The caption, left of the reward as a number.
        room = self._canvas.width - 28 * self._unit - self._font.getlength("−0.0000")
        text = _shortened(caption, self._font, room)
        draw.text((14 * self._unit, 9 * self._unit), text, fill=MUTED, font=self._font)

    def at(self, index: int) -> np.ndarray:
        """Draw the strip at a frame: uint8[height, width, 3]; frames must be asked for in order."""
        from PIL import ImageDraw

        self._draw_segment(ImageDraw.Draw(self._canvas), index, PAST, 2.5)
        # The number and the dot are of this frame alone: they go onto a copy.
        strip = self._canvas.copy()
        draw = ImageDraw.Draw(strip)
        text = "no value"
        reward = self._rewards[index]
        if np.isfinite(reward):
            text = f"{reward:.3f}".replace("-", "−")
        right = strip.width - 14 * self._unit
        draw.text((right, 9 * self._unit), text, fill=INK, font=self._font, anchor="ra")
        if np.isfinite(reward):
            x, y = self._points[index]
            radius = 4.5 * self._unit
            draw.ellipse((x - radius, y - radius, x + radius, y + radius), fill=NOW)
        return np.asarray(strip.reduce(OVERSAMPLING))

    def _place_points(self, limits: tuple[float, float]) -> list[tuple[float, float]]:
        """Positions (x, y) of the rewards on the canvas."""
        low, high = limits
        heights = np.full(len(self._rewards), 0.5)  # from 0, at the bottom, to 1; a constant reward lies in the middle
        if high > low:
            heights = ((self._rewards - low) / (high - low)).clip(0, 1)
        left = 16 * self._unit
        right = self._canvas.width - 16 * self._unit
        top = 40 * self._unit
        bottom = self._canvas.height - 14 * self._unit
        x = np.linspace(left, right, len(self._rewards))
        y = bottom - heights * (bottom - top)
        return list(zip(x.tolist(), y.tolist(), strict=True))

    def _draw_segment(self, draw: Any, index: int, colour: str, width: float) -> None:
        """Draw the line from the previous reward to this one."""
        if index > 0 and np.isfinite(self._rewards[index - 1 : index + 1]).all():
            draw.line((self._points[index - 1], self._points[index]), fill=colour, width=round(width * self._unit))


def _font(size: int) -> Any:
    """Font of the strip: DejaVu Sans, which comes with matplotlib and knows most alphabets."""
    import matplotlib
    from PIL import ImageFont

    return ImageFont.truetype(Path(matplotlib.get_data_path()) / "fonts" / "ttf" / "DejaVuSans.ttf", size)


def _shortened(text: str, font: Any, room: float) -> str:
    text = " ".join(text.split())
    if font.getlength(text) <= room:
        return text
    while text and font.getlength(text + "…") > room:
        text = text[:-1]
    return text.rstrip() + "…"
