"""The run folder: all files that a run produces, written by one process at a time."""

from __future__ import annotations

import contextlib
import os
import platform
import re
import shlex
import shutil
import stat
import sys
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

import psutil
from pydantic import ValidationError

from sightline import registry
from sightline.config.blocks import plugins_of
from sightline.config.loading import leaves, rename_outdated_keys, validate_recipe
from sightline.config.named_code import allow, places_in
from sightline.config.recipe import AgentRecipe, Recipe
from sightline.config.secrets import masked
from sightline.config.yaml import read_yaml, write_yaml
from sightline.errors import BadInput, Damaged, warn
from sightline.runs.files import FORMAT, check_format, read_document, read_text, write_atomically, write_document
from sightline.runs.lease import LEASE, Lease, take_lease
from sightline.runs.temporary import remove_abandoned
from sightline.runs.trust import check_code_of_blocks, check_trusted

TRAJECTORIES = "trajectories"
"""Folder of an agent's recorded episodes."""
PICTURES = "pictures"
"""Folder of their pictures inside it."""
REPLACED = ".replaced-"
"""Prefix of a checkpoint that is written once more, until the new one has its name."""
PACKAGES = ("sightline", "torch", "gymnasium", "stable-baselines3", "open-clip-torch", "transformers", "numpy")
_BEFORE_RECIPE = ("run.json", "versions.json", "command.txt")
"""Files of a new run that are written before its recipe."""


@dataclass(frozen=True)
class RunFolder:
    """Run folder: paths of its files, and reading and writing them as data.

    Attributes:
        path: the folder.
        lease: this process's lease on the folder. Without one, only reports are written, which can be made again from
            the other files.
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
        """Folder of the archived replay buffer, whose files the checkpoints share."""
        return self.path / "replay"

    @property
    def videos(self) -> Path:
        return self.path / "videos"

    def people(self, step: int) -> Path:
        """Data set of the chosen checkpoint's episodes, of whose success people were asked."""
        return self.path / "people" / f"step-{step}"

    @property
    def id(self) -> str:
        """Id of the run, which stays when its folder is renamed or moved; the folder's name where there is none."""
        document = self.read_json("run.json") or {}
        return str(document.get("id") or self.path.resolve().name)

    @property
    def created(self) -> float:
        """When the run began, in seconds since 1970; names of folders hold times of some time zone."""
        try:
            document = self.read_json("run.json") or {}
            return datetime.fromisoformat(document["created"]).timestamp()
        except (BadInput, KeyError, TypeError, ValueError, OSError):
            return 0.0

    @property
    def report_file(self) -> Path:
        return self.path / "report.html"

    def document(self) -> dict[str, Any]:
        """Recipe file as plain data, without its format number (which is checked) and with the present names of keys.

        Raises:
            BadInput: this is not a run folder, or its recipe has another format number.
            Damaged: the recipe is not a mapping.
        """
        try:
            text = read_text(self.recipe_file)
        except (FileNotFoundError, NotADirectoryError) as error:
            raise BadInput(f"'{self.path}' is not a run folder: it has no recipe.yaml") from error
        document = read_yaml(text, f"'{self.recipe_file}'")
        if not isinstance(document, dict):
            raise Damaged(f"'{self.recipe_file}' is damaged: it is not a mapping of keys to values")
        check_format(document.pop("format", None), f"the run '{self.path}'")
        rename_outdated_keys(document)
        return document

    def recipe(self) -> Recipe:
        """Resolved recipe of this run, for reading. To build what it names, use `trusted_recipe`.

        Raises:
            BadInput: as `document`; or it names code of its own for a block, which nobody has allowed.
            Damaged: the recipe is not valid.
        """
        document = self.document()
        check_code_of_blocks(document, self.path)
        try:
            return validate_recipe(document)
        except BadInput as error:
            items = error.__cause__.errors() if isinstance(error.__cause__, ValidationError) else []
            if any(item["type"] == "unknown_plugin" for item in items):
                raise BadInput(
                    f"the run '{self.path}' names a plug-in that is not known here ({error}); install its package, or "
                    "register it first"
                ) from error
            raise Damaged(f"the recipe of '{self.path}' is damaged: {error}") from error

    def trusted_recipe(
        self, trust: bool = False, stated_keys: Sequence[str] = (), asks: bool = True, scores: bool = True
    ) -> Recipe:
        """Resolved recipe of this run, checked so that environments, learners and teachers may be built from it.

        Args:
            trust: skip the check, as the user trusts whoever made the folder.
            stated_keys: recipe keys that the user has given with the same value.
            asks: the run's teacher will be queried.
            scores: its reward model will be made.

        Raises:
            BadInput: as `recipe`; or the folder holds links, or its recipe names code or services of its own.
        """
        if trust:
            # Before the recipe is read, since blocks of code that it names are imported by that.
            allow(place for _, place in places_in(self.document()))
        recipe = self.recipe()
        if not trust:
            check_plain(self.path)
            check_trusted(recipe, self.path, stated_keys, asks, scores)
        self._warn_of_other_packages(recipe)
        return recipe

    def _warn_of_other_packages(self, recipe: Recipe) -> None:
        """Say which plug-ins another package brings here than when the run began."""
        for kind, name in plugins_of(recipe):
            before = self.origin(kind, name)
            now = registry.origin(kind, name)
            if before and now and before.split()[0] != now.split()[0]:
                warn(
                    f"the {kind} '{name}' of the run '{self.path}' is that of the package {now} here; when the run "
                    f"began, it was that of {before}"
                )

    def origin(self, kind: registry.Kind, name: str) -> str:
        """Name and version of the package that a plug-in came from when the run began; empty where that is unknown."""
        with contextlib.suppress(BadInput):  # a damaged file, which is needed for nothing else
            return str((self.read_json("versions.json") or {}).get(f"{kind} {name}", ""))
        return ""

    def check_owned(self) -> None:
        """Refuse to publish what took long to write, if another process has taken over the folder meanwhile.

        Raises:
            LeaseLost: it has.
        """
        if self.lease is not None:
            self.lease.check()

    def writing(self) -> AbstractContextManager[None]:
        """Context that holds the lock of the folder during a write.

        Raises:
            LeaseLost: another process has taken over the folder.
        """
        if self.lease is None:
            return contextlib.nullcontext()
        return self.lease.writing()

    def write_text(self, name: str, text: str) -> None:
        """Write a text file of the run atomically."""
        with self.writing():
            write_atomically(self.path / name, text.encode(errors="backslashreplace"))

    def write_json(self, name: str, document: dict[str, Any]) -> None:
        """Write a JSON object of the run atomically, with a format number."""
        with self.writing():
            write_document(self.path / name, document)

    def read_json(self, name: str) -> dict[str, Any] | None:
        """Read a JSON object of the run; None if there is no such file.

        Raises:
            BadInput: it is damaged, or has another format number.
        """
        try:
            return read_document(self.path / name)
        except FileNotFoundError:
            return None


@contextlib.contextmanager
def owned_run(
    path: Path, recipe: Recipe, resume: bool, command: str | None = None
) -> Iterator[Callable[[], RunFolder]]:
    """Hold the lease of a run folder for the duration of the context.

    Args:
        path: the folder, which is made if need be.
        recipe: recipe of the run; for a resumed run it may have more steps than before.
        resume: resume the run in the folder.
        command: what started the run; None for this process's command line.

    Yields:
        A function to call once everything is loaded: it writes the first files of the run and returns the folder. If
        it is not called, nothing is written, and a folder made here is removed again.

    Raises:
        BadInput: another process owns the folder; it holds a run already (or none, to resume); or it is not writable.
    """
    # Folders that are made here are removed again if nothing is written into them.
    missing_folders = _missing(path)
    check_name(path)
    if resume:
        open_run(path)
        lease = take_lease(path)
    else:
        lease = claim_folder(path)
    _remove_half_written(path)
    remove_abandoned()
    run = RunFolder(path, lease)

    def begin() -> RunFolder:
        with run.writing():
            if not resume:
                _write_initial_files(run, recipe, command)
                return run
            before = run.recipe()
            if before != recipe:
                if before.steps > recipe.steps:
                    raise BadInput(f"'{path}' was extended to steps={before.steps} in the meantime; try again")
                # A run that is extended keeps the result of the shorter one beside the new result.
                if before.steps < recipe.steps:
                    with contextlib.suppress(FileNotFoundError):
                        (path / "result.json").rename(path / f"result-{before.steps}.json")
                write_recipe(run, recipe)
        return run

    try:
        yield begin
    finally:
        lease.release()
        _remove_empty(missing_folders)


def _write_initial_files(run: RunFolder, recipe: Recipe, command: str | None) -> None:
    """Write the first files of a new run: recipe, id, versions and command line."""
    run.checkpoints.mkdir(exist_ok=True)
    run.videos.mkdir(exist_ok=True)
    run.write_json(
        "run.json", {"id": uuid.uuid4().hex, "created": datetime.now(UTC).isoformat(timespec="milliseconds")}
    )
    run.write_json("versions.json", versions(recipe))
    command = command or shlex.join(["sightline", *sys.argv[1:]])
    run.write_text("command.txt", masked(command) + "\n")
    write_recipe(run, recipe)  # the last one: with it the folder is a run, which can be resumed


def claim_folder(path: Path) -> Lease:
    """Make the folder of a new run, if need be, and take its lease.

    This happens before anything is loaded, so that a second process, or one without write access, fails at once.

    Raises:
        BadInput: the folder holds something else, another process owns it, or it cannot be made or written to.
    """
    missing_folders = _missing(path)
    if path.is_symlink() and not path.exists():
        raise BadInput(f"'{path}' is a link to a folder that does not exist; choose another --run-dir")
    try:
        path.mkdir(parents=True, exist_ok=True)
    except FileExistsError as error:
        raise BadInput(f"'{path}' exists already, and is not a folder; choose another --run-dir") from error
    except OSError as error:
        raise BadInput(f"the run folder '{str(path)[:200]}' cannot be made: {error.strerror or error}") from error
    lease = None
    try:
        # First the lease: between a look at the folder and the lease another process could begin a run in it.
        lease = take_lease(path)
        check_free(path)
    except BaseException:
        if lease is not None:
            lease.release()
        _remove_empty(missing_folders)
        raise
    return lease


def _remove_half_written(path: Path) -> None:
    """Remove what processes that were killed had not written to the end."""
    checkpoints = path / "checkpoints"
    for folder in checkpoints.glob(".writing-*"):
        shutil.rmtree(folder, ignore_errors=True)
    for folder in checkpoints.glob(f"{REPLACED}*"):
        if (checkpoints / folder.name.removeprefix(REPLACED)).exists():  # else it is still needed
            shutil.rmtree(folder, ignore_errors=True)
    for pattern in ("**/.*.writing", ".*.clock", "videos/.*.part.mp4"):
        for file in path.glob(pattern):
            # Pages are written by anybody; labels by whoever asks. Those name their process.
            numbers = re.findall(r"\.(\d+)[-.]", file.name)  # the last; of pictures, the first may be a digest
            if not numbers or not psutil.pid_exists(int(numbers[-1])):
                with contextlib.suppress(OSError):
                    file.unlink()


def _missing(path: Path) -> list[Path]:
    """Missing folders of a path, innermost first."""
    return [folder for folder in (path, *path.parents) if not os.path.lexists(folder)]


def _remove_empty(folders: list[Path]) -> None:
    """Remove folders, innermost first, up to the first one that is not empty."""
    with contextlib.suppress(OSError):
        for folder in folders:
            folder.rmdir()


def write_recipe(run: RunFolder, recipe: Recipe) -> None:
    """Write the resolved recipe of a run."""
    document = {"format": FORMAT} | recipe.model_dump(mode="json")
    run.write_text("recipe.yaml", write_yaml(document))


def check_free(path: Path) -> None:
    """Refuse to begin a run in a folder that is not empty; a run without metrics and checkpoints may be replaced.

    Raises:
        BadInput: the folder holds anything else.
    """
    run = RunFolder(path)
    if not path.exists():
        return
    if path.is_dir() and all(_is_of_a_beginning(file) for file in path.iterdir()):
        return
    is_other = not run.recipe_file.is_file()
    has_begun = run.metrics_file.is_file() or any(run.checkpoints.glob("*"))
    if is_other or has_begun:
        raise BadInput(f"'{path}' exists already; add --resume to continue that run, or choose another --run-dir")


def _is_of_a_beginning(file: Path) -> bool:
    """True for what a process leaves that is killed before its run has a recipe."""
    if file.name in ("checkpoints", "videos"):
        return file.is_dir() and not any(file.iterdir())
    half_written = file.name.startswith(".") and file.name.endswith(".writing")
    return half_written or file.name in _BEFORE_RECIPE or file.name.lstrip(".").startswith(LEASE)


def check_plain(path: Path) -> None:
    """Refuse a folder with links, pipes or devices, which could lead anywhere on this machine.

    Raises:
        BadInput: naming the first one.
    """
    for folder, folders, files in os.walk(path):
        for name in (*folders, *files):
            place = Path(folder) / name
            try:
                mode = place.lstat().st_mode
            except FileNotFoundError:  # the run is being written: a temporary file that has its final name by now
                continue
            if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
                what = "a link" if stat.S_ISLNK(mode) else "not a regular file"
                raise BadInput(
                    f"'{place}' is {what}; a run folder holds plain files (if you put it there yourself, add --trust)"
                )


def open_run(path: Path) -> RunFolder:
    """Open an existing run for reading.

    Raises:
        BadInput: the folder is not a run folder, or has a name that is no text.
    """
    check_name(path)
    run = RunFolder(path)
    if not run.recipe_file.is_file():
        raise BadInput(f"'{path}' is not a run folder: it has no recipe.yaml")
    return run


def check_name(path: Path) -> None:
    """Refuse a folder whose name many libraries cannot spell.

    Raises:
        BadInput: it is not UTF-8, or this process's locale cannot read it.
    """
    spelt = os.path.abspath(path)
    try:
        spelt.encode()
    except UnicodeEncodeError as error:
        raise BadInput(
            f"the name of the folder {ascii(spelt)[:200]} is not text in {sys.getfilesystemencoding()}; rename it, or "
            "set PYTHONUTF8=1 if it is UTF-8"
        ) from error


def default_run_path(name: str) -> Path:
    """Default path of a new run: `runs/<name>-<date>-<time>` in the working directory, with milliseconds, as several
    may begin at the same time."""
    now = datetime.now()
    path = Path("runs") / f"{name}-{now:%Y%m%d-%H%M%S}-{now.microsecond // 1000:03}"
    while path.exists():
        path = path.with_name(f"{path.name}-2")
    return path


def latest_runs(name: str) -> list[RunFolder]:
    """Runs of a name under `runs/`, newest first.

    Raises:
        BadInput: there is none.
    """
    name_of_a_run = re.compile(re.escape(name) + r"-\d{8}-\d{6}(-\d{3})?(-2)*")  # as `default_run_path` makes them
    folders = [file.parent for file in Path("runs").glob("*/recipe.yaml")]
    runs = [RunFolder(folder) for folder in folders if name_of_a_run.fullmatch(folder.name)]
    if not runs:
        raise BadInput(f"there is no run of '{name}' under runs/ to resume; give its folder with --run-dir")
    return sorted(runs, key=lambda run: (run.created, run.path.name), reverse=True)


@dataclass(frozen=True)
class RecipeChange:
    """Key of a recipe with its value in a run, None if the run's recipe lacks the key, and another value now."""

    key: str
    before: Any
    now: Any


def recipe_changes(before: Recipe, recipe: Recipe, keys: Iterable[str]) -> list[RecipeChange]:
    """Compare a recipe with that of a run, `before`.

    Args:
        keys: the keys to compare, in this order, as `learner.gamma`; those that `recipe` lacks are passed over, and
            those that only say where something is.

    Returns:
        The keys whose values differ.
    """
    earlier = leaves(before)
    now = leaves(recipe)
    keys_to_compare = [key for key in keys if key in now and key not in place_keys(recipe)]
    return [RecipeChange(key, earlier.get(key), now[key]) for key in keys_to_compare if earlier.get(key) != now[key]]


def place_keys(recipe: Recipe) -> set[str]:
    """Keys of a recipe that say where something is done, such as the address of a server or the engine, and nothing of
    what comes out."""
    keys = {f"reward.{key}" for key in recipe.reward.places()}
    if isinstance(recipe, AgentRecipe):
        keys |= {"engine", "policy.server.url", "policy.server.weights"}
    return keys


def filled_keys(recipe: Recipe) -> list[str]:
    """Keys to which a recipe gives a value; what it leaves open is filled in when the run begins."""
    return [key for key, value in leaves(recipe).items() if value not in (None, [], "auto")]


def check_same_recipe(run: RunFolder, recipe: Recipe, keys: Sequence[str]) -> int | None:
    """Refuse to resume a run with another recipe, as far as the command line states one.

    Only `steps` may differ, since a run can be extended, and `place_keys`.

    Args:
        run: the run to resume.
        recipe: recipe of the command line.
        keys: recipe keys or blocks that the command line states, such as `seed` or `learner`.

    Returns:
        The new number of steps, None if it stays the same.

    Raises:
        BadInput: naming the first key that differs.
    """
    longer = None
    for change in recipe_changes(run.recipe(), recipe, stated_leaves(recipe, keys)):
        if change.key != "steps":
            raise BadInput(
                f"'{run.path}' was started with {change.key}={_short(change.before)}, not {_short(change.now)}; a "
                "resumed run keeps its recipe (only steps may grow): leave that out, or start a new run"
            )
        if change.now < change.before:
            raise BadInput(f"'{run.path}' was started with steps={change.before}; it can be made longer, not shorter")
        longer = int(change.now)
    return longer


def stated_leaves(recipe: Recipe, keys: Sequence[str]) -> list[str]:
    """Keys of a recipe that are among some keys, or in blocks among them."""
    prefixes = tuple(f"{key}." for key in keys)
    return [leaf for leaf in leaves(recipe) if leaf in keys or leaf.startswith(prefixes)]


def _short(value: Any) -> str:
    """A value in a message; a prompt has hundreds of words."""
    text = repr(value)
    return text if len(text) <= 200 else f"{text[:200]}…"


def versions(recipe: Recipe) -> dict[str, str]:
    """Versions of Python, the platform and the packages that affect results, the recipe's plug-ins among them."""
    document = {"python": platform.python_version(), "platform": platform.platform()}
    for package in PACKAGES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            document[package] = metadata.version(package)
    for kind, name in plugins_of(recipe):
        origin = registry.origin(kind, name)
        if origin is not None:
            document[f"{kind} {name}"] = origin
    return document
