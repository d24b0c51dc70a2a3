"""Exceptions that commands report in one line, with exit code 2 (bad input) or 1 (failed run)."""

from __future__ import annotations

import difflib
import inspect
import re
import sysconfig
import traceback
import warnings
from collections.abc import Iterable
from itertools import takewhile
from pathlib import Path
from typing import TypeVar

Value = TypeVar("Value")


class BadInput(Exception):
    """Invalid input by the user; the message says what to do instead. Exit code 2."""


class Damaged(BadInput):
    """Damaged file: truncated, changed, or not written by Sightline. Exit code 2."""


class RunFailed(Exception):
    """Failure while running; everything saved before is intact. Exit code 1."""


def reason_of(error: BaseException) -> str:
    """Type and message of an exception, in one line; the type alone if it has no message."""
    message = " ".join(str(error).split())
    return f"{type(error).__name__}: {message}" if message else type(error).__name__


OURS = Path(__file__).parent
"""Folder of this package."""
LIBRARIES = tuple(Path(sysconfig.get_paths()[name]) for name in ("stdlib", "platstdlib", "purelib", "platlib"))
"""Folders of Python's own modules and of installed packages."""


LONGEST_WORD = 300
"""Characters without a space between them that are shown of a message; a path may have some."""


def printable(message: str) -> str:
    """A message as one line of a terminal: control characters as escapes, and words of endless length cut short.

    >>> there is no environment 'a\\nb'
    """
    shown = "".join(sign if sign.isprintable() else sign.encode("unicode_escape").decode() for sign in message)
    return re.sub(rf"(\S{{60}})\S{{{LONGEST_WORD - 62},}}(\S{{2}})(?!\S)", r"\1…\2", shown)


def place_of(error: BaseException) -> str:
    """Place in a file where other people's code raised an exception, such as `reacher.py:12`; empty if only ours did.

    The innermost line of a file that is not installed is named, since that is what its author can mend; if all code but
    ours is installed, the innermost of its lines.
    """
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename.endswith(".py")]
    theirs = [frame for frame in frames if not Path(frame.filename).is_relative_to(OURS)]
    not_installed = [frame for frame in theirs if not any(map(Path(frame.filename).is_relative_to, LIBRARIES))]
    candidates = not_installed or theirs
    if not candidates:
        return ""
    innermost = candidates[-1]
    file = Path(innermost.filename)
    shown = file.name if not_installed else "/".join(file.parts[-2:])
    return f"{shown}:{innermost.lineno}"


def reason_and_place(error: BaseException) -> str:
    """Type and message of an exception of other people's code, and where it was raised, in one line.

    >>> ZeroDivisionError: division by zero (reacher.py:12)
    """
    place = place_of(error)
    if isinstance(error, SyntaxError):
        place = ""  # its message names the file and the line
    return f"{reason_of(error)} ({place})" if place else reason_of(error)


def line_of(error: BaseException) -> str:
    """An exception in one line: our own says it all, other people's code is named with its place."""
    return str(error) if isinstance(error, BadInput | RunFailed) else reason_and_place(error)


def warn(line: str) -> None:
    """Give a Python warning at the place of a script that called into this package."""
    names = (str(frame.f_globals.get("__name__")) for frame, _ in traceback.walk_stack(inspect.currentframe()))
    depth = sum(1 for _ in takewhile(lambda name: name.startswith("sightline."), names))
    warnings.warn(line, UserWarning, stacklevel=depth + 1)


def nearest(wanted: str, known: Iterable[str], count: int = 3) -> str:
    """Hint for an unknown name, such as `"; did you mean 'cartpole'?"`, or the first known names if none is similar."""
    known = list(known)
    lowered = {name.lower(): name for name in known}
    matches = [lowered[m] for m in difflib.get_close_matches(wanted.lower(), lowered, n=count, cutoff=0.5)]
    if matches:
        return "; did you mean " + " or ".join(f"'{match}'" for match in matches) + "?"
    if not known:
        return ""
    listed = ", ".join(sorted(known)[:12])
    return f"; known: {listed}" + (", …" if len(known) > 12 else "")


def one_of(name: str, value: Value, known: Iterable[str]) -> Value:
    """Return the value of an option that must be one of those known.

    Raises:
        BadInput: it is not.
    """
    if value not in (known := list(known)):
        raise BadInput(f"{name}={value!r:.60} is unknown{nearest(str(value), known)}")
    return value
