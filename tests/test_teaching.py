"""Whole runs, tiny, with a reward that is learned from a teacher: every kind, determinism, exact resumption."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import shutil
import signal
import sqlite3
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from conftest import TINY, Finished, trained
from sightline.config.loading import load_recipe
from sightline.labels.store import BACKUP, DATABASE, LabelStore
from sightline.preferences.config import LearnedConfig
from sightline.preferences.pebble import _round_size
from sightline.runs.folder import RunFolder
from sightline.runs.metrics import read_metrics
from stored import newest_checkpoint, replay_of, rows_of, session_of

Sightline = Callable[..., Finished]
RECIPE = "cartpole-preferences"
RESULTS = ("return", "reward", "success_rate", "chosen_step")
SCRIPTED = "reward.teacher.kind=scripted"
ASKING = (
    *("reward.explore=64", "reward.every=64", "reward.questions=10", "reward.pool=40", "reward.reset_updates=3"),
    *("reward.fitting.epochs=4", "reward.fitting.ensemble=2"),
)
LITTLE = (*TINY, *ASKING)


def numbers(run: Path) -> list[dict[str, Any]]:
    """All metrics that a run's seed decides: time does not count, nor what a store shared in time."""
    left_out = ("time/", "labels/remembered")
    return [
        {name: value for name, value in record.items() if not name.startswith(left_out)}
        for record in read_metrics(run / "metrics.jsonl")
    ]


def lessons(run: Path) -> list[dict[str, Any]]:
    return [record for record in read_metrics(run / "metrics.jsonl") if "labels/asked" in record]


def result_of(run: Path) -> dict[str, Any]:
    result: dict[str, Any] = json.loads((run / "result.json").read_text())
    return {key: value for key, value in result.items() if not key.startswith("seconds")}


def source_of(run: Path) -> dict[str, Any]:
    """What the source of rewards remembers, with all that it has archived."""
    rows = {kind: rows_of(run, kind) for kind in ("segments", "examples")}
    return session_of(run)["reward_model"] | rows


def same(mine: Any, theirs: Any) -> bool:
    """Whether two nested states are equal, bit for bit; frames are in the pool's arrays."""
    if isinstance(mine, dict):
        return mine.keys() == theirs.keys() and all(same(mine[key], theirs[key]) for key in mine)
    if isinstance(mine, torch.Tensor):
        return torch.equal(mine, theirs)
    if isinstance(mine, np.ndarray):
        return bool(np.array_equal(mine, theirs, equal_nan=mine.dtype.kind == "f"))
    if isinstance(mine, list | tuple):
        return len(mine) == len(theirs) and all(map(same, mine, theirs))
    return not isinstance(mine, int | float | str | bool | None) or mine == theirs


@pytest.fixture
def train(train_run: Callable[..., Path]) -> Callable[..., Path]:
    """A run that must succeed: `train("seed=1", …)` -> its folder."""
    return functools.partial(train_run, RECIPE, *LITTLE)


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`train()`, in a process of its own; tests work on copies."""
    return trained(tmp_path_factory.mktemp("plain"), RECIPE, *LITTLE)


# -- what can be said -------------------------------------------------------------------------------------------------

FEEDBACKS = {
    "pairs": (),
    "ratings": ("reward.feedback.kind=ratings",),
    "scores": ("reward.feedback.kind=scores",),
    "ladder": ("reward.feedback.kind=ladder", "reward.feedback.size=4"),
}
MODELS = {
    "embeddings": (),
    "cnn": ("reward.model.kind=cnn", "reward.model.channels=[4,8]", "reward.model.size=[32,32]"),
    "states": ("reward.model.kind=states", "reward.model.hidden=[16]"),
}
PICTURES = (
    *("env=small_envs:Pictures", "goal=a pole", "learner.algorithm=DQN", "learner.tau=1", SCRIPTED, *MODELS["states"]),
    "reward.feedback.sampler=k_center_entropy",
)
"""States that are pictures."""


@pytest.mark.parametrize(
    ("feedback", "teacher", "model", "segment", "lag"),
    [
        ("pairs", "encoder", "cnn", 4, "true"),
        ("pairs", "scripted", "embeddings", 4, "false"),
        ("ratings", "encoder", "states", 1, "true"),
        ("ratings", "scripted", "cnn", 1, "false"),
        ("scores", "encoder", "embeddings", 1, "true"),
        ("scores", "scripted", "states", 4, "false"),
        ("ladder", "encoder", "embeddings", 1, "false"),
        ("ladder", "scripted", "embeddings", 1, "true"),
    ],
)
def test_every_feedback_with_every_teacher_and_every_model_with_segments(
    train: Callable[..., Path], feedback: str, teacher: str, model: str, segment: int, lag: str
) -> None:
    run = train(
        *(*FEEDBACKS[feedback], f"reward.teacher.kind={teacher}"),
        *(*MODELS[model], f"reward.segment={segment}", f"reward.lag={lag}"),
    )
    check_run(run, teacher, segment)
    kind = {"pairs": "compare", "ladder": "compare", "ratings": "rate", "scores": "score"}[feedback]
    with LabelStore(run / "labels") as store:
        assert {label.kind for label in store.labels()} == {kind}


def check_run(run: Path, teacher: str, segment: int = 1) -> None:
    rounds = lessons(run)
    assert len(rounds) >= 2
    last = rounds[-1]
    assert last["labels/asked"] >= last["labels/kept"] > 10
    with LabelStore(run / "labels") as store:
        labels = store.labels(RunFolder(run).id)
        assert len(labels) >= last["labels/asked"]
        assert {label.teacher.split()[0] for label in labels} == {teacher}
        assert {label.context.task for label in labels} == {"cartpole-continuous"}
        assert all(label.context.step is not None and label.context.step >= 64 for label in labels)
        shown = store.segment(labels[0].segments[0])
        assert shown.frames.shape == (segment, 64, 64, 3)
        assert (shown.true_rewards <= 0).all()
        assert (shown.true_rewards >= -30).all()
    result = result_of(run)
    assert result["reward"] is not None
    assert result["episodes"] == 3
    paid = replay_of(run)["rewards"]
    assert np.isfinite(paid[replay_of(run)["committed"]]).all()


def test_equal_seeds_give_equal_runs_and_others_do_not(train: Callable[..., Path], plain: Path) -> None:
    first, second, other = plain, train(name="second"), train("seed=1", name="other")
    assert numbers(first) == numbers(second)
    assert result_of(first) == result_of(second)
    assert same(source_of(first), source_of(second))
    assert numbers(first) != numbers(other)


def test_an_imperfect_teacher(train: Callable[..., Path]) -> None:
    failings = ("mistake=0.5", "equal=0.2", "beta=2", "gamma=0.9")
    run = train(SCRIPTED, *(f"reward.teacher.{failing}" for failing in failings), "reward.segment=2")
    last = lessons(run)[-1]
    assert last["labels/kept"] > 0
    with LabelStore(run / "labels") as store:
        outcomes = {label.answer.outcome.value for label in store.labels()}
    assert "equal" in outcomes
    accuracies = [record.get("labels/accuracy") for record in lessons(run)]
    assert any(accuracy is not None and accuracy < 1 for accuracy in accuracies)


def test_the_same_recipe_with_other_rewards(sightline: Sightline, tmp_path: Path) -> None:
    """One switch each, for comparisons."""

    def train(*arguments: str, name: str) -> Path:
        done = sightline("train", RECIPE, *TINY, *arguments, "--run-dir", tmp_path / name)
        assert done.code == 0, done.err
        return tmp_path / name

    sparse = train("reward.kind=sparse", name="sparse")
    paid = replay_of(sparse)
    upright = np.abs(paid["next_observations"][..., 2]) <= np.radians(5)
    np.testing.assert_array_equal(paid["rewards"], upright.astype(np.float32))
    assert 0 < upright.mean() < 1
    truth = train("reward.kind=ground_truth", "reward.scale=0.1", name="truth")
    paid = replay_of(truth)
    angles = np.degrees(np.abs(paid["next_observations"][..., 2]))
    np.testing.assert_allclose(paid["true_rewards"], -angles, atol=1e-3)
    np.testing.assert_allclose(paid["rewards"], -0.1 * angles, atol=1e-4)
    assert result_of(truth)["return"] < -30, "reported as the environment says it"
    words = train("reward.kind=zero_shot", name="words")
    assert result_of(words)["reward"] is not None
    assert not (words / "labels").exists()


# -- relabelling ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("model", "rows"), [("embeddings", 200), ("embeddings", 24), ("cnn", 24), ("states", 45)])
def test_every_stored_transition_is_paid_by_the_newest_reward(
    train: Callable[..., Path], model: str, rows: int, bundled: Any
) -> None:
    """The ring of the replay buffer is not full, wraps once, and wraps twice and more."""

    run = train(*MODELS[model], f"learner.buffer_size={4 * rows}", "steps=320", "seed=2")
    replay, source = replay_of(run), source_of(run)
    assert bool(replay["full"]) == (rows < 80)
    assert replay["committed"].all()
    config = load_recipe(str(run / "recipe.yaml"), []).reward
    assert isinstance(config, LearnedConfig)
    shape = (4,) if model == "states" else (64, 64, 3)
    reward = config.make_reward(shape, bundled if model == "embeddings" else None, 99)
    reward.load_state_dict(source["lessons"]["reward"])
    kept = replay["next_observations"] if model == "states" else replay["features"]
    flat = kept.reshape(-1, *kept.shape[2:])
    np.testing.assert_allclose(reward.rewards_of(flat).reshape(replay["rewards"].shape), replay["rewards"], atol=1e-5)
    assert len(np.unique(replay["rewards"])) > 20


def test_before_the_first_lesson_novelty_pays(train: Callable[..., Path]) -> None:
    run = train("reward.explore=160", "steps=192", "checkpoints.every=32", "checkpoints.keep=9", "evaluation.every=32")
    assert [record["step"] for record in lessons(run)] == [160]
    replay = replay_of(run, run / "checkpoints" / "step-000000000128")
    rewards = replay["rewards"][replay["committed"]]
    assert (rewards >= 0).all()
    assert rewards.std() > 0
    assert result_of(run)["chosen_step"] >= 160  # what knew nothing chose nothing
    early = [record for record in read_metrics(run / "metrics.jsonl") if record["step"] < 160]
    assert not [record for record in early if "evaluation/reward" in record]


def test_a_run_that_would_never_ask_is_refused(sightline: Callable[..., Finished]) -> None:
    done = sightline("train", RECIPE, "reward.explore=20000", "--dry-run")
    assert done.code == 2
    assert "the first lesson would come at step 20096" in done.lines[0]


# -- the label store --------------------------------------------------------------------------------------------------


def test_runs_that_share_a_store_pay_once(train: Callable[..., Path], tmp_path: Path) -> None:
    shared = f"reward.labels={tmp_path / 'shared'}"
    first, second = train(shared, name="first"), train(shared, name="second")
    assert [record["labels/remembered"] for record in lessons(first)] == [0] * len(lessons(first))
    asked = [record["labels/asked"] for record in lessons(second)]
    assert np.cumsum([record["labels/remembered"] for record in lessons(second)]).tolist() == asked
    assert numbers(first) == numbers(second)
    assert not (second / "labels").exists()
    with LabelStore(tmp_path / "shared") as store:
        assert {label.context.run for label in store.labels()} == {RunFolder(first).id}


def test_labels_stay_a_runs_own_when_its_folder_is_renamed(plain: Path, sightline: Sightline, tmp_path: Path) -> None:
    """They carry its id; another run may have the folder's name by then."""
    moved = Path(shutil.copytree(plain, tmp_path / "moved"))
    with LabelStore(moved / "labels") as store:
        (run,) = {label.context.run for label in store.labels()}
        count = len(store.labels())
    assert run == RunFolder(moved).id != plain.name
    done = sightline("label", "stats", moved, "--run", moved, "--json")
    assert json.loads(done.out)["teachers"][0]["labels"] == count, done.err
    assert sightline("label", "stats", moved, "--run", plain.name).code == 2


def test_a_damaged_label_database(train: Callable[..., Path], sightline: Sightline, tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    train(f"reward.labels={shared}", name="first")
    database = shared / DATABASE
    database.write_bytes(b"this is no database at all, however long it may be " * 100)
    done = sightline("train", RECIPE, *LITTLE, f"reward.labels={shared}", "--run-dir", tmp_path / "second")
    assert done.code == 2
    assert sum(line.startswith("sightline: ") for line in done.lines) == 1
    assert "damaged" in done.lines[-1]
    assert BACKUP in done.lines[-1]
    assert "Traceback" not in done.err


# -- budgets and failures ---------------------------------------------------------------------------------------------


def clock(shade: int, *overrides: str) -> tuple[str, ...]:
    """Arguments of a run on a clock whose pictures are all alike with shade 0."""
    settings = ("reward.kind=learned", SCRIPTED, "reward.model.kind=cnn", "reward.model.channels=[4]")
    sizes = ("envs=2", "steps=480", "learner.chunk=8", "learner.learning_starts=16", "learner.batch_size=8")
    quick = ("videos=false", "tensorboard=false", "evaluation.episodes=1", "evaluation.test_episodes=1")
    return ("env=small_envs:Clock", f"env_options.shade={shade}", *settings, *sizes, *quick, *ASKING, *overrides)


def test_pictures_that_do_not_change_end_a_run(sightline: Sightline, tmp_path: Path) -> None:
    done = sightline("train", *clock(0), "--run-dir", tmp_path / "run")
    assert done.code == 1
    assert "look the same, so there is nothing to ask about" in done.lines[-1]
    with LabelStore(tmp_path / "run" / "labels") as store:
        assert not store.labels()


def test_few_different_pictures_are_said_to_be_few(sightline: Sightline, tmp_path: Path) -> None:
    run = tmp_path / "run"
    done = sightline(
        "train", *clock(1, "env_options.shortest=2", "env_options.longest=3", "steps=192"), "--run-dir", run
    )
    assert done.code == 0, done.err
    (said, *_) = (line for line in done.lines if "instead of 10 questions" in line)
    assert "look different, and nothing is asked twice" in said
    with LabelStore(run / "labels") as store:
        labels = store.labels()
    assert 0 < len(labels) < 10


def test_all_questions_are_asked_and_training_goes_on(sightline: Sightline, tmp_path: Path) -> None:
    run = tmp_path / "run"
    done = sightline("train", RECIPE, *LITTLE, "reward.budget.questions=13", "--run-dir", run)
    assert done.code == 0, done.err
    (said,) = (line for line in done.lines if "questions of the budget are asked" in line)
    assert said.startswith("all 13 questions")
    assert "13 labels" in said
    assert [record["labels/asked"] for record in lessons(run)][-1] == 13
    assert numbers(run)[-1]["step"] == 256
    with LabelStore(run / "labels") as store:
        assert len(store.labels()) == 13


def test_no_usable_answer(sightline: Sightline, tmp_path: Path) -> None:
    environment = ("env=small_envs:Clock", "goal=pole", "learner.algorithm=DQN", "reward.model.kind=states")
    arguments = (*LITTLE, *environment, SCRIPTED, "reward.teacher.skip=1000", "learner.tau=1")
    done = sightline("train", RECIPE, *arguments, "--run-dir", tmp_path / "run")
    assert done.code == 1, done.err
    assert "no usable answer" in done.lines[-1]
    assert "neither segment shows enough" in done.lines[-1]
    assert sum(line.startswith("sightline: ") for line in done.lines) == 1
    assert "Traceback" not in done.err


def test_sparse_rewards_need_success(sightline: Sightline, tmp_path: Path) -> None:
    done = sightline(
        "train", RECIPE, *TINY, "env=Pendulum-v1", "reward.kind=sparse", "--run-dir", tmp_path / "run"
    )  # fmt: skip
    assert done.code == 2, done.err
    assert "states no success" in done.lines[-1]
    assert sum(line.startswith("sightline: ") for line in done.lines) == 1
    assert "Traceback" not in done.err


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (("reward.segment=9",), "learner.chunk"),
        (("reward.questions=21",), "pool"),
        (("reward.feedback.kind=ladder", "reward.model.kind=cnn"), "model.kind=embeddings"),
        (("reward.feedback.kind=ladder", "reward.segment=2"), "segment=1"),
        ((SCRIPTED, "reward.teacher.skip=0.5", "reward.feedback.kind=ratings"), "teacher.skip"),
        (("reward.model.kind=cnn", "reward.model.size=[20,20]"), "too small"),
        (("reward.model.kind=resnet", "reward.model.size=[32,32]"), "too small"),
    ],
)
def test_what_does_not_fit_together(
    sightline: Sightline, tmp_path: Path, overrides: tuple[str, ...], said: str
) -> None:
    done = sightline("train", RECIPE, *LITTLE, *overrides, "--run-dir", tmp_path / "run")
    assert done.code == 2, done.err
    assert said in done.lines[-1]
    assert "Traceback" not in done.err


def test_segments_longer_than_any_episode(sightline: Sightline, tmp_path: Path) -> None:
    short = ("steps=1000", "episode_steps=3", "reward.segment=5")
    done = sightline("train", RECIPE, *LITTLE, *short, "--run-dir", tmp_path / "run")
    assert done.code == 1, done.err
    assert "lower reward.segment" in done.lines[-1]
    assert "Traceback" not in done.err


# -- rounds -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("lag", ["false", "true"])
def test_nothing_is_asked_that_comes_too_late(train: Callable[..., Path], lag: str) -> None:
    """The last boundary is at step 256: answers that are due then, or later, could teach nothing more."""
    run = train(f"reward.lag={lag}")
    with LabelStore(run / "labels") as store:
        steps = sorted({label.context.step for label in store.labels()})
    assert steps == ([64, 128] if lag == "true" else [64, 128, 192])
    assert [record["step"] for record in lessons(run)] == ([128, 192] if lag == "true" else [64, 128, 192])


def test_rounds_without_exploration(train: Callable[..., Path]) -> None:
    run = train("reward.explore=0")
    assert lessons(run)[0]["step"] == 64, "as soon as there is something to ask about"


def test_schedules() -> None:
    def sizes(schedule: Any, steps: int = 1000) -> list[int]:
        config = LearnedConfig(kind="learned", schedule=schedule, questions=10)
        return [_round_size(config, step, steps) for step in (0, 250, 500, 750)]

    assert sizes("constant") == [10, 10, 10, 10]
    assert sizes("falling") == [10, 7, 5, 2]
    assert sizes("rising") == [9, 13, 19, 39]


# -- playing what was learned -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("model", MODELS)
def test_evaluating_a_run_again(
    train: Callable[..., Path], plain: Path, sightline: Sightline, tmp_path: Path, model: str
) -> None:
    run = train(*MODELS[model]) if MODELS[model] else Path(shutil.copytree(plain, tmp_path / "run"))
    before = (run / "labels" / DATABASE).read_bytes()
    done = sightline("evaluate", run, "--episodes", 3, "--json")
    assert done.code == 0, done.err
    again, result = json.loads(done.out), result_of(run)
    assert {name: again[name] for name in RESULTS} == {name: result[name] for name in RESULTS}
    assert (run / "labels" / DATABASE).read_bytes() == before


# -- beginning the values anew ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("algorithm", ["SAC", "DQN", "TD3", "TQC"])
def test_values_are_forgotten_and_the_actor_is_not(algorithm: str) -> None:
    import gymnasium
    import stable_baselines3 as sb3

    from sightline.control.learners import reset_critic

    if algorithm == "TQC":
        sb3 = pytest.importorskip("sb3_contrib")
    env = gymnasium.make("CartPole-v1" if algorithm == "DQN" else "Pendulum-v1")
    model = getattr(sb3, algorithm)("MlpPolicy", env, seed=0, learning_starts=20, batch_size=8)
    model.learn(40)
    critic, target = ("q_net", "q_net_target") if algorithm == "DQN" else ("critic", "critic_target")
    policy: Any = model.policy
    before = {name: value.clone() for name, value in policy.state_dict().items()}
    optimiser = policy.optimizer if algorithm == "DQN" else policy.critic.optimizer
    assert optimiser.state
    reset_critic(model)
    assert not optimiser.state
    after = policy.state_dict()
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    of_values = {name for name in before if name.startswith(("critic", "q_net"))}
    assert changed == {name for name in of_values if before[name].numel() > 1 or name in changed}
    assert {name.split(".")[0] for name in changed} == {critic, target}
    for name in after:
        if name.startswith(f"{critic}."):
            assert torch.equal(after[name], after[name.replace(critic, target, 1)])
    assert {id(p) for group in optimiser.param_groups for p in group["params"]} == {
        id(p) for p in getattr(policy, critic).parameters()
    }
    model.learn(30, reset_num_timesteps=False)


def test_values_of_a_stranger_cannot_be_forgotten() -> None:
    from types import SimpleNamespace

    from sightline.control.learners import reset_critic
    from sightline.errors import BadInput

    with pytest.raises(BadInput, match="reset_critic=false"):
        reset_critic(SimpleNamespace(policy=SimpleNamespace()))  # type: ignore[arg-type]


@pytest.mark.parametrize("reset", [True, False])
def test_the_critic_begins_anew_when_the_reward_takes_over(
    train: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, reset: bool
) -> None:
    forgotten: list[int] = []
    reset_critic = "sightline.control.off_policy.reset_critic"
    monkeypatch.setattr(reset_critic, lambda model: forgotten.append(model.num_timesteps))
    train(f"reward.reset_critic={str(reset).lower()}")
    assert forgotten == ([64] if reset else []), "once, and never again"


# -- resuming ---------------------------------------------------------------------------------------------------------


def cut(whole: Path, part: Path, keep: int) -> Path:
    """A copy of a run as a kill would have left it: its first `keep` checkpoints, and all labels."""
    shutil.copytree(whole, part)
    for checkpoint in sorted((part / "checkpoints").glob("step-*"))[keep:]:
        shutil.rmtree(checkpoint)
    (part / "result.json").unlink()
    return part


def lose(labels: Path, what: str, after: int) -> None:
    """Take labels that were asked for after a step out of a store, as if the run had been killed before they came."""
    if what == "none":
        return
    with contextlib.closing(sqlite3.connect(labels / DATABASE)) as database, database:
        some = " AND id % 2" if what == "some" else ""
        gone = database.execute(f"DELETE FROM labels WHERE step > ?{some}", (after,))
        assert gone.rowcount > 0


@pytest.mark.parametrize(
    ("lost", "keeps", "arguments"),
    [
        ("none", (1, 5), ()),
        ("some", (1, 5), ("reward.lag=true",)),
        ("all", (5,), ("reward.lag=true", SCRIPTED, "reward.teacher.equal=0.3", "reward.segment=2")),
        ("some", (5,), ("reward.lag=true", SCRIPTED, *FEEDBACKS["scores"], "reward.questions=3")),
        ("none", (5,), (*FEEDBACKS["scores"], *MODELS["states"])),
        ("some", (5,), ("reward.lag=true", *FEEDBACKS["ratings"])),
        ("none", (5,), (*FEEDBACKS["ladder"], "reward.lag=true")),
        (
            *("none", (5,)),
            (*MODELS["cnn"], "reward.feedback.sampler=k_center_entropy", "reward.fitting.reset_weights=false"),
        ),
        ("none", (1, 5), PICTURES),
    ],
    ids=["pairs", "lag", "lag-equal", "lag-scores", "scores-states", "lag-ratings", "lag-ladder", "cnn", "pictures"],
)
def test_resuming_from_any_checkpoint(
    train: Callable[..., Path],
    sightline: Sightline,
    tmp_path: Path,
    arguments: tuple[str, ...],
    lost: str,
    keeps: tuple[int, ...],
) -> None:
    """Whatever was labelled after the checkpoint is remembered, or asked again with the same answers.

    Before the first lesson, which is after two checkpoints, all kinds of feedback are in the same state.
    """
    options = (*arguments, "checkpoints.keep=20", "checkpoints.every=32")
    whole = train(*options, name="run").rename(tmp_path / "whole")
    for keep in keeps:
        run = cut(whole, tmp_path / "run", keep)
        saved = int(newest_checkpoint(run).name.rpartition("-")[2])
        lose(run / "labels", lost, after=saved - 64 if "reward.lag=true" in arguments else saved)
        done = sightline("train", "--run-dir", run, "--resume", "--trust")
        assert done.code == 0, done.err
        check_equal(run, whole)
        shutil.rmtree(run)


def check_equal(run: Path, whole: Path) -> None:
    assert numbers(run) == numbers(whole), "bit for bit"
    assert result_of(run) == result_of(whole)
    assert same(source_of(run), source_of(whole))
    mine, theirs = replay_of(run), replay_of(whole)
    assert all(np.array_equal(mine[name], theirs[name], equal_nan=name == "rewards") for name in theirs)
    with LabelStore(run / "labels") as ours, LabelStore(whole / "labels") as others:
        labels, expected = ours.labels(), others.labels()
    assert len({label.key for label in labels}) == len(labels), "nothing was asked twice"
    assert {(label.key, label.answer.value, label.context.step) for label in labels} == {
        (label.key, label.answer.value, label.context.step) for label in expected
    }


LONG = (
    *("steps=640", "envs=4", "episode_steps=37", "videos=false", "tensorboard=false", "learner.chunk=8"),
    *("learner.gradient_steps=4", "learner.batch_size=16", "learner.learning_starts=64", "learner.buffer_size=300"),
    *("checkpoints.every=64", "evaluation.every=320", "evaluation.episodes=1", "evaluation.test_episodes=1"),
    *("reward.explore=100", "reward.every=80", "reward.questions=8", "reward.pool=40", "reward.fitting.epochs=4"),
    *("reward.fitting.ensemble=2", "reward.reset_updates=10", "reward.budget.questions=60", "reward.segment=2"),
)


def wait_for_checkpoints(run: Path, count: int, process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + 600
    while len(list((run / "checkpoints").glob("step-*/manifest.json"))) < count:
        assert process.poll() is None, f"ended too early: {process.communicate()}"
        assert time.monotonic() < deadline
        time.sleep(0.005)


@pytest.mark.parametrize(("number", "lag"), [(signal.SIGKILL, "true"), (signal.SIGTERM, "false")])
def test_killed_and_resumed(
    sightline: Sightline,
    sightline_process: Callable[..., Any],
    tmp_path: Path,
    number: signal.Signals,
    lag: str,
) -> None:
    options = (*LONG, f"reward.lag={lag}")
    run, whole = (tmp_path / name / "run" for name in ("killed", "whole"))
    process = sightline_process("train", RECIPE, *options, "--run-dir", run)
    wait_for_checkpoints(run, 2, process)
    if number == signal.SIGKILL:
        os.killpg(process.pid, number)
    else:
        process.send_signal(number)
    _, err = process.communicate(timeout=600)
    assert process.returncode == (-9 if number == signal.SIGKILL else 143), err
    assert not (run / "result.json").exists()
    done = sightline("train", RECIPE, *options, "--run-dir", run, "--resume")
    assert done.code == 0, done.err
    assert "resuming from step" in done.err
    done = sightline("train", RECIPE, *options, "--run-dir", whole)
    assert done.code == 0, done.err
    check_equal(run, whole)


# -- does it learn? ---------------------------------------------------------------------------------------------------


@pytest.mark.learning
def test_preferences_teach_a_policy_to_balance(sightline: Sightline, tmp_path: Path) -> None:
    shorter = ("steps=3000", "reward.explore=600", "reward.every=600", "videos=false", "tensorboard=false")
    small = ("evaluation.every=600", "evaluation.episodes=3", "evaluation.test_episodes=10", "checkpoints.every=9000")
    learner = ("learner.hidden=[64,64]", "learner.batch_size=64")
    done = sightline("train", RECIPE, *shorter, *small, *learner, "--run-dir", tmp_path / "run")
    assert done.code == 0, done.err
    result, (first, *_, last) = result_of(tmp_path / "run"), lessons(tmp_path / "run")
    assert first["labels/accuracy"] >= 0.85, "the teacher sees what matters"
    assert last["reward/held_out_accuracy"] >= 0.9
    assert last["reward/rank_correlation"] >= 0.7
    untrained = result["untrained"]["return"]
    assert untrained < -600
    assert result["return"] > 0.2 * untrained, "four fifths of the way to a pole that never leans"
