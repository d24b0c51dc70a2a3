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

_TEXT, _WHOLE, _DECIMAL, _YES_OR_NO = "string", "int64", "float64", "bool"
_EXCHANGE = {
    **dict.fromkeys(("stage", "prompt", "reply", "error", "model"), _TEXT),
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
    "first_states": [["float32"]],
    "second_states": [["float32"]],
    "origin": _TEXT,
    "exchanges": [_EXCHANGE],
}
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
class Written:
    """Result of writing: the labels in the file, and why the first of those left out is not."""

    labels: list[StoredLabel]
    why_not: str


def write_parquet(file: Path, store: LabelStore, labels: Sequence[StoredLabel]) -> Written:
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
    temporary = file.with_name(f".{file.name}.writing")
    pictures, written, why_not = _Pictures(store), list[StoredLabel](), ""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        try:
            with parquet.ParquetWriter(temporary, schema, compression="zstd") as writer:
                for start in range(0, len(labels), ROWS_AT_ONCE):
                    rows = []
                    for label in labels[start : start + ROWS_AT_ONCE]:
                        try:
                            rows.append(_row(store, label, pictures))
                            written.append(label)
                        except BadInput as error:
                            why_not = why_not or str(error)
                    writer.write_table(pyarrow.Table.from_pylist(rows, schema))
            if not written:
                raise BadInput(why_not)
            temporary.replace(file)
        finally:
            temporary.unlink(missing_ok=True)
    except (FileExistsError, NotADirectoryError) as error:
        raise BadInput(f"'{file}' leads through a file that is no folder; name another") from error
    except OSError as error:
        raise RunFailed(f"'{file}' cannot be written: {error.strerror or error}") from error
    return Written(written, why_not)


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
        leaves = [schema.column(i).path for i in range(len(schema))]
        repeating = [path for path in leaves if path.startswith(_PICTURES) and path.endswith(".bytes")]
        with parquet.ParquetFile(file, read_dictionary=repeating) as opened:
            there = set(opened.schema_arrow.names)
            missing = sorted(set(_COLUMNS) - set(_OPTIONAL) - there)
            if missing:
                raise BadInput(f"'{file}' is no export of labels: it has no column {missing[0]}")
            number = 0
            for batch in opened.iter_batches(1, columns=[name for name in _COLUMNS if name in there]):
                numbers, pictures = batch.drop_columns(list(_PICTURES)), batch.select(list(_PICTURES))
                for i, row in enumerate(numbers.to_pylist()):
                    number += 1
                    frames = {name: pictures[name][i] for name in _PICTURES}
                    yield _read_row(row | frames, file, number)
    except MemoryError as error:
        raise BadInput(f"'{file}' does not fit into memory") from error
    except (OSError, pyarrow.ArrowException) as error:
        raise BadInput(f"'{file}' is no Parquet file, or damaged: {' '.join(str(error).split())[:160]}") from error


def _row(store: LabelStore, label: StoredLabel, pictures: _Pictures) -> dict[str, Any]:
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
        "exchanges": [{name: getattr(exchange, name) for name in _EXCHANGE} for exchange in answer.exchanges],
        "first_frames": pictures.of(first),
        "second_frames": pictures.of(second) if second else [],
        "first_rewards": store.true_rewards(first).tolist(),
        "second_rewards": store.true_rewards(second).tolist() if second else [],
        "first_states": _rows(store.states(first)),
        "second_states": _rows(store.states(second)) if second else [],
    }


def _rows(states: np.ndarray | None) -> list[list[float]]:
    return [] if states is None else states.tolist()


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
        sum_of_bytes = hashlib.sha256(content).digest()
        if self._sound.get(file.stem) != sum_of_bytes:
            if pixel_digest(read_png(io.BytesIO(content), f"'{file}'")) != file.stem:
                raise BadInput(f"'{file}' is damaged: it is not the frame that was stored there")
            self._sound[file.stem] = sum_of_bytes
        return content


def _read_row(row: dict[str, Any], file: Path, number: int) -> LabelRow:
    try:
        kind, outcome = row["kind"], Outcome(row["outcome"])
        if kind not in get_args(QuestionKind):
            raise ValueError(f"{kind!r} is no kind of question")
        names = ("first", "second") if kind == "compare" else ("first",)
        where = f"row {number} of '{file}'"
        segments = tuple(
            _segment(row[f"{n}_frames"].values or (), row[f"{n}_rewards"], row.get(f"{n}_states"), where) for n in names
        )
        question = Question(kind, segments, _sentences(row["goal"]), int(row["levels"]))
        exchanges = tuple(_read_call(e) for e in row["exchanges"] or ())
        answer = Answer(
            *(outcome, row["value"], _share(row["confidence"]), row["reason"] or "", exchanges),
            seconds=float(row["seconds"]),
        )
        question.check_answer(answer)
        origin = json.loads(row["origin"])
        if not isinstance(origin, dict):
            raise TypeError("its origin is no mapping")
        time, run, task, teacher, signature = (_text(row[n]) for n in ("time", "run", "task", "teacher", "signature"))
        return LabelRow(question, teacher, signature, answer, Context(run, task, row["step"], origin), time)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise BadInput(f"row {number} of '{file}' is no label: {' '.join(str(error).split())[:160]}") from error


def _read_call(exchange: dict[str, Any]) -> ModelCall:
    """A request to a model. Exports of before do not say which version answered."""
    known = {"model": ""} | exchange
    return ModelCall(**{name: known[name] for name in _EXCHANGE})


def _segment(pictures: Sequence[Any], rewards: list[float], states: list[list[float]] | None, where: str) -> Segment:
    """Decode a segment. Only the bytes of a picture are read, never the path beside them, which may lead anywhere."""
    if not pictures or len(pictures) != len(rewards):
        raise ValueError("a segment has no frames, or not one reward for each")
    frames = read_pngs(_one_by_one(pictures, where), f"a segment in {where}")
    true_rewards = np.array([np.nan if r is None else r for r in rewards], np.float32)
    segment = Segment(frames, true_rewards, np.array(states, np.float32) if states else None)
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
    """Feature type of a column in the format of `datasets`; `List` needs version 4 or newer."""
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
