"""Modules of the working folder: never found in the place of another by child processes.

`python -m` and `python -c` look there first: a `numpy.py` in a run folder that somebody sent would be run, and a
`statistics.py` of the user's own would fail every run. So child processes do not look there, and what the user names
(`env=module:id`, `learner.algorithm=module.Class`) is looked for there last.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

SAFE = {"PYTHONSAFEPATH": "1"}
"""What a child's environment needs; its own children get it, too."""


@contextlib.contextmanager
def safe_children() -> Iterator[None]:
    """Let what is started within the context be safe so, where a library starts it and takes no environment."""
    before = {name: os.environ.get(name) for name in SAFE}
    os.environ.update(SAFE)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
