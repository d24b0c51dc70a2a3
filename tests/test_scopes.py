"""Scopes: which frames a reward model is shown, wherever it pays. Golden tables are by hand."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from stable_baselines3.common.vec_env import DummyVecEnv

import sightline as sl
from conftest import TINY, TINY_ON_POLICY, Finished, result_of
from shown_frames import GOLDEN, Embedded, Shown, code
from sightline.control.collection import CollectingVecEnv
from sightline.datasets.episode import Episode
from sightline.envs.frame_vector import FrameVectorEnv, episode_seeds
from sightline.envs.making import EnvMaker
from sightline.envs.tasks import Task
from sightline.errors import BadInput
from sightline.evaluation import episodes as episodes_module
from sightline.evaluation.episodes import play_one, play_panel
from sightline.evaluation.seeds import make_panel
from sightline.rewards.base import Clip, RewardStream
from sightline.rewards.scopes import Past, Scope
from sightline.rewards.weighted_sum import WeightedSum
from sightline.rewards.wrap import wrap
from small_envs import recorded_clock
from stored import replay_of
from test_on_policy import cut, numbers
from test_wrap import KINDS, play

Sightline = Callable[..., Finished]
HUED = EnvMaker("shown_frames:Hued")
TASK = Task("hued", "h")
MODELS = [Shown, Embedded]


@pytest.mark.parametrize("kind", GOLDEN)
def test_steps_by_hand(kind: Any) -> None:
    for last, steps in GOLDEN[kind].items():
        assert tuple(Scope(kind, 4).steps(last)) == steps
    assert Scope("frame").steps(7).tolist() == [7]
    # Of an episode whose reset frame nobody knows, the first step's is first.
    assert Scope("prefix", 4).steps(8, 1).tolist() == [1, 5, 8]
    assert Scope("prefix", 2).steps(999).tolist() == [0, 999]


@pytest.mark.parametrize("frames", [2, 3, 8, 20])
def test_later_steps_are_shown_no_older_frames_than_those_shown_before(frames: int) -> None:
    scope = Scope("prefix", frames)
    for last in range(1, 200):
        steps = scope.steps(last)
        assert len(steps) <= frames and steps[0] == 0 and steps[-1] == last
        assert len(steps) > frames / 2 or last < frames
        assert set(scope.steps(last + 1)) <= {*steps, last + 1}


@pytest.mark.parametrize(("kind", "frames"), [("galaxy", 1), ("prefix", 1), ("window", 0), ("episode", 2.5)])
def test_scopes_that_mean_nothing(kind: Any, frames: Any) -> None:
    with pytest.raises(BadInput, match="a scope"):
        sl.Scope(kind, frames)


def played(seed: int, lengths: list[list[int]], frames: type = np.ndarray) -> Clip:
    """A clip of episodes of these lengths, one list for each environment, with hues of their own."""
    steps = sum(lengths[0])
    pictures = np.zeros((steps, len(lengths), 2, 2, 3), np.uint8)
    first = np.zeros((steps, len(lengths)), bool)
    ended = np.zeros_like(first)
    pasts = []
    hue = seed
    for env, of_env in enumerate(lengths):
        row = 0
        for length in of_env:
            hue += 1
            times = np.arange(length + 1)
            drawn = np.zeros((length + 1, 2, 2, 3), np.uint8)
            drawn[..., 0] = times[:, None, None]
            drawn[..., 1] = hue
            first[row, env] = True
            pasts.append(Past.of_resets(row, np.arange(len(lengths)) == env, drawn[:1]))
            pictures[row : row + length, env] = drawn[1:]
            ended[row + length - 1, env] = True
            row += length
    return Clip(first, pictures, ended=ended, past=Past.joined(pasts))


LENGTHS = [[3, 9, 1, 2], [9, 6], [5, 5, 5]]


def of_an_episode(length: int, kind: str) -> list[float]:
    paid = [code(GOLDEN[kind][step]) for step in range(1, length + 1)]
    if kind == "episode":
        paid[:-1] = [0.0] * (length - 1)
    return paid


def expected(kind: str) -> np.ndarray:
    """float32[T, N] for `LENGTHS`."""
    columns = []
    for lengths in LENGTHS:
        column: list[float] = []
        for length in lengths:
            column += of_an_episode(length, kind)
        columns.append(column)
    return np.array(columns, np.float32).T


@pytest.mark.parametrize("kind", GOLDEN)
@pytest.mark.parametrize("model", MODELS)
def test_chunks_of_any_size_show_the_same_and_a_checkpoint_forgets_nothing(model: type[Shown], kind: Any) -> None:
    clip = played(0, LENGTHS)
    assert np.array_equal(model(kind)(clip), expected(kind))
    for size in (1, 2, 4, 7):
        stream = RewardStream(model(kind))
        rewards = []
        for start in range(0, 15, size):
            part = clip[start : start + size]
            frames = np.array(part.frames)
            rewards.append(stream(Clip(part.first, frames, ended=part.ended, past=part.past)))
            frames[:] = 99  # the next chunk overwrites them
            state = stream.state()
            assert state["past"] is None or len(state["past"]["steps"]) <= 4 * 3
            stream = RewardStream(model(kind))
            stream.restore(state)
        assert np.array_equal(np.concatenate(rewards), expected(kind))


def test_tensors_stay_tensors() -> None:
    import torch

    clip = played(0, LENGTHS)
    assert clip.past is not None
    frames = torch.from_numpy(np.asarray(clip.frames))
    past = Past(clip.past.rows, clip.past.envs, clip.past.steps, torch.from_numpy(np.asarray(clip.past.frames)))
    tensors = Clip(clip.first, frames, ended=clip.ended, past=past)
    assert np.array_equal(Shown()(tensors), expected("prefix"))
    shown, _ = tensors.shown(5, 0, Scope("prefix", 4))
    assert isinstance(shown, torch.Tensor)


def test_an_episode_whose_reset_frame_nobody_knows_begins_with_its_first_step() -> None:
    clip = played(0, LENGTHS)
    unknown = Clip(clip.first, clip.frames, ended=clip.ended)
    frames, steps = unknown.shown(7, 1, Scope("prefix", 4))
    assert steps.tolist() == [1, 5, 8] and np.asarray(frames)[:, 0, 0, 0].tolist() == [1, 5, 8]
    frames = np.asarray(clip.frames)[:5, 0]
    alone = Shown(hued=False)(frames)
    assert alone.tolist() == [code([time]) for time in frames[:, 0, 0, 0]], "frames that do not follow each other"


def test_models_that_are_combined_are_shown_the_same() -> None:
    both = WeightedSum([Shown(), Shown()], [1, 2])
    assert both.sees_past
    assert np.array_equal(both(played(0, LENGTHS)), 3 * expected("prefix"))
    with pytest.raises(BadInput, match="must be shown the same frames"):
        WeightedSum([Shown(), Shown("window", 3)], [1, 1])


def test_what_compares_pictures_that_follow_each_other_leaves_none_out() -> None:
    with pytest.raises(BadInput, match="compares 4 steps"):
        play_panel(zeros, HUED, TASK, make_panel("test", "hued", 1), Shown(), score_every=2)


# -- where rewards are paid -------------------------------------------------------------------------------------------


def zeros(states: Any) -> np.ndarray:
    return np.zeros(len(states), np.int64)


@pytest.mark.parametrize("kind", GOLDEN)
@pytest.mark.parametrize(("at_once", "processes"), [(1, 0), (37, 0), (512, 3)])
def test_evaluation(monkeypatch: pytest.MonkeyPatch, kind: Any, at_once: int, processes: int) -> None:
    monkeypatch.setattr(episodes_module, "SCORED_AT_ONCE", at_once)
    panel = make_panel("test", "hued", 30)
    episodes = play_panel(zeros, HUED, TASK, panel, Shown(kind), processes=processes)
    assert episodes is not None and episodes.rewards is not None
    means = [np.mean(of_an_episode(length, kind)) for length in episodes.lengths]
    np.testing.assert_allclose(episodes.rewards, means)
    film = play_one(zeros, HUED, panel.seeds[0], Embedded(kind), HUED)
    np.testing.assert_allclose(film.rewards.mean(), episodes.rewards[0])


def test_a_recorded_episode_is_shown_from_its_reset_frame() -> None:
    clip = played(0, [[6]])
    frames = np.asarray(clip.frames)[:, 0]
    reset = np.zeros((2, 2, 3), np.uint8)
    reset[..., 1] = frames[0, 0, 0, 1]
    rewards = Shown()(Episode("mine", frames=frames, reset_frame=reset).clip())
    assert rewards[:, 0].tolist() == [code(GOLDEN["prefix"][step]) for step in range(1, 7)]


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "custom"])
def test_wrapped_environments(kind: str, model: type[Shown]) -> None:
    steps = play(wrap(KINDS[kind](), model(hued=False)))
    table = np.array([0.0, *of_an_episode(9, "prefix")])
    np.testing.assert_array_equal(steps.rewards, table[steps.own.astype(int)])
    assert steps.ended.sum() >= 4 * steps.ended.shape[1]


def test_a_vector_that_shows_no_first_states_is_warned_of(monkeypatch: pytest.MonkeyPatch) -> None:
    env = wrap(DummyVecEnv([recorded_clock] * 2), Shown(hued=False))
    monkeypatch.setattr(env, "_reset_infos", lambda: [{}, {}])
    env.reset()
    with pytest.warns(UserWarning, match="gives no frames of first states"):
        _, rewards, _, _ = env.step(np.zeros(2, int))
    assert rewards.tolist() == [code([1])] * 2


def test_a_chunk_holds_one_reset_frame_for_each_episode_that_begins() -> None:
    """Also where only every third step is scored, and environments are in processes of their own."""
    for every, workers in ((1, "inline"), (3, "inline"), (1, "processes")):
        envs = FrameVectorEnv(HUED, 3, episode_seeds(0), workers=workers, resets=True)  # type: ignore[arg-type]
        collecting = CollectingVecEnv(envs, 12, frames=True, every=every)
        collecting.reset()
        for _ in range(3):
            for _ in range(12):
                collecting.collect(np.zeros(3, np.int64))
            clip = collecting.take_chunk().clip
            assert clip.past is not None
            np.testing.assert_array_equal(clip.first[clip.past.rows, clip.past.envs], True)
            assert len(clip.past.rows) == clip.first.sum() and not clip.past.steps.any()
            first = np.asarray(clip.frames)[clip.past.rows, clip.past.envs, 0, 0]
            shown = np.asarray(clip.past.frames)[:, 0, 0]
            assert (shown[:, 0] == 0).all()
            np.testing.assert_array_equal(shown[:, 1], first[:, 1])
        collecting.close()


LEARNERS = {
    "off-policy": (*TINY, "learner.algorithm=DQN", "envs=3"),
    "on-policy": (*TINY_ON_POLICY, "learner.algorithm=PPO"),
}


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("learner", LEARNERS)
def test_a_run_that_is_killed_in_the_middle_of_episodes(
    train_run: Callable[..., Path], sightline: Sightline, tmp_path: Path, learner: str, model: type[Shown]
) -> None:
    """The model fails where it is shown anything but what belongs to the step, in training and in evaluations."""
    recipe = ("env=shown_frames:Hued", *LEARNERS[learner], f"reward.kind=shown_frames:{model.__name__}")
    whole = train_run(*recipe, "checkpoints.keep=9")
    if learner == "off-policy":
        replay = replay_of(whole)
        assert replay["committed"].all() and replay["rewards"].shape[1] == 3
        times = replay["true_rewards"].astype(int)
        table = np.array([0.0, *of_an_episode(9, "prefix")], np.float32)
        np.testing.assert_array_equal(replay["rewards"], table[times])
        assert len(np.unique(times[replay["dones"] > 0])) > 3, "episodes are ragged"
    part = cut(whole, tmp_path / "part")
    assert sightline("train", "--run-dir", part, "--resume", "--trust").code == 0
    assert numbers(part) == numbers(whole)
    assert result_of(part) == result_of(whole)
