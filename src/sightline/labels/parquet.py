"""Labels as rows of a Parquet file, frames included, that Hugging Face's `datasets` shows as pictures.

One row is one answer. Its columns are those of `StoredLabel`, with the frames of both segments as PNGs:

    time, run, task, step, teacher, signature, kind, goal, levels, outcome, value, confidence, reason, seconds,
    first_frames, second_frames, first_rewards, second_rewards, origin (JSON), exchanges
"""

from __future__ import annotations

import io
import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import numpy as np

from sightline.errors import BadInput, RunFailed
from sightline.labels.frames import read_picture
from sightline.labels.store import Context, LabelStore, StoredLabel
from sightline.labels.types import Answer, Exchange, Kind, Outcome, Question, Segment

if TYPE_CHECKING:
    import pyarrow

ROWS_AT_ONCE = 32
"""Rows with their frames that are in memory together."""

_TEXT, _WHOLE, _DECIMAL, _YES_OR_NO = "string", "int64", "float64", "bool"
_EXCHANGE = {
    **dict.fromkeys(("stage", "prompt", "reply", "error"), _TEXT),
    "swapped": _YES_OR_NO,
    "input_tokens": _WHOLE,
    "output_tokens": _WHOLE,
    "seconds": _DECIMAL,
    "cost": _DECIMAL,
}
_COLUMNS: dict[str, Any] = {
    "time": _TEXT,
    "run": _TEXT,
    "task": _TEXT,
    "step": _WHOLE,
    "teacher": _TEXT,
    "signature": _TEXT,
    "kind": _TEXT,
    "goal": [_TEXT],
    "levels": _WHOLE,
    "outcome": _TEXT,
    "value": _DECIMAL,
    "confidence": _DECIMAL,
    "reason": _TEXT,
    "seconds": _DECIMAL,
    "first_frames": ["image"],
    "second_frames": ["image"],
    "first_rewards": ["float32"],
    "second_rewards": ["float32"],
    "origin": _TEXT,
    "exchanges": [_EXCHANGE],
}


@dataclass(frozen=True)
class Row:
    """An answer and what belongs to it, as `LabelStore.record` wants them."""

    question: Question
    teacher: str
    signature: str
    answer: Answer
    context: Context
    time: str


def write_parquet(file: Path, store: LabelStore, labels: Sequence[StoredLabel]) -> None:
    """Write labels with their frames, atomically.

    Raises:
        BadInput: pyarrow is not installed, or a frame is missing.
        RunFailed: the file could not be written.
    """
    pyarrow = _pyarrow()
    import pyarrow.parquet as parquet

    schema = _schema(pyarrow)
    temporary = file.with_name(f".{file.name}.writing")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        try:
            with parquet.ParquetWriter(temporary, schema, compression="zstd") as writer:
                for start in range(0, len(labels), ROWS_AT_ONCE):
                    rows = [_row(store, label) for label in labels[start : start + ROWS_AT_ONCE]]
                    writer.write_table(pyarrow.Table.from_pylist(rows, schema))
            temporary.replace(file)
        finally:
            temporary.unlink(missing_ok=True)
    except OSError as error:
        raise RunFailed(f"'{file}' cannot be written: {error.strerror or error}") from error


def read_parquet(file: Path) -> Iterator[Row]:
    """The labels of a file that `write_parquet` wrote.

    Raises:
        BadInput: pyarrow is not installed, or the file is damaged or something else.
    """
    pyarrow = _pyarrow()
    import pyarrow.parquet as parquet

    try:
        with parquet.ParquetFile(file) as opened:
            missing = sorted(set(_COLUMNS) - set(opened.schema_arrow.names))
            if missing:
                raise BadInput(f"'{file}' is no export of labels: it has no column {missing[0]}")
            for batch in opened.iter_batches(ROWS_AT_ONCE, columns=list(_COLUMNS)):
                for row in batch.to_pylist():
                    yield _read_row(row, file)
    except (OSError, pyarrow.ArrowException) as error:
        raise BadInput(f"'{file}' is no Parquet file, or damaged: {' '.join(str(error).split())[:160]}") from error


def _row(store: LabelStore, label: StoredLabel) -> dict[str, Any]:
    first, *rest = label.segments
    second = rest[0] if rest else None
    answer, context = label.answer, label.context
    return {
        "time": label.time,
        "run": context.run,
        "task": context.task,
        "step": context.step,
        "teacher": label.teacher,
        "signature": label.signature,
        "kind": label.kind,
        "goal": list(label.goal),
        "levels": label.levels,
        "outcome": answer.outcome.value,
        "value": answer.value,
        "confidence": answer.confidence,
        "reason": answer.reason,
        "seconds": answer.seconds,
        "origin": json.dumps(context.origin),
        "exchanges": [asdict(exchange) for exchange in answer.exchanges],
        "first_frames": _pictures(store, first),
        "second_frames": _pictures(store, second) if second else [],
        "first_rewards": store.true_rewards(first).tolist(),
        "second_rewards": store.true_rewards(second).tolist() if second else [],
    }


def _pictures(store: LabelStore, digest: str) -> list[dict[str, Any]]:
    try:
        return [{"bytes": file.read_bytes(), "path": file.name} for file in store.frame_files(digest)]
    except OSError as error:
        raise BadInput(f"'{error.filename}' is missing or damaged: {error.strerror}") from error


def _read_row(row: dict[str, Any], file: Path) -> Row:
    try:
        kind, outcome = row["kind"], Outcome(row["outcome"])
        if kind not in get_args(Kind):
            raise ValueError(f"{kind!r} is no kind of question")
        names = ("first", "second") if kind == "compare" else ("first",)
        segments = tuple(_segment(row[f"{name}_frames"], row[f"{name}_rewards"], file) for name in names)
        question = Question(kind, segments, tuple(map(_text, row["goal"])), int(row["levels"]))
        exchanges = tuple(Exchange(**{f.name: e[f.name] for f in fields(Exchange)}) for e in row["exchanges"] or ())
        value = _in_range(row["value"], max(1.0, question.levels - 1.0))
        answer = Answer(
            *(outcome, value, _in_range(row["confidence"], 1.0), row["reason"] or "", exchanges),
            seconds=float(row["seconds"]),
        )
        origin = json.loads(row["origin"])
        if not isinstance(origin, dict):
            raise TypeError("its origin is no mapping")
        time, run, task, teacher, signature = (_text(row[n]) for n in ("time", "run", "task", "teacher", "signature"))
        return Row(question, teacher, signature, answer, Context(run, task, row["step"], origin), time)
    except (KeyError, TypeError, ValueError) as error:
        raise BadInput(f"'{file}' holds a row that is no label: {' '.join(str(error).split())[:160]}") from error


def _segment(pictures: list[dict[str, Any]], rewards: list[float], file: Path) -> Segment:
    """Only the bytes of a picture are read; a path that stands beside them may lead anywhere."""
    if not pictures or len(pictures) != len(rewards):
        raise ValueError("a segment has no frames, or not one reward for each")
    frames = [read_picture(io.BytesIO(picture["bytes"]), f"a frame in '{file}'") for picture in pictures]
    return Segment(np.stack(frames), np.array([np.nan if r is None else r for r in rewards], np.float32))


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is no text")
    return value


def _in_range(value: float | None, high: float) -> float | None:
    if value is not None and not (math.isfinite(value) and 0 <= value <= high):
        raise ValueError(f"{value} is not in [0, {high:g}]")
    return value


def _schema(pyarrow: Any) -> pyarrow.Schema:
    """The columns, and beside them what `datasets` wants to know."""
    features = {name: _feature(kind) for name, kind in _COLUMNS.items()}
    metadata = {"huggingface": json.dumps({"info": {"features": features}})}
    return pyarrow.schema([(name, _arrow(pyarrow, kind)) for name, kind in _COLUMNS.items()], metadata)


def _arrow(pyarrow: Any, kind: Any) -> Any:
    if isinstance(kind, list):
        return pyarrow.list_(_arrow(pyarrow, kind[0]))
    if isinstance(kind, dict):
        return pyarrow.struct([(name, _arrow(pyarrow, inner)) for name, inner in kind.items()])
    if kind == "image":
        return pyarrow.struct([("bytes", pyarrow.binary()), ("path", pyarrow.string())])
    return pyarrow.type_for_alias(kind)


def _feature(kind: Any) -> dict[str, Any]:
    """In the words of `datasets`; `List` needs version 4 or newer."""
    if isinstance(kind, list):
        return {"_type": "List", "feature": _feature(kind[0])}
    if isinstance(kind, dict):
        return {name: _feature(inner) for name, inner in kind.items()}
    return {"_type": "Image"} if kind == "image" else {"_type": "Value", "dtype": kind}


def _pyarrow() -> Any:
    try:
        import pyarrow
    except ImportError as error:
        raise BadInput("Parquet needs pyarrow; pip install 'sightline[labels]'") from error
    return pyarrow
