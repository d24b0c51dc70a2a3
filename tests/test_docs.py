"""What the documents tell people to do works."""

from __future__ import annotations

import ast
import asyncio
import functools
import importlib
import importlib.util
import json
import re
import shlex
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import api_reference
import sightline as sl
from conftest import Finished, start_sightline
from sightline import registry
from sightline.agents.types import Turn
from sightline.config.loading import load_recipe
from sightline.config.recipe import ControlRecipe
from sightline.labels.types import Outcome
from sightline.models.chat.messages import ChatRequest
from sightline.rewards.base import Clip
from sightline.rewards.config import RewardContext
from sightline.teachers.chat import ChatTeacher

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
COMMANDS = [
    line.split("   #")[0].strip()
    for line in README.splitlines()
    if line.startswith("sightline train") and "my_module" not in line and "--resume" not in line
]


def sightline(arguments: list[str], folder: Path) -> Finished:
    process = start_sightline(*arguments, cwd=folder)
    out, err = process.communicate()
    return Finished(process.wait(), out, err)


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_of_the_readme_are_understood(command: str, tmp_path: Path) -> None:
    done = sightline([*shlex.split(command)[1:], "--dry-run"], tmp_path)
    assert done.code == 0, done.err


GUIDE = (ROOT / "docs" / "your-environment.md").read_text()


def test_the_commands_of_the_guide_are_understood(tmp_path: Path) -> None:
    (tmp_path / "reacher.py").write_text(re.findall(r"```python\n(.*?)```", GUIDE, flags=re.DOTALL)[0])
    text = GUIDE.replace("\\\n", " ")
    commands = [line for line in text.splitlines() if line.startswith("sightline train")]
    assert commands
    for command in commands:
        done = sightline([*shlex.split(command)[1:], "--dry-run"], tmp_path)
        assert done.code == 0, f"{command}: {done.err}"


def test_names_that_the_documents_use_are_public() -> None:
    used = 0
    for document in DOCUMENTS:
        text = document.read_text()
        names = set(re.findall(r"\bsl\.(\w+)", text))
        assert names <= set(sl.__all__), document.name
        for line in re.findall(r"^from sightline[\w.]* import .*$", text, flags=re.MULTILINE):
            exec(line, {})
        used += len(names)
    assert used >= 20


def test_the_guide_ends_well_without_a_network(tmp_path: Path) -> None:
    """One of its commands to train needs no model that would have to be fetched (here the bundled encoder stands in for
    the person); and it says what the other needs."""
    (tmp_path / "reacher.py").write_text(re.findall(r"```python\n(.*?)```", GUIDE, flags=re.DOTALL)[0])
    lines = GUIDE.replace("\\\n", " ").splitlines()
    (command,) = [line for line in lines if line.startswith("sightline train") and "reward.encoder" not in line]
    small = ["reward.explore=64", "reward.every=64", "reward.questions=8", "reward.teacher.kind=encoder", "steps=256"]
    small += ["evaluation.every=128", "reward.fitting.epochs=4"]
    small += ["envs=2", "learner.chunk=16", "videos=false", "tensorboard=false"]
    small += ["evaluation.episodes=2", "evaluation.test_episodes=2", "learner.gradient_steps=2", "episode_steps=50"]
    done = sightline([*shlex.split(command)[1:], *small], tmp_path)
    assert done.code == 0, done.err
    assert "sightline models --fetch" in GUIDE


PREFERENCES = (ROOT / "docs" / "preferences.md").read_text()


@pytest.mark.parametrize(
    "command",
    [
        line.split("   #")[0].strip().replace("=…", "=some-model").removesuffix(" --dry-run")
        for line in PREFERENCES.splitlines()
        if line.startswith("sightline train") and "my_module" not in line and "drawer-open" not in line
    ],
)
def test_commands_of_the_page_on_preferences_are_understood(command: str, tmp_path: Path) -> None:
    done = sightline([*shlex.split(command)[1:], "--dry-run"], tmp_path)
    assert done.code == 0, done.err


AGENTS = (ROOT / "docs" / "agents.md").read_text().replace("\\\n", " ")


@pytest.mark.parametrize(
    "command",
    [
        line.split("   #")[0].strip().replace("=…", "=some-model")
        for line in AGENTS.splitlines()
        if line.startswith("sightline train") and "my_module" not in line
    ],
)
def test_commands_of_the_page_on_agents_are_understood(command: str, tmp_path: Path) -> None:
    done = sightline([*shlex.split(command)[1:], "--dry-run"], tmp_path)
    assert done.code == 0, done.err


def test_there_are_commands_to_check() -> None:
    assert len(COMMANDS) >= 5


def test_links_of_the_documents_lead_somewhere() -> None:
    for document in DOCUMENTS:
        for target, heading in re.findall(r"\]\(([^)#]+)(?:#([^)]+))?\)", document.read_text()):
            if not target.startswith("http"):
                file = document.parent / target
                assert file.exists(), f"{document.name}: {target}"
                headings = re.findall(r"^#+ (.*)$", file.read_text(), flags=re.MULTILINE) if heading else []
                slugs = [re.sub(r"[^\w -]", "", text.lower()).replace(" ", "-") for text in headings]
                assert not heading or heading in slugs, f"{document.name}: {target}#{heading}"


def test_modules_that_the_documents_name_are_there() -> None:
    """Named as a path from the root or from the package, such as `runs/state.py`, or with dots."""
    for document in DOCUMENTS:
        text = document.read_text()
        for path in set(re.findall(r"`((?:\w+/)+(?:\w+\.py)?)(?=[`:])", text)):
            is_there = any((place / path).exists() for place in (ROOT, ROOT / "src", ROOT / "src" / "sightline"))
            assert is_there, f"{document.name}: {path}"
        for name in set(re.findall(r"\b(sightline(?:\.[a-z_]\w*)+)(?:\.[A-Z]\w*)?", text)):
            assert found(name), f"{document.name}: {name}"


def found(name: str) -> bool:
    """Whether a dotted name is a module, something in one, or a group of entry points."""
    if name.removeprefix("sightline.") in (*registry.BUILT_IN, "gymnasium", "recipes"):
        return True
    parent, _, last = name.rpartition(".")
    if hasattr(importlib.import_module(parent), last):
        return True
    return importlib.util.find_spec(name) is not None


def test_the_readme_is_short() -> None:
    assert words(README) <= 900
    assert words((ROOT / "docs" / "architecture.md").read_text()) <= 700


def words(text: str) -> int:
    """Words of Markdown; the bars and rules of tables, and other marks alone, are none."""
    return sum(any(letter.isalnum() for letter in word) for word in text.split())


def test_the_reference_of_the_public_names_is_that_of_the_docstrings() -> None:
    """`python tools/api_reference.py` writes it."""
    assert api_reference.PAGE.read_text(encoding="utf-8") == api_reference.page()
    named = [name for names in api_reference.GROUPS.values() for name in names]
    assert sorted(named) == sorted(set(sl.__all__) - {"__version__"})


def test_python_in_the_documents_is_python() -> None:
    for document in DOCUMENTS:
        for block in re.findall(r"```python\n(.*?)```", document.read_text(), flags=re.DOTALL):
            ast.parse(block)


def test_a_search_by_optuna(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The example of docs/runs.md, where a stand-in for Optuna asks for two trials of a small run."""
    (example,) = re.findall(
        r"```python\n(import optuna.*?)```", (ROOT / "docs" / "runs.md").read_text(), flags=re.DOTALL
    )
    values: list[float] = []

    class Trial:
        def __init__(self, number: int) -> None:
            self.number = number

        def suggest_float(self, name: str, low: float, high: float, log: bool) -> float:
            return low * 10**self.number

    def optimize(objective: Any, n_trials: int) -> None:
        values.extend(objective(Trial(number)) for number in range(n_trials // 10))

    optuna = SimpleNamespace(create_study=lambda **settings: SimpleNamespace(optimize=optimize), Trial=Trial)
    monkeypatch.setitem(sys.modules, "optuna", optuna)
    small = {"steps": 256, "evaluation.every": 128, "evaluation.episodes": 5, "evaluation.test_episodes": 20}
    monkeypatch.setattr(sl, "train", functools.partial(sl.train, progress=False, episode_steps=20, **small))
    monkeypatch.chdir(tmp_path)
    exec(example, {})
    runs = [sl.Run(tmp_path / "sweeps" / "search" / str(number)) for number in range(2)]
    assert [run.recipe.learner.learning_rate for run in runs] == [1e-4, 1e-3]
    assert len(values) == 2 and all(np.isfinite(values))


_EXAMPLES = re.findall(r'```python\n("""(\w+)\.py:.*?)```', (ROOT / "docs" / "plugins.md").read_text(), flags=re.DOTALL)
PLUGINS = {name: text for text, name in _EXAMPLES}


@pytest.fixture
def example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Imports an example of the page on plug-ins as a module of its own; what it registers is forgotten afterwards."""
    monkeypatch.setattr(registry, "_registered", {})
    monkeypatch.syspath_prepend(tmp_path)

    def load(name: str) -> Any:
        (tmp_path / f"{name}.py").write_text(PLUGINS[name])
        monkeypatch.delitem(sys.modules, name, raising=False)
        return importlib.import_module(name)

    return load


def test_every_kind_of_plug_in_has_an_example(example: Any) -> None:
    for name in PLUGINS:
        example(name)
    assert {kind for kind, _ in registry._registered} == set(registry.BUILT_IN)


def test_the_example_of_a_reward(example: Any) -> None:
    brightness = example("brightness")
    recipe = load_recipe("cartpole", ["reward.kind=brightness", "reward.target=0.5"])
    assert isinstance(recipe, ControlRecipe)
    context = RewardContext((), (), 0, False, lambda size, states: np.zeros((64, 64, 3), np.uint8))
    model = recipe.reward.build(context).model
    assert isinstance(model, brightness.BrightnessReward)
    frames = np.full((5, 1, 8, 8, 3), 255, np.uint8)
    frames[2:] = 0
    first = np.array([[True], [False], [False], [True], [False]])
    # White, white, black, where steps before an episode count as its first: the third step is three quarters white. The
    # second episode is black, whatever came before it.
    expected = [-0.5, -0.5, -0.25, -0.5, -0.5]
    np.testing.assert_allclose(model(Clip(first, frames=frames))[:, 0], expected, atol=1e-6)
    assert model(frames[:, 0]).shape == (5,)


def test_the_example_of_an_encoder(example: Any) -> None:
    my_file = example("my_file")
    frames = np.stack([np.zeros((8, 8, 3), np.uint8), np.full((8, 8, 3), 255, np.uint8)])
    reward = sl.ZeroShotReward("a bright picture", encoder=my_file.BrightnessEncoder())
    np.testing.assert_allclose(reward(frames), [0, 1], atol=1e-6)
    words = my_file.BrightnessWords("a bright picture", "a picture", alpha=1.0)
    assert words(frames)[1] > words(frames)[0]
    load_recipe("cartpole", ["reward.kind=my_file:BrightnessWords"])


def test_the_example_of_a_teacher(example: Any) -> None:
    teacher = example("redness").RednessTeacher()
    red, black = np.full((8, 8, 3), (200, 0, 0), np.uint8), np.zeros((8, 8, 3), np.uint8)
    answers = teacher.compare([(red, black), (black, red), (red, red)], "red")
    assert [answer.outcome for answer in answers] == [Outcome.FIRST, Outcome.SECOND, Outcome.EQUAL]
    load_recipe("cartpole-preferences", ["reward.teacher.kind=redness"])


def test_the_example_of_feedback(example: Any) -> None:
    import torch

    block = example("margin").MarginConfig()
    returns = [torch.tensor([[0.0, 3.0]]), torch.tensor([[3.0, 0.0]])]  # the second is better by 3, then worse by 3
    assert block.label_loss(returns, torch.tensor([1.0, 1.0]), 1).tolist() == [2.0]
    load_recipe("cartpole-preferences", ["reward.feedback.kind=margin"])


def test_the_example_of_an_algorithm(example: Any) -> None:
    class Episode:
        def __init__(self, *rewards: float) -> None:
            self.rewards, self.turns = np.array(rewards), [Turn] * len(rewards)
            self.error = None if rewards else "broken"

    groups = [[Episode(0.0, 1.0), Episode(0.0)], [Episode(2.0), Episode()]]
    told = example("mean_baseline").MeanBaselineConfig().compute_advantages(groups)
    numbers = [[None if one is None else one.advantages.tolist() for one in group] for group in told]
    assert numbers == [[[0.0, 0.0], [-1.0]], [[1.0], None]]


def test_the_example_of_a_provider(example: Any) -> None:
    parrot = example("parrot").Parrot("first")

    async def said() -> str:
        async with parrot.connected() as ask:
            return str((await ask(ChatRequest(("Which?",)))).text)

    assert asyncio.run(said()) == "first"
    teacher = ChatTeacher("first", provider="parrot")
    (answer,) = teacher.compare([(np.zeros((8, 8, 3), np.uint8), np.ones((8, 8, 3), np.uint8))], "red")
    assert answer.outcome is Outcome.UNSURE  # it says so whichever is shown first


def test_the_environment_of_the_guide_can_be_trained(tmp_path: Path) -> None:
    (tmp_path / "reacher.py").write_text(re.findall(r"```python\n(.*?)```", GUIDE, flags=re.DOTALL)[0])
    small = [
        "steps=256",
        "evaluation.every=128",
        "envs=2",
        "learner.algorithm=SAC",
        "learner.chunk=16",
        "learner.gradient_steps=2",
    ]
    small += ["evaluation.episodes=2", "evaluation.test_episodes=4", "videos=false", "tensorboard=false"]
    words = ["goal=a red square in the top left corner", "baseline=a red square"]
    arguments = ["train", "env=reacher:Point", "episode_steps=50", *words, *small, "--run-dir", "run", "--json"]
    done = sightline(arguments, tmp_path)
    assert done.code == 0, done.err
    assert json.loads(done.out)["episodes"] == 4
    assert (tmp_path / "run" / "report.html").is_file()


def test_ci_runs_the_test_command_of_the_readme() -> None:
    script = (ROOT / ".ci" / "run").read_text()
    assert "<!-- tests -->" in script
    block = README.split("<!-- tests -->")[1].split("```")[1]
    assert "pytest" in block
