"""The two ways in which a command can end badly, each said in one line."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class BadInput(Exception):
    """The user asked for something that cannot be; the message says what to do instead. Exit code 2."""


class Damaged(BadInput):
    """A file is not what Sightline wrote there: cut short, changed, or put there by somebody else."""


class RunFailed(Exception):
    """Something went wrong while running; what was saved before is whole. Exit code 1."""


def nearest(wanted: str, known: Iterable[str], count: int = 3) -> str:
    """A hint such as `"; did you mean 'cartpole'?"`, or the first few known names if none is near."""
    known = list(known)
    lowered = {name.lower(): name for name in known}
    matches = [lowered[m] for m in difflib.get_close_matches(wanted.lower(), lowered, n=count, cutoff=0.5)]
    if matches:
        return "; did you mean " + " or ".join(f"'{match}'" for match in matches) + "?"
    if not known:
        return ""
    listed = ", ".join(sorted(known)[:12])
    return f"; known: {listed}" + (", …" if len(known) > 12 else "")
