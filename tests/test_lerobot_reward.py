"""Reward models in LeRobot's form, on batches as its datasets give them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from conftest import SENTENCES
from sightline.errors import BadInput
from sightline.models.encoders import load_encoder
from sightline.rewards.base import Clip, Need, RewardModel, windows
from sightline.rewards.ground_truth import GroundTruthReward
from sightline.rewards.lerobot import LeRobotReward
from sightline.rewards.zero_shot import ZeroShotReward

KEY = "observation.images.top"


class Rise(RewardModel):
    """The last frame's brightness minus that of the frame two steps before."""

    window = 3

    def reward(self, clip: Clip) -> np.ndarray:
        assert isinstance(clip.frames, np.ndarray)
        seen = windows(clip.frames.astype(np.float32).mean(axis=(2, 3, 4)), clip.first, 3)
        return np.asarray(seen[:, :, 2] - seen[:, :, 0])


class Told(RewardModel):
    """The length of the instruction, plus the first number of the state."""

    needs: frozenset[Need] = frozenset({"states"})

    def reward(self, clip: Clip) -> np.ndarray:
        assert clip.states is not None
        return np.asarray(clip.states[..., 0] + len(clip.instruction or ""), np.float32)


class Both(Told):
    """The same, of a model that looks at frames too."""

    needs: frozenset[Need] = frozenset({"frames", "states"})


def images(frames: np.ndarray) -> torch.Tensor:
    """[…, H, W, 3] -> float[…, 3, H, W] from 0 to 1."""
    return torch.from_numpy(np.moveaxis(frames, -1, -3).astype(np.float32) / 255)


def test_rewards_are_those_of_the_frames(
    encoder_folder: Callable[[str], Path], frames_of: Callable[..., np.ndarray]
) -> None:
    encoder = load_encoder(f"local-dir:{encoder_folder('small')}", device="cpu")
    model = ZeroShotReward(SENTENCES[0], SENTENCES[2], encoder=encoder)
    frames = frames_of(6, 20, 30)
    expected = model(frames)
    floats = images(frames)
    for batch in (floats, (floats * 255).round().to(torch.uint8)):
        rewards = LeRobotReward(model).compute_reward({KEY: batch, "action": torch.zeros(6, 2)})
        assert rewards.shape == (6,)
        assert rewards.dtype == torch.float32
        np.testing.assert_allclose(rewards.numpy(), expected, atol=1e-6)
    # With a time axis the last frame counts.
    clips = images(frames.reshape(2, 3, 20, 30, 3))
    rewards = LeRobotReward(model, image_key="view").compute_reward({"view": clips})
    np.testing.assert_allclose(rewards.numpy(), expected[[2, 5]], atol=1e-6)


def test_a_window_is_read_in_order_of_time() -> None:
    grey = np.array([[10, 20, 40, 90], [7, 7, 50, 0]], np.uint8)
    clips = images(np.broadcast_to(grey[:, :, None, None, None], (2, 4, 5, 6, 3)))
    adapter = LeRobotReward(Rise())
    adapter.reset()
    assert adapter.compute_reward({KEY: clips}).tolist() == [70, -7]
    assert adapter.compute_reward({KEY: clips[:, 0]}).tolist() == [0, 0], "nothing is remembered"


def test_instructions_and_states() -> None:
    states = torch.tensor([[0.5, 9], [1.5, 9], [2.5, 9]])
    adapter = LeRobotReward(Told())
    assert adapter.compute_reward({"observation.state": states, "task": "fold"}).tolist() == [4.5, 5.5, 6.5]
    batch = {"observation.state": states[:, None], "task": ["fold", "sweep", "fold"]}
    assert adapter.compute_reward(batch).tolist() == [4.5, 6.5, 6.5]
    assert adapter.compute_reward({"observation.state": states}).tolist() == [0.5, 1.5, 2.5]


@pytest.mark.parametrize(
    ("model", "batch", "expected"),
    [
        (Rise(), {"observation.images.side": torch.zeros(1, 3, 4, 4)}, "has no 'observation.images.top'; it has: obs"),
        (Rise(), {KEY: torch.zeros(2, 4, 4, 3)}, r"\[B, 3, H, W\] or \[B, T, 3, H, W\], not \[2, 4, 4, 3\]"),
        (Rise(), {KEY: torch.zeros(2, 3, 4, 4, dtype=torch.int64)}, "not torch.int64"),
        (GroundTruthReward(), {}, "neither frames nor states"),
        (Rise(), {KEY: torch.full((2, 3, 4, 4), 255.0)}, "holds floats that are not from 0 to 1"),
        (Rise(), {KEY: torch.full((2, 3, 4, 4), -0.5)}, "holds floats that are not from 0 to 1"),
        (Rise(), {KEY: torch.full((2, 3, 4, 4), torch.nan)}, "holds floats that are not from 0 to 1"),
        (Rise(), {KEY: torch.zeros(2, 0, 3, 4, 4)}, "the time axis of the batch is empty"),
        (Rise(), {KEY: torch.zeros(3, 3, 4, 4), "task": ["a", "b"]}, "3 samples and 2 tasks"),
        (Rise(), {KEY: torch.zeros(3, 3, 4, 4), "task": ["a"] * 4}, "3 samples and 4 tasks"),
        (Told(), {"observation.state": torch.zeros(3)}, r"must be \[B, D\] or \[B, T, D\], not \[3\]"),
        (Told(), {"observation.state": torch.zeros(3, 0, 2)}, "the time axis of the batch is empty"),
        (
            Both(),
            {KEY: torch.zeros(3, 3, 4, 4), "observation.state": torch.zeros(2, 1, 5)},
            "images of 3 samples of 1 steps, and states of 2 samples of 1 steps",
        ),
    ],
)
def test_bad_batches_are_refused_in_one_line(model: RewardModel, batch: dict[str, Any], expected: str) -> None:
    with pytest.raises(BadInput, match=expected):
        LeRobotReward(model).compute_reward(batch)


def test_floats_a_little_beyond_their_range_are_those_of_resizing() -> None:
    floats = torch.tensor([-0.004, 1.004])[:, None, None, None].expand(2, 3, 4, 4)
    seen = LeRobotReward(Brightness()).compute_reward({KEY: floats})
    assert seen.tolist() == [0, 255]


class Brightness(RewardModel):
    def reward(self, clip: Clip) -> np.ndarray:
        assert isinstance(clip.frames, np.ndarray)
        return clip.frames.mean(axis=(2, 3, 4)).astype(np.float32)
