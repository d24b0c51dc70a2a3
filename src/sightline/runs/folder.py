"""The run folder: one place for everything that a recipe produced, and one process that writes to it."""

from __future__ import annotations

import contextlib
import os
import platform
import re
import shlex
import stat
import sys
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

import yaml

from sightline.config.loading import leaves, validate_recipe
from sightline.config.recipe import Recipe
from sightline.config.yaml import read_yaml
from sightline.errors import BadInput, Damaged
from sightline.runs.files import FORMAT, check_format, read_document, read_text, write_atomically, write_document
from sightline.runs.lease import LEASE, Lease, take_lease
from sightline.runs.trust import check_trusted

PACKAGES = ("sightline", "torch", "gymnasium", "stable-baselines3", "open-clip-torch", "transformers", "numpy")
_CREDENTIALS = re.compile(r"(?<=://)[^/\s@]+@")


@dataclass(frozen=True)
class RunFolder:
    """Paths of a run, and its files as data.

    Attributes:
        lease: the right to write, if this process has taken it. Without one, only pages are written, which are made
            from the other files.
    """

    path: Path
    lease: Lease | None = field(default=None, compare=False)

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
    def replay(self) -> Path:
        """Where rows of the replay buffer lie that several checkpoints share."""
        return self.path / "replay"

    @property
    def videos(self) -> Path:
        return self.path / "videos"

    @property
    def report_file(self) -> Path:
        return self.path / "report.html"

    def document(self) -> dict[str, Any]:
        """The recipe as it stands in the file, without its format number, which alone is checked.

        Raises:
            BadInput: this is not a run folder, its recipe is damaged, or an older or newer Sightline wrote it.
        """
        try:
            text = read_text(self.recipe_file)
        except (FileNotFoundError, NotADirectoryError) as error:
            raise BadInput(f"'{self.path}' is not a run folder: it has no recipe.yaml") from error
        document = read_yaml(text, f"'{self.recipe_file}'")
        if not isinstance(document, dict):
            raise Damaged(f"'{self.recipe_file}' is damaged: it is no map of keys and values")
        check_format(document.pop("format", None), f"the run '{self.path}'")
        return document

    def recipe(self) -> Recipe:
        """The resolved recipe of this run, to be read. To build what it names, see `trusted_recipe`.

        Raises:
            BadInput: as `document`; or the recipe says what no recipe can.
        """
        document = self.document()
        try:
            return validate_recipe(document)
        except BadInput as error:
            raise Damaged(f"the recipe of '{self.path}' is damaged: {error}") from error

    def trusted_recipe(self, trust: bool = False, stated: Sequence[str] = (), asks: bool = True) -> Recipe:
        """The resolved recipe of this run, from which environments, learners and teachers may be built.

        Args:
            trust: the user trusts whoever made the folder.
            stated: recipe keys that the user has said in the same words.
            asks: whether its teacher will be asked.

        Raises:
            BadInput: as `recipe`; the folder holds links; or its recipe names code or addresses of its own.
        """
        recipe = self.recipe()
        if not trust:
            check_plain(self.path)
            check_trusted(recipe, self.path, stated, asks)
        return recipe

    def writing(self) -> AbstractContextManager[None]:
        """Hold the folder while something is written into it.

        Raises:
            LeaseLost: another process owns it by now.
        """
        return contextlib.nullcontext() if self.lease is None else self.lease.writing()

    def write_text(self, name: str, text: str) -> None:
        """Write a file of the run atomically."""
        with self.writing():
            write_atomically(self.path / name, text.encode())

    def write_json(self, name: str, document: dict[str, Any]) -> None:
        """Write a JSON object of the run atomically, with a format number."""
        with self.writing():
            write_document(self.path / name, document)

    def read_json(self, name: str) -> dict[str, Any] | None:
        """Read a JSON object of the run; None if it is not there.

        Raises:
            BadInput: it is damaged, or of another format.
        """
        try:
            return read_document(self.path / name)
        except FileNotFoundError:
            return None


@contextlib.contextmanager
def owned_run(path: Path, recipe: Recipe, resume: bool) -> Iterator[Callable[[], RunFolder]]:
    """Own the folder of a run, before anything is loaded, for as long as the context lasts.

    Args:
        recipe: what the run goes by; of a resumed run it may say more steps than before.
        resume: the folder holds a run already.

    Yields:
        A function to call once everything is loaded: it writes what the run begins with, and gives the folder. If it
        is not called, nothing is written, and a folder that was made for the run is removed again.

    Raises:
        BadInput: another process owns it; or there is (or is not) a run; or it cannot be written to.
    """
    made = _missing(path)
    if resume:
        open_run(path)
    lease = take_lease(path) if resume else claim_folder(path)
    run = RunFolder(path, lease)

    def begin() -> RunFolder:
        with run.writing():
            if not resume:
                write_beginnings(run, recipe)
            elif (before := run.recipe()) != recipe:
                if before.steps > recipe.steps:
                    raise BadInput(f"'{path}' has been made longer meanwhile (steps={before.steps}); try again")
                # The run is made longer: what came out of the shorter one is kept beside what is still to come.
                with contextlib.suppress(FileNotFoundError):
                    (path / "result.json").rename(path / f"result-{before.steps}.json")
                write_recipe(run, recipe)
        return run

    try:
        yield begin
    finally:
        lease.release()
        _remove_empty(made)


def write_beginnings(run: RunFolder, recipe: Recipe) -> None:
    """Write what a new run folder says of what it will hold."""
    run.checkpoints.mkdir(exist_ok=True)
    run.videos.mkdir(exist_ok=True)
    write_recipe(run, recipe)
    run.write_json("run.json", {"id": uuid.uuid4().hex, "created": datetime.now(UTC).isoformat(timespec="seconds")})
    run.write_json("versions.json", versions())
    run.write_text("command.txt", _CREDENTIALS.sub("", shlex.join(["sightline", *sys.argv[1:]])) + "\n")


def claim_folder(path: Path) -> Lease:
    """Make the folder of a new run, if it is not there, and own it: before anything is loaded, so that whoever comes
    second, or cannot write there, is told at once.

    Raises:
        BadInput: it holds something else, belongs to another process, or cannot be made or written to.
    """
    made = _missing(path)
    if path.is_symlink() and not path.exists():
        raise BadInput(f"'{path}' is a link to a folder that is not there; name another --run-dir")
    try:
        path.mkdir(parents=True, exist_ok=True)
    except FileExistsError as error:
        raise BadInput(f"'{path}' exists already, and is no folder; name another --run-dir") from error
    except OSError as error:
        raise BadInput(f"the run folder '{str(path)[:200]}' cannot be made: {error.strerror or error}") from error
    lease = None
    try:
        lease = take_lease(path)
        check_free(path)
    except BaseException:
        if lease is not None:
            lease.release()
        _remove_empty(made)
        raise
    return lease


def _missing(path: Path) -> list[Path]:
    """A folder and those above it that are not there yet, the innermost first."""
    return [folder for folder in (path, *path.parents) if not os.path.lexists(folder)]


def _remove_empty(folders: list[Path]) -> None:
    """Remove folders that were made for a run, up to the first that holds something."""
    with contextlib.suppress(OSError):
        for folder in folders:
            folder.rmdir()


def write_recipe(run: RunFolder, recipe: Recipe) -> None:
    """Write the recipe that the run goes by."""
    document = {"format": FORMAT} | recipe.model_dump(mode="json")
    run.write_text("recipe.yaml", yaml.safe_dump(document, sort_keys=False, allow_unicode=True))


def check_free(path: Path) -> None:
    """Refuse to begin a run in a folder that holds something; a run that never collected anything may be replaced.

    Raises:
        BadInput: the folder holds something else.
    """
    if not path.exists() or (path.is_dir() and all(file.name.lstrip(".").startswith(LEASE) for file in path.iterdir())):
        return
    run = RunFolder(path)
    began = not run.recipe_file.is_file() or run.metrics_file.is_file() or any(run.checkpoints.glob("*"))
    if began:
        raise BadInput(f"'{path}' exists already; add --resume to go on with that run, or name another --run-dir")


def check_plain(path: Path) -> None:
    """Refuse a folder that holds links, pipes or devices: with them its files would be anything anywhere.

    Raises:
        BadInput: naming the first.
    """
    for folder, folders, files in os.walk(path):
        for name in (*folders, *files):
            place = Path(folder) / name
            mode = place.lstat().st_mode
            if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
                what = "a link" if stat.S_ISLNK(mode) else "no regular file"
                raise BadInput(
                    f"'{place}' is {what}; a run folder holds plain files (if you made it so yourself, say --trust)"
                )


def open_run(path: Path) -> RunFolder:
    """An existing run, to be read.

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


def check_same_recipe(run: RunFolder, wanted: Recipe, keys: Sequence[str]) -> int | None:
    """Refuse to resume a run with a recipe that says something else where the user has said something.

    Only `steps` may differ: a run can be made longer.

    Args:
        run: its recipe is what counts.
        wanted: what the command line says.
        keys: which keys the command line states, such as `seed` or `learner.gamma`.

    Returns:
        The new number of steps, None if it stays.

    Raises:
        BadInput: naming the first key that differs.
    """
    had, want = leaves(run.recipe()), leaves(wanted)
    longer = None
    for leaf in want:
        stated = any(leaf == key or leaf.startswith(f"{key}.") for key in keys)
        if not stated or had.get(leaf) == want[leaf]:
            continue
        if leaf == "steps" and want[leaf] > had[leaf]:
            longer = int(want[leaf])
        elif leaf == "steps":
            raise BadInput(f"'{run.path}' was started with steps={had[leaf]}; it can be made longer, not shorter")
        else:
            raise BadInput(
                f"'{run.path}' was started with {leaf}={had.get(leaf)!r}, not {want[leaf]!r}; a resumed run keeps its "
                "recipe (only steps may grow): leave that out, or start a new run"
            )
    return longer


def versions() -> dict[str, str]:
    """What this run was made with."""
    found = {"python": platform.python_version(), "platform": platform.platform()}
    for package in PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found
