"""Pictures of other worlds than those that a small encoder was taught are told apart."""

from __future__ import annotations

import shutil
import warnings
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from PIL import Image

import sightline as sl
from sightline import ZeroShotReward
from sightline.envs.making import EnvMaker
from sightline.envs.tasks import find_task
from sightline.errors import BadInput
from sightline.models.bundled_encoder import BundledEncoder
from sightline.models.encoder_files import bundled_folder
from sightline.models.encoders import load_encoder
from sightline.models.familiarity import FILE, SpreadPictures, TaughtPictures, warn_of_unfamiliar_pictures
from sightline.rewards.shaped import ShapedReward
from sightline.rewards.weighted_sum import WeightedSum

OWN: list[tuple[str, dict[str, Any]]] = [
    *(("cartpole", {"look": look}) for look in ("plain", "dusk")),
    *(("mountain-car", {"look": look}) for look in ("plain", "textured")),
    *(("humanoid-kneeling", {"camera": camera}) for camera in ("close", "side", "front", "facing")),
]
OTHERS = ["Acrobot-v1", "FrozenLake-v1", "Taxi-v4", "CliffWalking-v1"]


@pytest.fixture(scope="module")
def encoder() -> BundledEncoder:
    loaded = load_encoder("bundled", device="cpu")
    assert isinstance(loaded, BundledEncoder)
    return loaded


def played(env: Any, count: int, seed: int) -> np.ndarray:
    """Frames of random play, uint8[count, H, W, 3], from the first state of an episode on."""
    env.action_space.seed(seed)
    env.reset(seed=seed)
    frames = [env.render()]
    while len(frames) < count:
        *_, terminated, truncated, _ = env.step(env.action_space.sample())
        if terminated or truncated:
            env.reset()
        frames.append(env.render())
    return np.stack(frames)


@pytest.mark.parametrize(("name", "options"), OWN, ids=str)
def test_pictures_of_our_own_tasks_are_familiar(name: str, options: dict[str, Any], encoder: BundledEncoder) -> None:
    env = EnvMaker(find_task(name).env, options=options, frame_size=(64, 64))()
    distances = [encoder.unfamiliarity(played(env, 40, seed)) for seed in range(3)]
    assert np.mean(np.concatenate(distances) > 1) <= 0.01, "false alarms"


@pytest.mark.parametrize("name", OTHERS)
def test_pictures_of_other_worlds_are_not(name: str, encoder: BundledEncoder) -> None:
    env = gymnasium.make(name, render_mode="rgb_array")
    frames = played(env, 8, 0)
    assert np.mean(encoder.unfamiliarity(frames) > 1) >= 0.9
    assert "unlike those that encoder 'bundled' was taught" in str(warn_of_unfamiliar_pictures(encoder, frames[:1]))


def test_noise_and_blank_pictures(encoder: BundledEncoder) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (4, 48, 80, 3), np.uint8)
    assert (encoder.unfamiliarity(noise) > 2).all()
    assert (encoder.unfamiliarity(np.full((2, 64, 64, 3), 255, np.uint8)) > 1).all()
    assert warn_of_unfamiliar_pictures(encoder, noise[:0]) is None


def test_distances_by_hand() -> None:
    rng = np.random.default_rng(0)
    near, far = rng.normal(0, [1, 10], (4000, 2)), rng.normal(50, [2, 3], (4000, 2))
    worlds = np.repeat([0, 1], 4000)
    held_out = np.concatenate([rng.normal(0, [1, 10], (2000, 2)), rng.normal(50, [2, 3], (2000, 2))])
    taught = TaughtPictures.fit(np.concatenate([near, far]), worlds, held_out)
    distances = taught.distance(np.array([[0, 0], [3, 0], [0, 30], [50, 50], [56, 50], [25, 25]]))
    # In units of the 99 % quantile of the length of two standard normal numbers, sqrt(-2 ln 0.01).
    unit = np.sqrt(-2 * np.log(0.01))
    np.testing.assert_allclose(distances[:5], np.array([0, 3, 3, 0, 3]) / unit, atol=0.05)
    assert distances[5] > 3


def test_the_reward_warns_its_caller(encoder: BundledEncoder) -> None:
    frames = played(gymnasium.make("Acrobot-v1", render_mode="rgb_array"), 2, 0)
    reward = ZeroShotReward("a rod standing upright", encoder=encoder)
    with pytest.warns(UserWarning, match="unlike those") as caught:
        first = reward(frames)
    assert [Path(one.filename).name for one in caught] == [Path(__file__).name]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        np.testing.assert_array_equal(reward(frames), first)  # once is enough
        ZeroShotReward("a rod standing upright", encoder=encoder, warn=False)(frames)
    with pytest.warns(UserWarning, match="does not know the words 'zxqv', 'blorp'"):
        ZeroShotReward("zxqv blorp", encoder=encoder)


def test_an_encoder_of_ones_own(tmp_path: Path) -> None:
    folder = tmp_path / "mine"
    shutil.copytree(bundled_folder(), folder)
    (folder / FILE).unlink()
    noise = np.random.default_rng(0).integers(0, 256, (1, 64, 64, 3), np.uint8)
    assert warn_of_unfamiliar_pictures(load_encoder(f"local-dir:{folder}", device="cpu"), noise) is None
    (folder / FILE).write_bytes(b"no tensors")
    with pytest.raises(BadInput, match="damaged; fetch the encoder again"):
        load_encoder(f"local-dir:{folder}", device="cpu")


def test_some_pictures_are_spread_over_all() -> None:
    spread = SpreadPictures()
    for number in range(100):
        spread.add(np.full((1, 2, 2 + number % 2, 3), number, np.uint8))
    levels = [int(picture[0, 0, 0]) for picture in spread.pictures]
    assert levels == list(range(0, 100, 8))
    spread.add(np.full((1, 4, 4, 3), 7, np.uint8))
    assert [frames.shape for frames in spread.by_size()] == [(13, 2, 2, 3)]
    assert SpreadPictures().by_size() == []


def test_the_lab_looks_at_the_pictures_and_not_at_the_task(encoder: BundledEncoder, tmp_path: Path) -> None:
    folder = tmp_path / "foreign"
    folder.mkdir()
    frames = played(gymnasium.make("Acrobot-v1", render_mode="rgb_array"), 6, 0)
    for number, frame in enumerate(frames):
        Image.fromarray(frame).save(folder / f"{number}.png")
    rows = [f"{number}.png,{number % 2}" for number in range(6)]
    (folder / "labels.csv").write_text("\n".join(["file,success", *rows]))
    (warning,) = sl.lab("cartpole", pictures=folder)["warnings"]
    assert warning.startswith("pictures: these pictures are unlike those that encoder 'bundled' was taught")
    # The other way round: another task, of which no picture is judged.
    own = EnvMaker(find_task("cartpole").env, frame_size=(64, 64))()
    for number, frame in enumerate(played(own, 6, 0)):
        Image.fromarray(frame).save(folder / f"{number}.png")
    assert sl.lab("Acrobot-v1", goal="a pole", pictures=folder)["warnings"] == []


def test_a_sum_doubts_what_its_terms_doubt(encoder: BundledEncoder, monkeypatch: pytest.MonkeyPatch) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (4, 32, 64, 3), np.uint8)
    reward = ZeroShotReward("a pole", encoder=encoder, warn=False)
    (unfamiliar,) = reward.doubts(noise)
    assert "unlike those" in unfamiliar
    assert WeightedSum([reward, reward], [1, 1]).doubts(noise) == [unfamiliar] * 2
    assert ShapedReward(WeightedSum([reward], [1]), reward).doubts(noise) == [unfamiliar] * 2
    # An encoder that cuts the ends off says so, but two views side by side are square.
    monkeypatch.setattr(encoder, "cut_off", lambda height, width: (0.0, max(0.0, (width - height) / 2)))
    assert "16 columns at the left" in reward.doubts(noise)[0]
    of_views = ZeroShotReward("a pole", encoder=encoder, views=2, warn=False)
    assert of_views.doubts(noise) == [unfamiliar]
