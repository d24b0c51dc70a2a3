"""Labels as rows of a Parquet file, frames included, that Hugging Face's `datasets` shows as pictures.

One row is one answer. Its columns are those of `StoredLabel`, with the frames of both segments as PNGs:

    time, run, task, step, teacher, signature, kind, goal, levels, outcome, value, confidence, reason, seconds,
    first_frames, second_frames, first_rewards, second_rewards, first_states, second_states, origin (JSON), exchanges
"""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import numpy as np

from sightline.errors import BadInput, RunFailed
from sightline.images import pixel_digest, read_png, read_pngs
from sightline.labels.store import Context, LabelStore, StoredLabel
from sightline.labels.types import Answer, ModelCall, Outcome, Question, QuestionKind, Segment
from sightline.runs.files import MAX_PICTURE, read_bytes

if TYPE_CHECKING:
    import pyarrow

ROWS_AT_ONCE = 32
"""Batch size of writing: rows, with their frames, that are in memory together."""
_PICTURES = ("first_frames", "second_frames")

_TEXT = "string"
_WHOLE = "int64"
_DECIMAL = "float64"
_EXCHANGE = {
    "stage": _TEXT,
    "prompt": _TEXT,
    "reply": _TEXT,
    "error": _TEXT,
    "model": _TEXT,
    "swapped": "bool",
    "input_tokens": _WHOLE,
    "output_tokens": _WHOLE,
    "seconds": _DECIMAL,
    "cost": _DECIMAL,
}
"""Columns of a request to a model: name -> type."""
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
    "first_states": [["float32"]],
    "second_states": [["float32"]],
    "origin": _TEXT,
    "exchanges": [_EXCHANGE],
}
"""Columns of a label: name -> type; a list of one type is a column of lists."""
_OPTIONAL = ("first_states", "second_states")
"""Columns that exports of before do not have."""


@dataclass(frozen=True)
class LabelRow:
    """Row of a Parquet file: an answer with its question and metadata, as `LabelStore.record` takes them."""

    question: Question
    teacher: str
    signature: str
    answer: Answer
    context: Context
    time: str


@dataclass(frozen=True)
class WrittenLabels:
    """Result of writing.

    Attributes:
        labels: those in the file.
        problem: why the first of those left out is not in the file; empty if none was left out.
    """

    labels: list[StoredLabel]
    problem: str


def write_parquet(file: Path, store: LabelStore, labels: Sequence[StoredLabel]) -> WrittenLabels:
    """Write labels with their frames to a Parquet file, atomically.

    A frame is decoded and compared with its name before its bytes are copied. Labels with a missing or damaged frame
    are left out instead of failing the export: the others have cost money too.

    Raises:
        BadInput: pyarrow is not installed, or no label has all its frames.
        RunFailed: the file could not be written.
    """
    pyarrow = _pyarrow()
    import pyarrow.parquet as parquet

    schema = _schema(pyarrow)
    # Renamed when it is whole, so that half an export is never read.
    temporary = file.with_name(f".{file.name}.writing")
    pictures = _Pictures(store)
    exported: list[StoredLabel] = []
    problem = ""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        try:
            with parquet.ParquetWriter(temporary, schema, compression="zstd") as writer:
                # Batch by batch: all frames of a store do not fit into memory.
                for start in range(0, len(labels), ROWS_AT_ONCE):
                    rows = []
                    for label in labels[start : start + ROWS_AT_ONCE]:
                        try:
                            rows.append(_row(store, label, pictures))
                            exported.append(label)
                        except BadInput as error:
                            problem = problem or str(error)
                    writer.write_table(pyarrow.Table.from_pylist(rows, schema))
            if not exported:
                raise BadInput(problem)
            temporary.replace(file)
        finally:
            temporary.unlink(missing_ok=True)
    except (FileExistsError, NotADirectoryError) as error:
        raise BadInput(f"'{file}' leads through a file that is no folder; name another") from error
    except OSError as error:
        raise RunFailed(f"'{file}' cannot be written: {error.strerror or error}") from error
    return WrittenLabels(exported, problem)


def read_parquet(file: Path) -> Iterator[LabelRow]:
    """Read the labels of a file that `write_parquet` wrote, one in memory at a time.

    Repeated pictures stay dictionary-encoded until each is read: otherwise a small file could name a large picture a
    million times.

    Raises:
        BadInput: pyarrow is not installed; the file is damaged or something else; a row contradicts itself.
    """
    pyarrow = _pyarrow()
    import pyarrow.parquet as parquet

    try:
        schema = parquet.read_metadata(file).schema
        paths = [schema.column(i).path for i in range(len(schema))]
        picture_paths = [path for path in paths if path.startswith(_PICTURES) and path.endswith(".bytes")]
        with parquet.ParquetFile(file, read_dictionary=picture_paths) as opened:
            present = set(opened.schema_arrow.names)
            absent = sorted(set(_COLUMNS) - set(_OPTIONAL) - present)
            if absent:
                raise BadInput(f"'{file}' is no export of labels: it has no column {absent[0]}")
            number = 0
            for batch in opened.iter_batches(1, columns=[name for name in _COLUMNS if name in present]):
                # Pictures stay in Arrow's memory until each is decoded; all else becomes plain data.
                pictures = batch.select(list(_PICTURES))
                rows = batch.drop_columns(list(_PICTURES)).to_pylist()
                for i, row in enumerate(rows):
                    number += 1
                    frames = {name: pictures[name][i] for name in _PICTURES}
                    yield _read_row(row | frames, file, number)
    except MemoryError as error:
        raise BadInput(f"'{file}' does not fit into memory") from error
    except (OSError, pyarrow.ArrowException) as error:
        raise BadInput(f"'{file}' is no Parquet file, or damaged: {' '.join(str(error).split())[:160]}") from error


def _row(store: LabelStore, label: StoredLabel, pictures: _Pictures) -> dict[str, Any]:
    answer = label.answer
    context = label.context
    row = {
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
        "exchanges": list(map(_exchange, answer.exchanges)),
        # Only comparisons have a second segment.
        "second_frames": [],
        "second_rewards": [],
        "second_states": [],
    }
    for name, digest in zip(("first", "second"), label.segments, strict=False):
        states = store.states(digest)
        row[f"{name}_frames"] = pictures.of(digest)
        row[f"{name}_rewards"] = store.true_rewards(digest).tolist()
        row[f"{name}_states"] = [] if states is None else states.tolist()
    return row


def _exchange(call: ModelCall) -> dict[str, Any]:
    return {name: getattr(call, name) for name in _EXCHANGE}


class _Pictures:
    """PNG files of a store's frames, each decoded once to check its content against its name."""

    def __init__(self, store: LabelStore) -> None:
        self._store = store
        self._sound: dict[str, bytes] = {}
        """Name -> digest of the file's bytes."""

    def of(self, digest: str) -> list[dict[str, Any]]:
        """
        Raises:
            BadInput: a frame is missing or damaged.
        """
        return [{"bytes": self._checked(file), "path": file.name} for file in self._store.frame_files(digest)]

    def _checked(self, file: Path) -> bytes:
        try:
            content = read_bytes(file, MAX_PICTURE)
        except FileNotFoundError as error:
            raise BadInput(f"'{file}' is missing or damaged: {error.strerror}") from error
        # Segments of one episode share frames, and decoding is what takes the time: each file is decoded once.
        checksum = hashlib.sha256(content).digest()
        if self._sound.get(file.stem) != checksum:
            pixels = read_png(io.BytesIO(content), f"'{file}'")
            if pixel_digest(pixels) != file.stem:
                raise BadInput(f"'{file}' is damaged: it is not the frame that was stored there")
            self._sound[file.stem] = checksum
        return content


def _read_row(row: dict[str, Any], file: Path, number: int) -> LabelRow:
    try:
        kind = row["kind"]
        outcome = Outcome(row["outcome"])
        if kind not in get_args(QuestionKind):
            raise ValueError(f"{kind!r} is no kind of question")
        where = f"row {number} of '{file}'"
        segments = [_read_segment(row, "first", where)]
        if kind == "compare":
            segments.append(_read_segment(row, "second", where))
        question = Question(kind, tuple(segments), _sentences(row["goal"]), int(row["levels"]))
        exchanges = tuple(_read_call(exchange) for exchange in row["exchanges"] or ())
        answer = Answer(
            outcome=outcome,
            value=row["value"],
            confidence=_share(row["confidence"]),
            reason=row["reason"] or "",
            exchanges=exchanges,
            seconds=float(row["seconds"]),
        )
        question.check_answer(answer)
        # Checked, for a file may be a stranger's: the store takes what it is given.
        origin = json.loads(row["origin"])
        if not isinstance(origin, dict):
            raise TypeError("its origin is no mapping")
        time = _text(row["time"])
        run = _text(row["run"])
        task = _text(row["task"])
        teacher = _text(row["teacher"])
        signature = _text(row["signature"])
        return LabelRow(question, teacher, signature, answer, Context(run, task, row["step"], origin), time)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise BadInput(f"row {number} of '{file}' is no label: {' '.join(str(error).split())[:160]}") from error


def _read_call(exchange: dict[str, Any]) -> ModelCall:
    """A request to a model. Exports of before do not say which version answered."""
    fields = {"model": ""} | exchange
    return ModelCall(**{name: fields[name] for name in _EXCHANGE})


def _read_segment(row: dict[str, Any], name: str, where: str) -> Segment:
    """Decode the segment of this name, `first` or `second`. Only the bytes of a picture are read, never the path beside
    them, which may lead anywhere."""
    pictures = row[f"{name}_frames"].values or ()
    rewards = row[f"{name}_rewards"]
    states = row.get(f"{name}_states")
    if not pictures or len(pictures) != len(rewards):
        raise ValueError("a segment has no frames, or not one reward for each")
    frames = read_pngs(_one_by_one(pictures, where), f"a segment in {where}")
    # Parquet has null where a reward is unknown.
    true_rewards = np.array([np.nan if reward is None else reward for reward in rewards], np.float32)
    known_states = np.array(states, np.float32) if states else None
    segment = Segment(frames, true_rewards, known_states)
    segment.check()
    return segment


def _one_by_one(pictures: Iterable[Any], where: str) -> Iterator[tuple[io.BytesIO, str]]:
    for picture in pictures:
        yield io.BytesIO(picture["bytes"].as_py()), f"a frame in {where}"


def _sentences(value: object) -> tuple[str, ...]:
    if not isinstance(value, list):
        raise TypeError(f"{value!r} is no list of sentences")
    return tuple(map(_text, value))


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is no text")
    return value


def _share(value: float | None) -> float | None:
    if value is not None and not 0 <= value <= 1:
        raise ValueError(f"its confidence {value} is not in [0, 1]")
    return value


def _schema(pyarrow: Any) -> pyarrow.Schema:
    """Parquet schema: the columns, with the metadata that `datasets` reads."""
    # `datasets` would take pictures for structs of bytes and a path without this.
    features = {name: _feature(kind) for name, kind in _COLUMNS.items()}
    metadata = {"huggingface": json.dumps({"info": {"features": features}})}
    fields = [(name, _arrow(pyarrow, kind)) for name, kind in _COLUMNS.items()]
    return pyarrow.schema(fields, metadata)


def _arrow(pyarrow: Any, kind: Any) -> Any:
    if isinstance(kind, list):
        return pyarrow.list_(_arrow(pyarrow, kind[0]))
    if isinstance(kind, dict):
        return pyarrow.struct([(name, _arrow(pyarrow, inner)) for name, inner in kind.items()])
    if kind == "image":
        return pyarrow.struct([("bytes", pyarrow.binary()), ("path", pyarrow.string())])
    return pyarrow.type_for_alias(kind)


def _feature(kind: Any) -> dict[str, Any]:
    """Feature type of a column in the format of `datasets`; `List` needs version 4 or newer."""
    if isinstance(kind, list):
        return {"_type": "List", "feature": _feature(kind[0])}
    if isinstance(kind, dict):
        return {name: _feature(inner) for name, inner in kind.items()}
    if kind == "image":
        return {"_type": "Image"}
    return {"_type": "Value", "dtype": kind}


def _pyarrow() -> Any:
    try:
        import pyarrow
    except ImportError as error:
        raise BadInput("Parquet needs pyarrow; pip install 'sightline[labels]'") from error
    return pyarrow
