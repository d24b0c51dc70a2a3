"""The command: bad input is one line and exit code 2, failures one line and 1, JSON alone on stdout."""

from __future__ import annotations

import csv
import errno
import io
import json
import os
import struct
import subprocess
import sys
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from conftest import SIZES, TINY, Finished, write_open_clip_encoder
from fault_server import FaultServer, status
from sightline.config.bundled import bundled_recipes
from sightline.config.loading import load_recipe
from sightline.errors import BadInput
from sightline.evaluation.video import write_scored_video
from sightline.images import Picture
from sightline.runs.files import read_document
from small_runs import seen

Sightline = Callable[..., Finished]
GOAL = ("--goal", "pole vertically upright on top of the cart")


def check_one_line(done: Finished, code: int, *expected: str) -> None:
    assert done.code == code, done.err
    (line,) = done.lines
    assert line.startswith("sightline: ")
    assert "Traceback" not in line
    assert done.out == ""
    for text in expected:
        assert text in line, line


# -- recipes from elsewhere ---------------------------------------------------------------------------------------

TEXT = "env: cartpole\nsteps: 256\ngoal: 'a: b=c'\n"


@pytest.mark.parametrize("as_text", [True, False])
def test_a_recipe_comes_as_text_or_on_stdin(
    sightline: Sightline, as_text: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(TEXT))
    recipe = parsed(sightline("train", TEXT if as_text else "-", "seed=7", "--dry-run", "--json"))
    assert (recipe["env"], recipe["steps"], recipe["seed"], recipe["goal"]) == ("cartpole", 256, 7, ["a: b=c"])


@pytest.mark.parametrize("text", ["env: cartpole", "{env: cartpole, seed: 1}", f"env: cartpole\n# {'x' * 5000}"])
def test_short_and_long_texts_are_recipes(sightline: Sightline, text: str) -> None:
    assert parsed(sightline("train", text, "--dry-run", "--json"))["env"] == "cartpole"


def test_a_file_whose_name_looks_like_yaml(sightline: Sightline) -> None:
    Path("my: recipe.yaml").write_text("env: cartpole\nseed: 8\n")
    assert parsed(sightline("train", "my: recipe.yaml", "--dry-run", "--json"))["seed"] == 8


def test_an_override_that_holds_a_colon_is_no_text(sightline: Sightline) -> None:
    recipe = parsed(sightline("train", "goal=a pole: upright", "env=cartpole", "--dry-run", "--json"))
    assert recipe["goal"] == ["a pole: upright"]


def test_the_run_of_a_text_is_named_by_its_environment_and_resumed(sightline: Sightline) -> None:
    done = sightline("train", "env: cartpole\nreward: {kind: ground_truth}", *TINY)
    assert done.code == 0, done.err
    (run,) = Path("runs").iterdir()
    assert run.name.startswith("cartpole-")
    again = sightline("train", "env: cartpole\nreward: {kind: ground_truth}", *TINY, "steps=512", "--resume")
    assert again.code == 0, again.err
    assert len(list(Path("runs").iterdir())) == 1


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("env: cartpole\n  seed: 1\n", ("given as text", "not valid YAML", "line 2")),
        ("env: cartpole\nseed: 1\nseed: 2\n", ("'seed' twice",)),
        ("goal: a pole", ("no environment",)),
        ("[a,\nb]", ("given as text", "map of keys and values")),
        ("env: cartpole\nstepz: 3", ("stepz", "'steps'")),
        ("---\nenv: cartpole", ("No such option",)),
    ],
)
def test_texts_that_are_no_recipes(sightline: Sightline, text: str, expected: tuple[str, ...]) -> None:
    check_one_line(sightline("train", text), 2, *expected)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (b"", "the recipe on stdin is empty"),
        (b"\n \n", "the recipe on stdin is empty"),
        (b"cartpole\n", "the recipe on stdin must be a YAML map"),
        (b"env: \xff\xfe", "not text in UTF-8"),
        (b"env: [", "the recipe on stdin is not valid YAML"),
        (b"a: " + b"x" * 1_000_010, "larger than the limit of 1 MB"),
    ],
)
def test_what_comes_on_stdin_and_is_no_recipe(
    sightline: Sightline, monkeypatch: pytest.MonkeyPatch, given: bytes, expected: str
) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(given), encoding="utf-8"))
    check_one_line(sightline("train", "-"), 2, expected)


def test_a_closed_stdin_is_no_recipe(sightline: Sightline, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", None)
    check_one_line(sightline("train", "-"), 2, "stdin is empty")


# -- bad input --------------------------------------------------------------------------------------------------------

BAD_TRAINING: list[tuple[list[str], tuple[str, ...]]] = [
    (["cartpol"], ("'cartpole'",)),
    (["cartpole", "stepz=3"], ("stepz", "'steps'")),
    (["cartpole", "reward.alfa=0.5"], ("reward.alfa", "'alpha'")),
    (["cartpole", "learner.gama=0.5"], ("learner.gama", "'gamma'")),
    (["env=Pendulm-v1", "goal=a rod"], ("'Pendulum-v1'",)),
    (["env=cartpol", "goal=a pole"], ("'cartpole'",)),
    (["env=small_envs:Clok", "goal=a clock"], ("'Clock'",)),
    (["env=no_such_module:Env", "goal=a clock"], ("no_such_module",)),
    (["cartpole", "reward.encoder=bundeld"], ("'bundled'",)),
    (["cartpole", "reward.encoder=ViT-B-33/openai"], ("'ViT-B-32'",)),
    (["cartpole", "reward.encoder=ViT-B-32/opnai"], ("'openai'",)),
    (["cartpole", "reward.encoder=local-dir:/no/such/folder"], ("/no/such/folder",)),
    (["env=small_envs:Blind", "goal=a clock"], ("rgb_array",)),
    (["cartpole", "goal="], ("empty",)),
    (["cartpole", "baseline= "], ("empty",)),
    (["cartpole", "goal=[]"], ("empty goal", "leave it out")),
    (["cartpole", "goal=null"], ("goal", "null")),
    (["cartpole", "goal=[a"], ("goal", "not valid YAML", "quote")),
    (["cartpole", "learner.learning_rate=.inf"], ("learner.learning_rate", "finite")),
    (["cartpole", "seed=4294967296"], ("seed", "4294967295")),
    (["."], ("is a folder",)),
    (["cartpole", "goal=pole and cart"], ("same words",)),
    (["env=Pendulum-v1"], ("no goal",)),
    (["env=gym_cards/NumberLine-v0"], ("there is no environment", "numberline")),
    (["role=agent", "env=metaworld_drawer-open-v2", "reward.kind=zero_shot"], ("there is no environment",)),
    (["cartpole", "reward.alpha=1.5"], ("alpha",)),
    (["cartpole", "reward.alpha=-1"], ("alpha",)),
    (["cartpole", "steps=none"], ("steps",)),
    (["cartpole", "learner.algorithm=SAC"], ("learner.algorithm=DQN",)),
    (["cartpole", "reward.device=gpu"], ("device 'gpu'",)),
    (["goal=a pole"], ("no environment",)),
    (["cartpole", "notakey"], ("key=value",)),
    (["cartpole", "--no-such-option"], ("--no-such-option", "--help")),
    ([], ("sightline recipes",)),
    (["steps=10", "cartpole"], ("recipe comes first",)),
    (["cartpole", "learner.algorithm=Dreamer"], ("sb3_contrib.TQC",)),
]


@pytest.mark.parametrize(("arguments", "expected"), BAD_TRAINING, ids=lambda value: " ".join(value) or "nothing")
def test_bad_training_input(sightline: Sightline, arguments: list[str], expected: tuple[str, ...]) -> None:
    check_one_line(sightline("train", *arguments), 2, *expected)
    assert not list(Path.cwd().iterdir()), "bad input leaves no run folder behind"


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("learner.algorithm=sb3_contrib.TQCC", "TQCC"),
        ("learner.algorithm=stable_baselines3.PPO", "PPO"),
        ("learner.options={gradient_stepz: 3}", "gradient_stepz"),
        ("device=gpu", "device 'gpu'"),  # also a RuntimeError with exit code 1
    ],
)
def test_a_learner_that_cannot_be(sightline: Sightline, override: str, expected: str) -> None:
    check_one_line(sightline("train", "cartpole", override), 2, expected)
    assert not list(Path.cwd().iterdir()), "bad input leaves no run folder behind"


def test_a_long_sentence_may_come_first(sightline: Sightline) -> None:
    sentence = "a pole that stands " + "very " * 100 + "upright"
    recipe = parsed(sightline("train", f"goal={sentence}", "env=cartpole", "--dry-run", "--json"))
    assert recipe["goal"] == [sentence]


def test_names_that_are_too_long_for_a_file(sightline: Sightline) -> None:
    name = "x" * 300
    for arguments in (("train", name), ("evaluate", name), ("report", name), ("label", "stats", name)):
        check_one_line(sightline(*arguments), 2, "too long for the name of a file")
    check_one_line(sightline("train", "cartpole", "--run-dir", name), 2, "too long for the name of a file")


def test_a_run_folder_that_exists(sightline: Sightline, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("precious")
    check_one_line(sightline("train", "cartpole", "--run-dir", tmp_path / "mine"), 2, "exists already", "--resume")
    assert [file.name for file in (tmp_path / "mine").iterdir()] == ["thesis.txt"]
    file = tmp_path / "mine" / "thesis.txt"
    check_one_line(sightline("train", "cartpole", "--run-dir", file), 2, "exists already")
    assert file.read_text() == "precious"


def test_resuming_what_is_not_there(sightline: Sightline, tmp_path: Path) -> None:
    check_one_line(sightline("train", "cartpole", "--resume"), 2, "cartpole")
    check_one_line(sightline("train", "cartpole", "--resume", "--run-dir", tmp_path / "none"), 2, "not a run folder")
    assert not list(Path.cwd().iterdir())
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize("command", ["evaluate", "report"])
def test_what_is_no_run_folder(sightline: Sightline, tmp_path: Path, command: str) -> None:
    check_one_line(sightline(command, tmp_path / "none"), 2, "not a run folder")
    (tmp_path / "half").mkdir()
    (tmp_path / "half" / "recipe.yaml").write_text("{[")
    if command == "evaluate":
        check_one_line(sightline(command, tmp_path / "half"), 2)


def test_an_encoder_that_cannot_be_fetched(sightline: Sightline) -> None:
    from huggingface_hub.constants import HF_HUB_CACHE

    name = "ViT-B-32/laion2b_s34b_b79k"
    done = sightline("train", "cartpole", f"reward.encoder={name}")
    check_one_line(done, 1, str(HF_HUB_CACHE), f"sightline models --fetch {name}")
    assert not list(Path.cwd().iterdir())


IN_WORKERS = ("workers=processes", *TINY, "envs=2", "learner.algorithm=DQN")
PROCESS_CASES = {
    "unknown environment": (["train", "env=Pendulm-v1", "goal=a rod"], 2),
    "no encoder": (["train", "cartpole", "reward.encoder=hf:no-one/nothing"], 1),
    "breaks in a worker": (["train", "env=small_envs:Raising", "goal=a pole", *IN_WORKERS], 1),
    "no colours in a worker": (["train", "env=small_envs:Heat", "goal=a pole", *IN_WORKERS], 1),
    "big picture": (["score", "big.png", *GOAL], 2),
}


@pytest.mark.parametrize("case", list(PROCESS_CASES))
def test_nothing_else_reaches_stderr(
    sightline_process: Callable[..., subprocess.Popen[str]], tmp_path: Path, case: str
) -> None:
    """As a process of its own: warnings of libraries and last words of worker processes would show here."""
    arguments, code = PROCESS_CASES[case]
    (tmp_path / "big.png").write_bytes(png_header(12_000, 12_000))
    process = sightline_process(*arguments)
    out, err = process.communicate(timeout=120)
    usual = ("warning: encoder 'bundled'", "warning: these pictures are unlike", "training for ")
    said = [line for line in err.splitlines() if not line.startswith(usual)]
    check_one_line(Finished(process.returncode, out, "\n".join(said)), code)
    (run,) = [*tmp_path.glob("runs/*"), None][:1]
    assert run is None or code == 1


def test_debug_shows_where(tmp_path: Path, sightline_process: Callable[..., subprocess.Popen[str]]) -> None:
    process = sightline_process("--debug", "score", "none.png", *GOAL)
    _, err = process.communicate(timeout=120)
    assert "Traceback" in err
    assert "BadInput" in err
    assert process.returncode == 1


# -- JSON -------------------------------------------------------------------------------------------------------------


def parsed(done: Finished) -> Any:
    assert done.code == 0, done.err
    return json.loads(done.out)


def test_lists(sightline: Sightline) -> None:
    listed = parsed(sightline("recipes", "--json"))
    assert [row["recipe"] for row in listed] == bundled_recipes()
    assert all(row["description"] for row in listed)
    assert {"cartpole", "mountain-car"} <= {row["task"] for row in parsed(sightline("tasks", "--json"))}
    names = [row["model"] for row in parsed(sightline("models", "ViT-B-32", "--json"))]
    assert "ViT-B-32/laion2b_s34b_b79k" in names
    for command in ("recipes", "tasks"):
        assert "cartpole" in sightline(command).out


def test_doctor(sightline: Sightline) -> None:
    done = sightline("doctor", "--json")
    findings = parsed(done)
    assert {"python", "bundled encoders", "videos"} <= {finding["name"] for finding in findings}
    assert all(finding["works"] or finding["mend"] for finding in findings)
    assert all(line.startswith("looking at ") and line.endswith(" …") for line in done.lines)
    assert {"looking at the bundled encoders …", "looking at videos …"} <= set(done.lines)


@pytest.mark.parametrize(
    ("name", "ended", "expected"),
    [
        ("egl", (0, "llvmpipe (LLVM 15.0.6, 256 bits)\n", ""), "renders in software, which is slow, by llvmpipe (LLVM"),
        ("egl", (0, "NVIDIA H100/PCIe/SSE2\n", ""), "renders by NVIDIA H100/PCIe/SSE2; chosen by MUJOCO_GL=egl"),
        ("osmesa", (1, "", "AttributeError: 'NoneType' object has no attribute 'glGetError'"), "OSMesa is missing"),
        ("glfw", (1, "", "AttributeError: '_mjr_context'"), "there is no display"),
        ("egl", (-11, "", ""), "ended with code -11"),
    ],
)
def test_doctor_names_the_renderer(
    monkeypatch: pytest.MonkeyPatch, name: str, ended: tuple[int, str, str], expected: str
) -> None:
    from sightline import doctor

    monkeypatch.delenv("DISPLAY", raising=False)
    code, out, err = ended
    done = subprocess.CompletedProcess([], code, out, err)
    monkeypatch.setattr(doctor.subprocess, "run", lambda *args, **options: done)
    found = doctor._mujoco_back_end(name)
    assert expected in found.detail
    assert found.works == (code == 0)
    assert found.works or "apt-get install" in found.fix


def test_doctor_names_what_an_extra_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which is right beside a checkout as well as beside a package from an index."""
    from sightline import doctor

    needed = ["numpy>=2", "wandb>=0.19; extra == 'wandb'", 'metaworld==3.1.1; extra == "metaworld"']
    needed += ["packaging>=23; extra == 'metaworld'", "wandb-core; extra == 'wandb-other'"]
    monkeypatch.setattr(doctor.metadata, "requires", lambda name: needed if name == "sightline" else None)
    monkeypatch.setattr(doctor, "_is_there", lambda module: False)
    fixes = {check.name: check.fix for check in doctor._extras()}
    assert fixes["wandb"] == "pip install 'sightline[wandb]'"
    assert fixes["metaworld"] == "pip install 'sightline[metaworld]'"

    def missing(name: str) -> list[str]:
        raise doctor.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(doctor.metadata, "requires", missing)
    assert {check.name: check.fix for check in doctor._extras()}["wandb"].startswith("pip install -e '.[wandb]' in ")


def test_train_evaluate_report(sightline: Sightline, tmp_path: Path) -> None:
    run = tmp_path / "run"
    trained = sightline("train", "cartpole", *TINY, "--run-dir", run, "--json")
    result = parsed(trained)
    expected = {"success_rate", "ci_low", "ci_high", "episodes", "panel", "return", "reward", "untrained", "run"}
    assert expected <= result.keys()
    assert result["episodes"] == 3
    assert result["run"] == str(run)
    assert "Traceback" not in trained.err
    for name in ("recipe.yaml", "versions.json", "metrics.jsonl", "result.json", "report.html", "command.txt"):
        assert (run / name).stat().st_size > 0, name
    stored = read_document(run / "result.json")
    assert {key: result[key] for key in stored} == stored
    evaluated = parsed(sightline("evaluate", run, "--episodes", "3", "--json"))
    for key in ("success_rate", "ci_low", "ci_high", "panel", "return", "reward", "chosen_step", "episodes"):
        assert evaluated[key] == result[key], key
    other = parsed(sightline("evaluate", run, "--episodes", "5", "--seed", "1", "--json"))
    assert other["episodes"] == 5
    assert other["panel"] != result["panel"]
    assert "success" in sightline("evaluate", run, "--episodes", "2").out
    short = parsed(sightline("evaluate", run, "episode_steps=2", "--episodes", "3", "--json"))
    assert short["return"] <= 2 < result["return"]
    assert short["panel"] != result["panel"]
    check_one_line(sightline("evaluate", run, "learner.gamma=0.5"), 2, "learner.gamma is of the training")
    (run / "report.html").unlink()
    assert sightline("report", run).out.strip() == str(run / "report.html")
    said = parsed(sightline("report", run, "--json"))
    assert said["report"] == str(run / "report.html")
    assert said["result"]["success_rate"] == result["success_rate"]
    assert (said["warnings"], said["damage"]) == ([], [])
    assert (run / "report.html").is_file()
    check_one_line(sightline("evaluate", run, "--episodes", "0"), 2)
    check_one_line(sightline("evaluate", run, "--seed", 2**32), 2, "--seed")
    check_one_line(sightline("train", "cartpole", *TINY, "--run-dir", run), 2, "exists already")
    for model in run.glob("checkpoints/best-*/*.safetensors"):
        model.write_bytes(model.read_bytes()[:-100])
    check_one_line(sightline("evaluate", run), 2, "checkpoint")


@pytest.mark.parametrize("name", bundled_recipes())
def test_dry_run_prints_the_resolved_recipe_and_does_nothing(sightline: Sightline, name: str) -> None:
    import yaml

    from sightline.roles import complete

    recipe = complete(load_recipe(name, ["seed=3"]))
    expected = recipe.model_dump(mode="json")
    done = sightline("train", name, "seed=3", "--dry-run")
    assert done.code == 0
    names = [line.split("  ")[0] for line in done.lines]
    assert names == ["memory", "disk", *(["evaluation"] if recipe.role == "control" else [])]
    assert yaml.safe_load(done.out) == expected
    assert parsed(sightline("train", name, "seed=3", "--dry-run", "--json")) == expected
    assert not list(Path.cwd().iterdir())
    Path("resolved.yaml").write_text(done.out)
    assert parsed(sightline("train", "resolved.yaml", "--dry-run", "--json")) == expected


# -- agents ------------------------------------------------------------------------------------------------------------

SMALL_AGENT = (
    *("steps=24", "tensorboard=false", "evaluation.every=12", "evaluation.stop_at=null", "evaluation.episodes=4"),
    *("evaluation.test_episodes=4", "rollouts.tasks=3"),
)
NUMBERS = {"success_rate", "ci_low", "ci_high", "episodes", "panel", "return", "truthful_replies", "score"}


def test_train_evaluate_report_an_agent(sightline: Sightline, tmp_path: Path) -> None:
    run = tmp_path / "run"
    trained = sightline("train", "numberline", *SMALL_AGENT, "--run-dir", run, "--json")
    result = parsed(trained)
    assert {"chosen_step", "untrained", "seconds", "run"} <= result.keys()
    for numbers in (result, result["blank"], result["shuffled"], result["untrained"], result["random"]):
        assert numbers.keys() >= NUMBERS
        assert numbers["episodes"] == 4
        assert numbers["panel"] == result["panel"]
        assert 0 <= numbers["ci_low"] <= numbers["success_rate"] <= numbers["ci_high"] <= 1
    assert result["oracle"]["success_rate"] == 1
    assert "Traceback" not in trained.err
    for name in ("recipe.yaml", "versions.json", "metrics.jsonl", "result.json", "report.html", "command.txt"):
        assert (run / name).stat().st_size > 0, name
    assert (run / "trajectories" / "test-blank.json").is_file()
    stored = read_document(run / "result.json")
    assert {key: result[key] for key in stored} == stored
    evaluated = parsed(sightline("evaluate", run, "--episodes", "4", "--json"))
    for key in (*NUMBERS, "chosen_step", "blank", "shuffled", "random"):
        assert evaluated[key] == result[key], key
    other = parsed(sightline("evaluate", run, "--episodes", "3", "--seed", "1", "--json"))
    assert other["episodes"] == 3
    assert other["panel"] != result["panel"]
    told = sightline("evaluate", run, "--episodes", "2")
    assert [line.split()[0] for line in told.out.splitlines()] == ["success", "blank", "shuffled", "random", "oracle"]
    assert "blank pictures: 2 episodes are played" in told.err
    (run / "report.html").unlink()
    assert sightline("report", run).out.strip() == str(run / "report.html")
    assert (run / "report.html").is_file()
    check_one_line(sightline("evaluate", run, "steps=3"), 2, "leave out steps=3")
    check_one_line(sightline("train", "numberline", *SMALL_AGENT, "--run-dir", run), 2, "exists already", "--resume")
    check_one_line(sightline("train", "numberline", "seed=9", "--run-dir", run, "--resume"), 2, "seed=0")
    resumed = sightline("train", "--run-dir", run, "--resume")
    assert resumed.code == 0
    assert resumed.lines[0].startswith("resuming from step ")
    assert [line.split()[0] for line in resumed.out.splitlines()] == [
        *("untrained", "trained", "blank", "shuffled", "report")
    ]
    for weights in run.glob("checkpoints/best-*/model.safetensors"):
        weights.write_bytes(weights.read_bytes()[:-100])
    check_one_line(sightline("evaluate", run), 2, "checkpoint")


def test_evaluate_a_game_with_a_model_that_is_loaded(sightline: Sightline) -> None:
    numbers = parsed(sightline("evaluate", "numberline", "--model", "bundled", "--episodes", "5", "--json"))
    assert numbers.keys() >= NUMBERS | {"blank", "shuffled", "random", "oracle"}
    assert numbers["episodes"] == 5
    assert numbers["oracle"]["success_rate"] == 1
    options = ("--model", "bundled", "--episodes", "5", "--json")
    assert parsed(sightline("evaluate", "numberline", "policy.model=/not/read", *options)) == numbers
    longer = parsed(sightline("evaluate", "numberline", "env_options.max_position=9", *options))
    assert longer["random"] != numbers["random"]
    assert not list(Path.cwd().iterdir())


def test_one_table_of_several_games(sightline: Sightline) -> None:
    """Each row is what the game's own command says; what cannot be played says why."""
    short = ("episode_steps=2", "--model", "bundled", "--episodes", "2")
    done = sightline("evaluate", "--games", "numberline,household-thor,ezpoints", *short, "--json")
    table = parsed(done)
    assert list(table) == ["numberline", "household-thor", "ezpoints"]
    assert table["ezpoints"] == parsed(sightline("evaluate", "ezpoints", *short, "--json"))
    assert list(table["household-thor"]) == ["not_played"] and "config" in table["household-thor"]["not_played"]
    assert "numberline: success" in done.err and "household-thor: not played: " in done.err
    told = sightline("evaluate", "--games", "numberline,household-thor", *short).out.splitlines()
    assert told[0].split("  ", 1)[0] == "game" and "clean  true  unread  blank  other  random  best" in told[0]
    assert told[1].startswith("numberline") and told[-1].startswith("household-thor was not played: ")
    assert max(map(len, told[:-1])) <= 80


def test_all_games_are_those_that_are_installed(sightline: Sightline, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def refused(name: str, *arguments: Any) -> Any:
        asked.append(name)
        raise BadInput(f"'{name}' is not played here")

    monkeypatch.setattr("sightline.roles.evaluate_model", refused)
    done = sightline("evaluate", "--games", "all", "--model", "bundled")
    assert done.code == 2 and "'babyai' is not played here" in done.err, "nothing was played: as the first says"
    assert set(asked) >= {"numberline", "ezpoints", "points24", "blackjack", "frozenlake", "sokoban", "household"}
    assert "cartpole" not in asked and asked == sorted(asked)


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("--games", "all"), "--model NAME"),
        (("numberline", "--games", "all", "--model", "bundled"), "leave out 'numberline'"),
        (("--games", " , ", "--model", "bundled"), "--games is empty"),
        (("--games", "all", "--model", "bundled", "--people", "."), "--people"),
        ((), "say which run"),
    ],
)
def test_games_that_cannot_be_meant(sightline: Sightline, arguments: tuple[str, ...], complaint: str) -> None:
    check_one_line(sightline("evaluate", *arguments), 2, complaint)


def reads_the_number_line(asked: Any) -> str:
    """What a model would say that sees every picture as it is."""
    picture = Picture(asked.pictures[-1])
    current, target = seen().get(picture.digest, (0, 5))
    action = "+" if current < target else "-"
    return json.dumps({"current": str(current), "target": str(target), "thoughts": "so", "action": action})


def test_evaluate_a_game_with_a_model_that_is_hosted(sightline: Sightline, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "right")
    with FaultServer(reads_the_number_line) as server:
        options = ("--model", "seer", "--url", server.url, "--episodes", "6", "--json")
        numbers = parsed(sightline("evaluate", "numberline", *options))
    assert numbers.keys() >= NUMBERS | {"blank", "shuffled", "random", "oracle"}
    assert (numbers["model"], numbers["missing"]) == ("seer", 0)
    assert numbers["success_rate"] == numbers["truthful_replies"] == 1
    assert numbers["shuffled"]["truthful_replies"] < 0.5
    assert numbers["blank"]["success_rate"] < 1
    assert numbers["input_tokens"] > 0
    assert (
        parsed(sightline("evaluate", "numberline", "--model", "bundled", "--episodes", "6", "--json"))["panel"]
        == (numbers["panel"])
    )


def test_one_that_only_writes_prose_wins_nothing(sightline: Sightline, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "right")
    with FaultServer(lambda asked: "What a lovely pair of numbers! I should think about them.") as server:
        options = ("numberline", "--model", "poet", "--url", server.url, "--episodes", "6")
        numbers = parsed(sightline("evaluate", *options, "--json"))
        line = sightline("evaluate", *options).out.splitlines()[0]
        at_random = sightline("evaluate", "numberline", "evaluation.unparsable=random", *options[1:]).out.splitlines()[
            0
        ]
    assert (numbers["unparsable"], numbers["success_rate"], numbers["ci_low"]) == (1.0, 0.0, 0.0)
    assert line.startswith("unparsable 100 %, success 0 %")
    assert at_random.startswith("random moves in place of 100 % of its replies, unparsable 100 %, success")


def test_a_hosted_model_that_cannot_be_asked(sightline: Sightline, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "right")
    check_one_line(sightline("evaluate", "numberline", "--url", "http://localhost:1"), 2, "--model")
    check_one_line(sightline("evaluate", "numberline", "--provider", "opena", "--model", "m"), 2, "'openai'")
    check_one_line(sightline("evaluate", "numberline", "--provider", "openai"), 2, "--model")
    check_one_line(sightline("evaluate", "numberline", "--model", "m", "--url", "no address"), 2)
    check_one_line(sightline("evaluate", "cartpole", "--model", "bundled"), 2, "role=agent")
    check_one_line(sightline("evaluate", "numberlin", "--model", "bundled"), 2, "'numberline'")
    check_one_line(sightline("evaluate", "numberline"), 2, "--model")
    check_one_line(sightline("evaluate", "numberline", "--model", "/none"), 2, "/none")
    check_one_line(sightline("evaluate", "numberline", "stepz=3", "--model", "bundled"), 2, "'steps'")
    check_one_line(sightline("evaluate", "numberline", "--model", "bundled", "--episodes", "0"), 2)
    with FaultServer(reads_the_number_line, faults=[status(404, "no such model")] * 9) as server:
        done = sightline("evaluate", "numberline", "--model", "nobody", "--url", server.url)
    check_one_line(done, 2, "no such model")


def test_a_game_is_checked_and_demonstrated(sightline: Sightline, tmp_path: Path) -> None:
    assert parsed(sightline("check-env", "numberline", "--episodes", "4", "--json"))["passed"]
    demos = tmp_path / "demos"
    assert parsed(sightline("demos", "numberline", "--turns", "12", "--out", demos, "--json"))["turns"] == 12
    check_one_line(sightline("demos", "numberline", "--turns", "12", "--out", demos), 2, "already")


# -- score ------------------------------------------------------------------------------------------------------------


def png_header(width: int, height: int) -> bytes:
    """A PNG that promises a huge picture and holds none."""
    body = b"IHDR" + struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + struct.pack(">I", 13) + body + struct.pack(">I", zlib.crc32(body))


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    """A cart with its pole up, leaning and down, and the first one again in other modes."""
    from sightline_tasks.control.cartpole import LOOKS, draw_cartpole

    folder = tmp_path / "pictures"
    folder.mkdir()
    for name, angle in (("a_up", 0.0), ("b_leaning", 0.8), ("c_down", 3.0)):
        Image.fromarray(draw_cartpole(0, angle, (96, 96), LOOKS["plain"])).save(folder / f"{name}.png")
    return folder


def test_score_images_and_folders(sightline: Sightline, pictures: Path) -> None:
    rows = parsed(sightline("score", pictures, *GOAL, "--baseline", "pole and cart", "--json"))
    assert [set(row) for row in rows] == [{"image", "reward"}] * 3
    assert [Path(row["image"]).name for row in rows] == ["a_up.png", "b_leaning.png", "c_down.png"]
    rewards = [row["reward"] for row in rows]
    assert rewards[0] > rewards[1]
    assert rewards[0] > rewards[2]
    one = parsed(sightline("score", pictures / "a_up.png", *GOAL, "--baseline", "pole and cart", "--json"))
    assert one[0]["reward"] == pytest.approx(rewards[0], abs=1e-5)
    table = sightline("score", pictures, *GOAL, "--baseline", "pole and cart")
    assert table.code == 0
    assert [f"{reward:+.4f}" in table.out for reward in rewards] == [True] * 3
    Image.new("RGB", (33, 20), "red").save(pictures / "d_other_size.jpg")
    (pictures / "notes.txt").write_text("no picture")
    assert len(parsed(sightline("score", pictures, *GOAL, "--json"))) == 4


def test_score_takes_alpha_several_goals_and_writes_csv(sightline: Sightline, pictures: Path, tmp_path: Path) -> None:
    def score(*options: str) -> list[float]:
        return [row["reward"] for row in parsed(sightline("score", pictures, *GOAL, *options, "--json"))]

    base = ("--baseline", "pole and cart")
    assert score(*base) == score(*base, "--alpha", "0.5") != score(*base, "--alpha", "0.9")
    two = score("--goal2", "pole standing up")
    assert two == pytest.approx(score("--goal", "pole standing up"), abs=1e-6)
    assert two != score()
    done = sightline("score", pictures, *GOAL, "--csv", tmp_path / "scores.csv", "--json")
    with (tmp_path / "scores.csv").open() as file:
        written = list(csv.DictReader(file))
    for row, expected in zip(written, parsed(done), strict=True):
        assert row["image"] == expected["image"]
        assert float(row["reward"]) == pytest.approx(expected["reward"], abs=1e-6)


def test_score_takes_other_modes(sightline: Sightline, pictures: Path) -> None:
    with Image.open(pictures / "a_up.png") as image:
        image.convert("L").save(pictures / "grey.png")
        image.convert("L").convert("RGB").save(pictures / "grey_rgb.png")
        image.convert("RGBA").save(pictures / "opaque.png")
        holes = np.asarray(image.convert("RGBA")).copy()
        holes[(holes[:, :, :3] == 255).all(axis=2)] = (0, 255, 0, 0)  # green, but wholly transparent
        Image.fromarray(holes).save(pictures / "holes.png")
        Image.fromarray(np.asarray(image.convert("L")).astype(np.uint16) * 257).save(pictures / "deep.png")
        image.convert("CMYK").save(pictures / "cmyk.jpg", quality=100)
        image.convert("P", palette=Image.Palette.ADAPTIVE).save(pictures / "palette.png")
        image.convert("1").save(pictures / "bits.png")
    rows = parsed(sightline("score", pictures, *GOAL, "--baseline", "pole and cart", "--json"))
    rewards = {Path(row["image"]).stem: row["reward"] for row in rows}
    assert rewards["grey"] == pytest.approx(rewards["grey_rgb"], abs=1e-6) != rewards["a_up"]
    assert rewards["opaque"] == rewards["holes"] == pytest.approx(rewards["a_up"], abs=1e-6)
    assert rewards["palette"] == pytest.approx(rewards["a_up"], abs=0.02)
    assert all(np.isfinite(reward) for reward in rewards.values())


def test_sixteen_bit_grey_is_scaled_not_clipped(sightline: Sightline, pictures: Path) -> None:
    with Image.open(pictures / "a_up.png") as image:
        grey = np.asarray(image.convert("L"))
    Image.fromarray(grey).save(pictures / "grey.png")
    Image.fromarray(grey.astype(np.uint16) * 257).save(pictures / "deep.png")
    rows = parsed(sightline("score", pictures / "grey.png", pictures / "deep.png", *GOAL, "--json"))
    assert rows[0]["reward"] == pytest.approx(rows[1]["reward"], abs=1e-3)


def test_pictures_that_cannot_be_read(sightline: Sightline, pictures: Path, tmp_path: Path) -> None:
    files = {
        "broken.png": (pictures / "a_up.png").read_bytes()[:200],
        "text.png": b"this is text",
        "empty.jpg": b"",
        "bomb.png": png_header(60_000, 60_000),
        "broken.mp4": b"this is no video",
        "broken.gif": b"GIF89a",
    }
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
        check_one_line(sightline("score", tmp_path / name, *GOAL, "--json"), 2, name)
    check_one_line(sightline("score", tmp_path / "none.png", *GOAL), 2, "none.png")
    (tmp_path / "bare").mkdir()
    check_one_line(sightline("score", tmp_path / "bare", *GOAL), 2, "bare")


def test_pictures_among_which_some_cannot_be_read(sightline: Sightline, pictures: Path, tmp_path: Path) -> None:
    """The others are scored, and those are named; a pipe, which nobody writes into, is not waited for."""
    whole = [row["reward"] for row in parsed(sightline("score", pictures, *GOAL, "--json"))]
    (pictures / "b_text.png").write_bytes(b"this is text")
    os.mkfifo(pictures / "c_pipe.png")
    done = sightline("score", pictures, tmp_path / "none.png", *GOAL, "--csv", tmp_path / "scores.csv", "--json")
    assert done.code == 2
    assert [row["reward"] for row in json.loads(done.out)] == pytest.approx(whole, abs=1e-6)
    assert len((tmp_path / "scores.csv").read_text().splitlines()) == 1 + len(whole)
    missing, broken, pipe = done.lines
    assert "there is no file" in missing and "b_text.png' cannot be read as a picture" in broken
    assert "c_pipe.png' is no regular file" in pipe
    assert pipe.endswith(f"(3 could not be scored; the other {len(whole)} pictures were)")


@pytest.mark.parametrize("option", ["--csv", "--plot"])
def test_places_where_no_file_can_be_written_are_refused_first(
    sightline: Sightline, pictures: Path, tmp_path: Path, option: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sightline.evaluation.pictures.score_files", lambda *_: pytest.fail("scored in vain"))

    def refused(target: Path | str, *expected: str) -> None:
        check_one_line(sightline("score", pictures, *GOAL, option, target), 2, option, *expected)

    refused(tmp_path / "none" / "deep" / "x.csv", "there is no folder")
    assert not (tmp_path / "none").exists()
    refused(tmp_path, "is a folder")
    refused("/dev/full", "'/dev/full' is a device")
    refused(pictures / "a_up.png", "is one of the pictures")
    refused(pictures / "a_up.png" / "x.csv", "there is no folder")
    monkeypatch.setattr("os.access", lambda place, mode: mode != os.W_OK)
    refused(tmp_path / "x.csv", "cannot be written to")


def test_one_file_cannot_be_table_and_plot(sightline: Sightline, pictures: Path) -> None:
    check_one_line(sightline("score", pictures, *GOAL, "--csv", "x", "--plot", "./x"), 2, "name two files")


@pytest.mark.parametrize("option", ["--csv", "--plot"])
def test_rewards_are_shown_though_no_file_can_be_written(
    sightline: Sightline, pictures: Path, option: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("sightline.runs.files.write_atomically", full)
    done = sightline("score", pictures, *GOAL, option, "out", "--json")
    assert done.code == 1
    assert done.lines[-1].endswith("out' cannot be written: No space left on device")
    assert len(json.loads(done.out)) == 3


def test_a_table_goes_where_a_link_points(sightline: Sightline, pictures: Path) -> None:
    Path("link.csv").symlink_to("target.csv")
    assert sightline("score", pictures, *GOAL, "--csv", "link.csv").code == 0
    assert Path("link.csv").is_symlink() and "a_up.png" in Path("target.csv").read_text()


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_model_that_gives_no_number_fails(
    sightline: Sightline, pictures: Path, value: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    from sightline.rewards.zero_shot import GoalBaselineHead

    monkeypatch.setattr(GoalBaselineHead, "__call__", lambda self, embeddings: np.full(len(embeddings), value))
    check_one_line(sightline("score", pictures, *GOAL), 1, "encoder 'bundled'", "a_up.png", "--model")


def test_encoders_that_nobody_has(sightline: Sightline) -> None:
    check_one_line(sightline("models", "zzz"), 2, "no encoder's name contains 'zzz'", "known: ")
    check_one_line(sightline("models", "ViT-B-33", "--json"), 2, "did you mean 'ViT-B-32'")


def test_bad_words_to_score(sightline: Sightline, pictures: Path) -> None:
    for options, expected in (
        (("--goal", ""), "empty"),
        (("--goal", '["a pole", "a cart"]'), "say --goal once for each sentence"),
        (("--goal", "{left: pole}"), "--goal takes one sentence"),
        (("--goal", "pole", "--baseline", "[cart]"), "--baseline takes one sentence"),
        (("--goal", "pole", "--baseline", "pole"), "same words"),
        (("--goal", "pole", "--baseline", "cart", "--alpha", "1.5"), "outside"),
        (("--goal", "pole", "--baseline", "cart", "--alpha", "x"), "alpha"),
        (("--goal", "pole", "--alpha", "0.5"), "baseline"),
        (("--goal", "pole", "--model", "bundeld"), "'bundled'"),
        ((), "goal"),
    ):
        check_one_line(sightline("score", pictures, *options), 2, expected)


def test_unknown_words_are_warned_of(sightline: Sightline, pictures: Path) -> None:
    done = sightline("score", pictures, "--goal", "a wombat", "--json")
    assert len(parsed(done)) == 3
    assert done.err.startswith("warning: ")
    assert "'wombat'" in done.err
    assert len(done.lines) == 1
    assert sightline("score", pictures, *GOAL, "--json").err == ""


def test_what_is_cut_off_pictures_that_are_not_square_is_warned_of(sightline: Sightline, tmp_path: Path) -> None:
    write_open_clip_encoder(tmp_path / "model", SIZES["small"], {"resize_mode": "shortest"})
    scored = ("score", tmp_path / "photos", *GOAL, "--model", f"local-dir:{tmp_path / 'model'}", "--json")
    (tmp_path / "photos").mkdir()
    for i, (width, height) in enumerate([(20, 20), (60, 40), (60, 40)]):
        Image.linear_gradient("L").rotate(90).resize((width, height)).save(tmp_path / "photos" / f"{i}.png")
    done = sightline(*scored)
    rewards = {"crop": [row["reward"] for row in parsed(done)]}
    (line,) = done.lines
    for part in ("warning: ", "40x60", "10 columns at the left", "--aspect=pad", "--aspect=squash", "2 of 3"):
        assert part in line
    for aspect in ("pad", "squash"):
        done = sightline(*scored, "--aspect", aspect)
        rewards[aspect] = [row["reward"] for row in parsed(done)]
        assert done.err == ""
        assert rewards[aspect][0] == rewards["crop"][0]  # it is square
    assert len({round(found[1], 6) for found in rewards.values()}) == 3
    check_one_line(sightline(*scored, "--aspect", "stretch"), 2, "'stretch'", "crop, pad, squash")


@pytest.mark.plots
@pytest.mark.parametrize("suffix", ["gif", "mp4"])
def test_score_a_video_with_its_plot(sightline: Sightline, pictures: Path, tmp_path: Path, suffix: str) -> None:
    frames = [np.asarray(Image.open(file)) for file in sorted(pictures.iterdir())]
    video = tmp_path / f"clip.{suffix}"
    if suffix == "gif":
        stills = [Image.fromarray(frame) for frame in frames]
        stills[0].save(video, save_all=True, append_images=stills[1:], duration=100)
    else:
        write_scored_video(video, np.stack(frames), np.zeros(3), 10, "")
    done = sightline("score", video, *GOAL, "--baseline", "pole and cart", "--plot", tmp_path / "plot.png", "--json")
    rows = parsed(done)
    assert [row["image"] for row in rows] == [f"{video}#{i}" for i in range(3)]
    assert max(rows, key=lambda row: row["reward"]) is rows[0] or suffix == "mp4"
    with Image.open(tmp_path / "plot.png") as plot:
        assert plot.format == "PNG"
        assert plot.width > 300
    # Small pictures that were packed as a film are no longer like those that the encoder was taught.
    assert all("unlike those" in line for line in sightline("score", video, *GOAL, "--json").lines)
    assert not video.with_suffix(".reward.png").exists()
    assert sightline("score", video, *GOAL).code == 0
    assert video.with_suffix(".reward.png").is_file()


# -- lightness --------------------------------------------------------------------------------------------------------


def call_without_torch(arguments: list[str]) -> str:
    """Run a command, check that it imports nothing heavy, and return what it says on stderr."""
    code = (
        "import sys\nfrom sightline.cli.commands import main\n"
        f"sys.argv = ['sightline', *{arguments!r}]\n"
        "try: main()\nexcept SystemExit as left: assert not left.code\n"
        "heavy = {'torch', 'transformers', 'open_clip', 'stable_baselines3', 'matplotlib'} & set(sys.modules)\n"
        "print('heavy:', sorted(heavy))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "heavy: []"
    return done.stderr


@pytest.mark.parametrize("arguments", [["--help"], ["train", "--help"], ["recipes"], ["tasks"]])
def test_answers_at_once_without_torch(arguments: list[str]) -> None:
    assert call_without_torch(arguments) == ""


def test_a_dry_run_with_a_bundled_encoder_needs_no_torch() -> None:
    lines = call_without_torch(["train", "cartpole-preferences", "--dry-run"]).splitlines()
    assert [line.split("  ")[0] for line in lines] == ["memory", "disk", "evaluation"]


def test_version(sightline: Sightline) -> None:
    done = sightline("--version")
    assert done.code == 0, done.err
    assert done.out.startswith("sightline ")


def test_help_when_nothing_is_asked(sightline: Sightline) -> None:
    done = sightline()
    assert (done.code, done.err) == (0, "")
    assert "Usage" in done.out and "train" in done.out
    assert done.out == sightline("--help").out
    check_one_line(sightline("trian"), 2, "trian")


@pytest.mark.parametrize(
    ("shell", "line", "expected"),
    [
        ("bash", "sightline tra", "train"),
        ("zsh", "sightline che", "check-env"),
        ("fish", "sightline label se", "serve"),
    ],
)
def test_shells_complete_commands(shell: str, line: str, expected: str) -> None:
    asked = {"_SIGHTLINE_COMPLETE": f"complete_{shell}", "_TYPER_COMPLETE_ARGS": line, "COMP_WORDS": line}
    asked |= {"COMP_CWORD": str(len(line.split()) - 1), "_TYPER_COMPLETE_FISH_ACTION": "get-args"}
    code = "import sys\nfrom sightline.cli.commands import main\nsys.argv = ['sightline']\nmain()"
    done = subprocess.run(
        [sys.executable, "-c", code], env=os.environ | asked, capture_output=True, text=True, check=False
    )
    assert expected in done.stdout, done.stderr


def test_completion_can_be_installed(sightline: Sightline, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "--install-completion" in sightline("--help").out
    home = {"HOME": str(tmp_path), "SHELL": "/bin/bash", "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "sightline", "--install-completion", "bash"],
        env=os.environ | home,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert any("sightline" in file.read_text().lower() for file in tmp_path.rglob("*") if file.is_file())
