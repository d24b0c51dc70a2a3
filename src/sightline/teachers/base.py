"""From a recipe's teacher block to a teacher: what the block is told."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sightline.labels.store import Context, LabelStore
    from sightline.models.encoders import Encoder


@dataclass(frozen=True)
class TeacherContext:
    """What a teacher block may know of the run that its teacher is asked in.

    Attributes:
        goal, baseline, seed: the recipe's.
        device: where models run.
        encoder: one that is loaded already, to be shared if the teacher names the same; or None.
        warn: takes one line about the words.
    """

    goal: tuple[str, ...]
    baseline: tuple[str, ...]
    seed: int
    device: str
    encoder: Encoder | None
    warn: Callable[[str], None]


@dataclass(frozen=True)
class TeacherRunContext:
    """What a teacher that is asked through the label store is told.

    Attributes:
        store: where questions wait and answers come.
        context: what to record with a question that is asked now.
        say: tells the user one line.
    """

    store: LabelStore
    context: Callable[[], Context]
    say: Callable[[str], None]
