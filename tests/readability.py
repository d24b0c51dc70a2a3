"""How densely Python code is written, counted per statement, so that no formatter moves it.

    python tests/readability.py src/sightline [--folders] [--worst 20]

It counts; it does not judge: what matters is that a stranger reads a file once, from top to bottom.
"""

from __future__ import annotations

import argparse
import ast
import io
import tokenize
from collections import Counter
from pathlib import Path

_WORDS = """
found one known said wanted shown told kept made given asked seen taken left begun done had got others another such
there named chosen drawn played learned judged written stored meant missing spent paid due stated
"""
PARTICIPLES = set(_WORDS.split())
"""Names that say what happened to a thing, and not what it is."""
COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
RATES = {
    "ternaries": "ternary",
    "chained": "chained",
    "nested": "nested",
    "packed_assignments": "a,b=x,y",
    "packed_calls": "*(…)",
}
"""Counts that are given per 1,000 statements -> heading of the column."""
LAYOUT = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
NO_CODE = (tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER)


def measure(source: str) -> Counter[str]:
    """Counts of one file; imports and docstrings are no statements."""
    tree = ast.parse(source)
    counts = Counter[str]()
    without_tokens = set[int]()
    for node in ast.walk(tree):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            without_tokens.update(_lines_of(node))
        elif isinstance(node, LAYOUT) and ast.get_docstring(node):
            without_tokens.update(_lines_of(node.body[0]))
        _count(node, counts)
    lines = source.splitlines()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            counts["comments"] += lines[token.start[0] - 1].lstrip().startswith("#")
        elif token.type not in NO_CODE and token.start[0] not in without_tokens:
            counts["tokens"] += 1
    counts["lines"] = len(lines)
    return counts


def _count(node: ast.AST, counts: Counter[str]) -> None:
    """Add what one node of the syntax tree stands for."""
    if isinstance(node, ast.stmt) and not isinstance(node, (ast.Import, ast.ImportFrom)):
        is_docstring = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        counts["statements"] += not is_docstring
    if isinstance(node, ast.IfExp):
        counts["ternaries"] += 1
        counts["chained"] += isinstance(node.orelse, ast.IfExp) or isinstance(node.body, ast.IfExp)
    if isinstance(node, COMPREHENSIONS):
        parts = [part for part in ast.walk(node) if part is not node]
        holds_another = any(isinstance(part, (*COMPREHENSIONS, ast.IfExp)) for part in parts)
        counts["nested"] += holds_another or len(node.generators) > 1
    if isinstance(node, ast.Assign) and isinstance(node.value, ast.Tuple) and isinstance(node.targets[0], ast.Tuple):
        counts["packed_assignments"] += 1
    if isinstance(node, ast.Starred) and isinstance(node.value, (ast.Tuple, ast.List)):
        counts["packed_calls"] += 1
    name = None
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
        name = node.id
    elif isinstance(node, ast.arg):
        name = node.arg
    if name is not None:
        counts["names"] += 1
        counts["participles"] += name.strip("_") in PARTICIPLES


def _lines_of(node: ast.stmt) -> range:
    return range(node.lineno, (node.end_lineno or node.lineno) + 1)


def rates(counts: Counter[str]) -> dict[str, float]:
    """Tokens a statement; the counts of `RATES` per 1,000 statements; participles and comments in per cent."""
    statements = max(counts["statements"], 1)
    values = {"tokens": counts["tokens"] / statements}
    for rate in RATES:
        values[rate] = 1000 * counts[rate] / statements
    values["participles"] = 100 * counts["participles"] / max(counts["names"], 1)
    values["comments"] = 100 * counts["comments"] / max(counts["lines"], 1)
    return values


def _row(name: str, counts: Counter[str]) -> str:
    cells = [f"{name:<40}{counts['lines']:>8}{counts['statements']:>8}"]
    for rate, value in rates(counts).items():
        cells.append(f"{value:>8.2f}" if rate == "tokens" else f"{value:>8.1f}")
    return "".join(cells)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--folders", dest="each", action="store_true", help="a row for each folder")
    parser.add_argument(
        "--worst", type=int, default=0, metavar="N", help="the N files with the most tokens a statement"
    )
    arguments = parser.parse_args()
    files = {file: measure(file.read_text()) for folder in arguments.folders for file in sorted(folder.rglob("*.py"))}
    headings = ("lines", "stmts", "tokens", *RATES.values(), "partic%", "comm%")
    print(" " * 40 + "".join(f"{heading:>8}" for heading in headings))
    if arguments.each:
        for folder in sorted({file.parent for file in files}):
            inside = [counts for file, counts in files.items() if file.parent == folder]
            print(_row(str(folder), sum(inside, Counter[str]())))
    for file in sorted(files, key=lambda file: -rates(files[file])["tokens"])[: arguments.worst]:
        print(_row(str(file), files[file]))
    print(_row("all", sum(files.values(), Counter[str]())))


if __name__ == "__main__":
    main()
