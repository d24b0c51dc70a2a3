"""Recipe blocks of the learners: off-policy ones, which learn from a replay buffer, and on-policy ones."""

from __future__ import annotations

import math
import re
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Discriminator, Field, NonNegativeInt, PositiveInt, Tag

from sightline.config.basics import Strict, tag_of


class ActionNoise(Strict):
    """Noise on continuous actions, scaled to [-1, 1], while exploring.

    `normal` is drawn anew for every step. `ornstein_uhlenbeck` (Uhlenbeck and Ornstein, 1930; in RL: Lillicrap et al.,
    ICLR 2016) drifts from step to step, so that it moves a body farther; it begins anew with every episode.
    """

    kind: Literal["normal", "ornstein_uhlenbeck"] = "normal"
    sigma: float = Field(ge=0, allow_inf_nan=False)
    """Standard deviation, or of the drift: per square root of `dt`."""
    mean: float = 0.0
    theta: float = Field(default=0.15, ge=0)
    """Of the drift: how fast it returns to the mean."""
    dt: float = Field(default=0.01, gt=0)
    """Of the drift: what counts as the time between two steps."""


def _noise(value: Any) -> Any:
    """`action_noise=0.1` is Gaussian noise of that deviation."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not (is_number or value is None or isinstance(value, dict | ActionNoise)):
        raise ValueError("must be a standard deviation, or a map with sigma and kind")
    if is_number:
        return {"sigma": value}
    return value


class LearnerBase(Strict):
    """Base of all learners: the keys that they share.

    Steps are transitions, summed over environments, unless said otherwise.
    """

    learning_rate: float = Field(default=1e-3, gt=0)
    learning_rate_end: float = Field(default=1.0, ge=0, le=1)
    """Learning rate schedule: the final rate as a fraction of the first; the decay is linear over the run's steps, 1
    keeps it."""
    gamma: float = Field(default=0.99, ge=0, le=1)
    chunk: PositiveInt = 32
    """Vector steps collected, then scored, between two rounds of updates."""
    hidden: tuple[PositiveInt, ...] = (128, 128)
    """Widths of the hidden layers."""
    options: dict[str, Any] = {}
    """Any further keyword arguments of the algorithm's class."""


class OffPolicyLearner(LearnerBase):
    """Base of all off-policy learners."""

    buffer_size: PositiveInt = 100_000
    batch_size: PositiveInt = 128
    tau: float | None = Field(default=None, gt=0, le=1)
    """Polyak factor of the target networks' updates; default: 1 for DQN, 0.02 for SAC, for others their own."""
    learning_starts: NonNegativeInt = 2_000
    gradient_steps: PositiveInt = 64
    """Updates in a round."""
    action_noise: Annotated[ActionNoise | None, BeforeValidator(_noise)] = None
    """Noise on continuous actions while exploring: the standard deviation of Gaussian noise, or a block; default: 0.1
    for TD3 and DDPG, as in their papers, and none for others, which explore by themselves."""


class AutoLearner(OffPolicyLearner):
    """DQN for discrete actions, SAC for continuous ones, PPO for many choices at once; what is set here goes to
    whichever it is."""

    algorithm: Literal["auto"] = "auto"


class DQNLearner(OffPolicyLearner):
    algorithm: Literal["DQN"] = "DQN"
    tau: float = Field(default=1.0, gt=0, le=1)
    target_update_interval: PositiveInt = 500
    exploration_fraction: float = Field(default=0.3, ge=0, le=1)
    exploration_final_eps: float = Field(default=0.04, ge=0, le=1)


_ENTROPY_RULE = "must be a number from 0, auto, or auto_ and the number to begin with, such as auto_0.05"


def _entropy(value: float | str) -> float | str:
    if isinstance(value, str):
        if not re.fullmatch(r"auto(_\d*\.?\d+(e-?\d+)?)?", value):
            raise ValueError(_ENTROPY_RULE)
    elif value < 0:
        raise ValueError(_ENTROPY_RULE)
    return value


class SACLearner(OffPolicyLearner):
    """SAC with other defaults than SB3's: rewards from words vary by tenths only, and an entropy coefficient that
    starts at 1 drowns them."""

    algorithm: Literal["SAC"] = "SAC"
    tau: float = Field(default=0.02, gt=0, le=1)
    ent_coef: Annotated[float | str, AfterValidator(_entropy)] = "auto_0.05"
    """Weight of the entropy, or `auto`: learned, from 1 or, with `auto_0.05`, from that."""
    use_sde: bool = False


class OnPolicyLearner(LearnerBase):
    """Base of all on-policy learners: they learn from each chunk once, after its rewards are known, and keep none."""

    learning_rate: float = Field(default=3e-4, gt=0)
    chunk: PositiveInt = 64
    batch_size: PositiveInt | None = None
    """Transitions of a minibatch, which must divide those of a chunk (`learner.chunk` x `envs`); default: about a
    quarter of them for PPO, for others their own."""
    gae_lambda: float = Field(default=0.95, ge=0, le=1)
    frames_every: PositiveInt = 1
    """Vector steps from one that is rendered and scored to the next; its reward counts for all of them. A step that
    ends an episode is always scored."""
    standardise_rewards: bool = True
    """Divide rewards by their standard deviation so far, and subtract their mean unless episodes can be terminated."""
    standardise_observations: bool = False
    """Give the policy observations less their mean so far, in standard deviations; pictures stay as they are. It helps
    where small numbers matter beside large ones, and costs short runs: inputs change while the policy learns."""
    action_cost: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    """Cost of continuous actions: this times their mean square, as shares of the greatest action, is subtracted from
    the (standardised) reward. What is logged and chosen by is the reward alone. Pictures do not show how quietly a body
    stands: it may stamp its feet and be paid the same."""
    on_policy: Literal[True] = True


class PPOLearner(OnPolicyLearner):
    """PPO (Schulman et al., 2017), for discrete and continuous actions."""

    algorithm: Literal["PPO"] = "PPO"
    epochs: PositiveInt = 5
    """Passes over a chunk."""
    clip_range: float = Field(default=0.2, gt=0)
    ent_coef: float = Field(default=0.0, ge=0)
    vf_coef: float = Field(default=0.5, ge=0)
    max_grad_norm: float = Field(default=0.5, gt=0)
    initial_std: float = Field(default=1.0, gt=0)
    """Standard deviation of continuous actions before learning; it is learned, the same for all states. With gSDE
    (`learner.options.use_sde=true`) that of the noise's weights on the last hidden layer: actions deviate five to ten
    times as much."""


def _dotted(name: str) -> str:
    if not re.fullmatch(r"\w+(\.\w+)+", name):
        raise ValueError(f"'{name}' is not auto, DQN, SAC, PPO, or the dotted name of a class such as sb3_contrib.TQC")
    return name


class OtherLearner(OffPolicyLearner):
    """Any class that follows Stable-Baselines3's off-policy algorithms, by dotted name: `sb3_contrib.TQC`."""

    algorithm: Annotated[str, AfterValidator(_dotted)]


class OtherOnPolicyLearner(OnPolicyLearner):
    """Any class that follows Stable-Baselines3's on-policy algorithms, by dotted name and `on_policy=true`: the name
    does not tell, and reading a recipe imports nothing."""

    algorithm: Annotated[str, AfterValidator(_dotted)]


def _learner_tag(value: Any) -> str:
    algorithm = tag_of(value, "algorithm", "auto")
    if algorithm in ("auto", "DQN", "SAC", "PPO"):
        return algorithm
    # The name of a class does not tell which kind of learner it is, and reading a recipe imports nothing.
    if tag_of(value, "on_policy", "False") == "True":
        return "other on-policy"
    return "other"


LearnerConfig = Annotated[
    Annotated[AutoLearner, Tag("auto")]
    | Annotated[DQNLearner, Tag("DQN")]
    | Annotated[SACLearner, Tag("SAC")]
    | Annotated[PPOLearner, Tag("PPO")]
    | Annotated[OtherLearner, Tag("other")]
    | Annotated[OtherOnPolicyLearner, Tag("other on-policy")],
    Discriminator(_learner_tag),
]


def nearest_divisor(of: int, to: int) -> int:
    """The divisor of a number from 2 on that is nearest to another number, for sizes of minibatches."""
    divisors = set[int]()
    # Divisors come in pairs, of which one is at most the square root.
    for small in range(1, math.isqrt(of) + 1):
        if of % small == 0:
            divisors.update((small, of // small))
    divisors.discard(1)
    return min(sorted(divisors), key=lambda divisor: abs(divisor - to), default=of)
