"""Frames are scaled in one call of torch, as Pillow scales them one by one but for the last digit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from PIL import Image
from scipy.stats import spearmanr

from conftest import SIZES, write_open_clip_encoder
from sightline.errors import BadInput
from sightline.models.encoders import load_encoder
from sightline.models.resizing import resized_by_pillow, resized_by_torch, scaled_pixels
from sightline.rewards.zero_shot import ZeroShotReward
from test_encoders import CLIPS_OWN, write_hugging_face_encoder

pytestmark = pytest.mark.quick
BILINEAR, BICUBIC = Image.Resampling.BILINEAR, Image.Resampling.BICUBIC
WIDE = [(400, 600), (480, 480), (33, 200), (20, 30)]
TALL = [(131, 77), (160, 90), (7, 5)]


def noise(count: int, height: int, width: int) -> np.ndarray:
    return np.random.default_rng(5).integers(0, 256, (count, height, width, 3), np.uint8)


def drawn_frames() -> np.ndarray:
    """Frames of an environment of Gymnasium at its own size, uint8[60, 400, 600, 3]."""
    env = gymnasium.make("CartPole-v1", render_mode="rgb_array")
    env.reset(seed=0)
    env.action_space.seed(0)
    frames: list[Any] = []
    while len(frames) < 60:
        frames.append(env.render())
        if env.step(env.action_space.sample())[2]:
            env.reset()
    env.close()
    return np.stack(frames)


@pytest.mark.parametrize("resample", [BILINEAR, BICUBIC])
@pytest.mark.parametrize("shape", WIDE)
def test_torch_scales_as_pillow_does(shape: tuple[int, int], resample: int) -> None:
    frames = noise(3, *shape)
    for size in ((64, 64), (24, 40)):
        difference = resized_by_torch(frames, size, resample).astype(int) - resized_by_pillow(frames, size, resample)
        # Noise is the worst there is.
        assert np.abs(difference).max() <= 1
        assert (difference != 0).mean() < 0.02


@pytest.mark.parametrize("resample", [BILINEAR, BICUBIC])
@pytest.mark.parametrize("shape", TALL)
def test_tall_frames_are_alike(shape: tuple[int, int], resample: int) -> None:
    """Newer versions of Pillow take the rows of tall frames first, and round between the two directions."""
    frames = noise(3, *shape)
    difference = resized_by_torch(frames, (64, 64), resample).astype(int) - resized_by_pillow(
        frames, (64, 64), resample
    )
    assert np.abs(difference).mean() < 0.4
    assert abs(difference.mean()) < 0.01


def test_drawn_frames_are_hardly_ever_off() -> None:
    frames = drawn_frames()
    by_torch = resized_by_torch(frames, (224, 224), BICUBIC)
    difference = by_torch.astype(int) - resized_by_pillow(frames, (224, 224), BICUBIC)
    assert np.abs(difference).max() <= 1
    assert (difference != 0).mean() < 1e-3


def test_rewards_rank_alike_by_either_way(bundled: Any) -> None:
    exact = load_encoder("bundled", device="cpu", resizing="pillow")
    frames = drawn_frames()
    goal, baseline = "a pole vertically upright on top of the cart", "a pole and cart"
    rewards = [ZeroShotReward(goal, baseline, encoder=encoder)(frames) for encoder in (bundled, exact)]
    assert np.ptp(rewards[0]) > 0.01
    assert spearmanr(*rewards).statistic > 0.9999


@pytest.mark.parametrize("resample", [BILINEAR, BICUBIC])
def test_frames_of_other_devices_are_scaled_in_floats(monkeypatch: pytest.MonkeyPatch, resample: int) -> None:
    """Operations on whole numbers are the processor's own; floats are rounded where it rounds."""

    class Elsewhere:
        type = "elsewhere"

    class OnDevice(torch.Tensor):
        device = Elsewhere()  # type: ignore[assignment]

    frames = noise(2, 90, 160)
    pixels = torch.from_numpy(frames).permute(0, 3, 1, 2)
    mode = "bicubic" if resample == BICUBIC else "bilinear"
    scaled = scaled_pixels(pixels.as_subclass(OnDevice), (64, 64), mode)
    assert scaled.dtype == torch.uint8
    exact = resized_by_pillow(frames, (64, 64), resample)
    assert np.abs(scaled.as_subclass(torch.Tensor).permute(0, 2, 3, 1).numpy().astype(int) - exact).max() <= 1


def test_interpolations_that_torch_lacks_are_pillows() -> None:
    frames = noise(2, 50, 70)
    lanczos = int(Image.Resampling.LANCZOS)
    expected = np.stack([np.asarray(Image.fromarray(frame).resize((20, 16), lanczos)) for frame in frames])
    np.testing.assert_array_equal(resized_by_torch(frames, (16, 20), lanczos), expected)


def test_what_is_of_that_size_stays_as_it_is() -> None:
    frames = noise(2, 8, 12)
    assert resized_by_torch(frames, (8, 12), BICUBIC) is frames
    assert resized_by_torch(frames[:0], (4, 4), BICUBIC).shape == (0, 4, 4, 3)


def test_flat_colours_and_edges() -> None:
    flat = np.full((1, 30, 50, 3), 77, np.uint8)
    assert (resized_by_torch(flat, (9, 11), BILINEAR) == 77).all()
    left = np.zeros((1, 40, 60, 3), np.uint8)
    left[:, :, :30, 0] = 200
    small = resized_by_torch(left, (10, 16), BILINEAR)
    assert small.shape == (1, 10, 16, 3)
    assert (small[0, :, :7, 0] == 200).all()
    assert (small[0, :, 9:] == 0).all()


def test_frames_that_may_not_be_written_into(recwarn: pytest.WarningsRecorder) -> None:
    frames = noise(2, 50, 70)
    frames.flags.writeable = False
    upside_down = frames[:, ::-1]
    expected = resized_by_pillow(upside_down, (16, 16), BICUBIC)
    assert np.abs(resized_by_torch(upside_down, (16, 16), BICUBIC).astype(int) - expected).max() <= 1
    assert not recwarn.list


@pytest.mark.parametrize("shape", [(48, 72), (73, 48), (20, 51), (16, 90), (131, 77)])
def test_the_middle_square_is_cut_where_open_clip_cuts_it(tmp_path: Path, shape: tuple[int, int]) -> None:
    write_open_clip_encoder(tmp_path / "model", SIZES["small"], CLIPS_OWN)
    frames = noise(2, *shape)
    both = [
        load_encoder(f"local-dir:{tmp_path / 'model'}", device="cpu", resizing=resizing).shrink_frames(frames)
        for resizing in ("torch", "pillow")
    ]
    assert both[0].shape == both[1].shape
    difference = np.abs(both[0].astype(int) - both[1])
    # A square that is cut one column beside would differ by 80 on average.
    assert difference.mean() < 0.4


def test_processors_of_hugging_face_resize_by_themselves(tmp_path: Path) -> None:
    write_hugging_face_encoder(tmp_path, "clip")
    with pytest.raises(BadInput, match="resizes frames by its own processor; leave resizing=pillow out"):
        load_encoder(f"hf:{tmp_path}", device="cpu", resizing="pillow")
