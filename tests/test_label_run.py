"""`sightline label run`: a teacher is asked outside of training, and nothing is recorded that was not judged."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fault_server import FaultServer, brighter, status
from sightline.config.loading import load_recipe
from sightline.labels.store import Context, LabelStore, StoredLabel
from sightline.labels.types import Answer, Outcome, Question, Segment, preference
from sightline.runs.folder import owned_run
from test_label_store import Judge

GOAL = ("pole vertically upright on top of the cart",)
SMALL = ("reward.frame_size=[48, 48]", "reward.device=cpu")
SCRIPTED = ("reward.teacher.kind=scripted", *SMALL)


def chat(server: FaultServer, *more: str) -> tuple[str, ...]:
    """Overrides that name the server's model as the teacher."""
    named = ("reward.teacher.kind=chat", "reward.teacher.model=some-model", f"reward.teacher.url={server.url}")
    return (*named, *SMALL, *more)


def labels_in(folder: Path) -> list[StoredLabel]:
    with LabelStore(folder) as store:
        return store.labels()


def picture(shade: int, height: int = 40) -> Segment:
    frame = np.full((1, height, 40, 3), shade, np.uint8)
    frame[0, :20] = 255 - shade
    return Segment(frame, np.array([shade], np.float32))


def fill(folder: Path, *questions: Question, task: str = "cartpole", run: str = "a run") -> Path:
    """A store in which a judge has answered these."""
    with LabelStore(folder) as store:
        for question in questions:
            answer = preference(1.0) if question.kind == "compare" else Answer(Outcome.VALUE, 1.0)
            store.record(question, Judge(), answer, Context(run, task))
    return folder


def pairs(count: int, goal: tuple[str, ...] = GOAL, start: int = 0) -> list[Question]:
    return [Question("compare", (picture(start + 2 * i), picture(start + 2 * i + 1)), goal) for i in range(count)]


def rating(shade: int, levels: int) -> Question:
    return Question("rate", (picture(shade),), GOAL, levels)


def one_line(done: Any, *parts: str) -> None:
    assert (done.code, done.out, len(done.lines)) == (2, "", 1), done.err
    for part in parts:
        assert part in done.lines[0]


# -- random play, and the same questions once more ---------------------------------------------------------------------


def test_a_new_store_is_asked_about_random_play(sightline: Callable[..., Any], tmp_path: Path) -> None:
    done = sightline("label", "run", tmp_path / "new", "env=cartpole", *SCRIPTED, "--questions", 5)
    assert done.code == 0, done.err
    assert done.out.splitlines()[1] == "questions   5 of random play, 0 of them answered by this teacher already"
    labels = labels_in(tmp_path / "new")
    assert len({label.segments for label in labels}) == 5
    for label in labels:
        assert (label.goal, label.context.task, label.kind) == (GOAL, "cartpole", "compare")
        first, second = label.true_returns
        expected = {-1: Outcome.FIRST, 0: Outcome.EQUAL, 1: Outcome.SECOND}[int(np.sign(second - first))]
        assert label.answer.outcome is expected


def test_an_empty_folder_is_as_good_as_none(sightline: Callable[..., Any], tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    done = sightline("label", "run", tmp_path / "empty", "env=cartpole", *SCRIPTED, "--questions", 2)
    assert done.code == 0, done.err
    assert len(labels_in(tmp_path / "empty")) == 2


def test_a_second_teacher_judges_the_same_pairs_and_the_first_is_remembered(
    sightline: Callable[..., Any], tmp_path: Path
) -> None:
    store = tmp_path / "store"
    assert sightline("label", "run", store, "env=cartpole", *SCRIPTED, "--questions", 4).code == 0
    with FaultServer(brighter) as server:
        for remembered in (0, 4):
            done = sightline("label", "run", store, *chat(server), "--json")
            assert done.code == 0, done.err
            told = json.loads(done.out)
            assert (told["teacher"], told["questions"], told["fresh"]) == ("chat some-model", 4, False)
            assert told["remembered"] == remembered and sum(told["outcomes"].values()) == 4
            if remembered == 0:
                asked = len(server.asked)
        assert len(server.asked) == asked + 1  # whether the server is there; the answers were known
    labels = labels_in(store)
    assert {label.segments for label in labels[:4]} == {label.segments for label in labels[4:]} and len(labels) == 8
    with LabelStore(store) as opened:
        for label in labels[4:]:
            first, second = (float(opened.segment(digest).frames.mean()) for digest in label.segments)
            assert label.answer.outcome is (Outcome.FIRST if first > second else Outcome.SECOND)
    done = sightline("label", "run", store, *SCRIPTED, "--fresh", "seed=1", "--questions", 3, "--json")
    assert json.loads(done.out)["fresh"] is True
    assert len({label.segments for label in labels_in(store)}) == 7


def test_every_call_has_a_budget_of_its_own(sightline: Callable[..., Any], tmp_path: Path) -> None:
    store = fill(tmp_path / "store", *pairs(6))
    with FaultServer(brighter) as server:
        overrides = chat(server, "reward.budget.requests=4", "reward.teacher.concurrency=1")
        told = [json.loads(sightline("label", "run", store, *overrides, "--json").out) for _ in range(3)]
        plain = sightline("label", "run", fill(tmp_path / "b", *pairs(6)), *overrides)
    assert [sum(one["outcomes"].values()) for one in told] == [2, 4, 6]  # every pair takes two requests
    assert [bool(one["over_budget"]) for one in told] == [True, True, False]
    assert "4 requests" in told[0]["over_budget"].replace("4 of ", "")
    assert f"budget      reached: {told[0]['over_budget']}" in plain.out.splitlines()
    runs = [label.context.run for label in labels_in(store) if label.teacher != "judge"]
    assert len(set(runs)) == 3 and all(run.startswith("label run 20") for run in runs)
    assert [one["run"] for one in told] == list(dict.fromkeys(runs))


@pytest.mark.parametrize(
    ("overrides", "asked"),
    [
        (("reward.questions=3",), 3),
        (("reward.budget.questions=2", "reward.questions=3"), 2),
        (("reward.budget.questions=4",), 4),
        (("reward.budget={questions: 2}",), 2),
        (("reward.budget={requests: 99}",), 6),
        (("reward.questions=100", "--questions", 5), 5),
    ],
)
def test_questions_that_are_stated_bound_what_is_asked(
    sightline: Callable[..., Any], tmp_path: Path, overrides: tuple[Any, ...], asked: int
) -> None:
    store = fill(tmp_path / "store", *pairs(6))
    told = json.loads(sightline("label", "run", store, *SCRIPTED, *overrides, "--json").out)
    assert told["questions"] == asked
    assert len([label for label in labels_in(store) if label.teacher == "scripted"]) == asked


def test_fresh_questions_are_bounded_too_and_a_runs_own_rounds_bound_nothing(
    sightline: Callable[..., Any], tmp_path: Path
) -> None:
    from sightline.config.loading import load_recipe
    from sightline.runs.folder import owned_run

    done = sightline("label", "run", tmp_path / "new", "env=cartpole", *SCRIPTED, "reward.questions=3", "--json")
    assert json.loads(done.out)["questions"] == 3
    recipe = load_recipe("cartpole-preferences", ["reward.questions=2", "reward.budget.questions=2"])
    with owned_run(tmp_path / "run", recipe, resume=False) as begin:
        begin()
    fill(tmp_path / "run" / "labels", *pairs(5), task="cartpole-continuous")
    for overrides, asked in (((), 5), (("reward.questions=1",), 1)):
        done = sightline("label", "run", tmp_path / "run", "reward.device=cpu", *overrides, "--json")
        assert json.loads(done.out)["questions"] == asked, done.err


def test_ctrl_c_keeps_what_was_answered(sightline_process: Callable[..., Any], tmp_path: Path) -> None:
    store = fill(tmp_path / "store", *pairs(20))
    with FaultServer(brighter, latency=0.15) as server:
        overrides = chat(server, "reward.teacher.concurrency=1", "reward.teacher.swap=false")
        process = sightline_process("label", "run", store, *overrides)
        until = time.monotonic() + 60
        while len(server.asked) < 5 and time.monotonic() < until and process.poll() is None:
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert process.returncode == 130 and out == "", err
    kept = [label for label in labels_in(store) if label.teacher == "chat some-model"]
    assert 3 <= len(kept) < 20
    last = err.splitlines()[-1]
    assert f"stopped by SIGINT; {len(kept)} of 20 answers are in {store}; go on with the same command" in last


@pytest.mark.parametrize("of_run", [False, True])
def test_the_same_command_goes_on_after_a_kill(
    sightline: Callable[..., Any], sightline_process: Callable[..., Any], tmp_path: Path, of_run: bool
) -> None:
    """Some questions about random play have labels by then; the others are asked, and nothing twice. A run that was
    stopped before its first round has an empty store, and its recipe says what is played."""
    place: Path = tmp_path / "store"
    env: tuple[str, ...] = ("env=cartpole",)
    if of_run:
        recipe = load_recipe("cartpole-preferences", ["reward.device=cpu"])
        with owned_run(tmp_path / "run", recipe, resume=False) as begin:
            begin()
        LabelStore(tmp_path / "run" / "labels").close()
        place, env = tmp_path / "run", ()
    with FaultServer(brighter, latency=0.1) as server:
        overrides = chat(server, "reward.teacher.concurrency=1", "reward.teacher.swap=false")
        command = ("label", "run", place, *env, *overrides, "--questions", 8)
        process = sightline_process(*command)
        until = time.monotonic() + 120
        while len(server.asked) < 4 and time.monotonic() < until and process.poll() is None:
            time.sleep(0.02)
        process.kill()
        process.communicate(timeout=60)
        store = place / "labels" if of_run else place
        kept = len(labels_in(store))
        assert 0 < kept < 8
        done = sightline(*command)
        assert f"8 of random play, {kept} of them answered by this teacher already" in done.out, done.err
        labels = labels_in(store)
        assert len(labels) == len({label.segments for label in labels}) == 8
        # Another number of questions is another command: a second opinion on those that were asked.
        done = sightline(*command[:-1], 3, "--json")
    assert json.loads(done.out)["remembered"] == json.loads(done.out)["questions"] == 3


def test_a_quota_of_the_day_ends_the_asking_and_the_same_command_goes_on(
    sightline: Callable[..., Any], tmp_path: Path
) -> None:
    quota = status(429, "Rate limit exceeded: free-models-per-day")
    with FaultServer(brighter, faults=[None] * 4 + [quota] * 100) as server:
        overrides = chat(server, "reward.teacher.concurrency=1", "reward.teacher.swap=false")
        command = ("label", "run", tmp_path / "store", "env=cartpole", *overrides, "--questions", 8)
        done = sightline(*command)
        assert done.code == 1 and len(server.asked) == 5  # one of them checks the server
        assert "answers no more: a quota is used up" in done.lines[-1] and "the same command" in done.lines[-1]
        server.faults = []
        done = sightline(*command)
    assert done.code == 0 and "8 of random play, 3 of them answered by this teacher already" in done.out, done.err


# -- words and levels --------------------------------------------------------------------------------------------------


def test_known_pairs_are_judged_by_the_words_they_were_asked_in(sightline: Callable[..., Any], tmp_path: Path) -> None:
    other = ("the cart at the left edge",)
    store = fill(tmp_path / "store", *pairs(3, other))
    assert sightline("label", "run", store, *SMALL).code == 0
    judged = [label for label in labels_in(store) if label.teacher == "encoder bundled"]
    assert len(judged) == 3
    for label in judged:
        assert label.goal == other
        assert json.loads(label.signature.removeprefix("encoder bundled "))["goal"] == list(other)
    # the same words may be said, and words that the teacher of a pair did not have may not
    assert sightline("label", "run", store, *SMALL, f"goal={other[0]}").code == 0
    done = sightline("label", "run", store, *SMALL, "goal=a pole")
    one_line(done, "these pairs were asked with goal 'the cart at the left edge'; add --fresh")
    assert len(labels_in(store)) == 6
    done = sightline("label", "run", store, *SMALL, "goal=a pole", "--fresh", "--questions", 2)
    assert done.code == 0, done.err
    assert [label.goal for label in labels_in(store)[6:]] == [("a pole",)] * 2


def test_the_baseline_of_a_tasks_goal_is_the_tasks(sightline: Callable[..., Any], tmp_path: Path) -> None:
    store = fill(tmp_path / "store", *pairs(2))
    one_line(sightline("label", "run", store, *SMALL, "baseline=a cart"), "with baseline 'pole and cart'; add --fresh")
    assert sightline("label", "run", store, *SMALL, "baseline=pole and cart").code == 0
    signature = labels_in(store)[-1].signature
    assert json.loads(signature.removeprefix("encoder bundled "))["baseline"] == ["pole and cart"]


def test_several_goals_are_told_apart_where_it_matters(sightline: Callable[..., Any], tmp_path: Path) -> None:
    store = fill(tmp_path / "store", *pairs(2), *pairs(3, ("a pole upright",), start=50))
    one_line(sightline("label", "run", store, *SMALL), "several goals", GOAL[0], "'a pole upright'", "goal=…")
    told = json.loads(sightline("label", "run", store, *SMALL, "goal=a pole upright", "--json").out)
    assert told["questions"] == 3
    with FaultServer(brighter) as server:
        assert json.loads(sightline("label", "run", store, *chat(server), "--json").out)["questions"] == 5
    asked = [label.goal for label in labels_in(store) if label.teacher == "chat some-model"]
    assert sorted(asked) == sorted([GOAL] * 2 + [("a pole upright",)] * 3)


def test_known_ratings_keep_their_levels(sightline: Callable[..., Any], tmp_path: Path) -> None:
    store = fill(tmp_path / "store", *(rating(20 * i, 5) for i in range(4)), *pairs(1))
    ratings = "reward.feedback.kind=ratings"
    done = sightline("label", "run", store, *SCRIPTED, ratings, "reward.feedback.levels=3")
    one_line(done, "these ratings were asked on 5 levels; add --fresh")
    assert sightline("label", "run", store, *SCRIPTED, ratings).code == 0
    assert [label.levels for label in labels_in(store) if label.teacher == "scripted"] == [5] * 4
    one_line(sightline("label", "run", store, *SCRIPTED, "reward.feedback.kind=scores"), "no scores", "--fresh")


def test_a_runs_own_recipe_asks(sightline: Callable[..., Any], tmp_path: Path) -> None:
    """Its words are those that its questions were asked in, not the task's."""
    goal = ("a pole upright",)
    recipe = load_recipe("cartpole-preferences", [f"goal={goal[0]}", "baseline=a cart", "reward.device=cpu"])
    with owned_run(tmp_path / "run", recipe, resume=False) as begin:
        begin()
    fill(tmp_path / "run" / "labels", *pairs(2, goal), *pairs(2, start=60), task="cartpole-continuous")
    told = json.loads(sightline("label", "run", tmp_path / "run", "--json").out)
    assert (told["teacher"], told["questions"]) == ("encoder bundled", 2)
    signature = json.loads(labels_in(tmp_path / "run" / "labels")[-1].signature.removeprefix("encoder bundled "))
    assert (signature["goal"], signature["baseline"]) == (list(goal), ["a cart"])


# -- looking before anything is made -----------------------------------------------------------------------------------


def test_no_store_is_made_where_none_was_meant(sightline: Callable[..., Any], tmp_path: Path) -> None:
    plain = tmp_path / "plain"
    plain.mkdir()
    (plain / "notes.txt").write_text("mine")
    for more in ((), ("env=cartpole",)):
        one_line(sightline("label", "run", plain, *more), "neither a run nor a label store")
    one_line(sightline("label", "run", tmp_path / "new"), "there are no labels in", "env=…")
    one_line(sightline("label", "run", plain / "notes.txt", "env=cartpole"), "neither a run nor a label store")
    for wrong in (
        "env=catpole",
        "reward.teacher.kind=parrot",
        "reward.kind=sparse",
        "reward.teacher.encoder=none/such",
    ):
        done = sightline("label", "run", tmp_path / "new", "env=cartpole", wrong, "--questions", 2)
        assert (done.code in (1, 2), done.out, len(done.lines)) == (True, "", 1), done.err
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["notes.txt", "plain", "work"]


def test_whose_labels_they_are_is_said(sightline: Callable[..., Any], tmp_path: Path) -> None:
    store = fill(tmp_path / "store", *pairs(2), task="Drawer")
    done = sightline("label", "run", store, *SCRIPTED)  # cached labels of others: nobody needs their environment
    assert done.code == 0, done.err
    assert {label.context.task for label in labels_in(store)} == {"Drawer"}
    one_line(sightline("label", "run", store, *SCRIPTED, "env=cartpole"), "are of 'Drawer', not of 'cartpole'")
    fill(store, *pairs(2, start=9))
    one_line(sightline("label", "run", store, *SCRIPTED), "are of Drawer, cartpole; say env=…")
    LabelStore(tmp_path / "bare").close()
    one_line(sightline("label", "run", tmp_path / "bare"), "say env=…")
    assert sightline("label", "run", tmp_path / "bare", "env=cartpole", *SCRIPTED, "--questions", 1).code == 0


@pytest.mark.parametrize("questions", ["0", "-3", "many"])
def test_nonsense_is_refused(sightline: Callable[..., Any], tmp_path: Path, questions: str) -> None:
    done = sightline("label", "run", tmp_path / "new", "env=cartpole", "--questions", questions)
    assert done.code == 2 and not (tmp_path / "new").exists()
