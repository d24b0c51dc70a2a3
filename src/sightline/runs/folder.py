"""The run folder and how its files are written: whole or not at all."""

from __future__ import annotations

import json
import os
import platform
import re
import shlex
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from importlib import metadata
from pathlib import Path
from typing import Any

import yaml

from sightline.config import Recipe, leaves, validate_recipe
from sightline.errors import BadInput

PACKAGES = ("sightline", "torch", "gymnasium", "stable-baselines3", "open-clip-torch", "transformers", "numpy")


@dataclass(frozen=True)
class RunFolder:
    """Paths of a run."""

    path: Path

    @property
    def recipe_file(self) -> Path:
        return self.path / "recipe.yaml"

    @property
    def metrics_file(self) -> Path:
        return self.path / "metrics.jsonl"

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    @property
    def videos(self) -> Path:
        return self.path / "videos"

    @property
    def result_file(self) -> Path:
        return self.path / "result.json"

    @property
    def report_file(self) -> Path:
        return self.path / "report.html"

    def recipe(self) -> Recipe:
        """The resolved recipe of this run.

        Raises:
            BadInput: this is not a run folder, or its recipe is damaged.
        """
        try:
            document = yaml.safe_load(self.recipe_file.read_text())
        except (OSError, yaml.YAMLError, UnicodeDecodeError) as error:
            raise BadInput(f"'{self.path}' is not a run folder: it has no readable recipe.yaml") from error
        return validate_recipe(document)

    def write_text(self, name: str, text: str) -> None:
        """Write a file of the run atomically."""
        write_atomically(self.path / name, text.encode())

    def write_json(self, name: str, document: Any) -> None:
        self.write_text(name, json.dumps(document, indent=2) + "\n")

    def read_json(self, name: str) -> Any:
        """Content of a JSON file of the run, None if it is not there."""
        file = self.path / name
        return json.loads(file.read_text()) if file.is_file() else None


def create_run(path: Path, recipe: Recipe) -> RunFolder:
    """Make a new run folder that says what it will hold.

    Raises:
        BadInput: the folder exists and is not empty.
    """
    check_free(path)
    path.mkdir(parents=True, exist_ok=True)
    run = RunFolder(path)
    run.checkpoints.mkdir(exist_ok=True)
    run.videos.mkdir(exist_ok=True)
    document = recipe.model_dump(mode="json")
    run.write_text("recipe.yaml", yaml.safe_dump(document, sort_keys=False, allow_unicode=True))
    run.write_json("versions.json", versions())
    run.write_text("command.txt", shlex.join(["sightline", *sys.argv[1:]]) + "\n")
    return run


def check_free(path: Path) -> None:
    """Refuse to begin a run in a folder that holds something; a run that never collected anything may be replaced.

    Raises:
        BadInput: the folder holds something else.
    """
    if not path.exists() or (path.is_dir() and not any(path.iterdir())):
        return
    run = RunFolder(path)
    began = not run.recipe_file.is_file() or run.metrics_file.is_file() or any(run.checkpoints.glob("*"))
    if began:
        raise BadInput(f"'{path}' exists already; add --resume to go on with that run, or name another --run-dir")


def open_run(path: Path) -> RunFolder:
    """An existing run.

    Raises:
        BadInput: there is none.
    """
    run = RunFolder(path)
    if not run.recipe_file.is_file():
        raise BadInput(f"'{path}' is not a run folder: it has no recipe.yaml")
    return run


def default_run_path(name: str) -> Path:
    """`runs/<name>-<date>-<time>` under the working folder."""
    return Path("runs") / f"{name}-{datetime.now():%Y%m%d-%H%M%S}"


def latest_run(name: str) -> Path:
    """The newest run of that name under `runs/`.

    Raises:
        BadInput: there is none.
    """
    made_by_us = re.compile(re.escape(name) + r"-\d{8}-\d{6}")
    found = sorted(file for file in Path("runs").glob("*/recipe.yaml") if made_by_us.fullmatch(file.parent.name))
    if not found:
        raise BadInput(f"there is no run of '{name}' under runs/ to resume; name one with --run-dir")
    return found[-1].parent


def check_same_recipe(run: RunFolder, wanted: Recipe, keys: Sequence[str]) -> None:
    """Refuse to resume a run with a recipe that says something else where the user has said something.

    Args:
        run: its recipe is what counts.
        wanted: what the command line says.
        keys: which keys the command line states, such as `seed` or `learner.gamma`.

    Raises:
        BadInput: naming the first key that differs.
    """
    had, want = leaves(run.recipe()), leaves(wanted)
    for leaf in want:
        stated = any(leaf == key or leaf.startswith(f"{key}.") for key in keys)
        if stated and had.get(leaf) != want[leaf]:
            raise BadInput(
                f"'{run.path}' was started with {leaf}={had.get(leaf)!r}, not {want[leaf]!r}; a resumed run keeps its "
                "recipe: leave that out, or start a new run"
            )


def versions() -> dict[str, str]:
    """What this run was made with."""
    found = {"python": platform.python_version(), "platform": platform.platform()}
    for package in PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found


def write_atomically(path: Path, content: bytes) -> None:
    """Write beside the target, flush to disk, then rename: a reader sees the old file or the new one, never half."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}-{threading.get_ident()}.writing")
    try:
        with temporary.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
