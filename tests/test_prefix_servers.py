"""Servers that are shown more than a frame: windows, prefixes and episodes by our protocol, and Robometer's."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sightline as sl
from conftest import TINY, TINY_ON_POLICY, Finished, result_of
from reward_servers import INFO, served, telling
from robometer_server import INFO as ROBOMETER
from robometer_server import robometer
from shown_frames import GOLDEN, Embedded, Shown
from sightline.config.loading import load_recipe
from sightline.errors import BadInput
from sightline.rewards.base import Clip, RewardStream, Unavailable
from sightline.rewards.scopes import Past
from sightline.rewards.servers import client
from sightline.rewards.servers.checking import check_server
from sightline.rewards.servers.protocols import Query, SightlineProtocol
from sightline.rewards.servers.serving import Refusal, ServedReward
from sightline.rewards.servers.wire import FormPart
from stored import replay_of
from test_scopes import LENGTHS, expected, of_an_episode, played

Sightline = Callable[..., Finished]


@pytest.fixture(autouse=True)
def _quick_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "FIRST_WAIT", 0.001)


def clips_of(parts: dict[str, FormPart]) -> list[dict[str, Any]]:
    clips: list[dict[str, Any]] = json.loads(parts["request"].content)["clips"]
    return clips


def in_parts(model: Any, clip: Clip, size: int) -> np.ndarray:
    """Rewards of a clip that comes in chunks, whose frames are overwritten."""
    stream = RewardStream(model)
    return np.concatenate([stream(clip[start : start + size]) for start in range(0, len(clip.first), size)])


# -- sightline v1 ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", GOLDEN)
@pytest.mark.parametrize("batch", [1, 6, 128])
def test_a_served_model_is_shown_what_it_is_shown_here(kind: Any, batch: int, tmp_path: Path) -> None:
    clip = played(0, LENGTHS)
    with served(Embedded(kind, hued=False)) as server:
        reward = sl.HTTPReward(server.address, batch=batch, folder=tmp_path)
        assert reward.scope == Embedded(kind).scope
        assert np.array_equal(reward(clip), expected(kind))
        answered = server.answered
        again = sl.HTTPReward(server.address, batch=batch, folder=tmp_path)
        assert np.array_equal(again(clip), expected(kind)) and server.answered == answered, "kept"
        assert np.array_equal(in_parts(sl.HTTPReward(server.address, batch=batch), clip, 4), expected(kind))


def test_a_window_travels_once_and_not_with_each_of_its_steps() -> None:
    clip = played(0, [[9]])
    with served(Embedded("window", hued=False)) as server:
        reward = sl.HTTPReward(server.address)
        reward(clip)
        assert reward.costs()["frames"] == 10
        every = sl.HTTPReward(server.address, every=4)
        every(clip)
        # Steps 9, 5, 1 and the reset frame: four frames each, as far as there are so many.
        assert every.costs()["frames"] == 4 + 4 + 2 + 1


def test_a_server_keeps_to_the_protocol_whatever_it_is_shown() -> None:
    for kind in ("window", "prefix", "episode"):
        with served(Embedded(kind, frames=8, hued=False)) as server:
            assert check_server(server.address, None) == []
            if kind != "window":
                message = client.RewardClient(
                    server.address, key_env=None, headers={}, insecure_http=False, timeout=9, retries=0, spend=dict
                ).get("/info")
                assert message["max_frames"] == 8 and message["scope"] == kind


def test_models_that_compare_values_are_not_served() -> None:
    with pytest.raises(BadInput, match="serve its plain values"), served(Shown()):
        pass


def test_more_frames_than_a_model_is_shown_are_turned_down() -> None:
    queries = [Query(5, 1, lambda: np.zeros((5, 2, 2, 3), np.uint8), steps=np.arange(5))]
    request = SightlineProtocol().request(queries, None)
    with pytest.raises(Refusal, match="at most 4 frames here"):
        ServedReward(Embedded(hued=False), "it").score(request.body, request.content_type)


def test_prefixes_say_the_step_of_each_frame() -> None:
    seen = []

    def answer(parts: dict[str, FormPart], number: int) -> Any:
        clips = clips_of(parts)
        seen.extend(clip["t"] for clip in clips)
        return {"version": 1, "model": "a model", "rewards": [[0.5]] * len(clips)}

    with telling(answer, {"/info": INFO | {"scope": "prefix", "max_frames": 8}}) as server:
        sl.HTTPReward(server.address, frames=4)(played(0, [[9]]))
        assert [tuple(steps) for steps in seen] == [GOLDEN["prefix"][step] for step in range(1, 10)]
        seen.clear()
        sl.HTTPReward(server.address)(played(0, [[9]]))
        assert max(map(len, seen)) == 8
    for info, settings, line in (
        ({"scope": "frame"}, {"frames": 4}, "frames=4 is for servers that are shown an episode so far"),
        ({"scope": "episode"}, {"output": "difference"}, "judges whole episodes"),
        ({"needs": ["states"]}, {"every": 2}, "judged alone"),
        ({}, {"every": "end", "output": "difference"}, "leave out every=end"),
    ):
        with telling(answer, {"/info": INFO | info}) as server, pytest.raises(BadInput, match=line):
            sl.HTTPReward(server.address, **settings)


def times(parts: dict[str, FormPart]) -> list[list[float]]:
    """The red of each frame of each clip, which is its time."""
    import io

    frames = [np.load(io.BytesIO(parts[clip["frames"]].content), allow_pickle=False) for clip in clips_of(parts)]
    return [clip[:, 0, 0, 0].astype(float).tolist() for clip in frames]


def test_every_third_step_of_a_server_of_frames_and_differences() -> None:
    """The square of the time is asked of steps 9, 6, 3 and of the reset frame, and lies on lines between."""
    asked: list[float] = []

    def answer(parts: dict[str, FormPart], number: int) -> Any:
        rows = times(parts)
        asked.extend(time for row in rows for time in row)
        return {"version": 1, "model": "a model", "rewards": [[100 + time**2 for time in row] for row in rows]}

    line = [100, 103, 106, 109, 118, 127, 136, 151, 166, 181]
    with telling(answer) as server:
        rewards = sl.HTTPReward(server.address, every=3)(played(0, [[9]]))
        assert sorted(asked) == [0, 3, 6, 9]
        np.testing.assert_allclose(rewards[:, 0], line[1:])
        differences = sl.HTTPReward(server.address, every=3, output="difference")(played(0, [[9]]))
        np.testing.assert_allclose(differences[:, 0], np.diff(line))
        # They add up to the last value less that of the reset frame, in chunks of any size, and for any `every`.
        for every in (1, 2, 4):
            for size in (1, 2, 4, 15):
                model = sl.HTTPReward(server.address, every=every, output="difference")
                asked.clear()
                rewards = in_parts(model, played(0, LENGTHS), size)
                first = played(0, LENGTHS).first
                for env, lengths in enumerate(LENGTHS):
                    sums = np.add.reduceat(rewards[:, env], np.flatnonzero(first[:, env]))
                    np.testing.assert_allclose(sums, np.square(lengths))
                if every == 1:
                    assert len(asked) == 45 + 9, "each step and each reset frame once"
        last = sl.HTTPReward(server.address, every="end")(played(0, [[3, 9]]))
        assert last[:, 0].tolist() == [0, 0, 109, *[0] * 8, 181]


def test_where_nobody_knows_the_reset_frame_differences_begin_with_the_first_step() -> None:
    with telling(lambda parts, number: {"version": 1, "model": "a model", "rewards": times(parts)}) as server:
        clip = replace(played(0, [[5]]), past=None)
        rewards = sl.HTTPReward(server.address, output="difference", every=2)(clip)
    assert rewards[:, 0].tolist() == [0, 1, 1, 1, 1]


def test_a_missing_answer_at_the_end_of_a_chunk_is_what_was_paid() -> None:
    def answer(parts: dict[str, FormPart], number: int) -> Any:
        rows = [[None if time == 4 else time for time in row] for row in times(parts)]
        return {"version": 1, "model": "a model", "rewards": rows}

    with telling(answer) as server:
        model = sl.HTTPReward(server.address, output="difference")
        rewards = in_parts(model, played(0, [[9]]), 4)
    assert rewards[:, 0].tolist() == [1, 1, 1, 0, 2, 1, 1, 1, 1]


# -- Robometer ---------------------------------------------------------------------------------------------------------


def red(frames: np.ndarray) -> np.ndarray:
    return frames[:, 0, 0, 0] / 16


def robot(server: Any, **settings: Any) -> sl.HTTPReward:
    return sl.HTTPReward(server.address, "stand up", protocol="robometer", **{"retries": 0} | settings)


@pytest.mark.parametrize("baseline", [False, True])
def test_robometers_progress_and_success(baseline: bool) -> None:
    clip = played(0, LENGTHS)
    table = np.asarray(clip.frames)[:, :, 0, 0, 0] / 16
    with telling(robometer(red, baseline), ROBOMETER) as server:
        reward = robot(server, batch=24)
        np.testing.assert_allclose(reward(clip), table)
        assert all(path == "/evaluate_batch_npy" for path, _ in server.asked)
        assert reward.costs()["failed_requests"] == 0, "all clips of a request have as many frames"
        np.testing.assert_allclose(robot(server, output="success")(clip), table / 2)
        np.testing.assert_allclose(in_parts(robot(server), clip, 4), table)
        differences = robot(server, output="difference", every=4)(clip)
        np.testing.assert_allclose(differences, 1 / 16, atol=1e-6)
        shown = [len(part.content) for _, parts in server.asked for name, part in parts.items() if "frames" in name]
        assert max(shown) == 128 + 8 * 12, "eight frames of 2 by 2 pixels"
        frames = np.asarray(clip.frames)[:3, 0]
        np.testing.assert_allclose(robot(server)(frames), table[:3, 0])


def dropping(answer: Any) -> Any:
    """A server to which the second sample of each request is lost on the way."""

    def answered(parts: dict[str, FormPart], number: int) -> Any:
        return answer({name: part for name, part in parts.items() if not name.startswith("sample_1")}, number)

    return answered


def renaming(answer: Any) -> Any:
    """A server that is sent files of another ending."""
    return lambda parts, number: answer({name: replace(part, file_name="f") for name, part in parts.items()}, number)


def unsuccessful(parts: dict[str, FormPart], number: int) -> Any:
    document = robometer(red)(parts, number)
    return document | {"outputs_success": None}


WRONG: dict[str, tuple[Any, str]] = {
    "a gap in the numbering": (dropping(robometer(red)), r"is for 1 clips, and \d+ were sent"),
    "another ending": (renaming(robometer(red)), r"500 \(Internal Server Error\)"),
    "four numbers": (robometer(lambda frames: np.zeros(4)), r"has 4 numbers for a clip, and \d were asked for"),
    "no number": (robometer(lambda frames: frames[:, 0, 0, 0] * np.nan), "no JSON"),
    "no progress": (lambda parts, number: {"outputs_progress": None}, "no 'outputs_progress'"),
    "no success": (unsuccessful, "no 'success_probs'"),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_robometers_defects_are_one_line_and_no_reward(wrong: str, tmp_path: Path) -> None:
    answer, line = WRONG[wrong]
    output = "success" if wrong == "no success" else "progress"
    clip = played(0, [[1, 1, 1, 1]])
    with telling(answer, ROBOMETER) as server:
        reward = robot(server, folder=tmp_path, retries=1, output=output)
        with pytest.raises(Unavailable, match=line):
            reward(clip)
        assert reward.costs()["failed_requests"] == 2 and reward.costs().get("frames", 0) == 0
        server.answer = robometer(red)
        np.testing.assert_allclose(reward(clip), 1 / (32 if output == "success" else 16))


# -- runs --------------------------------------------------------------------------------------------------------------

LEARNERS = {
    "off-policy": (*TINY, "learner.algorithm=DQN", "envs=3"),
    "on-policy": (*TINY_ON_POLICY, "learner.algorithm=PPO"),
}


def told(learner: str, keys: str, run: Path) -> list[str]:
    reward = f"reward={{kind: http, retries: 0, {keys}}}"
    return ["env=shown_frames:Hued", "goal=stand up", *LEARNERS[learner], reward, f"--run-dir={run}", "--trust"]


COUNTED = {f"reward/{name}" for name in ("requests", "failed_requests", "seconds", "frames", "unanswered")}


def numbers(run: Path) -> list[dict[str, Any]]:
    from sightline.runs.metrics import read_metrics

    rows = read_metrics(run / "metrics.jsonl")
    return [{name: row[name] for name in row if not name.startswith("time") and name not in COUNTED} for row in rows]


def mean_red(frames: np.ndarray) -> np.ndarray:
    """For each frame a number that depends on all."""
    return np.full(len(frames), frames[:, 0, 0, 0].mean() / 16)


@pytest.mark.parametrize("learner", LEARNERS)
@pytest.mark.parametrize("keys", ["every: 4, output: difference", "frames: 4"])
def test_robometer_pays_a_run_and_may_die_and_come_back(
    sightline: Sightline, tmp_path: Path, learner: str, keys: str
) -> None:
    with telling(robometer(mean_red), ROBOMETER) as server:
        keys = f"protocol: robometer, url: '{server.address}', {keys}"
        whole = tmp_path / "whole"
        done = sightline("train", *told(learner, keys, whole))
        assert done.code == 0, done.err
        total = len(server.asked)
        if learner == "off-policy":
            replay = replay_of(whole)
            if "difference" not in keys:
                table = np.array([0.0, *(np.mean(steps) / 16 for steps in GOLDEN["prefix"].values())])
                paid = table[replay["true_rewards"].astype(int)]
                np.testing.assert_allclose(replay["rewards"], paid, atol=1e-6)
        for share in (0.3, 0.6):
            run = tmp_path / f"{share}"
            alive_until = len(server.asked) + int(share * total)
            server.answer = lambda parts, number, end=alive_until: (
                robometer(mean_red)(parts, number) if number < end else (500, b"")
            )
            done = sightline("train", *told(learner, keys, run))
            assert done.code == 1 and "gives no rewards" in done.lines[-1], done.err
            server.answer = robometer(mean_red)
            done = sightline("train", *told(learner, keys, run), "--resume")
            assert done.code == 0, done.err
            assert numbers(run) == numbers(whole) and result_of(run) == result_of(whole)


def test_a_run_through_our_server_shows_the_model_what_a_run_without_it_shows(
    sightline: Sightline, tmp_path: Path
) -> None:
    with served(Embedded(hued=False)) as server:
        done = sightline("train", *told("off-policy", f"url: '{server.address}'", tmp_path / "run"))
    assert done.code == 0, done.err
    replay = replay_of(tmp_path / "run")
    table = np.array([0.0, *of_an_episode(9, "prefix")], np.float32)
    np.testing.assert_array_equal(replay["rewards"], table[replay["true_rewards"].astype(int)])


def test_keys_of_recipes() -> None:
    for key, line in (("every=0", "reward.every"), ("frames=1", "reward.frames"), ("output=change", "reward.output")):
        with pytest.raises(BadInput, match=line):
            load_recipe("cartpole", ["reward.kind=http", "reward.url=http://localhost:1", f"reward.{key}"])


def test_a_past_without_reset_frames_is_no_reset() -> None:
    clip = played(0, [[9]])
    later = clip[4:]
    past = Past(np.zeros(2, int), np.zeros(2, int), np.array([3, 4]), np.asarray(clip.frames)[2:4, 0])
    with telling(lambda parts, number: {"version": 1, "model": "a model", "rewards": times(parts)}) as server:
        rewards = sl.HTTPReward(server.address, output="difference")(replace(later, past=past))
    assert rewards[:, 0].tolist() == [0, 1, 1, 1, 1]
