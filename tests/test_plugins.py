"""Plug-ins of other packages: found by their entry points, trained with, killed, resumed and reported like ours."""

from __future__ import annotations

import contextlib
import importlib.metadata
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import warnings
from collections.abc import AsyncIterator, Callable, Generator, Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar, Literal

import gymnasium
import numpy as np
import pytest

from conftest import TESTS, TINY, Finished
from sightline import registry, roles
from sightline.agents.algorithms.base import AlgorithmConfig, checked_advantages
from sightline.agents.types import Advantages, Group
from sightline.cli.exit_codes import warnings_in_one_line
from sightline.config import bundled
from sightline.config.loading import load_game, load_recipe
from sightline.envs.making import EnvMaker
from sightline.envs.naming import find_environment
from sightline.envs.tasks import Task
from sightline.errors import BadInput, RunFailed, SightlineWarning
from sightline.labels.store import LabelStore
from sightline.labels.types import Answer, Question, Teacher, preference
from sightline.models.chat.calling import Limits, check
from sightline.models.chat.messages import Ask, ChatReply, ChatRequest
from sightline.preferences.labelling import BackgroundLabeller, Budget
from sightline.preferences.settings import TEACHER
from sightline.rewards.base import Clip, Need, RewardModel
from sightline.rewards.config import RewardConfig, RewardContext, RewardSetup
from sightline.runs.folder import RunFolder, versions, write_recipe
from sightline.runs.metrics import read_metrics
from sightline.teachers.base import TeacherConfig, TeacherContext, build_teacher
from slow_teacher import questions
from small_trajectories import episode
from stored import replay_of

ENTRY_POINTS = {
    "reward": "brightness = bright_kit:BrightnessConfig",
    "teacher": "brighter = bright_kit:BrighterConfig",
    "feedback": "points = bright_kit:PointsConfig",
    "algorithm": "plain = bright_kit:Plain",
    "provider": "eyes = bright_kit:EyesModel",
    "env": "lamp = bright_kit:LAMP\nswitch = bright_kit:SWITCH",
}
SMALL = (*TINY, "steps=192", "evaluation.episodes=1", "evaluation.test_episodes=1")
BROKEN = "missing = broken_kit:Nothing"
LEARNED = (
    *SMALL,
    *("env=lamp", "reward.kind=learned", "reward.model.kind=states", "reward.fitting.epochs=4"),
    *("reward.explore=64", "reward.every=64", "reward.questions=6", "reward.pool=40", "reward.reset_updates=3"),
    *("reward.fitting.ensemble=2", "reward.lag=false"),
)
RUNS: dict[str, tuple[tuple[str, ...], tuple[str, int], tuple[str, ...]]] = {
    "reward": (
        (*SMALL, "env=lamp", "reward.kind=brightness", "reward.gain=2"),
        ("collecting", 40),
        ("brightness", "lamp"),
    ),
    "teacher": (
        (*LEARNED, "reward.teacher.kind=brighter", "reward.feedback.kind=points"),
        ("lesson", 2),
        ("brighter", "points"),
    ),
    "provider": (
        (*LEARNED, "reward.teacher.kind=chat", "reward.teacher.provider=eyes", "reward.teacher.model=m"),
        ("lesson", 2),
        ("eyes",),
    ),
    "algorithm": (
        (
            *("role=agent", "env=switch", "algorithm.kind=plain", "steps=16", "tensorboard=false"),
            *("checkpoints.every=4", "evaluation.every=16", "evaluation.episodes=1", "evaluation.test_episodes=1"),
            *("rollouts.tasks=4", "rollouts.parallel=4", "update.minibatch=4", "update.micro_batch=4"),
            *("update.epochs=1", "replies.thoughts=false", "replies.max_tokens=24"),
        ),
        ("update", 3),
        ("Plain returns", "switch"),
    ),
}
"""Overrides, where the run is killed (see `agent_worker.PLACES`), and what its report names."""


NAMING_IT = (
    ["train", "env=lamp", "reward.kind=missing", "--dry-run"],
    ["train", "env=lamp", "reward.kind=learned", "reward.teacher.kind=missing", "--dry-run"],
    ["train", "env=lamp", "reward.kind=learned", "reward.feedback.kind=missing", "--dry-run"],
    ["train", "role=agent", "env=switch", "algorithm.kind=missing", "--dry-run"],
    ["evaluate", "numberline", "--model", "m", "--provider", "missing"],
    ["train", "env=missing", "--dry-run"],
    ["train", "role=agent", "env=missing", "--dry-run"],
)
"""Commands that name a plug-in of a package that fails."""

OTHERS = (
    ["recipes"],
    ["tasks"],
    ["train", "cartpole", "--dry-run"],
    ["train", "env=lampp", "goal=x"],
    ["train", "env=switch", "reward.kind=ground_truth", "--dry-run"],
    ["train", "role=agent", "env=lamp", "--dry-run"],
    ["check-env", "switch", "--episodes", "2"],
    ["train", "env=lamp", "reward.kind=brightnes"],
)
"""Commands that list plug-ins, or name others."""


def install(site: Path, package: str, entry_points: dict[str, str]) -> None:
    """Make a package known as pip does, by a folder of metadata beside it."""
    metadata = site / f"{package.replace('-', '_')}-1.0.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
    groups = [f"[sightline.{kind}]\n{lines}\n" for kind, lines in entry_points.items()]
    (metadata / "entry_points.txt").write_text("\n".join(groups))


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of installed packages: `bright-kit` with a plug-in of each kind, and one that fails to import."""
    folder = tmp_path_factory.mktemp("site")
    shutil.copy(TESTS / "third_party.py", folder / "bright_kit.py")
    install(folder, "bright-kit", ENTRY_POINTS)
    (folder / "broken_kit.py").write_text("import a_library_that_is_gone\n")
    install(folder, "broken-kit", dict.fromkeys(registry.BUILT_IN, BROKEN))
    return folder


@pytest.fixture
def newly_looked_for() -> Iterator[None]:
    """Packages are looked for anew in a test, and what they register is gone after it."""
    kept = (
        *(registry._entry_points, registry.hidden, registry._warn_of_hidden, registry.register_environments),
        *(registry.faults_of_registration, bundled.packages_of_recipes, bundled._files, bundled.hidden_recipes),
        bundled._warn_of_hidden,
    )
    before = dict(gymnasium.registry), dict(registry._registered_by), set(sys.modules)
    for function in kept:
        function.cache_clear()
    yield
    for function in kept:
        function.cache_clear()
    specifications, registered_by, modules = before
    for target, content in ((gymnasium.registry, specifications), (registry._registered_by, registered_by)):
        target.clear()
        target.update(content)
    for name in [name for name in sys.modules if name.split(".")[0].endswith("_kit") and name not in modules]:
        del sys.modules[name]


Worker = Callable[..., list[tuple[int, str]]]


@pytest.fixture(scope="module")
def work(site: Path, tmp_path_factory: pytest.TempPathFactory) -> Worker:
    """Commands in processes that have these packages -> exit code and output of each."""
    folder = tmp_path_factory.mktemp("work")

    def work(*commands: list[str], deaths: dict[int, tuple[str, int]] | None = None) -> list[tuple[int, str]]:
        jobs: list[dict[str, Any]] = []
        for number, arguments in enumerate(commands):
            die = (deaths or {}).get(number)
            log = str(folder / f"log-{number}")
            jobs.append({"arguments": arguments, "log": log, "die": die and [*die, int(signal.SIGKILL)]})
        done = subprocess.run(
            [sys.executable, str(TESTS / "agent_worker.py"), "sightline.control.trainer"],
            input=json.dumps(jobs),
            capture_output=True,
            text=True,
            cwd=folder,
            env=os.environ
            | {"OMP_NUM_THREADS": "1", "PYTHONPATH": f"{site}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"},
            timeout=1200,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        codes = json.loads(done.stdout.splitlines()[-1])
        return [(code, Path(job["log"]).read_text()) for code, job in zip(codes, jobs, strict=True)]

    return work


@pytest.fixture(scope="module")
def carried_out(work: Worker, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[tuple[int, str]]]:
    """All commands, by one process that forks: the folder of `runs`, and the ends of `NAMING_IT` and `OTHERS`."""
    folder = tmp_path_factory.mktemp("runs")
    commands, expected, deaths = [], [], {}
    for kind, (overrides, death, _) in RUNS.items():
        whole, killed = ["--run-dir", str(folder / kind)], ["--run-dir", str(folder / f"{kind}-killed")]
        deaths[len(commands) + 1] = death
        commands += [["train", *overrides, *whole], ["train", *overrides, *killed], ["train", *killed, "--resume"]]
        commands.append(["report", killed[1]])
        expected += [0, -signal.SIGKILL, 0, 0]
    done = work(*commands, *NAMING_IT, *OTHERS, deaths=deaths)
    ended, listed = done[: len(commands)], done[len(commands) :]
    assert [code for code, _ in ended] == expected, [text[-400:] for _, text in ended]
    return folder, listed


@pytest.fixture(scope="module")
def runs(carried_out: tuple[Path, list[tuple[int, str]]]) -> Path:
    """For each kind a run that was left alone, and one that was killed, resumed, and reported anew."""
    return carried_out[0]


@pytest.mark.parametrize("kind", RUNS)
def test_trains_and_resumes_to_the_same_and_is_named_in_the_report(runs: Path, kind: str) -> None:
    one, other = runs / kind, runs / f"{kind}-killed"

    def numbers(run: Path) -> list[dict[str, Any]]:
        left_out = ("time/", "labels/seconds", "labels/remembered")  # what the store knew before the end is asked once
        found = read_metrics(run / "metrics.jsonl")
        return [{key: value for key, value in line.items() if not key.startswith(left_out)} for line in found]

    def result(run: Path) -> dict[str, Any]:
        read = json.loads((run / "result.json").read_text())
        return {key: value for key, value in read.items() if not key.startswith("seconds")}

    assert numbers(one) == numbers(other)
    assert result(one) == result(other)
    page = (other / "report.html").read_text()
    assert all(name in page for name in RUNS[kind][2])


def test_they_are_listed_and_a_package_that_fails_is_told_by_name(
    carried_out: tuple[Path, list[tuple[int, str]]],
) -> None:
    gone = "ModuleNotFoundError: No module named 'a_library_that_is_gone'"
    _, done = carried_out
    for arguments, (code, text) in zip(NAMING_IT, done, strict=False):
        assert code == 2 and gone in text and "'broken-kit'" in text, (arguments, text)
        assert text.count("\n") == 1, text
    recipes, tasks, cartpole, typo, of_a_policy, without_words, game, unknown = done[len(NAMING_IT) :]
    assert recipes[0] == tasks[0] == cartpole[0] == game[0] == 0, (recipes, tasks, cartpole, game)
    assert "Turn a lamp up." in tasks[1] and "Press the button that is lit" in tasks[1]
    assert gone in tasks[1]
    assert typo[0] == 2 and "'lamp'" in typo[1]
    assert of_a_policy[0] == 0, "a policy sees the picture of a game"
    assert without_words[0] == 2 and "actions=[…]" in without_words[1]
    assert unknown[0] == 2 and "zero_shot" in unknown[1] and "did you mean 'brightness'" in unknown[1]


@pytest.mark.usefixtures("newly_looked_for")
def test_the_doctor_lists_them(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from sightline import doctor

    monkeypatch.syspath_prepend(str(site))
    monkeypatch.setenv("BRIGHT_KIT_KEY", "secret")
    checks = {check.name: check for check in (*doctor._extras(), *doctor._plugins(), doctor._keys())}
    assert {"google.genai", "anthropic", "bright_client"} <= checks.keys()
    assert checks["provider eyes"].works and checks["env lamp"].works
    assert not checks["reward missing"].works and "'broken-kit'" in checks["reward missing"].fix
    assert "BRIGHT_KIT_KEY" in checks["keys"].detail and "secret" not in checks["keys"].detail


@pytest.mark.usefixtures("far_kit")
@pytest.mark.filterwarnings("ignore::sightline.errors.SightlineWarning")
def test_the_doctor_says_which_plugins_cannot_be_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from sightline import doctor

    kinds = dict.fromkeys(registry.BUILT_IN, "odd = odd_kit:ODD\nmodule = pathlib\nclass = odd_kit:Odd")
    kinds["env"] += "\nbabyai = odd_kit:TASK\nnowhere = odd_kit:TASK"
    install(tmp_path, "odd-kit", kinds)
    task = "import sightline.envs.tasks as tasks; TASK = tasks.Task('nowhere', 'nowhere/Odd-v0')"
    (tmp_path / "odd_kit.py").write_text(f"ODD = {{}}\nclass Odd: pass\n{task}\n")
    checks = doctor._plugins()
    fixes = {check.name: check.fix for check in checks if not check.works}
    for kind in registry.BUILT_IN:
        for name in ("odd", "module", "class"):
            assert f"{kind} {name}" in fixes, (kind, name)
    assert (
        "sl.RewardConfig" in fixes["reward odd"]
        and "Task" in fixes["env odd"]
        and "of(config)" in fixes["provider odd"]
    )
    assert registry.not_used("env", "babyai", "odd-kit", "sightline") in fixes["env babyai"]
    assert "there is no environment 'nowhere/Odd-v0'" in fixes["env nowhere"]
    assert "SystemExit: good-bye" in fixes["environments of broken-far-kit"]
    assert "there is no package" in fixes["recipes of broken-far-kit"]
    assert registry.not_used("recipe", "cartpole", "far-kit", "sightline") in fixes["recipe cartpole"]
    works = {check.name: check.detail for check in checks if check.works}
    assert works["environments of far-kit"] == "far_kit.registration, a plug-in"
    assert works["recipes of far-kit"] == "5 recipes"
    assert all("\n" not in line for line in fixes.values())


def test_what_is_registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_registered", {})
    plugin = type("Block", (), {})
    registry.register("reward", "block", plugin)
    registry.register("reward", "block", plugin)
    assert registry.find("reward", "block") is plugin and "block" in registry.names("reward")
    for kind, name in (("reward", "sparse"), ("env", "cartpole"), ("reward", "block")):
        with pytest.raises(BadInput, match=f"^there is an? {kind} '{name}' already; choose another name$"):
            registry.register(kind, name, type("Other", (), {}))  # type: ignore[arg-type]
    with pytest.raises(BadInput, match="no plug-ins of kind 'rewards'; did you mean 'reward'"):
        registry.register("rewards", "x", plugin)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "plugin", "said"),
    [
        (None, "a:b", "^the name of a plug-in must be a word, such as 'brightness', not None$"),
        ("", "a:b", "^the name of a plug-in must be a word, such as 'brightness', not ''$"),
        (3, "a:b", "not 3$"),
        ("block", None, "^the reward 'block' must be the plug-in itself, or 'module:attribute'.* not None$"),
        ("block", "third_party", "not 'third_party'$"),
        ("block", "third_party:", "not 'third_party:'$"),
        ("block", ":Block", "not ':Block'$"),
    ],
)
def test_what_cannot_be_registered(name: Any, plugin: Any, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_registered", {})
    with pytest.raises(BadInput, match=said) as caught:
        registry.register("reward", name, plugin)
    assert "\n" not in str(caught.value)
    with pytest.raises(BadInput, match="no plug-ins of kind 'None'"):
        registry.register(None, "block", plugin)  # type: ignore[arg-type]
    with pytest.raises(BadInput, match="there is no reward 'bloc'"):
        registry.find("reward", "bloc")


def test_what_is_registered_and_no_recipe_block(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_registered", {})
    registry.register("teacher", "block", Path)
    with pytest.raises(BadInput, match=r"^the teacher 'block' is not a recipe block, a subclass of sl\.TeacherConfig$"):
        TEACHER.block({"kind": "block"})


@pytest.mark.parametrize(
    ("source", "attribute", "said"),
    [
        (None, "Block", "ModuleNotFoundError: No module named 'kit_of_this_test'"),
        ("", "Block", "AttributeError: module 'kit_of_this_test' has no attribute 'Block'"),
        ("1 / 0", "Block", "ZeroDivisionError: division by zero"),
        ("import sys; sys.exit(3)", "Block", "SystemExit: 3"),
    ],
)
def test_a_registered_place_that_cannot_be_imported(
    source: str | None, attribute: str, said: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(registry, "_registered", {})
    monkeypatch.delitem(sys.modules, "kit_of_this_test", raising=False)
    monkeypatch.syspath_prepend(str(tmp_path))
    if source is not None:
        (tmp_path / "kit_of_this_test.py").write_text(source)
    place = f"kit_of_this_test:{attribute}"
    registry.register("reward", "block", place)
    registry.register("reward", "block", f"{place[:4]}{place[4:]}")  # the same, though not the same object
    with pytest.raises(
        BadInput, match=r"^the reward 'block' at 'kit_of_this_test:Block' cannot be imported: "
    ) as caught:
        registry.find("reward", "block")
    assert said in str(caught.value) and "\n" not in str(caught.value)
    with pytest.raises(BadInput, match="cannot be imported"):
        load_recipe(None, ["env=cartpole", "reward.kind=block"])


def test_a_command_says_a_warning_of_ours_in_one_line() -> None:
    with warnings_in_one_line():
        assert (
            warnings.formatwarning(SightlineWarning("so\nit is"), SightlineWarning, "a.py", 3)
            == "warning: so\\nit is\n"
        )
        assert "a.py:3: UserWarning: so" in warnings.formatwarning(UserWarning("so"), UserWarning, "a.py", 3)


@pytest.mark.usefixtures("newly_looked_for")
def test_a_package_that_ends_the_process(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "leaving_kit.py").write_text("raise SystemExit('good-bye')\n")
    install(tmp_path, "leaving-kit", {"env": "leaving = leaving_kit:Nothing"})
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(
        BadInput, match=r"'leaving-kit' cannot be imported: SystemExit: good-bye \(leaving_kit.py:1\); "
    ):
        registry.find("env", "leaving")


@pytest.fixture
def far_kit(newly_looked_for: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A package with an environment that it registers by an import, and with recipes; and one that fails."""
    recipes = tmp_path / "far_kit" / "recipes"
    recipes.mkdir(parents=True)
    (recipes.parent / "__init__.py").write_text("")
    (recipes.parent / "registration.py").write_text(
        "import gymnasium; gymnasium.register('far/Clock-v0', 'small_envs:Clock', max_episode_steps=5)\n"
    )
    (recipes / "__init__.py").write_text("")
    (recipes / "far-clock.yaml").write_text("description: A clock far away\nenv: far/Clock-v0\ngoal: the hand is up\n")
    (recipes / "far-day.yml").write_text("description: A day far away\nenv: far/Clock-v0\ngoal: noon\n")
    (recipes / "far-list.yaml").write_text("- a list\n")
    (recipes / "far-latin.yaml").write_bytes("description: geschätzt".encode("latin-1"))
    (recipes / "cartpole.yaml").write_text("description: not ours\nenv: far/Clock-v0\ngoal: the hand is up\n")
    install(tmp_path, "far-kit", {"gymnasium": "far = far_kit.registration", "recipes": "recipes = far_kit.recipes"})
    (tmp_path / "broken_far_kit.py").write_text("raise SystemExit('good-bye')\n")
    broken = {"gymnasium": "broken = broken_far_kit.registration", "recipes": "recipes = broken_far_kit.recipes"}
    install(tmp_path, "broken-far-kit", broken)
    monkeypatch.syspath_prepend(str(tmp_path))


@pytest.mark.usefixtures("far_kit")
def test_environments_that_a_package_registers() -> None:
    expected = (
        "the environments of the package 'broken-far-kit' are not registered: SystemExit: good-bye "
        "(broken_far_kit.py:1); fix or uninstall that package"
    )
    registry.register_environments(own=True)
    assert "far/Clock-v0" not in gymnasium.registry, "others' modules may import what is just being imported"
    with pytest.warns(UserWarning, match=f"^{re.escape(expected)}$"):
        find_environment("far/Clock-v0")


REGISTRATION = """
import gymnasium
from sightline import RewardModel, wrap
for env_id in ("sightline/CartPole-v0", "Pendulum-v1", "far/Clock-v0"):
    gymnasium.register(env_id, entry_point="small_envs:Clock", max_episode_steps=3)
"""


@pytest.mark.usefixtures("far_kit")
@pytest.mark.filterwarnings("ignore:the environments of the package 'broken-far-kit'")
def test_no_package_takes_the_id_of_an_environment_that_is_registered(tmp_path: Path) -> None:
    (tmp_path / "zebra_kit.py").write_text(REGISTRATION)
    install(tmp_path, "zebra-kit", {"gymnasium": "zebra = zebra_kit"})
    before = {env_id: gymnasium.registry[env_id] for env_id in ("sightline/CartPole-v0", "Pendulum-v1")}
    with pytest.warns(SightlineWarning) as caught:
        assert find_environment("far/Clock-v0").max_episode_steps == 5  # type: ignore[union-attr]
    assert {env_id: gymnasium.registry[env_id] for env_id in before} == before
    owners = {"sightline/CartPole-v0": "sightline", "Pendulum-v1": "gymnasium", "far/Clock-v0": "far-kit"}
    for env_id, owner in owners.items():
        line = registry.not_used("environment", env_id, "zebra-kit", owner)
        assert [str(one.message) for one in caught].count(line) == 1
    assert registry.origin("env", "far/Clock-v0") == "far-kit 1.0"
    assert registry.origin("env", "sightline/CartPole-v0") is None


@pytest.mark.usefixtures("newly_looked_for")
def test_one_of_several_plugins_of_one_name_counts_wherever_it_lies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for package in ("zebra-kit", "ant-kit"):
        site = tmp_path / package
        module = package.replace("-", "_")
        install(
            site, package, {"env": f"far-clock = {module}:CLOCK\ncartpole = {module}:CLOCK\nbabyai = {module}:CLOCK"}
        )
        (site / f"{module}.py").write_text(
            f"from sightline.envs.tasks import Task; CLOCK = Task('far-clock', 'small_envs:Clock', summary='{package}')"
        )
        monkeypatch.syspath_prepend(str(site))
    for name, owner in (("far-clock", "ant-kit"), ("cartpole", "sightline"), ("babyai", "sightline")):
        others = {"ant-kit", "zebra-kit"} - {owner}
        with pytest.warns(SightlineWarning) as caught:
            tasks = [registry.find("env", name) for _ in range(2)]
        assert owner in (tasks[0].summary, "sightline")
        lines = [registry.not_used("env", name, other, owner) for other in sorted(others)]
        assert sorted(str(one.message) for one in caught) == lines, "each is told once"


@pytest.mark.usefixtures("newly_looked_for")
def test_a_run_remembers_the_package_of_each_plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sites = {package: tmp_path / package for package in ("ant-kit", "bee-kit")}
    for package, site in sites.items():
        module = package.replace("-", "_")
        install(site, package, {"env": f"far-clock = {module}:CLOCK", "teacher": f"plain = {module}:Plain"})
        (site / f"{module}.py").write_text(
            "from sightline import TeacherConfig; from sightline.envs.tasks import Task\n"
            "CLOCK = Task('far-clock', 'small_envs:Clock', goal='x')\nclass Plain(TeacherConfig): kind: str = 'plain'\n"
        )

    def only(*packages: str) -> None:
        registry._entry_points.cache_clear()
        registry.hidden.cache_clear()
        monkeypatch.setattr(sys, "path", [*(str(sites[package]) for package in packages), *path])

    path = list(sys.path)
    only("ant-kit")
    recipe = load_recipe(None, ["env=far-clock", "reward.kind=learned", "reward.teacher.kind=plain"])
    of_plugins = {"env far-clock": "ant-kit 1.0", "teacher plain": "ant-kit 1.0"}
    assert {name: version for name, version in versions(recipe).items() if " " in name} == of_plugins
    run = RunFolder(tmp_path / "run")
    run.path.mkdir()
    write_recipe(run, recipe)
    run.write_json("versions.json", versions(recipe))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run.trusted_recipe()
    only("bee-kit")
    with pytest.warns(SightlineWarning) as caught:
        run.trusted_recipe()
    assert [str(one.message) for one in caught] == [
        f"the {plugin} of the run '{run.path}' is that of the package bee-kit 1.0 here; when the run began, it was "
        "that of ant-kit 1.0"
        for plugin in ("env 'far-clock'", "teacher 'plain'")
    ]
    only()
    with pytest.raises(BadInput) as refused, roles._naming_run(run):
        find_environment("far-clock")
    assert str(refused.value) == (
        f"the run '{run.path}' is of the environment 'far-clock', which is not known here; install ant-kit 1.0, or "
        "register it first"
    )


def test_an_unknown_environment_is_blamed_on_the_task_that_names_it() -> None:
    with pytest.raises(
        BadInput, match=r"^the task 'moon' is of the environment 'far/Moon-v0', which nothing registers"
    ):
        EnvMaker("far/Moon-v0", task="moon")()
    with pytest.raises(BadInput, match=r"^there is no environment 'far/Moon-v0'"):
        EnvMaker("far/Moon-v0", task="far/Moon-v0")()


def test_a_task_that_no_recipe_is_named_after() -> None:
    for name in ("pendulum", "small_envs:Clock"):
        with pytest.raises(BadInput, match=f"there is no recipe of that name: say env={name}$"):
            load_recipe(name)
    assert load_game("questions", ["seed=3"]).env == "questions"
    assert load_game("numberline", []).description, "a recipe comes first"
    assert load_game("role: agent\nenv: numberline\nseed: 4", []).seed == 4


def test_a_task_says_what_is_wrong_with_it_when_it_is_made() -> None:
    task = Task("moon", "small_envs:Clock", goal="a moon", baseline="a night", measures="near")  # type: ignore[arg-type]
    assert (task.goal, task.baseline, task.measures) == (("a moon",), ("a night",), ("near",))
    for options, said in (
        ({"success": "sometimes"}, "success of the task 'moon'='sometimes' is unknown; known: any, end, every"),
        ({"env": Path}, "Task.env must be a text, such as 'my_package:MyEnv', not <class 'pathlib.Path'>"),
        ({"goal": 3}, "Task.goal of 'moon' must be a tuple of texts, not 3"),
        ({"measures": ("near", 3)}, "Task.measures of 'moon' must be a tuple of texts, not ('near', 3)"),
        ({"actions": "left"}, "Task.actions of 'moon' must be a tuple of names, not 'left'"),
    ):
        arguments: dict[str, Any] = {"name": "moon", "env": "small_envs:Clock"} | options
        with pytest.raises(BadInput) as caught:
            Task(**arguments)
        assert str(caught.value) == said


@pytest.mark.usefixtures("newly_looked_for")
def test_an_installation_without_our_tasks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gone = {
        "env": "cartpole = gone_tasks:TASK",
        "gymnasium": "gone = gone_tasks",
        "recipes": "gone = gone_tasks.recipes",
    }
    install(tmp_path, "sightline", gone)
    monkeypatch.syspath_prepend(str(tmp_path))
    ending = "; the installation is incomplete: reinstall Sightline$"
    with pytest.raises(BadInput, match=f"the package 'sightline' cannot be imported: .*gone_tasks.*{ending}"):
        registry.find("env", "cartpole")
    with pytest.warns(SightlineWarning, match=f"'sightline' are not registered: .*{ending}"):
        registry.register_environments(own=True)
    with pytest.warns(SightlineWarning, match=f"'sightline' cannot be found: .*{ending}"):
        bundled.bundled_recipes()


@pytest.mark.usefixtures("far_kit")
def test_recipes_that_a_package_brings(sightline: Callable[..., Finished]) -> None:
    expected = (
        "the recipes of the package 'broken-far-kit' cannot be found: there is no package 'broken_far_kit.recipes'; "
        "correct its entry point 'recipes', or uninstall it"
    )
    with pytest.warns(UserWarning, match=f"^{re.escape(expected)}$"):
        names = bundled.bundled_recipes()
    assert "broken_far_kit" not in sys.modules and "far_kit" not in sys.modules, "no package is imported for a list"
    assert "far-clock" in names and "numberline" in names
    assert bundled.recipe_description("far-clock") == "A clock far away"
    assert load_recipe("far-clock").env == "far/Clock-v0"
    with pytest.warns(
        SightlineWarning, match=re.escape(registry.not_used("recipe", "cartpole", "far-kit", "sightline"))
    ):
        assert load_recipe("cartpole").env == "cartpole", "names that come with Sightline stay its own"
    listed = {row["recipe"]: row["description"] for row in json.loads(sightline("recipes", "--json").out)}
    assert listed["far-clock"] == "A clock far away", "recipes that cannot be read hide no other"
    assert listed["far-day"] == "A day far away"
    assert listed["far-list"] == "far-list must be a YAML map of keys and values"
    assert listed["far-latin"] == "far-latin is no recipe: it is not text in UTF-8"


@pytest.mark.usefixtures("newly_looked_for")
def test_a_package_that_was_built_without_its_recipes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "empty_kit").mkdir()
    (tmp_path / "empty_kit" / "__init__.py").write_text("")
    install(tmp_path, "empty-kit", {"recipes": "empty = empty_kit"})
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.warns(
        SightlineWarning, match="'empty-kit' cannot be found: 'empty_kit' holds no YAML files; .*setuptools"
    ):
        bundled.bundled_recipes()


class Lit(RewardModel):
    """The mean of the numbers in what it needs, which it keeps."""

    keeps_features = True

    def __init__(self, *needs: Need) -> None:
        self.needs = frozenset(needs)

    def embed(self, clip: Clip) -> np.ndarray:
        seen: Any = [clip.arrays()[need] for need in sorted(self.needs)]
        return np.stack([one.reshape(*clip.shape, -1).mean(-1) for one in seen], -1).astype(np.float32)

    def score(self, features: np.ndarray, clip: Clip) -> np.ndarray:
        return np.asarray(features.sum(-1))


class Failing(Lit):
    def embed(self, clip: Clip) -> np.ndarray:
        raise KeyError("foo")


BUILDS: dict[str, tuple[Callable[[], Any], int, str]] = {
    "states": (lambda: RewardSetup(Lit("states"), frames=False), 0, ""),
    "frames": (lambda: RewardSetup(Lit("frames"), (16, 16)), 0, ""),
    "both": (lambda: RewardSetup(Lit("frames", "states"), (16, 16)), 0, ""),
    "nothing": (lambda: None, 2, "LitConfig.build must return a RewardSetup with a RewardModel, not NoneType"),
    "a model": (lambda: Lit("states"), 2, "LitConfig.build must return a RewardSetup with a RewardModel, not Lit"),
    "a class": (lambda: RewardSetup(Lit), 2, "must return a RewardSetup with a RewardModel, not "),  # type: ignore[arg-type]
    "no frames": (lambda: RewardSetup(Lit("frames"), frames=False), 2, "LitConfig.build returned a model that reads"),
    "a failure": (lambda: RewardSetup(Failing("states")), 1, "Failing.embed failed: KeyError: 'foo' (test_plugins.py:"),
    "an error": (lambda: 1 / 0, 1, "LitConfig.build failed: ZeroDivisionError: division by zero (test_plugins.py:"),
    "nonsense": (
        lambda: RewardSetup(Lit("frame")),  # type: ignore[arg-type]
        2,
        "Lit.needs must be a set of 'frames' and 'states', or empty, not frozenset({'frame'})",
    ),
}


@pytest.mark.parametrize("what", BUILDS)
def test_what_a_reward_block_builds(
    what: str, sightline: Callable[..., Finished], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    build, code, said = BUILDS[what]

    class LitConfig(RewardConfig):
        kind: Literal["lit"] = "lit"

        def build(self, context: RewardContext) -> RewardSetup:
            return build()  # type: ignore[no-any-return]

    monkeypatch.setattr(registry, "_registered", {("reward", "lit"): LitConfig})
    small = ("env=small_envs:Clock", "goal=x", "learner.algorithm=DQN", "reward.kind=lit", "steps=128")
    done = sightline("train", *TINY, *small, "--run-dir", tmp_path / "run")
    assert done.code == code, done.err
    assert said in done.lines[-1]
    if code == 0:
        replay = replay_of(tmp_path / "run")
        assert replay["features"].shape[2:] == (len(build().model.needs),)
        np.testing.assert_allclose(replay["rewards"], replay["features"].sum(-1))


def failing() -> Any:
    raise ZeroDivisionError("division by zero")


class Answering(Teacher):
    """Answers by what it is given, a function of the number of a question."""

    name = signature = "answering"

    def __init__(self, item: Callable[[int], Any] = lambda number: (number, preference(0.0)), count: int = 99) -> None:
        self.item, self.count = item, count

    def answers(self, questions: Iterable[Question]) -> Generator[tuple[int, Answer]]:
        for number, _ in islice(enumerate(questions), self.count):
            yield self.item(number)


class Unsigned(Answering):
    signature = None  # type: ignore[assignment]


class Mute(Teacher):
    name = signature = "mute"


PAIRS = [(np.zeros((4, 4, 3), np.uint8), np.ones((4, 4, 3), np.uint8))] * 2


@pytest.mark.parametrize(
    ("teacher", "said"),
    [
        (Answering(lambda number: failing()), "Answering.answers failed: ZeroDivisionError: .* \\(test_plugins.py:"),
        (Answering(lambda number: 0.5), r"Answering.answers must yield \(number of the question, Answer\), not 0.5$"),
        (Answering(lambda number: (number, 0.5)), r"Answering.answers must yield .*, not \(0, 0.5\)$"),
        (Answering(lambda number: (7, preference(0.0))), "Answering.answers answered the question 7, and has taken 1"),
        (Answering(count=1), "Answering.answers left 1 of 2 questions without an answer"),
        (Mute(), "Mute has no 'answers', which it must define"),
    ],
)
def test_a_teacher_with_a_fault(teacher: Teacher, said: str, tmp_path: Path) -> None:
    with pytest.raises(RunFailed, match=f"^{said}"):
        teacher.compare(PAIRS, "goal")
    with LabelStore(tmp_path / "labels") as store:
        labelling = BackgroundLabeller(teacher, store, Budget(), "run", "task")
        labelling.ask(questions(2), 0)
        with pytest.raises(RunFailed, match=f"^{said}"):
            labelling.collect()
        labelling.close()


def test_what_a_teacher_block_builds() -> None:
    context: Any = None
    for built, kind, said in (
        (lambda: 5, BadInput, r"AnsweringConfig.build must return an sl.Teacher, not int$"),
        (Unsigned, BadInput, "Unsigned.signature must be a text, by which answers are stored, not None$"),
        (failing, RunFailed, r"AnsweringConfig.build failed: ZeroDivisionError: .* \(test_plugins.py:"),
    ):

        class AnsweringConfig(TeacherConfig):
            kind: Literal["answering"] = "answering"
            makes: ClassVar[Any] = staticmethod(built)

            def build(self, context: TeacherContext) -> Teacher:
                return self.makes()  # type: ignore[no-any-return]

        with pytest.raises(kind, match=f"^{said}"):
            build_teacher(AnsweringConfig(), context)

    class Empty(TeacherConfig):
        kind: Literal["empty"] = "empty"

    with pytest.raises(RunFailed, match=r"^Empty has no 'build', which it must define$"):
        build_teacher(Empty(), context)


@pytest.mark.parametrize(
    ("returned", "said"),
    [
        (failing, r"failed: ZeroDivisionError: .* \(test_plugins.py:"),
        (lambda: np.zeros(2), r"must return a list for each of 2 groups, not an array of shape \[2\]"),
        (lambda: [[None]], "must return a list for each of 2 groups, not 1 of list"),
        (
            lambda: [[None], [None]],
            "must return Advantages or None for each of the 2 episodes of a group, not 1 of NoneT",
        ),
        (lambda: [[None, np.zeros(2)], [None]], r"must return Advantages or None for each episode, not an array"),
        (
            lambda: [[None, Advantages(np.zeros(3))], [None]],
            "must return advantages of the 2 turns of an episode, not an a",
        ),
        (lambda: [[None, Advantages(np.full(2, np.nan))], [None]], r"must return finite advantages, not \[nan nan\]$"),
    ],
)
def test_an_algorithm_with_a_fault(returned: Callable[[], Any], said: str) -> None:
    class Given(AlgorithmConfig):
        kind: Literal["given"] = "given"

        def compute_advantages(self, groups: Sequence[Group]) -> list[list[Advantages | None]]:
            return returned()  # type: ignore[no-any-return]

    groups: list[Group] = [[episode([0, 1]), episode([0, 1])], [episode([1])]]
    with pytest.raises(RunFailed, match=f"^Given.compute_advantages {said}"):
        checked_advantages(Given(), groups)


def test_a_provider_with_a_fault() -> None:
    class Faulty:
        where, batched = "here", False

        def __init__(self, reply: Callable[[], Any]) -> None:
            self.reply = reply

        @contextlib.asynccontextmanager
        async def connected(self) -> AsyncIterator[Ask]:
            async def ask(request: ChatRequest) -> ChatReply:
                return self.reply()  # type: ignore[no-any-return]

            yield ask

    for reply, said in (
        (failing, r"has failed: ZeroDivisionError: division by zero \(test_plugins.py:\d+\)$"),
        (lambda: 5, "must return a ChatReply, not int$"),
    ):
        with pytest.raises(RunFailed, match=f"^the provider of the chat model {said}"):
            check(Faulty(reply), Limits(), ChatRequest(("hello",)))  # type: ignore[arg-type]


def test_an_environment_of_a_plugin_is_no_code_of_a_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from sightline.runs.trust import check_trusted

    monkeypatch.setattr(registry, "_registered", {})
    recipe = load_recipe(None, ["env=lights:lamp", "goal=x"])
    with pytest.raises(BadInput, match="--trust"):
        check_trusted(recipe, tmp_path)
    registry.register("env", "lights:lamp", "third_party:LAMP")
    check_trusted(recipe, tmp_path)


def test_a_module_may_register_what_its_own_name_leads_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the examples of docs/plugins.md do, whichever way they are found."""
    text = (Path(__file__).parents[1] / "docs" / "plugins.md").read_text()
    (tmp_path / "brightness.py").write_text(
        text.partition('"""brightness.py:')[2].partition("```")[0].join(('"""', ""))
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(registry, "_registered", {})
    registry.register("reward", "brightness", "brightness:BrightnessConfig")
    assert registry.find("reward", "brightness").__name__ == "BrightnessConfig"
    monkeypatch.setattr(registry, "_registered", {})
    monkeypatch.delitem(sys.modules, "brightness")
    entry = importlib.metadata.EntryPoint("brightness", "brightness:BrightnessConfig", "sightline.reward")
    monkeypatch.setattr(registry, "_entry_points", lambda kind: {"brightness": entry} if kind == "reward" else {})
    assert registry.find("reward", "brightness").__name__ == "BrightnessConfig"
