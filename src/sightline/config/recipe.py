"""A whole run."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import NonNegativeInt, PositiveInt, model_validator

from sightline.config.basics import Sentences, Strict, check_words
from sightline.config.learners import AutoLearner, Learner
from sightline.config.rewards import LearnedConfig, Reward, ZeroShotConfig


class Evaluation(Strict):
    """Deterministic episodes on fixed panels of seeds. Checkpoints are chosen on one panel and reported on another."""

    every: PositiveInt | None = None
    """Steps between evaluations on the validation panel; default: a tenth of the run."""
    episodes: PositiveInt = 16
    """Episodes of the validation panel."""
    test_episodes: PositiveInt = 100
    """Episodes of the test panel, played once at the end by the chosen checkpoint."""


class Checkpoints(Strict):
    every: PositiveInt | None = None
    """Steps between checkpoints; default: a tenth of the run."""
    keep: PositiveInt = 2
    """How many of the latest to keep (each can be resumed from); the best by evaluation is kept apart."""


class Recipe(Strict):
    """A whole run."""

    description: str = ""
    env: str
    """A task of ours (`sightline tasks`), a Gymnasium id, or `module:attribute` of your own."""
    env_options: dict[str, Any] = {}
    """Keyword arguments for the environment."""
    goal: Sentences = ()
    """One sentence, or several to be averaged, that describe what the picture should show."""
    baseline: Sentences = ()
    """The same for what it shows anyway."""
    steps: PositiveInt = 40_000
    """Transitions to collect, summed over environments; rounded up to whole chunks (`learner.chunk` x `envs`)."""
    seed: NonNegativeInt = 0
    envs: PositiveInt = 8
    """Environments stepped together."""
    workers: Literal["inline", "processes"] = "inline"
    """`inline` steps all environments in this process; `processes` gives each its own (for heavy simulators)."""
    rescale_observations: bool = False
    """Show the learner observations that are scaled to [-1, 1] by the bounds of the environment's space."""
    episode_steps: PositiveInt | None = None
    """Time limit of an episode, instead of the environment's own."""
    reward: Reward = ZeroShotConfig()
    learner: Learner = AutoLearner()
    evaluation: Evaluation = Evaluation()
    checkpoints: Checkpoints = Checkpoints()
    videos: bool = True
    tensorboard: bool = True
    wandb: str | None = None
    """Name of a Weights & Biases project to log to as well."""
    device: str = "auto"
    """Where the policy learns."""
    threads: PositiveInt = 1
    """Threads per tensor operation on the CPU; small networks are fastest with one."""

    @model_validator(mode="after")
    def _words_make_sense(self) -> Recipe:
        if isinstance(self.reward, ZeroShotConfig):
            check_words(self.goal, self.baseline, self.reward.alpha, goal_required=False)
        return self

    @model_validator(mode="after")
    def _buffer_holds_two_chunks(self) -> Recipe:
        if self.learner.buffer_size < 2 * self.learner.chunk * self.envs:
            raise ValueError(
                f"learner.buffer_size={self.learner.buffer_size} is too small: it must hold two chunks of "
                f"learner.chunk x envs = {self.learner.chunk * self.envs} transitions"
            )
        return self

    @model_validator(mode="after")
    def _teacher_is_asked(self) -> Recipe:
        if isinstance(self.reward, LearnedConfig):
            chunk = self.learner.chunk * self.envs
            first_lesson = -(-self.reward.explore // chunk) * chunk
            if self.reward.answers_lag:
                first_lesson = -(-(first_lesson + self.reward.every) // chunk) * chunk
            if first_lesson >= self.steps:
                raise ValueError(
                    f"the first lesson would come at step {first_lesson} and the run ends at {self.steps}: lower "
                    "reward.explore or reward.every, or raise steps"
                )
        return self

    @model_validator(mode="after")
    def _chunks_hold_segments(self) -> Recipe:
        if isinstance(self.reward, LearnedConfig) and self.reward.segment > self.learner.chunk:
            raise ValueError(
                f"reward.segment={self.reward.segment} is longer than learner.chunk={self.learner.chunk}: segments are "
                "cut out of a chunk"
            )
        return self
