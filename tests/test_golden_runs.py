"""Golden runs: numbers of seven tiny recipes against committed ones, and against the same run killed and resumed."""

from __future__ import annotations

import copy
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from conftest import TESTS
from golden_runs import DEATHS, GOLDEN, RECIPES, TOLERANCE, committed, differences, flat, outcome, write

AGENTS = [name for name in RECIPES if name.startswith("agent")]
TAUGHT = [name for name in RECIPES if name.startswith("preferences")]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`<name>-whole` was left alone, `<name>-killed` was killed and resumed; `log-…` beside them tells."""
    folder = tmp_path_factory.mktemp("golden")
    paths = os.pathsep.join([str(TESTS.parent / "tools"), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, str(TESTS / "golden_runs.py"), "--into", str(folder)],
        capture_output=True,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": paths},
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return folder


def check_none(lines: list[str], advice: str = "") -> None:
    """The first lines are the earliest: what differs later mostly follows from them."""
    assert not lines, "\n".join([f"{len(lines)} values differ{advice}:", *lines[:30]])


@pytest.mark.parametrize("name", RECIPES)
def test_a_run_gives_the_committed_numbers(runs: Path, name: str) -> None:
    lines = differences(name, outcome(runs / f"{name}-whole"), committed(name), TOLERANCE)
    check_none(lines, "; if they are meant to, PYTHONPATH=tools python tests/golden_runs.py --write")


@pytest.mark.parametrize("name", RECIPES)
def test_a_run_that_was_killed_and_resumed_gives_the_same_numbers(runs: Path, name: str) -> None:
    """Bit for bit; only what a store of labels still knew of the killed run tells that there was one."""
    whole, killed = (outcome(runs / f"{name}-{kind}") for kind in ("whole", "killed"))
    for record in (*whole["metrics"], *killed["metrics"]):
        record.pop("labels/remembered", None)
    check_none(differences(name, killed, whole))
    assert [record["step"] for record in killed["metrics"]] == [record["step"] for record in whole["metrics"]]


# -- whether they are worth it -----------------------------------------------------------------------------------------


def test_every_recipe_has_its_numbers_and_its_death() -> None:
    assert {file.stem for file in GOLDEN.glob("*.json")} == set(RECIPES) == set(DEATHS)


@pytest.mark.parametrize("name", RECIPES)
def test_runs_learn_are_evaluated_and_saved_more_than_once(runs: Path, name: str) -> None:
    run = runs / f"{name}-whole"
    metrics = outcome(run)["metrics"]
    learned = "update/gradient_norm" if name in AGENTS else "train/n_updates"
    assert len({record[learned] for record in metrics if learned in record}) >= 2
    assert len([record for record in metrics if "evaluation/return" in record]) >= 3
    assert len({record["evaluation/return"] for record in metrics if "evaluation/return" in record}) >= 2
    assert len(list((run / "checkpoints").glob("step-*"))) == 2


@pytest.mark.parametrize("name", RECIPES)
def test_killed_runs_are_killed_in_their_middle(runs: Path, name: str) -> None:
    first, again = ((runs / f"log-{name}-killed{suffix}").read_text() for suffix in ("", "-resumed"))
    assert "resuming" not in first
    found = re.search(r"resuming from (?:step|turn) (\d+)", again)
    assert found, again[-500:]
    assert 0 < int(found[1]) < outcome(runs / f"{name}-whole")["metrics"][-1]["step"]


def test_rewards_differ_from_step_to_step(runs: Path) -> None:
    """By far more than the tolerance, or a reward in the wrong place would not be seen."""
    for name in set(RECIPES) - set(AGENTS):
        metrics = outcome(runs / f"{name}-whole")["metrics"]
        assert np.std([record["rollout/reward"] for record in metrics if "rollout/reward" in record]) > 50 * TOLERANCE


@pytest.mark.parametrize("name", TAUGHT)
def test_teachers_teach_more_than_once(runs: Path, name: str) -> None:
    asked = [r["labels/asked"] for r in outcome(runs / f"{name}-whole")["metrics"] if "labels/asked" in r]
    assert len(set(asked)) >= 2


@pytest.mark.parametrize("name", AGENTS)
def test_agents_learn_from_replies_that_can_be_read(runs: Path, name: str) -> None:
    updates = [r for r in outcome(runs / f"{name}-whole")["metrics"] if "update/loss" in r]
    assert all(record["rollout/unparsable"] < 0.7 for record in updates)
    assert any(record["update/policy_loss"] for record in updates)
    if name == "agent-grpo":
        assert all(record["update/kl_reference"] > 0 for record in updates[1:]), "it is anchored, and moves"


# -- how differences are told ------------------------------------------------------------------------------------------

SMALL: dict[str, Any] = {
    "metrics": [{"step": 8, "loss": 2.0}, {"step": 8, "loss": 3.0, "labels": 4}],
    "result": {"panel": "test-3-abc", "blank": {"return": -0.5, "truthful": None}, "kinds": []},
}


def changed(**values: Any) -> dict[str, Any]:
    """`SMALL` with some values of its second record and its result changed."""
    other = copy.deepcopy(SMALL)
    other["metrics"][1] |= {key: value for key, value in values.items() if key != "result"}
    other["result"] |= values.get("result", {})
    return other


def test_a_difference_names_recipe_step_key_and_both_values() -> None:
    other = changed(loss=3.1, result={"panel": "test-3-abd", "blank": {"return": -0.5, "truthful": 0.0}})
    assert differences("words", other, SMALL, TOLERANCE) == [
        "words, step 8 (record 2), loss: 3.1 instead of 3.0",
        "words, result, panel: 'test-3-abd' instead of 'test-3-abc'",
        "words, result, blank.truthful: 0.0 instead of None",
    ]


def test_what_is_missing_or_new_is_a_difference() -> None:
    other = changed(extra=1)
    del other["metrics"][0]
    assert differences("words", other, SMALL, TOLERANCE) == [
        "words, step 8, loss: 3.0 instead of 2.0",
        "words, step 8 (record 2), step: nothing instead of 8",
        "words, step 8 (record 2), loss: nothing instead of 3.0",
        "words, step 8 (record 2), labels: nothing instead of 4",
        "words, step 8, labels: 4 instead of nothing",
        "words, step 8, extra: 1 instead of nothing",
    ]


def test_rounding_is_forgiven_between_machines_and_not_on_one() -> None:
    other = changed(loss=3.00002)
    assert differences("words", other, SMALL, TOLERANCE) == []
    assert differences("words", other, SMALL) == ["words, step 8 (record 2), loss: 3.00002 instead of 3.0"]
    assert differences("words", changed(labels=True), changed(labels=1), TOLERANCE), "true is no number"


def test_wall_times_formats_and_headers_are_left_out(tmp_path: Path) -> None:
    lines = [{"format": 1}, {"step": 8, "loss": 2.0, "time/rollout": 0.3}, SMALL["metrics"][1]]
    (tmp_path / "metrics.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    result = {"format": 1, **SMALL["result"], "seconds": 9.0, "blank": SMALL["result"]["blank"] | {"seconds_all": 1.0}}
    (tmp_path / "result.json").write_text(json.dumps(result))
    assert outcome(tmp_path) == SMALL


def test_what_is_written_is_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("golden_runs.GOLDEN", tmp_path)
    write("words", changed(loss=1 / 3))
    assert differences("words", committed("words"), changed(loss=1 / 3), 1e-7) == []
    assert flat(committed("words"))["step 8 (record 2)", "loss"] == 0.33333333
