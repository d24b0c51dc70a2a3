"""Minari's data sets are read: written here as its storage lays them out, and damaged."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from sightline.datasets.minari import read_minari
from sightline.datasets.reading import read_dataset
from sightline.errors import BadInput, SightlineWarning
from small_datasets import smooth_frames

h5py = pytest.importorskip("h5py")

STEPS = 4


def arrays(observations: Any, **changes: Any) -> dict[str, Any]:
    ends = np.arange(STEPS) == STEPS - 1
    whole = {
        "observations": observations,
        "actions": np.arange(STEPS),
        "rewards": np.arange(STEPS) / 2,
        "terminations": ends,
        "truncations": ~ends & False,
    }
    return whole | changes


def write(folder: Path, *episodes: dict[str, Any], **attributes: Any) -> Path:
    """Write episodes as Minari's HDF5 storage does: a group for each, and one for each dictionary."""
    (folder / "data").mkdir(parents=True, exist_ok=True)
    (folder / "data" / "metadata.json").write_text(json.dumps({"data_format": "hdf5"}))
    with h5py.File(folder / "data" / "main_data.hdf5", "w") as file:
        for number, episode in enumerate(episodes):
            group = file.create_group(f"episode_{number}")
            group.attrs.update({"id": number, "seed": 40 + number, "total_steps": STEPS} | attributes)
            fill(group, episode)
    return folder


def fill(group: Any, content: dict[str, Any]) -> None:
    for name, value in content.items():
        if isinstance(value, dict):
            fill(group.create_group(name), value)
        elif isinstance(value[0], str):
            group.create_dataset(name, data=value, dtype=h5py.string_dtype())
        elif isinstance(value, list):  # files of several lengths
            group.create_dataset(name, data=np.array(value, object), dtype=h5py.vlen_dtype(np.uint8))
        else:
            group.create_dataset(name, data=value)


def refusal(folder: Path, **options: Any) -> str:
    with pytest.raises(BadInput) as caught:
        list(read_minari(folder, **options))
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_states_and_what_was_done(tmp_path: Path) -> None:
    states = np.random.default_rng(0).normal(size=(STEPS + 1, 3))
    success = np.array([False, False, True, False, True])  # of the reset first
    folder = write(tmp_path, arrays(states), arrays(states + 1, infos={"success": success}))
    first, second = read_dataset(folder, frames=False)
    assert first.states is not None and np.array_equal(first.states, states[1:])
    assert first.reset_state is not None and np.array_equal(first.reset_state, states[0])
    assert first.actions is not None and first.actions.tolist() == [0, 1, 2, 3]
    assert first.env_reward is not None and first.env_reward.tolist() == [0, 0.5, 1, 1.5]
    assert (first.terminated, first.seed, first.success, first.succeeded) == (True, 40, None, None)
    assert second.success is not None and second.success.tolist() == [False, True, False, True]
    assert second.index == 1
    assert "holds no pictures" in refusal(folder)


def test_pictures_beside_numbers(tmp_path: Path) -> None:
    frames = smooth_frames(STEPS + 1, 0)
    observations = {"image": frames, "direction": np.arange(STEPS + 1), "mission": ["go to the door"] * (STEPS + 1)}
    (episode,) = read_minari(write(tmp_path, arrays(observations)) / "data")
    assert episode.frames is not None and np.array_equal(episode.frames, frames[1:])
    assert episode.reset_frame is not None and np.array_equal(episode.reset_frame, frames[0])
    assert episode.instruction == "go to the door"
    assert episode.states is not None and episode.states.tolist() == [1, 2, 3, 4]


def test_jpegs_are_read_and_said_to_be(tmp_path: Path) -> None:
    frames = smooth_frames(STEPS + 1, 0)
    files = []
    for frame in frames:
        file = io.BytesIO()
        Image.fromarray(frame).save(file, "JPEG")
        files.append(np.frombuffer(file.getvalue(), np.uint8))
    with pytest.warns(SightlineWarning, match="are JPEGs, which differ from those drawn"):
        (episode,) = read_minari(write(tmp_path, arrays({"image": files})))
    assert episode.frames is not None and np.abs(episode.frames.astype(int) - frames[1:]).mean() < 6


def test_episodes_that_do_not_say_that_they_ended_are_counted(tmp_path: Path) -> None:
    endless = arrays(np.zeros((STEPS + 1, 2)), terminations=np.zeros(STEPS, bool))
    cut_off = endless | {"truncations": np.arange(STEPS) == STEPS - 1}
    folder = write(tmp_path, arrays(np.zeros((STEPS + 1, 2))), endless, cut_off)
    with pytest.warns(SightlineWarning, match="1 of 3 episodes do not say that they ended, and count as cut off"):
        episodes = list(read_minari(folder, frames=False))
    assert [episode.terminated for episode in episodes] == [True, False, False]


def test_success_of_the_episode_alone_is_that_of_its_end(tmp_path: Path) -> None:
    folder = write(tmp_path, arrays(np.zeros((STEPS + 1, 2))), success=True, task="lift")
    (episode,) = read_minari(folder, frames=False)
    assert episode.success is not None and episode.success.tolist() == [False, False, False, True]
    assert (episode.succeeded, episode.instruction) == (True, "lift")


def test_several_cameras(tmp_path: Path) -> None:
    frames = smooth_frames(STEPS + 1, 0)
    folder = write(tmp_path, arrays({"front": frames, "wrist": frames + 1}))
    assert "has 2 cameras; say which: front, wrist" in refusal(folder)
    assert "has no camera 'top', but front, wrist" in refusal(folder, camera="top")
    (episode,) = read_minari(folder, camera="wrist")
    assert episode.reset_frame is not None and np.array_equal(episode.reset_frame, frames[0] + 1)


def test_what_is_not_as_minari_writes_it(tmp_path: Path) -> None:
    assert "is no data set of Minari" in refusal(tmp_path)
    folder = write(tmp_path, arrays(np.zeros((STEPS, 2))))
    assert "has 4 steps and 4 observations (observation); there are to be 5" in refusal(folder, frames=False)
    folder = write(tmp_path, arrays(np.zeros((STEPS + 1, 2)), actions=np.zeros(3)))
    assert "has 4 steps and 3 actions" in refusal(folder, frames=False)
    content = arrays(np.zeros((STEPS + 1, 2)))
    del content["rewards"]
    assert "is damaged" in refusal(write(tmp_path, content), frames=False)
    data = tmp_path / "data" / "main_data.hdf5"
    data.write_bytes(data.read_bytes()[:500])
    assert "is damaged" in refusal(tmp_path, frames=False)
    data.unlink()
    (tmp_path / "data" / "metadata.json").write_text('{"data_format": "arrow"}')
    assert "holds its data as arrow, and main_data.hdf5 is read" in refusal(tmp_path)
