"""Labels that exist: trained on before and beside new questions, and fitted without a simulator."""

from __future__ import annotations

import contextlib
import functools
import json
import pickle
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sightline as sl
from conftest import Finished, trained
from sightline.config.blocks import checked_block
from sightline.config.loading import load_recipe
from sightline.envs.tasks import find_task
from sightline.labels.importing import import_labels
from sightline.labels.store import Context, LabelStore, StoredLabel
from sightline.labels.types import Outcome, Question, Segment, preference
from sightline.preferences.config import LearnedConfig
from sightline.preferences.fit import fit_labels
from sightline.runs.metrics import read_metrics
from stored import rows_of
from test_teaching import LITTLE, RECIPE, SCRIPTED, check_equal, cut

Sightline = Callable[..., Finished]
NOBODY = ("reward.teacher.kind=chat", "reward.teacher.model=m", "reward.teacher.url=http://localhost:9/v1")
UNASKED = ("reward.questions=0", *NOBODY)
"""Settings of a run that asks nobody: its teacher could not be reached."""


@pytest.fixture
def train(train_run: Callable[..., Path]) -> Callable[..., Path]:
    """A run that must succeed: `train("seed=1", …)` -> its folder."""
    return functools.partial(train_run, RECIPE, *LITTLE)


@pytest.fixture(scope="module")
def labelled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`train(SCRIPTED)`, which others learn from."""
    return trained(tmp_path_factory.mktemp("labelled"), RECIPE, *LITTLE, SCRIPTED)


def goal() -> tuple[str, ...]:
    recipe = load_recipe(RECIPE)
    return recipe.goal or find_task(recipe.env).goal


def bars(count: int, size: int = 64) -> tuple[np.ndarray, np.ndarray]:
    """Pictures uint8[N, size, size, 3] of a white bar, and its length."""
    length = np.random.default_rng(0).permutation(count)
    pictures = np.zeros((count, size, size, 3), np.uint8)
    for picture, columns in zip(pictures, length, strict=True):
        picture[:, : 1 + columns] = 255
    return pictures, length


def store_of_bars(
    folder: Path, count: int = 80, wanted: tuple[str, ...] | None = None, size: int = 64, length: int = 1
) -> Path:
    """A label store of pairs in which the longer bar is preferred."""
    pictures, worth = bars(40, size)
    rng, teacher = np.random.default_rng(1), sl.ScriptedTeacher()
    with LabelStore(folder) as store:
        for _ in range(count):
            places = rng.choice(40, 2, replace=False)
            segments = tuple(
                Segment(np.stack([pictures[i]] * length), np.full(length, worth[i], np.float32)) for i in places
            )
            question = Question("compare", segments, wanted or goal())
            store.record(
                question, teacher, preference(float(worth[places[1]] > worth[places[0]])), Context("r", "bars")
            )
    return folder


def usable(folder: Path) -> list[StoredLabel]:
    with LabelStore(folder) as store:
        return [label for label in store.labels() if label.answer.value is not None]


# -- training ----------------------------------------------------------------------------------------------------------


def test_another_run_learns_from_them_and_asks_nobody(train: Callable[..., Path], labelled: Path) -> None:
    first = labelled
    with LabelStore(first / "labels") as store:
        known = sum(label.answer.value is not None for label in store.labels())
    second = train("seed=1", *UNASKED, f"reward.labels_from={first}", name="second")
    records = read_metrics(second / "metrics.jsonl")
    (lesson,) = (record for record in records if "labels/existing" in record)
    assert lesson["labels/existing"] == known > 0
    assert not any(record.get("labels/asked") for record in records)
    with LabelStore(second / "labels") as store:
        assert not store.labels()
    assert sl.LearnedReward.load(second).ready


def test_they_are_learned_from_beside_new_questions(train: Callable[..., Path], labelled: Path) -> None:
    first, second = labelled, train(SCRIPTED, "seed=1", name="second")
    stores = (first, second / "labels", first / "labels")  # one of them twice, whose labels count once
    third = train(SCRIPTED, "seed=2", f"reward.labels_from={','.join(map(str, stores))}", name="third")
    records = read_metrics(third / "metrics.jsonl")
    existing = next(record["labels/existing"] for record in records if "labels/existing" in record)
    kept = [record["labels/kept"] for record in records if "labels/kept" in record][-1]
    there = [label for folder in stores[1:] for label in usable(folder)]
    assert existing == len(there) > kept > 0, "its own labels are counted apart"
    assert len(rows_of(third, "examples")["values"]) == existing + kept


def test_resuming_exactly(train: Callable[..., Path], labelled: Path, sightline: Sightline, tmp_path: Path) -> None:
    """From before the first question and from after it; the labels that exist are learned from once."""
    options = (SCRIPTED, "seed=5", f"reward.labels_from={labelled}", "checkpoints.keep=20", "checkpoints.every=32")
    whole = train(*options).rename(tmp_path / "whole")
    for keep in (1, 5):
        run = cut(whole, tmp_path / "run", keep)
        done = sightline("train", "--run-dir", run, "--resume", "--trust")
        assert done.code == 0, done.err
        check_equal(run, whole)
        run.rename(tmp_path / f"resumed {keep}")


def test_labels_that_contradict_each_other_are_counted(train: Callable[..., Path], tmp_path: Path) -> None:
    store = store_of_bars(tmp_path / "store", 20)
    with LabelStore(store) as opened:
        label = opened.labels()[0]
        segments = tuple(opened.segment(digest) for digest in label.segments)
        assert label.answer.value is not None
        question = Question("compare", segments[::-1], label.goal)
        opened.record(question, sl.ScriptedTeacher(3), preference(label.answer.value), label.context)
    run = train(*UNASKED, f"reward.labels_from={store}")
    warnings = json.loads((run / "warnings.json").read_text())["warnings"]
    assert any("1 pairs in labels_from have labels that contradict each other" in line for line in warnings)


def test_what_does_not_fit_is_refused_before_a_run_begins(sightline: Sightline, tmp_path: Path) -> None:
    good = store_of_bars(tmp_path / "good", 10)
    other = store_of_bars(tmp_path / "other", 10, ("a long bar",))
    large = store_of_bars(tmp_path / "large", 10, size=80)
    long = store_of_bars(tmp_path / "long", 10, length=2)
    cases = {
        str(tmp_path / "nothing"): "neither a run nor a label store",
        str(other): "only for 'a long bar'; reward.labels_any_goal=true takes any goal",
        str(
            large
        ): "80x80, and this run's have 64x64; say reward.frame_size=[80,80], or allow it by reward.labels_resize",
        str(long): "segments of 2 steps, and this run's have 1; say reward.segment=2",
        f"{good} reward.model.kind=states": "have no states",
        f"{good} reward.feedback.kind=ratings": "no usable ratings",
        f"{good} reward.feedback.kind=ladder": "leave out labels_from",
    }
    for given, said in cases.items():
        store, *others = given.split(" ")
        overrides = (*UNASKED, f"reward.labels_from={store}", *others)
        done = sightline("train", RECIPE, *LITTLE, *overrides, "--run-dir", tmp_path / "run")
        assert (done.code, done.out) == (2, ""), done.err
        assert said in done.lines[-1] and "Traceback" not in done.err
        assert not (tmp_path / "run").exists()
    for key, store in (("labels_any_goal", other), ("labels_resize", large)):
        overrides = (*UNASKED, f"reward.labels_from={store}", f"reward.{key}=true")
        assert sightline("train", RECIPE, *LITTLE, *overrides, "--run-dir", tmp_path / key).code == 0


def test_asking_nobody_needs_labels(sightline: Sightline, tmp_path: Path) -> None:
    done = sightline("train", RECIPE, "reward.questions=0", "--run-dir", tmp_path / "run")
    assert done.code == 2
    assert "questions=0 asks nobody; say labels_from=STORE" in done.lines[-1]


# -- caches of the reference -------------------------------------------------------------------------------------------


def cache(folder: Path, states: np.ndarray, pictures: np.ndarray, worth: np.ndarray) -> Path:
    """A folder of label caches as RL-VLM-F writes them: pictures side by side, states with actions, returns."""
    rng = np.random.default_rng(2)
    for number in range(3):
        a, b = rng.permutation(len(states))[:20], rng.permutation(len(states))[:20]
        truth = (worth[b] > worth[a]).astype(np.int64).reshape(-1, 1)
        inputs = [np.concatenate([states[i], np.zeros((len(i), 1))], axis=1)[:, None] for i in (a, b)]
        rewards = [worth[i].astype(np.float64).reshape(-1, 1, 1) for i in (a, b)]
        content = [np.concatenate([pictures[a], pictures[b]], axis=2), truth, truth, *inputs, *rewards]
        file = folder / "CartPole" / "seed_0" / f"2024-01-22-14-03-5{number}.pkl"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(pickle.dumps(content))
    return folder


def test_a_cache_teaches_a_reward_on_pictures_or_on_states(train: Callable[..., Path], tmp_path: Path) -> None:
    """Its states stand before its actions, of which the reward knows nothing."""
    rng = np.random.default_rng(0)
    states = rng.uniform(-1, 1, (40, 4)).astype(np.float32)
    pictures, worth = bars(40)
    with LabelStore(tmp_path / "store") as store:
        imported = import_labels(
            [cache(tmp_path / "cache", states, pictures, worth)], store, goal(), "cartpole-continuous"
        )
        kept = store.segment(store.labels()[0].segments[0]).states
    assert imported.pairs == 60 and kept is not None and kept.shape == (1, 5)
    for model in ("embeddings", "states"):
        run = train(*UNASKED, f"reward.labels_from={tmp_path / 'store'}", f"reward.model.kind={model}", name=model)
        reward = sl.LearnedReward.load(run)
        assert reward.ready
        assert reward.seen_shape == ((4,) if model == "states" else (64, 64, 3))


# -- without a simulator -----------------------------------------------------------------------------------------------


def test_a_reward_is_fitted_and_judged(sightline: Sightline, tmp_path: Path) -> None:
    store = store_of_bars(tmp_path / "store", 120)
    done = sightline("label", "fit", store, "--out", tmp_path / "reward", "--json")
    assert done.code == 0, done.err
    found = json.loads(done.out)
    assert found["labels"] == 120 and 10 < found["held_out"] < 40
    assert found["held_out_accuracy"] > 0.8 and found["rank_correlation"] > 0.8
    assert found["interval"][0] < found["held_out_accuracy"] <= found["interval"][1]
    pictures, worth = bars(40)
    assert np.corrcoef(sl.LearnedReward.load(tmp_path / "reward")(pictures), worth)[0, 1] > 0.8
    told = sightline(
        *("label", "fit", store, "reward.model.kind=cnn", "reward.model.channels=[4,8]", "reward.model.size=[32,32]"),
        "reward.fitting.epochs=1",
    )
    assert told.out.splitlines()[0].startswith("labels      120, of which")


def test_what_cannot_be_fitted(sightline: Sightline, tmp_path: Path) -> None:
    store = store_of_bars(tmp_path / "store", 5)
    for overrides, said in (
        (("goal=another",), "no pairs for the goal 'another'"),
        (("reward.feedback.kind=ratings",), "no usable ratings"),
        (("reward.kind=sparse",), "is not learned from labels"),
        (("reward.fitting.epoch=3",), "did you mean 'epochs'"),
        (("reward.model.kind=states",), "train with reward.labels_from"),
        (("--out", str(store)), "is there already; name a folder that is new or empty"),
    ):
        done = sightline("label", "fit", store, *overrides)
        assert (done.code, done.out, len(done.lines)) == (2, "", 1), done.err
        assert said in done.lines[0]


def test_frames_of_several_sizes_are_fitted_where_that_is_allowed(sightline: Sightline, tmp_path: Path) -> None:
    store = store_of_bars(store_of_bars(tmp_path / "store", 40), 40, size=32)
    done = sightline("label", "fit", store)
    assert "the segments differ: [(1, 32, 32, 3), (1, 64, 64, 3)]" in done.lines[-1]
    assert "reward.labels_resize=true takes other sizes" in done.lines[-1]
    allowed = sightline("label", "fit", store, "reward.labels_resize=true", "--json")
    assert json.loads(allowed.out)["labels"] == 80


def test_a_label_that_is_none_names_its_number(tmp_path: Path) -> None:
    """Somebody changed the database by hand."""
    store = store_of_bars(tmp_path / "store", 3)
    with contextlib.closing(sqlite3.connect(store / "labels.sqlite")) as database, database:
        database.execute("UPDATE labels SET value = 7 WHERE id = 2")
    with pytest.raises(sl.BadInput, match=r"label 2 of .*: the answer must be a number from 0 to 1"):
        sl.fit_reward(store)


def test_ratings_are_fitted_too(tmp_path: Path) -> None:
    pictures, worth = bars(40)
    with LabelStore(tmp_path / "store") as store:
        for picture, length in zip(pictures, worth, strict=True):
            question = Question("rate", (Segment.of_frames(picture),), ("a bar",), 3)
            store.record(
                question, sl.ScriptedTeacher(), sl.Answer(Outcome.VALUE, float(length * 3 // 40)), Context("r", "t")
            )
    config = checked_block(LearnedConfig, {"feedback": {"kind": "ratings"}})
    fitted: Any = fit_labels(tmp_path / "store", config, None, 0)
    assert (fitted.labels, fitted.interval, fitted.rank_correlation) == (40, None, None)
    assert np.corrcoef(fitted.reward(pictures), worth)[0, 1] > 0.8
