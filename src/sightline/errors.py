"""Exceptions that commands report in one line, with exit code 2 (bad input), 75 (try again) or 1 (failed run)."""

from __future__ import annotations

import contextlib
import difflib
import importlib
import inspect
import re
import sysconfig
import traceback
import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TypeVar

Value = TypeVar("Value")


class BadInput(Exception):
    """Invalid input by the user; the message says what to do instead. Exit code 2."""


class Damaged(BadInput):
    """Damaged file: truncated, changed, or not written by Sightline. Exit code 2."""


class Busy(BadInput):
    """Folder that another process is writing: the same command may work later. Exit code 75."""


class RunFailed(Exception):
    """Failure while running; everything saved before is intact. Exit code 1."""


class SightlineWarning(UserWarning):
    """Warning of ours; a command shows it in one line."""


def reason_of(error: BaseException) -> str:
    """Type and message of an exception, in one line; the type alone if it has no message."""
    name = type(error).__name__
    message = " ".join(str(error).split())
    if not message:
        return name
    return f"{name}: {message}"


def why_unreadable(error: Exception) -> str:
    """Why a file cannot be read, in one line: the system's own words, where it has some."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return reason_of(error)


OUR_PACKAGES = ("sightline", "sightline_tasks")
OURS = tuple(Path(__file__).parents[1] / name for name in OUR_PACKAGES)
"""Folders of the packages that Sightline consists of."""
LIBRARIES = tuple(Path(sysconfig.get_paths()[name]) for name in ("stdlib", "platstdlib", "purelib", "platlib"))
"""Folders of Python's own modules and of installed packages."""
LONGEST_WORD = 300
"""Characters without a space between them that are shown of a message; a path may have some."""
MOST_NAMES = 12
"""Names that are listed where none is similar to an unknown one."""


def printable(message: str) -> str:
    """A message as one line of a terminal: control characters as escapes, and words of endless length cut short.

    >>> there is no environment 'a\\nb'
    """
    line = "".join(map(_escaped, message))
    # Of a longer word, the first 60 characters and the last two.
    return re.sub(rf"(\S{{60}})\S{{{LONGEST_WORD - 62},}}(\S{{2}})(?!\S)", r"\1…\2", line)


def _escaped(character: str) -> str:
    if character.isprintable():
        return character
    return character.encode("unicode_escape").decode()


def is_ours(file: str | Path) -> bool:
    """Whether a file is of Sightline, or of the tasks that come with it."""
    return any(map(Path(file).is_relative_to, OURS))


def _imports(file: str) -> bool:
    """Whether a file is of Python's own import, through which an error of a missing module comes."""
    return Path(file).is_relative_to(Path(importlib.__file__).parent)


def place_of(error: BaseException) -> str:
    """Place in a file where other people's code raised an exception, such as `reacher.py:12`; empty if only ours did.

    The innermost line of a file that is not installed is named, since that is what its author can mend; if all code but
    ours is installed, the innermost of its lines.
    """
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename.endswith(".py")]
    theirs = [frame for frame in frames if not is_ours(frame.filename) and not _imports(frame.filename)]
    not_installed = [frame for frame in theirs if not any(map(Path(frame.filename).is_relative_to, LIBRARIES))]
    candidates = not_installed or theirs
    if not candidates:
        return ""
    innermost = candidates[-1]
    file = Path(innermost.filename)
    name = file.name
    if not not_installed:  # of a package, its folder says which one
        name = "/".join(file.parts[-2:])
    return f"{name}:{innermost.lineno}"


def reason_and_place(error: BaseException) -> str:
    """Type and message of an exception of other people's code, and where it was raised, in one line.

    >>> ZeroDivisionError: division by zero (reacher.py:12)
    """
    reason = reason_of(error)
    place = place_of(error)
    if isinstance(error, SyntaxError) or not place:
        return reason  # the message of a syntax error names the file and the line
    return f"{reason} ({place})"


def line_of(error: BaseException) -> str:
    """An exception in one line: our own says it all, other people's code is named with its place."""
    if isinstance(error, BadInput | RunFailed):
        return str(error)
    return reason_and_place(error)


@contextlib.contextmanager
def blamed(plugin: object, method: str) -> Iterator[None]:
    """Turn what a method of other people's plug-in raises into one line that names its class and the place.

    Raises:
        RunFailed: it raised anything but that or BadInput.
    """
    try:
        yield
    except (BadInput, RunFailed, MemoryError):
        raise
    # SystemExit as well: a library that exits would end a run without a word.
    except (Exception, SystemExit) as error:
        kind = plugin if isinstance(plugin, type) else type(plugin)
        if kind.__module__.split(".")[0] in OUR_PACKAGES:
            raise
        if isinstance(error, NotImplementedError) and not place_of(error):
            raise RunFailed(f"{kind.__name__} has no '{method}', which it must define") from error
        raise RunFailed(f"{kind.__name__}.{method} failed: {reason_and_place(error)}") from error


def warn(line: str) -> None:
    """Give a Python warning at the place of a script that called into this package."""
    # Frames from here outwards; the first that is not of this package is the caller's.
    depth = 0
    for frame, _ in traceback.walk_stack(inspect.currentframe()):
        if not str(frame.f_globals.get("__name__")).startswith("sightline."):
            break
        depth += 1
    warnings.warn(line, SightlineWarning, stacklevel=depth + 1)


def nearest(name: str, candidates: Iterable[str], count: int = 3) -> str:
    """Hint for an unknown name, such as `"; did you mean 'cartpole'?"`, or the first known names if none is similar."""
    names = list(candidates)
    by_lower_case = {candidate.lower(): candidate for candidate in names}
    # Capitals are no difference.
    matches = difflib.get_close_matches(name.lower(), by_lower_case, n=count, cutoff=0.5)
    if matches:
        quoted = [f"'{by_lower_case[match]}'" for match in matches]
        return f"; did you mean {' or '.join(quoted)}?"
    if not names:
        return ""
    hint = f"; known: {', '.join(sorted(names)[:MOST_NAMES])}"
    if len(names) > MOST_NAMES:
        hint += ", …"
    return hint


def one_of(option: str, value: Value, values: Iterable[str]) -> Value:
    """Return the value of an option that must be one of these.

    Raises:
        BadInput: it is not.
    """
    candidates = list(values)
    if value not in candidates:
        raise BadInput(f"{option}={value!r:.60} is unknown{nearest(str(value), candidates)}")
    return value
