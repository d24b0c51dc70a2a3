"""What the documents tell people to do works."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
COMMANDS = [
    line.split("   #")[0].strip()
    for line in README.splitlines()
    if line.startswith("sightline train") and "my_module" not in line and "--resume" not in line
]


def sightline(arguments: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "sightline", *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_of_the_readme_are_understood(command: str, tmp_path: Path) -> None:
    done = sightline([*shlex.split(command)[1:], "--dry-run"], tmp_path)
    assert done.returncode == 0, done.stderr


GUIDE = (ROOT / "docs" / "your-environment.md").read_text()


def test_the_commands_of_the_guide_are_understood(tmp_path: Path) -> None:
    (tmp_path / "reacher.py").write_text(re.findall(r"```python\n(.*?)```", GUIDE, flags=re.DOTALL)[0])
    text = GUIDE.replace("\\\n", " ")
    commands = [line for line in text.splitlines() if line.startswith("sightline train")]
    assert commands
    for command in commands:
        done = sightline([*shlex.split(command)[1:], "--dry-run"], tmp_path)
        assert done.returncode == 0, f"{command}: {done.stderr}"


def test_what_the_guide_imports_is_there() -> None:
    imports = re.findall(r"^from sightline[\w.]* import .*$", GUIDE, flags=re.MULTILINE)
    assert len(imports) >= 5
    exec("\n".join(imports), {})


def test_the_guide_ends_well_without_a_network(tmp_path: Path) -> None:
    """One of its commands to train needs no model that would have to be fetched (here the bundled encoder stands in for
    the person); and it says what the other needs."""
    (tmp_path / "reacher.py").write_text(re.findall(r"```python\n(.*?)```", GUIDE, flags=re.DOTALL)[0])
    lines = GUIDE.replace("\\\n", " ").splitlines()
    (command,) = [line for line in lines if line.startswith("sightline train") and "reward.encoder" not in line]
    small = ["reward.explore=64", "reward.every=64", "reward.questions=8", "reward.teacher.kind=encoder", "steps=600"]
    small += ["envs=2", "learner.chunk=16", "videos=false", "tensorboard=false"]
    small += ["evaluation.episodes=2", "evaluation.test_episodes=2", "learner.gradient_steps=2", "episode_steps=50"]
    done = sightline([*shlex.split(command)[1:], *small], tmp_path)
    assert done.returncode == 0, done.stderr
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
    assert done.returncode == 0, done.stderr


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
    assert done.returncode == 0, done.stderr


def test_there_are_commands_to_check() -> None:
    assert len(COMMANDS) >= 5


def test_links_of_the_documents_lead_somewhere() -> None:
    for document in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]:
        for target in re.findall(r"\]\(([^)#]+)\)", document.read_text()):
            if not target.startswith("http"):
                assert (document.parent / target).exists(), f"{document.name}: {target}"


def test_the_environment_of_the_guide_can_be_trained(tmp_path: Path) -> None:
    (tmp_path / "reacher.py").write_text(re.findall(r"```python\n(.*?)```", GUIDE, flags=re.DOTALL)[0])
    small = ["steps=600", "envs=2", "learner.algorithm=SAC", "learner.chunk=16", "learner.gradient_steps=2"]
    small += ["evaluation.episodes=2", "evaluation.test_episodes=4", "videos=false", "tensorboard=false"]
    words = ["goal=a red square in the top left corner", "baseline=a red square"]
    arguments = ["train", "env=reacher:Point", "episode_steps=50", *words, *small, "--run-dir", "run", "--json"]
    done = sightline(arguments, tmp_path)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["episodes"] == 4
    assert (tmp_path / "run" / "report.html").is_file()


def test_ci_runs_the_test_command_of_the_readme() -> None:
    script = (ROOT / ".ci" / "run").read_text()
    assert "<!-- tests -->" in script
    block = README.split("<!-- tests -->")[1].split("```")[1]
    assert "pytest" in block
