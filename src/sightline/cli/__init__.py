"""The command line. Everything heavy is imported inside its functions, so that `sightline --help` answers at once."""

from sightline.cli.commands import command, main

__all__ = ["command", "main"]
