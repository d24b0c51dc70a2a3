"""The code stays as easy to read as it is: a smoke alarm, see CONTRIBUTING."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from readability import measure, rates

PACKAGE = Path(__file__).parents[1] / "src" / "sightline"
LIMITS = {
    "tokens": 12.4,
    "ternaries": 20,
    "chained": 0,
    "nested": 4,
    "packed_assignments": 8,
    "packed_calls": 0,
    "participles": 0.7,
}
"""Tokens a statement; per 1,000 statements; per cent of names."""
OF_METHODS = {
    *("losses", "learning", "rollouts", "sequences", "scoring", "sampling", "replay", "collection", "on_policy"),
    *("pebble", "rounds", "fitting", "zero_shot"),
}
"""Names of files in which methods live, beside `agents/algorithms/` and `rewards/base.py`."""


def method_files() -> list[Path]:
    files = [file for file in PACKAGE.rglob("*.py") if file.stem in OF_METHODS]
    return [*files, *(PACKAGE / "agents" / "algorithms").glob("*.py"), PACKAGE / "rewards" / "base.py"]


def total(files: list[Path]) -> Counter[str]:
    return sum((measure(file.read_text()) for file in files), Counter[str]())


def test_sentences_of_code_are_short() -> None:
    measured = rates(total(list(PACKAGE.rglob("*.py"))))
    assert {name: value for name, value in measured.items() if value > LIMITS.get(name, 100)} == {}


def test_comments_say_why() -> None:
    assert rates(total(list(PACKAGE.rglob("*.py"))))["comments"] >= 2
    assert rates(total(method_files()))["comments"] >= 4


def test_what_is_counted() -> None:
    source = '''"""Docstring."""
import os
# A comment.
a, b = 1, 2
found = a if b else (b if a else 0)
rows = [[x for x in y] for y in ()]
print(*(1, 2))
'''
    counts = measure(source)
    assert counts["statements"] == 4 and counts["comments"] == 1 and counts["lines"] == 7
    assert counts["ternaries"] == 2 and counts["chained"] == 1 and counts["nested"] == 1
    assert counts["packed_assignments"] == 1 and counts["packed_calls"] == 1
    assert rates(counts)["participles"] == pytest.approx(100 / 6)
