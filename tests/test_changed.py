"""Long tests of a part run where the part has changed since they passed."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

import changed


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with one part, of two files, whose tests have passed."""
    (tmp_path / "part" / "data").mkdir(parents=True)
    (tmp_path / "part" / "code.py").write_text("a = 1\n")
    (tmp_path / "part" / "data" / "numbers").write_text("1 2")
    monkeypatch.setattr(changed, "ROOT", tmp_path)
    monkeypatch.setattr(changed, "PARTS", {"part": ("part/**/*",)})
    monkeypatch.setattr(changed, "DIGESTS", tmp_path / "changed.json")
    passed = {"part": changed.digest(changed.files_of("part"))}
    changed.DIGESTS.write_text(json.dumps(passed))
    return tmp_path


def test_a_part_that_is_the_same_has_not_changed(root: Path) -> None:
    (root / "elsewhere.py").write_text("")
    (root / "part" / "code.pyc").write_text("")
    assert changed.changed_parts() == set()


@pytest.mark.parametrize("change", ["content", "name", "new", "gone", "moved content", "never passed"])
def test_any_other_content_or_name_is_a_change(root: Path, change: str) -> None:
    code, numbers = root / "part" / "code.py", root / "part" / "data" / "numbers"
    match change:
        case "content":
            code.write_text("a = 2\n")
        case "name":
            code.rename(code.with_name("other.py"))
        case "new":
            (root / "part" / "data" / "new").write_text("")
        case "gone":
            numbers.unlink()
        case "moved content":
            code.write_text("a = 1")
            numbers.write_text("\n1 2")
        case "never passed":
            changed.DIGESTS.write_text("{}")
    assert changed.changed_parts() == {"part"}


def test_marks_name_parts_that_have_files() -> None:
    tests = Path(__file__).parent
    named = {
        name for file in tests.rglob("test_*.py") for name in re.findall(r'when_changed\("(\w+)"\)', file.read_text())
    }
    assert named == set(changed.PARTS)
    assert all(len(changed.files_of(part)) > 3 for part in changed.PARTS)
