"""Recipe blocks of the off-policy learners."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Discriminator, Field, NonNegativeInt, PositiveInt, Tag

from sightline.config.basics import Strict, tag_of


class LearnerBase(Strict):
    """Base of all off-policy learners: the keys that they share.

    Steps are transitions, summed over environments, unless said otherwise.
    """

    learning_rate: float = Field(default=1e-3, gt=0)
    learning_rate_end: float = Field(default=1.0, ge=0, le=1)
    """Final learning rate as a fraction of its start; the decay is linear."""
    buffer_size: PositiveInt = 100_000
    batch_size: PositiveInt = 128
    gamma: float = Field(default=0.99, ge=0, le=1)
    tau: float | None = Field(default=None, gt=0, le=1)
    """Polyak factor of the target networks' updates; default: 1 for DQN, 0.02 for SAC, for others their own."""
    learning_starts: NonNegativeInt = 2_000
    chunk: PositiveInt = 32
    """Vector steps collected, then scored, between two rounds of updates."""
    gradient_steps: PositiveInt = 64
    """Updates in a round."""
    hidden: tuple[PositiveInt, ...] = (128, 128)
    """Widths of the hidden layers."""
    action_noise: float | None = Field(default=None, ge=0, allow_inf_nan=False)
    """Standard deviation of the Gaussian noise on continuous actions (scaled to [-1, 1]) while exploring; default: 0.1
    for TD3 and DDPG, as in their papers, and none for others, which explore by themselves."""
    options: dict[str, Any] = {}
    """Any further keyword arguments of the algorithm's class."""


class AutoLearner(LearnerBase):
    """DQN for discrete actions, SAC for continuous ones; what is set here goes to whichever it is."""

    algorithm: Literal["auto"] = "auto"


class DQNLearner(LearnerBase):
    algorithm: Literal["DQN"] = "DQN"
    tau: float = Field(default=1.0, gt=0, le=1)
    target_update_interval: PositiveInt = 500
    exploration_fraction: float = Field(default=0.3, ge=0, le=1)
    exploration_final_eps: float = Field(default=0.04, ge=0, le=1)


def _entropy(value: float | str) -> float | str:
    wrong = not re.fullmatch(r"auto(_\d*\.?\d+(e-?\d+)?)?", value) if isinstance(value, str) else value < 0
    if wrong:
        raise ValueError("must be a number from 0, auto, or auto_ and the number to begin with, such as auto_0.05")
    return value


class SACLearner(LearnerBase):
    """SAC with other defaults than SB3's: rewards from words vary by tenths only, and an entropy coefficient that
    starts at 1 drowns them."""

    algorithm: Literal["SAC"] = "SAC"
    tau: float = Field(default=0.02, gt=0, le=1)
    ent_coef: Annotated[float | str, AfterValidator(_entropy)] = "auto_0.05"
    """Weight of the entropy, or `auto`: learned, from 1 or, with `auto_0.05`, from that."""
    use_sde: bool = False


def _dotted(name: str) -> str:
    if not re.fullmatch(r"\w+(\.\w+)+", name):
        raise ValueError(f"'{name}' is not auto, DQN, SAC, or the dotted name of a class such as sb3_contrib.TQC")
    return name


class OtherLearner(LearnerBase):
    """Any class that follows Stable-Baselines3's off-policy algorithms, by dotted name: `sb3_contrib.TQC`."""

    algorithm: Annotated[str, AfterValidator(_dotted)]


def _learner_tag(value: Any) -> str:
    algorithm = tag_of(value, "algorithm", "auto")
    return algorithm if algorithm in ("auto", "DQN", "SAC") else "other"


LearnerConfig = Annotated[
    Annotated[AutoLearner, Tag("auto")]
    | Annotated[DQNLearner, Tag("DQN")]
    | Annotated[SACLearner, Tag("SAC")]
    | Annotated[OtherLearner, Tag("other")],
    Discriminator(_learner_tag),
]
