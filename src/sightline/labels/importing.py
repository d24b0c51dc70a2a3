"""Import of labels: RL-VLM-F's cached labels (Wang et al., ICML 2024), and exports of other label stores."""

from __future__ import annotations

import contextlib
import hashlib
import re
import shutil
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from sightline.errors import BadInput
from sightline.images import MAX_PIXELS
from sightline.labels.parquet import read_parquet
from sightline.labels.pickles import read_arrays
from sightline.labels.store import Context, LabelStore
from sightline.labels.types import Answer, Outcome, Question, Segment, preference

RUN = "import"
"""Run name under which cached labels are recorded in the store."""
DROPPED = -3.0
"""Value that stands for "unsure" (-1) after scores were mapped from [0, 1] to [-1, 1]."""


@dataclass(frozen=True)
class Imported:
    """Result of an import.

    Attributes:
        files: number of files read.
        pairs: number of labels added.
        skipped: number of labels that the store held already.
        compared: cached preferences, new or known, for which the environment's own reward decides as well.
        agreement: share of `compared` in which label and environment prefer the same; None if there are none.
    """

    files: int
    pairs: int
    skipped: int
    compared: int
    agreement: float | None


@dataclass
class _Source:
    """Teacher that is recorded for imported labels."""

    name: str
    signature: str


@dataclass(frozen=True)
class _CachedLabel:
    question: Question
    answer: Answer
    oracle: int
    origin: dict[str, Any]


@dataclass
class _Count:
    """Running counts of an import, and what the store ever held; retracted labels are not imported again.

    Attributes:
        recorded: time, key and answer of all labels.
        rows: digest of its file and its row, of each label of a cache. The same pair may be in several rows.
        keys: of labels that do not say that, from before they did.
    """

    recorded: set[tuple[str, str, Answer]]
    rows: set[tuple[str, str]]
    keys: set[str]
    added: int = 0
    known: int = 0
    same: list[bool] = field(default_factory=list)

    @classmethod
    def of(cls, store: LabelStore) -> _Count:
        """Begin to count what is added to a store."""
        ever = store.recorded()
        rows = {_row(origin) for *_, origin in ever if "digest" in origin}
        keys = {key for _, key, _, origin in ever if "digest" not in origin}
        return cls({(time, key, answer) for time, key, answer, _ in ever}, rows, keys)

    def result(self, files: int) -> Imported:
        agreement = sum(self.same) / len(self.same) if self.same else None
        return Imported(files, self.added, self.known, len(self.same), agreement)


@contextlib.contextmanager
def store_to_fill(folder: Path) -> Iterator[LabelStore]:
    """A label store to import into; one that is made for that does not stay if nothing could be imported."""
    is_new = is_empty = not folder.exists()
    try:
        with LabelStore(folder) as store:
            try:
                yield store
            finally:
                is_empty = is_new and not store.recorded()
    except BadInput:
        if is_empty:
            shutil.rmtree(folder, ignore_errors=True)
        raise


def import_labels(
    paths: Sequence[Path], store: LabelStore, goal: Sequence[str] = (), task: str | None = None
) -> Imported:
    """Import the labels of files into a store. Existing labels are not changed, importing twice adds nothing, and
    retracted labels stay retracted.

    Args:
        paths: pickles of RL-VLM-F, Parquet files of `sightline label export`, or folders, which are searched through
            for pickles in the order of their names.
        goal: what the pictures of the pickles were to show; they do not say it themselves.
        task: the `env` that the pickles' labels are for; default: the name of the folder above the seed's.

    Raises:
        BadInput: a file that is missing, damaged, hostile, or no file of labels; files before it stay imported.
        RunFailed: the store could not be written.
    """
    if not all(sentence.strip() for sentence in goal):
        raise BadInput("a sentence of the goal is empty; say what the pictures were to show")
    files = list(_files(paths))
    if not files:
        raise BadInput(f"no *.pkl under {', '.join(f'{str(path)!r}' for path in paths)}")
    if not goal and any(file.suffix != ".parquet" for file in files):
        raise BadInput('cached labels do not say what was asked; add --goal "…" with the goal\'s words')
    count, ranges = _Count.of(store), _ScoreRanges()
    for file in files:
        if file.suffix == ".parquet":
            _import_export(file, store, count)
        else:
            _import_cache(file, store, tuple(goal), task, count, ranges)
    return count.result(len(files))


def _files(paths: Iterable[Path]) -> Iterator[Path]:
    for path in paths:
        if path.is_dir():
            yield from sorted(path.rglob("*.pkl"))
        elif path.is_file():
            yield path
        else:
            raise BadInput(f"there is no file '{path}'")


def _import_export(file: Path, store: LabelStore, count: _Count) -> None:
    """Import an exported Parquet file. Rows keep their time, run and teacher; a row is skipped if the store holds, or
    ever held, the same answer."""
    for row in read_parquet(file):
        this = (row.time, row.question.key(row.signature), row.answer)
        if this in count.recorded:
            count.known += 1
        else:
            store.record(row.question, _Source(row.teacher, row.signature), row.answer, row.context, row.time)
            count.recorded.add(this)
            count.added += 1


def _import_cache(
    file: Path, store: LabelStore, goal: tuple[str, ...], task: str | None, count: _Count, ranges: _ScoreRanges
) -> None:
    folder = file.resolve().parent
    source = f"{folder.parent.name}/{folder.name}"
    teacher = _Source("imported rl-vlm-f", f"imported rl-vlm-f: cached labels of {source}, raw replies unavailable")
    for cached in _cached_labels(file, goal, ranges):
        row = _row(cached.origin)
        if row not in count.rows and _key_before(cached.question, teacher) not in count.keys:
            context = Context(RUN, task or folder.parent.name, None, cached.origin)
            store.record(cached.question, teacher, cached.answer, context)
            count.rows.add(row)
            count.added += 1
        else:
            count.known += 1
        if cached.answer.outcome in (Outcome.FIRST, Outcome.SECOND) and cached.oracle in (0, 1):
            count.same.append(cached.answer.value == cached.oracle)


def _row(origin: dict[str, Any]) -> tuple[str, str]:
    """Which row of which file a cached label is."""
    return str(origin["digest"]), str(origin.get("row"))


def _key_before(question: Question, teacher: _Source) -> str:
    """Key that a question had before imports kept states."""
    seen = tuple(replace(segment, states=None) for segment in question.segments)
    return replace(question, segments=seen).key(teacher.signature)


def _cached_labels(file: Path, goal: tuple[str, ...], ranges: _ScoreRanges) -> Iterator[_CachedLabel]:
    """Labels of one query round, in their order."""
    images, oracle, labels, states_1, states_2, rewards_1, rewards_2 = _checked(file)
    with file.open("rb") as content:  # which was read and found sound
        digest = hashlib.file_digest(content, "sha256").hexdigest()
    is_scores = _is_scores(labels)
    scores_are_wide = is_scores and ranges.wide(file)
    for i in range(len(labels)):
        half = images.shape[2] // 2
        left = _segment(images[i, :, :half], rewards_1[i], states_1[i])
        right = _segment(images[i, :, half:], rewards_2[i], states_2[i])
        origin = {
            "source": "RL-VLM-F label cache (Gemini 1.0 or GPT-4V, by the task; raw replies unavailable)",
            "file": file.name,
            "digest": digest,
            "row": i,
            "time": _time(file),
            "seed": file.resolve().parent.name,
            "task": file.resolve().parent.parent.name,
            "oracle": int(oracle[i]),
            "steps": int(np.size(rewards_1[i])),
        }
        if is_scores:
            question, answer = Question("score", (left,), goal), _score(file, float(labels[i]), scores_are_wide)
        else:
            question, answer = Question("compare", (left, right), goal), _preference(int(labels[i]))
        yield _CachedLabel(question, answer, int(oracle[i]), origin)


def _checked(file: Path) -> list[np.ndarray]:
    """Read and validate the seven arrays of a file: images uint8[N, H, 2W, 3], oracle's labels [N], teacher's labels
    [N], states and actions of both segments [N, L, D], rewards of both [N, L].

    Raises:
        BadInput: the arrays are not of this form.
    """
    arrays = read_arrays(file)
    if len(arrays) != 7:
        raise _not_cached(file, f"it holds {len(arrays)} arrays instead of seven")
    counts = {len(array) if array.ndim else -1 for array in arrays}
    if counts == {0}:
        return [*arrays[:1], *(np.zeros(0) for _ in range(6))]
    if len(counts) != 1 or -1 in counts:
        raise _not_cached(file, "its arrays are of different lengths")
    (n,) = counts
    images, oracle, labels, *states, rewards_1, rewards_2 = arrays
    if images.ndim != 4 or images.dtype != np.uint8 or images.shape[3] != 3:
        raise _not_cached(file, "its images are not RGB pictures of bytes")
    height, width = images.shape[1:3]
    if width < 2 or width % 2 or height < 1 or height * width > 2 * MAX_PIXELS:
        raise _not_cached(file, f"its images of {width}x{height} are not two side by side")
    if any(array.size != n or array.dtype.kind not in "iuf" for array in (oracle, labels)):
        raise _not_cached(file, "it does not hold one label for each pair")
    if any(array.ndim != 3 or array.dtype.kind not in "iuf" for array in states):
        raise _not_cached(file, "its states and actions are not numbers on three axes")
    if not all(np.isfinite(array).all() for array in states):
        raise _not_cached(file, "its states and actions are not finite")
    if any(array.size == 0 or array.ndim < 2 or array.dtype.kind not in "iuf" for array in (rewards_1, rewards_2)):
        raise _not_cached(file, "its rewards are not numbers for each step of each segment")
    oracle, labels = oracle.reshape(n), labels.reshape(n)
    if not np.isin(oracle, (-1, 0, 1)).all():
        raise _not_cached(file, "the environment's labels are not 0, 1 or -1")
    if not _is_scores(labels) and not np.isin(labels, (-1, 0, 1)).all():
        raise _not_cached(file, "its labels are not 0, 1 or -1")
    if not np.isfinite(labels).all():
        raise _not_cached(file, "its scores are not finite")
    return [images, oracle, labels, *states, rewards_1.reshape(n, -1), rewards_2.reshape(n, -1)]


def _is_scores(labels: np.ndarray) -> bool:
    """Test for score labels: preferences are stored as integers, scores as floats."""
    return labels.dtype.kind == "f" and len(labels) > 0


class _ScoreRanges:
    """Score range of the files of each folder: [-1, 1], as later versions wrote, or [0, 1], as earlier ones did.

    The files do not record it. A score below 0 shows it, and all files of one folder are of one version.
    """

    def __init__(self) -> None:
        self._wide: dict[Path, bool] = {}

    def wide(self, file: Path) -> bool:
        folder = file.resolve().parent
        if folder not in self._wide:
            files = sorted({file, *folder.glob("*.pkl")})
            labels = (_checked(other)[2] for other in files)
            self._wide[folder] = any(bool((found < 0).any()) for found in labels if _is_scores(found))
        return self._wide[folder]


def _score(file: Path, score: float, wide: bool) -> Answer:
    if score == DROPPED:
        return _no_label()
    low = -1.0 if wide else 0.0
    if not low <= score <= 1.0:
        raise _not_cached(file, f"its score {score:g} is not in [{low:g}, 1]")
    return Answer(Outcome.VALUE, (score - low) / (1.0 - low))


def _preference(label: int) -> Answer:
    return _no_label() if label == -1 else preference(float(label))


def _no_label() -> Answer:
    return Answer(Outcome.UNSURE, reason="unsure or failed: the cache does not tell which")


def _segment(picture: np.ndarray, rewards: np.ndarray, states: np.ndarray) -> Segment:
    """Segment of one frame, the last; it carries the return of the whole segment, and its states with the actions
    behind them."""
    known = states.astype(np.float32) if states.size else None
    return Segment(np.ascontiguousarray(picture)[None], np.array([rewards.sum()], np.float32), known)


def _time(file: Path) -> str:
    """Time of writing from a file's name: ISO 8601 without a zone; empty if the name holds none."""
    digits = re.search(r"(\d{4})\D?(\d{2})\D?(\d{2})\D*(\d{2})\D?(\d{2})\D?(\d{2})", file.stem)
    return "{}-{}-{}T{}:{}:{}".format(*digits.groups()) if digits else ""


def _not_cached(file: Path, reason: str) -> BadInput:
    return BadInput(f"'{file}' is not a file of cached labels: {reason}")
