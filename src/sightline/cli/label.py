"""`sightline label …`: labels are asked for, imported, looked at and given away."""

from __future__ import annotations

import typer

label = typer.Typer(
    help="Labels of a teacher: import, run, serve, stats, export.", no_args_is_help=True, rich_markup_mode=None
)
