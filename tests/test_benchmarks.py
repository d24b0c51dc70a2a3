"""Every benchmark can be loaded and says how it is used; what they measure is in docs/results.md."""

from __future__ import annotations

import os
import runpy
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SHARED = {"asking.py", "blackjack_rules.py", "running.py"}
"""Imported by the others."""
FILES = sorted(path.name for path in (ROOT / "benchmarks").glob("*.py") if path.name not in SHARED)


@pytest.mark.parametrize("file", FILES)
def test_says_how_it_is_used(file: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", [file, "--help"])
    monkeypatch.setattr(os, "environ", os.environ.copy())  # some set variables for themselves
    with pytest.raises(SystemExit) as leaving:
        runpy.run_path(str(ROOT / "benchmarks" / file), run_name="__main__")
    assert leaving.value.code == 0
    assert "usage:" in capfd.readouterr().out
