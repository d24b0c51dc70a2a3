"""Children of a process that has imported the libraries, each with a log of its own."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

FAILED = 70
"""Exit code of a child whose action raised an error."""


def forked(log: Path, action: Callable[[], object]) -> int:
    """Carry out an action in a child, whose output goes to `log`; gives the child's process id."""
    child = os.fork()
    if child:
        return child
    code = FAILED
    try:
        with log.open("w") as stream:
            os.dup2(stream.fileno(), 1)
            os.dup2(stream.fileno(), 2)
        action()
        code = 0
    except SystemExit as left:
        code = int(left.code or 0)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
