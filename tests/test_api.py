"""The public Python API: it is complete, lazy, documented, and does what the commands do."""

from __future__ import annotations

import json
import random
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from enum import Enum
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch

import sightline as sl
from conftest import Finished
from sightline.labels.store import Context
from sightline.labels.types import Outcome, Question, Segment, preference
from sightline.runs.metrics import read_metrics
from sightline.runs.stopping import Stopped
from small_envs import Clock

Sightline = Callable[..., Finished]
SMALL: dict[str, Any] = {
    "steps": 256,
    "learner.learning_starts": 64,
    "learner.gradient_steps": 8,
    "evaluation.episodes": 2,
    "evaluation.test_episodes": 2,
    "evaluation.every": 256,
    "checkpoints.every": 128,
    "videos": False,
    "tensorboard": False,
}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> sl.Run:
    """A tiny run that kept its embeddings."""
    folder = tmp_path_factory.mktemp("api") / "run"
    return sl.train("cartpole", run_dir=folder, progress=False, **SMALL, **{"reward.keep_embeddings": True})


def test_every_public_name_is_there_and_documented() -> None:
    for name in sl.__all__:
        assert name == "__version__" or getattr(sl, name).__doc__, name
    assert set(sl.__all__) <= set(dir(sl))
    with pytest.raises(AttributeError, match="no attribute 'wrapp'"):
        sl.wrapp  # type: ignore[attr-defined]  # noqa: B018


def test_importing_it_imports_nothing_heavy() -> None:
    said = "import sys, sightline; print(sorted({m.partition('.')[0] for m in sys.modules}))"
    loaded = subprocess.run([sys.executable, "-c", said], capture_output=True, text=True, check=True).stdout
    for heavy in ("numpy", "torch", "pydantic", "gymnasium", "typing_extensions", "typer"):
        assert f"'{heavy}'" not in loaded


def test_a_run_from_python_is_that_of_the_command(run: sl.Run, sightline: Sightline, tmp_path: Path) -> None:
    stated = [f"{key}={json.dumps(value)}" for key, value in SMALL.items()]
    done = sightline("train", "cartpole", *stated, "reward.keep_embeddings=true", "--run-dir", tmp_path / "run")
    assert done.code == 0

    def numbers(path: Path) -> list[dict[str, Any]]:
        return [{k: v for k, v in one.items() if not k.startswith("time/")} for one in read_metrics(path)]

    assert numbers(run.path / "metrics.jsonl") == numbers(tmp_path / "run" / "metrics.jsonl") != []
    assert "sightline.train('cartpole'" in (run.path / "command.txt").read_text()


def test_what_a_run_offers(run: sl.Run) -> None:
    assert (run.recipe.env, run.recipe.steps) == ("cartpole", 256)
    assert run.metrics()[-1]["step"] == 256
    actions, _ = run.policy().predict(np.zeros((3, 4), np.float32), deterministic=True)
    assert actions.shape == (3,)
    frames = np.random.default_rng(0).integers(0, 256, (2, 64, 64, 3), np.uint8)
    assert run.reward()(frames).shape == (2,)
    again = run.evaluate(episodes=2)
    assert {key: again[key] for key in ("success_rate", "return", "reward")} == {
        key: run.result[key] for key in ("success_rate", "return", "reward")
    }
    assert run.report().is_file()
    alone = sl.evaluate(run.policy(), "cartpole", episodes=2, reward=run.reward(), score_every=4)
    assert (alone["return"], alone["reward"]) == (again["return"], pytest.approx(again["reward"], abs=1e-6))


def test_relabelling_is_scoring_again(run: sl.Run, sightline: Sightline) -> None:
    stored = run.stored_rewards()
    same: Any = run.relabel(run.recipe.goal, run.recipe.baseline, alpha=run.recipe.reward.alpha)  # type: ignore[union-attr]
    assert same.shape == stored.shape == (32, 8)
    np.testing.assert_allclose(same, stored, atol=2e-3)  # embeddings are kept in float16
    other: Any = run.relabel("the cart at the right edge", "pole and cart")
    assert not np.allclose(other, stored, atol=0.05)
    said = sightline(
        "relabel", run.path, "--goal", "the cart at the right edge", "--baseline", "pole and cart", "--json"
    )
    np.testing.assert_allclose(json.loads(said.out)["rewards"], other, atol=1e-6)


def test_learning_from_stored_transitions_alone(
    run: sl.Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sightline: Sightline
) -> None:
    from sightline.control.collection import CollectingVecEnv

    monkeypatch.setattr(CollectingVecEnv, "step_wait", lambda self: pytest.fail("nothing is collected"))
    words = ("the cart at the right edge", "pole and cart")
    whole: Any = run.relabel(*words, train=True, run_dir=tmp_path / "whole", progress=False, steps=512)
    assert whole.result["chosen_step"] in (256, 512)
    assert len({one.get("train/loss") for one in whole.metrics() if "train/loss" in one}) > 2, "it learns"
    # Half of it, then the rest, is the same: exact resume without any environment.
    part: Any = run.relabel(*words, train=True, run_dir=tmp_path / "part", progress=False, steps=256)
    assert sightline("train", "--run-dir", part.path, "--resume", "steps=512").code == 0
    first, second = whole.policy().policy.state_dict(), sl.Run(part.path).policy().policy.state_dict()
    assert part.path != whole.path and {*first} == {*second}


def test_what_cannot_be_relabelled(run: sl.Run, tmp_path: Path) -> None:
    with pytest.raises(sl.BadInput, match="same words"):
        run.relabel("a pole", "a pole")
    plain = sl.train("cartpole", run_dir=tmp_path / "plain", progress=False, **SMALL)
    with pytest.raises(sl.BadInput, match="keep_embeddings"):
        plain.relabel("a pole")
    with pytest.raises(sl.BadInput, match="keep_embeddings"):
        plain.relabel("a pole", train=True, run_dir=tmp_path / "new")
    assert not (tmp_path / "new").exists()
    # A new recipe that reads what the run kept has to keep it, too.
    with pytest.raises(sl.BadInput, match=r"^replay: .*; say reward.keep_embeddings=true$"):
        sl.train("cartpole", replay=str(run.path), run_dir=tmp_path / "new", progress=False, **SMALL)
    assert not (tmp_path / "new").exists()
    with pytest.raises(sl.BadInput, match=r"^trian: these are for the run that learns .*; add train=True$"):
        run.relabel("a pole", trian=True)
    with pytest.raises(sl.BadInput, match="not a run folder"):
        sl.Run(tmp_path / "nothing")
    with pytest.raises(sl.BadInput, match="unknown key 'stepps'"):
        sl.train("cartpole", stepps=3)
    with pytest.raises(sl.BadInput, match="run_dir"):
        sl.train("cartpole", resume=True)


def test_a_run_is_resumed_with_its_own_recipe(run: sl.Run, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(run.path, folder)
    for recipe, said in (
        (("cartpole", {"goal": "the cart at the right edge"}), "started with goal="),
        (("cartpole", {"seed": 4}), "started with seed=0, not 4"),
        (({"env": "CartPole-v1", "goal": "a dog"}, {}), "started with env='cartpole', not 'CartPole-v1'"),
    ):
        with pytest.raises(sl.BadInput, match=said):
            sl.train(recipe[0], run_dir=folder, resume=True, **recipe[1])  # type: ignore[arg-type]
    assert sl.Run(folder).recipe == run.recipe
    for recipe in ("cartpole", None):
        again = sl.train(recipe, run_dir=folder, resume=True, progress=False)
        assert again.recipe.steps == 256, "a bundled recipe's own number of steps is not stated"
        assert again.result | {"seconds": 0} == run.result | {"seconds": 0}
    with pytest.raises(sl.BadInput, match="started with seed=0, not 4"):
        sl.train(run_dir=folder, resume=True, seed=4)  # a key of the run's own recipe
    longer = sl.train(run_dir=folder, resume=True, progress=False, steps=384, seed=0)
    assert longer.recipe.steps == 384
    assert (folder / "result-256.json").is_file()


API: Any = sl
"""The same, without the types that refuse what is tried."""


class Colour(Enum):
    """Something that people keep their settings in."""

    RED = "red"


@pytest.fixture
def begun(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The recipes of runs that would be carried out."""
    recipes: list[Any] = []

    def note(recipe: Any, *rest: Any, **options: Any) -> Any:
        recipes.append(recipe)
        raise Stopped(signal.SIGINT, None)

    monkeypatch.setattr("sightline.roles.train", note)
    return recipes


def test_settings_may_be_numpys_numbers_and_paths(begun: list[Any], tmp_path: Path) -> None:
    """They ended in `PydanticSerializationError`, where a recipe is written."""
    options = {
        "gravity": np.float32(2),
        "size": np.array([3, 4]),
        "map": tmp_path,
        "colour": Colour.RED,
        "parts": ({},),
    }
    with pytest.raises(KeyboardInterrupt):
        sl.train("cartpole", steps=np.int64(640), **{"learner.options": options})
    plain = {"gravity": 2.0, "size": [3, 4], "map": str(tmp_path), "colour": "red", "parts": [{}]}
    assert begun[0].learner.options == plain and type(begun[0].learner.options["gravity"]) is float
    assert begun[0].steps == 640


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: API.train("cartpole", env_options={"a": {"f": len}}), r"env_options\.a\.f: .* and builtin_function_"),
        (lambda: API.train("cartpole", run_dir=5), "^run_dir must be the path of a folder, not int$"),
        (lambda: API.train(run_dir=b"runs", resume=True), "^run_dir must be the path of a folder, not bytes$"),
        (lambda: API.train(Clock, goal="a clock"), "a path or a mapping, not Clock; an environment is given by env="),
        (lambda: API.train(["cartpole"]), "a path or a mapping, not list;"),
        (lambda: API.Run(None), "^path must be the path of a folder, not NoneType$"),
        (lambda: API.ZeroShotReward("a pole \udcff"), "^goal is not text in UTF-8$"),
        (
            lambda: API.ZeroShotReward("a pole\n" * 30),
            "^encoder 'bundled' reads 20 tokens of a sentence: of 'a pole a pole",
        ),
        (lambda: API.ZeroShotReward("a pole", alpha="0.5"), r"^alpha must be a number in \[0, 1\], not str$"),
        (lambda: API.fit_reward([], seed="a"), "^seed must be a whole number from 0 to .*, not 'a'$"),
        (lambda: API.text_game(5), "^text_game: give what makes an environment, or its id, not int$"),
        (lambda: API.evaluate(len, "cartpole", episodes=np.float32(2)), "say a whole number, at least 1"),
        (lambda: API.evaluate(len, "cartpole", seed=True), "^seed=True: say a whole number, at least 0$"),
    ],
)
def test_other_types_are_refused_in_one_line(make: Callable[[], Any], said: str, begun: list[Any]) -> None:
    with pytest.raises(sl.BadInput, match=said) as refused:
        make()
    assert "\n" not in str(refused.value)


def test_signs_that_the_encoder_does_not_know_are_told_as_words_are() -> None:
    with pytest.warns(UserWarning, match="does not know the word '🚀🚀'"):
        sl.ZeroShotReward("🚀🚀", "a pole")


def test_a_panels_numbers_may_be_numpys(run: sl.Run) -> None:
    assert run.evaluate(np.int64(2), np.int32(1))["episodes"] == 2  # type: ignore[arg-type]


def test_a_stop_is_an_interrupt_that_says_where_it_was_saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stopped(*arguments: Any, **options: Any) -> Any:
        raise Stopped(signal.SIGINT, 300)

    monkeypatch.setattr("sightline.roles.train", stopped)
    with pytest.raises(KeyboardInterrupt, match="stopped by SIGINT; saved at step 300; go on with train"):
        sl.train("cartpole", run_dir=tmp_path / "run")


class RaisedAtTheEnd(Clock):
    """States its success as some environments do: at an episode's last step only."""

    def step(self, action: Any) -> Any:
        state, reward, terminated, truncated, _ = super().step(action)
        return state, reward, terminated, truncated, {"is_success": True} if terminated else {}


def at_the_end(render_mode: str | None = None) -> gymnasium.Env[Any, Any]:
    return RaisedAtTheEnd(render_mode)


class Success(sl.RewardModel):
    """Success of the states reached."""

    needs = frozenset()

    def score(self, features: np.ndarray, clip: sl.Clip) -> np.ndarray:
        return np.zeros(clip.shape, np.float32) if clip.success is None else clip.success.astype(np.float32)


def test_success_may_be_stated_at_the_end_of_an_episode_only(tmp_path: Path) -> None:
    numbers = sl.evaluate(lambda states: np.zeros(len(states), int), at_the_end, episodes=30, reward=Success())
    assert numbers["success_rate"] == 1.0
    assert 0 < numbers["reward"] < 1, "one step of each episode"
    small = SMALL | {"learner.chunk": 7, "episode_steps": 20}
    run = sl.train({"env": f"{__name__}:at_the_end", "reward": {"kind": "sparse"}}, run_dir=tmp_path, **small)
    assert 0 < np.mean([one["rollout/reward"] for one in run.metrics() if "rollout/reward" in one]) < 1
    assert run.policy() is not None, "what was just trained may be loaded without saying so"


def test_evaluating_a_policy_is_as_the_run_does_it(run: sl.Run) -> None:
    own = run.evaluate(3)
    mine = sl.evaluate(run.policy(), "cartpole", episodes=3, reward=run.reward(), score_every=4)
    assert {key: mine[key] for key in ("panel", "return", "success_rate")} == {
        key: own[key] for key in ("panel", "return", "success_rate")
    }
    assert mine["reward"] == pytest.approx(own["reward"], abs=1e-6)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"episodes": 0}, "episodes=0: say a whole number, at least 1"),
        ({"episodes": "3"}, "episodes='3'"),
        ({"seed": -1}, "seed=-1"),
        ({"env": None}, "a name or a function that makes one, not NoneType"),
        ({"env": lambda: Clock()}, "a function that has one"),
        ({"env": Clock()}, "not Clock"),
        ({"policy": None}, "a function of states, or have a method predict, not NoneType"),
        ({"policy": lambda states: np.zeros(3)}, r"gave actions of shape \[3\] for 2 states"),
        ({"reward": "pole"}, "must be a RewardModel, not str"),
    ],
)
def test_what_cannot_be_evaluated_is_said_in_one_line(change: dict[str, Any], said: str) -> None:
    stated: dict[str, Any] = {"policy": lambda states: np.zeros(len(states), int), "env": at_the_end, "episodes": 2}
    with pytest.raises(sl.BadInput, match=said):
        sl.evaluate(**(stated | change))


def test_a_run_is_not_a_policy(run: sl.Run) -> None:
    with pytest.raises(sl.BadInput, match=r"run\.policy"):
        sl.evaluate(run, "cartpole")
    with pytest.raises(sl.BadInput, match="episodes=0"):
        run.evaluate(0)


def test_looking_at_a_run_leaves_the_process_as_it_was(run: sl.Run) -> None:
    def drawn(look: Callable[[], Any]) -> list[float]:
        random.seed(5), np.random.seed(5), torch.manual_seed(5)
        look()
        return [random.random(), float(np.random.rand()), float(torch.rand(1))]

    expected = drawn(lambda: None)
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        for look in (run.policy, run.reward, run.stored_rewards, lambda: run.evaluate(1)):
            assert drawn(look) == expected
            assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(threads)


def test_teachers_labels_and_a_fitted_reward(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    frames = np.zeros((40, 64, 64, 3), np.uint8)
    worth = rng.permutation(40)
    for frame, bright in zip(frames, worth, strict=True):
        frame[:, : 1 + bright] = 255  # a white bar that grows
    pairs = [(frames[a], frames[b]) for a, b in (rng.choice(40, 2, replace=False) for _ in range(80))]
    teacher = sl.EncoderTeacher(sl.ZeroShotReward("pole and cart"))
    answers = teacher.compare(pairs, "pole and cart")
    assert {answer.outcome.value for answer in answers} <= {"first", "second", "equal"}
    truth = [float(b.sum() > a.sum()) for a, b in pairs]
    reward = sl.fit_reward(list(zip(pairs, truth, strict=True)), epochs=30)
    assert np.corrcoef(reward(frames), worth)[0, 1] > 0.8
    reward.save(tmp_path / "reward")
    assert {file.name for file in (tmp_path / "reward").iterdir()} == {"config.json", "model.safetensors"}
    np.testing.assert_array_equal(sl.LearnedReward.load(tmp_path / "reward")(frames), reward(frames))
    with pytest.raises(sl.BadInput, match="holds no learned reward"):
        sl.LearnedReward.load(tmp_path / "reward" / "nothing")
    with pytest.raises(sl.BadInput, match="no usable pairs"):
        sl.fit_reward([])


FRAME = np.zeros((64, 64, 3), np.uint8)
PAIR = (FRAME, FRAME)
WRONG_LABELS: dict[str, tuple[Any, dict[str, Any], str]] = {
    "value beyond": ((PAIR, 2.0), {}, r"from 0 to 1 \(0 first, 1 second, 0.5 equal\), not 2.0"),
    "negative value": ((PAIR, -1.0), {}, "not -1.0"),
    "no number": ((PAIR, float("nan")), {}, "not nan"),
    "word": ((PAIR, "second"), {}, "not 'second'"),
    "nothing": ((PAIR, None), {}, "not None"),
    "wrong answer": ((PAIR, sl.Answer(Outcome.VALUE, 0.7)), {}, "outcome 'value' with value 0.7 is no answer"),
    "no answer": (PAIR, {}, "the answer must be a number"),
    "one element": ((PAIR,), {}, r"must be \(segments, answer\)"),
    "score beyond": (([FRAME], 7), {"feedback": "scores"}, "from 0 to 1, not 7"),
    "level beyond": (([FRAME], 9), {"feedback": "ratings"}, r"from 0 to 2 \(the level\), not 9"),
    "three segments": (((FRAME, FRAME, FRAME), 1.0), {}, "about two segments, .*, not 3"),
    "one segment": (((FRAME,), 1.0), {}, "about two segments, .*, not 1"),
    "pair for a score": ((PAIR, 1.0), {"feedback": "scores"}, "about one segment, .*, not 2"),
    "floats": (((FRAME / 255, FRAME / 255), 1.0), {"model": "cnn"}, r"not float64\[64, 64, 3\]"),
    "whole numbers": (((FRAME.astype(int), FRAME), 1.0), {}, "not int64"),
    "grey": (((FRAME[..., 0], FRAME), 1.0), {}, r"not uint8\[64, 64\]"),
    "transparent": (((np.zeros((64, 64, 4), np.uint8), FRAME), 1.0), {}, "a segment must be"),
    "channels first": (((FRAME.transpose(2, 0, 1), FRAME), 1.0), {}, r"not uint8\[3, 64, 64\]"),
    "no steps": (((FRAME[None][:0], FRAME), 1.0), {}, r"not uint8\[0, 64, 64, 3\]"),
}


@pytest.mark.parametrize(("label", "options", "why"), WRONG_LABELS.values(), ids=WRONG_LABELS)
def test_labels_that_are_none_are_not_learned_from(label: Any, options: dict[str, Any], why: str) -> None:
    good = ((FRAME,), 0.0) if "feedback" in options else (PAIR, 0.0)
    with pytest.raises(sl.BadInput, match=f"^label 2.* {why}|^label 2 {why}") as refusal:
        sl.fit_reward([good, label], **options)
    assert "\n" not in str(refusal.value)


def test_what_a_reward_cannot_be_fitted_with() -> None:
    with pytest.raises(sl.BadInput, match="seed must be a whole number from 0"):
        sl.fit_reward([(PAIR, 1.0)], seed=-1)
    with pytest.raises(sl.BadInput, match=r"model: cannot be 'cn', only embeddings, cnn, resnet, .*did you mean 'cnn'"):
        sl.fit_reward([(PAIR, 1.0)], model="cn")
    with pytest.raises(sl.BadInput, match="has no 'epoch'; did you mean 'epochs'"):
        sl.fit_reward([(PAIR, 1.0)], epoch=3)
    with pytest.raises(sl.BadInput, match="leave it out for a list"):
        sl.fit_reward([(PAIR, 1.0)], goal="a pole")
    with pytest.raises(sl.BadInput, match="not int"):
        sl.fit_reward(5)  # type: ignore[arg-type]


def test_ties_of_a_list_are_set_aside_where_they_do_not_teach() -> None:
    ties: Any = [(PAIR, 0.5), (PAIR, sl.Answer(Outcome.EQUAL, 0.5)), (PAIR, sl.Answer(Outcome.UNSURE))]
    with pytest.raises(sl.BadInput, match="no usable pairs"):
        sl.fit_reward(ties, feedback={"kind": "pairs", "ties": False})
    sl.fit_reward(ties, epochs=1)
    sl.fit_reward([(PAIR, np.bool_(True)), (np.stack(PAIR), 0.7)], epochs=1)  # what is clear enough is taken


def test_a_store_is_read_and_never_made(tmp_path: Path) -> None:
    for place in (tmp_path / "nothing" / "labels", tmp_path):
        with pytest.raises(sl.BadInput, match="neither a run nor a label store"):
            sl.fit_reward(place)
    assert not list(tmp_path.iterdir())
    store = tmp_path / "run" / "labels"
    frames = np.random.default_rng(0).integers(0, 256, (4, 1, 64, 64, 3), np.uint8)
    segments = [Segment(shown, np.zeros(1, np.float32)) for shown in frames]
    teacher, here = sl.ScriptedTeacher(), Context("run", "task")
    with sl.LabelStore(store) as opened:
        for goal in ("a", "b"):
            opened.record(Question("compare", (segments[0], segments[1]), (goal,)), teacher, preference(1.0), here)
        opened.record(Question("rate", (segments[0],), ("a",), 5), teacher, sl.Answer(Outcome.VALUE, 4.0), here)
    before = {file: file.stat().st_mtime_ns for file in store.rglob("*.*") if "-" not in file.name}
    with pytest.raises(sl.BadInput, match="for several goals, 'a', 'b'; say which: goal=…"):
        sl.fit_reward(store)
    with pytest.raises(sl.BadInput, match="no pairs for the goal 'c', only for 'a', 'b'"):
        sl.fit_reward(store, goal="c")
    for place in (store, str(store), store.parent):
        sl.fit_reward(place, goal="b", epochs=1)
    with pytest.raises(sl.BadInput, match=r"these ratings are on 5 levels, not on 3; say feedback=\{.*'levels': 5\}"):
        sl.fit_reward(store, feedback="ratings")
    sl.fit_reward(store, feedback={"kind": "ratings", "levels": 5}, epochs=1)
    assert before == {file: file.stat().st_mtime_ns for file in store.rglob("*.*") if "-" not in file.name}
    with sl.LabelStore(store) as opened:  # on two numbers of levels, the one that is said
        opened.record(Question("rate", (segments[0],), ("a",), 3), teacher, sl.Answer(Outcome.VALUE, 2.0), here)
        with pytest.raises(sl.BadInput, match="on 3 and 5 levels"):
            sl.fit_reward(opened, feedback="ratings")
        sl.fit_reward(opened, feedback={"kind": "ratings", "levels": 3}, epochs=1)


def test_names_are_registered_once() -> None:
    with pytest.raises(sl.BadInput, match="there is a reward 'sparse' already"):
        sl.register("reward", "sparse", object())
    with pytest.raises(sl.BadInput, match="no plug-ins of kind 'rewards'; did you mean 'reward'"):
        sl.register("rewards", "mine", object())  # type: ignore[arg-type]
