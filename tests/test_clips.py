"""Rewards of clips: windows that cross the borders of clips and stop at episode starts, however a run is cut up."""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st

from conftest import TINY, Finished
from sightline.control import relabelling
from sightline.control.relabelling import relabel
from sightline.control.replay import CommittedReplayBuffer
from sightline.control.reward_worker import RewardWorker
from sightline.errors import BadInput, RunFailed
from sightline.rewards.base import Clip, Need, RewardModel, RewardStream, windows
from sightline.rewards.progress import ProgressReward
from sightline.rewards.zero_shot import ZeroShotReward
from sightline.runs.state import read_state, write_state
from stored import newest_checkpoint, replay_of

Window = Callable[[int], RewardModel]


def mixed(brightness: Any, clip: Clip, window: int) -> np.ndarray:
    """A number that no other window has: brightness to base 3, and states; small enough to be exact in float32."""
    assert clip.states is not None
    seen = windows(brightness, clip.first, window) + windows(np.asarray(clip.states)[..., 0], clip.first, window)
    return np.asarray(seen @ 3.0 ** np.arange(window), np.float32)


class FromFrames(RewardModel):
    """Reads earlier frames: it keeps nothing between embedding and scoring."""

    def __init__(self, window: int) -> None:
        self.window = window

    def reward(self, clip: Clip) -> np.ndarray:
        assert isinstance(clip.frames, np.ndarray)
        return mixed(clip.frames[:, :, 0, 0, 0].astype(np.float32), clip, self.window)


class FromFeatures(RewardModel):
    """Reads each frame once, and earlier features when it scores."""

    keeps_features = True

    def __init__(self, window: int) -> None:
        self.window = window

    def embed(self, clip: Clip) -> np.ndarray:
        assert isinstance(clip.frames, np.ndarray)
        return clip.frames[:, :, 0, 0, :2].astype(np.float32)

    def score(self, features: np.ndarray, clip: Clip) -> np.ndarray:
        assert clip.frames is None and features.shape[:2] == clip.shape
        return mixed(features[..., 0], clip, self.window)


class InTorch(FromFrames):
    """Returns tensors, as a model on a GPU does."""

    def reward(self, clip: Clip) -> Any:
        assert isinstance(clip.frames, torch.Tensor)
        return torch.as_tensor(mixed(clip.frames[:, :, 0, 0, 0].float().numpy(), clip, self.window)).requires_grad_()


class FeaturesInTorch(FromFeatures):
    def embed(self, clip: Clip) -> Any:
        assert isinstance(clip.frames, torch.Tensor)
        return clip.frames[:, :, 0, 0, :2].bfloat16()  # small whole numbers are exact


def a_clip(steps: int, envs: int, seed: int) -> Clip:
    """A random sequence; about every fifth step begins an episode."""
    rng = np.random.default_rng(seed)
    frames = np.repeat(rng.integers(0, 9, (steps, envs, 1, 1, 3), np.uint8), 2, axis=2)
    states = rng.integers(0, 9, (steps, envs, 1)).astype(np.float32)
    first = rng.random((steps, envs)) < 0.2
    return Clip(first, frames, states, env_reward=states[..., 0], success=first)


def cut(clip: Clip, places: Sequence[int]) -> list[Clip]:
    edges = [0, *sorted(place % (len(clip.first) + 1) for place in places), len(clip.first)]
    return [clip[start:end] for start, end in pairwise(edges)]


def of_a_stream(stream: RewardStream, parts: Sequence[Clip]) -> list[np.ndarray]:
    """Rewards in the order of a run: a clip is scored when the next one is embedded, and frames are overwritten."""
    rewards, before = [], None
    for part in parts:
        frames = part.frames.copy() if isinstance(part.frames, np.ndarray) else part.frames
        features = stream.embed(replace(part, frames=frames))
        if isinstance(frames, np.ndarray):
            frames[:] = 255
        if before is not None:
            rewards.append(stream.score(*before))
        before = features, part
    return rewards if before is None else [*rewards, stream.score(*before)]


sequences = {
    "steps": st.integers(1, 30),
    "envs": st.integers(1, 3),
    "window": st.integers(1, 7),
    "seed": st.integers(0, 10_000),
    "places": st.lists(st.integers(0, 1000), max_size=8),
}


# -- windows ----------------------------------------------------------------------------------------------------------


def one_by_one(values: np.ndarray, first: np.ndarray, size: int) -> np.ndarray:
    """What `windows` gives, by walking back one step at a time."""
    found = np.empty((*first.shape, size, *values.shape[2:]), values.dtype)
    for step, env in np.ndindex(*first.shape):
        place = step
        for back in range(size):
            found[step, env, size - 1 - back] = values[place, env]
            if place > 0 and not first[place, env]:
                place -= 1
    return found


@settings(max_examples=150, deadline=None)
@given(
    steps=st.integers(0, 20),
    envs=st.integers(1, 3),
    size=st.integers(1, 12),
    axes=st.integers(0, 2),
    seed=st.integers(0, 10_000),
)
def test_windows_equal_a_walk_back(steps: int, envs: int, size: int, axes: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    values = rng.random((steps, envs, *[2, 3][:axes]))
    first = rng.random((steps, envs)) < 0.25
    found = windows(values, first, size)
    assert found.shape == (steps, envs, size, *values.shape[2:])
    np.testing.assert_array_equal(found, one_by_one(values, first, size))
    np.testing.assert_array_equal(windows(values, first, size)[:, :, -1], values)


# -- streams ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("model", [FromFrames, FromFeatures])
@settings(max_examples=100, deadline=None)
@given(**sequences)
def test_any_split_gives_the_rewards_of_one_pass(
    model: Window, steps: int, envs: int, window: int, seed: int, places: list[int]
) -> None:
    clip = a_clip(steps, envs, seed)
    whole = model(window)(clip)
    assert whole.dtype == np.float32 and whole.shape == clip.shape
    frames = clip.frames
    assert isinstance(frames, np.ndarray) and clip.states is not None
    numbers = frames[:, :, 0, 0, 0].astype(np.float32) + np.asarray(clip.states)[..., 0]
    np.testing.assert_array_equal(whole, one_by_one(numbers, clip.first, window) @ 3.0 ** np.arange(window))
    parts = of_a_stream(RewardStream(model(window)), cut(clip, places))
    np.testing.assert_array_equal(np.concatenate(parts), whole)


@pytest.mark.parametrize("model", [FromFrames, FromFeatures])
@settings(max_examples=60, deadline=None)
@given(**sequences, left=st.integers(0, 1000))
def test_a_stream_goes_on_from_its_state(
    tmp_path_factory: pytest.TempPathFactory,
    model: Window,
    steps: int,
    envs: int,
    window: int,
    seed: int,
    places: list[int],
    left: int,
) -> None:
    clip = a_clip(steps, envs, seed)
    parts = cut(clip, places)
    before, after = parts[: left % (len(parts) + 1)], parts[left % (len(parts) + 1) :]
    stream, other = RewardStream(model(window)), RewardStream(model(window))
    rewards = of_a_stream(stream, before)
    file = tmp_path_factory.getbasetemp() / "stream.safetensors"
    write_state(file, stream.state())
    other.restore(read_state(file))
    np.testing.assert_array_equal(np.concatenate([*rewards, *of_a_stream(other, after)]), model(window)(clip))


@pytest.mark.parametrize(("model", "in_torch"), [(FromFrames, InTorch), (FromFeatures, FeaturesInTorch)])
@settings(max_examples=30, deadline=None)
@given(**sequences)
def test_tensors_as_frames_give_the_same(
    tmp_path_factory: pytest.TempPathFactory,
    model: Window,
    in_torch: Window,
    steps: int,
    envs: int,
    window: int,
    seed: int,
    places: list[int],
) -> None:
    clip = a_clip(steps, envs, seed)
    parts = cut(replace(clip, frames=torch.as_tensor(clip.frames), states=torch.as_tensor(clip.states)), places)
    stream, other = RewardStream(in_torch(window)), RewardStream(in_torch(window))
    rewards = of_a_stream(stream, parts[:1])
    file = tmp_path_factory.getbasetemp() / "tensors.safetensors"
    write_state(file, stream.state())
    other.restore(read_state(file))
    both = np.concatenate([*rewards, *of_a_stream(other, parts[1:])])
    assert both.dtype == np.float32
    np.testing.assert_array_equal(both, model(window)(clip))


@pytest.mark.parametrize("window", [1, 4])
@pytest.mark.parametrize("model", [FromFrames, FromFeatures])
def test_the_worker_of_a_run_commits_the_rewards_of_one_pass(tmp_path: Path, model: Window, window: int) -> None:
    """It is saved in mid-episode, with one chunk pending, and goes on from there."""
    clip, kept = a_clip(23, 2, 5), None
    buffer = ring(30, 2, model is FromFeatures)
    worker = RewardWorker(buffer, model(window))
    for number, part in enumerate(cut(clip, [7, 9, 10, 18])):
        if number == 3:
            write_state(tmp_path / "worker.safetensors", worker.state())
            worker.close()
            worker = RewardWorker(buffer, model(window))
            worker.restore(read_state(tmp_path / "worker.safetensors"))
        add_steps(buffer, part)
        worker.end_of_chunk(part)
        kept = part.frames  # a chunk's frames stay as they are until the next one ends
    assert kept is not None
    worker.finish()
    worker.close()
    np.testing.assert_array_equal(buffer.rewards[:23], model(window)(clip))


def test_progress_is_the_rise_over_eight_frames(bundled: Any, frames_of: Callable[..., np.ndarray]) -> None:
    words: Any = {"goal": "pole vertically upright on top of the cart", "baseline": "pole and cart", "encoder": bundled}
    frames = frames_of(20, 64, 64)
    first = np.zeros((20, 1), bool)
    first[[0, 11]] = True
    clip, similarity = Clip(first, frames=frames[:, None]), ZeroShotReward(**words)(frames)
    since = [max(step - 7, 11 if step >= 11 else 0) for step in range(20)]
    for level in (0.0, 0.3):
        rewards = ProgressReward(**words, level=level)(clip)[:, 0]
        np.testing.assert_allclose(rewards, similarity - similarity[since] + level * similarity, atol=1e-5)


def test_an_endless_sum_of_rises_is_a_share_of_the_sum_of_similarities() -> None:
    """So both prefer the same policies."""
    steps, gamma, rng = 4000, 0.99, np.random.default_rng(0)
    similarity, first = rng.random((steps, 3)), np.zeros((steps, 3), bool)
    discounts = gamma ** np.arange(steps)
    rise = similarity - windows(similarity, first, ProgressReward.window)[:, :, 0]
    beginning = discounts[: ProgressReward.window - 1].sum() * similarity[0]
    share = 1 - gamma ** (ProgressReward.window - 1)
    np.testing.assert_allclose(discounts @ rise, share * (discounts @ similarity) - beginning, atol=1e-9)


# -- frames without a clip --------------------------------------------------------------------------------------------


class Brightness(RewardModel):
    def reward(self, clip: Clip) -> np.ndarray:
        return np.asarray(np.asarray(clip.frames)[:, :, 0, 0, 0], np.float64)


@pytest.mark.parametrize("model", [Brightness, lambda: FromFramesOnly(4)])
@pytest.mark.parametrize("array", [np.asarray, torch.as_tensor])
def test_frames_are_judged_one_by_one(model: Callable[[], RewardModel], array: Any) -> None:
    frames = np.arange(5, dtype=np.uint8)[:, None, None, None] * np.ones((1, 6, 7, 3), np.uint8)
    rewards = model()(array(frames))
    assert rewards.dtype == np.float32 and isinstance(rewards, np.ndarray)
    np.testing.assert_array_equal(rewards, np.arange(5))
    nothing = model()(array(frames[:0]))
    assert nothing.dtype == np.float32 and nothing.shape == (0,)


@pytest.mark.parametrize("kind", [list, tuple])
def test_frames_in_a_list(kind: Any) -> None:
    frames = [np.full((6, 7, 3), value, np.uint8) for value in (3, 8)]
    np.testing.assert_array_equal(Brightness()(kind(frames)), [3, 8])
    with pytest.raises(BadInput, match="must be arrays of one shape"):
        Brightness()([frames[0], frames[1][:2]])


class FromFramesOnly(FromFrames):
    """The rise of the brightness within a window, from below: of a frame alone, its brightness."""

    def reward(self, clip: Clip) -> np.ndarray:
        seen = windows(np.asarray(clip.frames)[:, :, 0, 0, 0].astype(np.float32), clip.first, self.window)
        return np.asarray(2 * seen[:, :, -1] - seen[:, :, 0])


@pytest.mark.parametrize(
    "frames",
    [
        np.zeros((6, 7, 3), np.uint8),
        np.zeros((2, 6, 7, 4), np.uint8),
        np.zeros((2, 6, 7, 3), np.float32),
        torch.zeros((2, 6, 7, 3)),
        None,
        3,
        "frame.png",
        [],
    ],
)
def test_what_is_no_picture_is_refused(frames: Any) -> None:
    with pytest.raises(BadInput, match=r"frames must be uint8\[N, H, W, 3\], not ") as caught:
        Brightness()(frames)
    assert "\n" not in str(caught.value)


class Place(RewardModel):
    needs: frozenset[Need] = frozenset({"states"})

    def reward(self, clip: Clip) -> np.ndarray:
        return np.asarray(np.asarray(clip.states)[..., 0], np.float32)


def test_states_are_judged_one_by_one() -> None:
    np.testing.assert_array_equal(Place()([[1.0, 2.0], [3.0, 4.0]]), [1, 3])
    for nothing in (None, 3.0):
        with pytest.raises(BadInput, match=r"states must be an array \[N, …\], not "):
            Place()(nothing)  # type: ignore[arg-type]


def test_a_model_of_frames_and_states_is_given_a_clip() -> None:
    model, clip = FromFrames(2), a_clip(4, 2, 0)
    model.needs = frozenset({"frames", "states"})
    with pytest.raises(BadInput, match="FromFrames reads frames and states; give it a Clip"):
        model(np.asarray(clip.frames)[0])
    np.testing.assert_array_equal(model(clip), FromFrames(2)(clip))


FRAMES = np.zeros((4, 2, 6, 7, 3), np.uint8)
CLIPS: dict[str, tuple[Clip, str]] = {
    "no frames": (Clip(np.ones((4, 2), bool)), "Brightness reads frames, which this Clip does not hold"),
    "one step too few": (
        Clip(np.ones((4, 2), bool), FRAMES[1:]),
        r"Clip.frames is of shape \[3, 2, 6, 7, 3\], and Clip.first says \[4, 2, …\]",
    ),
    "no environments": (Clip(np.ones((4, 2), bool), FRAMES[:, 0]), r"Clip.frames is of shape \[4, 6, 7, 3\]"),
    "floats": (Clip(np.ones((4, 2), bool), FRAMES / 255), r"frames must be uint8\[T, N, H, W, 3\], not float64"),
    "no pixels": (Clip(np.ones((4, 2), bool), FRAMES[:, :, :0]), "frames must have pixels, and these are uint8"),
    "no colours": (Clip(np.ones((4, 2), bool), FRAMES[..., 0]), r"frames must be uint8\[T, N, H, W, 3\], not uint8"),
    "a flat first": (Clip(np.ones(4, bool), FRAMES), r"Clip.first must be bool\[T, N\], not bool\[4\]"),
    "no first": (Clip(None, FRAMES), r"Clip.first must be bool\[T, N\], not NoneType"),  # type: ignore[arg-type]
    "states of others": (
        Clip(np.ones((4, 2), bool), FRAMES, np.zeros((2, 4, 3))),
        r"Clip.states is of shape \[2, 4, 3\]",
    ),
    "one success": (Clip(np.ones((4, 2), bool), FRAMES, success=np.ones(4, bool)), r"Clip.success is of shape \[4\]"),
}


@pytest.mark.parametrize(("clip", "said"), CLIPS.values(), ids=CLIPS)
def test_a_clip_that_does_not_fit_together_is_refused(clip: Clip, said: str) -> None:
    with pytest.raises(BadInput, match=said) as caught:
        Brightness()(clip)
    assert "\n" not in str(caught.value)


# -- wrong models -----------------------------------------------------------------------------------------------------


def returning(give: Callable[[Clip], Any]) -> type[RewardModel]:
    class Wrong(RewardModel):
        def reward(self, clip: Clip) -> Any:
            return give(clip)

    return Wrong


def keeping(embed: Callable[[Clip], Any], score: Callable[[Any, Clip], Any]) -> type[RewardModel]:
    class Wrong(RewardModel):
        def embed(self, clip: Clip) -> Any:
            return embed(clip)

        def score(self, features: Any, clip: Clip) -> Any:
            return score(features, clip)

    return Wrong


def zeros(clip: Clip) -> np.ndarray:
    return np.zeros(clip.shape, np.float32)


class Wrong(RewardModel):
    """Defines nothing."""


WRONG: dict[str, tuple[type[RewardModel], str]] = {
    "one for each env": (returning(lambda clip: zeros(clip)[0]), r"shape \[3\]; this clip needs float32\[5, 3\]"),
    "a flat list": (returning(lambda clip: zeros(clip).ravel()), r"shape \[15\]"),
    "turned round": (returning(lambda clip: zeros(clip).T), r"shape \[3, 5\]"),
    "one column more": (returning(lambda clip: zeros(clip)[..., None]), r"shape \[5, 3, 1\]"),
    "whole numbers": (returning(lambda clip: zeros(clip).astype(int)), "dtype int64"),
    "tensor of whole numbers": (returning(lambda clip: torch.zeros(clip.shape, dtype=torch.int32)), "dtype int32"),
    "truth values": (returning(lambda clip: clip.first), "dtype bool"),
    "NaN": (returning(lambda clip: zeros(clip) + np.nan), "15 of 15 rewards are not finite"),
    "infinite": (returning(lambda clip: np.where(np.arange(15).reshape(5, 3) == 4, np.inf, 0)), "1 of 15 rewards"),
    "too large for float32": (
        keeping(zeros, lambda features, clip: features + np.float64(1e300)),
        "15 of 15 rewards are not finite",
    ),
    "nothing at all": (returning(lambda clip: None), "dtype object"),
    "a ragged list": (returning(lambda clip: [[1.0], [2.0, 3.0]]), "returned rewards that are no array: "),
    "an exception": (returning(lambda clip: {}["foo"]), r"reward failed: KeyError: 'foo' \(test_clips.py:[0-9]+\)$"),
    "an exception in embed": (keeping(lambda clip: {}["foo"], lambda features, clip: zeros(clip)), "embed failed: Key"),
    "an exception in score": (
        keeping(zeros, lambda features, clip: {}["foo"]),
        r"score failed: KeyError: 'foo' \(test_clips.py:[0-9]+\)$",
    ),
    "ragged features": (
        keeping(lambda clip: [[1.0], [2.0, 3.0]], lambda features, clip: zeros(clip)),
        "returned features that are no array: ",
    ),
    "defines nothing": (Wrong, r"must define reward\(clip\), or embed\(clip\) and score\(features, clip\)"),
    "features of frames": (
        keeping(lambda clip: np.zeros((15, 4), np.float32), lambda features, clip: zeros(clip)),
        r"features of shape \[15, 4\]; this clip needs \[5, 3, …\]",
    ),
    "a flat score": (keeping(zeros, lambda features, clip: features.ravel()), r"shape \[15\]"),
    "a score of whole numbers": (keeping(zeros, lambda features, clip: np.ones(clip.shape, np.int64)), "dtype int64"),
    "a score of NaN": (keeping(zeros, lambda features, clip: features / 0), "15 of 15 rewards"),
    "both ways": (
        type("Wrong", (keeping(zeros, lambda features, clip: features),), {"reward": lambda self, clip: zeros(clip)}),
        r"defines both reward\(clip\) and score\(features, clip\)",
    ),
}


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("window", [1, 3])
@pytest.mark.parametrize(("model", "said"), WRONG.values(), ids=WRONG)
def test_a_wrong_model_is_refused_by_name(model: type[RewardModel], said: str, window: int) -> None:
    judge = model()
    judge.window = window
    with pytest.raises((BadInput, RunFailed), match=said) as caught:
        judge(a_clip(5, 3, 0))
    assert str(caught.value).startswith("Wrong") and "\n" not in str(caught.value)


def test_what_to_do_about_rewards_that_are_not_finite() -> None:
    model: Any = returning(lambda clip: zeros(clip) / 0)()
    with np.errstate(all="ignore"):
        with pytest.raises(RunFailed, match=r"look at what it returns \(float32 holds"):
            model(a_clip(5, 3, 0))
        model.encoder = "any"
        with pytest.raises(RunFailed, match=r"'sightline score', try reward\.dtype=float32"):
            model(a_clip(5, 3, 0))


def test_our_own_errors_are_passed_on() -> None:
    for error in (BadInput("say so"), RunFailed("it broke")):

        def fail(clip: Clip, error: Exception = error) -> Any:
            raise error

        with pytest.raises(type(error), match=r"^(say so|it broke)$"):
            returning(fail)()(a_clip(5, 3, 0))


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.bfloat16, torch.float16])
def test_small_floats_of_torch(dtype: torch.dtype) -> None:
    rewards = returning(lambda clip: torch.ones(clip.shape).to(dtype))()(a_clip(5, 3, 0))
    assert rewards.dtype == np.float32 and (rewards == 1).all()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("window", value) for value in (0, -1, "3", 2.5, None)),
        *(("needs", value) for value in (frozenset({"frame"}), "frames", None)),
    ],
)
def test_attributes_that_say_nothing_are_refused(name: str, value: Any) -> None:
    model = returning(zeros)()
    setattr(model, name, value)
    for judge in (model, RewardStream):
        with pytest.raises(BadInput, match=f"^Wrong.{name} must be") as caught:
            judge(model if judge is RewardStream else a_clip(5, 3, 0))
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("window", [2, 6])
def test_a_model_that_leaves_out_the_earlier_steps_is_refused(window: int) -> None:
    """It gives the right number of rewards, but for the wrong steps."""
    model = returning(lambda clip: zeros(clip)[-5:])()
    model.window = window
    stream, clip = RewardStream(model), a_clip(15, 3, 0)
    stream(clip[:5])
    with pytest.raises(RunFailed, match=r"Wrong returned rewards of shape \[5, 3\]"):
        stream(clip[5:10])


# -- relabelling ------------------------------------------------------------------------------------------------------


def ring(rows: int, envs: int, keeps_features: bool) -> CommittedReplayBuffer:
    space, shape = spaces.Box(-np.inf, np.inf, (1,), np.float32), (2,) if keeps_features else None
    sizes: Any = {"n_envs": envs, "feature_shape": shape, "feature_dtype": np.float32}
    return CommittedReplayBuffer(rows * envs, space, spaces.Discrete(2), "cpu", **sizes)


def add_steps(buffer: CommittedReplayBuffer, clip: Clip, after: Clip | None = None) -> None:
    """An episode's last step is known by the first step of the next, here or in the clip after this one."""
    assert clip.states is not None and clip.env_reward is not None
    steps, envs = clip.shape
    last = np.zeros((1, envs), bool) if after is None else after.first[:1]
    done = np.concatenate([clip.first[1:], last])
    for step in range(steps):
        states = np.asarray(clip.states[step])
        buffer.add(states - 1, states, np.zeros((envs, 1)), clip.env_reward[step], done[step], [{}] * envs)


@pytest.mark.parametrize("at_once", [3, 1024])
@settings(max_examples=60, deadline=None)
@given(
    steps=st.integers(2, 30),
    rows=st.integers(4, 12),
    envs=st.integers(1, 3),
    window=st.integers(1, 7),
    seed=st.integers(0, 10_000),
    pending=st.integers(0, 1),
)
def test_relabelling_a_ring_equals_scoring_again(
    at_once: int, steps: int, rows: int, envs: int, window: int, seed: int, pending: int
) -> None:
    """But for the first `window - 1` rows of the ring, if their episodes began before it: nobody knows any more what
    came before them, and their windows begin with the oldest row."""
    clip, model = a_clip(steps, envs, seed), FromFeatures(window)
    buffer, rewards = ring(rows, envs, True), model(clip)
    parts = cut(clip, range(2, steps, 2))
    waiting = buffer.take_new_rows()
    for number, part in enumerate(parts):
        add_steps(buffer, part, parts[number + 1] if number + 1 < len(parts) else None)
        waiting = buffer.take_new_rows()
        if number + 1 < len(parts) or not pending:
            buffer.commit(waiting, np.zeros(part.shape), model.embed(part))
    known = steps - pending * len(waiting)
    oldest = max(0, steps - rows)
    before = relabelling.ROWS_AT_ONCE
    relabelling.ROWS_AT_ONCE = at_once
    try:
        again = relabel(buffer, model)
    finally:
        relabelling.ROWS_AT_ONCE = before
    assert again.shape == (max(0, known - oldest), envs)
    first = clip.first.copy()
    first[oldest] = True
    scored = model(replace(clip, first=first)[oldest:known]) if known > oldest else again
    np.testing.assert_array_equal(again, scored)
    for row, env in np.argwhere(again != rewards[oldest:known]):
        assert oldest > 0 and row < window - 1 and not clip.first[oldest : oldest + row + 1, env].any()
    places = np.arange(oldest, known) % rows
    np.testing.assert_array_equal(buffer.rewards[places], again)
    assert np.isnan(buffer.rewards[np.arange(max(known, oldest), steps) % rows]).all()


# -- whole runs -------------------------------------------------------------------------------------------------------

PROGRESS = (
    *("env=small_envs:Clock", "env_options={longest: 15}", "goal=pole", "baseline=cart", "learner.algorithm=DQN"),
    *TINY,
    *("reward.kind=progress", "reward.level=0.5", "steps=384", "envs=3", "learner.buffer_size=900"),
    *("learner.learning_starts=100000", "evaluation.every=100000", "checkpoints.every=100000"),
)
"""Acts by chance to the end, so that what happens does not depend on the size of the chunks."""


@pytest.fixture
def rewards_of(sightline: Callable[..., Finished], tmp_path: Path) -> Callable[..., dict[str, np.ndarray]]:
    def run(*overrides: str, name: str) -> dict[str, np.ndarray]:
        done = sightline("train", *PROGRESS, *overrides, "--run-dir", tmp_path / name)
        assert done.code == 0, done.err
        return {key: array[:128] for key, array in replay_of(tmp_path / name).items() if key != "full"}

    return run


def progress_of_clock(replay: dict[str, np.ndarray], encoder: Any) -> np.ndarray:
    """What the rewards must be: the clock's frames show the time, and its times since the reset are 1, 2, 3, …."""
    model = ZeroShotReward(("pole",), ("cart",), encoder=encoder)
    similarity = np.array([model(np.full((1, 64, 64, 3), t, np.uint8))[0] for t in range(16)])
    times = replay["next_observations"][..., 0].astype(int)
    return np.asarray(similarity[times] - similarity[np.maximum(times - 7, 1)] + 0.5 * similarity[times])


def test_rewards_of_a_run_do_not_depend_on_how_it_is_cut_up(
    rewards_of: Callable[..., dict[str, np.ndarray]], bundled: Any
) -> None:
    usual = rewards_of("learner.chunk=7", name="7")
    assert usual["committed"].all() and len(usual["rewards"]) == 128
    assert (usual["next_observations"][..., 0] > 8).any(), "episodes are longer than a window"
    np.testing.assert_allclose(usual["rewards"], progress_of_clock(usual, bundled), atol=1e-5)
    ways = {
        "1": ["learner.chunk=1"],
        "64": ["learner.chunk=64"],
        "own": ["learner.chunk=7", "workers=processes", "evaluation.test_episodes=1"],
    }
    for name, overrides in ways.items():
        other = rewards_of(*overrides, name=name)
        for key in ("observations", "next_observations", "actions", "dones", "timeouts"):
            np.testing.assert_array_equal(other[key], usual[key], err_msg=f"{name}: {key}")
        np.testing.assert_allclose(other["rewards"], usual["rewards"], atol=1e-6, err_msg=name)


def test_rewards_of_a_run_that_was_killed_in_mid_episode(
    rewards_of: Callable[..., dict[str, np.ndarray]],
    sightline: Callable[..., Finished],
    sightline_process: Callable[..., Any],
    tmp_path: Path,
    bundled: Any,
) -> None:
    run, often = tmp_path / "run", ("learner.chunk=5", "checkpoints.every=30")
    process = sightline_process("train", *PROGRESS, *often, "--run-dir", run)
    while len(list((run / "checkpoints").glob("step-*"))) < 2:
        assert process.poll() is None, process.communicate()
        time.sleep(0.005)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    assert not (run / "result.json").exists()
    saved = replay_of(run)
    assert (saved["dones"][-1] == 0).any(), "an episode is unfinished"
    assert np.isnan(saved["rewards"][-5:]).all(), "and the last chunk waits for its rewards"
    done = sightline("train", *PROGRESS, *often, "--run-dir", run, "--resume")
    assert done.code == 0 and "resuming from step" in done.err, done.err
    resumed, whole = replay_of(run), rewards_of(*often, name="whole")
    assert newest_checkpoint(run).name == newest_checkpoint(tmp_path / "whole").name
    np.testing.assert_array_equal(resumed["rewards"][:128], whole["rewards"])
    np.testing.assert_allclose(whole["rewards"], progress_of_clock(whole, bundled), atol=1e-5)


def test_an_episode_that_cannot_be_gone_on_with_ends_where_the_run_was_left(
    sightline: Callable[..., Finished], tmp_path: Path, bundled: Any
) -> None:
    run = tmp_path / "run"
    fickle = ("env=small_envs:Fickle", "env_options={shortest: 9, longest: 15}", "learner.chunk=5")
    arguments = (*PROGRESS, *fickle, "checkpoints.every=90", "checkpoints.keep=20", "reward.keep_embeddings=true")
    done = sightline("train", *arguments, "--run-dir", run)
    assert done.code == 0, done.err
    kept = sorted((run / "checkpoints").glob("step-*"))
    for folder in kept[2:]:
        shutil.rmtree(folder)
    (run / "result.json").unlink()
    left = len(replay_of(run)["dones"]) - 1
    done = sightline("train", *arguments, "--run-dir", run, "--resume")
    assert done.code == 0 and "does not repeat itself" in done.err, done.err
    replay = replay_of(run)
    assert replay["dones"][left].all() and (replay["timeouts"][left] == 1).any()
    begins = replay["next_observations"][..., 0] == 1
    np.testing.assert_array_equal(replay["dones"][:-1] > 0, begins[1:])
    np.testing.assert_allclose(replay["rewards"], progress_of_clock(replay, bundled), atol=1e-5)
