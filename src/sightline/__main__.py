"""`python -m sightline`."""

import os
import sys


def _ignore_working_folder() -> None:
    """Take the working folder, which `-m` puts first, off the path: no file there stands in for an installed module.

    It stays where Sightline itself lies there.
    """
    folder = sys.path[0] if sys.path and not sys.flags.safe_path else None
    if folder is not None and not __file__.startswith(os.path.join(os.path.abspath(folder), "")):
        del sys.path[0]


if __name__ == "__main__":
    _ignore_working_folder()
    from sightline.cli import command

    command()
