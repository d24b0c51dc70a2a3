"""Comparison of runs: combinations, intervals, what differs, and the page."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from conftest import Finished
from sightline.config.loading import load_recipe
from sightline.errors import BadInput
from sightline.evaluation.statistics import wilson
from sightline.reports import plots
from sightline.reports.comparison import compare, text_table, write_comparison
from sightline.runs.files import write_document
from sightline.runs.folder import RunFolder, write_recipe
from small_runs import fabricate_run

pytestmark = pytest.mark.plots

Sightline = Callable[..., Finished]
EVIL = "</script><img src=x onerror=alert(1)>"


def fabricate(path: Path, rate: float | None, *overrides: str, level: float = 0.0) -> Path:
    """A run of 20 test episodes with this success rate; None for one that has not ended."""
    path.mkdir(parents=True)
    run = RunFolder(path)
    write_recipe(run, load_recipe("cartpole", overrides))
    lines: list[dict[str, Any]] = [{"format": 1}]
    for step in (100, 200):
        line: dict[str, Any] = {
            "step": step,
            "evaluation/success_rate": step / 400 + level,
            "evaluation/return": step * (1 + level),
        }
        lines += [line | {"evaluation/reward": step / 1000}, {"step": step, "rollout/reward": 9.0}]
    run.write_text("metrics.jsonl", "".join(json.dumps(line) + "\n" for line in lines))
    if rate is not None:
        result = {"chosen_step": 200, "success_rate": rate, "return": 100 * rate, "reward": 0.3, "episodes": 20}
        result |= {"return_ci_low": 90 * rate, "return_ci_high": 110 * rate, "panel": "test-20-abc", "seconds": 12.5}
        run.write_json("result.json", result)
        run.write_text("report.html", "<!doctype html>")
    return path


@pytest.fixture
def runs(tmp_path: Path) -> list[Path]:
    return [
        fabricate(tmp_path / f"{alpha}-{seed}", rate, f"seed={seed}", f"reward.alpha={alpha}", level=seed / 10)
        for alpha, seed, rate in ((0, 0, 0.5), (0, 1, 0.7), (0.5, 0, 0.9), (0.5, 1, 1.0))
    ]


def test_runs_that_differ_in_their_seeds_are_one_combination(runs: Sequence[Path]) -> None:
    found = compare(runs)
    assert [one.label for one in found.combinations] == ["reward.alpha=0.0", "reward.alpha=0.5"]
    assert found.differing == {"reward.alpha": ["0.0", "0.5"]}
    success = found.combinations[0].estimate("success_rate")
    assert success is not None and (success.low, success.high) == wilson(24, 40)
    assert (success.mean, success.least, success.most, success.seeds) == (0.6, 0.5, 0.7, 2)
    returned = found.combinations[0].estimate("return")
    assert returned is not None and (returned.mean, returned.low, returned.high) == (60, 50, 70)
    assert any("different rewards" in line for line in found.warnings)


def test_success_without_mistakes_is_compared_where_it_is_less(runs: Sequence[Path]) -> None:
    def set_clean(shares: Sequence[float]) -> None:
        for run, share in zip(runs, shares, strict=True):
            folder = RunFolder(run)
            folder.write_json("result.json", (folder.read_json("result.json") or {}) | {"clean": share})

    set_clean([0.5, 0.7, 0.9, 1.0])
    assert list(compare(runs).measures) == ["success_rate", "return", "reward"]
    set_clean([0.25, 0.35, 0.9, 1.0])
    found = compare(runs)
    assert list(found.measures) == ["success_rate", "clean", "return", "reward"]
    clean = found.combinations[0].estimate("clean")
    assert clean is not None and (clean.mean, clean.low, clean.high) == (0.3, *wilson(12, 40))
    assert "30 %" in text_table(found)


def test_a_single_seed_keeps_its_own_interval(runs: Sequence[Path]) -> None:
    found = compare([runs[0], runs[2]])
    returned = found.combinations[0].estimate("return")
    assert returned is not None and (returned.low, returned.high) == (45, 55)
    reward = found.combinations[0].estimate("reward")
    assert reward is not None and reward.low is None


def test_the_page_stands_alone_and_is_labelled(runs: Sequence[Path], tmp_path: Path) -> None:
    page = write_comparison(tmp_path / "page.html", compare(runs), "Alphas").read_text("utf-8")
    assert "<h1>Alphas</h1>" in page and "4 runs, 2 combinations" in page
    assert not re.search(r'(src|href)="(?!data:|#|[\w.%/-]+report\.html")', page)
    heads = re.findall(r"<th( [^>]*)?>", page)
    assert heads and all("scope=" in scope for scope in heads)
    for part in (
        "Success rate",
        "60\u202f%",
        "45\u202f% – 74\u202f%",
        "seeds 50\u202f% to 70\u202f%",
        "success rate, reward",
    ):
        assert part in page, part
    assert page.count('class="swatch"') == 4
    assert all(plots.line_style(index)[0] in page for index in (0, 1))
    assert 'href="0.5-1/report.html"' in page
    assert "None" not in page


def test_bands_are_of_the_steps_that_all_seeds_have() -> None:
    def metrics(*values: tuple[int, float]) -> list[dict[str, float]]:
        return [{"step": step, "evaluation/success_rate": value} for step, value in values]

    runs = [metrics((1, 0.0), (2, 0.5), (3, 1.0)), metrics((1, 1.0), (2, 1.0)), []]
    steps, mean, low, high = plots._band([plots._evaluated(run, "success_rate") for run in runs])
    assert (steps.tolist(), mean.tolist()) == ([1, 2], [0.5, 0.75])
    assert (low.tolist(), high.tolist()) == ([0, 0.5], [1, 1])
    assert plots.compared_curves([[[]], runs]) == ("", [])
    assert len({plots.line_style(index) for index in range(21)}) == 21


def test_runs_of_both_roles_share_what_they_have(tmp_path: Path, runs: Sequence[Path]) -> None:
    agent = fabricate_run(tmp_path / "agent").path
    found = compare([runs[0], agent])
    assert list(found.measures) == ["success_rate", "return", "reward"]
    assert [one.label for one in found.combinations] == ["0-0", "agent"]
    assert "role" in found.differing and found.differing["reward.alpha"][1] == "–"
    page = write_comparison(tmp_path / "page.html", found, "Both").read_text("utf-8")
    assert "different episodes" in page and "True replies" not in page
    assert list(compare([agent]).measures)[:3] == ["success_rate", "clean", "truthful_replies"]


def test_runs_that_have_not_ended(tmp_path: Path, runs: Sequence[Path]) -> None:
    late = fabricate(tmp_path / "late", None, "seed=2", "reward.alpha=0.5")
    alone = fabricate(tmp_path / "alone", None, "reward.alpha=1")
    found = compare([*runs, late, alone])
    assert any(line.startswith("2 of 6 runs have no result yet") for line in found.warnings)
    assert list(found.measures) == ["success_rate", "return", "reward"]
    assert text_table(found).splitlines()[-1].split() == ["reward.alpha=1.0", "0", "-", "-", "-"]
    page = write_comparison(tmp_path / "page.html", found, "Some").read_text("utf-8")
    assert "<small>of 3</small>" in page and "no result yet" in page
    nothing = write_comparison(tmp_path / "none.html", compare([late, alone]), "None ended").read_text("utf-8")
    assert "no measure that all" in nothing


def test_a_sweep_is_named_by_what_it_varies(tmp_path: Path) -> None:
    for name, goal in (("10", "a pole"), ("9", EVIL)):
        fabricate(tmp_path / "sweep" / f"goal={name}", 0.5, f"goal={goal}", "baseline=a cart", f"steps=2{name}0")
    write_document(tmp_path / "sweep" / "sweep.json", {"recipe": None, "fixed": [], "varied": {"goal": []}})
    found = compare([tmp_path / "sweep"])
    assert [one.runs[0].path.name for one in found.combinations] == ["goal=9", "goal=10"]
    assert found.combinations[1].label == 'goal=["a pole"]'
    assert set(found.differing) == {"goal", "steps"}
    page = write_comparison(tmp_path / "page.html", found, EVIL).read_text("utf-8")
    assert "<img src=x" not in page and "&lt;img src=x" in page


def test_damaged_files_are_named(runs: Sequence[Path], sightline: Sightline) -> None:
    (runs[0] / "result.json").write_text("{[")
    done = sightline("report", *runs)
    assert done.code == 1 and "0-0/result.json' is damaged" in done.err
    assert "is damaged" in Path("comparison.html").read_text("utf-8")
    (runs[0] / "recipe.yaml").write_text("{[")
    assert sightline("report", *runs).code == 2


@pytest.mark.parametrize("numbers", [{"success_rate": 1e300}, {"success_rate": "x"}, {"episodes": "x"}, {"return": []}])
def test_numbers_that_are_none(runs: Sequence[Path], tmp_path: Path, numbers: dict[str, Any]) -> None:
    run = RunFolder(runs[0])
    run.write_json("result.json", (run.read_json("result.json") or {}) | numbers)
    assert write_comparison(tmp_path / "page.html", compare(runs), "Odd").is_file()


def test_the_command_compares(runs: Sequence[Path], sightline: Sightline, tmp_path: Path) -> None:
    done = sightline("report", *runs, "--out", tmp_path / "out.html")
    assert done.code == 0, done.err
    assert done.out.splitlines()[-1] == str(tmp_path / "out.html")
    assert "60 % [45 %, 74 %]" in done.out
    printed = json.loads(sightline("report", *runs, "--json").out)
    assert printed["report"] == "comparison.html" and Path("comparison.html").is_file()
    assert printed["combinations"][1]["measures"]["success_rate"]["seeds"] == 2
    one = sightline("report", runs[0], "--out", "one.html")
    assert (one.code, one.out) == (0, "one.html\n") and Path("one.html").is_file()
    for arguments, expected in (
        ((runs[0], runs[0]), "named twice"),
        ((runs[0], tmp_path), "not a run folder"),
        ((*runs, "--out", tmp_path), "is a folder"),
    ):
        refused = sightline("report", *arguments)
        assert refused.code == 2 and expected in refused.err, refused.err
    (runs[0] / "link").symlink_to("/etc/passwd")
    assert "is a link" in sightline("report", *runs).err


def test_a_sweep_without_cells(tmp_path: Path) -> None:
    write_document(tmp_path / "sweep.json", {"recipe": None, "fixed": [], "varied": {}})
    with pytest.raises(BadInput, match="no cell of the sweep"):
        compare([tmp_path])
