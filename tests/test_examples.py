"""The notebooks of examples/ run as they are, and the one that trains succeeds."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

EXAMPLES = Path(__file__).parents[1] / "examples"


def test_notebooks_are_small() -> None:
    """Of outputs at most one small picture is kept."""
    for path in EXAMPLES.glob("*.ipynb"):
        assert path.stat().st_size < 60_000
        outputs = [output for cell in nbformat.read(path, 4).cells for output in cell.get("outputs", ())]
        assert len(outputs) <= 1


@pytest.mark.learning
def test_rewards_from_words(tmp_path: Path) -> None:
    notebook = nbformat.read(EXAMPLES / "rewards_from_words.ipynb", 4)
    NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(tmp_path)}}).execute()
    said = "".join(output.get("text", "") for cell in notebook.cells for output in cell.get("outputs", ()))
    before, after = (float(said.split("upright: ")[1].split(",")[part].split()[0]) for part in (0, 1))
    assert before <= 0.4
    assert after >= 0.8
    assert "the environment's own 1.0" in said
    assert any("image/png" in output.get("data", {}) for cell in notebook.cells for output in cell.get("outputs", ()))


def test_public_names_are_imported_when_they_are_used() -> None:
    program = (
        "import sys, sightline as sl; assert not {'torch', 'numpy', 'gymnasium'} & set(sys.modules)\n"
        "assert all(hasattr(sl, name) for name in sl.__all__) and set(sl.__all__) <= set(dir(sl))\n"
        "print(hasattr(sl, 'nothing'))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
