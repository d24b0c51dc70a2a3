"""The recipe block of a reward that is learned from a teacher's answers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import numpy as np
from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt, model_validator

from sightline.config.basics import Strict
from sightline.config.blocks import FeedbackConfig, Plugin, Reach, RewardConfig, RewardWording, TeacherConfig
from sightline.models.encoders import warn_of_cropping
from sightline.rewards.building import RewardContext, RewardSetup, RunContext
from sightline.rewards.learned.config import EmbeddingHeadConfig, FittingConfig, RewardNet
from sightline.teachers.base import TeacherContext

if TYPE_CHECKING:
    from sightline.config.recipe import ControlRecipe
    from sightline.models.encoders import Encoder
    from sightline.preferences.pebble import Pebble
    from sightline.rewards.learned.reward import LearnedReward

TEACHER, FEEDBACK = Plugin("teacher", "encoder"), Plugin("feedback", "pairs")
Teacher = Annotated[TeacherConfig, TEACHER]
Feedback = Annotated[FeedbackConfig, FEEDBACK]
PLAIN_SIZE = (64, 64)
"""Height and width of frames where nothing else asks for a size."""


class Budget(Strict):
    """What may be spent: no question is begun that would break it if it cost as much as others did, and training goes
    on with the labels that there are. (What a question costs is known after the first, which is asked alone.)"""

    questions: PositiveInt = 600
    """Questions over the whole run that a reply came to, whatever it said."""
    requests: PositiveInt | None = None
    tokens: PositiveInt | None = None
    money: PositiveFloat | None = None
    """In the currency of the teacher's prices."""


class LearnedConfig(RewardConfig):
    """A reward model learned from a teacher's answers (PEBBLE, Lee et al., ICML 2021; RL-VLM-F, Wang et al., 2024)."""

    kind: Literal["learned"] = "learned"
    teacher: Teacher = Field(default_factory=TEACHER.make_default)
    feedback: Feedback = Field(default_factory=FEEDBACK.make_default)
    model: RewardNet = EmbeddingHeadConfig()
    segment: PositiveInt = 1
    """Steps in a segment that is judged as a whole."""
    explore: NonNegativeInt = 2_000
    """Transitions that are collected for the novelty of their states, before the first question is asked."""
    every: PositiveInt = 2_000
    """Transitions between two rounds of questions."""
    questions: PositiveInt = 60
    """Questions in a round."""
    schedule: Literal["constant", "falling", "rising"] = "constant"
    """How the size of a round changes over the run: falling to nothing, or rising."""
    budget: Budget = Budget()
    lag: bool | None = None
    """Whether the answers of a round are used only when the next is due, so that training goes on meanwhile.
    Default: for teachers that take their time (chat, human)."""
    pool: PositiveInt = 2_000
    """Segments of the recent past that questions are made from."""
    fitting: FittingConfig = FittingConfig()
    scale: float = Field(default=1.0, gt=0)
    """Standard deviation, over all segments that were judged, of the rewards that the learner is given."""
    reset_critic: bool = True
    """Begin the critic anew when the first reward model takes over from exploration."""
    reset_updates: NonNegativeInt = 100
    """Updates made right after that."""
    frame_size: tuple[PositiveInt, PositiveInt] | None = None
    """Height and width of the frames; default: what the encoder reads, and 224 x 224 for chat and human teachers."""
    labels: str | None = None
    """Folder of the label store; default: `labels` in the run. Runs that share a store share what was paid for."""
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
    def _fits_together(self) -> LearnedConfig:
        self.feedback.check(self)
        self.teacher.check(self)
        if self.pool < 2 * self.questions:
            raise ValueError(f"pool={self.pool} must hold at least twice the {self.questions} questions of a round")
        return self

    def check(self, recipe: ControlRecipe) -> None:
        chunk = recipe.learner.chunk * recipe.envs
        first_lesson = -(-self.explore // chunk) * chunk
        if self.answers_lag:
            first_lesson = -(-(first_lesson + self.every) // chunk) * chunk
        if first_lesson >= recipe.steps:
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

    def sizes(self) -> Iterator[str]:
        height, width = self.shown_size(None)
        size = self.pool * self.segment * height * width * 3
        yield f"{self.pool:,} segments for questions: up to {size / 1e6:.3g} MB"

    def facts(self) -> dict[str, str]:
        return super().facts() | {
            "Teacher": self.teacher.facts(),
            "Feedback": self.feedback.facts(),
            "Reward network": self.model.facts(),
        }

    def shown_size(self, encoder: Encoder | None) -> tuple[int, int]:
        """Height and width of the frames that the teacher is shown."""
        if self.frame_size is not None:
            return self.frame_size
        if self.teacher.shown_size is not None:
            return self.teacher.shown_size
        return (encoder.image_size, encoder.image_size) if encoder else PLAIN_SIZE

    def build(self, context: RewardContext) -> RewardSetup:
        encoder = self.model.load_encoder(self.device)
        warnings: list[str] = []
        wanted = TeacherContext(context.goal, context.baseline, context.seed, self.device, encoder, warnings.append)
        teacher = self.teacher.build(wanted) if context.asks else None
        if encoder is not None:
            encoder.free_text_tower()
        size = self.shown_size(encoder)
        frame = context.first_seen(size, False)
        cropped = warn_of_cropping(encoder, frame.shape[0], frame.shape[1], "reward.model.aspect") if encoder else None
        if cropped:
            warnings.append(cropped)
        if teacher is not None:
            teacher.check_frames(frame.shape, warnings.append)
        seen = context.first_seen(size, True) if self.model.reads_states else frame
        model = self.make_reward(seen.shape, encoder, context.seed, seen.dtype)
        return RewardSetup(model, size, encoder=encoder, teacher=teacher, warnings=tuple(warnings))

    def make_reward(
        self, seen_shape: tuple[int, ...], encoder: Encoder | None, seed: int, seen_dtype: Any = np.float32
    ) -> LearnedReward:
        """The reward before it has learned anything; see `sightline.rewards.learned.reward.LearnedReward`."""
        return self.feedback.build_reward(
            self,
            seen_shape=seen_shape,
            encoder=encoder,
            seed=seed,
            seen_dtype=seen_dtype,
            scale=self.scale,
            device=self.device,
        )

    def ensemble(self, bounded: bool, **options: Any) -> LearnedReward:
        """The usual reward: an ensemble of networks that are fitted to labels."""
        from sightline.rewards.learned.reward import EnsembleReward

        return EnsembleReward(self.model, self.fitting, bounded=bounded, **options)

    def online(self, setup: RewardSetup, context: RunContext) -> Pebble:
        from sightline.labels.store import LabelStore
        from sightline.preferences.pebble import Pebble

        store = LabelStore(Path(self.labels) if self.labels else context.folder / "labels")
        return Pebble(self, setup.model, setup.teacher, store, context)  # type: ignore[arg-type]
