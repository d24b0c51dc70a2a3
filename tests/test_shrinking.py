"""Frames are made smaller as soon as they are taken, and no reward changes by it, not even in its last digit."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from conftest import SIZES, write_open_clip_encoder
from sightline.envs.frame_vector import FrameVectorEnv, episode_seeds
from sightline.envs.making import EnvMaker
from sightline.models.encoders import load_encoder
from sightline.rewards.base import Clip, RewardModel, RewardStream, common_shrinker, frame_shrinker
from sightline.rewards.image_text_matching import ImageTextMatchingReward
from sightline.rewards.learned.config import CNNConfig, EmbeddingHeadConfig
from sightline.rewards.learned.reward import EnsembleReward
from sightline.rewards.progress import ProgressReward
from sightline.rewards.weighted_sum import WeightedSum
from sightline.rewards.zero_shot import ZeroShotReward
from test_encoders import write_hugging_face_encoder
from test_image_text_matching import write_blip, write_blip2

SHAPES = [(150, 150), (90, 160), (160, 90), (131, 77), (64, 300)]
GOAL, BASELINE = "a red dot", "a dot"


def noise(count: int, height: int, width: int) -> np.ndarray:
    return np.random.default_rng(5).integers(0, 256, (count, height, width, 3), np.uint8)


def rewards_of(model: RewardModel, frames: np.ndarray) -> np.ndarray:
    """Rewards of frames of one environment that follow each other."""
    first = np.zeros((len(frames), 1), bool)
    first[0] = True
    return RewardStream(model)(Clip(first, frames=frames[:, None]))


def check_equal(model: RewardModel, frames: np.ndarray, side: int | None = None) -> None:
    shrink = frame_shrinker(model)
    assert shrink is not None
    small = shrink(frames)
    assert small.dtype == np.uint8
    assert small.size < frames.size
    if side is not None:
        assert small.shape[1:] == (side, side, 3)
    np.testing.assert_array_equal(rewards_of(model, small), rewards_of(model, frames))
    np.testing.assert_array_equal(shrink(small), small)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("aspect", ["crop", "pad", "squash"])
def test_rewards_of_the_bundled_encoder_stay_equal(aspect: Any, shape: tuple[int, int]) -> None:
    check_equal(ZeroShotReward(GOAL, BASELINE, aspect=aspect, device="cpu"), noise(5, *shape), 64)


@pytest.mark.parametrize("mode", ["shortest", "squash", "longest"])
@pytest.mark.parametrize("size", list(SIZES))
def test_rewards_of_open_clips_encoders_stay_equal(tmp_path: Path, size: str, mode: str) -> None:
    files = {"mean": [0.1, 0.2, 0.3], "std": [0.4, 0.5, 0.6], "resize_mode": mode}
    write_open_clip_encoder(tmp_path / "model", SIZES[size], files)
    encoder = load_encoder(f"local-dir:{tmp_path / 'model'}", device="cpu", batch_size=3)
    for shape in SHAPES:
        for views in (1, 2):
            model = ZeroShotReward(GOAL, encoder=encoder, views=views)
            check_equal(model, noise(5, shape[0], 2 * (shape[1] // 2)))


@pytest.mark.parametrize("family", ["clip", "siglip"])
def test_rewards_of_hugging_faces_encoders_stay_equal(tmp_path: Path, family: str) -> None:
    write_hugging_face_encoder(tmp_path, family)
    for aspect in ("crop", "pad", "squash"):
        encoder: Any = load_encoder(f"hf:{tmp_path}", device="cpu", aspect=aspect)  # type: ignore[arg-type]
        for shape in SHAPES:
            check_equal(ZeroShotReward(GOAL, encoder=encoder), noise(5, *shape), encoder.image_size)


@pytest.mark.parametrize("write", [write_blip2, write_blip])
def test_rewards_of_matching_heads_stay_equal(tmp_path: Path, write: Callable[[Path], None]) -> None:
    write(tmp_path)
    check_equal(ImageTextMatchingReward(GOAL, str(tmp_path), device="cpu"), noise(3, 90, 160), 32)


def test_rewards_over_several_steps_stay_equal(bundled: Any) -> None:
    check_equal(ProgressReward(GOAL, encoder=bundled), noise(20, 90, 160), 64)


@pytest.mark.parametrize("network", [CNNConfig(size=(60, 72)), EmbeddingHeadConfig()])
def test_learned_rewards_shrink_to_what_their_network_reads(bundled: Any, network: Any) -> None:
    encoder = bundled if network.encoder_name else None
    model = EnsembleReward(network, seen_shape=(90, 160, 3), encoder=encoder, device="cpu")
    check_equal(model, noise(4, 90, 160))


def test_a_sum_shrinks_where_its_parts_agree(bundled: Any) -> None:
    words, others = ZeroShotReward(GOAL, encoder=bundled), ZeroShotReward(BASELINE, encoder=bundled)
    check_equal(WeightedSum([words, others], [1.0, 0.5]), noise(4, 90, 160), 64)
    squashed = ZeroShotReward(GOAL, aspect="pad", device="cpu")
    frames = noise(4, 90, 160)
    assert common_shrinker([words, squashed])(frames) is frames
    assert common_shrinker([words, Brightness()])(frames) is frames


def test_small_frames_are_kept_as_they_are(bundled: Any) -> None:
    frames = noise(3, 20, 30)
    assert ZeroShotReward(GOAL, encoder=bundled).shrink_frames(frames) is frames
    none = noise(0, 90, 160)
    assert ZeroShotReward(GOAL, encoder=bundled).shrink_frames(none) is none


class Brightness(RewardModel):
    """Reads frames by itself."""

    def reward(self, clip: Clip) -> np.ndarray:
        assert clip.frames is not None
        return np.asarray(clip.frames).mean(axis=(2, 3, 4)).astype(np.float32)


class Corner(ZeroShotReward):
    """Scores the upper left corner of frames alone."""

    def embed(self, clip: Clip) -> np.ndarray:
        assert clip.frames is not None
        frames = np.asarray(clip.frames)[:, :, :64, :64]
        return self.encoder.embed_frames(frames.reshape(-1, 64, 64, 3)).reshape(*clip.shape, -1)


def test_who_reads_frames_by_itself_is_given_whole_ones(bundled: Any) -> None:
    assert frame_shrinker(Brightness()) is None
    assert frame_shrinker(Corner(GOAL, encoder=bundled)) is None
    assert frame_shrinker(None) is None


@pytest.mark.parametrize("workers", ["inline", "processes"])
def test_environments_keep_small_frames_alone(bundled: Any, workers: Any) -> None:
    model = ZeroShotReward(GOAL, encoder=bundled)
    options = {"render_size": (90, 160), "shade": 20}
    maker = EnvMaker("small_envs:Clock", options)
    seeds = episode_seeds(0)
    whole = FrameVectorEnv(maker, 2, seeds)
    small = FrameVectorEnv(maker, 2, seeds, workers=workers, shrink=frame_shrinker(model))
    try:
        assert whole.frame_shape == (90, 160, 3)
        assert small.frame_shape == (64, 64, 3)
        whole.reset()
        small.reset()
        ended = 0
        for step in range(12):  # with ends of episodes, and with steps that only render at an end
            actions = np.zeros(2, np.int64)
            full, shrunk = whole.step(actions, frames=step % 3 != 1), small.step(actions, frames=step % 3 != 1)
            ended += int(full.ended.sum())
            if full.frames is None:
                assert shrunk.frames is None
                continue
            assert shrunk.frames is not None
            np.testing.assert_array_equal(shrunk.frames, model.shrink_frames(full.frames))
        assert ended > 1
    finally:
        whole.close()
        small.close()
