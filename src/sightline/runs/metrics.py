"""Metrics of a run: a JSON Lines file, TensorBoard events, and optionally Weights & Biases.

The first line of the file is its format number, `{"format": 1}`; every other line is a record with a `step`. The file
grows as long as the run does, so it is read line by line.
"""

from __future__ import annotations

import importlib.util
import json
import math
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from sightline.config.secrets import masked_document
from sightline.errors import BadInput, Damaged
from sightline.runs.files import FORMAT, check_format, open_regular, parse_json, write_atomically
from sightline.runs.folder import RunFolder

MAX_RECORD = 2**20
"""Size limit of a line of a metrics file in bytes."""
MOST_FRAMES = 100
"""Frames of a video in TensorBoard."""
_FIRST_LINE = json.dumps({"format": FORMAT}) + "\n"


class Metrics:
    """Logger of a run's metrics to all places that the recipe names.

    Args:
        run: the run folder.
        tensorboard: write TensorBoard events.
        wandb: project of Weights & Biases to log to, None for none.
        resume_step: step of the checkpoint that is resumed; records of later steps are dropped.
        resume_size: bytes of the file when that checkpoint was written (see `size`); None if it does not say.
    """

    def __init__(
        self,
        run: RunFolder,
        tensorboard: bool,
        wandb: str | None,
        resume_step: int | None = None,
        resume_size: int | None = None,
    ) -> None:
        self._run = run
        with run.writing():
            if resume_step is not None:
                _drop_later_records(run.metrics_file, resume_step, resume_size)
            self._file = run.metrics_file.open("a")
            if not self._file.tell():
                self._file.write(_FIRST_LINE)
                self._file.flush()
            self._tensorboard: Any = None
            if tensorboard:
                self._tensorboard = _tensorboard(run, resume_step)
        self._wandb: Any = None
        if wandb:
            self._wandb = _wandb(run, wandb)

    def write(self, step: int, values: dict[str, float | int | None]) -> None:
        """Log metrics at a step; None means unknown and is left out, NaN and infinity are written as null.

        Raises:
            LeaseLost: another process has taken over the run.
        """
        numbers = {name: value for name, value in values.items() if value is not None}
        record: dict[str, float | int | None] = {"step": step}
        for name, value in numbers.items():
            record[name] = value if math.isfinite(value) else None  # JSON has no NaN
        with self._run.writing():
            self._file.write(json.dumps(record, allow_nan=False) + "\n")
            self._file.flush()
            if self._tensorboard is not None:
                for name, value in numbers.items():
                    self._tensorboard.add_scalar(name, value, step)
                self._tensorboard.flush()  # or its thread would write later, when the run may have another owner
        if self._wandb is not None:
            self._wandb.log(numbers, step=step)

    def size(self) -> int:
        """Bytes of the file so far, all of them on disk; a run that is resumed from here goes on after them."""
        os.fsync(self._file.fileno())
        return os.fstat(self._file.fileno()).st_size

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
    every = max(1, math.ceil(len(frames) / MOST_FRAMES), math.ceil(fps / 50))
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
        raise BadInput("wandb is not installed: pip install 'sightline[wandb]', or leave out the recipe key wandb")


def check_metrics(path: Path) -> None:
    """Check that a run's metrics file, if there is one, can be gone on with, before anything of the run is changed.

    Raises:
        Damaged: it is no metrics file.
        BadInput: it has another format number.
    """
    next(iterate_metrics(path), None)


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """Read the records of a metrics file; see `iterate_metrics`."""
    return list(iterate_metrics(path))


def iterate_metrics(path: Path) -> Iterator[dict[str, Any]]:
    """Read the records of a metrics file one by one; none if there is no file. A truncated last line is ignored.

    Raises:
        Damaged: any other line is not a record.
        BadInput: the file has another format number.
    """
    for record, _ in _records_and_lines(path):
        yield record


def _records_and_lines(path: Path) -> Iterator[tuple[dict[str, Any], bytes]]:
    """Records of a metrics file, each with its line; see `iterate_metrics`."""
    try:
        file = open_regular(path)
    except FileNotFoundError:
        return
    with file:
        line = file.readline(MAX_RECORD)
        number = 0
        # One line ahead: only the last one may be cut off, by a process that was killed while it wrote.
        while line:
            number += 1
            following = file.readline(MAX_RECORD)
            try:
                record = _record(line, number, path)
            except Damaged:
                if following or len(line) == MAX_RECORD:
                    raise
                return
            if number > 1:
                yield record, line
            line = following


def _record(line: bytes, number: int, path: Path) -> dict[str, Any]:
    """A line of a metrics file, the first of which is its format number."""
    place = f"line {number} of '{path}'"
    if len(line) == MAX_RECORD and not line.endswith(b"\n"):
        raise Damaged(f"{place} is damaged: it has more than {MAX_RECORD} bytes")
    record = parse_json(line.decode("utf-8", "replace"), place)
    if not isinstance(record, dict):
        raise Damaged(f"{place} is damaged: it is not a JSON object")
    if number == 1:
        check_format(record.get("format"), f"'{path}'")
    elif not isinstance(record.get("step"), int):
        raise Damaged(f"{place} is damaged: it has no step")
    return record


def _drop_later_records(path: Path, step: int, size: int | None) -> None:
    """Drop what was logged after a checkpoint.

    Args:
        step: of the checkpoint.
        size: bytes of the file at that time; None drops the records of later steps.
    """
    if size is not None and _cut(path, size):
        return
    # Written by an earlier version, or shorter than it was: the steps of the records say what to keep.
    write_atomically(path, _lines_until(path, step))


def _lines_until(path: Path, step: int) -> Iterator[bytes]:
    """Lines of a metrics file without the records of steps after this one, one by one."""
    yield _FIRST_LINE.encode()
    for record, line in _records_and_lines(path):
        if record["step"] <= step:
            yield line.rstrip(b"\n") + b"\n"  # which the last line of a killed process lacks


def _cut(path: Path, size: int) -> bool:
    """Cut a file after so many bytes; False, and unchanged, if no line ends there."""
    try:
        file = open_regular(path, writes=True)
    except FileNotFoundError:
        return False
    with file:
        if size <= 0:
            return False
        # The file may have been changed since: only the end of a line is a place to cut.
        file.seek(size - 1)
        if file.read(1) != b"\n":
            return False
        file.truncate(size)
    return True


def _tensorboard(run: RunFolder, resume_step: int | None) -> Any:
    from torch.utils.tensorboard import SummaryWriter

    first_new_step = None if resume_step is None else resume_step + 1
    return SummaryWriter(str(run.path / "tensorboard"), purge_step=first_new_step)


def _wandb(run: RunFolder, project: str) -> Any:
    """Start or resume a run of Weights & Biases under this run's id (folders of different runs may share a name)."""
    check_wandb()
    import wandb

    return wandb.init(
        project=project,
        id=run.id,
        name=run.path.resolve().name,
        dir=str(run.path),
        config=masked_document(run.recipe().model_dump(mode="json")),
        resume="allow",
    )
