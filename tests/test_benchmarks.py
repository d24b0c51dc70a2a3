"""Every benchmark can be loaded and says how it is used; what they measure is in docs/results.md."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SHARED = {"asking.py", "blackjack_rules.py", "running.py"}
"""Imported by the others."""
FILES = sorted(path.name for path in (ROOT / "benchmarks").glob("*.py") if path.name not in SHARED)


@pytest.mark.parametrize("file", FILES)
def test_says_how_it_is_used(file: str) -> None:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, (ROOT / "tools", ROOT / "benchmarks")))}
    done = subprocess.run(
        [sys.executable, ROOT / "benchmarks" / file, "--help"],
        capture_output=True,
        text=True,
        env=environment,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "usage:" in done.stdout
