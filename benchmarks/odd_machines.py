"""Commands on other people's machines: does each work and give the same numbers, or end in one line?

    python benchmarks/odd_machines.py                     # all; a quarter of an hour on two cores
    python benchmarks/odd_machines.py --only 'HOME.*'     # those whose name fits
    python benchmarks/odd_machines.py --list

A machine is a script of bash in front of the command; a row of `MACHINES` says which commands it may refuse, and in
what words. A command works if it exits with 0 and says what it says on the ordinary machine. A refusal is one line,
with exit code 2 for what the user can mend or 1 for a failure, and leaves nothing half-made. Neither may hang, raise
anything raw, or leave a process or a temporary file. Whatever needs root or namespaces of Linux says so where they
cannot be had. Results: `results/odd_machines.json` and `docs/machines.md`.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import re
import shlex
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

from running import LITTLE, RESULTS, folder_of, keep, kept, sized

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "machines.md"
PAGE_MADE = sized(PAGE, RESULTS / PAGE.name)
BEGIN, END = "<!-- table -->", "<!-- end of table -->"
FILE = "odd_machines.json"
NOBODY = 65534
"""User and group that own nothing."""

SMALL_RUN = tuple(f"{key}={json.dumps(value)}" for key, value in LITTLE.items())
SCRIPTED = ("reward.teacher.kind=scripted", "reward.frame_size=[48, 48]", "reward.device=cpu")

COMMANDS: dict[str, tuple[str, ...]] = {
    "train": ("train", "{recipe}", *SMALL_RUN, "--json", "--run-dir", "{new}"),
    "resume": ("train", "--resume", "steps=128", "--json", "--run-dir", "{run}"),
    "evaluate": ("evaluate", "--episodes", "3", "--json", "--", "{run}"),
    "report": ("report", "--out", "page.html", "--json", "--", "{run}"),
    "score": ("score", "--goal", "an upright pole", "--json", "{place}/picture.png"),
    "label run": ("label", "run", "--questions", "3", "--json", "--", "{asked}", "env=cartpole", *SCRIPTED),
    "label stats": ("label", "stats", "--html", "labels.html", "--json", "--", "{store}"),
    "doctor": ("doctor", "--json"),
}
EVERY = tuple(COMMANDS)
OF_RUNS = ("train", "resume", "evaluate", "report", "label run", "label stats")
"""Commands that read or write a run folder or a store."""
READERS = ("evaluate", "report", "label stats")

PASSING = ("run", "report", "page", "image", "seconds", "wall_seconds")
"""Keys of answers that say where and how fast, not what."""
ESSENTIAL = ("python", "packages", "own tasks", "bundled encoders")
"""What `doctor` must find in order everywhere."""
RAW = re.compile(r"Traceback|\b[A-Z][A-Za-z]*(Error|Exception|Interrupt|Exit)\b|\bFATAL\b")

WORKS, REFUSED, WRONG, NOT_TRIED = "works", "a line", "WRONG", "not tried"


@dataclass(frozen=True)
class Refusal:
    """A line that is expected in place of an answer.

    Attributes:
        words: of the line.
        code: exit code.
    """

    words: str
    code: int = 2


@dataclass(frozen=True)
class Machine:
    """An odd machine.

    Attributes:
        name: what the table calls it.
        script: of bash; the command is `"$@"`, its folder `$PLACE`, `$TMPDIR` is in there.
        environment: variables; `{place}` and `{silent_port}`, where nobody ever replies, are filled in.
        commands: what is tried.
        refused: command -> the line that is expected in place of an answer.
        user: as a user who is not root, and owns `$PLACE` unless the script gives it away.
        namespaces: flags of `unshare`; mounts are lost with the command.
        within: command that carries out ours, as the user.
        python: flags of Python.
        recipe: what `train` is given.
        keys: further recipe keys of `train`.
        folder: name of the working folder.
        new: name of the folder that `train` makes.
        run: name of the run folder.
        silent: nobody can read what is said.
    """

    name: str
    script: str = 'exec "$@"'
    environment: Mapping[str, str] = field(default_factory=dict)
    commands: tuple[str, ...] = EVERY
    refused: Mapping[str, Refusal] = field(default_factory=dict)
    user: bool = False
    namespaces: tuple[str, ...] = ()
    within: tuple[str, ...] = ()
    python: tuple[str, ...] = ()
    recipe: str = "cartpole"
    keys: tuple[str, ...] = ()
    folder: str = "work"
    new: str = "new"
    run: str = "run"
    silent: bool = False


def refusing(commands: Sequence[str], words: str, code: int = 2) -> dict[str, Refusal]:
    """The same refusal for several commands."""
    return dict.fromkeys(commands, Refusal(words, code))


def with_recipe(name: str, script: str, refusal: Refusal | None = None) -> Machine:
    """The ordinary machine, with `r.yaml` as a script makes it."""
    refused = {} if refusal is None else {"train": refusal}
    return Machine(name, f'{script}\nexec "$@"', commands=("train",), refused=refused, recipe="r.yaml")


MOUNTS = ("--mount",)
READ_ONLY = "mount --bind {0} {0}; mount -o remount,ro,bind {0}; "
RECIPE = shlex.quote(str(ROOT / "src" / "sightline_tasks" / "recipes" / "cartpole.yaml"))
"""The recipe of the ordinary machine."""

BACK = """
import datetime, time
real, began = time.time, time.monotonic()
def shift():  # ten minutes back after three seconds
    return 600 if time.monotonic() - began > 3 else 0
class Back(datetime.datetime):
    @classmethod
    def now(cls, tz=None):
        return cls.fromtimestamp(time.time(), tz)
time.time = lambda: real() - shift()
time.time_ns = lambda: int(time.time() * 1e9)
datetime.datetime = Back
"""

MACHINES = (
    Machine("ordinary"),
    # -- users and their homes
    Machine("a user who is not root", user=True),
    Machine("HOME unset", 'unset HOME; exec "$@"', user=True),
    Machine("HOME that is not there", 'HOME=/nonexistent exec "$@"', user=True),
    Machine("HOME read-only", 'chown 0 "$HOME"; chmod 555 "$HOME"; exec "$@"', user=True),
    Machine(
        "a user without a name",
        'mount --bind /dev/null /etc/passwd; unset USER LOGNAME HOME; exec "$@"',
        user=True,
        namespaces=MOUNTS,
    ),
    # -- temporary folders and shared memory
    Machine("TMPDIR of 1 MB", 'mount -t tmpfs -o size=1m none "$TMPDIR"; exec "$@"', namespaces=MOUNTS),
    Machine(
        "TMPDIR full",
        'mount -t tmpfs -o size=1m none "$TMPDIR"; head -c 2M /dev/zero >"$TMPDIR/full" 2>/dev/null; exec "$@"',
        namespaces=MOUNTS,
    ),
    Machine("TMPDIR missing", 'TMPDIR=/nonexistent exec "$@"'),
    Machine("1 MB of /dev/shm", 'mount -t tmpfs -o size=1m none /dev/shm; exec "$@"', namespaces=MOUNTS),
    Machine(
        "1 MB of /dev/shm, workers=processes",
        'mount -t tmpfs -o size=1m none /dev/shm; "$@"; code=$?; [ -z "$(ls -A /dev/shm)" ] || code=99; exit $code',
        namespaces=MOUNTS,
        commands=("train",),
        keys=("workers=processes",),
    ),
    Machine(
        "4 kB of /dev/shm, workers=processes",
        'mount -t tmpfs -o size=4k none /dev/shm; head -c 4k /dev/zero >/dev/shm/full; exec "$@"',
        namespaces=MOUNTS,
        commands=("train",),
        keys=("workers=processes",),
    ),
    Machine(
        "no folder that can be written to",
        "".join(READ_ONLY.format(folder) for folder in ("/tmp", "/var/tmp", "/dev/shm")) + 'cd "$PWD"; exec "$@"',
        user=True,
        namespaces=MOUNTS,
        environment={"HOME": "/nonexistent"},
        refused=refusing(("report", "label stats"), "cannot be written to")
        | refusing(("train", "resume", "evaluate", "score", "doctor"), "TMPDIR", 1)
        | {"label run": Refusal("Read-only file system")},
    ),
    # -- letters and streams
    Machine(
        "LANG=C, ASCII stdout",
        environment=dict.fromkeys(("LANG", "LC_ALL"), "C")
        | {"PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
    ),
    Machine("stdout closed", 'exec "$@" >&-', silent=True),
    Machine("stderr closed", 'exec "$@" 2>&-'),
    Machine("stdin, stdout and stderr closed", 'exec "$@" <&- >&- 2>&-', silent=True),
    Machine("stdout on a full disk", 'exec "$@" >/dev/full', silent=True),
    Machine("stderr on a full disk", 'exec "$@" 2>/dev/full'),
    Machine("a pipe that closes early", '"$@" 2>&1 | true; exit ${PIPESTATUS[0]}', silent=True),
    # -- folders
    Machine("umask 077", 'umask 077; exec "$@"'),
    Machine(
        "a working folder that is read-only",
        'chown 0 .; chmod 555 .; exec "$@"',
        user=True,
        refused=refusing(("report", "label stats"), "cannot be written to")
        | refusing(("train", "label run"), "Permission denied"),
    ),
    Machine(
        "a working folder that was deleted",
        'mkdir gone; cd gone; rmdir ../gone; exec "$@"',
        refused=refusing(EVERY, "the working folder has been removed"),
    ),
    Machine("spaces and letters of the world", folder="un dossier à moi, 私の"),
    Machine("a run that was moved", 'mv run moved; exec "$@"', run="moved", commands=OF_RUNS),
    Machine("a run that is a link", 'mv run moved; ln -s moved run; exec "$@"', commands=OF_RUNS),
    Machine(
        "a run of somebody else's",
        'chown -R 0 run store; exec "$@"',
        user=True,
        commands=OF_RUNS,
        refused={"resume": Refusal("cannot be written to")},
    ),
    Machine(
        "a run that may not be entered",
        'chmod 700 run store; chown -R 0 run store; exec "$@"',
        user=True,
        commands=OF_RUNS,
        refused=refusing(("resume", "report", "label stats"), "is not readable")
        | refusing(("evaluate",), "Permission denied"),
    ),
    Machine(
        "a run on a read-only mount",
        READ_ONLY.format('"$PWD/run"') + READ_ONLY.format('"$PWD/store"') + 'exec "$@"',
        namespaces=MOUNTS,
        commands=OF_RUNS,
        refused={"resume": Refusal("Read-only file system")},
    ),
    Machine("a run named -x", 'mv run ./-x; exec "$@"', run="-x", new="-y", commands=OF_RUNS),
    Machine("a run named a=b", 'mv run a=b; exec "$@"', run="a=b", new="c=d", commands=OF_RUNS),
    Machine("a run named .", 'cd run; exec "$@"', run=".", commands=("resume", "evaluate", "report")),
    Machine("a new run named .", 'mkdir empty; cd empty; exec "$@"', new=".", commands=("train",)),
    Machine("a run of 250 letters", f'mv run {"r" * 250}; exec "$@"', run="r" * 250, new="n" * 250, commands=OF_RUNS),
    Machine(
        "a run of 300 letters",
        new="n" * 300,
        run="r" * 300,
        commands=("train", "resume", "evaluate", "report"),
        refused=refusing(("train", "resume", "evaluate", "report"), "too long"),
    ),
    # -- limits
    Machine("64 open files", 'ulimit -n 64; exec "$@"'),
    Machine("4 GB of address space", 'ulimit -v 4194304; exec "$@"'),
    Machine(
        "one process",
        user=True,
        within=("prlimit", "--nproc=1"),  # root has no such limit
        refused=refusing(EVERY, "no more processes or threads", 1),
    ),
    Machine("one core", 'exec taskset -c 0 "$@"'),
    Machine("one core, 64 threads", 'exec taskset -c 0 "$@"', environment={"OMP_NUM_THREADS": "64"}),
    Machine("64 threads", environment={"OMP_NUM_THREADS": "64", "MKL_NUM_THREADS": "64"}),
    # -- clocks
    Machine("a clock that goes back", environment={"PYTHONPATH": "{place}/back"}),
    Machine("files of next year", 'find . -exec touch -h -d "1 year" {} +; exec "$@"'),
    # -- Python
    Machine("PYTHONOPTIMIZE=2", environment={"PYTHONOPTIMIZE": "2"}),
    Machine("PYTHONWARNINGS=error", environment={"PYTHONWARNINGS": "error"}),
    Machine("python -I -m sightline", python=("-I",)),
    Machine("python -X dev", python=("-X", "dev")),
    # -- what is not installed
    Machine("no ffmpeg", environment={"IMAGEIO_FFMPEG_EXE": "/nonexistent/ffmpeg"}, keys=("videos=true",)),
    Machine(
        "no OpenGL",
        r"for file in $(ldconfig -p | grep -E 'lib(EGL|OSMesa|GL|GLX|glfw)[._]' | sed 's/.*=> //'); do "
        'mount --bind /dev/null "$file"; done; exec "$@"',
        namespaces=MOUNTS,
    ),
    Machine("a DISPLAY that is dead", environment={"DISPLAY": ":99"}),
    Machine("CUDA_VISIBLE_DEVICES without a GPU", environment={"CUDA_VISIBLE_DEVICES": "3"}),
    # -- configuration files
    with_recipe("a recipe with CRLF", rf"sed 's/$/\r/' {RECIPE} >r.yaml"),
    with_recipe("a recipe with a byte order mark", rf"(printf '\xef\xbb\xbf'; cat {RECIPE}) >r.yaml"),
    with_recipe("a recipe with nothing in it", "touch r.yaml", Refusal("r.yaml")),
    with_recipe("a recipe through a pipe", f"mkfifo r.yaml; cat {RECIPE} >r.yaml &"),
    with_recipe("a recipe that is a folder", "mkdir r.yaml", Refusal("r.yaml")),
    with_recipe(
        "a recipe of 10 MB", f"(cat {RECIPE}; yes '# a comment' | head -c 10M) >r.yaml", Refusal("larger than")
    ),
    # -- networks
    Machine("no network", namespaces=("--net",)),
    Machine(
        "a network that never replies",
        environment=dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"), "http://127.0.0.1:{silent_port}"),
    ),
    Machine(
        "no network, an encoder to be fetched",
        namespaces=("--net",),
        commands=("train",),
        keys=("reward.encoder=ViT-B-32/laion2b_s34b_b79k",),
        environment={"HF_HOME": "{place}/hub"},
        refused={"train": Refusal("could not be downloaded", 1)},
    ),
)


SMALLEST = "ordinary|HOME unset|a recipe with CRLF"
"""Machines that are tried where it is only asked whether this file runs."""


@dataclass(frozen=True)
class Outcome:
    """What a command did.

    Attributes:
        verdict: it works, was refused in a line as expected, or something is wrong.
        line: the refusal, or what is wrong.
        seconds: how long it took.
    """

    verdict: str
    line: str
    seconds: float


@dataclass(frozen=True)
class Done:
    """A command that has ended.

    Attributes:
        code: exit code; None if it did not end in time.
        out: what it wrote to stdout.
        err: what it wrote to stderr.
        leftovers: processes and files that it should have taken away.
        made: what commands make that is there now.
        seconds: how long it took.
    """

    code: int | None
    out: str
    err: str
    leftovers: tuple[str, ...]
    made: tuple[str, ...]
    seconds: float


class Workshop:
    """Where machines are made: the ordinary run and its label store, copied for each command.

    Args:
        folder: that everybody may enter.
        limit: seconds that a command may take.
    """

    def __init__(self, folder: Path, limit: float) -> None:
        self._folder, self._limit = folder, limit
        self._silence = socket.create_server(("127.0.0.1", 0))  # nobody ever accepts
        self._finished = folder / "finished"
        self._finished.mkdir()

    def prepare(self) -> None:
        """Train the run, and ask for the labels, that the machines get copies of."""
        ordinary = MACHINES[0]
        for command, made, name in (("train", "new", "run"), ("label run", "asked", "store")):
            done = self.carry_out(ordinary, command, keep_at=self._finished / "place")
            if done.code != 0:
                raise SystemExit(f"{command} does not work on this machine as it is: {done.err[-500:]}")
            shutil.move(self._finished / "place" / ordinary.folder / made, self._finished / name)
            shutil.rmtree(self._finished / "place")

    def carry_out(self, machine: Machine, command: str, keep_at: Path | None = None) -> Done:
        """One command on a machine that is made for it.

        Args:
            machine: which.
            command: which.
            keep_at: the place is moved there; otherwise it is removed.
        """
        place = self._folder / folder_of(f"{machine.name} {command}")
        work = self._lay_out(place, machine)
        line = self._command_line(machine, command, place)
        began = time.monotonic()
        process = subprocess.Popen(
            line,
            cwd=work,
            env=self._environment(machine, place),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="backslashreplace",
            start_new_session=True,
        )
        code: int | None = None
        with contextlib.suppress(subprocess.TimeoutExpired):
            out, err = process.communicate(timeout=self._limit)
            code = process.returncode
        seconds = time.monotonic() - began
        leftovers = list(_end_group(process.pid, patient=code is not None))
        if code is None:
            out, err = process.communicate()
        leftovers += [f"$TMPDIR/{path.name}" for path in (place / "tmp").iterdir() if not _stays(path.name)]
        products = (machine.new, "asked", "page.html", "labels.html")
        made = [name for name in products if name != "." and os.path.lexists(work / name)]
        err = err.replace(f"{place}/", "…/")
        done = Done(code, out, err, tuple(leftovers), tuple(made), round(seconds, 1))
        if keep_at is None:
            shutil.rmtree(place)
        else:
            place.rename(keep_at)
        return done

    def _lay_out(self, place: Path, machine: Machine) -> Path:
        """Make the files of a place; gives its working folder."""
        work = place / machine.folder
        work.mkdir(parents=True)
        for name in ("home", "tmp", "back"):
            (place / name).mkdir()
        (place / "back" / "sitecustomize.py").write_text(BACK)
        _draw(place / "picture.png")
        for name in ("run", "store"):
            if (self._finished / name).is_dir():
                shutil.copytree(self._finished / name, work / name)
        if machine.user:
            for file in (place, *place.rglob("*")):
                os.chown(file, NOBODY, NOBODY)
        return work

    def _command_line(self, machine: Machine, command: str, place: Path) -> list[str]:
        names = {"recipe": machine.recipe, "new": machine.new, "run": machine.run, "place": str(place)}
        names |= {"asked": "asked", "store": "store"}
        arguments = [part.format(**names) for part in COMMANDS[command]]
        if command == "train":
            arguments += machine.keys
        line = [*machine.within, sys.executable, *machine.python, "-m", "sightline", *arguments]
        script, namespaces = machine.script, machine.namespaces
        if machine.user:
            # The script is root's, who makes the machine; its command is the user's.
            line = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", *line]
            if opening := _reachable(place / "stage"):
                script, namespaces = opening + script, tuple(dict.fromkeys((*namespaces, *MOUNTS)))
        prefix = ["unshare", *namespaces] if namespaces else []
        return [*prefix, "bash", "-c", script, "bash", *line]

    def _environment(self, machine: Machine, place: Path) -> dict[str, str]:
        environment = {
            name: value
            for name, value in os.environ.items()
            if not name.upper().endswith("_PROXY") and not name.startswith(("HF_", "SIGHTLINE_", "PYTHON"))
        }
        environment |= {"OMP_NUM_THREADS": "1", "HOME": str(place / "home"), "TMPDIR": str(place / "tmp")}
        own = {
            name: value.format(place=place, silent_port=self._silence.getsockname()[1])
            for name, value in machine.environment.items()
        }
        # A checkout that is not installed is found by this variable.
        paths = [own.pop("PYTHONPATH", ""), os.environ.get("PYTHONPATH", "")]
        return environment | own | {"PYTHONPATH": os.pathsep.join(filter(None, paths))}


def _stays(name: str) -> bool:
    """True for files of a machine, and for what libraries keep for the next time."""
    return name == "full" or name.startswith(("torchinductor", "matplotlib", "fontconfig"))


def _draw(file: Path) -> None:
    """A picture of an upright pole."""
    from PIL import Image

    from sightline_tasks.control.cartpole import LOOKS, draw_cartpole

    Image.fromarray(draw_cartpole(0.0, 0.0, (96, 96), LOOKS["plain"])).save(file)


def _end_group(group: int, patient: bool) -> Iterator[str]:
    """End what is left of a group of processes, and say so."""
    for _ in range(50 if patient else 0):
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            return
        time.sleep(0.1)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, signal.SIGKILL)
        if patient:
            yield "a process"


@cache
def _closed_folders() -> dict[Path, Path]:
    """What a user needs and may not reach -> the topmost folder on its way that is closed."""
    needed = {Path(sys.base_prefix), Path(sys.prefix), ROOT}
    closed = {folder: [one for one in folder.parents if not one.stat().st_mode & stat.S_IXOTH] for folder in needed}
    return {folder: parents[-1] for folder, parents in closed.items() if parents}


def _reachable(stage: Path) -> str:
    """Lines of bash by which everybody reaches this Python and this checkout, in a namespace of mounts."""
    lines, back = [], []
    for number, folder in enumerate(_closed_folders()):
        aside = shlex.quote(str(stage / str(number)))
        there = shlex.quote(str(folder))
        lines.append(f"mkdir -p {aside}; mount --bind {there} {aside}")
        back.append(f"mkdir -p {there}; mount --bind {aside} {there}")
    covers = [
        f"mount -t tmpfs -o mode=755 none {shlex.quote(str(parent))}"
        for parent in dict.fromkeys(_closed_folders().values())
    ]
    return "".join(f"{line}\n" for line in (*lines, *covers, *back))


def obstacle(machine: Machine) -> str:
    """Why a machine cannot be made here; empty if it can."""
    if machine.user and os.geteuid() != 0:
        return "only root can become another user"
    if machine.namespaces and subprocess.run(["unshare", *machine.namespaces, "true"], check=False).returncode:
        return "this machine allows no namespaces"
    missing = [tool for tool in ("taskset", "setpriv") if tool in machine.script and shutil.which(tool) is None]
    return f"there is no {missing[0]} here" if missing else ""


def answer(command: str, out: str) -> Any:
    """What a command said on stdout, without what differs from place to place; None if it is not a document."""
    try:
        document = json.loads(out)
    except ValueError:
        return None
    if command == "doctor":
        return {finding["name"]: finding["works"] for finding in document if finding["name"] in ESSENTIAL}
    return _lasting(document)


def _lasting(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _lasting(one) for key, one in value.items() if key not in PASSING}
    if isinstance(value, list):
        return [_lasting(one) for one in value]
    return value


def judge(machine: Machine, command: str, done: Done, expected: Any) -> Outcome:
    """Whether a command works, is refused as the machine's row says, or is wrong."""

    def outcome(verdict: str, line: str = "") -> Outcome:
        return Outcome(verdict, line, done.seconds)

    lines = done.err.splitlines()
    raw = RAW.search(done.out + done.err)
    refusal = machine.refused.get(command)
    if done.code is None:
        return outcome(WRONG, f"it hangs; {done.err[-300:]}")
    if raw:
        return outcome(WRONG, f"code {done.code}, raw: {' | '.join(lines[-3:])[-600:]}")
    if done.leftovers:
        return outcome(WRONG, f"code {done.code}, left behind: {', '.join(done.leftovers)[:300]}")
    if refusal is not None:
        last = lines[-1] if lines else ""
        fits = done.code == refusal.code and last.startswith("sightline: ") and refusal.words in last
        if not fits or (refusal.code == 2 and len(lines) != 1):
            return outcome(WRONG, f"code {done.code}, not the line that is expected: {' | '.join(lines)[-600:]}")
        if done.made and refusal.code == 2:
            return outcome(WRONG, f"refused, but made {', '.join(done.made)[:300]}")
        return outcome(REFUSED, last.removeprefix("sightline: "))
    if machine.silent and done.code in (0, 1):
        return outcome(WORKS)
    if done.code != 0:
        return outcome(WRONG, f"code {done.code}: {' | '.join(lines[-3:])[-600:]}; made {', '.join(done.made)[:300]}")
    told = answer(command, done.out)
    if told != expected:
        return outcome(WRONG, f"another answer: {str(told)[:300]} instead of {str(expected)[:300]}")
    return outcome(WORKS)


def try_machine(workshop: Workshop, machine: Machine, expected: Mapping[str, Any]) -> dict[str, Outcome]:
    """All commands on one machine.

    Args:
        workshop: which makes it.
        machine: which.
        expected: command -> answer of the ordinary machine.
    """
    if why := obstacle(machine):
        return {command: Outcome(NOT_TRIED, why, 0.0) for command in machine.commands}
    rows = {}
    for command in machine.commands:
        rows[command] = judge(machine, command, workshop.carry_out(machine, command), expected[command])
        mark = "-- " if rows[command].verdict == WRONG else "ok "
        print(f"{mark} {machine.name:38} {command:11} {rows[command].seconds:5.0f} s  {rows[command].line}", flush=True)
    return rows


def table(rows: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> list[str]:
    """Lines of Markdown: a row for each machine, and what was said where a command does not work there."""
    lines = [f"| machine | {' | '.join(COMMANDS)} |", f"|---{'|---' * len(COMMANDS)}|"]
    said: dict[str, list[str]] = {}
    for name, outcomes in rows.items():
        cells = [str(outcomes[command]["verdict"]) if command in outcomes else "" for command in COMMANDS]
        lines.append(f"| {name} | {' | '.join(cells)} |")
        for command, one in outcomes.items():
            if one["line"]:
                said.setdefault(f"{name}: {one['line']}", []).append(command)
    lines += ["", "What was said:", ""]
    return [*lines, *(f"- {', '.join(commands)} with {line}" for line, commands in said.items())]


def summary(rows: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> str:
    """How many commands came to which end, in a line."""
    verdicts = [one["verdict"] for outcomes in rows.values() for one in outcomes.values()]
    counts = ", ".join(f"{verdicts.count(one)} {one}" for one in (WORKS, REFUSED, NOT_TRIED, WRONG) if one in verdicts)
    return f"odd machines: {len(rows)} machines, {len(verdicts)} commands: {counts}"


def write_page(rows: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> None:
    """Put the table between the marks of the page."""
    processor = platform.processor() or platform.machine()
    made = f"{time.strftime('%Y-%m-%d')}, Python {platform.python_version()}, {processor}, {os.cpu_count()} cores"
    before, _, rest = PAGE.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    content = [BEGIN, "", f"Tried on {made}.", "", *table(rows), "", f"`{summary(rows)}`", "", END]
    PAGE_MADE.write_text(before + "\n".join(content) + after)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=sized("", SMALLEST), help="regular expression for names of machines")
    parser.add_argument("--commands", nargs="*", default=EVERY, choices=EVERY)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--limit", type=float, default=120, help="seconds that a command may take")
    parser.add_argument("--list", action="store_true", help="names of the machines")
    said = parser.parse_args()
    if said.list:
        print(*(machine.name for machine in MACHINES), sep="\n")
        return
    ordered: dict[str, Any] = {}
    wanted = [machine for machine in MACHINES if re.fullmatch(said.only or ".*", machine.name)]
    needed = [one for one in said.commands if any(one in machine.commands for machine in wanted)]
    folder = Path(tempfile.mkdtemp(prefix="machines-"))
    folder.chmod(0o755)
    try:
        workshop = Workshop(folder, said.limit)
        workshop.prepare()
        expected = {}
        for command in needed:
            done = workshop.carry_out(MACHINES[0], command)
            expected[command] = answer(command, done.out)
            if done.code != 0 or not expected[command]:
                raise SystemExit(f"{command} does not work on this machine as it is: {done.err[-500:]}")

        def row(machine: Machine) -> dict[str, Any]:
            chosen = {one: expected[one] for one in machine.commands if one in expected}
            some = replace(machine, commands=tuple(chosen))
            return {command: asdict(one) for command, one in try_machine(workshop, some, expected).items()}

        rows = kept(FILE, "machines")
        with ThreadPoolExecutor(said.jobs) as threads:
            for machine, outcomes in zip(wanted, threads.map(row, wanted), strict=True):
                rows[machine.name] = rows.get(machine.name, {}) | outcomes
                ordered = {one.name: rows[one.name] for one in MACHINES if one.name in rows}
                keep(FILE, "machines", ordered, said.jobs)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    write_page(ordered)
    print(summary(ordered))
    if any(one["verdict"] == WRONG for outcomes in ordered.values() for one in outcomes.values()):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
