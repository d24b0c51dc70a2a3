"""The command line. Everything heavy is imported inside its functions, so that `sightline --help` answers at once."""

from __future__ import annotations

import signal
import sys

from sightline.runs.stopping import Interruption
from sightline.runs.streams import steady_standard_streams

__all__ = ["command"]


def command() -> None:
    """The process of a `sightline` command, which heeds signals from the first moment: while modules are imported, too.

    Raises:
        SystemExit: always, with its exit code.
    """
    steady_standard_streams()
    Interruption.enable()
    try:
        from sightline.cli.commands import carry_out
    except BaseException:  # libraries may make another exception of the one that a signal raises
        number = Interruption.signal_number
        if number is None:
            raise
        print(f"sightline: stopped by {signal.Signals(number).name}", file=sys.stderr)
        sys.exit(128 + number)
    carry_out()
