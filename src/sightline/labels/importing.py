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
from sightline.labels.types import Answer, Outcome, Question, RecordedTeacher, Segment, preference

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
    skipped: int = 0
    agreements: list[bool] = field(default_factory=list)
    """Whether label and environment prefer the same, for each label of a cache where both decide."""

    @classmethod
    def of(cls, store: LabelStore) -> _Count:
        """Begin to count what is added to a store."""
        count = cls(recorded=set(), rows=set(), keys=set())
        for time, key, answer, origin in store.recorded():
            count.recorded.add((time, key, answer))
            # Labels of a cache are told by their row; those from before rows were kept, by their question.
            if "digest" in origin:
                count.rows.add(_row(origin))
            else:
                count.keys.add(key)
        return count

    def result(self, files: int) -> Imported:
        agreement = None
        if self.agreements:
            agreement = sum(self.agreements) / len(self.agreements)
        return Imported(files, self.added, self.skipped, len(self.agreements), agreement)


@contextlib.contextmanager
def store_to_fill(folder: Path) -> Iterator[LabelStore]:
    """A label store to import into; one that is made for that does not stay if nothing could be imported."""
    is_new = not folder.exists()
    is_empty = is_new  # until it is open, and was asked
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
        places = ", ".join(repr(str(path)) for path in paths)
        raise BadInput(f"no *.pkl under {places}")
    # Exports say what was asked; pickles do not.
    if not goal and any(file.suffix != ".parquet" for file in files):
        raise BadInput('cached labels do not say what was asked; add --goal "…" with the goal\'s words')
    count = _Count.of(store)
    ranges = _ScoreRanges()
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
        label = (row.time, row.question.key(row.signature), row.answer)
        if label in count.recorded:
            count.skipped += 1
            continue
        store.record(row.question, RecordedTeacher(row.teacher, row.signature), row.answer, row.context, row.time)
        count.recorded.add(label)
        count.added += 1


def _import_cache(
    file: Path, store: LabelStore, goal: tuple[str, ...], task: str | None, count: _Count, ranges: _ScoreRanges
) -> None:
    folder = file.resolve().parent
    source = f"{folder.parent.name}/{folder.name}"
    signature = f"imported rl-vlm-f: cached labels of {source}, raw replies unavailable"
    teacher = RecordedTeacher("imported rl-vlm-f", signature)
    for cached in _cached_labels(file, goal, ranges):
        row = _row(cached.origin)
        if row in count.rows or _key_without_states(cached.question, teacher) in count.keys:
            count.skipped += 1
        else:
            context = Context(RUN, task or folder.parent.name, None, cached.origin)
            store.record(cached.question, teacher, cached.answer, context)
            count.rows.add(row)
            count.added += 1
        # The caches hold the environment's own preference too, as the oracle's: so the teacher can be judged.
        if cached.answer.outcome in (Outcome.FIRST, Outcome.SECOND) and cached.oracle in (0, 1):
            count.agreements.append(cached.answer.value == cached.oracle)


def _row(origin: dict[str, Any]) -> tuple[str, str]:
    """Which row of which file a cached label is."""
    return str(origin["digest"]), str(origin.get("row"))


def _key_without_states(question: Question, teacher: RecordedTeacher) -> str:
    """Key that a question had before imports kept states."""
    segments = tuple(replace(segment, states=None) for segment in question.segments)
    return replace(question, segments=segments).key(teacher.signature)


def _cached_labels(file: Path, goal: tuple[str, ...], ranges: _ScoreRanges) -> Iterator[_CachedLabel]:
    """Labels of one query round, in their order."""
    images, oracle, labels, states_1, states_2, rewards_1, rewards_2 = _checked(file)
    with file.open("rb") as content:  # which was read and found sound
        digest = hashlib.file_digest(content, "sha256").hexdigest()
    is_scores = _is_scores(labels)
    scores_are_wide = is_scores and ranges.wide(file)
    for i in range(len(labels)):
        # One picture shows both segments of a pair, side by side.
        half = images.shape[2] // 2
        first = _segment(images[i, :, :half], rewards_1[i], states_1[i])
        second = _segment(images[i, :, half:], rewards_2[i], states_2[i])
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
            question = Question("score", (first,), goal)
            answer = _score(file, float(labels[i]), scores_are_wide)
        else:
            question = Question("compare", (first, second), goal)
            answer = _preference(int(labels[i]))
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
    n = len(arrays[0]) if arrays[0].ndim else -1
    if n < 0 or any(array.ndim == 0 or len(array) != n for array in arrays):
        raise _not_cached(file, "its arrays are of different lengths")
    # In the order in which RL-VLM-F writes them.
    images, oracle, labels, *states, rewards_1, rewards_2 = arrays
    if n == 0:  # a round without an answer
        return [images, *(np.zeros(0) for _ in range(6))]
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
    oracle = oracle.reshape(n)
    labels = labels.reshape(n)
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
            self._wide[folder] = any(_has_negative_scores(each) for each in sorted({file, *folder.glob("*.pkl")}))
        return self._wide[folder]


def _has_negative_scores(file: Path) -> bool:
    labels = _checked(file)[2]
    return _is_scores(labels) and bool((labels < 0).any())


def _score(file: Path, score: float, wide: bool) -> Answer:
    if score == DROPPED:
        return _no_label()
    low = -1.0 if wide else 0.0
    if not low <= score <= 1.0:
        raise _not_cached(file, f"its score {score:g} is not in [{low:g}, 1]")
    # Ours are from 0 to 1.
    return Answer(Outcome.VALUE, (score - low) / (1.0 - low))


def _preference(label: int) -> Answer:
    if label == -1:
        return _no_label()
    return preference(float(label))


def _no_label() -> Answer:
    return Answer(Outcome.UNSURE, reason="unsure or failed: the cache does not tell which")


def _segment(picture: np.ndarray, rewards: np.ndarray, states: np.ndarray) -> Segment:
    """Segment of one frame, the last; it carries the return of the whole segment, and its states with the actions
    behind them."""
    # The caches keep one picture of a segment: its reward is the whole segment's, so that returns compare.
    frames = np.ascontiguousarray(picture)[None]
    true_rewards = np.array([rewards.sum()], np.float32)
    if not states.size:
        return Segment(frames, true_rewards)
    return Segment(frames, true_rewards, states.astype(np.float32))


def _time(file: Path) -> str:
    """Time of writing from a file's name: ISO 8601 without a zone; empty if the name holds none."""
    digits = re.search(r"(\d{4})\D?(\d{2})\D?(\d{2})\D*(\d{2})\D?(\d{2})\D?(\d{2})", file.stem)
    if digits is None:
        return ""
    return "{}-{}-{}T{}:{}:{}".format(*digits.groups())


def _not_cached(file: Path, reason: str) -> BadInput:
    return BadInput(f"'{file}' is not a file of cached labels: {reason}")
