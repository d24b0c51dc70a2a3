"""People say whether the goal is reached: what they are asked, in which order, and what becomes of it."""

from __future__ import annotations

import csv
import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from conftest import Finished
from sightline.datasets.human_labels import HumanLabel, labels_by_frame, read_human_labels, write_human_labels
from sightline.datasets.pictures import PictureWriter
from sightline.datasets.reading import read_dataset
from sightline.errors import BadInput
from sightline.evaluation.agreement import statistics
from sightline.evaluation.human_success import human_success
from sightline.labels.store import LabelStore
from sightline.reward_lab.stored_episodes import stored_sources
from sightline.teachers import success
from sightline.teachers.queue import LabelQueue
from small_datasets import small_episode


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A data set of 6 episodes of 5 steps; every picture is another one."""
    with PictureWriter(tmp_path / "set") as writer:
        for number in range(6):
            rewards = {"words": np.arange(5, dtype=np.float32) + 5 * number}
            writer.add(small_episode(number, 5, instruction="stand up", rewards=rewards, reset_rewards={}))
    return tmp_path / "set"


def ask(folder: Path, who: str, answers: dict[str, str], count: int = 20, **options: bool) -> Path:
    """Have a person answer all questions, each by what the pixels say; gives the table."""
    rows = list(success._rows(folder, None))
    chosen = success.choose(
        [row for row in rows if row.step == row.steps - 1] if options.get("episodes") else rows, count, 0
    )
    with LabelStore(folder / "labels") as store:
        success._ask(store, folder, who, chosen, options.get("episodes", False), None, 0)
        queue = LabelQueue(store, who, [success._signature(who, again) for again in (False, True)])
        while (question := queue.next("a-tab-1")["question"]) is not None:
            assert question["success"] and question["levels"] == 2
            said = answers.get(question["segments"][0][-1], answers["else"])
            value = {"yes": 1.0, "no": 0.0}.get(said)
            queue.answer("a-tab-1", question["key"], "unsure" if value is None else "value", value, 2.0)
        return success.write_answers(folder, store, rows)


def test_questions_are_spread_over_rewards_and_steps(folder: Path) -> None:
    rows = list(success._rows(folder, None))
    assert [row.reward for row in rows] == list(range(30))
    chosen = success.choose(rows, 20, seed=3)
    assert len(set(chosen)) == 20
    deciles = Counter(int(row.reward * 10 // 30) for row in chosen)
    thirds = Counter(row.step * 3 // 5 for row in chosen)
    assert len(deciles) == 10 and min(deciles.values()) >= 1
    assert min(thirds.values()) >= 4  # of 12, 6 and 12 there are
    assert chosen == success.choose(rows, 20, seed=3) != success.choose(rows, 20, seed=4)
    assert [row.reward for row in chosen] != sorted(row.reward for row in chosen)
    assert len(success.choose(rows, 1000, seed=0)) == 30
    # Of ten deciles and three thirds, each comes once before any comes twice.
    many = [success._Row("random", place // 6, place % 6, 6, (place * 7919) % 600, "stand up") for place in range(600)]
    strata = Counter((int(row.reward * 10 // 600), row.step * 3 // 6) for row in success.choose(many, 30, seed=0))
    assert len(strata) == 30


def test_a_tenth_comes_twice_and_answers_are_kept(folder: Path) -> None:
    file = ask(folder, "anna", {"else": "yes"})
    labels = read_human_labels(folder)
    assert file == folder / "human_labels.csv" and len(labels) == 22
    assert sum(label.again for label in labels) == 2
    once = {(label.episode, label.step) for label in labels if not label.again}
    assert len(once) == 20 and {(label.episode, label.step) for label in labels if label.again} < once
    assert {(label.value, label.rater, label.source, label.is_episode) for label in labels} == {
        (1.0, "anna", "random", False)
    }
    with file.open() as opened:
        assert next(csv.reader(opened))[:4] == ["checkpoint", "rollout", "step", "human_label"]
    # What was answered is not asked again.
    assert ask(folder, "anna", {"else": "no"}) == file and read_human_labels(folder) == labels


def test_several_people_answer_the_same_questions(folder: Path) -> None:
    ask(folder, "anna", {"else": "yes"})
    ask(folder, "ben", {"else": "no"})
    ask(folder, "cleo", {"else": "can't tell"})
    by_rater = {
        rater: [one for one in read_human_labels(folder) if one.rater == rater] for rater in ("anna", "ben", "cleo")
    }
    places = {rater: sorted((one.episode, one.step, one.again) for one in labels) for rater, labels in by_rater.items()}
    assert places["anna"] == places["ben"] == places["cleo"] and len(places["anna"]) == 22
    assert {one.value for one in by_rater["cleo"]} == {None}
    with LabelStore(folder / "labels", read_only=True) as store:
        between = statistics(store.labels()).between
    of_both = next(pair for pair in between if {pair.first, pair.second} == {"human anna #1", "human ben #1"})
    assert (of_both.same.count, of_both.same.of) == (0, 20)


def test_labels_come_with_the_episodes(folder: Path) -> None:
    ask(folder, "anna", {"else": "yes"})
    ask(folder, "ben", {"else": "no"})
    human = np.concatenate([episode.human for episode in read_dataset(folder) if episode.human is not None])
    assert np.isnan(human).sum() == 30 - 20 and set(human[~np.isnan(human)]) == {0.5}
    # In vlmrm's table, too.
    with (folder / "dataset.csv").open() as opened:
        said = [row["human_label"] for row in csv.DictReader(opened)]
    assert len(said) == 36 and Counter(said) == {"0.5": 20, "": 16}


def test_whole_episodes(folder: Path) -> None:
    ask(folder, "anna", {"else": "yes"}, count=4, episodes=True)
    labels = read_human_labels(folder)
    assert all(label.is_episode and label.step == 4 for label in labels) and len(labels) == 5
    said = np.stack([episode.human for episode in read_dataset(folder) if episode.human is not None])
    assert np.isnan(said[:, :4]).all() and np.nansum(said[:, 4]) == 4


def test_a_table_with_labels_of_others_is_left_alone(folder: Path) -> None:
    text = "checkpoint,rollout,step,image_file_name,human_label\n"
    text += "random,0,0,random_0_0.png,1.0\nrandom,0,1,random_0_1.png,0.0\n"
    (folder / "dataset.csv").write_text(text)
    rows = [success._Row("random", 0, 0, 2, 0.0, "stand up")]
    with LabelStore(folder / "labels") as store:
        success.write_answers(folder, store, rows)
    assert (folder / "dataset.csv").read_text() == text


def test_no_goal_and_no_labels(tmp_path: Path) -> None:
    with PictureWriter(tmp_path / "set") as writer:
        writer.add(small_episode(2))  # without a sentence
    with pytest.raises(BadInput, match="has no sentence; say the goal"):
        list(success._rows(tmp_path / "set", None))
    assert {row.goal for row in success._rows(tmp_path / "set", "sit")} == {"sit"}
    label = HumanLabel("random", 0, 1, None, False, "anna", False, 1.0)
    write_human_labels(tmp_path / "set", [label])
    assert read_human_labels(tmp_path / "set") == [label]
    file = tmp_path / "set" / "human_labels.csv"
    file.write_text(file.read_text().replace(",,frame", ",7,frame"))
    with pytest.raises(BadInput, match="row 1 is no label"):
        read_human_labels(tmp_path / "set")


def label(rater: str, step: int, value: float | None, again: bool = False, success: bool | None = None) -> HumanLabel:
    return HumanLabel("random", 0, step, value, False, rater, again, 1.0, success)


def test_success_as_people_see_it() -> None:
    """Anna and Ben agree on 3 of 4 frames: chance makes 0.5 of it (each says yes to half), so kappa is 0.5."""
    anna = [label("anna", step, value) for step, value in enumerate([1.0, 1.0, 0.0, 0.0])]
    ben = [label("ben", step, value) for step, value in enumerate([1.0, 1.0, 0.0, 1.0])]
    others = [label("ben", 4, None), label("anna", 0, 1.0, again=True), label("ben", 0, 0.0, again=True)]
    said = human_success([*anna, *ben, *others])
    assert (said.success.count, said.success.of, said.undecided, said.unsure) == (2, 4, 1, 1)
    (pair,) = said.between
    assert (pair.first, pair.second, pair.same.count, pair.same.of) == ("anna", "ben", 3, 4)
    assert pair.kappa == pytest.approx((0.75 - 0.5) / 0.5)
    assert (said.again.count, said.again.of) == (1, 2)
    assert human_success([]).success.rate is None
    assert labels_by_frame([*anna, *ben, *others])[0, 0] == [1.0, 1.0]  # what was asked again counts once


def test_peoples_word_beside_the_environments() -> None:
    """People decide steps 0 to 3 as yes, yes, no, no; the environment says yes, no, no, no: 3 of 4 agree. By chance
    0.5 x 0.25 + 0.5 x 0.75 = 0.5 would, so kappa is 0.5. Step 4 is undecided, and of step 5 nothing is stated."""
    said = [1.0, 1.0, 0.0, 0.0]
    stated = [True, False, False, False]
    labels = [label("anna", step, said[step], success=stated[step]) for step in range(4)]
    labels += [label(who, 4, value, success=True) for who, value in (("anna", 1.0), ("ben", 0.0))]
    labels += [label("anna", 5, 1.0), label("ben", 6, None, success=True)]
    found = human_success(labels)
    assert (found.success.count, found.success.of, found.units) == (3, 6, "frames")
    assert (found.by_environment.count, found.by_environment.of) == (2, 5)  # of what somebody is sure about
    assert found.with_environment is not None and found.with_environment.kappa == pytest.approx(0.5)
    assert (found.with_environment.same.count, found.with_environment.same.of) == (3, 4)
    assert human_success([label("anna", 0, 1.0)]).with_environment is None


def test_the_table_says_what_the_environment_states(folder: Path) -> None:
    ask(folder, "anna", {"else": "yes"}, count=30)
    stated = {(one.episode, one.step): one.success for one in read_human_labels(folder)}
    success = np.concatenate([episode.success for episode in read_dataset(folder) if episode.success is not None])
    assert [stated[place // 5, place % 5] for place in range(30)] == success.tolist()
    ask(folder, "ben", {"else": "yes"}, count=6, episodes=True)
    whole = {one.episode: one.success for one in read_human_labels(folder) if one.is_episode}
    assert whole == {episode.index: episode.succeeded for episode in read_dataset(folder)}
    # A table of an older version says nothing of it, and is read.
    file = folder / "human_labels.csv"
    lines = file.read_text().splitlines()
    file.write_text("".join(f"{line.rpartition(',')[0]}\n" for line in lines))
    assert {one.success for one in read_human_labels(folder)} == {None}


def test_the_lab_takes_peoples_word(folder: Path) -> None:
    warnings: list[str] = []
    (alone,) = stored_sources(folder, None, warnings.append)
    episodes = list(alone.episodes(None, None))  # type: ignore[arg-type]
    assert len(episodes) == 6 and all(episode.success is not None for episode in episodes) and not warnings
    ask(folder, "anna", {"else": "yes"}, count=8)
    stored, people = stored_sources(folder, None, warnings.append)
    assert all(episode.success is None for episode in stored.episodes(None, None))  # type: ignore[arg-type]
    judged = list(people.episodes(None, None))  # type: ignore[arg-type]
    assert sum(episode.steps for episode in judged) == 8
    assert all(episode.success is not None and episode.success.all() for episode in judged)
    assert "success is what people say of 8 frames" in warnings[0]


def test_a_data_set_is_scored_and_judged_by_the_lab(
    folder: Path, tmp_path: Path, sightline: Callable[..., Finished]
) -> None:
    scored = sightline("score", folder, "--goal", "a pole", "--json")
    assert scored.code == 0, scored.err
    rows = json.loads(scored.out)
    assert len(rows) == 30 and rows[7]["image"] == f"{folder}#1.2"
    ask(folder, "anna", {"else": "yes"}, count=8)
    judged = sightline("lab", "cartpole", "--dataset", folder, "--json")
    assert judged.code == 0, judged.err
    document = json.loads(judged.out)
    assert document["sources"] == {"set": 6, "people": 8}
    assert document["people"]["success"]["count"] == 8 and document["people"]["raters"] == ["anna"]
    assert "people: 8 of 8 frames ([68, 100] %) are a success" in sightline("lab", "cartpole", "--dataset", folder).out
    refused = sightline("lab", "cartpole", "--dataset", tmp_path)
    assert refused.code == 2 and "is no data set that is known" in refused.err
