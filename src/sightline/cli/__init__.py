"""The commands. Everything heavy is imported inside them, so that `sightline --help` answers at once."""

from sightline.cli.commands import main

__all__ = ["main"]
