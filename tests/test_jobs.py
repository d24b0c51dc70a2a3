"""Jobs: every scheduler's file holds the user's command as it was typed, and reads exit codes as docs/runs.md says."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

from conftest import Finished
from sightline.cli.commands import app
from sightline.errors import BadInput
from sightline.jobs.manifests import TEMPLATES, Work, write_job

Sightline = Callable[..., Finished]
GOAL = 'goal=it\'s "a pole" $HOME'
"""A sentence that a shell would change if it were not quoted."""


def written(
    scheduler: str,
    folder: Path,
    *stated: str,
    cells: int | None = 10,
    recipe: str | None = "cartpole",
    at: str = "",
    shareable: bool = True,
) -> str:
    """The text of a job, of ten cells unless said otherwise."""
    if scheduler == "sky":
        stated = ("data=s3://runs", *stated)
    elif scheduler == "ray":
        stated = ("ray_version=2.60.0", *stated)
    work = Work(recipe, ["seed=0..9", GOAL], Path(at or "/data/sweeps/Alpha 1"), cells, 2, shareable)
    file, submission = write_job(scheduler, folder, work, stated)
    assert shlex.split(submission)[-1] == str(file)
    return file.read_text()


def script(scheduler: str, text: str) -> str:
    """The shell's part of a job."""
    if scheduler == "slurm":
        return text
    document = yaml.safe_load(text)
    if scheduler == "sky":
        return str(document["run"])
    if scheduler == "ray":
        return str(document["spec"]["entrypoint"])
    return str(document["spec"]["template"]["spec"]["containers"][0]["args"][0])


def commands(text: str) -> list[list[str]]:
    """The words of every command line of ours in a script, as a shell reads them."""
    stand_ins = [
        'sightline() { printf "%s\\0" "$@" >> "$WORDS"; printf "\\1" >> "$WORDS"; }',
        'exec() { "$@"; }',
        "test() { false; }",
    ]
    words = Path(os.environ["WORDS"])
    words.unlink(missing_ok=True)
    subprocess.run(["bash", "-c", "\n".join([*stand_ins, text])], check=False, timeout=20)
    return [line.split("\0")[:-1] for line in words.read_text().split("\1") if line]


@pytest.fixture(autouse=True)
def _words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORDS", str(tmp_path / "words"))
    monkeypatch.setenv("JOB_COMPLETION_INDEX", "3")


@pytest.mark.parametrize("cells", [10, None])
@pytest.mark.parametrize("scheduler", TEMPLATES)
def test_scripts_are_scripts(scheduler: str, cells: int | None, tmp_path: Path) -> None:
    text = written(scheduler, tmp_path, cells=cells)
    assert "not run on a real cluster" in text.split("\n\n")[0]
    done = subprocess.run(["bash", "-n"], input=script(scheduler, text), text=True, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("cells", [10, None])
@pytest.mark.parametrize("scheduler", ["k8s", "sky", "ray"])
def test_commands_arrive_as_they_were_typed(scheduler: str, cells: int | None, tmp_path: Path) -> None:
    folder = "/data/sweeps/Alpha 1"
    carried_out = commands(script(scheduler, written(scheduler, tmp_path, "parallel=3", cells=cells)))
    same = ["cartpole", "seed=0..9", GOAL, "--run-dir", folder]
    elsewhere = ["--cluster", "auto"] if scheduler == "ray" else []
    if cells is None:
        assert carried_out == [["train", *same, "--resume-or-start", *elsewhere]]
    elif scheduler == "k8s":
        assert carried_out == [["sweep", *same, "--plan"], ["sweep-cell", folder, "3"]]
    else:
        assert carried_out == [["sweep", *same, *elsewhere, "--processes", "3"]]
    for words in carried_out:
        check_is_understood(words)


def check_is_understood(words: Sequence[str]) -> None:
    """The words are arguments and options that our command has."""
    command: Any = typer.main.get_command(app)
    found = command.commands[words[0]]
    found.make_context(words[0], list(words[1:]), resilient_parsing=False)


def test_recipes_travel_to_other_machines(tmp_path: Path) -> None:
    """A file of this machine is not there: its text is."""
    recipe = tmp_path / "mine.yaml"
    recipe.write_text('env: cartpole\ngoal: "it\'s up"\n')
    for scheduler in ("k8s", "sky", "ray"):
        carried_out = commands(script(scheduler, written(scheduler, tmp_path / "jobs", recipe=str(recipe))))
        assert carried_out[0][1] == recipe.read_text()
    assert shlex.quote(str(recipe)) in written("slurm", tmp_path / "jobs", recipe=str(recipe))


def test_kubernetes_reads_exit_codes(tmp_path: Path) -> None:
    """2 gives a cell up, 75 and 143 are no failures, and all others are tried again."""
    for cells, giving_up in ((10, "FailIndex"), (None, "FailJob")):
        spec = yaml.safe_load(written("k8s", tmp_path, "gpus=2", "grace=300", cells=cells))["spec"]
        rules = {}
        for rule in spec["podFailurePolicy"]["rules"]:
            if "onExitCodes" in rule:
                rules.update(dict.fromkeys(rule["onExitCodes"]["values"], rule["action"]))
        assert rules == {75: "Ignore", 143: "Ignore", 2: giving_up}
        pod = spec["template"]["spec"]
        # What Kubernetes demands of rules on exit codes.
        assert pod["restartPolicy"] == "Never" and spec["podReplacementPolicy"] == "Failed"
        assert pod["terminationGracePeriodSeconds"] == 300
        container = pod["containers"][0]
        assert container["resources"]["limits"]["nvidia.com/gpu"] == 2 and container["image"] == "sightline:cuda"
        # A shell between would take the signal for itself.
        assert container["command"][:2] == ["tini", "--"]
        assert container["args"][0].strip().splitlines()[-1].startswith("exec ")
        if cells:
            assert spec["completionMode"] == "Indexed" and spec["completions"] == 10 and spec["parallelism"] == 4
        else:
            assert "completions" not in spec


def test_sky_starts_again(tmp_path: Path) -> None:
    document = yaml.safe_load(written("sky", tmp_path, "gpus=1", "accelerator=A100"))
    assert document["resources"]["job_recovery"]["recover_on_exit_codes"] == [75, 143]
    assert document["resources"]["accelerators"] == "A100:1"
    assert document["file_mounts"]["/data"] == {"source": "s3://runs", "mode": "MOUNT"}


def test_ray_lets_nobody_in(tmp_path: Path) -> None:
    """Without a token, whoever reaches a head may run code in it."""
    spec = yaml.safe_load(written("ray", tmp_path, "gpus=1", "parallel=3"))["spec"]
    cluster = spec["rayClusterSpec"]
    assert cluster["authOptions"] == {"mode": "token"} and cluster["rayVersion"] == "2.60.0"
    assert spec["entrypoint"].endswith("--cluster auto --processes 3 --cluster-gpus 1")
    head = cluster["headGroupSpec"]
    (workers,) = cluster["workerGroupSpecs"]
    assert head["rayStartParams"] == {"num-cpus": "0", "num-gpus": "0"} and workers["replicas"] == 3
    limits = [group["template"]["spec"]["containers"][0]["resources"]["limits"] for group in (head, workers)]
    assert ["nvidia.com/gpu" in limit for limit in limits] == [False, True]


# -- Slurm, with stand-ins for its programs and ours -------------------------------------------------------------------


SCONTROL = 'if [ "$1" = show ]; then echo "${{3//,/$\'\\n\'}}"; else echo "$@" >> {}; fi'
SRUN = """
while [ "${1#--}" != "$1" ]; do shift; done
for ((rank = 0; rank < SLURM_NTASKS; rank++)); do
  SLURM_PROCID=$rank SLURM_LOCALID=$((rank % 2)) "$@" &
  children+=($!)
done
for child in "${children[@]}"; do
  wait "$child"; code=$?; [ "$code" -le "${highest:-0}" ] || highest=$code
done
exit "${highest:-0}"
"""
"""Slurm's programs: `srun` starts four processes, two on each of two machines, and ends with the highest code."""


class Slurm:
    """A job that is carried out by bash, where `sightline` is a script and `scontrol` notes what it is told."""

    def __init__(self, folder: Path, sightline: str, cells: int | None = 10, stated: Sequence[str] = ()) -> None:
        programs = folder / "programs"
        programs.mkdir()
        self._notes = folder / "notes"
        self._notes.touch()
        stand_ins = {"sightline": sightline, "scontrol": SCONTROL.format(self._notes), "srun": SRUN}
        for name, text in stand_ins.items():
            (programs / name).write_text(f"#!/bin/bash\n{text}\n")
            (programs / name).chmod(0o755)
        text = written("slurm", folder, *stated, cells=cells, at=str(folder / "sweep"))
        ours = [line for line in text.splitlines() if line.startswith("export PATH=")]
        self._script = text.replace(ours[0], f'export PATH={programs}:"$PATH"')
        self._variables = {"SLURM_ARRAY_JOB_ID": "7", "SLURM_ARRAY_TASK_ID": "3", "SLURM_JOB_ID": "10"}
        self._variables |= {"SLURM_JOB_NODELIST": "one,two", "SLURM_NTASKS": "4", "SIGHTLINE_BUSY_SECONDS": "0"}

    def start(self, **variables: str) -> subprocess.Popen[str]:
        environment = os.environ | self._variables | variables
        return subprocess.Popen(["bash", "-c", self._script], env=environment, text=True)

    def told(self) -> str:
        return self._notes.read_text().strip()


@pytest.mark.parametrize(
    ("code", "restarts", "requeued"),
    [(0, 0, False), (2, 0, False), (1, 0, True), (1, 4, False), (137, 3, True), (75, 99, True), (143, 99, True)],
)
def test_slurm_reads_exit_codes(code: int, restarts: int, requeued: bool, tmp_path: Path) -> None:
    slurm = Slurm(tmp_path, f'[ "$1" = sweep ] || exit {code}')
    ended = slurm.start(SLURM_RESTART_COUNT=str(restarts)).wait(timeout=20)
    assert slurm.told() == ("requeue 7_3" if requeued else "")
    assert ended == (0 if requeued else code)


def test_slurm_waits_until_a_run_has_saved(tmp_path: Path) -> None:
    """The signal goes to the shell, which passes it on, and stays until the run is done."""
    saving = (
        f"trap 'sleep 0.5; touch {tmp_path}/saved; exit 143' TERM; touch {tmp_path}/begun; while :; do sleep 0.1; done"
    )
    slurm = Slurm(tmp_path, saving, cells=None)
    process = slurm.start()
    for _ in range(200):
        if (tmp_path / "begun").exists():
            break
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=20) == 0
    assert (tmp_path / "saved").exists() and slurm.told() == "requeue 10"


def test_slurm_goes_on_where_another_task_wrote_the_plan(tmp_path: Path) -> None:
    """Of two tasks that begin at once one is refused the folder; the plan is there all the same."""
    plan = tmp_path / "sweep" / "sweep.json"
    writing = f'if [ "$1" = sweep ]; then mkdir -p {plan.parent}; touch {plan}; exit 75; fi'
    assert Slurm(tmp_path, writing).start().wait(timeout=20) == 0


@pytest.mark.parametrize(("code", "requeued"), [(0, False), (2, False), (75, True), (143, True)])
def test_slurm_starts_the_processes_of_a_run_on_several_machines(code: int, requeued: bool, tmp_path: Path) -> None:
    """Each is told what torchrun would tell it; the first process's code counts where the others end for its sake."""
    told = tmp_path / "told"
    place = f'echo "$RANK $LOCAL_RANK $WORLD_SIZE $LOCAL_WORLD_SIZE $MASTER_ADDR $MASTER_PORT $*" >> {told}'
    sightline = f'{place}; [ "$RANK" = 0 ] || exit {min(code, 1)}; exit {code}'
    slurm = Slurm(tmp_path, sightline, cells=None, stated=["nodes=2", "per_node=2", "gpus=1", "memory=16"])
    ended = slurm.start().wait(timeout=20)
    assert (slurm.told(), ended) == ("requeue 10" if requeued else "", 0 if requeued else code)
    command = f"train cartpole seed=0..9 {GOAL} --run-dir {tmp_path}/sweep --resume-or-start"
    expected = [f"{rank} {rank % 2} 4 2 one 20010 {command}" for rank in range(4)]
    assert sorted(told.read_text().splitlines()) == expected
    text = (tmp_path / "sweep-slurm.sh").read_text()
    for line in ("--nodes=2", "--ntasks-per-node=2", "--gres=gpu:2", "--mem=32G", "--signal=TERM@120"):
        assert f"#SBATCH {line}\n" in text


def test_kubernetes_names_the_pods_of_a_run(tmp_path: Path) -> None:
    """A pod is a process, and finds the first one by its name, which a service without an address gives."""
    service, job = yaml.safe_load_all(written("k8s", tmp_path, "nodes=3", "name=run", cells=None))
    assert service["spec"]["clusterIP"] == "None" and service["spec"]["selector"] == {"job-name": "run"}
    spec = job["spec"]
    assert (spec["completionMode"], spec["completions"], spec["parallelism"]) == ("Indexed", 3, 3)
    assert spec["template"]["spec"]["subdomain"] == service["metadata"]["name"] == "run"
    shell = spec["template"]["spec"]["containers"][0]["args"][0]
    assert 'RANK="$JOB_COMPLETION_INDEX" WORLD_SIZE=3 MASTER_ADDR=run-0.run MASTER_PORT=29500' in shell
    assert commands(shell)[0][0] == "train"


def test_what_one_process_learns_has_one_machine(tmp_path: Path) -> None:
    for settings, more, expected in (
        (["nodes=2"], {}, "nodes and per_node are of one run"),
        (["per_node=2"], {"cells": None, "shareable": False}, "are for an agent that samples by itself"),
    ):
        with pytest.raises(BadInput, match=expected):
            written("slurm", tmp_path, *settings, **more)
    for scheduler in ("sky", "ray"):
        with pytest.raises(BadInput, match=f"a job of {scheduler} has no use for nodes"):
            written(scheduler, tmp_path, "nodes=2", cells=None)


# -- what is refused ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("scheduler", "stated", "expected"),
    [
        ("pbs", (), "only k8s, slurm, sky"),
        ("k8s", ("hours=2",), "no use for hours"),
        ("slurm", ("image=a",), "no use for image"),
        ("k8s", ("gpu=1",), "did you mean 'gpus'"),
        ("k8s", ("gpus=-1",), "gpus"),
        ("k8s", ("gpus",), "key=value"),
        ("k8s", ("name=My_Job",), "name"),
        ("sky", ("data=claim",), "--job data=s3://"),
    ],
)
def test_settings_are_checked(scheduler: str, stated: tuple[str, ...], expected: str, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=expected):
        written(scheduler, tmp_path / "jobs", *stated)
    assert not (tmp_path / "jobs").exists()


def test_folders_that_containers_do_not_see(tmp_path: Path) -> None:
    for scheduler in ("k8s", "sky", "ray"):
        with pytest.raises(BadInput, match="--run-dir /data/mine"):
            written(scheduler, tmp_path, at="sweeps/mine")


def test_the_commands(sightline: Sightline, tmp_path: Path) -> None:
    jobs = tmp_path / "jobs"
    done = sightline("sweep", "cartpole", "seed=0..2", "--run-dir", "sweeps/x", "--write-job", "slurm", jobs)
    assert done.code == 0 and done.out == f"sbatch {jobs}/x-slurm.sh\n", done.err
    assert "--array=0-2%3\n" in (jobs / "x-slurm.sh").read_text()
    done = sightline(
        "train", "cartpole", "--run-dir", "/data/x", "--write-job", "k8s", jobs, "--job", "name=mine", "--json"
    )
    assert done.code == 0 and "mine-k8s.yaml" in done.out, done.err
    assert not Path("sweeps").exists()
    refusals = {
        ("train", "cartpole", "--write-job", "k8s", jobs): "--run-dir",
        ("train", "cartpole", "--run-dir", "x", "--job", "gpus=1"): "--job is for --write-job",
        ("sweep", "cartpole", "seed=0..1", "--run-dir", "x", "--job", "gpus=1"): "--job is for --write-job",
    }
    for arguments, expected in refusals.items():
        done = sightline(*arguments)
        assert done.code == 2 and len(done.lines) == 1 and expected in done.lines[0]


# -- the page ----------------------------------------------------------------------------------------------------------


def test_the_commands_of_the_page(sightline: Sightline) -> None:
    """Those of docs/scale.md that train nothing are carried out, word for word and in their order; the others are
    understood."""
    page = (Path(__file__).parents[1] / "docs" / "scale.md").read_text()
    blocks = re.findall(r"```sh\n(.*?)```", page, flags=re.DOTALL)
    lines = [line for block in blocks for line in block.splitlines() if line.startswith("sightline ")]
    assert len(lines) >= 8
    quick = ("--dry-run", "--plan", "--write-job", "--status sweeps/shared")
    for line in lines:
        words = shlex.split(line, comments=True)[1:]
        if not any(option in line for option in quick):
            check_is_understood(words)
            continue
        done = sightline(*words)
        assert done.code == 0, f"{line}: {done.err}"
