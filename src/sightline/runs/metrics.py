"""Metrics of a run: a JSON Lines file, TensorBoard events, and optionally Weights & Biases.

The first line of the file is its format number, `{"format": 1}`; every other line is a record with a `step`.
"""

from __future__ import annotations

import importlib.util
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from sightline.errors import BadInput, Damaged
from sightline.runs.files import FORMAT, check_format, parse_json, read_text, write_atomically
from sightline.runs.folder import RunFolder

MAX_METRICS = 64 * 2**20
"""Size limit of a metrics file in bytes."""
MOST_FRAMES = 150
"""Frames of a video in TensorBoard."""
_FIRST_LINE = json.dumps({"format": FORMAT}) + "\n"


class Metrics:
    """Logger of a run's metrics to all places that the recipe names.

    Args:
        run: the run folder.
        tensorboard: write TensorBoard events.
        wandb: project of Weights & Biases to log to, None for none.
        resume_step: step of the checkpoint that is resumed; records of later steps are dropped.
    """

    def __init__(self, run: RunFolder, tensorboard: bool, wandb: str | None, resume_step: int | None = None) -> None:
        self._run = run
        with run.writing():
            if resume_step is not None:
                kept = [record for record in read_metrics(run.metrics_file) if record["step"] <= resume_step]
                lines = [_FIRST_LINE, *(json.dumps(record) + "\n" for record in kept)]
                write_atomically(run.metrics_file, "".join(lines).encode())
            self._file = run.metrics_file.open("a")
            if not self._file.tell():
                self._file.write(_FIRST_LINE)
                self._file.flush()
            self._tensorboard = _tensorboard(run, resume_step) if tensorboard else None
        self._wandb = _wandb(run, wandb) if wandb else None

    def write(self, step: int, values: dict[str, float | int | None]) -> None:
        """Log metrics at a step; None means unknown and is left out, NaN and infinity are written as null.

        Raises:
            LeaseLost: another process has taken over the run.
        """
        known = {name: value for name, value in values.items() if value is not None}
        finite = {name: value if math.isfinite(value) else None for name, value in known.items()}
        with self._run.writing():
            self._file.write(json.dumps({"step": step, **finite}, allow_nan=False) + "\n")
            self._file.flush()
            if self._tensorboard is not None:
                for name, value in known.items():
                    self._tensorboard.add_scalar(name, value, step)
                self._tensorboard.flush()  # or its thread would write later, when the run may have another owner
        if self._wandb is not None:
            self._wandb.log(known, step=step)

    def film(self, name: str, file: Path, frames: Sequence[np.ndarray], fps: int, step: int) -> None:
        """Log a video, to TensorBoard as a small moving picture and to Weights & Biases, if the recipe names them.

        Args:
            file: path of the video.
            frames: uint8[H, W, 3], T of them.
        """
        if self._tensorboard is not None:
            with self._run.writing():
                self._tensorboard.file_writer.add_summary(_moving_picture(f"videos/{name}", frames, fps), step)
                self._tensorboard.flush()
        if self._wandb is not None:
            import wandb

            self._wandb.log({f"videos/{name}": wandb.Video(str(file), format="mp4")}, step=step)

    def close(self) -> None:
        """Close the file and end the logging elsewhere."""
        self._file.close()
        if self._tensorboard is not None:
            self._tensorboard.close()
        if self._wandb is not None:
            self._wandb.finish()


def _moving_picture(tag: str, frames: Sequence[np.ndarray], fps: int) -> Any:
    """TensorBoard summary with a GIF; its own `add_video` needs another package for the same."""
    import io

    from PIL import Image
    from tensorboard.compat.proto.summary_pb2 import Summary  # type: ignore[import-untyped]

    # Browsers show at most 50 frames a second, and nobody looks at more than some hundred.
    every = max(1, len(frames) // MOST_FRAMES, math.ceil(fps / 50))
    pictures = [Image.fromarray(frame) for frame in frames[::every]]
    stream = io.BytesIO()
    pictures[0].save(stream, "GIF", save_all=True, append_images=pictures[1:], duration=1000 * every // fps, loop=0)
    height, width = frames[0].shape[:2]
    image = Summary.Image(height=height, width=width, colorspace=3, encoded_image_string=stream.getvalue())
    return Summary(value=[Summary.Value(tag=tag, image=image)])


def check_wandb() -> None:
    """Check that the package of Weights & Biases is installed.

    Raises:
        BadInput: wandb is not installed.
    """
    if importlib.util.find_spec("wandb") is None:
        raise BadInput("wandb is not installed; run 'pip install wandb', or leave out the recipe key wandb")


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """Read the records of a metrics file; none if there is no file. A truncated last line is ignored.

    Raises:
        Damaged: any other line is not a record.
        BadInput: the file has another format number.
    """
    try:
        lines = read_text(path, MAX_METRICS).splitlines()
    except FileNotFoundError:
        return []
    records = []
    for number, line in enumerate(lines, 1):
        try:
            record = parse_json(line, f"line {number} of '{path}'")
            if not isinstance(record, dict):
                raise Damaged(f"line {number} of '{path}' is damaged: it is not a JSON object")
            if number == 1:
                check_format(record.get("format"), f"'{path}'")
                continue
            if not isinstance(record.get("step"), int):
                raise Damaged(f"line {number} of '{path}' is damaged: it has no step")
        except Damaged:
            if number == len(lines):
                break
            raise
        records.append(record)
    return records


def _tensorboard(run: RunFolder, resume_step: int | None) -> Any:
    from torch.utils.tensorboard import SummaryWriter

    purge = None if resume_step is None else resume_step + 1
    return SummaryWriter(str(run.path / "tensorboard"), purge_step=purge)


def _wandb(run: RunFolder, project: str) -> Any:
    """Start or resume a run of Weights & Biases under this run's id (folders of different runs may share a name)."""
    check_wandb()
    import wandb

    return wandb.init(
        project=project,
        id=run.id,
        name=run.path.resolve().name,
        dir=str(run.path),
        config=run.recipe().model_dump(mode="json"),
        resume="allow",
    )
