"""Write the tables of README.md and docs/results.md from the files of benchmarks/results/.

    python tools/tables.py            # write them
    python tools/tables.py --check    # say which differ; exit code 1 if any does

A table stands between two marks, and `result_tables.py` makes what is between them:

    <!-- table: main_job -->
    | run | success of each training seed, % | seconds, whole command |
    …
    <!-- /table -->

A table that has not been measured yet is empty.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from result_tables import TABLES

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
PAGES = (ROOT / "README.md", ROOT / "docs" / "results.md")
MARKED = re.compile(r"(?<=<!-- table: )(?P<name>\w+) -->\n(?P<table>.*?)(?=<!-- /table -->)", flags=re.DOTALL)


def with_tables(page: str) -> str:
    """The text of a page, with what stands between its marks made anew.

    Raises:
        SystemExit: there is no table of a name, or a mark has no counterpart.
    """
    if page.count("<!-- table: ") != page.count("<!-- /table -->"):
        raise SystemExit("a mark has no counterpart: <!-- table: NAME --> … <!-- /table -->")
    return MARKED.sub(lambda found: f"{found['name']} -->\n{table_of(found['name'])}", page)


def table_of(name: str) -> str:
    """A table in Markdown, each line with its end; empty if one of its files is not there."""
    if name not in TABLES:
        raise SystemExit(f"there is no table '{name}' in tools/result_tables.py, only: {', '.join(TABLES)}")
    files, make = TABLES[name]
    paths = [RESULTS / file for file in files]
    if not all(path.is_file() for path in paths):
        return ""
    documents = [_document(path) for path in paths]
    try:
        return make(*documents)
    except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
        listed = ", ".join(map(str, paths))
        raise SystemExit(f"table '{name}' cannot be made of {listed}: {type(error).__name__}: {error}") from error


def _document(path: Path) -> dict[str, Any]:
    """The JSON object in a file.

    Raises:
        SystemExit: it holds none.
    """
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise SystemExit(f"'{path}' is no JSON: {error}; bring it back from git, or measure again") from error
    if not isinstance(document, dict):
        raise SystemExit(f"'{path}' holds a {type(document).__name__}, and no JSON object")
    return document


def different(page: str) -> Iterator[str]:
    """Names of the tables of a page that differ from their files."""
    for found in MARKED.finditer(page):
        if found["table"] != table_of(found["name"]):
            yield found["name"]


def main() -> None:
    parser = argparse.ArgumentParser(description="Write the tables of README.md and docs/results.md from their files.")
    parser.add_argument("--check", action="store_true", help="only say which differ")
    only_checks = parser.parse_args().check
    differing = []
    for path in PAGES:
        page = path.read_text(encoding="utf-8")
        differing += [f"{path.relative_to(ROOT)}: {name}" for name in different(page)]
        if not only_checks:
            path.write_text(with_tables(page), encoding="utf-8")
    print("\n".join(differing) or "all tables are those of their files")
    if only_checks and differing:
        sys.exit(1)


if __name__ == "__main__":
    main()
