"""Metrics of a run: one JSON object a line, TensorBoard events, and Weights & Biases if asked for."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

from sightline.errors import BadInput
from sightline.runs.folder import RunFolder, write_atomically


class Metrics:
    """Writes every record to all places that the recipe names.

    Args:
        run: whose metrics these are.
        resume_step: when resuming, records of later steps are dropped: they will be made again.
    """

    def __init__(self, run: RunFolder, tensorboard: bool, wandb: str | None, resume_step: int | None = None) -> None:
        self._path = run.metrics_file
        if resume_step is not None:
            _drop_after(self._path, resume_step)
        self._file = self._path.open("a")
        self._tensorboard = _tensorboard(run, resume_step) if tensorboard else None
        self._wandb = _wandb(run, wandb) if wandb else None

    def write(self, step: int, values: dict[str, float | int | None]) -> None:
        """Record values at a step; None means unknown and is left out."""
        known = {name: value for name, value in values.items() if value is not None}
        self._file.write(json.dumps({"step": step, **known}) + "\n")
        self._file.flush()
        if self._tensorboard is not None:
            for name, value in known.items():
                self._tensorboard.add_scalar(name, value, step)
        if self._wandb is not None:
            self._wandb.log(known, step=step)

    def close(self) -> None:
        self._file.close()
        if self._tensorboard is not None:
            self._tensorboard.close()
        if self._wandb is not None:
            self._wandb.finish()


def check_wandb() -> None:
    """Refuse, before anything is begun, to log to Weights & Biases without its package.

    Raises:
        BadInput: wandb is not installed.
    """
    if importlib.util.find_spec("wandb") is None:
        raise BadInput("wandb is not installed; run 'pip install wandb', or leave out the recipe key wandb")


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """All whole records; a last line that a kill cut short is ignored."""
    records = []
    for line in path.read_text("utf-8", "replace").splitlines() if path.is_file() else []:
        try:
            record = json.loads(line)
        except ValueError:
            continue
        if isinstance(record, dict):
            records.append(record)
    return records


def _drop_after(path: Path, step: int) -> None:
    kept = [record for record in read_metrics(path) if record["step"] <= step]
    write_atomically(path, "".join(json.dumps(record) + "\n" for record in kept).encode())


def _tensorboard(run: RunFolder, resume_step: int | None) -> Any:
    from torch.utils.tensorboard import SummaryWriter

    purge = None if resume_step is None else resume_step + 1
    return SummaryWriter(str(run.path / "tensorboard"), purge_step=purge)


def _wandb(run: RunFolder, project: str) -> Any:
    check_wandb()
    import wandb

    return wandb.init(project=project, id=run.path.name, name=run.path.name, dir=str(run.path), resume="allow")
