"""Exceptions that commands report in one line, with exit code 2 (bad input) or 1 (failed run)."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import TypeVar

Value = TypeVar("Value")


class BadInput(Exception):
    """Invalid input by the user; the message says what to do instead. Exit code 2."""


class Damaged(BadInput):
    """Damaged file: truncated, changed, or not written by Sightline. Exit code 2."""


class RunFailed(Exception):
    """Failure while running; everything saved before is intact. Exit code 1."""


def reason_of(error: BaseException) -> str:
    """Type and message of an exception, in one line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())}"


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
