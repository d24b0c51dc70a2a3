"""Code that a recipe names: classes given from Python, files of code, and blocks of a user's own."""

from __future__ import annotations

import functools
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import gymnasium
import pytest
import yaml
from gymnasium.envs.classic_control.cartpole import CartPoleEnv

import sightline as sl
from conftest import TINY, Finished
from sightline.config.loading import load_recipe
from sightline.config.named_code import code_at, place_of, split_place
from sightline.errors import BadInput
from small_envs import Clock

Sightline = Any
FILE = '''
"""A file of a user's own."""
import numpy as np
import sightline as sl
from small_envs import Clock


class Mine(Clock):
    pass


class Bright(sl.RewardModel):
    """How near pictures are to a brightness."""

    def __init__(self, target=0.5):
        self.target = target

    def reward(self, clip):
        return -abs(np.asarray(clip.frames).mean(axis=(2, 3, 4)) / 255 - self.target).astype(np.float32)


class Worded(Bright):
    def __init__(self, goal, baseline=()):
        super().__init__(len(goal) / 10)


class Outer:
    class Inner(Clock):
        pass
'''


@pytest.fixture
def mine(sightline: Sightline) -> Path:
    """A file of code in the working folder."""
    Path("mine.py").write_text(FILE)
    return Path("mine.py")


def line(make: Any, *arguments: Any, **options: Any) -> str:
    with pytest.raises(sl.BadInput) as caught:
        make(*arguments, **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


# -- from a class to a name --------------------------------------------------------------------------------------------


def test_a_class_of_a_module_is_named_by_it() -> None:
    name = "gymnasium.envs.classic_control.cartpole:CartPoleEnv"
    assert load_recipe({"env": CartPoleEnv, "reward": {"kind": "sparse"}}).env == name
    assert load_recipe(None, {"env": CartPoleEnv, "reward.kind": "sparse"}).env == name


def nested() -> Any:
    class Hidden(Clock):
        pass

    return Hidden


def typed_at_a_prompt() -> Any:
    main = sys.modules["__main__"]
    main.Prompted = type("Prompted", (Clock,), {"__module__": "__main__"})  # type: ignore[attr-defined]
    return main.Prompted


def under_another_name() -> Any:
    return type("Other", (Clock,), {"__module__": "small_envs"})


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (nested, "env: class 'Hidden' is defined inside a function, where no other process finds it; move it to"),
        (lambda: lambda: Clock(), "env: a lambda has no name by which a later process could find it; write a function"),
        (lambda: functools.partial(Clock, shade=2), "give what it calls, and its arguments as options"),
        (lambda: Clock("rgb_array"), "or a class or function that can be imported again, not an object of type Clock"),
        (lambda: gymnasium.make("CartPole-v1"), "env must name what makes an environment, and not be a"),
        (lambda: gymnasium.make("CartPole-v1"), "say env='CartPole-v1'"),
        (under_another_name, "env: class 'Other' is not what 'small_envs:Other' names"),
        (object, "not an object of type object"),
    ],
)
def test_what_cannot_be_named_again_is_said_in_one_line(make: Any, said: str) -> None:
    assert said in line(sl.train, env=make(), goal="a pole")
    assert said in line(sl.train, {"env": make(), "goal": "a pole"})


def test_a_class_of_a_notebook_is_told_to_be_saved(monkeypatch: pytest.MonkeyPatch) -> None:
    notebook = types.ModuleType("__main__")
    monkeypatch.setitem(sys.modules, "__main__", notebook)
    assert "was typed in a notebook or at a prompt" in line(sl.train, env=typed_at_a_prompt(), goal="a pole")


def test_a_class_beside_a_script_is_named_by_its_file(mine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A module that only this process finds, since its folder was put into `sys.path`."""
    Path("beside").mkdir()
    Path("beside/neighbour.py").write_text(FILE)
    monkeypatch.setattr(sys, "path", [str(Path("beside").resolve()), *sys.path])
    import neighbour  # type: ignore[import-not-found]

    assert place_of(neighbour.Mine, "env") == "beside/neighbour.py:Mine"
    assert place_of(neighbour.Outer.Inner, "env") == "beside/neighbour.py:Outer.Inner"
    del sys.modules["neighbour"]


SCRIPT = """
{file}

run = sl.train(
    env=Mine, reward={{"kind": Bright, "options": {{"target": 0.25}}}}, steps=64, envs=2, videos=False,
    learner={{"chunk": 8, "learning_starts": 16, "batch_size": 8, "buffer_size": 64, "algorithm": "DQN"}},
    evaluation={{"every": 32, "episodes": 2, "test_episodes": 2, "background": True}}, run_dir="run", progress=False,
    tensorboard=False,
)
print("trained once")
"""


def test_a_script_trains_with_its_own_classes_and_its_run_is_evaluated(sightline: Sightline) -> None:
    """The process of the evaluation imports the script up to where it trains, and so does the command."""
    Path("script.py").write_text(SCRIPT.format(file=FILE))
    paths = f"{Path(__file__).parent}:{Path(sl.__file__).parents[1]}"
    done = subprocess.run(
        [sys.executable, "script.py"], capture_output=True, text=True, env={"PYTHONPATH": paths}, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "trained once\n"
    recipe = yaml.safe_load(Path("run/recipe.yaml").read_text())
    assert recipe["env"] == "script.py:Mine"
    assert recipe["reward"] == {"kind": "script.py:Bright", "options": {"target": 0.25}}
    played = sightline("evaluate", "run", "--episodes", 2, "--trust")
    assert played.code == 0 and "reward -0.2" in played.out, played


# -- from a name to a class --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("mine:Mine", ("mine", "Mine")),
        ("a/mine.py:Mine", ("a/mine.py", "Mine")),
        ("/a:b/mine.py:Outer.Inner", ("/a:b/mine.py", "Outer.Inner")),
        ("mine.py", ("mine.py", "")),
        ("CartPole-v1", ("CartPole-v1", "")),
        (":", ("", "")),
    ],
)
def test_the_parts_of_a_name(name: str, parts: tuple[str, str]) -> None:
    assert split_place(name) == parts


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("mine.py", "env='mine.py' is a file; say which class or function of it: env=mine.py:Class"),
        ("mine.py:Nine", "file 'mine.py' has no 'Nine'; did you mean 'Mine'?"),
        ("mine.py:Bright", "'mine.py:Bright' is neither a subclass of gymnasium.Env nor a function"),
        ("none.py:Mine", "there is no file 'none.py'"),
        ("broken.py:Mine", "cannot import 'broken.py': ZeroDivisionError: division by zero (broken.py:1)"),
        ("part.py:Mine", "it belongs to a package: name it as package.module"),
        ("a/mine:Mine", "'a/mine' is neither a module nor a Python file"),
    ],
)
def test_a_file_that_cannot_be_used_says_why(mine: Path, sightline: Sightline, name: str, said: str) -> None:
    Path("broken.py").write_text("1 / 0\n")
    Path("part.py").write_text("from . import other\n")
    done = sightline("train", f"env={name}", "reward.kind=sparse")
    assert (done.code, len(done.lines)) == (2, 1) and said in done.err, done.err


def test_a_file_is_trained_resumed_and_trusted_as_modules_are(mine: Path, sightline: Sightline) -> None:
    said = ("env=mine.py:Outer.Inner", "reward.kind=sparse", "learner.algorithm=DQN", *TINY)
    assert sightline("train", *said, "--run-dir", "run").code == 0
    refused = sightline("evaluate", "run")
    assert refused.code == 2 and "names code of its own (env=mine.py:Outer.Inner)" in refused.err
    assert sightline("evaluate", "run", "--trust", "--episodes", 2).code == 0
    assert sightline("train", *said, "--run-dir", "run", "--resume").code == 0


# -- blocks ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("place", ["mine:Bright", "mine.py:Bright", "mine:Worded"])
def test_a_reward_model_of_a_users_own_trains(mine: Path, sightline: Sightline, place: str) -> None:
    options = () if place.endswith("Worded") else ("reward.options.target=0.25",)
    said = ("env=small_envs:Clock", f"reward.kind={place}", *options, "goal=a pole", "learner.algorithm=DQN", *TINY)
    done = sightline("train", *said, "--run-dir", "run")
    assert done.code == 0, done.err
    assert yaml.safe_load(Path("run/recipe.yaml").read_text())["reward"]["kind"] == place
    again = sightline("train", *said, "steps=320", "--run-dir", "run", "--resume")
    assert again.code == 0, again.err
    assert sightline("report", "run").code == 0


def test_a_block_of_a_users_own_is_named_too(sightline: Sightline) -> None:
    recipe = load_recipe(None, ["env=cartpole", "reward.kind=third_party:BrightnessConfig"])
    assert recipe.reward.kind == "third_party:BrightnessConfig"
    assert load_recipe(recipe.model_dump(mode="json")) == recipe, "as it is written into a run"


@pytest.mark.parametrize(
    ("key", "said"),
    [
        ("reward.kind=mine:Mine", "reward: 'mine:Mine' is neither a subclass of sl.RewardModel nor a recipe block"),
        ("reward.kind=mine:None_", "reward: 'mine' has no 'None_'"),
        ("reward.kind=no_such_module:Mine", "reward: cannot import 'no_such_module'"),
        ("reward.kind=mine:Bright reward.options.targt=1", "got an unexpected keyword argument 'targt'"),
        ("reward.kind=mine:Bright reward.alpha=1", "unknown key 'reward.alpha'"),
        ("reward.kind=third_party:Missing", "'third_party' has no 'Missing'"),
        ("reward.kind=sightline.rewards.base:OnlineRewardModel", "learns in the run"),
        (
            "reward.kind=sightline.preferences.feedback.pairs:PairsConfig",
            "is no reward, whose blocks are subclasses of",
        ),
    ],
)
def test_what_is_no_block_is_said_in_one_line(mine: Path, sightline: Sightline, key: str, said: str) -> None:
    done = sightline("train", "env=cartpole", *key.split())
    assert (done.code, len(done.lines)) == (2, 1) and said in done.err, done.err


def refusals(sightline: Sightline) -> list[Finished]:
    commands: list[tuple[str, ...]] = [
        ("evaluate", "run"),
        ("train", "--run-dir", "run", "--resume"),
        ("train", "--run-dir", "run", "--resume", "steps=512"),
        ("train", "run/recipe.yaml", "--run-dir", "run", "--resume"),
        ("train", "--run-dir", "run", "--resume-or-start"),
        ("relabel", "run", "--goal", "a pole"),
        ("label", "run", "run"),
        ("label", "stats", "run"),
    ]
    return [sightline(*command) for command in commands]


@pytest.mark.parametrize("where", ["reward", "reward.reward", "reward.teacher", "reward.feedback"])
def test_blocks_that_a_strangers_run_names_are_not_imported(sightline: Sightline, where: str) -> None:
    said = ("env=small_envs:Clock", "reward.kind=sparse", "learner.algorithm=DQN", *TINY)
    assert sightline("train", *said, "--run-dir", "run").code == 0
    evil = f"evil_{where.replace('.', '_')}"
    Path(f"{evil}.py").write_text("open('executed', 'w').close()\n")
    recipe = yaml.safe_load(Path("run/recipe.yaml").read_text())
    inner: dict[str, Any] = {"kind": f"{evil}:Reward"}
    for part in reversed(where.split(".")[1:]):
        inner = {"kind": "shaped" if part == "reward" else "learned", part: inner}
    Path("run/recipe.yaml").write_text(yaml.safe_dump(recipe | {"reward": inner}))
    for done in refusals(sightline):
        assert (done.code, len(done.lines)) == (2, 1), done.err
    assert "names code of its own" in sightline("evaluate", "run").err
    for call in (lambda: sl.Run("run").recipe, lambda: sl.train(run_dir="run", resume=True)):
        assert "--trust" in line(call)
    assert sightline("report", "run").code == 0
    assert not Path("executed").exists()
    sightline("evaluate", "run", "--trust")
    assert Path("executed").exists()


# -- Gymnasium's registry ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("order", ["gymnasium, sightline", "sightline, gymnasium"])
def test_our_environments_are_registered_with_gymnasium_in_either_order(order: str) -> None:
    program = (
        f"import sys, {order}\n"
        "env = gymnasium.make('sightline/NumberLine-v0')\n"
        "print(env.spec.id, 'torch' in sys.modules, [f for f in sys.meta_path if 'sightline' in str(f)])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "sightline/NumberLine-v0 False []\n" and not done.stderr


def test_a_file_alone_names_no_class(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text("")
    with pytest.raises(BadInput, match=r"names no function or class; say which: .*mine.py:NAME"):
        code_at(str(file))
    with pytest.raises(BadInput, match=r"reward.kind cannot be a file alone; say which class of it: my.py:CLASS"):
        load_recipe("cartpole", ["reward.kind=my.py"])
