"""Which parts of the repository have changed since all their tests passed.

Some tests are long and say something of one part alone, such as physics of a task. They are marked
`when_changed(PART)`, and pytest leaves them out while the part is the one that they passed for:

    pytest                          # without them, where nothing has changed
    pytest --in-full                # with them
    tools/lanes/parts.sh            # runs them, and writes the digests of the parts into tests/changed.json
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).parents[1]
DIGESTS = ROOT / "tests" / "changed.json"
PARTS: dict[str, tuple[str, ...]] = {
    "tasks": ("src/sightline_tasks/**/*", "tests/tasks/**/*"),
    "pretraining": ("tools/pretraining/**/*", "tests/test_pretraining*.py"),
}
"""Name of a part -> patterns of its files."""


def files_of(part: str) -> list[Path]:
    """Files of a part, in order, without what Python writes beside them."""
    files = {file for pattern in PARTS[part] for file in ROOT.glob(pattern) if file.is_file()}
    return sorted(file for file in files if file.suffix != ".pyc")


def digest(files: Iterable[Path]) -> str:
    """SHA-256 of the files' names and contents."""
    total = hashlib.sha256()
    for file in files:
        total.update(f"{file.relative_to(ROOT).as_posix()}\0{file.stat().st_size}\0".encode())
        total.update(file.read_bytes())
    return total.hexdigest()


def changed_parts() -> set[str]:
    """Parts that are not as they were when all their tests passed."""
    passed: dict[str, str] = json.loads(DIGESTS.read_text())
    return {part for part in PARTS if passed.get(part) != digest(files_of(part))}


if __name__ == "__main__":
    DIGESTS.write_text(json.dumps({part: digest(files_of(part)) for part in PARTS}, indent=1) + "\n")
