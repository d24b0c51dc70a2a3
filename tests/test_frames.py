"""What environments render: brought into one form, or refused in a line."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from sightline.envs.frame_vector import FrameVectorEnv, episode_seeds
from sightline.envs.frames import checked_frame, rgb_frame
from sightline.envs.making import EnvMaker
from sightline.errors import RunFailed
from small_envs import Clock

RGB = np.random.default_rng(0).integers(0, 256, (6, 5, 3), np.uint8)
GREY = RGB[..., 0]
OPAQUE = np.concatenate([RGB, np.full((6, 5, 1), 255, np.uint8)], axis=2)
SPREAD = np.stack([GREY] * 3, axis=2)
TAKEN: dict[str, tuple[Any, np.ndarray]] = {
    "as it should be": (RGB, RGB),
    "RGBA": (OPAQUE, RGB),
    "floats": (RGB / 255, RGB),
    "floats of 32 bits, rounded beyond 1": ((RGB / 255).astype(np.float32) * np.float32(1.0001), RGB),
    "floats of RGBA": (OPAQUE / 255, RGB),
    "grey": (GREY, SPREAD),
    "grey with a channel": (GREY[..., None], SPREAD),
    "grey floats": (GREY / 255, SPREAD),
    "a batch of one": (RGB[None], RGB),
    "a tensor": (torch.from_numpy(RGB), RGB),
    "a tensor that gradients flow to, in a batch of one": (torch.from_numpy(RGB / 255)[None].requires_grad_(), RGB),
    "turned, without a copy": (RGB[::-1, ::-1], RGB[::-1, ::-1].copy()),
    "Pillow": (Image.fromarray(RGB), RGB),
    "Pillow, grey": (Image.fromarray(GREY), SPREAD),
    "nested lists": (RGB.astype(float).__truediv__(255).tolist(), RGB),
    "a mesh of one pixel": (RGB[:1, :1], RGB[:1, :1]),
}
REFUSED: dict[str, tuple[Any, str]] = {
    "nothing": (None, "render() returned nothing"),
    "text": ("+---+\n| o |", "the text '+---+"),
    "a dictionary": ({"front": RGB, "top": RGB}, "a dictionary of front, top"),
    "channels first": (RGB.transpose(2, 0, 1), "uint8[3, 6, 5]"),
    "several frames": ([RGB, RGB], "uint8[2, 6, 5, 3]"),
    "no frames": ([], "float64[0]"),
    "unequal parts": ([RGB, RGB[1:]], "a list"),
    "two channels": (RGB[..., :2], "uint8[6, 5, 2]"),
    "floats up to 255": (RGB.astype(np.float32), "float32[6, 5, 3] with values from 0 to 248"),
    "floats from -1": (RGB / 127.5 - 1, "with values from -1 to 0.9451"),
    "NaN": (np.full((6, 5, 3), np.nan), "with values from nan to nan"),
    "integers": (RGB.astype(np.int64), "int64[6, 5, 3]"),
    "truth values": (RGB > 9, "bool[6, 5, 3]"),
    "no pixels": (np.zeros((0, 5, 3), np.uint8), "uint8[0, 5, 3]"),
    "a window": (True, "render() returned True, as if into a window; it must heed render_mode='rgb_array'"),
    "objects": (np.array([object()]), "rendered a ndarray"),
}


@pytest.mark.parametrize("case", list(TAKEN))
def test_pictures_of_other_forms_are_converted(case: str) -> None:
    rendered, expected = TAKEN[case]
    frame = checked_frame(rendered)
    assert frame.dtype == np.uint8
    assert frame.flags.c_contiguous
    np.testing.assert_array_equal(frame, expected)


@pytest.mark.parametrize("case", list(REFUSED))
def test_what_is_no_picture_is_refused_in_a_line(case: str) -> None:
    rendered, said = REFUSED[case]
    with pytest.raises(RunFailed) as caught:
        checked_frame(rendered)
    assert said in str(caught.value)
    assert "uint8[H, W, 3]" in str(caught.value)
    assert "\n" not in str(caught.value)


class OnOneCanvas(Clock):
    """Draws on one canvas all the time, and returns it."""

    canvas = np.zeros((4, 4, 3), np.uint8)

    def render(self) -> np.ndarray:
        self.canvas[:] = self.time
        return self.canvas


def test_a_frame_outlives_the_renderers_canvas() -> None:
    env = OnOneCanvas(render_mode="rgb_array")
    env.reset(seed=0)
    before = rgb_frame(env)
    env.step(np.int64(0))
    assert rgb_frame(env).max() == 1
    assert before.max() == 0


class Broken(Clock):
    """Cannot render, for a reason of its own or for want of a display."""

    error: Exception = ZeroDivisionError("division by zero")

    def render(self) -> np.ndarray:
        raise self.error


@pytest.mark.parametrize(
    ("error", "advice"),
    [
        (ZeroDivisionError("no zoom"), "fix its render()"),
        (ImportError("Cannot initialize an EGL device display"), "sightline doctor"),
        (KeyError("camera"), "fix its render()"),
    ],
)
def test_an_error_of_a_renderer_keeps_its_class_and_place(error: Exception, advice: str) -> None:
    env = Broken(render_mode="rgb_array")
    env.error = error
    env.reset(seed=0)
    with pytest.raises(RunFailed) as caught:
        rgb_frame(env)
    line = str(caught.value)
    assert line.startswith(f"the environment could not render: {type(error).__name__}: {error} (test_frames.py:")
    assert advice in line
    assert ("doctor" in line) == ("EGL" in str(error))


def test_grey_frames_are_trained_from() -> None:
    envs = FrameVectorEnv(EnvMaker("small_envs:Grey"), 2, episode_seeds(0))
    try:
        envs.reset()
        frames = envs.step(np.zeros(2, np.int64)).frames
        assert frames is not None
        np.testing.assert_array_equal(frames, np.ones((2, 16, 16, 3), np.uint8))
    finally:
        envs.close()
