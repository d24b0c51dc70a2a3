"""The parts of every benchmark, for `tools/lanes/benchmarks.sh`: a line each, the file and what it is told.

    python tools/lanes/benchmark_parts.py [NAME…]       # of these files, such as agents; without a name, of all

What parts there are, a benchmark's own parser says: they are the choices of its positional arguments, and of options
that it requires.
"""

from __future__ import annotations

import argparse
import os
import runpy
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

ROOT = Path(__file__).parents[2]
BENCHMARKS = ROOT / "benchmarks"


def names() -> list[str]:
    """Names of all benchmarks; the files that these share are none."""
    return sorted(file.stem for file in BENCHMARKS.glob("*.py") if '__name__ == "__main__"' in file.read_text())


def parts(name: str) -> list[tuple[str, ...]]:
    """What a benchmark is told for each of its parts; a file that cannot be loaded is a part, which fails."""
    parser = parser_of(name)
    return [()] if parser is None else list(_choices(parser))


class _Parsed(BaseException):
    """Raised in place of parsing."""

    def __init__(self, parser: argparse.ArgumentParser) -> None:
        super().__init__()
        self.parser = parser


def parser_of(name: str) -> argparse.ArgumentParser | None:
    """A benchmark's parser, as it is when arguments are parsed; None if the file ends before."""
    file = BENCHMARKS / f"{name}.py"

    def stop(parser: argparse.ArgumentParser, *arguments: Any, **settings: Any) -> None:
        raise _Parsed(parser)

    with patch.object(argparse.ArgumentParser, "parse_args", stop), patch.object(sys, "argv", [str(file)]):
        try:
            runpy.run_path(str(file), run_name="__main__")
        except _Parsed as reached:
            return reached.parser
        except Exception:
            return None
    return None


def _choices(parser: argparse.ArgumentParser) -> Iterator[tuple[str, ...]]:
    """Arguments for each combination of the choices that somebody has to make."""
    lines: list[tuple[str, ...]] = [()]
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            below = [(name, *line) for name, child in action.choices.items() for line in _choices(child)]
        elif action.choices is not None and (action.required or not action.option_strings):
            below = [(*action.option_strings[:1], str(choice)) for choice in action.choices]
        else:
            continue
        lines = [(*line, *more) for line in lines for more in below]
    yield from lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME")
    wanted = parser.parse_args().names or names()
    unknown = sorted(set(wanted) - set(names()))
    if unknown:
        raise SystemExit(f"no benchmark is called {', '.join(unknown)}; there are {', '.join(names())}")
    sys.path[:0] = [str(BENCHMARKS), str(ROOT / "tools")]
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    for name in wanted:
        for arguments in parts(name):
            print(shlex.join([name, *arguments]), flush=True)


if __name__ == "__main__":
    main()
