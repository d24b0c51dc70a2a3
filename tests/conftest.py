"""What several test files share: tiny random encoders, the bundled encoder, small environments, and the command."""

from __future__ import annotations

import contextlib
import functools
import io
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ["HF_HUB_OFFLINE"] = "1"

import hypothesis
import numpy as np
import pytest
import torch

import fork_server
from changed import changed_parts
from empty_plots import leave_plots_empty, plots_made
from fork_server import ForkedProcess
from light_runs import lighten_runs

# How long an example takes says nothing of the code: machines are busy with other things, too.
hypothesis.settings.register_profile(
    "any machine", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("any machine")

lighten_runs()  # before any test imports what makes them

TESTS = Path(__file__).parent
SENTENCES = ("a pole upright on the cart", "the cart at the left edge", "pole and cart", "a car in the mountain")

_LITTLE = (
    *("steps=256", "envs=4", "episode_steps=20", "videos=false", "tensorboard=false", "checkpoints.every=64"),
    *("evaluation.every=128", "evaluation.episodes=2", "evaluation.test_episodes=3"),
    *("learner.chunk=8", "learner.batch_size=16"),
)
TINY = (*_LITTLE, "learner.gradient_steps=2", "learner.learning_starts=64", "learner.buffer_size=200")
"""Overrides that make a run of a second out of any recipe with an off-policy learner."""
TINY_ON_POLICY = (*_LITTLE, "learner.hidden=[16,16]")
"""The same with an on-policy learner, which the recipe or another override names."""

SIZES: dict[str, dict[str, Any]] = {
    "small": {"embed_dim": 16, "vision_cfg": {"image_size": 16, "layers": 1, "width": 16, "patch_size": 8}},
    "middle": {"embed_dim": 64, "vision_cfg": {"image_size": 40, "layers": 2, "width": 32, "patch_size": 10}},
    "large": {"embed_dim": 192, "vision_cfg": {"image_size": 64, "layers": [1, 1, 1, 1], "width": 8}},
}
"""Two vision transformers and a residual network, of different picture sizes and embedding widths."""


def our_names() -> list[str]:
    """Names of the tasks that come with Sightline."""
    from sightline.registry import is_own, names

    return [name for name in names("env") if is_own("env", name)]


def our_tasks() -> list[Any]:
    """The tasks with states that come with Sightline."""
    from sightline.registry import find

    return [task for name in our_names() if not (task := find("env", name)).is_game]


def our_games() -> dict[str, str]:
    """The games that come with Sightline and need neither data of the user's nor a browser: name -> Gymnasium id."""
    from sightline.registry import find

    games = {name: task.env for name in our_names() if (task := find("env", name)).is_game}
    return {name: env for name, env in games.items() if name not in ("questions", "miniwob", "household-thor")}


def result_of(run: Path) -> dict[str, Any]:
    """The result of a run but for its times."""
    result: dict[str, Any] = json.loads((run / "result.json").read_text())
    return {key: value for key, value in result.items() if not key.startswith("seconds")}


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


THOROUGH = {
    *("agent_faults", "agent_learning", "agent_preferences", "agent_training", "api", "background", "chat_teacher"),
    *("collecting", "dataset_replay", "lerobot_datasets", "prefix_servers", "scopes", "success_labels"),
    *(
        "chat_training",
        "check_env",
        "cli",
        "clips",
        "cluster",
        "deformables",
        "docs",
        "engines",
        "everybodys_environments",
    ),
    *("examples", "existing_labels", "game_processes", "golden_runs", "hostile_folders", "humanoid"),
    *(
        "image_text_matching",
        "interruptions",
        "jobs",
        "judge",
        "learned_reward",
        "learning",
        "lease",
        "lessons",
        "metaworld",
        "miniwob",
    ),
    *("named_code", "odd_environments", "on_policy", "plugins", "policy_server", "pretraining_vlm", "reports"),
    *(
        "run_folder",
        "server_faults",
        "simulators",
        "spaces",
        "speed",
        "sweep",
        "teaching",
        "training",
        "trajectory_page",
        "vlm",
    ),
    *("lab", "lab_gate", "lab_page", "requirements", "rl4vlm", "serve_reward", "http_runs", "session", "wrap_learning"),
}
"""Files of tests that train, start processes or draw. All others are `quick`: `pytest -m quick` while working."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--in-full", action="store_true", help="also the long tests of parts that have not changed")


def pytest_configure(config: pytest.Config) -> None:
    """Whoever names files or tests means all of them. (Processes of xdist are told so by the option.)"""
    is_worker = hasattr(config, "workerinput")
    if not is_worker and config.args_source is pytest.Config.ArgsSource.ARGS:
        config.option.in_full = True


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    # Files with whole trainings first, so that no process is left with one when the other has ended.
    files_that_learn = {item.path for item in items if item.get_closest_marker("learning") is not None}
    items.sort(key=lambda item: item.path not in files_that_learn)
    for item in items:
        if item.path.stem.removeprefix("test_") not in THOROUGH:
            item.add_marker("quick")
    if config.option.in_full:
        return
    changed = changed_parts()
    chosen: list[pytest.Item] = []
    unchanged: list[pytest.Item] = []
    for item in items:
        is_unchanged = any(mark.args[0] not in changed for mark in item.iter_markers("when_changed"))
        (unchanged if is_unchanged else chosen).append(item)
    items[:] = chosen
    config.hook.pytest_deselected(items=unchanged)


@pytest.fixture(scope="session", autouse=True)
def _empty_plots() -> None:
    leave_plots_empty()


@pytest.fixture(autouse=True)
def _plots(request: pytest.FixtureRequest) -> Iterator[None]:
    """Tests that are marked `plots` have them drawn."""
    if request.node.get_closest_marker("plots") is None:
        yield
        return
    with plots_made():
        yield


@pytest.fixture(scope="session", autouse=True)
def _one_command() -> None:
    """The command line is described once, not anew for each command of this process."""
    import typer.main

    typer.main.get_command = functools.cache(typer.main.get_command)


@pytest.fixture(scope="session")
def bundled() -> Any:
    from sightline.models.encoders import load_encoder

    return load_encoder("bundled", device="cpu")


WORDS = """
a about an and at axle balanced balancing bar below beside border bottom car cart centre down drawing driving edge end
falling far flag from hanging high hill horizontal horizontally image in is its leaning left little lowest lying middle
mountain mountains next of on peak pendulum picture point pointing pole right rod side slightly slope standing stick
straight the this tilted to top track trolley turning under up upright upside valley vehicle vertical vertically wagon
with yellow
"""
"""Known to encoders of tests; values of golden runs depend on their number and order."""


def write_open_clip_encoder(folder: Path, config: dict[str, Any], preprocessing: dict[str, Any] | None = None) -> None:
    """A random encoder in open_clip's format, with a tokenizer of words."""
    from open_clip.model import CLIP

    from pretraining.encoder.train import PREPROCESSING, save_encoder, save_tokenizer

    folder.mkdir(parents=True)
    tokens = save_tokenizer(folder, WORDS.split())
    text: dict[str, Any] = {"context_length": 24, "width": 32, "heads": 2, "layers": 2, "vocab_size": tokens}
    text["hf_tokenizer_name"] = "tokenizer.json beside this file"
    vision = {"head_width": 16, **config["vision_cfg"]}
    model_config: dict[str, Any] = {"embed_dim": config["embed_dim"], "vision_cfg": vision, "text_cfg": text}
    torch.manual_seed(config["embed_dim"])
    model = CLIP(**model_config)
    with torch.no_grad():  # a fresh text tower puts all sentences on nearly the same point
        model.token_embedding.weight.mul_(50)
        if hasattr(model.visual, "attnpool"):  # and a fresh residual network all pictures
            model.visual.attnpool.positional_embedding.zero_()
            model.visual.attnpool.v_proj.bias.zero_()
            model.visual.attnpool.c_proj.bias.zero_()
    save_encoder(model, model_config, folder)
    document = {"model_cfg": model_config, "preprocess_cfg": PREPROCESSING | (preprocessing or {})}
    (folder / "open_clip_config.json").write_text(json.dumps(document))


@pytest.fixture(scope="session")
def encoder_folder(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Name of a size -> folder of a random encoder in open_clip's format."""
    root = tmp_path_factory.mktemp("encoders")

    def folder(size: str) -> Path:
        if not (root / size).exists():
            write_open_clip_encoder(root / size, SIZES[size])
        return root / size

    return folder


@pytest.fixture
def frames_of() -> Callable[..., np.ndarray]:
    """`frames_of(N, H, W)`: random frames, smooth in part, so that resizing them is not all noise."""

    def make(count: int, height: int = 50, width: int = 70, seed: int = 0) -> np.ndarray:
        rng = np.random.default_rng(seed)
        frames = rng.integers(0, 256, (count, height, width, 3), np.uint8)
        frames[:, : height // 2] = rng.integers(0, 256, (count, 1, 1, 3), np.uint8)
        return frames

    return make


@dataclass(frozen=True)
class Finished:
    """A command that has ended."""

    code: int
    out: str
    err: str

    @property
    def lines(self) -> list[str]:
        """What it said on stderr."""
        return self.err.splitlines()


@pytest.fixture
def sightline(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., Finished]:
    """The command, in this process and in an empty working folder: `sightline("train", "cartpole", …)`."""
    from sightline.cli.commands import main

    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    monkeypatch.delenv("SIGHTLINE_DEBUG", raising=False)
    monkeypatch.setattr(sys, "unraisablehook", sys.unraisablehook)  # `main` sets its own

    def call(*arguments: Any) -> Finished:
        monkeypatch.setattr(sys, "argv", ["sightline", *map(str, arguments)])
        out, err, code = io.StringIO(), io.StringIO(), 0
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            try:
                main()
            except SystemExit as left:
                code = int(left.code or 0)
        return Finished(code, out.getvalue(), err.getvalue())

    return call


def start_sightline(*arguments: Any, cwd: Path, **environment: str) -> subprocess.Popen[str] | ForkedProcess:
    """The command as a process of its own, in a session of its own.

    It is forked from one that has imported the libraries, unless variables are given that libraries read when they are
    imported. With `HURRIED` it gives up sooner what it waits for; its messages go to the file `STDERR`.
    """
    paths = os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")])
    variables = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": paths} | environment
    words = list(map(str, arguments))
    if environment.keys() <= {"TMPDIR", "HURRIED", "STDERR", "SIGHTLINE_LEASE_TIMEOUT"}:
        return fork_server.start(words, cwd, variables)
    return subprocess.Popen(
        [sys.executable, "-m", "sightline", *words],
        cwd=cwd,
        env=variables,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


@pytest.fixture
def train_run(sightline: Callable[..., Finished], tmp_path: Path) -> Callable[..., Path]:
    """A run in this process that must succeed: `train_run("cartpole", …, name="run")` -> its folder."""

    def run(*arguments: Any, name: str = "run") -> Path:
        done = sightline("train", *arguments, "--run-dir", tmp_path / name)
        assert done.code == 0, done.err
        return tmp_path / name

    return run


def trained(folder: Path, *arguments: Any) -> Path:
    """Train in a process of its own, to the end; gives the run folder."""
    process = start_sightline("train", *arguments, "--run-dir", folder / "run", cwd=folder)
    _, err = process.communicate(timeout=900)
    assert process.returncode == 0, err
    return folder / "run"


@pytest.fixture
def sightline_process(tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """`start_sightline` in an empty folder; whatever still runs at the end of the test is ended."""
    started: list[subprocess.Popen[str]] = []

    def start(*arguments: Any, cwd: Path = tmp_path, **environment: str) -> subprocess.Popen[str]:
        started.append(start_sightline(*arguments, cwd=cwd, **environment))
        return started[-1]

    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)  # children inherit that it is ignored, as under `nohup`
    yield start
    signal.signal(signal.SIGHUP, before)
    for process in started:
        if process.poll() is None:
            process.kill()
        process.communicate()


@pytest.fixture(scope="session")
def opengl() -> None:
    """Skips where nothing can be rendered."""
    import gymnasium

    from sightline_tasks.cameras import View
    from sightline_tasks.mujoco_rendering import OffscreenRenderer, import_mujoco

    try:
        mujoco = import_mujoco()
    except gymnasium.error.DependencyNotInstalled as error:
        pytest.skip(str(error))
    model = mujoco.MjModel.from_xml_string("<mujoco/>")
    renderer = OffscreenRenderer(model, (8, 8))
    try:
        renderer.render(mujoco.MjData(model), View((0.0, 0.0, 0.0), 1.0, 0, 0))
    except Exception as error:
        pytest.skip(f"no OpenGL here: {error}")
    finally:
        renderer.close()
