"""Episodes for tests of data sets: a few steps of small pictures, in which every number is another one."""

from __future__ import annotations

from typing import Any

import numpy as np

from sightline.datasets.stored import StoredEpisode


def smooth_frames(count: int, number: int, height: int = 32, width: int = 48) -> np.ndarray:
    """uint8[count, H, W, 3] that change slowly over the picture, as films keep it, and quickly over time."""
    rows, columns = np.mgrid[:height, :width]
    frames = np.zeros((count, height, width, 3))
    for step in range(count):
        frames[step, ..., 0] = 60 + 5 * number + 120 * rows / height
        frames[step, ..., 1] = 60 + 120 * columns / width
        frames[step, ..., 2] = 20 * (step * 5 % 11)
    return frames.astype(np.uint8)


def small_episode(number: int = 0, steps: int = 4, **changes: Any) -> StoredEpisode:
    """An episode with everything, and changes to it."""
    frames = smooth_frames(steps + 1, number)
    draw = np.random.default_rng(number)
    states = draw.normal(size=(steps + 1, 3)).astype(np.float32)
    whole: dict[str, Any] = {
        "source": "random",
        "frames": frames[1:],
        "reset_frame": frames[0],
        "states": states[1:],
        "reset_state": states[0],
        "actions": draw.integers(0, 2, steps),
        "env_reward": draw.normal(size=steps).astype(np.float32),
        "success": np.arange(steps) == steps - 1 - number % 2,
        "terminated": number % 2 == 0,
        "instruction": ("stand up", "sit down", None)[number % 3],
        "seed": 7 + number,
        "fps": 20.0,
        "index": number,
        "succeeded": number % 2 == 0,
        "quality": ("successful", "suboptimal")[number % 2],
        "rewards": {"words": draw.random(steps).astype(np.float32)},
        "reset_rewards": {"words": 0.25 + number},
    }
    return StoredEpisode(**whole | changes)


def check_same(read: StoredEpisode, written: StoredEpisode, pixels: float = 0.0) -> None:
    """Everything is as it was written; frames to so many grey levels on average."""
    for name in ("states", "reset_state", "actions", "env_reward", "success"):
        ours, theirs = getattr(written, name), getattr(read, name)
        assert (ours is None) == (theirs is None), name
        assert ours is None or np.array_equal(ours, theirs), name
    for name in ("source", "terminated", "instruction", "seed", "fps", "index", "succeeded", "quality"):
        assert getattr(read, name) == getattr(written, name), name
    for name in ("frames", "reset_frame"):
        ours, theirs = getattr(written, name), getattr(read, name)
        assert (ours is None) == (theirs is None), name
        if ours is not None:
            assert ours.shape == theirs.shape and theirs.dtype == np.uint8
            assert np.abs(ours.astype(float) - theirs).mean() <= pixels, name
    assert set(read.rewards) == set(written.rewards)
    for name, rewards in written.rewards.items():
        assert np.array_equal(read.rewards[name], rewards), name
    assert dict(read.reset_rewards) == dict(written.reset_rewards)
