"""Base class of teacher recipe blocks, and the contexts in which teachers are built."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from sightline.config.basics import Strict
from sightline.config.blocks import Reach
from sightline.errors import BadInput, blamed
from sightline.labels.types import Question, QuestionKind, Teacher

if TYPE_CHECKING:
    from sightline.labels.store import Context, LabelStore
    from sightline.models.encoder_base import Encoder


@dataclass(frozen=True)
class TeacherContext:
    """Context in which a teacher block builds its teacher.

    Attributes:
        goal, baseline, seed: from the recipe.
        device: the device that models run on.
        encoder: a loaded encoder to share if the teacher names the same one; or None.
        warn: called with a one-line warning about the words.
    """

    goal: tuple[str, ...]
    baseline: tuple[str, ...]
    seed: int
    device: str
    encoder: Encoder | None
    warn: Callable[[str], None]


@dataclass(frozen=True)
class TeacherRunContext:
    """Run context of a teacher that is asked through the label store.

    Attributes:
        store: the label store, with the waiting questions and their answers.
        context: what to record with a question that is asked now.
        say: tells the user one line.
    """

    store: LabelStore
    context: Callable[[], Context]
    say: Callable[[str], None]


class TeacherConfig(Strict):
    """Base of all teacher blocks."""

    kind: str
    lags: ClassVar[bool] = False
    """True for a slow teacher: training goes on while it is asked."""
    shown_size: ClassVar[tuple[int, int] | None] = None
    """Frame size (height, width) that the teacher judges well; None where any does."""
    knows_truth: ClassVar[bool] = False
    """True for a teacher that answers from the environment's own reward."""
    needs_words: ClassVar[bool] = True

    @property
    def words_alpha(self) -> float | None:
        """See `RewardConfig`."""
        return None

    @property
    def judges_by_own_words(self) -> bool:
        """True for a teacher that uses the goal it was built with and ignores the goal of a question."""
        return False

    def check(self, question: QuestionKind) -> None:
        """Refuse a kind of question that these settings do not support.

        Raises:
            ValueError: in one line.
        """

    def reaches(self) -> Iterator[Reach]:
        """See `RewardConfig`."""
        return iter(())

    def check_priced(self) -> None:
        """Refuse a budget of money for a teacher whose answers would be counted as free.

        Raises:
            ValueError: in one line.
        """
        raise ValueError(f"budget.money bounds what is paid, and teacher.kind={self.kind} is not paid; leave it out")

    def facts(self) -> str:
        """Short description of the teacher."""
        return self.kind

    def shown_prompt(self, question: Question) -> str:
        """What a model is asked by a question, with marks for pictures; empty where none is asked in words."""
        return ""

    def build(self, context: TeacherContext) -> Teacher | None:
        """Build the teacher and check that it answers; None for one that can only be built in a run (`in_run`).

        Raises:
            BadInput, RunFailed: no key, no server, no such model.
        """
        raise NotImplementedError

    def in_run(self, context: TeacherRunContext) -> Teacher:
        """Build the teacher of a run, for teachers that are asked through its label store."""
        raise NotImplementedError


def build_teacher(block: TeacherConfig, context: TeacherContext) -> Teacher | None:
    """The teacher that a block builds; None for one that can only be built in a run.

    Raises:
        BadInput: it is none, or has no name or signature.
        RunFailed: as the block says.
    """
    with blamed(block, "build"):
        teacher = block.build(context)
    return None if teacher is None else _checked(block, "build", teacher)


def teacher_in_run(block: TeacherConfig, context: TeacherRunContext) -> Teacher:
    """The teacher that a block builds in a run.

    Raises:
        BadInput, RunFailed: as `build_teacher`.
    """
    with blamed(block, "in_run"):
        teacher = block.in_run(context)
    return _checked(block, "in_run", teacher)


def _checked(block: TeacherConfig, method: str, teacher: Teacher) -> Teacher:
    if not isinstance(teacher, Teacher):
        raise BadInput(f"{type(block).__name__}.{method} must return an sl.Teacher, not {type(teacher).__name__}")
    for attribute in ("name", "signature"):
        with blamed(teacher, attribute):
            value = getattr(teacher, attribute, None)
        if not isinstance(value, str):
            place = f"{type(teacher).__name__}.{attribute}"
            raise BadInput(f"{place} must be a text, by which answers are stored, not {value!r:.80}")
    return teacher
