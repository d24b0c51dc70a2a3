"""Writes what a scheduler starts: a file made from one of `templates/`.

    Kubernetes   templates/kubernetes.yaml   an Indexed Job, one pod a cell; or a Job for one run, or one pod a process
    Slurm        templates/slurm.sh          an array, one task a cell; or a job for one run, of one process or several
    SkyPilot     templates/sky.yaml          a rented machine for the whole sweep, or the run
    KubeRay      templates/ray.yaml          a RayJob, whose workers train the cells, or read a run's frames

Each starts a command that goes on with what is saved, and reads exit codes as docs/runs.md says.
"""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import jinja2
from jinja2 import meta
from pydantic import Field, PositiveInt, StringConstraints

from sightline.config.basics import Strict
from sightline.config.blocks import checked_block
from sightline.errors import BadInput
from sightline.runs.files import write_atomically

Scheduler = Literal["k8s", "slurm", "sky", "ray"]
TEMPLATES: dict[str, str] = {"k8s": "kubernetes.yaml", "slurm": "slurm.sh", "sky": "sky.yaml", "ray": "ray.yaml"}
SUBMISSIONS = {"k8s": "kubectl apply -f", "slurm": "sbatch", "sky": "sky jobs launch", "ray": "kubectl apply -f"}
"""Commands that hand the file to the scheduler."""
DATA = Path("/data")
"""Where containers see the folder that all machines share."""


class JobSettings(Strict):
    """Settings of a job: what the recipe does not say."""

    name: Annotated[str, StringConstraints(pattern=r"^[a-z]([-a-z0-9]{0,50}[a-z0-9])?$")] | None = None
    """Name of the job; default: that of the folder."""
    image: Annotated[str, StringConstraints(pattern=r"^\S+$")] | None = None
    """Container image; default: `sightline:cpu`, or `sightline:cuda` with GPUs (`docker/Dockerfile`)."""
    data: Annotated[str, StringConstraints(pattern=r"^\S+$")] = "sightline-data"
    """What is mounted at /data: a claim of Kubernetes, or a bucket."""
    cores: PositiveInt | None = None
    """Of one process; default: the recipe's threads, and one for evaluation in the background."""
    memory: PositiveInt = 8
    """GiB of one process."""
    gpus: Annotated[int, Field(ge=0)] = 0
    """Of one process."""
    accelerator: Annotated[str, StringConstraints(pattern=r"^[\w.-]+$")] = "L4"
    """Kind of GPU that is rented."""
    nodes: PositiveInt = 1
    """Machines that train one run together: an agent's."""
    per_node: PositiveInt = 1
    """Processes on each of them, as many as it has GPUs."""
    parallel: PositiveInt = 4
    """Cells at a time, at most."""
    grace: Annotated[int, Field(ge=10)] = 120
    """Seconds between the request to stop and the end: more than saving takes, which a stopped run says."""
    hours: PositiveInt = 24
    """Time limit."""
    partition: Annotated[str, StringConstraints(pattern=r"^[\w.,-]+$")] | None = None
    """Queue of a cluster."""
    ray_version: Annotated[str, StringConstraints(pattern=r"^\d+(\.\d+)*$")] | None = None
    """Version of Ray in the image; default: the one that is installed here."""


@dataclass(frozen=True)
class Work:
    """Work of a job.

    Attributes:
        recipe: a name, a file or YAML text; None if the overrides say it all.
        overrides: `key=value`.
        folder: of the run or the sweep.
        cells: of a sweep; None for a single run.
        threads: that a run computes with.
        shareable: whether several processes can learn a run together.
    """

    recipe: str | None
    overrides: Sequence[str]
    folder: Path
    cells: int | None
    threads: int
    shareable: bool = False


def write_job(scheduler: str, folder: Path, work: Work, stated: Sequence[str]) -> tuple[Path, str]:
    """Write a job's file; the work itself is not touched.

    Args:
        scheduler: one of `Scheduler`.
        folder: where the file goes, made if need be.
        stated: `key=value` of `JobSettings`.

    Returns:
        The file, and the command that submits it.

    Raises:
        BadInput: a setting is wrong, or of no use to the scheduler; or the work's folder is not one that it can reach.
    """
    if scheduler not in get_args(Scheduler):
        raise BadInput(f"--write-job cannot be '{scheduler[:40]}', only {', '.join(get_args(Scheduler))}")
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent / "templates"),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,  # the files are no pages
    )
    source = (Path(__file__).parent / "templates" / TEMPLATES[scheduler]).read_text(encoding="utf-8")
    settings = _settings(scheduler, meta.find_undeclared_variables(environment.parse(source)), stated)
    processes = settings.nodes * settings.per_node
    if processes > 1:
        _check_shareable(work)
    in_container = scheduler != "slurm"
    if in_container and not work.folder.is_relative_to(DATA):
        raise BadInput(
            f"machines of {scheduler} share the folder {DATA} alone; say where in it, such as --run-dir "
            f"{DATA / work.folder.name}"
        )
    if scheduler == "sky" and "://" not in settings.data:
        raise BadInput(f"a rented machine shares a bucket at {DATA}; say which, such as --job data=s3://my-runs")
    name = settings.name or _name(work.folder)
    suffix = Path(TEMPLATES[scheduler]).suffix
    file = folder / f"{name}-{scheduler}{suffix}"
    values = settings.model_dump() | {
        "name": name,
        "image": settings.image or ("sightline:cuda" if settings.gpus else "sightline:cpu"),
        "cores": settings.cores or work.threads + 1,
        "parallel": min(settings.parallel, work.cells or 1),
        "processes": processes,
        "file": shlex.quote(str(file)),
        "cells": work.cells,
        "threads": work.threads,
        "folder": shlex.quote(str(work.folder)),
        "sweep": _command("sweep", work, in_container),
        "train": _command("train", work, in_container) + " --resume-or-start",
    }
    if scheduler == "slurm":
        # Jobs share this machine's files: the same programs, and the working folder that the recipe's files are in.
        values["programs"] = shlex.quote(str(Path(sys.executable).parent))
        values["working_folder"] = Path.cwd()
    if scheduler == "ray":
        values["ray_version"] = settings.ray_version or _version_of_ray()
    text = environment.from_string(source).render(values)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_atomically(file, text.encode())
    except OSError as error:
        raise BadInput(f"the job cannot be written to '{folder}': {error.strerror or error}") from error
    return file, f"{SUBMISSIONS[scheduler]} {shlex.quote(str(file))}"


def _check_shareable(work: Work) -> None:
    """Refuse several processes for what one learns alone.

    Raises:
        BadInput: as said.
    """
    if work.cells is not None:
        raise BadInput(
            "nodes and per_node are of one run, whose processes learn together; cells of a sweep have one each: leave "
            "them out, or write the job of 'sightline train'"
        )
    if not work.shareable:
        raise BadInput(
            "nodes and per_node are for an agent that samples by itself (role=agent, policy.sampler=transformers), "
            "which alone learns in several processes; leave them out"
        )


def _settings(scheduler: str, variables: set[str], stated: Sequence[str]) -> JobSettings:
    """Settings of a job, of which the scheduler's template has a use for each.

    Args:
        variables: names in the template.
    """
    values: dict[str, Any] = {}
    for text in stated:
        key, equals, value = text.partition("=")
        if not equals:
            raise BadInput(f"--job {text[:80]} is not of the form key=value")
        values[key] = value
    settings = checked_block(JobSettings, values)
    for key in values:
        if key not in variables:
            raise BadInput(f"a job of {scheduler} has no use for {key}; leave it out")
    return settings


def _name(folder: Path) -> str:
    """Name of a job, of the letters that schedulers allow, from that of a folder."""
    plain = re.sub(r"[^a-z0-9]+", "-", folder.name.lower()).strip("-")[:40].strip("-")
    if not plain or not plain[0].isalpha():
        return f"sightline-{plain}".strip("-")
    return plain


def _command(command: str, work: Work, in_container: bool) -> str:
    """The command line that carries out the work, as a shell reads it."""
    words = ["sightline", command]
    if work.recipe is not None:
        recipe = work.recipe
        # Another machine has the bundled recipes, and not this one's files.
        if in_container and Path(recipe).is_file():
            recipe = Path(recipe).read_text(encoding="utf-8")
        words.append(recipe)
    return shlex.join([*words, *work.overrides, "--run-dir", str(work.folder)])


def _version_of_ray() -> str:
    try:
        return metadata.version("ray")
    except metadata.PackageNotFoundError:
        raise BadInput("Ray is not installed here; say which version the image has, --job ray_version=…") from None
