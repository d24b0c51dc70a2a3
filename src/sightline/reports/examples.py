"""Example labels of a run: a few questions that its teacher answered, with their pictures, for a page."""

from __future__ import annotations

import io
import math
import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

from sightline.errors import BadInput, RunFailed
from sightline.images import encode_png
from sightline.labels.store import LabelStore, StoredLabel, existing_store
from sightline.labels.types import Outcome
from sightline.reports.pages import data_url
from sightline.runs.folder import RunFolder

SHOWN = 6
TINY, LARGE = 128, 256
"""Size limits in pixels: smaller pictures are shown pixel by pixel, larger ones are scaled down, so that a page with a
dozen of them stays small."""
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
        said: the answer in words.
        right: True if ground truth agrees on a pair; None if it is unknown, or equal for both.
    """

    step: int | None
    pictures: Sequence[ExamplePicture]
    said: str
    right: bool | None = None


def labels_and_examples(run: Path, count: int = SHOWN) -> tuple[list[StoredLabel], list[Example] | None]:
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
    places = np.unique(np.linspace(0, len(labels) - 1, min(count, len(labels))).round().astype(int))
    found = [example for place in places if (example := _example(store, labels[place])) is not None]
    return found or (None if labels else [])


def _example(store: LabelStore, label: StoredLabel) -> Example | None:
    preferred = _PREFERRED.get(label.answer.outcome, (False,))
    try:
        frames = [store.segment(digest).frames[-1] for digest in label.segments]
        pictures = [_picture(frame, marked) for frame, marked in zip(frames, preferred, strict=True)]
    except _DAMAGE:
        return None
    return Example(label.context.step, pictures, _said(label), _right(label))


def _said(label: StoredLabel) -> str:
    value = label.answer.value
    if label.kind == "rate":
        return f"level {value:.3g} of 0 to {label.levels - 1}"
    if label.kind == "score":
        return f"score {value:.2f}"
    return {Outcome.FIRST: "left preferred", Outcome.SECOND: "right preferred"}.get(label.answer.outcome, "equal")


def _right(label: StoredLabel) -> bool | None:
    if label.answer.outcome not in (Outcome.FIRST, Outcome.SECOND):
        return None
    first, second = label.true_returns
    if math.isnan(second - first) or first == second:
        return None
    return (label.answer.outcome is Outcome.SECOND) == (second > first)


def _picture(frame: np.ndarray, preferred: bool) -> ExamplePicture:
    tiny = max(frame.shape[:2]) < TINY
    if tiny:
        return ExamplePicture(data_url(encode_png(frame)), tiny, preferred)
    picture, file = Image.fromarray(frame), io.BytesIO()
    picture.thumbnail((LARGE, LARGE))
    picture.save(file, "JPEG", quality=88)
    return ExamplePicture(data_url(file.getvalue(), "image/jpeg"), tiny, preferred)
