"""What a recipe may say about where the reward comes from."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Discriminator, Field, NonNegativeInt, PositiveInt, Tag, model_validator

from sightline.config.basics import Strict, tag_of
from sightline.config.teachers import Budget, EncoderTeacherConfig, TeacherConfig

Dtype = Literal["auto", "float32", "float16", "bfloat16"]


class ZeroShotConfig(Strict):
    """The similarity of a frame to the goal's words, regularised towards the direction from baseline to goal."""

    kind: Literal["zero_shot"] = "zero_shot"
    encoder: str = "bundled"
    """`bundled`, `Architecture/tag` (open_clip), `hf:owner/name`, `local-dir:/path` (open_clip format)."""
    alpha: float | None = Field(default=None, ge=0, le=1)
    """Strength of the regularisation in [0, 1]; without baseline there is none. Default 0.5."""
    batch_size: PositiveInt = 256
    """Frames per forward pass of the image tower."""
    device: str = "auto"
    dtype: Dtype = "auto"
    keep_embeddings: bool = False
    """Keep every frame's embedding (float16) beside its transition, so that other words need no new frames."""


class GroundTruthConfig(Strict):
    """The environment's own reward, through the same path as every other."""

    kind: Literal["ground_truth"]
    scale: float = Field(default=1.0, gt=0)
    """What the learner is given is the reward times this; what is reported is not."""


class SparseConfig(Strict):
    """1 in states that the environment calls a success, otherwise 0."""

    kind: Literal["sparse"]


class EmbeddingHeadConfig(Strict):
    """A small network on a frozen encoder's embeddings: every frame is read once, and relabelling is nearly free."""

    kind: Literal["embeddings"] = "embeddings"
    encoder: str = "bundled"
    hidden: tuple[PositiveInt, ...] = (64, 64)
    dtype: Dtype = "auto"


class CNNConfig(Strict):
    """The convolutional network of RL-VLM-F (Wang et al., ICML 2024), on frames."""

    kind: Literal["cnn"]
    channels: tuple[PositiveInt, ...] = (16, 32, 64, 128)
    size: tuple[PositiveInt, PositiveInt] = (84, 84)
    """Height and width at which frames are kept and read; what the teacher is shown may be larger."""


class ResNetConfig(Strict):
    """A ResNet-18 from random weights, on frames."""

    kind: Literal["resnet"]
    size: tuple[PositiveInt, PositiveInt] = (84, 84)


class StatesConfig(Strict):
    """A network on the states that were reached, without pictures (the teacher still sees them)."""

    kind: Literal["states"]
    hidden: tuple[PositiveInt, ...] = (256, 256, 256)


RewardNetConfig = Annotated[
    Annotated[EmbeddingHeadConfig, Tag("embeddings")]
    | Annotated[CNNConfig, Tag("cnn")]
    | Annotated[ResNetConfig, Tag("resnet")]
    | Annotated[StatesConfig, Tag("states")],
    Discriminator(lambda value: tag_of(value, "kind", "embeddings")),
]

PairSampler = Literal[
    "uniform", "disagreement", "entropy", "k_center", "k_center_disagreement", "k_center_entropy"
]  # fmt: skip


class PairsConfig(Strict):
    """Which of two segments is nearer to the goal (Christiano et al., 2017)."""

    kind: Literal["pairs"] = "pairs"
    sampler: PairSampler = "uniform"
    candidates: PositiveInt = 10
    """Candidate pairs per question, from which the active samplers choose."""
    loss: Literal["cross_entropy", "noise_aware", "symmetric"] = "cross_entropy"
    """`noise_aware` assumes that a share `noise` of the labels is wrong; `symmetric` adds reverse cross-entropy."""
    noise: float = Field(default=0.2, gt=0, lt=0.5)
    """Share of wrong labels that `noise_aware` assumes."""
    ties: bool = True
    """Learn from pairs that were called equal (target one half); otherwise they are set aside."""


class RatingsConfig(Strict):
    """How good is this segment, on a few levels (ERL-VLM, Luu et al., ICML 2025)."""

    kind: Literal["ratings"]
    levels: int = Field(default=3, ge=2, le=5)


class ScoresConfig(Strict):
    """How good is this segment, from 0 to 1."""

    kind: Literal["scores"]


class LadderConfig(Strict):
    """An Elo ladder of candidate goal frames; the reward is nearness to its top (GoalLadder, NeurIPS 2025)."""

    kind: Literal["ladder"]
    size: int = Field(default=10, ge=2)
    """Candidates on the ladder."""
    k_factor: float = Field(default=32.0, gt=0)
    """How far one comparison moves a rating."""


FeedbackConfig = Annotated[
    Annotated[PairsConfig, Tag("pairs")]
    | Annotated[RatingsConfig, Tag("ratings")]
    | Annotated[ScoresConfig, Tag("scores")]
    | Annotated[LadderConfig, Tag("ladder")],
    Discriminator(lambda value: tag_of(value, "kind", "pairs")),
]


class FittingConfig(Strict):
    """How the reward networks are fitted to the labels after each round."""

    ensemble: PositiveInt = 3
    epochs: PositiveInt = 60
    """At most; fitting stops when the held-out loss has not fallen for `patience` epochs."""
    patience: PositiveInt = 10
    held_out: float = Field(default=0.2, ge=0, lt=1)
    """Share of the labels that is never trained on and tells when to stop; 0 trains all epochs on everything."""
    learning_rate: float = Field(default=1e-3, gt=0)
    weight_decay: float = Field(default=1e-3, ge=0)
    batch_size: PositiveInt = 64
    fresh: bool = True
    """Begin from the first weights in every round; otherwise from those of the round before (large networks)."""


class LearnedConfig(Strict):
    """A reward model learned from a teacher's answers (PEBBLE, Lee et al., ICML 2021; RL-VLM-F, Wang et al., 2024)."""

    kind: Literal["learned"]
    teacher: TeacherConfig = EncoderTeacherConfig()
    feedback: FeedbackConfig = PairsConfig()
    model: RewardNetConfig = EmbeddingHeadConfig()
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

    @property
    def answers_lag(self) -> bool:
        """`lag`, or what is usual for the teacher."""
        return self.teacher.kind in ("chat", "human") if self.lag is None else self.lag

    @model_validator(mode="after")
    def _fits_together(self) -> LearnedConfig:
        if self.feedback.kind == "ladder" and self.model.kind != "embeddings":
            raise ValueError("feedback.kind=ladder measures nearness between embeddings; say model.kind=embeddings")
        if self.feedback.kind == "ladder" and self.segment != 1:
            raise ValueError("feedback.kind=ladder judges single frames; say segment=1")
        if self.teacher.kind == "scripted" and self.feedback.kind in ("ratings", "scores") and self.teacher.skip:
            raise ValueError("teacher.skip is about pairs; leave it out with feedback.kind=ratings or scores")
        if self.pool < 2 * self.questions:
            raise ValueError(f"pool={self.pool} must hold at least twice the {self.questions} questions of a round")
        return self


RewardConfig = Annotated[
    Annotated[ZeroShotConfig, Tag("zero_shot")]
    | Annotated[GroundTruthConfig, Tag("ground_truth")]
    | Annotated[SparseConfig, Tag("sparse")]
    | Annotated[LearnedConfig, Tag("learned")],
    Discriminator(lambda value: tag_of(value, "kind", "zero_shot")),
]
