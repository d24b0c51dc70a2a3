"""Grids of overrides: `key=a,b` gives a key several values, and every combination of values is a cell."""

from __future__ import annotations

import itertools
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sightline.config.loading import parse_override
from sightline.errors import BadInput

MAX_CELLS = 10_000
"""Limit of the number of cells; more of them are taken for a slip of the pen."""
_SENTENCES = ("goal", "baseline", "description", "prompt")
"""Last parts of keys whose values are sentences, which contain commas."""


def listed_values(key: str, text: str) -> list[str]:
    """Split the value of an override into the values that a sweep gives to the key, as they are written.

    Commas separate words and numbers, and values in quotes, brackets or braces. A value in which anything else stands
    between commas, such as a sentence, is one value. `a..b` is the range of whole numbers from a to b. Values of
    `goal`, `baseline`, `description` and `prompt` are separated only if each is in quotes, brackets or braces.

    Raises:
        BadInput: a value is empty, or a range is.
    """
    parts = split_at_commas(text)
    is_sentence = key.rpartition(".")[2] in _SENTENCES
    if not all(_is_value(part, is_sentence) for part in parts):
        return [text]
    if len(parts) == 1:
        parts = [text]  # with its spaces
    elif "" in parts:
        raise BadInput(f"{key}={text[:80]} has an empty value; leave out the comma, or quote what is one value")
    if is_sentence:
        return parts
    values: list[str] = []
    for part in parts:
        values += _range(key, part) or [part]
    return values


def _is_value(part: str, is_sentence: bool) -> bool:
    """True if a part between commas is a value of its own: a word, a number, or anything in quotes or brackets.

    Args:
        is_sentence: values of the key are sentences, of which a word may be a part.
    """
    if _is_enclosed(part):
        return True
    return not is_sentence and not re.search(r"\s", part)


def _range(key: str, part: str) -> list[str]:
    """The numbers of a range; empty if it is none."""
    match = re.fullmatch(r"\s*(-?\d{1,18})\.\.(-?\d{1,18})\s*", part)
    if match is None:
        return []
    first = int(match[1])
    last = int(match[2])
    if last < first:
        raise BadInput(f"{key}={part} is an empty range; say the smaller number first")
    if last - first >= MAX_CELLS:
        raise BadInput(f"{key}={part} has {last - first + 1} values; a sweep has at most {MAX_CELLS} cells")
    return [str(number) for number in range(first, last + 1)]


def split_at_commas(text: str) -> list[str]:
    """Split a text at commas that are outside of quotes, brackets and braces."""
    parts = []
    start = 0  # of the present part
    depth = 0  # brackets and braces that are open
    quote = ""  # the quote that is open, if one is
    for place, sign in enumerate(text):
        if quote:
            if sign == quote:
                quote = ""
        elif sign in "'\"":
            # Within a word it is an apostrophe; two of them are YAML's way to write one inside of quotes.
            if depth or not text[start:place].strip() or text[place - 1] == sign:
                quote = sign
        elif sign in "[{":
            depth += 1
        elif sign in "]}":
            depth -= 1
        elif sign == "," and depth <= 0:
            parts.append(text[start:place].strip())
            start = place + 1
    return [*parts, text[start:].strip()]


def _is_enclosed(part: str) -> bool:
    return len(part) > 1 and part[0] + part[-1] in ("''", '""', "[]", "{}")


def value_label(value: Any) -> str:
    """Text of a parsed value, equal for values that are equal: 0.50 and 0.5, 1.0 and 1."""
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e15:
        value = int(value)
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def label_of_text(key: str, text: str) -> str:
    """Label of a value as it is written in an override."""
    _, value = parse_override(f"{key}={text}")
    return value_label(value)


@dataclass(frozen=True)
class Grid:
    """Overrides of a sweep.

    Attributes:
        fixed: overrides that all cells share, as they are written.
        varied: key -> the values it takes, by their labels.
    """

    fixed: tuple[str, ...]
    varied: Mapping[str, Mapping[str, str]]

    def combinations(self) -> list[dict[str, str]]:
        """The values of each cell, key -> value as it is written; the last key changes fastest."""
        lists_of_values = [values.values() for values in self.varied.values()]
        return [dict(zip(self.varied, cell_values, strict=True)) for cell_values in itertools.product(*lists_of_values)]


def parse_grid(overrides: Sequence[str], varied: Sequence[str] = ()) -> Grid:
    """Tell the overrides that vary from those that all cells share.

    Args:
        varied: keys that vary in any case, in the order of the cells' names: those of the sweep that is continued.

    Raises:
        BadInput: a key or a value is given twice, or there are too many cells.
    """
    fixed: list[str] = []
    listed: dict[str, dict[str, str]] = {}
    keys: set[str] = set()
    for override in overrides:
        key, equals, text = override.partition("=")
        if not equals or not key:
            parse_override(override)  # which says what is wrong
        if key in keys:
            raise BadInput(f"{key} is given twice; list its values in one: {key}=…,…")
        keys.add(key)
        # Each value is parsed by itself: several lists in a row are no value.
        values = listed_values(key, text)
        if values == [text] and key not in varied:  # a range of one number is a list, too, which may grow
            fixed.append(override)
            continue
        by_label: dict[str, str] = {}
        for value in values:
            label = label_of_text(key, value)
            if label in by_label:
                raise BadInput(f"{key} has the value {label[:80]} twice; say it once")
            by_label[label] = value
        listed[key] = by_label
    cells = math.prod(map(len, listed.values()))
    if cells > MAX_CELLS:
        raise BadInput(f"these are {cells} cells; a sweep has at most {MAX_CELLS}")
    order = [*varied, *(key for key in listed if key not in varied)]
    return Grid(tuple(fixed), {key: listed[key] for key in order if key in listed})
