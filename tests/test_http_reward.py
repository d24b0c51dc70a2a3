"""Rewards of a server: what is asked, what is paid, and what a server may do wrong."""

from __future__ import annotations

import io
import json
import sqlite3
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sightline as sl
from reward_servers import INFO, Brightness, served, telling
from sightline.errors import BadInput, RunFailed
from sightline.rewards.base import Clip, RewardModel, Unavailable
from sightline.rewards.config import RewardContext, build_reward
from sightline.rewards.servers import client, wire
from sightline.rewards.servers.answers import FILE, KeptAnswers
from sightline.rewards.servers.wire import FormPart, Malformed, array_of, form, npy, parts_of
from sightline.rewards.weighted_sum import WeightedSumConfig


@pytest.fixture(autouse=True)
def _quick_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "FIRST_WAIT", 0.001)


def frames_of(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (*shape, 4, 5, 3), np.uint8)


def rewards_for(parts: dict[str, FormPart], **more: Any) -> dict[str, Any]:
    """The right answer of a model of brightness."""
    clips = json.loads(parts["request"].content)["clips"]
    frames = [np.load(io.BytesIO(parts[clip["frames"]].content), allow_pickle=False) for clip in clips]
    rows = [(clip.mean(axis=(1, 2, 3)) / 255).astype(np.float32).tolist() for clip in frames]
    return {"version": 1, "model": "a model", "rewards": rows} | more


# -- forms and arrays --------------------------------------------------------------------------------------------------


def test_what_is_sent_is_what_numpy_and_email_read() -> None:
    from email import message_from_bytes

    array = frames_of(2)
    body, kind = form([FormPart("request", b'{"a": 1}', kind="application/json"), FormPart("f0", npy(array), "f0.npy")])
    message = message_from_bytes(f"Content-Type: {kind}\r\n\r\n".encode() + body)
    first, second = message.get_payload()  # type: ignore[misc]
    assert first.get_param("name", header="content-disposition") == "request"  # type: ignore[union-attr]
    assert second.get_filename() == "f0.npy"  # type: ignore[union-attr]
    parts = parts_of(body, kind)
    assert parts["request"].content == b'{"a": 1}' and parts["f0"].file_name == "f0.npy"
    assert np.array_equal(np.load(io.BytesIO(parts["f0"].content), allow_pickle=False), array)
    assert np.array_equal(array_of(parts["f0"].content, np.uint8, "it"), array)


def test_arrays_are_read_whole_without_pickle_or_not_at_all() -> None:
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    saved = io.BytesIO()
    np.save(saved, np.asfortranarray(array))
    assert np.array_equal(array_of(saved.getvalue(), np.float32, "it"), array)
    big_endian = io.BytesIO()
    np.save(big_endian, array.astype(">f4"))
    assert np.array_equal(array_of(big_endian.getvalue(), np.float32, "it"), array)
    pickled = io.BytesIO()
    np.save(pickled, np.array([{"a": 1}], object), allow_pickle=True)
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "|u1", "fortran_order": False, "shape": (10**12,)})
    for content in (pickled.getvalue(), header.getvalue(), npy(array)[:-1], npy(array.astype(np.float64)), b"", b"x"):
        with pytest.raises(Malformed):
            array_of(content, np.float32 if content[:1] != b"\x93" or b"u1" not in content else np.uint8, "it")


@pytest.mark.parametrize("body", [b"", b"--x", b"--x\r\n\r\n\r\n--x--", b"--x\r\na: b\r\n\r\n1\r\n--x--", b"--x\r\n"])
def test_forms_that_cannot_be_read(body: bytes) -> None:
    with pytest.raises(Malformed):
        parts_of(body, "multipart/form-data; boundary=x")
    with pytest.raises(Malformed):
        parts_of(b"--x--", "application/json")


# -- rewards -----------------------------------------------------------------------------------------------------------


def test_rewards_are_those_of_the_model_in_this_process() -> None:
    frames = frames_of(300)
    with served(Brightness()) as server:
        reward = sl.HTTPReward(server.address, batch=7)
        assert np.array_equal(reward(frames), Brightness()(frames))
        clip = Clip(np.ones((3, 5), bool), frames_of(3, 5))
        assert np.array_equal(reward(clip), Brightness()(clip))
        costs = reward.costs()
    # 43 requests of 7 frames, 3 of the clip, and the one for its info.
    assert costs["requests"] == 47 and costs["frames"] == 315 and costs["failed_requests"] == 0
    assert costs["unanswered"] == 0 and costs["seconds"] > 0


class NumbersOfStates(RewardModel):
    needs = frozenset({"states"})  # type: ignore[assignment]

    def reward(self, clip: Clip) -> np.ndarray:
        return np.asarray(clip.states[..., 0] * 2, np.float32)  # type: ignore[index]


def test_a_server_that_reads_states() -> None:
    states = np.random.default_rng(0).normal(size=(9, 3)).astype(np.float32)
    with served(NumbersOfStates()) as server:
        reward = sl.HTTPReward(server.address, batch=4)
        assert reward.needs == {"states"}
        assert np.array_equal(reward(states), states[:, 0] * 2)


def test_success_is_paid_where_that_is_wanted() -> None:
    with telling(lambda parts, number: rewards_for(parts, success=[[0.25, 0.75]])) as server:
        rewards = sl.HTTPReward(server.address, output="success")(frames_of(2))
    assert rewards.tolist() == [0.25, 0.75]


def test_the_instruction_and_the_camera_are_sent() -> None:
    info = {"/info": INFO | {"needs": ["frames", "instruction"]}}

    def answer(parts: dict[str, FormPart], number: int) -> Any:
        (clip,) = json.loads(parts["request"].content)["clips"]
        assert clip["instruction"] == "stand; upright" and clip["frames"] == {"top": "f0"}
        return {"version": 1, "model": "a model", "rewards": [[0.5]]}

    with telling(answer, info) as server:
        assert sl.HTTPReward(server.address, ["stand", "upright"], camera="top")(frames_of(1)).tolist() == [0.5]
        with pytest.raises(BadInput, match="reads an instruction; say goal="):
            sl.HTTPReward(server.address)


def test_missing_answers_lie_between_their_neighbours_and_are_counted() -> None:
    def answer(parts: dict[str, FormPart], number: int) -> Any:
        values = [None, 1.0, None, None, 4.0, None]
        return {"version": 1, "model": "a model", "rewards": [values]}

    with telling(answer) as server:
        reward = sl.HTTPReward(server.address)
        first = np.array([[True], [False], [False], [False], [False], [True]])
        clip = Clip(first, frames_of(6, 1))
        with pytest.raises(Unavailable, match="no answer for any of 1 steps of an episode"):
            reward(clip)  # the last step is an episode of its own
        first[-1] = False
        clip = Clip(first, frames_of(6, 1, seed=1))
        assert reward(clip)[:, 0].tolist() == [1.0, 1.0, 2.0, 3.0, 4.0, 4.0]
        assert reward.costs()["unanswered"] == 8


# -- what goes wrong ---------------------------------------------------------------------------------------------------

RIGHT = {"version": 1, "model": "a model"}
WRONG = {
    "another number of values": (RIGHT | {"rewards": [[0.5, 0.5]]}, "has 2 numbers for a clip, and 3 were asked for"),
    "another number of clips": (RIGHT | {"rewards": []}, "is for 0 clips, and 1 were sent"),
    "no list": (RIGHT | {"rewards": [0.5]}, "has no numbers for a clip"),
    "nothing": (b"", "no JSON: nothing"),
    "half a reply": (b'{"version": 1, "rew', "no JSON"),
    "a page": (b"<!doctype html><p>hello</p>", "no JSON"),
    "a list": ([], "has no 'model'"),
    "NaN": (b'{"model": "a model", "rewards": [[NaN, 1, 1]]}', "no JSON"),
    "an infinite number": (b'{"model": "a model", "rewards": [[1e999, 1, 1]]}', "NaN or infinite"),
    "more than float32 holds": (RIGHT | {"rewards": [[1e39, 1, 1]]}, "NaN or infinite"),
    "words": (RIGHT | {"rewards": [["1", 1, 1]]}, "has str where a number or null is due"),
    "truth": (RIGHT | {"rewards": [[True, 1, 1]]}, "has bool where a number or null is due"),
    "no rewards": (RIGHT, "has no 'rewards'"),
    "too much": (b" " * (17 * 2**20), "larger than 16 MB"),
    "too many requests": ((429, {"error": {"message": "slow down"}}), r"429 \(slow down\)"),
    "a fault": ((500, b"Internal Server Error"), "500"),
    "no": ((400, {"error": {"message": "bad clip"}}), r"400 \(bad clip\)"),
    "a broken connection": (None, "127.0.0.1"),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_wrong_answers_are_one_line_and_counted(wrong: str) -> None:
    answer, line = WRONG[wrong]
    with telling(lambda parts, number: answer) as server:
        reward = sl.HTTPReward(server.address, retries=1)
        with pytest.raises(Unavailable, match=line) as raised:
            reward(frames_of(3))
        assert "\n" not in str(raised.value) and str(raised.value).startswith("the reward server at 127.0.0.1")
        is_final = wrong in ("no", "too much")
        assert reward.costs()["failed_requests"] == len(server.asked) == (1 if is_final else 2)
        assert reward.costs().get("frames", 0) == 0


@pytest.mark.parametrize("wrong", ["nothing", "a fault", "another number of values", "a broken connection"])
def test_a_failure_that_passes_changes_nothing(wrong: str) -> None:
    frames = frames_of(40)
    answer, _ = WRONG[wrong]
    with telling(lambda parts, number: answer if number in (1, 2) else rewards_for(parts)) as server:
        rewards = sl.HTTPReward(server.address, batch=10, retries=3)(frames)
    assert np.array_equal(rewards, Brightness()(frames))


def test_another_model_than_at_the_start_is_refused_at_once() -> None:
    with telling(lambda parts, number: rewards_for(parts, model="another")) as server:
        with pytest.raises(Unavailable, match="of the model 'another', and that of 'a model' was asked"):
            sl.HTTPReward(server.address)(frames_of(3))
        assert len(server.asked) == 1


def test_nothing_is_begun_once_a_request_has_failed() -> None:
    with telling(lambda parts, number: (400, {})) as server:
        with pytest.raises(Unavailable):
            sl.HTTPReward(server.address, batch=1)(frames_of(50))
        assert len(server.asked) <= client.AT_ONCE


@pytest.mark.parametrize(
    ("info", "line"),
    [
        (INFO | {"version": 2}, "speaks version 2"),
        (INFO | {"needs": []}, "needs nothing"),
        (INFO | {"needs": ["frames", "sound"]}, "needs frames, sound"),
        (INFO | {"scope": "galaxy"}, "scope is 'galaxy'"),
        (INFO | {"model": None}, "no 'model'"),
        (INFO | {"window": 0}, "window=0"),
        (INFO | {"size": [64]}, "size that is not"),
        ([], "no 'version'"),
        (b"hello", "no JSON"),
    ],
)
def test_what_is_no_reward_server_is_refused_before_anything_depends_on_it(info: Any, line: str) -> None:
    refused = pytest.raises((BadInput, RunFailed), match=line)
    with telling(lambda parts, number: None, {"/info": info}) as server, refused:
        sl.HTTPReward(server.address, retries=0)


def test_no_server_at_all() -> None:
    with telling(lambda parts, number: None) as server:
        address = server.address
    with pytest.raises(RunFailed, match="cannot be reached"):
        sl.HTTPReward(address, retries=0)
    with pytest.raises(BadInput, match=r"would go to reward\.example in plain text"):
        sl.HTTPReward("http://reward.example")
    with pytest.raises(BadInput, match="no address of a server"):
        sl.HTTPReward("reward.example")
    with pytest.raises(BadInput, match="has no 'timeoutt'"):
        sl.HTTPReward(address, timeoutt=3)
    with pytest.raises(BadInput, match="holds a secret"):
        sl.HTTPReward(address, headers={"x-api-key": "12345"})


def test_a_key_is_sent_and_not_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_TOKEN", "abcdef0123456789")
    with telling(lambda parts, number: (400, b"bad abcdef0123456789")) as server:
        reward = sl.HTTPReward(server.address, key_env="MY_TOKEN")
        assert server.headers[0]["Authorization"] == "Bearer abcdef0123456789"
        with pytest.raises(Unavailable) as raised:
            reward(frames_of(1))
    assert "abcdef" not in str(raised.value)


# -- kept answers ------------------------------------------------------------------------------------------------------


def test_what_was_answered_is_not_asked_again(tmp_path: Path) -> None:
    frames = frames_of(20)
    with telling(lambda parts, number: rewards_for(parts)) as server:
        first = sl.HTTPReward(server.address, batch=8, folder=tmp_path)(frames)
        again = sl.HTTPReward(server.address, batch=8, folder=tmp_path)
        assert np.array_equal(again(frames), first) and len(server.asked) == 3
        again(frames_of(8, seed=3))
        assert len(server.asked) == 4
        # Costs are those of both: two infos and four requests.
        assert again.costs()["requests"] == 6 and again.costs()["frames"] == 28


@pytest.mark.parametrize("change", [{"output": "success"}, {"camera": "top"}])
def test_other_questions_are_asked(tmp_path: Path, change: dict[str, str]) -> None:
    def answer(parts: dict[str, FormPart], number: int) -> Any:
        return RIGHT | {"rewards": [[0.5]], "success": [[0.25]]}

    with telling(answer) as server:
        sl.HTTPReward(server.address, folder=tmp_path)(frames_of(1))
        sl.HTTPReward(server.address, folder=tmp_path, **change)(frames_of(1))
        assert len(server.asked) == 2


def test_answers_before_a_failure_are_kept(tmp_path: Path) -> None:
    frames = frames_of(40)
    with telling(lambda parts, number: rewards_for(parts) if number < 2 else (400, b"")) as server:
        with pytest.raises(Unavailable):
            sl.HTTPReward(server.address, batch=10, folder=tmp_path)(frames)
        server.answer = lambda parts, number: rewards_for(parts)
        before = len(server.asked)
        rewards = sl.HTTPReward(server.address, batch=10, folder=tmp_path)(frames)
        assert len(server.asked) == before + 2
    assert np.array_equal(rewards, Brightness()(frames))


def test_another_model_goes_on_with_no_run(tmp_path: Path) -> None:
    with telling(lambda parts, number: rewards_for(parts)) as server:
        sl.HTTPReward(server.address, folder=tmp_path)(frames_of(1))
        server.info = {"/info": INFO | {"model": "another"}}
        with pytest.raises(BadInput, match="is 'another' now, and this run's rewards are of 'a model'"):
            sl.HTTPReward(server.address, folder=tmp_path)


def test_two_servers_of_one_reward_go_on_with_their_run(tmp_path: Path) -> None:
    def of_another(parts: dict[str, FormPart], number: int) -> Any:
        return rewards_for(parts, model="another")

    with (
        telling(lambda parts, number: rewards_for(parts)) as one,
        telling(of_another, {"/info": INFO | {"model": "another"}}) as other,
    ):
        terms = [{"reward": {"kind": "http", "url": server.address}} for server in (one, other)]
        block = WeightedSumConfig(terms=terms)
        for _ in range(2):
            model = build_reward(block, RewardContext((), (), 0, False, lambda *size: frames_of(1)[0], tmp_path)).model
            assert np.array_equal(model(frames_of(3)), 2 * Brightness()(frames_of(3)))
        assert len(one.asked) == len(other.asked) == 1
    # Each was asked of itself twice, and once for rewards.
    assert model.costs()["requests"] == 6 and model.costs()["frames"] == 6


def test_damaged_answers_are_named(tmp_path: Path) -> None:
    (tmp_path / FILE).write_bytes(b"no database" * 100)
    with pytest.raises(BadInput, match=r"is damaged .*; remove it"):
        KeptAnswers(tmp_path / FILE).find(b"x")
    (tmp_path / FILE).unlink()
    answers = KeptAnswers(tmp_path / FILE)
    answers.keep({b"x": np.ones(2, np.float32)}, {})
    with sqlite3.connect(tmp_path / FILE) as database:
        database.execute("UPDATE answers SET numbers = x'00'")
    with pytest.raises(BadInput, match="is damaged"):
        answers.find(b"x")


def test_missing_answers_are_kept_as_missing(tmp_path: Path) -> None:
    answers = KeptAnswers(tmp_path / FILE)
    numbers = np.array([0.1, np.nan, -3e38], np.float32)
    answers.keep({b"x": numbers}, {})
    kept = KeptAnswers(tmp_path / FILE).find(b"x")
    assert kept is not None and kept.tobytes() == numbers.tobytes()
    assert not wire.parts_of(*form([]))


# -- several servers ---------------------------------------------------------------------------------------------------


def test_several_servers_share_the_frames_and_their_answers_are_in_order() -> None:
    frames = frames_of(60)
    with telling(right) as one, telling(right) as other, telling(right) as third:
        reward = sl.HTTPReward([one.address, other.address, third.address], batch=2)
        assert np.array_equal(reward(frames), Brightness()(frames))
        costs = reward.costs()
        asked = [len(server.asked) for server in (one, other, third)]
    assert all(asked) and sum(asked) == 30 + 2, "each request once, and one by which the others are compared"
    assert costs["requests"] == 30 + 2 + 3 and costs["frames"] == 60 and costs["failed_requests"] == 0


def right(parts: dict[str, FormPart], number: int) -> Any:
    return rewards_for(parts)


FAULTS = {"it dies": None, "it has a fault": (500, b""), "another model": RIGHT | {"model": "another", "rewards": []}}


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("after", [0, 1, 2])
def test_what_a_lost_server_does_not_answer_the_others_are_asked(fault: str, after: int) -> None:
    frames = frames_of(60)

    def dying(parts: dict[str, FormPart], number: int) -> Any:
        return rewards_for(parts) if number < after else FAULTS[fault]

    with telling(dying) as lost, telling(right) as other:
        reward = sl.HTTPReward([lost.address, other.address], batch=7, retries=1)
        assert np.array_equal(reward(frames), Brightness()(frames))
        assert reward.costs()["frames"] == 60 and reward.costs()["failed_requests"] >= 1
        # The next clip is scored all the same, whatever has become of the lost one.
        assert np.array_equal(reward(frames[::-1]), Brightness()(frames[::-1]))


def test_a_server_that_is_back_is_asked_again() -> None:
    frames = frames_of(100)
    alive = [False]
    with telling(lambda parts, number: rewards_for(parts) if alive[0] else None) as server, telling(right) as other:
        reward = sl.HTTPReward([server.address, other.address], batch=5, retries=0)
        reward(frames)
        before = len(server.asked)
        alive[0] = True
        assert np.array_equal(reward(frames), Brightness()(frames)) and len(server.asked) > before


def test_when_all_are_lost_it_is_one_line_and_what_was_answered_counts(tmp_path: Path) -> None:
    frames = frames_of(60)
    alive = [True]

    def dying(parts: dict[str, FormPart], number: int) -> Any:
        return rewards_for(parts) if alive[0] and number < 2 else (500, b"")

    with telling(dying) as one, telling(dying) as other:
        reward = sl.HTTPReward([one.address, other.address], batch=7, retries=1, folder=tmp_path)
        with pytest.raises(Unavailable, match=r"^none of 2 reward servers gives rewards any more \(.*500") as raised:
            reward(frames)
        assert "\n" not in str(raised.value)
        kept = int(reward.costs()["frames"]) // 7
        assert kept >= 2
    with telling(right) as third:
        again = sl.HTTPReward(third.address, batch=7, folder=tmp_path)
        assert np.array_equal(again(frames), Brightness()(frames)) and len(third.asked) == 9 - kept


def test_a_server_that_is_silent_at_first_is_said_and_asked_later() -> None:
    with telling(right) as gone:
        silent = gone.address
    with telling(right) as other:
        reward = sl.HTTPReward([silent, other.address], batch=7, retries=0)
        (line,) = reward.warnings
        assert silent.removeprefix("http://") in line and "the other servers are asked" in line
        assert np.array_equal(reward(frames_of(50)), Brightness()(frames_of(50)))
    with pytest.raises(RunFailed, match="cannot be reached"):
        sl.HTTPReward([silent, other.address], retries=0)


def test_servers_that_are_not_alike_are_refused_or_said() -> None:
    with telling(right) as one, telling(right, {"/info": INFO | {"model": "another"}}) as other:
        with pytest.raises(BadInput, match="are not alike: 'a model' and 'another'"):
            sl.HTTPReward([one.address, other.address])
        other.info = {"/info": INFO | {"size": [9, 9]}}
        with pytest.raises(BadInput, match="are not alike"):
            sl.HTTPReward([one.address, other.address])
        with pytest.raises(BadInput, match="named twice"):
            sl.HTTPReward([one.address, one.address])
        with pytest.raises(BadInput, match="url"):
            sl.HTTPReward([])


def test_servers_that_answer_the_same_frames_differently_are_said_once() -> None:
    def rounded(parts: dict[str, FormPart], number: int) -> Any:
        answer = rewards_for(parts)
        return answer | {"rewards": [[value + 0.25 for value in row] for row in answer["rewards"]]}

    with telling(right) as one, telling(rounded) as other:
        reward = sl.HTTPReward([one.address, other.address], batch=5)
        frames = np.concatenate([frames_of(100), frames_of(100, seed=1)])
        with pytest.warns(UserWarning, match=r"answer the same frames differently, by up to 0\.25") as said:
            reward(frames)
    assert sum("answer the same frames" in str(warning.message) for warning in said) == 1
