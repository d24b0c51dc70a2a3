"""Exit codes of commands: which exceptions end one, with which code, and the line that says why.

0          done
1          failed while running; what was saved before is whole
2          refused: the input has to be changed first
75         another process is writing the folder: the same command may work later (EX_TEMPFAIL of sysexits.h)
128 + n    stopped by signal n, after saving
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import signal
import sys
import warnings
from collections.abc import Iterator
from typing import Any

import typer

from sightline.errors import BadInput, Busy, RunFailed, SightlineWarning, place_of, printable, reason_and_place
from sightline.requirements import advice
from sightline.runs.stopping import GivenUp, Stopped

TRY_AGAIN = 75
"""Exit code of a command that may work later; schedulers are told to start it again, and not to count a failure."""


@contextlib.contextmanager
def errors_in_one_line() -> Iterator[None]:
    """Turn exceptions into exit codes, with one line each."""
    try:
        yield
    except Busy as error:
        _leave(str(error), TRY_AGAIN, error)
    except BadInput as error:
        _leave(str(error), 2, error)
    # Ended by the user or by the machine: by a signal, or because nobody reads the output any more.
    except Stopped as stop:
        _leave(f"{stop}; {stop.saved}; {stop.advice}", 128 + stop.signal_number, None)
    except typer.Exit as exit_request:
        sys.exit(exit_request.exit_code)
    except GivenUp as stop:
        _leave(str(stop), 128 + stop.signal_number, None)
    except (typer.Abort, KeyboardInterrupt):
        _leave("interrupted", 128 + signal.SIGINT, None)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    # Failures.
    except RunFailed as error:
        _leave(f"{error}{_versions_to_blame()}", 1, error)
    except PermissionError as error:
        _leave(f"'{error.filename}' cannot be opened by this user: {error.strerror}", 2, error)
    except MemoryError as error:
        reason = " ".join(str(error).split())
        ending = f": {reason}" if reason else ""
        _leave(f"there is not enough memory{ending}", 1, error)
    except Exception as error:
        if hasattr(error, "format_message"):  # Typer's exceptions, for a command line that it refuses
            _leave(_misuse(error), 2, error)
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EROFS):
            file = f"'{error.filename}' cannot be written: " if error.filename else ""
            _leave(f"{file}{error.strerror}; what was saved before is whole, and --resume goes on from it", 1, error)
        if isinstance(error, OSError) and error.errno == errno.ENAMETOOLONG:
            _leave(f"'{str(error.filename)[:60]}…' is too long for the name of a file", 2, error)
        advice_on_limit = _limit_of(error)
        if advice_on_limit is not None:
            _leave(advice_on_limit, 1, error)
        reason = " ".join(str(error).split())
        _leave(f"{type(error).__name__}: {reason} (sightline --debug … shows where){_versions_to_blame()}", 1, error)
    except BaseException as error:  # SystemExit and the like, of an environment, a reward or a plug-in
        if place_of(error).startswith(("typer/", "click/")):
            raise  # a shell's completion has been installed or shown
        _leave(f"{reason_and_place(error)}: it must not end the program; let it raise an error instead", 1, error)


@contextlib.contextmanager
def warnings_in_one_line() -> Iterator[None]:
    """Show our own warnings as lines of the command, without the place and the source that Python adds to them."""
    usual = warnings.formatwarning

    def formatted(
        message: Warning | str, category: type[Warning], filename: str, lineno: int, line: str | None = None
    ) -> str:
        if issubclass(category, SightlineWarning):
            return f"warning: {printable(str(message))}\n"
        return usual(message, category, filename, lineno, line)

    warnings.formatwarning = formatted
    try:
        yield
    finally:
        warnings.formatwarning = usual


_OPTION_WORDS = (
    (r"(?:Input should be|'[^']*' is not) a valid int.*", "must be a whole number"),
    (r"(?:Input should be|'[^']*' is not) a valid (?:number|float).*", "must be a number"),
    (r"Input should be a finite number.*", "must be a finite number"),
    (r"Input should be greater than or equal to (\S+)", r"must be at least \1"),
    (r"Input should be less than or equal to (\S+)", r"must be at most \1"),
    (r" \(Possible options: --help\)", ""),
    (r"Got unexpected extra arguments?(?:\(s\))? \((.*)\)", r"\1: there is no place for this"),
)
"""Our words for those of Typer, of its several versions: pattern -> words."""


def _misuse(error: Any) -> str:
    """A line for a command line that Typer refuses: what is wrong, and which help says more."""
    message = " ".join(error.format_message().split()).rstrip(".")
    for pattern, words in _OPTION_WORDS:
        message = re.sub(pattern, words, message)
    context = getattr(error, "ctx", None)
    command = getattr(context, "command_path", "sightline")
    return f"{message} ('{command} --help' lists what there is)"


def _limit_of(error: Exception) -> str | None:
    """Advice on the limit of this machine or account that caused an exception; None if no limit did."""
    # Libraries raise errors of their own for these limits, so their words are compared, too.
    message = str(error)
    number = error.errno if isinstance(error, OSError) else None
    if number in (errno.EMFILE, errno.ENFILE):
        return (
            "no more files can be opened; raise the limit, for example by 'ulimit -n 4096', or say fewer envs; what "
            "was saved before is whole"
        )
    if number == errno.EAGAIN or "can't start new thread" in message:
        return (
            "no more processes or threads can be started; end some, or raise the limit ('ulimit -u' shows that of "
            "processes, 'ulimit -v' that of memory)"
        )
    if number == errno.ENOMEM or "failed to map segment" in message or "annot allocate memory" in message:
        return "there is not enough memory; end other programs, or raise the limit ('ulimit -v' shows it)"
    if isinstance(error, FileNotFoundError) and "No usable temporary directory" in message:
        return "no folder for temporary files can be written to; make one, and name it by TMPDIR=DIR"
    return None


def _versions_to_blame() -> str:
    """End of an error's line if the versions of libraries do not fit together, whether that is the cause or not."""
    mismatch = advice()
    if not mismatch:
        return ""
    return f"; this may be why: {mismatch}"


def _leave(message: str, code: int, error: BaseException | None) -> None:
    """Print a line on stderr and end the process; with `--debug` raise the error instead."""
    if error is not None and os.environ.get("SIGHTLINE_DEBUG"):
        raise error
    print(f"sightline: {printable(message)}", file=sys.stderr)
    sys.exit(code)
