"""Every benchmark can be loaded, says how it is used, and is in the lane that runs its parts; what they measure is in
docs/results.md."""

from __future__ import annotations

import os
import runpy
import sys

import pytest
from benchmark_parts import BENCHMARKS, names, parser_of, parts

import running
from sightline.config.loading import load_recipe
from sightline.config.recipe import ControlRecipe

OTHERS = {"asking", "blackjack_rules", "gpu_models", "running"}
"""Imported by the others."""


@pytest.fixture
def _own_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Some set variables for themselves."""
    monkeypatch.setattr(os, "environ", os.environ.copy())


@pytest.mark.parametrize("name", names())
@pytest.mark.usefixtures("_own_environment")
def test_says_how_it_is_used(name: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", [name, "--help"])
    with pytest.raises(SystemExit) as leaving:
        runpy.run_path(str(BENCHMARKS / f"{name}.py"), run_name="__main__")
    assert leaving.value.code == 0
    assert "usage:" in capfd.readouterr().out


def test_every_file_is_in_the_lane_but_those_that_are_shared() -> None:
    assert {*names(), *OTHERS} == {file.stem for file in BENCHMARKS.glob("*.py")}


@pytest.mark.usefixtures("_own_environment")
def test_parts_are_what_the_parsers_say() -> None:
    assert parser_of("agents") is not None
    assert ("learn", "--game", "ezpoints") in parts("agents")
    assert ("sent",) in parts("agents")
    assert parts("algorithms") == [("numberline",), ("ezpoints",)]
    assert parts("ratio") == [()]
    assert ("relabelling",) in parts("preferences")


def test_runs_are_small_where_they_are_only_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    """And as they are said to be otherwise."""
    humanoid = ("humanoid-kneeling", "seed=0..2", "reward.encoder=bundled,other", "--run-dir", "runs/seed=0")
    assert running.at_size(*humanoid) == list(humanoid)
    monkeypatch.setattr(running, "_INTO", "anywhere")
    name, *overrides = running.at_size(*humanoid)[:-2]
    assert name == "humanoid-kneeling" and {"seed=0..2", "reward.encoder=bundled,other"} <= set(overrides)
    recipe = load_recipe(name, [one for one in overrides if "seed" not in one and "encoder" not in one])
    assert isinstance(recipe, ControlRecipe) and recipe.steps <= 100 and recipe.learner.chunk <= 10
    assert running.at_size(*humanoid)[-2:] == ["--run-dir", "runs/seed=0"]
    warmed = running.at_size("household", "steps=0", "warm_start.samples=1000")
    assert "steps=0" in warmed and "warm_start.samples=64" in warmed
