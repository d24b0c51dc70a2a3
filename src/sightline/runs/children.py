"""Child processes of Python, which never take modules from the working folder.

`python -m` and `python -c` look there first: a `numpy.py` in a run folder that somebody sent would be run, and a
`statistics.py` of the user's own would fail every run. What the user names (`env=module:id`) is still found there, by
`sightline.envs.naming`.
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
