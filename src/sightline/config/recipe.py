"""Recipes of whole runs: a policy on states, or an agent."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, ClassVar, Literal

from pydantic import (
    BeforeValidator,
    Discriminator,
    Field,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    Tag,
    model_validator,
)

from sightline.config.agents import (
    AgentEvaluation,
    AlarmSettings,
    ModelConfig,
    Replies,
    Rollouts,
    Update,
    WarmStart,
)
from sightline.config.basics import MAX_SEED, Baseline, Episodes, Goal, Strict, Workers, tag_of
from sightline.config.blocks import AlgorithmBlock, NameOf, Plugin, Reach, RewardWording
from sightline.config.learners import AutoLearner, LearnerConfig, OffPolicyLearner, OnPolicyLearner, nearest_divisor


class RewardBlock(Strict):
    """Base of reward blocks: the interface that the rest of a recipe uses, whichever block it is.

    Rewards subclass `sightline.rewards.config.RewardConfig`, which can also make the reward model.
    """

    kind: str
    wording: ClassVar[RewardWording] = RewardWording()

    @property
    def needs_words(self) -> bool:
        """True if the recipe must have a goal."""
        return False

    @property
    def needs_frames(self) -> bool:
        """True if the reward model or the teacher looks at frames."""
        return True

    @property
    def reads_own_reward(self) -> bool:
        """True if what is learned comes from the environment's own reward, which has to be a number then."""
        return False

    @property
    def reads_success(self) -> bool:
        """True if success is learned from, so that the environment must state it."""
        return False

    @property
    def judges_single_frames(self) -> bool:
        """True if each reward is of one picture alone, so that a panel's reward can be measured on some of them."""
        return False

    @property
    def words_alpha(self) -> float | None:
        """The strength of goal-baseline regularisation that the words have to go with."""
        return None

    @property
    def feature_bytes(self) -> float | None:
        """Bytes that are kept beside each transition for relabelling; None where they are not known yet."""
        return 0.0

    @property
    def feature_source(self) -> str | None:
        """What `embed` gives, in words: rewards of equal words score the same features. None: nobody else's."""
        return None

    @property
    def frame_pixels(self) -> int | None:
        """Pixels that are kept of a frame at most, until it is scored; None if it keeps its size, or if that is not
        known yet."""
        return None

    @property
    def label_store(self) -> str | None:
        """The folder of a label store outside of the run, if it has one."""
        return None

    @property
    def teaching(self) -> Any:
        """Settings of the questions to a teacher (`sightline.preferences.settings.LearnedSettings`); None if no
        teacher is asked."""
        return None

    def check(self, recipe: ControlRecipe | AgentRecipe) -> None:
        """Refuse a recipe that does not go with this block.

        Raises:
            ValueError: in one line.
        """

    def reaches(self) -> Iterator[Reach]:
        """Addresses and folders outside of this machine and the run folder, with keys relative to the block."""
        return iter(())

    def places(self) -> Iterator[str]:
        """Keys, relative to the block, that say where something is and nothing of what comes out: they tell no two
        runs apart, and a run that goes on may be given others."""
        return iter(())

    def sizes(self) -> Iterator[str]:
        """Further things that a run holds in memory and on disk, each in a few words with its size."""
        return iter(())

    def facts(self) -> dict[str, str]:
        """The block in a few words for a report: heading -> text."""
        return {"Reward": self.kind.replace("_", " ")}


REWARD = Plugin("reward", "zero_shot")
ALGORITHM = Plugin("algorithm", "ppo")
AGENT_REWARD = Plugin("reward", "ground_truth")


class Evaluation(Strict):
    """Deterministic episodes on fixed panels of seeds. Checkpoints are chosen on one panel and reported on another."""

    every: PositiveInt | None = None
    """Steps between evaluations on the validation panel; default: a tenth of the run, or more where evaluation would
    take more steps than training (`control/panel_sizes.py`)."""
    episodes: Episodes | None = None
    """Episodes of the validation panel; default: 16, or fewer where episodes are long beside the run."""
    test_episodes: Episodes | None = None
    """Episodes of the test panel, played once at the end by the chosen checkpoint; default: 100, or fewer where
    episodes are long beside the run, and never less than 20."""
    untrained_episodes: Episodes | None = None
    """Episodes of the test panel that the untrained policy plays; default: the first 20."""
    score_every: PositiveInt | None = None
    """Steps of an episode from one whose picture is made and rewarded to the next; its last one always is. States,
    returns and success are of all steps. Default: 4 for rewards of single pictures, else 1."""
    background: bool | Literal["auto"] = "auto"
    """Evaluate in a process of its own while training goes on, which changes no number. `auto`: in runs of 30 000 steps
    or more, on a CPU with several cores."""

    @model_validator(mode="after")
    def _check_untrained(self) -> Evaluation:
        if self.untrained_episodes and self.test_episodes and self.untrained_episodes > self.test_episodes:
            raise ValueError(
                f"untrained_episodes={self.untrained_episodes} are the first of test_episodes={self.test_episodes}; "
                "lower the one or raise the other"
            )
        return self


class Checkpoints(Strict):
    every: PositiveInt | None = None
    """Steps between checkpoints; default: a tenth of the run."""
    keep: PositiveInt = 2
    """Number of the latest checkpoints to keep (each can be resumed from); the best by evaluation is kept apart."""


class Videos(Strict):
    final: bool = True
    """Film the chosen policy at the end (and, for a policy on states, the untrained one)."""
    every: PositiveInt | None = None
    """Steps between videos of a validation episode while training goes on; default: none."""


def _video_settings(value: Any) -> Any:
    """`videos=false` leaves out all videos, `videos=true` is the default."""
    if isinstance(value, bool):
        return {"final": value}
    return value


class RecipeBase(Strict):
    """Base of all recipes: the keys that every run has."""

    description: str = ""
    env: Annotated[str, NameOf("env")]
    """A task or game of ours (`sightline tasks`), a Gymnasium id, or `module:attribute` of your own."""
    env_options: dict[str, Any] = {}
    """Keyword arguments for the environment."""
    episode_steps: PositiveInt | None = None
    """Time limit of an episode, instead of the environment's own."""
    workers: Workers = "inline"
    """`inline` steps all environments in this process, one after the other; `processes` steps them at the same time, in
    training and in evaluation, for heavy simulators: each has a process of its own, and those of agents share as many
    as there are cores."""
    step_timeout: PositiveFloat | None = None
    """Seconds that a step or a reset of the environment may take with `workers=processes`: the process of one that
    takes longer is ended and started again, as one that dies is; null: as long as it wants."""
    success_from: str | None = None
    """What says that a state is a success: the key of an info, or `reward` for a positive one; default: the task's,
    else the infos `success` and `is_success`."""
    goal: Goal = ()
    """One sentence, or several to be averaged, that describe what the picture should show; left out: the task's own."""
    baseline: Baseline = ()
    """Baseline sentences: what the picture shows anyway; left out: that of the task's own goal; null: none."""
    seed: Annotated[int, Field(ge=0, le=MAX_SEED)] = 0
    checkpoints: Checkpoints = Checkpoints()
    videos: Annotated[Videos, BeforeValidator(_video_settings)] = Videos()
    tensorboard: bool = True
    wandb: Annotated[str, Field(min_length=1)] | None = None
    """Name of a Weights & Biases project to log to as well."""
    device: str = "auto"
    """Device on which the policy learns: `auto`, `cpu`, `cuda`, …."""
    threads: Annotated[int, Field(ge=1, le=4096)] = 1
    """Threads per tensor operation on the CPU; small networks are fastest with one."""

    @model_validator(mode="after")
    def _step_timeout_can_be_kept(self) -> RecipeBase:
        if self.step_timeout is not None and self.workers != "processes":
            raise ValueError(
                "step_timeout ends the process of an environment that does not answer, and with workers=inline it has "
                "none; say workers=processes"
            )
        return self


class ReplayDataset(Strict):
    """A data set whose transitions lie in the replay buffer before the first step."""

    path: str
    """Folder of a LeRobotDataset v3, of Minari, or of pictures with a table."""
    camera: str | None = None
    """Which of several cameras the reward sees."""
    digest: str | None = None
    """SHA-256 of its files, hexadecimal; another data set of that path is refused. Default: that of the files there."""
    transitions: PositiveInt | None = None
    """How many it holds; default: counted."""


def _path_of_dataset(value: Any) -> Any:
    """`dataset=DIR` names its path alone."""
    return {"path": value} if isinstance(value, str) else value


def _names_of_parts(value: Any) -> Any:
    """One name, or several; parts of tuples are numbered."""
    if value is None:
        return ()
    keys = value if isinstance(value, list | tuple) else [value]
    # True is an int too, and no number of a part.
    return tuple(str(key) if type(key) is int else key for key in keys)


class ControlRecipe(RecipeBase):
    """A policy on states that learns from a VLM as reward or teacher."""

    role: Literal["control"] = "control"
    steps: PositiveInt = 40_000
    """Transitions to collect, summed over environments; rounded up to whole chunks (`learner.chunk` x `envs`)."""
    envs: PositiveInt = 8
    """Environments stepped together."""
    training_options: dict[str, Any] | None = None
    """Keyword arguments for the environment that differ in training from those of evaluation, such as simpler
    and faster physics; left out: the task's own."""
    rescale_observations: bool = False
    """Show the learner observations that are scaled to [-1, 1] by the bounds of the environment's space."""
    observation_keys: Annotated[tuple[str, ...], BeforeValidator(_names_of_parts)] = ()
    """Parts of a dictionary or tuple of observations that the policy reads, such as `[image, robot.joints]`; left out:
    all that can be."""
    reward: Annotated[RewardBlock, REWARD] = Field(default_factory=REWARD.make_default)
    replay: str | None = None
    """A run folder whose stored transitions are learned from; nothing is collected then. It must have kept its
    embeddings (`reward.keep_embeddings=true`)."""
    dataset: Annotated[ReplayDataset | None, BeforeValidator(_path_of_dataset)] = None
    """A data set (`sightline collect`, LeRobot, Minari) that fills the replay buffer before the first step, rewarded by
    this run's reward; its transitions do not count as steps."""
    learner: LearnerConfig = AutoLearner()
    evaluation: Evaluation = Evaluation()

    @model_validator(mode="after")
    def _reward_fits(self) -> ControlRecipe:
        self.reward.check(self)
        return self

    @model_validator(mode="after")
    def _buffer_holds_two_chunks(self) -> ControlRecipe:
        # The rewards of a chunk come while the next one is collected: both are in the buffer then.
        chunk = self.learner.chunk * self.envs
        if isinstance(self.learner, OffPolicyLearner) and self.learner.buffer_size < 2 * chunk:
            raise ValueError(
                f"learner.buffer_size={self.learner.buffer_size} is too small: it must hold two chunks of "
                f"learner.chunk x envs = {chunk} transitions"
            )
        return self

    @model_validator(mode="after")
    def _dataset_has_a_buffer(self) -> ControlRecipe:
        if self.dataset is None:
            return self
        if isinstance(self.learner, OnPolicyLearner):
            raise ValueError(
                f"dataset: {self.learner.algorithm} learns on-policy and has no replay buffer; say "
                "learner.algorithm=auto, or leave out dataset"
            )
        if self.replay is not None:
            raise ValueError("dataset and replay both fill the replay buffer; leave one of them out")
        return self

    @model_validator(mode="after")
    def _chunk_can_be_divided(self) -> ControlRecipe:
        learner = self.learner
        if not isinstance(learner, OnPolicyLearner):
            return self
        if self.replay is not None:
            raise ValueError(
                f"replay: {learner.algorithm} learns on-policy, from what it has just collected itself; say "
                "learner.algorithm=auto, or leave out replay"
            )
        if learner.chunk % learner.frames_every:
            raise ValueError(
                f"learner.chunk={learner.chunk} must be a multiple of learner.frames_every={learner.frames_every}"
            )
        chunk = learner.chunk * self.envs
        size = learner.batch_size
        # A minibatch of one has no deviation, by which advantages are divided.
        if size is not None and (chunk % size or size == 1):
            raise ValueError(
                f"learner.batch_size={size} must divide the learner.chunk x envs = {chunk} transitions of a chunk; say "
                f"learner.batch_size={nearest_divisor(chunk, size)}"
            )
        return self


def _names_of_actions(value: Any) -> Any:
    """Names of actions as text, in a list or as the keys of a map; 1 is a name, too."""
    if not isinstance(value, list | tuple | dict):
        return value
    # Turned into text, `no` would become "False", and the action could not be named.
    if any(name is None or isinstance(name, bool) for name in value):
        raise ValueError(
            "YAML reads yes, no, on, off and null as other things than text; put names of actions in quotes"
        )
    if isinstance(value, dict):
        return {str(name): does for name, does in value.items()}
    return [str(name) for name in value]


class AgentRecipe(RecipeBase):
    """A vision-language model that plays a game and learns from it."""

    role: Literal["agent"] = "agent"
    steps: NonNegativeInt = 15_000
    """Turns to play, summed over episodes; the last update's episodes are played to their end. 0 ends the run after its
    warm start, with a model that `policy.model=` takes."""
    prompt: Annotated[str, Field(max_length=100_000)] | None = None
    """Words instead of the game's own; `{text}` stands for those. Needed for environments that have none."""
    actions: Annotated[tuple[str, ...] | dict[str, Any], BeforeValidator(_names_of_actions)] = ()
    """Names of the actions, for environments that only number them; or name: value, for those whose actions are not
    numbered, such as {left: [-1.0], right: [1.0]}."""
    text_only: bool = False
    """Tell what the picture shows instead of showing it, for games that can."""
    policy: ModelConfig = ModelConfig()
    replies: Replies = Replies()
    reward: Annotated[RewardBlock, AGENT_REWARD] = Field(default_factory=AGENT_REWARD.make_default)
    """What the agent learns from; by default the environment's own reward."""
    algorithm: Annotated[AlgorithmBlock, ALGORITHM] = Field(default_factory=ALGORITHM.make_default)
    rollouts: Rollouts = Rollouts()
    update: Update = Update()
    warm_start: WarmStart | None = None
    """Learn from demonstrations first; null: begin with RL."""
    evaluation: AgentEvaluation = AgentEvaluation()
    alarms: AlarmSettings = AlarmSettings()
    engine: Literal["auto", "single", "ddp", "fsdp2"] = "auto"
    """Distributed training over several processes (start them with torchrun); `auto`: DDP if there are several."""

    @model_validator(mode="after")
    def _reward_fits(self) -> AgentRecipe:
        self.reward.check(self)
        return self

    @model_validator(mode="after")
    def _sampler_can(self) -> AgentRecipe:
        rollouts = self.rollouts
        policy = self.policy
        if policy.sampler != "transformers" and (rollouts.top_k or rollouts.top_p < 1 or rollouts.min_p):
            raise ValueError(
                "rollouts.top_k, top_p and min_p need policy.sampler=transformers: others do not say which tokens they "
                "kept, and what they were is part of a reply's probability"
            )
        if policy.sampler != "transformers" and policy.four_bit:
            raise ValueError(
                f"policy.sampler={policy.sampler} is given whole weights, and policy.four_bit has none; take "
                "policy.sampler=transformers, or leave out four_bit"
            )
        if policy.sampler != "transformers" and self.engine not in ("auto", "single"):
            raise ValueError(
                f"policy.sampler={policy.sampler} is for one process, and engine={self.engine} for several; leave one "
                "out"
            )
        if rollouts.staleness is not None and policy.sampler != "server":
            raise ValueError(
                "rollouts.staleness is for policy.sampler=server: only a server can play on while the model learns; "
                "leave it out"
            )
        return self

    @model_validator(mode="after")
    def _rollouts_fit(self) -> AgentRecipe:
        rollouts = self.rollouts
        update = self.update
        algorithm = self.algorithm
        if rollouts.staleness and rollouts.dynamic_sampling:
            raise ValueError(
                "rollouts.staleness and dynamic_sampling exclude each other: which tasks teach nothing is known only "
                "when the next ones are being played; leave one out"
            )
        if rollouts.dynamic_sampling and (algorithm.needs_values or algorithm.episodes_per_task == 1):
            raise ValueError(
                "rollouts.dynamic_sampling replaces tasks whose episodes all end alike, and "
                f"algorithm.kind={algorithm.kind} does not compare those of a task; take grpo, or leave it out"
            )
        if rollouts.prompt_tokens is not None and rollouts.window == 1:
            raise ValueError(
                "rollouts.prompt_tokens leaves out earlier turns, and rollouts.window=1 shows none; raise the window, "
                "or leave it out"
            )
        if update.ratio == "sequence" and not {"clip_low", "clip_high"} <= update.model_fields_set:
            raise ValueError(
                "update.ratio=sequence is a mean over a reply's tokens, which hardly ever gets as far from 1 as the "
                "usual clip range; say update.clip_low and clip_high too (0.0003 and 0.0004 in GSPO's paper)"
            )
        return self

    @model_validator(mode="after")
    def _something_is_learned(self) -> AgentRecipe:
        if not self.steps and self.warm_start is None:
            raise ValueError("steps=0 ends a run after its warm start, and there is none; say warm_start={}")
        return self


Recipe = ControlRecipe | AgentRecipe

CheckedRecipe = Annotated[
    Annotated[ControlRecipe, Tag("control")] | Annotated[AgentRecipe, Tag("agent")],
    Discriminator(lambda value: tag_of(value, "role", "control")),
]
"""Any recipe, for validation; `role` tells the two kinds apart."""
