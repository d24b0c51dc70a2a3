"""The files of a run: nothing silent in them, damage is called damage, and secrets stay out."""

from __future__ import annotations

import gc
import itertools
import json
import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from conftest import TINY, Finished
from sightline.config.loading import for_control, load_recipe
from sightline.control.resolving import resolve
from sightline.control.trainer import ControlTrainer
from sightline.control.training import length_of_run
from sightline.errors import BadInput, Damaged, RunFailed
from sightline.labels.store import DATABASE, LabelStore
from sightline.labels.types import Answer, Outcome, Question, Segment
from sightline.reports import pages
from sightline.runs.files import read_document
from sightline.runs.folder import RunFolder, owned_run
from sightline.runs.metrics import Metrics, iterate_metrics, read_metrics
from sightline.runs.progress import ProgressBar
from sightline.runs.stopping import Stopped
from sightline.runs.temporary import TemporaryFolder
from sightline.session import RunSession
from stored import newest_checkpoint

Sightline = Callable[..., Finished]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that has ended well; tests work on copies."""
    from sightline.roles import train

    path = tmp_path_factory.mktemp("finished") / "run"
    train(resolve(load_recipe("cartpole", TINY)), path, "finished", resume=False)
    return path


@pytest.fixture
def run(finished: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(finished, tmp_path / "run"))


# -- formats -----------------------------------------------------------------------------------------------------------


def test_every_file_that_is_read_again_carries_a_format_number(run: Path) -> None:
    documents = [file for file in run.rglob("*.json") if "tensorboard" not in file.parts]
    assert len(documents) >= 6
    assert all(json.loads(file.read_text())["format"] == 1 for file in documents)
    assert (run / "recipe.yaml").read_text().startswith("format: 1\n")
    assert json.loads((run / "metrics.jsonl").read_text().splitlines()[0]) == {"format": 1}
    for file in run.rglob("*.safetensors"):
        size = int.from_bytes(file.read_bytes()[:8], "little")
        header = json.loads(file.read_bytes()[8 : 8 + size])
        assert json.loads(header["__metadata__"]["sightline"])["format"] == 1
    suffixes = {file.suffix for file in run.rglob("*") if file.is_file()}
    assert not suffixes & {".pkl", ".pt", ".pth", ".zip", ".npz", ".bin"}


def test_a_runs_recipe_can_be_trained_again(sightline: Sightline, run: Path, tmp_path: Path) -> None:
    done = sightline("train", run / "recipe.yaml", "--run-dir", tmp_path / "again")
    assert done.code == 0, done.err
    assert read_document(tmp_path / "again" / "result.json")["return"] == read_document(run / "result.json")["return"]


def test_a_label_store_carries_its_format_and_takes_over_those_without(tmp_path: Path) -> None:
    with LabelStore(tmp_path) as store:
        segment = Segment(np.zeros((1, 4, 4, 3), np.uint8), np.zeros(1, np.float32))
        question = Question("score", (segment,), ("goal",))
        teacher: Any = types.SimpleNamespace(name="judge", signature="judge")
        from sightline.labels.store import Context

        store.record(question, teacher, Answer(Outcome.VALUE, 1.0), Context("run", "task"))
    with sqlite3.connect(tmp_path / DATABASE) as database:
        assert database.execute("PRAGMA user_version").fetchone()[0] == 1
        database.execute("PRAGMA user_version=0")  # as before there were numbers: labels are paid for
    with LabelStore(tmp_path) as store:
        assert len(store.labels()) == 1
    with sqlite3.connect(tmp_path / DATABASE) as database:
        assert database.execute("PRAGMA user_version").fetchone()[0] == 1
        database.execute("PRAGMA user_version=2")
    with pytest.raises(BadInput, match="format 2"):
        LabelStore(tmp_path)


@pytest.mark.parametrize(
    "statement",
    [
        "CREATE VIEW more AS WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT i FROM n",
        "CREATE TRIGGER more AFTER INSERT ON labels BEGIN DELETE FROM labels; END",
        "CREATE TABLE more (a CHECK (instr(zeroblob(200000000), zeroblob(100000000) || x'01') = 0))",
    ],
)
def test_a_label_store_with_more_than_our_tables_is_not_ours(tmp_path: Path, statement: str) -> None:
    """A look at it would never end, or would change labels."""
    LabelStore(tmp_path).close()
    with sqlite3.connect(tmp_path / DATABASE) as database:
        database.execute(statement)
        if "TABLE" in statement:
            database.execute("PRAGMA ignore_check_constraints=ON")
            database.execute("INSERT INTO more VALUES (1)")
    for read_only in (False, True):
        with pytest.raises(BadInput, match="holds 'more', which is not ours"):
            LabelStore(tmp_path, read_only)


def test_a_journal_that_names_another_file_is_refused(tmp_path: Path) -> None:
    """SQLite would remove that file."""
    LabelStore(tmp_path).close()
    (tmp_path / f"{DATABASE}-journal").write_bytes(bytes(512) + b"/victim" + bytes.fromhex("d9d505f920a163d7"))
    with pytest.raises(BadInput, match="names another file"):
        LabelStore(tmp_path)


def test_a_report_changes_nothing_in_a_label_store(tmp_path: Path) -> None:
    LabelStore(tmp_path).close()
    before = {file.name: file.stat().st_mtime_ns for file in tmp_path.iterdir()}
    with LabelStore(tmp_path, read_only=True) as store:
        assert store.labels() == []
    after = {file.name: file.stat().st_mtime_ns for file in tmp_path.iterdir()}
    assert {name: after[name] for name in before} == before


# -- checkpoints cost what is new --------------------------------------------------------------------------------------


def test_rows_of_the_replay_buffer_are_written_once(sightline: Sightline, tmp_path: Path) -> None:
    run = tmp_path / "run"
    done = sightline("train", "cartpole", *TINY, "checkpoints.keep=9", "--run-dir", run)
    assert done.code == 0, done.err
    checkpoints = sorted((run / "checkpoints").glob("step-*"))
    named = [set(json.loads((one / "manifest.json").read_text())["shared"]) for one in checkpoints]
    assert len(checkpoints) >= 4
    assert all(len(later - earlier) <= 1 for earlier, later in itertools.pairwise(named))
    assert set().union(*named) == {file.name for file in (run / "replay").iterdir()}, "nothing is left over"


def test_rows_that_no_checkpoint_needs_are_removed(sightline: Sightline, tmp_path: Path) -> None:
    run = tmp_path / "run"
    arguments = ("cartpole", *TINY, "steps=512", "learner.buffer_size=72", "checkpoints.keep=1", "checkpoints.every=32")
    arguments += ("evaluation.every=512", "evaluation.test_episodes=1")
    assert sightline("train", *arguments, "--run-dir", run).code == 0
    needed = set(json.loads((newest_checkpoint(run) / "manifest.json").read_text())["shared"])
    assert {file.name for file in (run / "replay").iterdir()} == needed
    assert len(needed) < 8, "of 512 transitions only the last are kept"


@pytest.mark.parametrize(
    ("recipe", "expected"),
    [
        (("cartpole", "steps=40000"), ("40,064 transitions of 0.057 kB", "2.28 MB")),
        (("cartpole", "steps=40000", "reward.keep_embeddings=true"), ("0.313 kB", "12.5 MB")),
        (("drawer-open-chat",), ("200,000 transitions of 21.5 kB", "4.3 GB", "2,000 segments", "301 MB")),
        (
            ("env=Pendulum-v1", "goal=a rod", "reward.encoder=hf:some/where", "reward.keep_embeddings=true"),
            ("whose size",),
        ),
        (("numberline",), ("2 checkpoints of the weights",)),
    ],
)
def test_a_dry_run_says_how_much_there_will_be(
    sightline: Sightline, recipe: tuple[str, ...], expected: tuple[str, ...]
) -> None:
    done = sightline("train", *recipe, "--dry-run", "--json")
    assert done.code == 0, done.err
    *_, line = done.lines
    assert all(any(part in one for one in done.lines) for part in expected), line
    json.loads(done.out)


def test_what_a_dry_run_says_is_what_is_written(sightline: Sightline, tmp_path: Path) -> None:
    arguments = ("cartpole", *TINY, "learner.buffer_size=10000", "reward.keep_embeddings=true", "steps=1000")
    arguments += ("evaluation.every=1000", "checkpoints.every=250")
    _, line, _ = sightline("train", *arguments, "--dry-run").lines
    assert sightline("train", *arguments, "--run-dir", tmp_path / "run").code == 0
    said = float(line.partition("kB: ")[2].partition(" kB;")[0])
    written = sum(file.stat().st_size for file in (tmp_path / "run" / "replay").iterdir()) / 1000
    assert written == pytest.approx(said, rel=0.15)


# -- nothing silent ----------------------------------------------------------------------------------------------------


def test_a_loss_that_is_no_number_ends_the_run_before_it_is_saved(
    sightline: Sightline, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from stable_baselines3 import DQN

    train, calls, broken = DQN.train, [0], tmp_path / "broken"

    def poisoned(self: DQN, *arguments: Any, **named: Any) -> None:
        calls[0] += 1
        train(self, *arguments, **named)
        if calls[0] == 4:
            for parameter in self.q_net.parameters():
                parameter.data.fill_(float("nan"))
            self.logger.record("train/loss", float("nan"))

    with monkeypatch.context() as patch:
        patch.setattr(DQN, "train", poisoned)
        done = sightline("train", "cartpole", *TINY, "--run-dir", broken)
    assert done.code == 1
    assert "train/loss is nan at step" in done.lines[-1]
    assert "cartpole (seed 0)" in done.lines[-1] and "learning_rate" in done.lines[-1]
    for record in read_metrics(broken / "metrics.jsonl"):
        assert all(value is None or np.isfinite(value) for value in record.values())
    resumed = sightline("train", "cartpole", *TINY, "--run-dir", broken, "--resume")
    assert resumed.code == 0, resumed.err
    mended, whole = read_document(broken / "result.json"), read_document(run / "result.json")
    assert mended | {"seconds": 0} == whole | {"seconds": 0}, "what was saved before is good"


def test_metrics_are_json_whatever_the_numbers_are(tmp_path: Path) -> None:
    metrics = Metrics(RunFolder(tmp_path), tensorboard=False, wandb=None)
    metrics.write(1, {"a": float("nan"), "b": float("inf"), "c": None, "d": 2.0})
    metrics.close()
    strict = [json.loads(line, parse_constant=pytest.fail) for line in (tmp_path / "metrics.jsonl").open()]
    assert strict == [{"format": 1}, {"step": 1, "a": None, "b": None, "d": 2.0}]
    assert read_metrics(tmp_path / "metrics.jsonl") == strict[1:]


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (["garbage", '{"step": 2}'], "line 2 of .* is damaged"),
        (["[]", '{"step": 2}'], "line 2 .* not a JSON object"),
        (['{"loss": 1}', '{"step": 2}'], "line 2 .* no step"),
        (['{"step": "one"}', '{"step": 2}'], "line 2 .* no step"),
    ],
)
def test_a_line_of_metrics_that_is_none_is_damage(tmp_path: Path, lines: list[str], expected: str) -> None:
    file = tmp_path / "metrics.jsonl"
    file.write_text("\n".join(['{"format": 1}', *lines]))
    with pytest.raises(Damaged, match=expected):
        read_metrics(file)
    file.write_text("\n".join(['{"format": 1}', '{"step": 2}', lines[0]]))
    assert read_metrics(file) == [{"step": 2}], "the last line may be cut short"


def make_long(metrics: Path) -> int:
    """Put more than 64 MB between the first line and the others; gives the size in bytes."""
    first, rest = metrics.read_bytes().split(b"\n", 1)
    filler = b'{"step": 0, "note": "%s"}\n' % (b"x" * 500_000)
    metrics.write_bytes(b"".join([first + b"\n", *[filler] * 140, rest]))
    return metrics.stat().st_size


@pytest.mark.plots
def test_metrics_of_any_size_are_read_and_shown(sightline: Sightline, run: Path) -> None:
    before = read_metrics(run / "metrics.jsonl")
    assert make_long(run / "metrics.jsonl") > 64 * 2**20
    after = read_metrics(run / "metrics.jsonl")
    assert after[140:] == before and len(after) == 140 + len(before)
    done = sightline("report", run)
    assert done.code == 0, done.err
    assert "is damaged" not in (run / "report.html").read_text()
    assert "Success rate</text>" in (run / "report.html").read_text()


def test_a_run_with_long_metrics_goes_on_from_the_byte_of_its_checkpoint(sightline: Sightline, run: Path) -> None:
    metrics, whole = run / "metrics.jsonl", (run / "metrics.jsonl").read_bytes()
    checkpoint = max((run / "checkpoints").glob("step-*"))
    said = read_document(checkpoint / "session.json")["metrics_size"]
    assert said == len(whole), "nothing is logged after the last checkpoint"
    metrics.write_bytes(whole + b'{"step": 1, "loss": 2}\n' + b"not JSON\n" * 2)
    (run / "result.json").unlink()
    done = sightline("train", "--run-dir", run, "--resume")
    assert done.code == 0, done.err
    assert metrics.read_bytes() == whole


@pytest.mark.parametrize("end", ["", '\n{"step": 4, "lo'], ids=["before its line end", "within its record"])
@pytest.mark.parametrize("size", [None, 10**9, 20], ids=["older", "cut short", "within a line"])
def test_without_such_a_byte_the_steps_say_what_is_kept(tmp_path: Path, size: int | None, end: str) -> None:
    lines = [
        '{"format": 1}',
        *(f'{{"step": {step}, "loss": 1}}' for step in (1, 2, 3)),
        f'{{"step": 2, "loss": 1}}{end}',
    ]
    (tmp_path / "metrics.jsonl").write_text("\n".join(lines))
    assert make_long(tmp_path / "metrics.jsonl") > 64 * 2**20
    Metrics(RunFolder(tmp_path), tensorboard=False, wandb=None, resume_step=2, resume_size=size).close()
    assert [record["step"] for record in read_metrics(tmp_path / "metrics.jsonl")] == [0] * 140 + [1, 2, 2]
    assert (tmp_path / "metrics.jsonl").read_bytes().endswith(b"}\n"), "records go on on a line of their own"


def test_a_line_without_end_is_damage_and_does_not_fill_the_memory(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text('{"format": 1}\n{"step": 1}\n')
    with (tmp_path / "metrics.jsonl").open("ab") as file:
        file.truncate(2**42)
    with pytest.raises(Damaged, match=r"line 3 .* more than"):
        read_metrics(tmp_path / "metrics.jsonl")


def test_a_page_thins_frequent_records_and_keeps_rare_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages, "MOST_RECORDS", 10)
    lines = [{"step": step, "rollout/reward": 1.0} for step in range(101)]
    lines[50:50] = [{"step": 50, "evaluation/reward": 0.5}, {"step": 51, "evaluation/reward": 0.25}]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in [{"format": 1}, *lines]))
    shown = pages.read_records(tmp_path)
    assert [line["evaluation/reward"] for line in shown if "evaluation/reward" in line] == [0.5, 0.25]
    steps = [line["step"] for line in shown if "rollout/reward" in line]
    assert steps == sorted(steps) and steps[0] == 0 and steps[-1] == 100 and 5 <= len(steps) <= 12


def test_a_page_reads_metrics_once_until_they_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reads: list[Path] = []

    def counting(path: Path) -> Iterator[dict[str, Any]]:
        reads.append(path)
        return iterate_metrics(path)

    monkeypatch.setattr(pages, "iterate_metrics", counting)
    file = tmp_path / "metrics.jsonl"
    assert pages.read_records(tmp_path) == [] and pages.damage(tmp_path) == []
    file.write_text('{"format": 1}\n{"step": 1}\n')
    assert pages.read_records(tmp_path) == [{"step": 1}] and pages.damage(tmp_path) == []
    assert reads == [file]
    file.write_text('{"format": 1}\ngarbage\n{"step": 1}\n')
    assert pages.read_records(tmp_path) == () and len(pages.damage(tmp_path)) == 1


@pytest.mark.parametrize("name", ["result.json", "metrics.jsonl", "warnings.json", "landscape.json", "versions.json"])
def test_a_report_names_what_is_damaged(sightline: Sightline, run: Path, name: str) -> None:
    (run / name).write_text("garbage\ngarbage")
    done = sightline("report", run)
    assert done.code == 1
    assert name in done.lines[-1] and "the page shows what can be read" in done.lines[-1]
    page = (run / "report.html").read_text()
    assert f"{name}&#39; is damaged" in page
    assert "has not been evaluated yet" not in page
    done = sightline("report", run, "--json")
    said = json.loads(done.out)
    assert done.code == 1 and said["report"] == str(run / "report.html")
    assert [name in line for line in said["damage"]] == [True]
    assert (said["result"] is None) == (name == "result.json")


def test_a_result_of_other_things_is_damage(sightline: Sightline, run: Path) -> None:
    (run / "result.json").write_text('{"format": 1, "success_rate": "high", "untrained": 3}')
    done = sightline("report", run)
    assert done.code == 2
    assert len(done.lines) == 1 and "--debug" not in done.err


def test_a_damaged_chosen_checkpoint_is_said_to_be_damaged(sightline: Sightline, run: Path) -> None:
    chosen = read_document(run / "result.json")["chosen_step"]
    policy = run / "checkpoints" / f"best-{chosen:012d}" / "policy.safetensors"
    policy.write_bytes(policy.read_bytes()[:-8])
    done = sightline("evaluate", run)
    assert (done.code, len(done.lines)) == (2, 1)
    assert "is damaged (policy.safetensors has another checksum than when it was written)" in done.err
    shutil.rmtree(policy.parent)
    done = sightline("evaluate", run)
    assert f"the chosen checkpoint of step {chosen} is gone; go on with --resume" in done.err
    done = sightline("train", "--run-dir", run, "--resume")
    assert done.code == 0 and "another one is chosen from here on" in done.err
    assert sightline("evaluate", run, "--episodes", "2").code == 0


# -- going on ----------------------------------------------------------------------------------------------------------


def contents(run: Path) -> dict[str, bytes]:
    return {str(file.relative_to(run)): file.read_bytes() for file in run.rglob("*") if file.is_file()}


@pytest.mark.parametrize("gone", ["checkpoints", "checkpoints and result", "checkpoints are damaged"])
@pytest.mark.parametrize("extend", [(), ("steps=1000",)], ids=["as it is", "longer"])
def test_a_run_that_would_begin_again_over_what_it_has_chosen_is_refused(
    sightline: Sightline, run: Path, gone: str, extend: tuple[str, ...]
) -> None:
    for folder in (run / "checkpoints").glob("step-*"):
        if gone == "checkpoints are damaged":
            (folder / "manifest.json").write_text("[")
        else:
            shutil.rmtree(folder)
    if gone == "checkpoints and result":
        (run / "result.json").unlink()
    before = contents(run)
    done = sightline("train", *extend, "--run-dir", run, "--resume")
    assert done.code == 2, done.err
    assert "no whole checkpoint left to go on from" in done.lines[-1] and "--run-dir" in done.lines[-1]
    assert contents(run) == before
    assert sightline("evaluate", run, "--episodes", "2").code == 0


def test_a_run_that_was_killed_before_its_first_checkpoint_begins_again(sightline: Sightline, run: Path) -> None:
    whole = read_document(run / "result.json")
    for folder in (run / "checkpoints").glob("step-*"):
        shutil.rmtree(folder)
    for name in ("result.json", "report.html"):
        (run / name).unlink()
    document = json.loads((run / "run.json").read_text())
    assert document.pop("had_checkpoints") is True
    (run / "run.json").write_text(json.dumps(document))
    done = sightline("train", "--run-dir", run, "--resume")
    assert done.code == 0, done.err
    assert read_document(run / "result.json") | {"seconds": 0} == whole | {"seconds": 0}


def test_one_command_begins_goes_on_and_is_content_with_the_end(
    sightline: Sightline, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = ("train", "cartpole", *TINY, "--run-dir", tmp_path / "mine", "--resume-or-start")

    def stop(self: RunSession, last: bool = False) -> None:
        pause(self, last)
        if self.state.step >= 128:
            raise Stopped(15, self.saved_step)

    pause = RunSession.between_steps
    with monkeypatch.context() as patch:
        patch.setattr(RunSession, "between_steps", stop)
        done = sightline(*command)
        assert done.code == 143 and "resuming" not in done.err
    done = sightline(*command)
    assert done.code == 0 and "resuming from step" in done.err, done.err
    result = read_document(tmp_path / "mine" / "result.json")
    assert sightline(*command).code == 0
    assert read_document(tmp_path / "mine" / "result.json") == result
    other = sightline(*command, "seed=1")
    assert other.code == 2 and "seed" in other.lines[-1]


def test_what_a_kill_left_half_written_is_removed(run: Path, tmp_path: Path) -> None:
    nobody = 2**22 + 1  # no process has such a number
    left = [
        run / "checkpoints" / ".writing-step-000000000777",
        *(run / f".{name}.{nobody}-7.writing" for name in ("result.json", "recipe.yaml")),
        run / "trajectories" / f".update-0001.json.{nobody}-7.writing",
        run / "trajectories" / "pictures" / f".1234567890123456.png.{nobody}-7.writing",
        run / "labels" / "frames" / "e7" / f".e7b8.png.{nobody}-7.writing",
        run / f".lease.json.{nobody}.clock",
        run / "videos" / ".step-000000064.part.mp4",
    ]
    kept = [run / f".report.html.{os.getpid()}-7.writing", run / "notes.writing", run / ".hidden"]
    left[0].mkdir()
    (left[0] / "policy.safetensors").write_bytes(b"half")
    for file in (*left[1:], *kept):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(b"half")
    with owned_run(run, RunFolder(run).recipe(), resume=True):
        assert not any(map(os.path.lexists, left))
        assert all(map(os.path.lexists, kept)), "another process writes them at this moment, or they are not ours"


def test_temporary_folders_of_killed_processes_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    killed = (
        "import os, pathlib; from sightline.runs.temporary import TemporaryFolder\n"
        "folder = TemporaryFolder('policy'); (folder.path / 'model').write_bytes(b'large'); os._exit(9)"
    )
    subprocess.run([sys.executable, "-c", killed], env=os.environ | {"TMPDIR": str(tmp_path)}, check=False)
    (abandoned,) = tmp_path.iterdir()
    assert abandoned.name.startswith("sightline-policy-") and (abandoned / "model").is_file()
    mine = tmp_path / "sightline-policy-mine"
    mine.mkdir()
    (tmp_path / "sightline-weights-12345678.temporary").symlink_to(mine)
    first, second = TemporaryFolder("weights"), TemporaryFolder("weights")
    assert not abandoned.exists()
    assert first.path.is_dir() and second.path.is_dir() and mine.is_dir(), "what others use stays"
    first.remove()
    first.remove()
    del second
    gc.collect()
    assert {path.name for path in tmp_path.iterdir()} == {mine.name, "sightline-weights-12345678.temporary"}


def test_shared_memory_of_a_killed_process_is_removed_by_the_next_run(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed at the only moment at which the memory of a picture has a name: while its worker opens it."""
    shared = tmp_path / "shared"
    shared.mkdir()
    killed = (
        "import os, pathlib, sys, types; from sightline.envs import workers\n"
        "workers.SHARED_MEMORY = pathlib.Path(sys.argv[1])\n"
        "workers.shared_picture(types.SimpleNamespace(begin=lambda method, file: os._exit(9)), (2, 2, 3))"
    )
    assert subprocess.run([sys.executable, "-c", killed, shared], check=False).returncode == 9
    (abandoned,) = shared.iterdir()
    monkeypatch.setattr("sightline.runs.temporary.SHARED_MEMORY", shared)
    mine = TemporaryFolder("picture", shared)
    with owned_run(run, RunFolder(run).recipe(), resume=True):
        assert not abandoned.exists()
    assert mine.path.is_dir(), "of a process that lives"


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        (
            ("steps=512", "learner.chunk=100", "envs=32"),
            "training for 3,200 steps (steps=512, in whole chunks of 3,200: ",
        ),
        (("steps=6400", "learner.chunk=100", "envs=32"), "training for 6,400 steps, evaluated every 3,200"),
        (
            ("steps=64", "envs=2", "learner.chunk=32", "evaluation.every=32", "learner.learning_starts=32"),
            "training for 64 steps, evaluated every 64",
        ),
    ],
)
def test_a_run_says_how_long_it_is(overrides: tuple[str, ...], expected: str) -> None:
    recipe = resolve(for_control(load_recipe("cartpole", ["evaluation.every=null", *overrides])))
    assert length_of_run(recipe).startswith(expected)
    assert length_of_run(recipe) == expected or "learner.chunk=100 of envs=32)" in length_of_run(recipe)


def test_something_is_said_before_the_first_evaluation(
    sightline: Sightline, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    monkeypatch.setattr(ProgressBar, "say", lambda self, line: said.append(line))
    first: list[str] = []

    def stop(self: ControlTrainer) -> None:
        first.extend(said)
        raise RunFailed("enough")

    monkeypatch.setattr(ControlTrainer, "validate", stop)
    assert sightline("train", "cartpole", *TINY, "--run-dir", tmp_path / "new").code == 1
    assert any(line.startswith("training for 256 steps") for line in first)


def test_resume_or_start_asks_for_a_folder(sightline: Sightline) -> None:
    done = sightline("train", "cartpole", "--resume-or-start")
    assert (done.code, len(done.lines)) == (2, 1) and "--run-dir" in done.err


def test_what_a_kill_leaves_of_a_beginning_is_no_obstacle(sightline: Sightline, run: Path, tmp_path: Path) -> None:
    folder = tmp_path / "begun"
    (folder / "checkpoints").mkdir(parents=True)
    for name in ("run.json", "versions.json"):
        shutil.copy(run / name, folder / name)
    (folder / ".recipe.yaml.1-2.writing").write_text("format: 1")
    assert sightline("train", "cartpole", *TINY, "--run-dir", folder, "--resume-or-start").code == 0
    (tmp_path / "theirs" / "videos").mkdir(parents=True)
    (tmp_path / "theirs" / "videos" / "holiday.mp4").write_bytes(b"")
    done = sightline("train", "cartpole", *TINY, "--run-dir", tmp_path / "theirs", "--resume-or-start")
    assert done.code == 2 and "exists already" in done.err


def test_a_checkpoint_of_another_run_is_refused_in_one_line(sightline: Sightline, run: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    arguments = ("env=Pendulum-v1", "goal=a rod", *TINY, "reward.kind=ground_truth", "learner.algorithm=SAC", "envs=2")
    assert sightline("train", *arguments, "--run-dir", other).code == 0
    for folder in ("checkpoints", "replay"):
        shutil.rmtree(run / folder)
        shutil.copytree(other / folder, run / folder)
    (run / "result.json").unlink()
    done = sightline("train", "--run-dir", run, "--resume")
    assert done.code == 2, done.err
    assert "does not fit its run's recipe" in done.lines[-1] and "another algorithm" in done.lines[-1]
    assert "does not fit its run's recipe" in sightline("evaluate", run).err


# -- what a run says of itself -----------------------------------------------------------------------------------------


def test_the_command_line_is_recorded_without_passwords(
    sightline: Sightline, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = resolve(load_recipe("cartpole", TINY))
    words = ["sightline", "train", "x", "reward.teacher.url=https://anna:secret@host:1/v1", "goal=me@home"]
    monkeypatch.setattr(sys, "argv", words)
    with owned_run(tmp_path / "new", recipe, resume=False) as begin:
        begin()
    said = (tmp_path / "new" / "command.txt").read_text()
    assert "secret" not in said and "anna" not in said
    assert "https://host:1/v1" in said and "goal=me@home" in said


class Wandb(types.ModuleType):
    """As much of Weights & Biases as a run needs."""

    def __init__(self) -> None:
        super().__init__("wandb")
        self.begun: list[dict[str, Any]] = []
        self.logged: list[tuple[int, dict[str, Any]]] = []

    def init(self, **settings: Any) -> Wandb:
        self.begun.append(settings)
        return self

    def log(self, values: dict[str, Any], step: int) -> None:
        self.logged.append((step, values))

    def Video(self, file: str, format: str) -> tuple[str, bool]:
        return file, Path(file).is_file()

    def finish(self) -> None:
        self.logged.append((-1, {}))


def test_weights_and_biases_gets_an_id_of_the_runs_own_its_recipe_and_its_videos(
    sightline: Sightline, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wandb = Wandb()
    monkeypatch.setitem(sys.modules, "wandb", wandb)
    monkeypatch.setattr("sightline.runs.metrics.check_wandb", lambda: None)
    monkeypatch.setattr("sightline.control.control_setup.check_wandb", lambda: None)
    arguments = ("cartpole", *TINY, "steps=128", "evaluation.test_episodes=1", "wandb=trial", "videos=true")
    for name, others in (("a", ()), ("b", ("videos=false",))):
        done = sightline("train", *arguments, *others, "--run-dir", tmp_path / name / "run")
        assert done.code == 0, done.err
    assert sightline("train", *arguments, "--run-dir", tmp_path / "a" / "run", "--resume").code == 0
    first, second, again = wandb.begun
    assert first["name"] == second["name"] == "run"
    assert first["id"] != second["id"] and first["id"] == again["id"]
    assert first["config"]["learner"]["algorithm"] == "DQN" and first["project"] == "trial"
    videos = {name: value for _, values in wandb.logged for name, value in values.items() if name.startswith("videos/")}
    assert set(videos) == {"videos/untrained", "videos/chosen"}
    assert all(there for _, there in videos.values())


def test_restored_learners_are_built_by_the_recipe_and_take_weights_only(finished: Path) -> None:
    from sightline.control.state import chosen_policy, latest_learner

    learner, policy = latest_learner(RunFolder(finished)), chosen_policy(RunFolder(finished))
    assert learner.num_timesteps == 256 and learner.gamma == 0.99
    assert type(learner).__name__ == "DQN"
    assert policy.predict(np.zeros((2, 4), np.float32), deterministic=True)[0].shape == (2,)
    assert all(torch.isfinite(value).all() for value in policy.policy.state_dict().values())
