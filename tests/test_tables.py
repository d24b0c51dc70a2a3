"""Tables of the documents are those of benchmarks/results/."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

import result_tables
import tables
from peers import PEERS


def test_the_documents_tell_what_was_measured() -> None:
    """`python tools/tables.py` writes them."""
    differing = [f"{path.name}: {name}" for path in tables.PAGES for name in tables.different(path.read_text())]
    assert not differing


def test_every_table_stands_in_a_document_once() -> None:
    marked = [found["name"] for path in tables.PAGES for found in tables.MARKED.finditer(path.read_text())]
    assert sorted(marked) == sorted(result_tables.TABLES)


def test_what_differs_is_told_and_written_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(result_tables.TABLES, "small", (("small.json",), lambda document: f"| {document['n']} |\n"))
    monkeypatch.setattr(tables, "RESULTS", tmp_path)
    (tmp_path / "small.json").write_text('{"n": 7}')
    page = "Before <!-- tests -->\n<!-- table: small -->\n| 6 |\n<!-- /table -->\nafter | 6 |\n"
    assert list(tables.different(page)) == ["small"]

    written = tables.with_tables(page)
    assert written == page.replace("-->\n| 6 |", "-->\n| 7 |")
    assert list(tables.different(written)) == []


def test_a_table_that_was_not_measured_is_empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "RESULTS", tmp_path)
    page = "<!-- table: peers -->\n| 6 |\n<!-- /table -->\n"
    assert tables.with_tables(page) == "<!-- table: peers -->\n<!-- /table -->\n"


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"<<<<<<< HEAD", "small.json' is no JSON: Expecting value"),
        (b"\xff", "small.json' is no JSON: 'utf-8'"),
        (b"[]", "holds a list, and no JSON object"),
        (b"{}", "table 'small' cannot be made of .*small.json: KeyError: 'n'"),
    ],
)
def test_results_that_are_damaged_are_named(
    content: bytes, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(result_tables.TABLES, "small", (("small.json",), lambda document: document["n"]))
    monkeypatch.setattr(tables, "RESULTS", tmp_path)
    (tmp_path / "small.json").write_bytes(content)
    with pytest.raises(SystemExit, match=told):
        tables.table_of("small")


@pytest.mark.parametrize(
    ("page", "told"),
    [
        ("<!-- table: nobody -->\n<!-- /table -->\n", "no table 'nobody'"),
        ("<!-- table: peers -->\n| 6 |\n", "no counterpart"),
        ("<!-- /table -->\n", "no counterpart"),
    ],
)
def test_marks_that_are_wrong_are_refused(page: str, told: str) -> None:
    with pytest.raises(SystemExit, match=told):
        tables.with_tables(page)


# -- formats -----------------------------------------------------------------------------------------------------------


def test_numbers_are_rounded_as_people_do() -> None:
    assert [result_tables.percent(share) for share in (0.485, 3 / 8 - 1e-17, 0.005, 0.9949, 1.0)] == [
        *("49", "38", "1", "99", "100")
    ]
    assert [result_tables.rounded(value) for value in (-2.5, -0.2, 0.0)] == ["-3", "0", "0"]
    assert [result_tables.significant(value) for value in (967.84, 64.46, 10.62, 9.999, 0.913)] == [
        *("968", "64.5", "10.6", "10.00", "0.91")
    ]


def test_the_success_of_several_runs_has_the_widest_bounds() -> None:
    runs = [
        {"success_rate": 0.97, "ci_low": 0.9154, "ci_high": 0.99},
        {"success_rate": 1.0, "ci_low": 0.963, "ci_high": 1.0},
    ]
    assert result_tables.successes(runs) == "97 100 [92, 100]"


def test_a_row_has_as_many_cells_as_the_table_has_columns() -> None:
    with pytest.raises(ValueError, match="1 cells and the table 2 columns"):
        result_tables.markdown(("a", "b"), [("1",)])


# -- peers -------------------------------------------------------------------------------------------------------------


def run(cpu: float, first: float | None, success: float = 1.0) -> dict[str, Any]:
    wall = None if first is None else first + 1
    return {
        "first_success_cpu": first,
        "first_success_wall": wall,
        "cpu": cpu,
        "wall": cpu + 2,
        "success_rate": success,
        "untrained": 0.0,
    }


@pytest.fixture
def measured() -> dict[str, Any]:
    """Three seeds of each way, made up."""
    ways = {
        "ours": [run(40, 20), run(30, 10), run(50, 30)],
        "sb3_loop": [run(40, 10), run(60, 20), run(50, 20)],
        "sb3_wrapper": [run(80, 40), run(90, None, 0.98), run(100, None)],
        "published": [run(400, 200), run(300, 100), run(500, 300)],
        "published_small": [run(80, None, 0.0), run(60, None), run(100, None)],
    }
    return {"peers": {"date": "2026-11-29", "machine": "two cores", "result": ways}}


def cells(table: str) -> list[list[str]]:
    return [re.split(r" \| ", line.strip("| ")) for line in table.splitlines() if line.startswith("| ")]


def test_ours_is_compared_with_its_peers(measured: dict[str, Any]) -> None:
    told = result_tables.peers(measured)
    assert "2026-11-29, two cores): medians of 3 seeds" in told
    rows = {row[0]: row[1:] for row in cells(told)[1:]}
    assert list(rows) == list(result_tables.WAYS.values())
    ours, loop, wrapper, small, published = rows.values()
    assert ours == ["20", "21", "40", "42", "100 100 100", "1", "1"]
    # Ratios 2, 0.5 and 1.5 to the first success, and 1, 0.5 and 1 of the whole.
    assert loop == ["20", "21", "50", "52", "100 100 100", "1.50 [0.50, 2.00]", "1.00 [0.50, 1.00]"]
    # The one seed that both reached, and how many it never did.
    assert wrapper[:5] == ["40 (2 never)", "41 (2 never)", "90", "92", "100 98 100"]
    assert wrapper[5:] == ["0.50 [0.50, 0.50]", "0.50 [0.33, 0.50]"]
    assert small == ["–", "–", "80", "82", "0 100 100", "–", "0.50 [0.50, 0.50]"]
    assert published[-2:] == ["0.10 [0.10, 0.10]", "0.10 [0.10, 0.10]"]


def test_the_readme_tells_it_in_short(measured: dict[str, Any]) -> None:
    rows = cells(result_tables.peers_in_short(measured))
    assert rows[1] == ["Sightline", "20", "21", "40", "42"]
    assert rows[-1][0] == "published design"
    assert len(rows) == 1 + len(result_tables.WAYS)


def test_all_ways_are_told() -> None:
    assert set(result_tables.WAYS) == {"ours", *PEERS}


def test_the_command_says_what_differs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "page.md"
    page.write_text("<!-- table: peers -->\n| 6 |\n<!-- /table -->\n")
    (tmp_path / "peers.json").write_text(json.dumps({}))
    monkeypatch.setattr(tables, "ROOT", tmp_path)
    monkeypatch.setattr(tables, "PAGES", (page,))
    monkeypatch.setattr(tables, "RESULTS", tmp_path / "nothing")
    monkeypatch.setattr("sys.argv", ["tables.py", "--check"])
    with pytest.raises(SystemExit, match="1"):
        tables.main()
    assert capsys.readouterr().out == "page.md: peers\n"
    assert "| 6 |" in page.read_text()  # only said

    monkeypatch.setattr("sys.argv", ["tables.py"])
    tables.main()
    assert "| 6 |" not in page.read_text()
