"""Vectorised environments: terminal frames, ragged episodes, seeds, exact replay, worker processes."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import psutil
import pytest
import torch

from sightline.control.collection import CollectingVecEnv
from sightline.envs.frame_vector import FrameVectorEnv, Transitions, episode_seeds
from sightline.envs.making import EnvMaker
from sightline.envs.stepping import scalar_reward
from sightline.envs.workers import Worker
from sightline.errors import BadInput, RunFailed
from sightline_tasks.registration import CARTPOLE_ID, MOUNTAIN_CAR_ID

CLOCK = EnvMaker("small_envs:Clock", frame_size=(6, 8))


@pytest.fixture(autouse=True)
def _no_process_stays_behind() -> Iterator[None]:
    before = {child.pid for child in psutil.Process().children(recursive=True)}
    yield
    for _ in range(50):
        left = [child for child in psutil.Process().children(recursive=True) if child.pid not in before]
        # multiprocessing keeps one resource tracker for the life of the parent
        left = [c for c in left if c.status() != psutil.STATUS_ZOMBIE and "resource_tracker" not in str(c.cmdline())]
        if not left:
            return
        time.sleep(0.1)
    raise AssertionError(f"processes left behind: {left}")


def play(envs: FrameVectorEnv, steps: int, seed: int = 0) -> list[Transitions]:
    """Random play; everything is copied, frames too."""
    rng = np.random.default_rng(seed)
    discrete = envs.action_space.shape == ()
    envs.reset()
    played = []
    for _ in range(steps):
        actions = rng.integers(0, 2, envs.count) if discrete else rng.uniform(-1, 1, (envs.count, 1)).astype(np.float32)
        step = envs.step(actions)
        frames = None if step.frames is None else step.frames.copy()
        played.append(replace(step, frames=frames))
    return played


@pytest.mark.parametrize("count", [1, 2, 7])
def test_a_frame_shows_the_state_that_the_step_led_to(count: int) -> None:
    envs = FrameVectorEnv(CLOCK, count, episode_seeds(0))
    ends = 0
    for step in play(envs, 60):
        assert step.frames is not None
        assert step.frames.shape == (count, 6, 8, 3)
        times = step.frames[:, 0, 0, 0]
        assert (step.frames == times[:, None, None, None]).all()
        assert np.array_equal(step.final_states[:, 0], times)
        assert np.array_equal(step.rewards, times)
        assert np.array_equal(step.ended, step.final_states[:, 0] == step.final_states[:, 1])
        assert np.array_equal(step.states[:, 0], np.where(step.ended, 0, times)), "an ended episode begins anew"
        ends += int(step.ended.sum())
    assert ends >= 6 * count
    envs.close()


@pytest.mark.parametrize("env_id", [CARTPOLE_ID, MOUNTAIN_CAR_ID])
def test_terminal_frames_equal_an_independent_render(env_id: str) -> None:
    maker = EnvMaker(env_id, episode_steps=9, frame_size=(32, 32))
    envs = FrameVectorEnv(maker, 2, lambda env, episode: 10 * env + episode)
    played = play(envs, 20)
    envs.close()
    alone: Any = maker()
    for column in range(2):
        episode, actions = 0, np.random.default_rng(0)
        alone.reset(seed=10 * column)
        shape = (2,) if env_id == CARTPOLE_ID else (2, 1)
        for i, step in enumerate(played):
            drawn = actions.integers(0, 2, 2) if len(shape) == 1 else actions.uniform(-1, 1, shape).astype(np.float32)
            state, _, terminated, truncated, _ = alone.step(drawn[column])
            assert step.frames is not None
            assert np.array_equal(step.frames[column], alone.render())
            assert np.array_equal(step.final_states[column], state)
            assert (step.terminated[column], step.truncated[column]) == (terminated, truncated)
            assert bool(step.truncated[column]) == ((i + 1) % 9 == 0)
            if truncated:
                episode += 1
                state, _ = alone.reset(seed=10 * column + episode)
            assert np.array_equal(step.states[column], state)


def test_truncation_is_not_termination() -> None:
    limited = EnvMaker("small_envs:Clock", {"shortest": 4, "longest": 9}, episode_steps=6)
    envs = FrameVectorEnv(limited, 3, episode_seeds(1), frames=False)
    kinds = set()
    for step in play(envs, 80):
        length, at = step.final_states[:, 1], step.final_states[:, 0]
        assert np.array_equal(step.terminated, at == length)
        assert np.array_equal(step.truncated, at == 6)
        kinds |= set(zip(step.terminated.tolist(), step.truncated.tolist(), strict=True))
    envs.close()
    assert kinds == {(False, False), (True, False), (False, True), (True, True)}


def test_what_the_learner_sees_of_an_end() -> None:
    """SB3 bootstraps through time limits, and only through those; the last state travels beside the first new one."""
    limited = EnvMaker("small_envs:Clock", {"shortest": 4, "longest": 9}, episode_steps=6)
    env = CollectingVecEnv(FrameVectorEnv(limited, 3, episode_seeds(1), frames=False), chunk=4, frames=False)
    env.reset()
    seen = set()
    for _ in range(60):
        states, rewards, dones, infos = env.step(np.zeros(3, int))
        for i in np.flatnonzero(dones):
            time_, length = infos[i]["terminal_observation"][:2]
            assert states[i, 0] == 0
            assert rewards[i] == time_
            assert infos[i]["TimeLimit.truncated"] is bool(time_ < length)
            seen.add(bool(time_ < length))
        assert all("terminal_observation" not in infos[i] for i in np.flatnonzero(~dones))
    assert seen == {True, False}
    finished = env.take_finished()
    assert finished
    assert all(e["return"] == e["length"] * (e["length"] + 1) / 2 for e in finished)
    assert all(e["any"] == (e["length"] < 6) or e["length"] == 6 for e in finished)
    assert not env.take_finished()
    env.close()


def test_chunks_of_frames_stay_valid_for_one_more_chunk() -> None:
    env = CollectingVecEnv(FrameVectorEnv(CLOCK, 2, episode_seeds(0)), chunk=5, frames=True)
    env.reset()
    expected, chunks = [], []
    for i in range(20):
        _, rewards, *_ = env.step(np.zeros(2, int))
        expected.append(rewards)
        if i % 5 == 4:
            taken: Any = env.take_chunk().frames
            assert taken.shape == (5, 2, 6, 8, 3)
            chunks.append(taken)
            for past in chunks[-2:]:
                start = 5 * (len(chunks) - (1 if past is taken else 2))
                assert np.array_equal(past[:, :, 0, 0, 0], np.stack(expected[start : start + 5]))
    env.close()


def test_episode_seeds_do_not_depend_on_the_number_of_environments() -> None:
    def lengths(count: int) -> list[list[float]]:
        envs = FrameVectorEnv(CLOCK, count, episode_seeds(3), frames=False)
        states = [envs.reset()[:, 1]]
        states += [step.states[:, 1] for step in play(envs, 40)]
        envs.close()
        return np.stack(states).T.tolist()

    two, five = lengths(2), lengths(5)
    assert two == five[:2]
    assert five[0] != five[1]
    seeds = [episode_seeds(run)(env, episode) for run in range(5) for env in range(5) for episode in range(20)]
    assert len(set(seeds)) == len(seeds)


@pytest.mark.parametrize("env_id", ["small_envs:Clock", CARTPOLE_ID, MOUNTAIN_CAR_ID, "Pendulum-v1"])
def test_restore_brings_back_unfinished_episodes_exactly(env_id: str) -> None:
    maker = EnvMaker(env_id, episode_steps=13 if env_id != "small_envs:Clock" else None, frame_size=(16, 16))
    envs = FrameVectorEnv(maker, 3, episode_seeds(2))
    last = play(envs, 31)[-1]
    episodes, actions = list(envs.episodes), [list(history) for history in envs.actions]
    assert 0 < max(len(history) for history in actions) <= 13
    assert min(episodes) > 0
    other = FrameVectorEnv(maker, 3, episode_seeds(2))
    assert other.restore(episodes, actions, envs.drawn, last.states)
    rng = np.random.default_rng(4)
    for _ in range(30):
        drawn = rng.integers(0, 2, 3) if envs.action_space.shape == () else rng.uniform(-1, 1, (3, 1)).astype("f4")
        one, two = envs.step(drawn), other.step(drawn)
        assert np.array_equal(one.final_states, two.final_states)
        assert np.array_equal(one.states, two.states)
        assert one.frames is not None
        assert two.frames is not None
        assert np.array_equal(one.frames, two.frames)
        assert np.array_equal(one.ended, two.ended), "the time limit goes on where it was"
    envs.close()
    other.close()


def test_processes_give_the_same_as_inline_and_leave_nothing_behind() -> None:
    before = {child.pid for child in psutil.Process().children()}
    both = [FrameVectorEnv(CLOCK, 3, episode_seeds(0), workers=workers) for workers in ("inline", "processes")]  # type: ignore[arg-type]
    children = [child for child in psutil.Process().children() if child.pid not in before]
    workers = [child for child in children if "resource_tracker" not in str(child.cmdline())]
    assert len(workers) >= 3
    inline, processes = (play(envs, 25) for envs in both)
    for one, other in zip(inline, processes, strict=True):
        for name in ("states", "final_states", "frames", "rewards", "terminated", "truncated"):
            assert np.array_equal(getattr(one, name), getattr(other, name)), name
        assert np.array_equal(one.success, other.success)  # type: ignore[arg-type]
    assert both[1].restore(both[1].episodes, both[1].actions, both[1].drawn, inline[-1].states)
    for envs in both:
        envs.close()
        envs.close()
    assert not [worker for worker in workers if worker.is_running() and worker.status() != psutil.STATUS_ZOMBIE]


@pytest.mark.parametrize("workers", ["inline", "processes"])
def test_an_environment_that_breaks(workers: Any) -> None:
    envs = FrameVectorEnv(EnvMaker("small_envs:Raising"), 2, episode_seeds(0), workers=workers)
    try:
        with pytest.raises(Exception, match="exploded"):
            play(envs, 5)
    finally:
        started = time.monotonic()
        envs.close()
    assert time.monotonic() - started < 20


@pytest.mark.parametrize("workers", ["inline", "processes"])
def test_a_picture_of_other_numbers_is_said_in_one_line(workers: Any) -> None:
    with pytest.raises(RunFailed, match=r"uint8\[H, W, 3\]") as caught:
        FrameVectorEnv(EnvMaker("small_envs:Heat"), 2, episode_seeds(0), workers=workers)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("NaN", "returned an observation with NaN in it"),
        ("infinite", "returned an observation with an infinite number in it"),
        ("shape", "returned an observation of shape [2] where its observation_space says [3]"),
        ("text", "returned an observation that is not an array of numbers: 'here'"),
        ("reward NaN", "returned a reward that is NaN"),
        ("reward infinite", "returned a reward that is infinite"),
        ("no reward", "returned a reward that is not a number: None"),
        ("frame", "rendered frames of 16x16 first and now one of 20x16"),
    ],
)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_what_would_spoil_a_run_is_said_where_it_enters(how: str, said: str) -> None:
    maker = EnvMaker("small_envs:Failing", {"how": how})
    envs = FrameVectorEnv(maker, 3, lambda env, episode: 70 + env, frames=how == "frame")
    with pytest.raises(RunFailed) as caught:
        play(envs, 5)
    envs.close()
    line = str(caught.value)
    assert line.startswith(f"environment 1 of 3 ('small_envs:Failing') {said}")
    assert line.endswith("(at step 2 of the episode with seed 70); fix it, then resume with --resume")
    assert "\n" not in line


@pytest.mark.parametrize(
    ("how", "said"), [("reset", "failed in reset(): KeyError: 'no map'"), ("reset NaN", "observation with NaN in it")]
)
@pytest.mark.parametrize("workers", ["inline", "processes"])
def test_a_reset_that_goes_wrong(workers: Any, how: str, said: str) -> None:
    maker = EnvMaker("small_envs:Failing", {"how": how})
    envs = FrameVectorEnv(maker, 1, lambda env, episode: 7, frames=False, workers=workers)
    with pytest.raises(RunFailed) as caught:
        envs.reset()
    envs.close()
    assert said in str(caught.value)
    assert "environment 1 of 1 ('small_envs:Failing')" in str(caught.value)
    assert "(at the beginning of the episode with seed 7)" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("reward", "number"),
    [
        (1, 1.0),
        (True, 1.0),
        (np.float32(0.5), 0.5),
        (np.array(0.5), 0.5),
        (np.array([0.5]), 0.5),
        (np.array([[2]]), 2.0),
        ([0.25], 0.25),
        (torch.tensor([1.5], requires_grad=True), 1.5),
        (Fraction(1, 4), 0.25),
        (None, None),
        ("1.0", None),
        (np.array([1.0, 2.0]), None),
        ([1.0, [2.0]], None),
        ([], None),
        ({"agent": 1.0}, None),
        (1j, None),
        (10**400, None),
    ],
)
def test_the_environments_own_reward_is_a_number_or_none(reward: Any, number: float | None) -> None:
    assert scalar_reward(reward) == number


def test_rewards_may_be_NaN() -> None:
    assert np.isnan(scalar_reward(np.array([np.nan])))  # type: ignore[arg-type]


def test_a_step_that_raises_is_named() -> None:
    envs = FrameVectorEnv(EnvMaker("small_envs:Raising"), 2, lambda env, episode: 5, frames=False)
    with pytest.raises(RunFailed) as caught:
        play(envs, 5)
    envs.close()
    assert str(caught.value) == (
        "environment 1 of 2 ('small_envs:Raising') failed in step(): ValueError: the simulator exploded "
        "(small_envs.py:82) (at step 3 of the episode with seed 5); fix it, then resume with --resume"
    )


def test_a_picture_that_is_not_returned() -> None:
    with pytest.raises(RunFailed, match=r"render\(\) returned nothing; .*render_mode='rgb_array'") as caught:
        FrameVectorEnv(EnvMaker("small_envs:Undrawn"), 1, episode_seeds(0))
    assert "\n" not in str(caught.value)


def test_without_frames_nothing_is_rendered() -> None:
    from small_envs import Clock

    class NeverDraws(Clock):
        def render(self) -> np.ndarray:
            raise AssertionError("nobody looks")

    envs = FrameVectorEnv(NeverDraws, 2, episode_seeds(0), frames=False)
    assert all(step.frames is None for step in play(envs, 20))
    envs.close()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="only where fork is possible")
@pytest.mark.parametrize("workers", ["inline", "processes"])
def test_pictures_are_made_of_those_that_are_asked_for_and_of_those_that_end(workers: Any) -> None:
    """Three clocks of three steps."""
    make = EnvMaker("small_envs:Clock", {"shortest": 3, "longest": 3}, frame_size=(8, 8))
    envs = FrameVectorEnv(make, 3, lambda env, episode: env, workers=workers)
    try:
        envs.reset()
        actions = np.zeros(3, int)
        drawn = []
        for asked in ([True, False, False], [False, False, False], [False, True, False]):
            step = envs.step(actions, frames=np.array(asked))
            drawn.append(None if step.frames is None else step.frames[:, 0, 0, 0].tolist())
    finally:
        envs.close()
    assert drawn[0] is not None and drawn[0][0] == 1
    assert drawn[1] is None, "of none"
    assert drawn[2] == [3, 3, 3], "all of them end"


def test_workers_are_spawned_not_forked() -> None:
    """A forked worker would inherit threads and OpenGL contexts of its parent."""
    envs = FrameVectorEnv(CLOCK, 1, episode_seeds(0), workers="processes")
    commands = [" ".join(child.cmdline()) for child in psutil.Process().children()]
    envs.close()
    assert any("multiprocessing.spawn" in command for command in commands)


@pytest.mark.parametrize("workers", ["inline", "processes"])
def test_an_id_that_a_module_registers_is_known_in_every_process(workers: Any) -> None:
    envs = FrameVectorEnv(EnvMaker("registers_clock:registered/Clock-v0"), 2, episode_seeds(0), workers=workers)
    try:
        envs.reset()
        assert envs.step(np.array([0, 1])).final_states[:, 0].tolist() == [1, 1]
    finally:
        envs.close()


def test_an_id_that_the_module_does_not_register() -> None:
    with pytest.raises(BadInput, match="module 'registers_clock' has no 'registered/Clock-v7'"):
        EnvMaker("registers_clock:registered/Clock-v7")()


@pytest.mark.parametrize("frames", [True, False])
def test_a_worker_that_dies_changes_nothing(frames: bool) -> None:
    """Its episode and those of the others go on where they were, and the step is repeated."""
    both = [FrameVectorEnv(CLOCK, 3, episode_seeds(0), workers=workers) for workers in ("inline", "processes")]  # type: ignore[arg-type]
    try:
        for envs in both:
            envs.reset()
        for step in range(12):
            if step in (4, 9):
                kill(both[1], step % 3)
            expected, seen = (envs.step(np.array([1, 0, step % 2]), frames) for envs in both)
            for name in ("states", "final_states", "rewards", "terminated", "truncated", "first", "success"):
                assert np.array_equal(getattr(seen, name), getattr(expected, name)), (step, name)
            assert (seen.frames is None) == (expected.frames is None)
            if seen.frames is not None and expected.frames is not None:
                assert np.array_equal(seen.frames, expected.frames)
        assert both[0].restarts == 0
        assert both[1].restarts == 2
        assert both[0].episodes == both[1].episodes
        assert both[0].actions == both[1].actions
    finally:
        for envs in both:
            envs.close()


def test_workers_that_die_again_and_again_end_the_run() -> None:
    envs = FrameVectorEnv(EnvMaker("small_envs:Deadly"), 1, episode_seeds(0), workers="processes")
    try:
        envs.reset()
        envs.step(np.array([0]))
        with pytest.raises(RunFailed, match=r"exit code 1\), and so 4 times within 1000 steps") as failure:
            envs.step(np.array([0]))
        assert envs.restarts == 3
        assert "\n" not in str(failure.value)
    finally:
        envs.close()


def test_an_environment_that_repeats_nothing_cannot_be_restored() -> None:
    envs = FrameVectorEnv(EnvMaker("small_envs:Unrepeatable"), 1, episode_seeds(0), workers="processes")
    try:
        envs.reset()
        envs.step(np.array([0]))
        kill(envs, 0)
        with pytest.raises(RunFailed, match="does not repeat itself"):
            envs.step(np.array([0]))
    finally:
        envs.close()


def kill(envs: FrameVectorEnv, worker: int) -> None:
    """Kill a worker process, as the system does where memory runs out."""
    place = envs._hosts[worker]
    assert isinstance(place, Worker)
    place._process.kill()
    place._process.join()
