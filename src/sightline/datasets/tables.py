"""Tables as people and spreadsheets save them: which character parts the cells, and what a cell says."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import IO

from sightline.errors import BadInput

YES = ("1", "1.0", "1.00", "true", "yes")
NO = ("0", "0.0", "0.00", "false", "no")
_WITH_COMMA = re.compile(r"\s*[+-]?\d+,\d+(?:[eE][+-]?\d+)?\s*")
"""A number as it is written where a comma stands for the point."""


@dataclass(frozen=True)
class Table:
    """Table whose first line names its columns.

    Attributes:
        columns: their names, in order.
        delimiter: what parts the cells.
        rows: column -> cell of each row, once; cells beyond the last column are under None.
    """

    columns: list[str]
    delimiter: str
    rows: Iterator[dict[str, str]]

    def described(self) -> str:
        """The columns in a few words, for messages."""
        if not self.columns:
            return "nothing"
        names = {",": "commas", ";": "semicolons", "\t": "tabs"}
        return f"{', '.join(self.columns)[:200]} (parted by {names[self.delimiter]})"


def read_table(opened: IO[str], file: str, any_case: bool = False) -> Table:
    """Read a table from its beginning; a row is read when its turn comes.

    Where semicolons or tabs part the cells, a number may have a comma for its point. A first line `sep=;`, as Excel
    heeds it, is passed over.

    Args:
        opened: text without a mark of its encoding, its line ends as they are.
        file: its name, for messages.
        any_case: whether capitals in the names of columns are small letters.

    Raises:
        BadInput: two columns have one name.
    """
    begins = opened.tell()
    header = opened.readline()
    if re.fullmatch(r"sep=[,;\t]\s*", header):
        begins = opened.tell()
        header = opened.readline()
    delimiter = _delimiter_of(header)
    opened.seek(begins)
    reader = csv.DictReader(opened, delimiter=delimiter)
    columns = [name.strip() for name in reader.fieldnames or ()]
    if any_case:
        columns = [name.lower() for name in columns]
    reader.fieldnames = columns
    twice = [name for name in dict.fromkeys(columns) if name and columns.count(name) > 1]
    if twice:
        raise BadInput(f"'{file}' has {columns.count(twice[0])} columns '{twice[0]}'; rename or remove all but one")
    rows: Iterator[dict[str, str]] = reader
    if delimiter != ",":
        rows = map(_with_points, reader)
    return Table(columns, delimiter, rows)


def _delimiter_of(header: str) -> str:
    """What parts the cells of a table with this first line: a comma, or what spreadsheets write instead."""
    return max(",;\t", key=header.count)


def _with_points(row: dict[str, str]) -> dict[str, str]:
    """A row whose numbers have a point."""
    changed = dict(row)
    for column, cell in row.items():
        if isinstance(cell, str) and _WITH_COMMA.fullmatch(cell):
            changed[column] = cell.replace(",", ".")
    return changed


def truth_value(cell: str | None) -> bool | None:
    """What a cell says that is yes or no; None where it says neither."""
    word = (cell or "").strip().lower()
    if word in YES:
        return True
    return False if word in NO else None
