"""The command line. Everything heavy is imported inside its functions, so that `sightline --help` answers at once."""

from sightline.cli.commands import main

__all__ = ["main"]
