"""Example labels of a run: a few questions that its teacher answered, with their pictures, for a page."""

from __future__ import annotations

import io
import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

from sightline.errors import BadInput, RunFailed
from sightline.evaluation.agreement import check_pair
from sightline.images import encode_png
from sightline.labels.store import LabelStore, StoredLabel, existing_store
from sightline.labels.types import Outcome
from sightline.reports.pages import data_url
from sightline.runs.folder import RunFolder

EXAMPLES = 6
"""Number of examples on a page."""
TINY = 128
"""Size in pixels below which a picture is shown pixel by pixel."""
LARGE = 256
"""Size in pixels to which larger pictures are scaled down, so that a page with a dozen of them stays small."""
_PREFERRED = {Outcome.FIRST: (True, False), Outcome.SECOND: (False, True), Outcome.EQUAL: (False, False)}
_DAMAGE = (BadInput, RunFailed, sqlite3.Error, OSError, ValueError, LookupError, TypeError)
"""Errors of a label store that is missing or damaged, in its database or in the values of its fields."""


@dataclass(frozen=True)
class ExamplePicture:
    """Picture of a segment: its last frame.

    Attributes:
        source: a data URL.
        tiny: True if its pixels are shown as squares.
        preferred: True if the teacher prefers it to the other one.
    """

    source: str
    tiny: bool
    preferred: bool = False


@dataclass(frozen=True)
class Example:
    """Example of an answered question.

    Attributes:
        step: transitions collected when it was asked; None if unknown.
        pictures: two of a comparison, otherwise one.
        answer: the answer in words.
        right: True if ground truth agrees on a pair; None if it is unknown, or equal for both.
    """

    step: int | None
    pictures: Sequence[ExamplePicture]
    answer: str
    right: bool | None = None


def labels_and_examples(run: Path, count: int = EXAMPLES) -> tuple[list[StoredLabel], list[Example] | None]:
    """Read the labels of a run, oldest first, and select up to `count` answers, spread evenly over their order.

    Answers without a label are left out, and of the examples those with damaged pictures, too. No labels, and None for
    the examples, if they cannot be read.
    """
    labels: list[StoredLabel] = []
    try:
        with LabelStore(existing_store(run, trust=True), read_only=True) as store:
            labels = _of_run(store, run)
            return labels, _spread(store, labels, count)
    except _DAMAGE:
        return labels, None


def _of_run(store: LabelStore, run: Path) -> list[StoredLabel]:
    own = store.labels(RunFolder(run).id)
    if not own and store.folder.resolve().parent == run.resolve():
        own = store.labels()  # recorded under the folder's name, as once was done
    return [label for label in own if label.answer.value is not None]


def _spread(store: LabelStore, labels: Sequence[StoredLabel], count: int) -> list[Example] | None:
    # Evenly over the run, since a teacher's questions change as the policy learns.
    places = np.unique(np.linspace(0, len(labels) - 1, min(count, len(labels))).round().astype(int))
    examples = []
    for place in places:
        example = _example(store, labels[place])
        if example is not None:
            examples.append(example)
    if labels and not examples:
        return None  # there are labels, and none of their pictures can be read
    return examples


def _example(store: LabelStore, label: StoredLabel) -> Example | None:
    are_preferred = _PREFERRED.get(label.answer.outcome, (False,))
    try:
        last_frames = [store.segment(digest).frames[-1] for digest in label.segments]
        pictures = [
            _picture(frame, is_preferred) for frame, is_preferred in zip(last_frames, are_preferred, strict=True)
        ]
    except _DAMAGE:
        return None
    return Example(label.context.step, pictures, _in_words(label), _is_correct(label))


def _in_words(label: StoredLabel) -> str:
    value = label.answer.value
    if label.kind == "rate":
        return f"level {value:.3g} of 0 to {label.levels - 1}"
    if label.kind == "score":
        return f"score {value:.2f}"
    return {Outcome.FIRST: "left preferred", Outcome.SECOND: "right preferred"}.get(label.answer.outcome, "equal")


def _is_correct(label: StoredLabel) -> bool | None:
    """Whether ground truth agrees on a pair; None if it is unknown, equal for both, or the pair was not decided."""
    pair = check_pair(label)
    return None if pair is None else pair.is_correct


def _picture(frame: np.ndarray, preferred: bool) -> ExamplePicture:
    # Small pictures keep every pixel; large ones are made small, as a JPEG.
    is_tiny = max(frame.shape[:2]) < TINY
    if is_tiny:
        return ExamplePicture(data_url(encode_png(frame)), is_tiny, preferred)
    picture = Image.fromarray(frame)
    picture.thumbnail((LARGE, LARGE))
    file = io.BytesIO()
    picture.save(file, "JPEG", quality=88)
    return ExamplePicture(data_url(file.getvalue(), "image/jpeg"), is_tiny, preferred)
