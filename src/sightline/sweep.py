"""Sweeps: a grid of ordinary runs on this machine, each in a process of its own.

    sightline sweep cartpole seed=0..1 reward.alpha=0,0.5 --run-dir DIR

    DIR/sweep.json                    recipe, overrides of all cells, and the values of each varied key
    DIR/seed=0,reward.alpha=0/        a cell: the run of `sightline train cartpole seed=0 reward.alpha=0 --run-dir …`
    DIR/seed=0,reward.alpha=0.5/ …
    DIR/logs/                         what the cells' processes said on stderr
    DIR/report.html                   the comparison of all cells

With `--cluster ADDRESS` cells are tasks of a Ray cluster, whose machines share DIR (`sightline.cluster.cells`).

A cell is finished if it has a result; one that was cut off is resumed. So the same command continues a sweep.

Where a scheduler starts processes, the plan is written alone, and each process trains the cell of its number:

    sightline sweep cartpole seed=0..9 --run-dir DIR --plan        DIR/sweep.json
    sightline sweep-cell DIR 0                                     the first cell; on any machine that shares DIR
    sightline sweep --status DIR                                   the state of all
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from sightline import roles
from sightline.config.grid import Grid, label_of_text, parse_grid, value_label
from sightline.config.loading import is_stream, load_recipe, parse_override
from sightline.config.recipe import Recipe
from sightline.errors import BadInput, Damaged
from sightline.evaluation.episode_stats import describe
from sightline.models.device import SLOT, available_cores
from sightline.reports.comparison import SWEEP
from sightline.reports.pages import duration, read_mapping, read_recipe, read_text
from sightline.runs.files import read_document, write_document
from sightline.runs.folder import RunFolder, filled_keys, recipe_changes
from sightline.runs.lease import Lease, current_owner, take_lease
from sightline.runs.stopping import Stopped, StopRequests
from sightline.runs.working_folder import SAFE
from sightline.session import last_saved_step

LOGS = "logs"
_POLL = 0.1
"""Seconds between two looks at the processes."""

Command = Callable[["GridCell", bool], Sequence[str]]
"""Builds the command line that trains a cell, or resumes it."""


class CellProcess(Protocol):
    """The process that trains a cell, here or elsewhere."""

    def poll(self) -> int | None: ...

    def wait(self) -> int: ...

    def send_signal(self, number: int, /) -> None: ...

    def kill(self) -> None: ...


Start = Callable[["GridCell", Path], CellProcess]
"""Starts a cell elsewhere, which says what it has to say into a file."""


class SweepStopped(Stopped):
    """Raised when a sweep has stopped on request, after its cells have saved."""

    def __init__(self, signal_number: int, cells_done: int, cells: int) -> None:
        super().__init__(signal_number, None)
        self._cells_done = cells_done
        self._cells = cells

    @property
    def saved(self) -> str:
        return f"{self._cells_done} of {self._cells} cells are done, and those under way have saved"

    @property
    def advice(self) -> str:
        return "go on with the same command"


# -- the cells' names --------------------------------------------------------------------------------------------------


def cell_name(values: Mapping[str, str]) -> str:
    """Name of a cell's folder, made of the varied keys: `seed=0,reward.alpha=0.5`.

    What cannot stand in the name of a file is replaced, and a few digits of its hash are added.
    """
    name = ",".join(f"{_plain(key)}={_plain(label_of_text(key, value))}" for key, value in values.items())
    if len(name) <= 200:
        return name
    return f"{name[:180]}-{_digest(name)}"


def _plain(text: str) -> str:
    """A text of letters, digits and a few signs, at most 60; with a few digits of the hash if that changes it."""
    plain = re.sub(r"[^\w.+-]+", "-", text, flags=re.ASCII)
    if plain == text and len(text) <= 60:
        return text
    return f"{plain[:40].strip('-')}-{_digest(text)}"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "backslashreplace")).hexdigest()[:6]


# -- the plan ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class GridCell:
    """Cell of a sweep: one run.

    Attributes:
        arguments: recipe and overrides, as `sightline train` reads them.
        recipe: complete.
    """

    name: str
    path: Path
    arguments: tuple[str, ...]
    recipe: Recipe

    @property
    def state(self) -> str:
        """State of the cell in a word."""
        return state_of_cell(self.path)

    @property
    def finished(self) -> bool:
        return self.state == "finished"

    @property
    def started(self) -> bool:
        return self.state != "missing"


@dataclass(frozen=True)
class Plan:
    """Sweep whose recipes have been checked.

    Attributes:
        path: folder of the sweep.
        cells: those that the command names; the folder may hold more.
        document: content of `sweep.json`.
    """

    path: Path
    cells: Sequence[GridCell]
    document: Mapping[str, Any]

    def default_processes(self, per_run: int = 1) -> int:
        """Number of cells that this machine's cores can train at a time."""
        cores_of_a_cell = max(cell.recipe.threads for cell in self.cells) * per_run
        return max(1, available_cores() // cores_of_a_cell)


def plan_sweep(recipe: str | None, overrides: Sequence[str], path: Path) -> Plan:
    """Check a sweep and all its recipes; nothing is written.

    Args:
        recipe: a name, a file or YAML text; None to start from the defaults.
        overrides: `key=value`, where some values are lists or ranges.
        path: folder of the sweep, which may hold an earlier part of it.

    Raises:
        BadInput: in one line; of a cell's recipe with the cell's name.
    """
    if recipe is not None and (recipe == "-" or is_stream(recipe)):
        raise BadInput(
            "a sweep reads its recipe once for each cell, so it cannot come from stdin or a pipe; write it to a file"
        )
    before = _read_sweep(path)
    grid = parse_grid(overrides, list(before["varied"]) if before else ())
    if not grid.varied:
        raise BadInput("nothing varies; give a key several values, such as seed=0..4, or use 'sightline train'")
    document = {
        "recipe": recipe,
        "fixed": list(grid.fixed),
        "varied": {key: list(values.values()) for key, values in grid.varied.items()},
    }
    if before is not None:
        # The folder's sweep is continued: values may be added, all else has to be as it was.
        document["varied"] = _merged(path, before, document)
    cells = [_plan_cell(recipe, grid.fixed, values, path) for values in grid.combinations()]
    return Plan(path, cells, document)


def write_plan(plan: Plan) -> None:
    """Write `sweep.json` alone, for `planned_cell`.

    Raises:
        BadInput: the folder cannot be written to, or another sweep is writing it.
    """
    with _leased(plan.path) as lease, lease.writing():
        write_document(plan.path / SWEEP, plan.document)


def planned_cell(path: Path, number: int) -> GridCell:
    """Cell of a sweep whose plan was written, by its number from 0, in the order of `cell_statuses`.

    Raises:
        BadInput: the folder holds no sweep, the sweep has fewer cells, or its recipe is not here.
    """
    document = _existing_sweep(path)
    cells = _combinations(document)
    if not 0 <= number < len(cells):
        raise BadInput(f"the sweep '{path}' has no cell {number}; its cells are numbered from 0 to {len(cells) - 1}")
    return _plan_cell(document["recipe"], document["fixed"], cells[number], path)


@dataclass(frozen=True)
class CellStatus:
    """State of a cell, as its folder shows it to every machine that shares it.

    Attributes:
        state: `finished`, `running`, `cut off` or `missing`.
        step: of the newest checkpoint; None before there is one.
        steps: of the whole run; None before it has begun.
        owner: the process that is writing the cell, in words; empty if none is.
    """

    number: int
    name: str
    state: str
    step: int | None
    steps: int | None
    owner: str


def cell_statuses(path: Path) -> list[CellStatus]:
    """State of every cell of a sweep, in the order of their numbers; nothing is written.

    Raises:
        BadInput: the folder holds no sweep.
    """
    statuses = []
    for number, values in enumerate(_combinations(_existing_sweep(path))):
        name = cell_name(values)
        run = RunFolder(path / name)
        owner = current_owner(run.path) or ""
        state = state_of_cell(run.path)
        if owner:
            state = "running"
        steps = read_recipe(run.path).get("steps")
        statuses.append(CellStatus(number, name, state, last_saved_step(run), steps, owner))
    return statuses


def state_of_cell(path: Path) -> str:
    """State of a cell's folder in a word, whether or not a process is writing it."""
    if (path / "result.json").is_file():
        return "finished"
    if (path / "recipe.yaml").is_file():
        return "cut off"
    return "missing"


def _combinations(document: Mapping[str, Any]) -> list[dict[str, str]]:
    """The values of each cell of a written sweep."""
    varied = {key: dict(zip(values, values, strict=True)) for key, values in document["varied"].items()}
    return Grid((), varied).combinations()


def _existing_sweep(path: Path) -> dict[str, Any]:
    """Content of a folder's `sweep.json`.

    Raises:
        BadInput: there is none.
    """
    document = _read_sweep(path)
    if document is None:
        raise BadInput(f"'{path}' is no sweep; write one with 'sightline sweep … --run-dir {path} --plan'")
    return document


def _plan_cell(recipe: str | None, fixed: Sequence[str], values: Mapping[str, str], path: Path) -> GridCell:
    """Check the recipe of a cell, also against the run that its folder may hold."""
    name = cell_name(values)
    cell_overrides = [*fixed, *(f"{key}={value}" for key, value in values.items())]
    try:
        incomplete = load_recipe(recipe, cell_overrides)
        complete = roles.complete(incomplete)
    except BadInput as error:
        raise BadInput(f"{name}: {error}") from error
    arguments = cell_overrides if recipe is None else [recipe, *cell_overrides]
    cell = GridCell(name, path / name, tuple(arguments), complete)
    _check_same_recipe(cell, incomplete)
    return cell


def _read_sweep(path: Path) -> dict[str, Any] | None:
    """Content of a folder's `sweep.json`; None if the folder is missing or empty.

    Raises:
        BadInput: the folder holds something else.
        Damaged: the file is not what Sightline writes.
    """
    if path.exists() and not path.is_dir():
        raise BadInput(f"'{path}' is not a folder; choose another --run-dir")
    try:
        document = read_document(path / SWEEP)
    except FileNotFoundError:
        if path.is_dir() and any(not file.name.lstrip(".").startswith("lease.json") for file in path.iterdir()):
            raise BadInput(f"'{path}' exists already, and is no sweep; choose another --run-dir") from None
        return None
    varied = document.get("varied")
    is_sound = (
        isinstance(varied, dict)
        and all(_are_texts(values) for values in varied.values())
        and _are_texts(document.get("fixed"))
        and isinstance(document.get("recipe"), str | None)
    )
    if not is_sound:
        raise Damaged(f"'{path / SWEEP}' is damaged: it is not the plan of a sweep")
    return document


def _are_texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(item, str) for item in value)


def _merged(path: Path, before: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, list[str]]:
    """The values of both grids, for the same recipe and the same keys.

    Raises:
        BadInput: these are two sweeps.
    """
    differs = ""
    if before["recipe"] != now["recipe"]:
        differs = f"the recipe {before['recipe'] or 'of its overrides'}"
    elif sorted(before["varied"]) != sorted(now["varied"]):
        differs = f"values of {', '.join(before['varied'])}"
    elif dict(map(parse_override, before["fixed"])) != dict(map(parse_override, now["fixed"])):
        differs = " ".join(before["fixed"]) or "no other overrides"
    if differs:
        raise BadInput(
            f"'{path}' holds another sweep, with {differs[:200]}; only values of {', '.join(before['varied'])} may be "
            "added: say the rest as before, or choose another --run-dir"
        )
    merged = {}
    for key, values in before["varied"].items():
        by_label: dict[str, str] = {}
        for value in [*values, *now["varied"][key]]:
            by_label.setdefault(label_of_text(key, value), value)
        merged[key] = list(by_label.values())
    return merged


def _check_same_recipe(cell: GridCell, incomplete: Recipe) -> None:
    """Refuse to continue a cell whose recipe has been changed since, for example in its file.

    Args:
        incomplete: the cell's recipe before it was completed.

    Raises:
        BadInput: naming the first key that differs.
    """
    if not cell.started:
        return
    # What the recipe leaves open was filled in when the run began, perhaps on another machine.
    keys = [key for key in filled_keys(incomplete) if key != "description"]
    changes = recipe_changes(RunFolder(cell.path).recipe(), cell.recipe, keys)
    if changes:
        first = changes[0]
        raise BadInput(
            f"'{cell.path}' was trained with {first.key}={value_label(first.before)[:80]}, and the recipe says "
            f"{value_label(first.now)[:80]} now; choose another --run-dir"
        )


# -- carrying it out --------------------------------------------------------------------------------------------------


def trainer(per_run: int = 1) -> Command:
    """Builder of the command lines that train cells, each in one process or in several that torchrun starts."""
    start = [sys.executable, "-m", "sightline"]
    if per_run > 1:
        torchrun = ["torch.distributed.run", "--standalone", "--nproc-per-node", str(per_run)]
        start = [sys.executable, "-m", *torchrun, "-m", "sightline"]

    def command(cell: GridCell, resume: bool) -> list[str]:
        line = [*start, "train", *cell.arguments, "--run-dir", str(cell.path)]
        if resume:
            line.append("--resume")
        return line

    return command


@dataclass
class _Sweeping:
    """Sweep that is being carried out.

    Attributes:
        waiting: cells to start.
        running: cells with their processes.
        slots: name of a running cell -> its number among those that run at the same time.
        foreign: cells that processes of others are writing, such as those of a sweep that was killed.
        failures: name of a cell -> why it has no result.
    """

    plan: Plan
    processes: int
    say: Callable[[str], None]
    command: Command
    start_elsewhere: Start | None
    waiting: deque[GridCell] = field(default_factory=deque)
    running: dict[str, tuple[GridCell, CellProcess]] = field(default_factory=dict)
    slots: dict[str, int] = field(default_factory=dict)
    foreign: dict[str, GridCell] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)
    done_before: int = 0
    done_now: int = 0
    began: float = field(default_factory=time.monotonic)

    @property
    def done(self) -> int:
        return self.done_before + self.done_now

    def start_next(self) -> None:
        """Start the next cell, or note that another process is writing it."""
        cell = self.waiting.popleft()
        # Perhaps a run that a killed sweep had started; a second one would be refused its folder.
        owner = current_owner(cell.path)
        if owner is not None:
            self.say(f"{cell.name}: waiting for {owner}, which is writing it")
            self.foreign[cell.name] = cell
            return
        if self.start_elsewhere is not None:
            self.running[cell.name] = (cell, self.start_elsewhere(cell, self._log(cell)))
            return
        environment = os.environ | SAFE
        environment.setdefault("OMP_NUM_THREADS", str(cell.recipe.threads))
        # The lowest free number, by which a run finds a GPU that the others leave alone.
        slot = min(set(range(self.processes)) - set(self.slots.values()))
        environment[SLOT] = str(slot)
        with self._log(cell).open("wb") as log:
            # In a session of its own, so that Ctrl-C reaches this process alone, which passes it on once: the second
            # one would keep a run from saving.
            process = subprocess.Popen(
                self.command(cell, cell.started),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=log,
                env=environment,
                start_new_session=True,
            )
        self.running[cell.name] = (cell, process)
        self.slots[cell.name] = slot

    def collect(self) -> None:
        """Take the cells that have ended."""
        for name, (cell, process) in list(self.running.items()):
            code = process.poll()
            if code is None:
                continue
            del self.running[name]
            self.slots.pop(name, None)
            if code == 0 and cell.finished:
                self._finish(cell)
            else:
                self.failures[name] = self._reason(cell, code)
                self.say(f"{name}: failed: {self.failures[name]}")
        for name, cell in list(self.foreign.items()):
            if current_owner(cell.path) is not None:
                continue
            del self.foreign[name]
            if cell.finished:
                self._finish(cell)
            else:
                self.waiting.appendleft(cell)

    def stop(self) -> None:
        """Have the running cells save, and wait for them."""
        for _, process in self.running.values():
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal.SIGTERM)
        for _, process in self.running.values():
            process.wait()

    def kill(self) -> None:
        """End what still runs, without saving."""
        for _, process in self.running.values():
            if process.poll() is None:
                process.kill()
                process.wait()

    def _finish(self, cell: GridCell) -> None:
        self.done_now += 1
        remaining = ""
        cells_left = len(self.waiting) + len(self.running) + len(self.foreign)
        if cells_left > 0:
            seconds = (time.monotonic() - self.began) / self.done_now * cells_left
            remaining = f", about {duration(seconds)} left"
        result = read_mapping(cell.path / "result.json")
        numbers = describe(result) if result else "its result cannot be read"
        self.say(f"{self.done} of {len(self.plan.cells)} cells done{remaining}; {cell.name}: {numbers}")

    def _reason(self, cell: GridCell, code: int) -> str:
        """Why a cell has no result: the last line that its process said, or how it ended."""
        lines = [line.strip() for line in read_text(self._log(cell)).splitlines() if line.strip()]
        own_lines = [line.removeprefix("sightline: ") for line in lines if line.startswith("sightline: ")]
        last_line = ""
        # torchrun stops all processes when one has failed, and says more itself after the last line of any.
        failures = [line for line in own_lines if not line.startswith("stopped by ")]
        if failures:
            last_line = failures[-1]
        elif own_lines:
            last_line = own_lines[-1]
        elif lines:
            last_line = lines[-1]
        if code < 0:
            with contextlib.suppress(ValueError):
                reason = f"its process was ended by {signal.Signals(-code).name}"
                return f"{reason} after: {last_line}" if last_line else reason
        if last_line:
            return last_line
        return f"its process ended with exit code {code}" if code else "it ended without a result"

    def _log(self, cell: GridCell) -> Path:
        return self.plan.path / LOGS / f"{cell.name}.log"


def carry_out(
    plan: Plan,
    processes: int,
    say: Callable[[str], None],
    command: Command | None = None,
    start_elsewhere: Start | None = None,
) -> dict[str, str]:
    """Train every cell that has no result, some of them at a time.

    Args:
        processes: how many at a time.
        say: shows a line of progress.
        command: builds the command line of a cell; default: that of `trainer()`.
        start_elsewhere: starts cells on a cluster; None for processes of this machine.

    Returns:
        Why cells have no result: name -> last line that they said.

    Raises:
        BadInput: the folder cannot be written to, or another sweep is writing it.
        Stopped: a signal asked for it; the cells have saved.
    """
    with _leased(plan.path) as lease:
        with lease.writing():
            write_document(plan.path / SWEEP, plan.document)
            (plan.path / LOGS).mkdir(exist_ok=True)
        waiting = deque(cell for cell in plan.cells if not cell.finished)
        done_before = len(plan.cells) - len(waiting)
        sweeping = _Sweeping(
            plan, processes, say, command or trainer(), start_elsewhere, waiting, done_before=done_before
        )
        if done_before:
            say(f"{done_before} of {len(plan.cells)} cells are done already")
        with StopRequests() as stop:
            try:
                while sweeping.waiting or sweeping.running or sweeping.foreign:
                    # Cells that others write count, too: they mostly use this machine's cores.
                    while sweeping.waiting and len(sweeping.running) + len(sweeping.foreign) < processes:
                        sweeping.start_next()
                    time.sleep(_POLL)
                    sweeping.collect()
                    if stop.signal_number is not None:
                        say("stopping: waiting for the cells to save")
                        sweeping.stop()
                        raise SweepStopped(stop.signal_number, sweeping.done, len(plan.cells))
            finally:
                sweeping.kill()
    return sweeping.failures


@contextlib.contextmanager
def _leased(path: Path) -> Iterator[Lease]:
    """Context that holds the lease of a sweep's folder, which is made if it is missing.

    Raises:
        BadInput: the folder cannot be made or written to.
        Busy: another sweep is writing it.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BadInput(f"the folder '{path}' cannot be made: {error.strerror or error}") from error
    lease = take_lease(path)
    try:
        yield lease
    finally:
        lease.release()
