"""How commands print."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON on stdout, and nothing else there.")]
RunPath = Annotated[Path, typer.Argument(metavar="RUN", help="A run folder.")]


def print_rows(rows: list[tuple[str, str]], names: tuple[str, str], as_json: bool) -> None:
    """Two aligned columns, or a list of objects with these names."""
    if as_json:
        print_json([dict(zip(names, row, strict=True)) for row in rows])
        return
    width = max((len(name) for name, _ in rows), default=0)
    for name, text in rows:
        typer.echo(f"{name:<{width}}  {text}")


def print_json(document: Any) -> None:
    """The one thing on stdout."""
    typer.echo(json.dumps(document, indent=2))
