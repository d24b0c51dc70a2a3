"""Output of commands: printing, and writing the files that the user names."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from sightline.errors import BadInput, RunFailed

AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON on stdout, and nothing else there.")]
Trust = Annotated[
    bool, typer.Option("--trust", help="Trust whoever made the run folder: import code that its recipe names.")
]


def print_rows(rows: Sequence[tuple[str, ...]], names: tuple[str, ...], as_json: bool) -> None:
    """Print aligned columns, or a list of objects with these names."""
    if as_json:
        print_json([dict(zip(names, row, strict=True)) for row in rows])
        return
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)][:-1]
    for row in rows:
        cells = [f"{cell:<{width}}" for cell, width in zip(row, widths, strict=False)]
        typer.echo("  ".join([*cells, row[-1]]))


def print_json(document: Any) -> None:
    """Print a document as JSON, the one thing on stdout."""
    typer.echo(json.dumps(document, indent=2))


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
