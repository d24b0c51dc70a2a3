"""Recipe blocks of teachers: what the rest may ask of any, and what one is told when its teacher is made."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from sightline.config.basics import Strict
from sightline.config.blocks import Reach
from sightline.labels.types import QuestionKind, Teacher

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


class TeacherConfig(Strict):
    """Base of all teacher blocks."""

    kind: str
    lags: ClassVar[bool] = False
    """Whether it takes its time, so that training should go on while it is asked."""
    shown_size: ClassVar[tuple[int, int] | None] = None
    """Height and width of frames that it judges well; None where it does not matter."""
    knows_truth: ClassVar[bool] = False
    """Whether it answers from the environment's own reward."""
    needs_words: ClassVar[bool] = True

    @property
    def words_alpha(self) -> float | None:
        """See `RewardConfig`."""
        return None

    @property
    def judges_by_own_words(self) -> bool:
        """Whether it judges by the words that it was made with, whatever a question says."""
        return False

    def check(self, question: QuestionKind) -> None:
        """Refuse a kind of question that does not go with these settings.

        Raises:
            ValueError: in one line.
        """

    def reaches(self) -> Iterator[Reach]:
        """See `RewardConfig`."""
        return iter(())

    def facts(self) -> str:
        """The teacher in a few words."""
        return self.kind

    def build(self, context: TeacherContext) -> Teacher | None:
        """The teacher, reached and known to answer; None for one that can only be made in a run (`in_run`).

        Raises:
            BadInput, RunFailed: no key, no server, no such model.
        """
        raise NotImplementedError

    def in_run(self, context: TeacherRunContext) -> Teacher:
        """The teacher of a run, for those that need its label store to be asked."""
        raise NotImplementedError
