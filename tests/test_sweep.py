"""Sweeps: what is a list and what is not, which cells there are, and that every one of them ends with a result."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from conftest import TINY, Finished, start_sightline
from sightline.config.grid import listed_values, parse_grid, value_label
from sightline.config.loading import parse_override
from sightline.control.collection import CollectingVecEnv
from sightline.errors import BadInput
from sightline.runs.files import read_document
from sightline.runs.lease import take_lease
from sightline.runs.stopping import Stopped
from sightline.sweep import GridCell, Plan, carry_out, cell_name, plan_sweep

Sightline = Callable[..., Finished]
SMALL = (*TINY, "reward.kind=ground_truth")

# -- the grid ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("seed=0..3", ["0", "1", "2", "3"]),
        ("seed=-1..1", ["-1", "0", "1"]),
        ("seed=7..7", ["7"]),
        ("seed=0..2,10", ["0", "1", "2", "10"]),
        ("reward.alpha=0,0.5", ["0", "0.5"]),
        ("reward.alpha=0, 0.5", ["0", "0.5"]),
        ("reward.kind=zero_shot,progress", ["zero_shot", "progress"]),
        ("videos=true,false", ["true", "false"]),
        ("reward.frame_size=[64,64]", ["[64,64]"]),
        ("reward.frame_size=[64,64],[96,96]", ["[64,64]", "[96,96]"]),
        ("env_options={a: 1, b: 2}", ["{a: 1, b: 2}"]),
        ("reward.encoder='a,b'", ["'a,b'"]),
        ("reward.encoder='it''s, so',b", ["'it''s, so'", "b"]),
        ("goal=a pole, upright", ["a pole, upright"]),
        ("goal=pole,cart", ["pole,cart"]),
        ("goal=0..4", ["0..4"]),
        ("goal=[pole, cart]", ["[pole, cart]"]),
        ("goal='a pole, upright',\"a pole\"", ["'a pole, upright'", '"a pole"']),
        ("wandb=the pole's, my project", ["the pole's, my project"]),
        ("steps=1e3", ["1e3"]),
        ("wandb=", [""]),
        ("device=cuda:0", ["cuda:0"]),
    ],
)
def test_what_is_a_list(override: str, expected: list[str]) -> None:
    key, _, text = override.partition("=")
    assert listed_values(key, text) == expected


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        (["seed=4..0"], "smaller number first"),
        (["seed=0..999999999"], "at most 10000"),
        (["seed=0..999", "steps=1..11"], "11000 cells"),
        (["seed=0,,1"], "empty value"),
        (["seed=0,1,"], "empty value"),
        (["seed=0,0"], "the value 0 twice"),
        (["reward.alpha=0.5,0.50"], "the value 0.5 twice"),
        (["seed=0..1", "seed=3"], "given twice"),
        (["seed"], "key=value"),
    ],
)
def test_grids_that_are_refused(overrides: list[str], expected: str) -> None:
    with pytest.raises(BadInput, match=expected):
        parse_grid(overrides)


def test_lists_are_values_of_a_grid() -> None:
    grid = parse_grid(["reward.frame_size=[64,64],[96,96]", "env_options={a: [1,2]}"])
    assert grid.varied == {"reward.frame_size": {"[64,64]": "[64,64]", "[96,96]": "[96,96]"}}
    assert grid.fixed == ("env_options={a: [1,2]}",)


@pytest.mark.parametrize("override", ["seed=3", "goal='a pole, upright'"])
def test_a_sweep_varies_something(override: str, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="nothing varies"):
        plan_sweep("cartpole", [override], tmp_path / "sweep")


WORDS = st.text("abcxyz0123456789._/-", min_size=1, max_size=8).filter(lambda word: ".." not in word)


@settings(max_examples=200, deadline=None)
@given(st.lists(WORDS | st.integers(0, 99).map(str) | st.text("ab, ", max_size=9).map("'{}'".format), min_size=2))
def test_joined_values_are_told_apart_again(values: list[str]) -> None:
    assert listed_values("wandb", ",".join(values)) == values


@settings(max_examples=200, deadline=None)
@given(st.text(max_size=300))
def test_every_value_has_the_name_of_a_folder(text: str) -> None:
    quoted = json.dumps(text.encode("utf-8", "ignore").decode())
    try:
        parse_override(f"wandb={quoted}")
    except BadInput:
        return
    name = cell_name({"wandb": quoted, "seed": "0"})
    assert "/" not in name and "\0" not in name and len(name.encode()) <= 255 and name.startswith("wandb=")


def test_names_are_readable_and_differ() -> None:
    assert cell_name({"seed": "0", "reward.alpha": "0.50"}) == "seed=0,reward.alpha=0.5"
    assert cell_name({"learner.gamma": "1.0"}) == cell_name({"learner.gamma": "1"}) == "learner.gamma=1"
    one, other = (cell_name({"goal": goal}) for goal in ("'a pole, upright'", "'a pole; upright'"))
    assert one.startswith("goal=a-pole-upright-") and one != other
    assert len(cell_name({f"key{i}": "x" * 30 for i in range(20)})) <= 200
    assert [value_label(value) for value in (None, True, 0.1, [1, 2.5])] == ["null", "true", "0.1", "[1,2.5]"]


def test_the_last_key_changes_fastest() -> None:
    grid = parse_grid(["seed=0,1", "steps=256", "learner.gamma=0.9,0.99"])
    assert grid.fixed == ("steps=256",)
    assert [tuple(values.values()) for values in grid.combinations()] == [
        *(("0", "0.9"), ("0", "0.99"), ("1", "0.9"), ("1", "0.99"))
    ]


# -- cells that train nothing -----------------------------------------------------------------------------------------

FAKE = """
import json, os, signal, sys, time
from pathlib import Path
path, resume, what = Path(sys.argv[1]), sys.argv[2] == "True", sys.argv[3]
path.mkdir(parents=True, exist_ok=True)
if what == "fail" and not resume:
    print("warning: so far so good", file=sys.stderr)
    sys.exit("sightline: the simulator is gone")
if what == "two fail":
    sys.exit("sightline: the simulator is gone\\nsightline: stopped by SIGTERM\\nrank 0 failed")
if what == "wait" and not resume:
    def save(*_):
        (path / "saved").touch()
        print("sightline: stopped by SIGTERM", file=sys.stderr)
        sys.exit(143)
    signal.signal(signal.SIGTERM, save)
    (path / "recipe.yaml").write_text(sys.argv[4])
    time.sleep(60)
if what == "die":
    os.kill(os.getpid(), signal.SIGKILL)
(path / "recipe.yaml").write_text(sys.argv[4])
result = {"success_rate": 0.5, "ci_low": 0.1, "ci_high": 0.9, "return": 1.0, "return_ci_low": 0.0,
          "return_ci_high": 2.0, "episodes": 4, "errors": 0, "resumed": resume}
(path / "result.json").write_text(json.dumps({"format": 1, **result}))
"""


def fake(**what: str) -> Callable[[GridCell, bool], list[str]]:
    """Cells that end at once, but for those of some seeds, which fail, wait to be stopped, or die."""

    def command(cell: GridCell, resume: bool) -> list[str]:
        recipe = yaml.safe_dump({"format": 1, **cell.recipe.model_dump(mode="json")})
        kind = what.get(f"seed{cell.recipe.seed}", "end")
        return [sys.executable, "-I", "-S", "-c", FAKE, str(cell.path), str(resume), kind, recipe]

    return command


def planned(path: Path, *overrides: str) -> Plan:
    return plan_sweep("cartpole", [*SMALL, *overrides], path)


def test_a_failing_cell_ends_no_other(tmp_path: Path) -> None:
    said: list[str] = []
    plan = planned(tmp_path / "sweep", "seed=0..3")
    failures = carry_out(plan, 2, said.append, fake(seed1="fail", seed2="die"))
    assert failures == {"seed=1": "the simulator is gone", "seed=2": "its process was ended by SIGKILL"}
    assert [cell.state for cell in plan.cells] == ["finished", "missing", "missing", "finished"]
    assert any(line.startswith("2 of 4 cells done") and "success 50 %" in line for line in said)
    assert any(", about " in line and " left; " in line for line in said)
    assert carry_out(planned(tmp_path / "sweep", "seed=0..3"), 2, said.append, fake()) == {}
    assert "2 of 4 cells are done already" in said


def test_runs_at_the_same_time_are_numbered(tmp_path: Path) -> None:
    """By which they take different GPUs: a run that ends frees its number."""
    slot = """
import json, os, sys, time
from pathlib import Path
path, recipe, done = Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3])
(path.parent / f"slot-{path.name}").write_text(os.environ["SIGHTLINE_SLOT"])
while path.name == "seed=0" and not done.exists():
    time.sleep(0.02)
path.mkdir()
(path / "recipe.yaml").write_text(recipe)
(path / "result.json").write_text(json.dumps({"format": 1, "episodes": 0, "errors": 0}))
"""

    def command(cell: GridCell, resume: bool) -> list[str]:
        recipe = yaml.safe_dump({"format": 1, **cell.recipe.model_dump(mode="json")})
        # The first waits for the last, which so shares its machine with all others.
        last = tmp_path / "sweep" / "slot-seed=3"
        return [sys.executable, "-I", "-S", "-c", slot, str(cell.path), recipe, str(last)]

    assert carry_out(planned(tmp_path / "sweep", "seed=0..3"), 2, lambda line: None, command) == {}
    slots = [(tmp_path / "sweep" / f"slot-seed={seed}").read_text() for seed in range(4)]
    assert slots == ["0", "1", "1", "1"]


def test_a_process_that_torchrun_stops_is_not_the_reason(tmp_path: Path) -> None:
    """When one process of a cell has failed, torchrun ends the others, which say so."""
    plan = planned(tmp_path / "sweep", "seed=0..1")
    failures = carry_out(plan, 2, lambda line: None, fake(seed1="two fail"))
    assert failures == {"seed=1": "the simulator is gone"}


def test_a_stop_is_passed_on_and_the_sweep_goes_on(tmp_path: Path) -> None:
    plan = planned(tmp_path / "sweep", "seed=0..2")
    waits = plan.cells[1].path / "recipe.yaml"

    def stop_when_it_waits() -> None:
        deadline = time.monotonic() + 20
        while not (waits.exists() and plan.cells[0].finished) and time.monotonic() < deadline:
            time.sleep(0.02)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=stop_when_it_waits)
    thread.start()
    with pytest.raises(Stopped) as stop:
        carry_out(plan, 2, lambda line: None, fake(seed1="wait", seed2="wait"))
    thread.join()
    assert stop.value.signal_number == signal.SIGINT
    assert "1 of 3 cells are done" in stop.value.saved
    assert "--resume" not in stop.value.advice
    assert (plan.cells[1].path / "saved").exists()
    again = planned(tmp_path / "sweep", "seed=0..2")
    assert again.cells[1].state == "cut off"
    carry_out(again, 2, lambda line: None, fake(seed1="wait"))
    resumed = [read_document(cell.path / "result.json")["resumed"] for cell in again.cells]
    assert resumed[:2] == [False, True]


def test_two_sweeps_of_one_folder(tmp_path: Path) -> None:
    plan = planned(tmp_path, "seed=0..1")
    lease = take_lease(tmp_path)
    try:
        with pytest.raises(BadInput, match="is being written by process"):
            carry_out(plan, 1, lambda line: None, fake())
    finally:
        lease.release()


def test_a_cell_that_another_process_writes_is_waited_for(tmp_path: Path) -> None:
    plan, said = planned(tmp_path, "seed=0..1"), list[str]()
    plan.cells[0].path.mkdir()
    lease = take_lease(plan.cells[0].path)
    timer = threading.Timer(0.5, lease.release)
    timer.start()
    assert carry_out(plan, 1, said.append, fake()) == {}
    assert said[0].startswith("seed=0: waiting for process")
    assert all(cell.finished for cell in plan.cells)


def test_values_may_be_added_and_nothing_else(tmp_path: Path) -> None:
    carry_out(planned(tmp_path / "sweep", "seed=0..1", "learner.gamma=0.9,0.99"), 2, lambda line: None, fake())
    more = planned(tmp_path / "sweep", "learner.gamma=0.95", "seed=1,2")
    assert [cell.name for cell in more.cells] == ["seed=1,learner.gamma=0.95", "seed=2,learner.gamma=0.95"]
    assert more.document["varied"] == {"seed": ["0", "1", "2"], "learner.gamma": ["0.9", "0.99", "0.95"]}
    for others in (["seed=0..1"], ["seed=0..1", "learner.gamma=0.9", "episode_steps=10,20"]):
        with pytest.raises(BadInput, match=r"with values of seed, learner\.gamma"):
            plan_sweep("cartpole", ["steps=256", *others], tmp_path / "sweep")
    with pytest.raises(BadInput, match="another sweep, with steps=256"):
        planned(tmp_path / "sweep", "seed=0..1", "learner.gamma=0.9", "threads=2")
    with pytest.raises(BadInput, match="with the recipe cartpole"):
        plan_sweep("mountain-car", [*SMALL, "seed=0..1", "learner.gamma=0.9"], tmp_path / "sweep")


def test_a_recipe_that_was_changed_since_is_refused(tmp_path: Path) -> None:
    recipe = tmp_path / "mine.yaml"
    recipe.write_text("env: cartpole\nreward: {kind: ground_truth}\nsteps: 512\n")
    plan = plan_sweep(str(recipe), ["seed=0..1"], tmp_path / "sweep")
    carry_out(plan, 2, lambda line: None, fake())
    recipe.write_text("env: cartpole\nreward: {kind: ground_truth}\nsteps: 1024\n")
    with pytest.raises(BadInput, match="was trained with steps=512, and the recipe says 1024 now"):
        plan_sweep(str(recipe), ["seed=0..1"], tmp_path / "sweep")
    recipe.write_text("description: The same.\nenv: cartpole\nreward: {kind: ground_truth}\nsteps: 512\n")
    assert all(cell.started for cell in plan_sweep(str(recipe), ["seed=0..1"], tmp_path / "sweep").cells)


def test_folders_that_hold_something_else(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("precious")
    with pytest.raises(BadInput, match="is no sweep"):
        planned(tmp_path, "seed=0..1")
    with pytest.raises(BadInput, match="is not a folder"):
        planned(tmp_path / "thesis.txt", "seed=0..1")
    for damage in ('{"format": 1}', '{"format": 1, "recipe": 3, "fixed": [], "varied": {}}', "{["):
        (tmp_path / "sweep.json").write_text(damage)
        with pytest.raises(BadInput, match="is damaged"):
            planned(tmp_path, "seed=0..1")


# -- the command ------------------------------------------------------------------------------------------------------


def test_all_recipes_are_checked_first(sightline: Sightline) -> None:
    for arguments, expected in (
        (["cartpole", "seed=0..1", "learner.gamma=0.9,2"], "learner.gamma=2"),
        (["cartpole", "seed=0..1", "learner.gama=0.9,2"], "'gamma'"),
        (["cartpol", "seed=0..1"], "'cartpole'"),
        (["cartpole", "seed=1"], "nothing varies"),
        (["-", "seed=0..1"], "stdin"),
        ([], "say what to train"),
    ):
        done = sightline("sweep", *arguments, "--run-dir", "sweep")
        assert (done.code, done.out, len(done.lines)) == (2, "", 1), done.err
        assert expected in done.err
    assert "--run-dir" in sightline("sweep", "cartpole", "seed=0..1").err
    assert not list(Path.cwd().iterdir())


def test_a_dry_run_lists_the_cells(sightline: Sightline) -> None:
    done = sightline("sweep", "env: cartpole", "seed=0..1", "--run-dir", "sweep", "--dry-run", "--json")
    assert json.loads(done.out) == [{"cell": f"seed={seed}", "state": "missing"} for seed in (0, 1)]
    assert not Path("sweep").exists()


# -- cells that schedulers start --------------------------------------------------------------------------------------


def test_a_plan_lists_its_cells_by_number(sightline: Sightline) -> None:
    command = ("sweep", "cartpole", *SMALL, "seed=0..1", "learner.gamma=0.9,0.99", "--run-dir", "sweep", "--plan")
    done = sightline(*command)
    assert done.code == 0 and [line.split()[:3] for line in done.out.splitlines()] == [
        ["0", "seed=0,learner.gamma=0.9", "missing"],
        ["1", "seed=0,learner.gamma=0.99", "missing"],
        ["2", "seed=1,learner.gamma=0.9", "missing"],
        ["3", "seed=1,learner.gamma=0.99", "missing"],
        ["4", "missing"],
    ]
    assert [file.name for file in Path("sweep").iterdir()] == ["sweep.json"]
    # The same sweep may be planned again, and carried out here as well.
    assert sightline(*command).out == done.out
    assert sightline("sweep", "--status", "sweep").out == done.out


def test_a_scheduler_starts_a_cell_again_until_it_is_finished(
    sightline: Sightline, monkeypatch: pytest.MonkeyPatch
) -> None:
    sightline("sweep", "cartpole", *SMALL, "seed=0..1", "--run-dir", "sweep", "--plan")
    take_chunk = CollectingVecEnv.take_chunk

    def preempted(*arguments: Any, **named: Any) -> Any:
        os.kill(os.getpid(), signal.SIGTERM)
        return take_chunk(*arguments, **named)

    with monkeypatch.context() as patch:
        patch.setattr(CollectingVecEnv, "take_chunk", preempted)
        stopped = sightline("sweep-cell", "sweep", "1")
    assert stopped.code == 143 and "a scheduler has to wait at least as long" in stopped.err
    cut_off = json.loads(sightline("sweep", "--status", "sweep", "--json").out)
    assert [(cell["number"], cell["state"]) for cell in cut_off] == [(0, "missing"), (1, "cut off")]
    assert 0 < cut_off[1]["step"] < cut_off[1]["steps"] == 256
    done = sightline("sweep-cell", "sweep", "1", "--json")
    assert done.code == 0 and "resuming from step" in done.err
    # Once more, as after a node's loss at the very end: the same result, and nothing is trained.
    again = sightline("sweep-cell", "sweep", "1", "--json")
    assert again.code == 0 and json.loads(again.out) == json.loads(done.out)
    # It is the run that the command of the sweep would have made, and that command goes on with the rest.
    plan = planned(Path("sweep"), "seed=0..1")
    assert [cell.state for cell in plan.cells] == ["missing", "finished"]


def test_a_cell_that_another_process_still_writes_is_to_be_tried_again(sightline: Sightline) -> None:
    sightline("sweep", "cartpole", *SMALL, "seed=0..1", "--run-dir", "sweep", "--plan")
    cell = Path("sweep/seed=0")
    cell.mkdir()
    lease = take_lease(cell)
    try:
        refused = sightline("sweep-cell", "sweep", "0")
        (first, _) = json.loads(sightline("sweep", "--status", "sweep", "--json").out)
    finally:
        lease.release()
    assert refused.code == 75 and "is being written by process" in refused.lines[-1]
    assert first["state"] == "running" and first["owner"].startswith(f"process {os.getpid()} on ")


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("sweep-cell", "sweep", "2"), "numbered from 0 to 1"),
        (("sweep-cell", "nowhere", "0"), "is no sweep"),
        (("sweep", "--status", "nowhere"), "is no sweep"),
        (("sweep", "cartpole", "seed=0..1", "--status", "sweep"), "leave out the rest"),
    ],
)
def test_cells_that_are_not_there(sightline: Sightline, arguments: tuple[str, ...], expected: str) -> None:
    sightline("sweep", "cartpole", *SMALL, "seed=0..1", "--run-dir", "sweep", "--plan")
    done = sightline(*arguments)
    assert (done.code, done.out, len(done.lines)) == (2, "", 1), done.err
    assert expected in done.err


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    """A real sweep that was killed with one of its cells, and was given again: its folder, and what it said then."""
    folder = tmp_path_factory.mktemp("sweeps")
    command = ("sweep", "cartpole", *SMALL, "seed=0..1", "--run-dir", folder / "mine", "--processes", "2")
    first, victim = start_sightline(*command, cwd=folder), folder / "mine" / "seed=1"
    try:
        deadline = time.monotonic() + 600
        while not any(victim.glob("checkpoints/step-*/manifest.json")) and time.monotonic() < deadline:
            time.sleep(0.002)
    finally:
        first.kill()
        first.communicate()
    os.kill(read_document(victim / "lease.json")["pid"], signal.SIGKILL)
    assert not (victim / "result.json").exists()
    said: list[str] = []
    assert carry_out(planned(folder / "mine", "seed=0..1"), 2, said.append) == {}
    return folder / "mine", said


def test_a_sweep_that_was_killed_goes_on(killed: tuple[Path, list[str]]) -> None:
    path, said = killed
    assert all((path / cell / "result.json").is_file() for cell in ("seed=0", "seed=1"))
    assert "resuming from step" in (path / "logs" / "seed=1.log").read_text()
    assert any(line.startswith("2 of 2 cells") for line in said)
    assert f"--run-dir {path}/seed=0" in (path / "seed=0" / "command.txt").read_text()


def test_a_finished_sweep_prints_its_table_again(killed: tuple[Path, list[str]], sightline: Sightline) -> None:
    done = sightline("sweep", "cartpole", *SMALL, "seed=0..1", "--run-dir", killed[0])
    assert done.code == 0 and done.lines == ["2 of 2 cells are done already"]
    head, row, report = done.out.splitlines()
    assert head.split()[:2] == ["seeds", "success"] and row.split()[:2] == ["cartpole", "2"]
    assert report.endswith("report.html")
    page = (killed[0] / "report.html").read_text("utf-8")
    assert page.count('<th scope="row">') == 3 and 'href="seed%3D0/report.html"' in page
    printed = json.loads(sightline("sweep", "cartpole", *SMALL, "seed=0", "--run-dir", killed[0], "--json").out)
    assert [(cell["state"], cell["failure"]) for cell in printed["cells"]] == [("finished", None)]
    assert printed["combinations"][0]["measures"]["success_rate"]["seeds"] == 2
    assert printed["report"] == str(killed[0] / "report.html")


def test_failures_are_listed_at_the_end(sightline: Sightline, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sightline.sweep.trainer", lambda per_run: fake(seed1="fail"))
    done = sightline("sweep", "cartpole", *SMALL, "seed=0..1", "--run-dir", "sweep")
    assert done.code == 1
    assert done.lines[-2:] == [
        *("seed=1: the simulator is gone", "sightline: 1 of 2 cells failed; the same command tries them again")
    ]
    assert "cartpole" in done.out


def test_runs_of_several_processes_are_started_by_torchrun(sightline: Sightline) -> None:
    """One that is refused there says so itself: what torchrun adds is not the reason."""
    command = ("sweep", "numberline", "seed=0..0", "policy.sampler=server", "--run-dir", "sweep", "--per-run", "2")
    done = sightline(*command)
    assert done.code == 1
    assert done.lines[-2].startswith("seed=0: policy.sampler=server is for one process, and torchrun has started 2")
    refused = sightline("sweep", "cartpole", *SMALL, "seed=0..1", "--run-dir", "other", "--per-run", "2")
    assert refused.code == 2 and refused.lines[-1].endswith("only role=agent learns in several processes, not control")
