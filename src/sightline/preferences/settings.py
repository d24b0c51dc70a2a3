"""Settings of a reward that is learned from a teacher's answers, as keys of a recipe."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import BeforeValidator, Field, NonNegativeInt, PositiveInt, model_validator

from sightline.config.blocks import Plugin, Reach, RewardWording
from sightline.preferences.feedback.base import FeedbackConfig
from sightline.preferences.labelling import Budget
from sightline.rewards.config import RewardConfig
from sightline.rewards.learned.config import EmbeddingHeadConfig, FittingConfig, RewardNet
from sightline.teachers.base import TeacherConfig

if TYPE_CHECKING:
    from sightline.config.recipe import AgentRecipe, ControlRecipe
    from sightline.models.encoder_base import Encoder


def _separated(stores: object) -> object:
    """Folders of a text that are separated by commas."""
    if not isinstance(stores, str):
        return stores
    return [folder.strip() for folder in stores.split(",") if folder.strip()]


TEACHER = Plugin("teacher", "encoder")
FEEDBACK = Plugin("feedback", "pairs")
Teacher = Annotated[TeacherConfig, TEACHER]
Feedback = Annotated[FeedbackConfig, FEEDBACK]
PLAIN_SIZE = (64, 64)
"""Height and width of frames where nothing else asks for a size."""


class LearnedSettings(RewardConfig):
    """A reward model learned from a teacher's answers (PEBBLE, Lee et al., ICML 2021; RL-VLM-F, Wang et al., 2024)."""

    kind: str = "learned"
    teacher: Teacher = Field(default_factory=TEACHER.make_default)
    feedback: Feedback = Field(default_factory=FEEDBACK.make_default)
    model: RewardNet = EmbeddingHeadConfig()
    segment: PositiveInt = 1
    """Steps in a segment that is judged as a whole."""
    explore: NonNegativeInt = 2_000
    """Transitions that are collected for the novelty of their states, before the first question is asked."""
    every: PositiveInt = 2_000
    """Transitions between two rounds of questions."""
    questions: NonNegativeInt = 60
    """Questions in a round; 0 asks nobody, and learns from `labels_from` alone."""
    schedule: Literal["constant", "falling", "rising"] = "constant"
    """Query schedule, the size of a round over the run: constant, falling to nothing, or rising."""
    budget: Budget = Budget()
    lag: bool | None = None
    """Use the answers of a round only when the next is due, so that training goes on meanwhile.
    Default: for teachers that take their time (chat, human)."""
    pool: PositiveInt = 2_000
    """Segments of the recent past that questions are made from."""
    fitting: FittingConfig = FittingConfig()
    scale: float = Field(default=1.0, gt=0)
    """Standard deviation, over all segments that were judged, of the rewards that the learner is given."""
    reset_critic: bool = True
    """Reset the critic when the first reward model takes over from exploration."""
    reset_updates: NonNegativeInt = 100
    """Policy updates right after the critic's reset."""
    frame_size: tuple[PositiveInt, PositiveInt] | None = None
    """Height and width of the frames; default: what the encoder reads, and 224 x 224 for chat and human teachers."""
    labels: str | None = None
    """Folder of the label store; default: `labels` in the run. Runs that share a store share its answers."""
    labels_from: Annotated[tuple[str, ...], BeforeValidator(_separated)] = ()
    """Folders of label stores, or of runs with one, separated by commas: their labels are learned from before the first
    question is asked, and beside the answers to it."""
    labels_any_goal: bool = False
    """Learn from labels of `labels_from` that are for another goal, too."""
    labels_resize: bool = False
    """Learn from labels of `labels_from` about frames of another size, too."""
    device: str = "auto"

    wording: ClassVar[RewardWording] = RewardWording(
        "Learned reward",
        "What the learned reward likes",
        "the learned reward is higher",
        "The teacher was understood",
    )

    @property
    def answers_lag(self) -> bool:
        """`lag`, or what is usual for the teacher."""
        return self.teacher.lags if self.lag is None else self.lag

    @property
    def needs_words(self) -> bool:
        return self.teacher.needs_words

    @property
    def words_alpha(self) -> float | None:
        return self.teacher.words_alpha

    @property
    def label_store(self) -> str | None:
        return self.labels

    @property
    def feature_bytes(self) -> float | None:
        return self.model.feature_bytes

    @model_validator(mode="after")
    def _fits_together(self) -> LearnedSettings:
        self.feedback.check(self.model, self.segment)
        self.teacher.check(self.feedback.question)
        if self.budget.money is not None:
            self.teacher.check_priced()
        if self.questions == 0 and not self.labels_from:
            raise ValueError("questions=0 asks nobody; say labels_from=STORE to learn from labels that there are")
        if self.pool < 2 * self.questions:
            raise ValueError(f"pool={self.pool} must hold at least twice the {self.questions} questions of a round")
        return self

    def check(self, recipe: ControlRecipe | AgentRecipe) -> None:
        if recipe.role == "agent":
            if self.model.reads_states:
                raise ValueError("reward.model.kind=states reads states, and an agent sees pictures; choose another")
            return  # its updates have no chunks of fixed length
        # Questions are asked, and answers learned from, between two chunks: steps are rounded up to whole ones.
        chunk = recipe.learner.chunk * recipe.envs
        first_lesson = -(-self.explore // chunk) * chunk
        if self.answers_lag:
            first_lesson = -(-(first_lesson + self.every) // chunk) * chunk
        if first_lesson >= recipe.steps and not self.labels_from:
            raise ValueError(
                f"the first lesson would come at step {first_lesson} and the run ends at {recipe.steps}: lower "
                "reward.explore or reward.every, or raise steps"
            )
        if self.segment > recipe.learner.chunk:
            raise ValueError(
                f"reward.segment={self.segment} is longer than learner.chunk={recipe.learner.chunk}: segments are "
                "cut out of a chunk"
            )

    def reaches(self) -> Iterator[Reach]:
        for key, value, what in self.teacher.reaches():
            yield f"teacher.{key}", value, what
        if self.labels:
            yield "labels", self.labels, "a label store elsewhere that would be written to"
        for folder in self.labels_from:
            yield "labels_from", folder, "a label store elsewhere that would be read"

    def sizes(self) -> Iterator[str]:
        height, width = self.shown_size(None)
        size = self.pool * self.segment * height * width * 3
        yield f"{self.pool:,} segments for questions: up to {size / 1e6:.3g} MB"

    def facts(self) -> dict[str, str]:
        facts = super().facts() | {
            "Teacher": self.teacher.facts() if self.questions else "nobody is asked",
            "Feedback": self.feedback.facts(),
            "Reward network": self.model.facts(),
        }
        if self.labels_from:
            facts["Labels from"] = ", ".join(self.labels_from)
        return facts

    def shown_size(self, encoder: Encoder | None) -> tuple[int, int]:
        """Height and width of the frames that the teacher is shown."""
        if self.frame_size is not None:
            return self.frame_size
        if self.questions and self.teacher.shown_size is not None:
            return self.teacher.shown_size
        if encoder is not None:
            return encoder.image_size, encoder.image_size
        return PLAIN_SIZE
