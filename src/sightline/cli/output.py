"""Output of commands: printing, and writing the files that the user names."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Annotated, Any

import typer

from sightline.errors import BadInput, RunFailed


class _Output:
    """Where `print_json` writes: stdout, or what it was before a command reserved it for one document."""

    reserved: IO[str] | None = None


def _reserve_stdout(context: typer.Context, as_json: bool) -> bool:
    """Redirect the output of libraries and simulators to stderr until the command has ended, that of C code, too."""
    if not as_json or context.resilient_parsing:
        return as_json
    stdout = sys.stdout
    closing = contextlib.ExitStack()
    try:
        is_file = stdout.fileno() == 1
    except (OSError, ValueError):  # a stand-in that Python code collects
        is_file = False
    if is_file:
        # C code writes to the file descriptor 1: it becomes a copy of 2, and a copy of 1 is kept for the document.
        stdout.flush()
        _Output.reserved = closing.enter_context(os.fdopen(os.dup(1), "w"))
        closing.callback(os.dup2, _Output.reserved.fileno(), 1)
        os.dup2(2, 1)
    else:
        _Output.reserved = stdout
    sys.stdout = sys.stderr

    def restore() -> None:
        sys.stdout = stdout
        _Output.reserved = None
        closing.close()

    context.call_on_close(restore)
    return as_json


def in_home(path: Path | None) -> Path | None:
    """A path whose `~` is the home folder; most shells leave it as it is in `--run-dir=~/runs`."""
    return None if path is None else Path(os.path.expanduser(path))


AsJson = Annotated[
    bool,
    typer.Option(
        "--json", help="Print the result as JSON on stdout, and nothing else there.", callback=_reserve_stdout
    ),
]
Trust = Annotated[
    bool, typer.Option("--trust", help="Trust whoever made the run folder: import code that its recipe names.")
]


def print_rows(rows: Sequence[tuple[str, ...]], names: tuple[str, ...], as_json: bool) -> None:
    """Print aligned columns, or a list of objects with these names."""
    if as_json:
        print_json([dict(zip(names, row, strict=True)) for row in rows])
        return
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)][:-1]  # the last column is not padded
    for row in rows:
        cells = [f"{cell:<{width}}" for cell, width in zip(row, widths, strict=False)]
        typer.echo("  ".join([*cells, row[-1]]))


def print_json(document: Any) -> None:
    """Print a document as JSON, the one thing on stdout."""
    typer.echo(json.dumps(document, indent=2), file=_Output.reserved or sys.stdout)


def check_target(path: Path, option: str) -> None:
    """Refuse a place where no file can be written, before there is anything to lose.

    Raises:
        BadInput: it is a folder, a device or the like; or its folder is missing or not writable.
    """
    folder = os.path.dirname(os.path.realpath(path))
    if os.path.isdir(path):
        raise BadInput(f"{option}: '{path}' is a folder; name a file in it")
    if os.path.exists(path) and not os.path.isfile(path):
        raise BadInput(f"{option}: '{path}' is a device or the like; name a file")
    if not os.path.isdir(folder):
        raise BadInput(f"{option}: there is no folder '{path.parent}'; make it first, or name another file")
    if not os.access(folder, os.W_OK):
        raise BadInput(f"{option}: the folder '{path.parent}' cannot be written to; name another file")


def check_new_folder(path: Path, option: str) -> None:
    """Refuse a folder that holds anything, before there is anything to lose.

    Raises:
        BadInput: it does, or it is a file.
    """
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise BadInput(f"{option}: '{path}' is there already; name a folder that is new or empty")


def write_target(path: Path, content: bytes) -> None:
    """Write a file that the user named, whole or not at all; a link is followed.

    Raises:
        RunFailed: it cannot be written.
    """
    from sightline.runs.files import write_atomically

    try:
        write_atomically(Path(os.path.realpath(path)), content)
    except OSError as error:
        raise RunFailed(f"'{path}' cannot be written: {error.strerror or error}") from error
