"""Episodes are collected as a data set: who plays, what judges them, and what is left when it is stopped."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sightline as sl
from conftest import TINY, Finished
from sightline.datasets.episode import Episode
from sightline.datasets.human_labels import HumanLabel, write_human_labels
from sightline.datasets.reading import read_dataset
from sightline.errors import Busy
from sightline.labels.store import LabelStore
from sightline.reward_lab import collecting
from sightline.reward_lab.collecting import collect, judged
from sightline.reward_lab.collection import Collection, meaning
from sightline.reward_lab.human_evaluation import serve_run
from sightline.rewards.base import Clip, RewardModel
from sightline.runs.folder import RunFolder
from sightline.runs.lease import take_lease
from sightline.teachers.queue import LabelQueue
from small_datasets import small_episode

pytest.importorskip("pyarrow")


class LastState(RewardModel):
    """The first number of the state."""

    needs = frozenset({"states"})

    def reward(self, clip: Clip) -> np.ndarray:
        return np.asarray(clip.states)[..., 0].astype(np.float32)


class Steps(RewardModel):
    """The environment's own reward, which is of a step and of no state."""

    needs = frozenset()

    def reward(self, clip: Clip) -> np.ndarray:
        assert clip.env_reward is not None
        return clip.env_reward


def test_rewards_are_of_the_states_reached_and_of_the_reset() -> None:
    episode = small_episode()
    assert episode.states is not None and episode.reset_state is not None
    stored = judged(episode, {"state": LastState(), "own": Steps()}, "any")
    assert np.array_equal(stored.rewards["state"], episode.states[:, 0])
    assert stored.reset_rewards == {"state": float(episode.reset_state[0])}
    assert np.array_equal(stored.rewards["own"], episode.env_reward)


@pytest.mark.parametrize(("rule", "succeeded"), [("any", True), ("every", False), ("end", True)])
def test_success_is_by_the_tasks_rule(rule: Any, succeeded: bool) -> None:
    flags = np.array([False, True, False, True])
    assert judged(Episode("a", success=flags), {}, rule).succeeded is succeeded
    assert judged(Episode("a", actions=flags), {}, rule).succeeded is None


def test_a_task_is_collected_with_rewards(tmp_path: Path) -> None:
    collection = Collection(
        "cartpole", tmp_path / "set", ["episode_steps=5"], 3, rewards={"own": (), "red": ["goal=a red car"]}
    )
    seen: list[int] = []
    collected = collect(collection, seen.append)
    assert (collected.episodes, collected.steps, collected.rewards) == (3, 15, ["own", "red"])
    assert seen == [1, 2, 3] and collected.success is not None and collected.success["of"] == 3
    for episode in read_dataset(tmp_path / "set"):
        assert episode.frames is not None and episode.frames.shape == (5, 64, 64, 3)
        assert set(episode.rewards) == set(episode.reset_rewards) == {"own", "red"}
        assert not np.array_equal(episode.rewards["own"], episode.rewards["red"])
        assert episode.instruction == "pole vertically upright on top of the cart"
        assert episode.fps == 50 and episode.seed is not None
    for name in ("own", "red"):
        assert (tmp_path / "set" / f"{name}_progress.parquet").is_file()


def test_scripted_play_reaches_the_goal(tmp_path: Path) -> None:
    collection = Collection(
        "cartpole", tmp_path / "set", ["episode_steps=30"], 2, "pictures", policy="scripted", size=32
    )
    collected = collect(collection)
    assert collected.success is not None and collected.success["rate"] == 1.0
    (first, _) = read_dataset(tmp_path / "set")
    assert first.frames is not None and first.frames.shape == (30, 32, 32, 3) and first.source == "scripted"


def test_what_was_finished_stays_when_it_is_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collecting.StopRequests, "requested", lambda self: True)
    collected = collect(Collection("cartpole", tmp_path / "set", ["episode_steps=4"], 5))
    assert collected.episodes == 1 == len(list(read_dataset(tmp_path / "set")))


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["cartpole"], "say where the data set goes"),
        (["cartpole", "--out", "{here}"], "is there already"),
        (["cartpole", "--out", "{here}/set", "--format", "zarr"], "--format 'zarr': it is one of lerobot, pictures"),
        (
            ["cartpole", "--out", "{here}/set", "--policy", "best"],
            "--policy 'best': it is one of run, random, scripted",
        ),
        (["cartpole", "--out", "{here}/set", "--policy", "run"], "'cartpole' is no run, and has no policy"),
        (["Pendulum-v1", "--out", "{here}/set", "--policy", "scripted"], "has no script that plays it"),
        (["cartpole", "--out", "{here}/set", "--reward", "a=steps=3"], "steps is no key of a reward"),
        (
            ["cartpole", "--out", "{here}/set", "--reward", "a=env_options.look=dusk"],
            "reward 'a' has env_options of its own",
        ),
        (["nothing-at-all", "--out", "{here}/set"], "nothing-at-all"),
        (["cartpole", "--out", "{here}/set", "--size", "33"], "frames of 33x33 make no film"),
    ],
)
def test_bad_input(words: list[str], reason: str, tmp_path: Path, sightline: Callable[..., Finished]) -> None:
    (tmp_path / "file").write_text("something")
    result = sightline("collect", *(word.format(here=tmp_path) for word in words))
    assert result.code == 2 and reason in result.err and result.err.count("\n") == 1
    assert not (tmp_path / "set" / "meta").exists()


def test_the_command_prints_what_it_wrote(tmp_path: Path, sightline: Callable[..., Finished]) -> None:
    line = ("collect", "cartpole", "episode_steps=4", "--episodes", "2", "--out", str(tmp_path / "set"), "--json")
    result = sightline(*line)
    assert result.code == 0, result.err
    document = json.loads(result.out)
    assert (document["episodes"], document["steps"], document["path"]) == (2, 8, str(tmp_path / "set"))


def test_python_takes_what_the_command_takes(tmp_path: Path, sightline: Callable[..., Finished]) -> None:
    options: dict[str, Any] = {"episodes": 2, "format": "pictures", "policy": "scripted", "seed": 3, "size": 32}
    rewards: dict[str, Any] = {"state": LastState(), "red": {"goal": "a red car"}}
    overrides = {"episode_steps": 4}
    found = sl.collect("cartpole", tmp_path / "ours", overrides, rewards=rewards, **options)
    words = [word for name, value in options.items() for word in (f"--{name}", value)]
    line = ("collect", "cartpole", "episode_steps=4", *words, "--reward", "red=goal=a red car", "--json")
    done = sightline(*line, "--out", tmp_path / "theirs")
    assert done.code == 0, done.err
    document = json.loads(done.out)
    assert found["rewards"] == ["state", "red"]
    assert {**found, "path": "", "rewards": []} == {**document, "path": "", "rewards": []}
    for ours, theirs in zip(read_dataset(tmp_path / "ours"), read_dataset(tmp_path / "theirs"), strict=True):
        assert np.array_equal(ours.rewards["red"], theirs.rewards["red"]) and ours.states is not None
        np.testing.assert_allclose(ours.rewards["state"], ours.states[:, 0], rtol=1e-6)
    # One declaration: the signature, the help and the reference say the same.
    assert list(inspect.signature(sl.collect).parameters) == [one.name for one in fields(Collection)]
    assert all(
        meaning(one.name) and meaning(one.name)[1:40] in " ".join(str(sl.collect.__doc__).split())
        for one in fields(Collection)
    )


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"format": "zarr"}, "it is one of lerobot, pictures"),
        ({"policy": "best"}, "it is one of run, random, scripted"),
        ({"episodes": 0}, "episodes=0: say a whole number, at least 1"),
        ({"size": 2.5}, "size=2.5: say a whole number, at least 2"),
    ],
)
def test_bad_options(options: Any, reason: str, tmp_path: Path) -> None:
    with pytest.raises(sl.BadInput, match=reason):
        sl.collect("cartpole", tmp_path / "set", **options)


def test_a_run_is_collected_with_its_own_reward(tmp_path: Path, sightline: Callable[..., Finished]) -> None:
    run, data = tmp_path / "run", tmp_path / "set"
    trained = sightline("train", "cartpole", *TINY, "--run-dir", run)
    assert trained.code == 0, trained.err
    done = sightline(
        "collect", run, "--episodes", 2, "--out", data, "--reward", "own", "--reward", "red=goal=a red car"
    )
    assert done.code == 0, done.err
    episodes = list(read_dataset(data))
    assert [episode.source for episode in episodes] == ["run", "run"]
    assert [episode.steps for episode in episodes] == [20, 20]  # as long as the run's own
    # The chosen policy is deterministic: the same command gives the same episodes, another seed others.
    again, other = tmp_path / "again", tmp_path / "other"
    assert sightline("collect", run, "--episodes", 2, "--out", again, "--lossless").code == 0
    assert sightline("collect", run, "--episodes", 2, "--out", other, "--seed", 1, "--lossless").code == 0
    for first, second, third in zip(episodes, read_dataset(again), read_dataset(other), strict=True):
        assert first.states is not None and np.array_equal(first.states, second.states)
        assert not np.array_equal(first.states, third.states)
    # People's word stands beside the environment's.
    refused = sightline("evaluate", run, "--episodes", 2, "--people", data)
    assert refused.code == 2 and "nobody has labelled" in refused.err
    write_human_labels(data, [HumanLabel("run", 0, 3, 1.0, False, "anna", False, 1.0)])
    assert "people: 1 of 1 frames" in sightline("evaluate", run, "--episodes", 2, "--people", data).out


def test_people_judge_the_episodes_of_a_run(
    tmp_path: Path, sightline: Callable[..., Finished], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "run"
    assert sightline("train", "cartpole", *TINY, "--run-dir", run).code == 0
    assert "people" not in json.loads(sightline("evaluate", run, "--episodes", 2, "--json").out)

    def answer(store: LabelStore, who: str, port: int, say: object, signatures: list[str]) -> None:
        queue = LabelQueue(store, who, signatures)
        while (question := queue.next("a-tab-1")["question"]) is not None:
            assert len(question["segments"][0]) == 16 and question["success"]
            queue.answer("a-tab-1", question["key"], "value", float(who == "anna"), 2.0)

    monkeypatch.setattr("sightline.teachers.success.serve_store", answer)
    lines: list[str] = []
    # While one process plays the episodes, another does not play them too.
    (run / "people").mkdir()
    playing = take_lease(run / "people")
    with pytest.raises(Busy, match="people' is being written by"):
        serve_run(RunFolder(run), "ben", 0, lines.append, 3)
    playing.release()
    for who in ("anna", "ben"):
        serve_run(RunFolder(run), who, 0, lines.append, 3)
    (folder,) = (run / "people").iterdir()
    episodes = list(read_dataset(folder))
    assert len(episodes) == 3 and sum("are played" in line for line in lines) == 1  # all see the same ones
    assert all(not episode.rewards for episode in episodes)
    # Ben contradicts Anna: nothing is decided, and nobody agrees with the environment.
    people = json.loads(sightline("evaluate", run, "--episodes", 2, "--json").out)["people"]
    assert people["undecided"] == 3 and people["between"][0]["same"]["count"] == 0 and people["units"] == "episodes"
    assert people["with_environment"] is None and people["by_environment"]["of"] == 3
    page = (run / "report.html").read_text()
    assert "What people say" in page and "anna and ben agree" in page and "count as no success" in page


def test_words_that_the_encoder_does_not_know_are_said(tmp_path: Path) -> None:
    collection = Collection("cartpole", tmp_path / "out", rewards={"odd": ["goal=a blorp"]}, episodes=1)
    with pytest.warns(UserWarning, match="reward 'odd': encoder 'bundled' does not know the word 'blorp'"):
        collect(collection)
