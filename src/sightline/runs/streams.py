"""Standard streams that may be closed, broken or on a full disk: what cannot be written is dropped, and work goes on.

A run is worth more than its display. Closed streams lead to the null device, for otherwise the next file that is
opened, such as a data base of labels, would take their number and get what libraries print.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterable
from typing import Any, TextIO, cast


class SteadyStream:
    """Text stream whose failures end nothing.

    Args:
        stream: where the text goes.

    Attributes:
        failure: why something was dropped; None if all was written.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self.failure: OSError | None = None

    def write(self, text: str) -> int:
        """Write a text; gives its length."""
        try:
            return self._stream.write(text)
        except UnicodeEncodeError:  # a name of a file that is no text, or any letters on an ASCII terminal
            encoding = self._stream.encoding or "ascii"
            self.write(text.encode(encoding, "backslashreplace").decode(encoding))
        except OSError as error:
            self.failure = self.failure or error
        except ValueError:  # it was closed
            self.failure = self.failure or OSError("it is closed")
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        """Write texts one after the other."""
        for line in lines:
            self.write(line)

    def flush(self) -> None:
        """Hand on what was written."""
        try:
            self._stream.flush()
        except OSError as error:
            self.failure = self.failure or error
        except ValueError:
            pass  # it was closed; a write says so

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def steady(stream: TextIO | None) -> TextIO:
    """A stream that ends nothing when it fails; None, which Python has for a closed one, becomes the null device."""
    if isinstance(stream, SteadyStream):
        return cast(TextIO, stream)
    if stream is None:
        stream = open(os.devnull, "w")  # noqa: SIM115  # as long as the process
    return cast(TextIO, SteadyStream(stream))


def steady_standard_streams() -> None:
    """Make the standard streams of this process steady."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest number that is free
    sys.stdout = steady(sys.stdout)
    sys.stderr = steady(sys.stderr)


def failure_of_stdout() -> OSError | None:
    """Why this process could not print all that it had to; None if it could."""
    with contextlib.suppress(Exception):
        sys.stdout.flush()
    return getattr(sys.stdout, "failure", None)
