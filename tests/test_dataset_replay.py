"""A run begins with a data set in its replay buffer: which transitions it is, what they are paid, what does not fit."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from PIL import Image

from conftest import TINY, Finished
from sightline.config.loading import for_control, load_recipe
from sightline.config.recipe import ControlRecipe, ReplayDataset
from sightline.control.dataset_replay import completed_dataset, fill_from_dataset
from sightline.control.replay import CommittedReplayBuffer
from sightline.datasets.lerobot_writing import LeRobotWriter
from sightline.datasets.pictures import PictureWriter
from sightline.datasets.reading import dataset_digest, read_dataset
from sightline.datasets.stored import StoredEpisode
from sightline.errors import BadInput, SightlineWarning
from sightline.rewards.base import Clip, RewardModel
from sightline.runs.state import read_state
from small_datasets import small_episode
from stored import newest_checkpoint, replay_of, rows_of

pytest.importorskip("pyarrow")

STATES = spaces.Box(-10, 10, (3,), np.float32)
ACTIONS = spaces.Discrete(2)


class Brightness(RewardModel):
    """The first pixel of the picture, with the one before it: a reward of two steps."""

    window = 2

    def embed(self, clip: Clip) -> np.ndarray:
        assert clip.frames is not None
        return np.asarray(clip.frames)[..., 0, 0, :1].astype(np.float32)

    def score(self, features: np.ndarray, clip: Clip) -> np.ndarray:
        before = np.concatenate([features[:1], features[:-1]])
        before = np.where(clip.first[..., None], features, before)
        return np.asarray(features + before / 1000)[..., 0].astype(np.float32)


def expected_rewards(episode: StoredEpisode) -> np.ndarray:
    assert episode.frames is not None
    pixels = episode.frames[:, 0, 0, 0].astype(np.float32)
    return pixels + np.concatenate([pixels[:1], pixels[:-1]]) / 1000


def write(folder: Path, *episodes: StoredEpisode, kind: Any = LeRobotWriter, **options: Any) -> Path:
    with kind(folder, **options) as writer:
        for episode in episodes:
            writer.add(episode)
    return folder


def recipe_with(folder: Path, *overrides: str) -> ControlRecipe:
    return for_control(
        load_recipe("cartpole", ["learner.algorithm=DQN", "envs=2", f"dataset.path={folder}", *overrides])
    )


def filled(folder: Path, envs: int = 2, reward: RewardModel | None = None, **dataset: Any) -> CommittedReplayBuffer:
    buffer = CommittedReplayBuffer(100, STATES, ACTIONS, "cpu", envs)
    model: Any = SimpleNamespace(observation_space=STATES, action_space=ACTIONS)
    complete = completed_dataset(recipe_with(folder, f"envs={envs}"), STATES, ACTIONS)
    fill_from_dataset(model, buffer, complete, reward or Brightness(), None, (32, 48, 3))
    return buffer


def flat(array: np.ndarray, rows: int) -> np.ndarray:
    """The columns of the first rows, one behind the other."""
    return np.concatenate([array[:rows, column] for column in range(array.shape[1])])


class Doubtful(Brightness):
    """Was taught nothing."""

    def doubts(self, frames: np.ndarray) -> list[str]:
        return [f"{len(frames)} pictures are unlike others"]


def test_pictures_of_a_data_set_are_doubted(tmp_path: Path) -> None:
    folder = write(tmp_path / "set", small_episode(0), small_episode(2))
    with pytest.warns(SightlineWarning, match=r"dataset '.*set': 8 pictures are unlike others"):
        filled(folder, reward=Doubtful())


@pytest.mark.parametrize("kind", ["lerobot", "pictures"])
def test_the_buffer_holds_the_transitions_column_by_column(tmp_path: Path, kind: str) -> None:
    written = [small_episode(number, steps=5) for number in range(3)]  # the second is cut off
    if kind == "pictures":
        folder = write(tmp_path / "set", *written, kind=PictureWriter)
    else:
        folder = write(tmp_path / "set", *written, pictures=True)
    buffer = filled(folder)  # 15 transitions: two columns of 7, and one that is left
    assert (buffer.rows_added, len(buffer.filled_rows())) == (7, 7)
    befores = [np.concatenate([one.reset_state[None], one.states[:-1]]) for one in written]  # type: ignore[index]
    assert np.array_equal(flat(buffer.observations, 7), np.concatenate(befores)[:14])  # type: ignore[arg-type]
    assert np.array_equal(flat(buffer.next_observations, 7), np.concatenate([one.states for one in written])[:14])  # type: ignore[arg-type,misc]
    assert np.array_equal(flat(buffer.actions, 7)[:, 0], np.concatenate([one.actions for one in written])[:14])  # type: ignore[misc]
    rewards = np.concatenate([expected_rewards(one) for one in written])[:14]
    assert np.array_equal(flat(buffer.rewards, 7), rewards)
    assert np.array_equal(flat(buffer.true_rewards, 7), np.concatenate([one.env_reward for one in written])[:14])  # type: ignore[misc]
    # Episodes end with steps 4 and 9, of which the first is terminal; columns end with 6 and 13.
    ends = flat(buffer.dones, 7).nonzero()[0].tolist()
    assert ends == [4, 6, 9, 13]
    assert flat(buffer.timeouts, 7).nonzero()[0].tolist() == [6, 9, 13]


def test_whole_episodes_end_as_they_ended(tmp_path: Path) -> None:
    buffer = filled(write(tmp_path / "set", small_episode(0), small_episode(1)))  # columns end where episodes do
    assert buffer.dones[:4].tolist() == [[0, 0], [0, 0], [0, 0], [1, 1]]
    assert buffer.timeouts[3].tolist() == [0, 1], "the first was terminal, the second cut off"


def test_minari_is_replayed(tmp_path: Path) -> None:
    h5py = pytest.importorskip("h5py")
    (tmp_path / "set" / "data").mkdir(parents=True)
    one = small_episode(0)
    with h5py.File(tmp_path / "set" / "data" / "main_data.hdf5", "w") as file:
        group = file.create_group("episode_0")
        group["observations/observation"] = np.concatenate([one.reset_state[None], one.states])  # type: ignore[index,list-item]
        group["observations/image"] = np.concatenate([one.reset_frame[None], one.frames])  # type: ignore[index,list-item]
        group["actions"] = one.actions
        group["rewards"] = one.env_reward
        group["terminations"] = np.array([False, False, False, True])
        group["truncations"] = np.zeros(4, bool)
    buffer = filled(tmp_path / "set", envs=1)
    assert np.array_equal(buffer.next_observations[:4, 0], one.states)  # type: ignore[index,arg-type]
    assert np.array_equal(buffer.rewards[:4, 0], expected_rewards(one))
    assert (buffer.dones[3, 0], buffer.timeouts[3, 0]) == (1, 0)


def test_what_is_not_known_is_no_transition(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = small_episode(0, steps=6)
    # As of another's LeRobotDataset: the last state stands for the one that it led to.
    last_unknown = replace(whole, knows_last_state=False)
    reset_unknown = replace(whole, reset_state=None, reset_frame=None)
    assert whole.states is not None
    for episode, befores, dones in (
        (last_unknown, np.concatenate([whole.reset_state[None], whole.states[:4]]), [0, 0, 0, 0, 1]),  # type: ignore[index]
        (reset_unknown, whole.states[:5], [0, 0, 0, 0, 1]),
    ):
        folder = write(tmp_path / f"{episode.knows_last_state}", whole)
        monkeypatch.setattr("sightline.control.dataset_replay.read_dataset", lambda *_, one=episode, **__: iter([one]))
        with pytest.warns(SightlineWarning, match="1 of 1 episodes do not"):
            buffer = filled(folder, envs=1)
        assert np.array_equal(buffer.observations[:5, 0], befores)  # type: ignore[index]
        assert buffer.rows_added == 5 and buffer.dones[:5, 0].tolist() == dones
        # The terminal state is where the last action led to: without it the end is a cut.
        assert buffer.timeouts[4, 0] == (not episode.knows_last_state)


@pytest.mark.parametrize(
    ("changes", "overrides", "reason"),
    [
        ({"actions": None}, [], "episode 0 holds no actions"),
        ({"states": None, "reset_state": None}, [], "episode 0 holds no states"),
        ({"actions": np.array([0, 1, 2, 3])}, [], r"2 actions are none of this environment's, Discrete\(2\)"),
        ({"actions": np.array([0.5, 1, 0, 1])}, [], r"actions of episode 0 are float32, and .* Discrete\(2\)"),
        ({"actions": np.zeros((4, 3))}, [], r"actions of episode 0 are \[3\]"),
        ({"states": np.zeros((4, 2)), "reset_state": np.zeros(2)}, [], r"states of episode 0 are \[2\], and .*\[3\]"),
        ({"states": np.full((4, 3), 50.0)}, [], "4 of 5 states lie outside .* of another scale"),
        ({"states": np.full((4, 3), np.nan)}, [], "states of episode 0 are not finite in 4 of 5 steps"),
        ({"frames": None, "reset_frame": None}, [], "holds no pictures"),
        ({"env_reward": None}, ["reward.kind=ground_truth"], "episode 0 holds no rewards of the environment"),
        ({"success": None, "succeeded": None}, ["reward.kind=sparse"], "episode 0 holds no success of steps"),
        (
            {},
            ["learner.buffer_size=131", "learner.chunk=32"],
            "holds 4 transitions, and learner.buffer_size=131 .* at least 132",
        ),
        ({}, ["envs=5"], "holds 4 whole transitions, and envs=5 need one each"),
        ({}, ["dataset.digest=abc"], "is another data set than that of dataset.digest=abc"),
        ({}, ["dataset.camera=wrist"], "has no camera 'wrist', but main"),
    ],
)
def test_what_does_not_fit(tmp_path: Path, changes: Any, overrides: list[str], reason: str) -> None:
    folder = write(tmp_path / "set", small_episode(0, **changes))
    with pytest.raises(BadInput, match=reason) as refusal:
        completed_dataset(recipe_with(folder, *overrides), STATES, ACTIONS)
    assert "\n" not in str(refusal.value)


def test_a_few_states_outside_are_counted(tmp_path: Path) -> None:
    states = np.zeros((4, 3))
    states[2] = 10.5
    folder = write(tmp_path / "set", small_episode(0, states=states))
    with pytest.warns(SightlineWarning, match="1 of 5 states lie outside"):
        complete = completed_dataset(recipe_with(folder), STATES, ACTIONS)
    assert complete == ReplayDataset(path=str(folder), digest=dataset_digest(folder), transitions=4)


def test_the_digest_is_of_what_was_recorded_and_not_of_what_people_say(tmp_path: Path) -> None:
    folder = write(tmp_path / "set", small_episode(0), kind=PictureWriter)
    before = dataset_digest(folder)
    for name in ("human_labels.csv", "dataset.csv", "labels/labels.sqlite"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text("checkpoint,rollout\n")
    assert dataset_digest(folder) == before
    picture = next((folder / "img").iterdir())
    picture.write_bytes(picture.read_bytes()[:-1] + b"!")
    os.utime(picture, ns=(0, 0))  # clocks of file systems are coarse
    assert dataset_digest(folder) != before


def test_files_are_hashed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write(tmp_path / "set", small_episode(0), kind=PictureWriter)
    first = dataset_digest(folder)
    monkeypatch.setattr("hashlib.sha256", None)
    assert dataset_digest(folder) == first


@pytest.mark.parametrize(
    ("overrides", "reason"),
    [
        (["learner.algorithm=PPO"], "PPO learns on-policy and has no replay buffer"),
        (["replay=runs/other"], "dataset and replay both fill the replay buffer"),
    ],
)
def test_recipes_that_mean_nothing(overrides: list[str], reason: str) -> None:
    with pytest.raises(BadInput, match=reason):
        load_recipe("cartpole", ["dataset=data", *overrides])


# -- whole runs --------------------------------------------------------------------------------------------------------


@pytest.fixture
def expert(tmp_path: Path, sightline: Callable[..., Finished]) -> Path:
    folder = tmp_path / "expert"
    line = ("collect", "cartpole", "episode_steps=15", "--policy", "scripted", "--episodes", 4, "--out", folder)
    done = sightline(*line)
    assert done.code == 0, done.err
    return folder


def test_a_run_begins_with_a_data_set_and_resumes_bit_for_bit(
    tmp_path: Path, sightline: Callable[..., Finished], expert: Path
) -> None:
    run = tmp_path / "run"
    line = ("train", "cartpole", *TINY, f"dataset={expert}", "checkpoints.keep=9", "--run-dir", run)
    done = sightline(*line)
    assert done.code == 0, done.err
    assert "begins with 60 transitions of 4 episodes" in done.err
    stored = replay_of(run)
    # The data set, and what was collected: 15 rows of four columns, and 64.
    assert len(stored["rewards"]) == 50, "the ring of 200 has come round"
    weights = read_state(newest_checkpoint(run) / "learner.safetensors")["parameters"]
    # Killed after its first checkpoint, and without the data set, which is in the run's own files.
    for folder in sorted((run / "checkpoints").glob("step-*"))[1:]:
        shutil.rmtree(folder)
    (run / "result.json").unlink()
    begun = replay_of(run)
    assert np.isfinite(begun["rewards"][:15]).all() and begun["dones"][14].all()
    shutil.move(expert, tmp_path / "elsewhere")
    assert sightline("train", "--resume", "--run-dir", run).code == 0
    for name, array in replay_of(run).items():
        np.testing.assert_array_equal(array, stored[name], err_msg=name)
    again = read_state(newest_checkpoint(run) / "learner.safetensors")["parameters"]
    for part, tensors in weights.items():
        for name, tensor in tensors.items():
            assert str(again[part][name]) == str(tensor), name


def test_a_data_set_that_changed_is_refused(tmp_path: Path, sightline: Callable[..., Finished], expert: Path) -> None:
    line = ("train", "cartpole", *TINY, f"dataset.path={expert}", f"dataset.digest={dataset_digest(expert)}")
    (expert / "meta" / "stats.json").write_text("{}")
    done = sightline(*line, "--run-dir", tmp_path / "run")
    assert done.code == 2 and "is another data set than that of dataset.digest" in done.err
    assert not (tmp_path / "run").exists()


def test_continuous_actions_are_stored_as_the_learner_scales_them(
    tmp_path: Path, sightline: Callable[..., Finished]
) -> None:
    data, run = tmp_path / "data", tmp_path / "run"
    line = ("Pendulum-v1", "episode_steps=16")
    assert sightline("collect", *line, "--episodes", 4, "--size", 64, "--out", data).code == 0
    words = ("env=Pendulum-v1", "goal=a rod", "learner.buffer_size=900", f"dataset={data}")
    done = sightline("train", *words, *(one for one in TINY if "buffer_size" not in one), "--run-dir", run)
    assert done.code == 0, done.err
    actions = np.concatenate([episode.actions for episode in read_dataset(data, frames=False)])  # type: ignore[misc]
    stored = replay_of(run)["actions"][:16]
    assert np.abs(actions).max() > 1.5, "torques are up to 2"
    np.testing.assert_allclose(flat(stored, 16)[:, 0], actions / 2, atol=1e-6)


def test_the_first_questions_may_be_about_the_data_set(
    tmp_path: Path, sightline: Callable[..., Finished], expert: Path
) -> None:
    run = tmp_path / "run"
    words = ("reward.explore=64", "reward.every=64", "reward.questions=4", "reward.segment=4", "reward.pool=40")
    teacher = ("reward.teacher.kind=scripted", "learner.buffer_size=900")
    line = ("train", "cartpole", *TINY, "reward.kind=learned", *words, *teacher, f"dataset={expert}")
    done = sightline(*line, "--run-dir", run)
    assert done.code == 0, done.err
    stored = replay_of(run)
    assert len(stored["rewards"]) == 15 + 64
    # The pool begins with pictures of the data set, at the size of the run's own.
    pool = rows_of(run, "segments")["frames"]
    assert pool.shape[1:] == (4, 64, 64, 3)
    written = next(read_dataset(expert)).frames
    assert written is not None and written.shape[1:] == (256, 256, 3)
    small = np.stack(
        [np.asarray(Image.fromarray(frame).resize((64, 64), Image.Resampling.BILINEAR)) for frame in written]
    )
    assert any(np.array_equal(pool[0], small[step : step + 4]) for step in range(12))
