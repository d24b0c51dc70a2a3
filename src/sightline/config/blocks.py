"""Recipe blocks of plug-ins: what the rest of Sightline may ask of any reward, teacher, feedback kind or algorithm.

The core never asks which plug-in it has before it; it asks what it needs, and what it can do. A block is the `kind: …`
part of a recipe, checked; `build` and its kin make the object that does the work from it, so runtime classes take plain
keyword arguments and know nothing of recipes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeVar

from pydantic import GetCoreSchemaHandler, ValidationError
from pydantic_core import PydanticCustomError, core_schema

from sightline import registry
from sightline.config.basics import Strict
from sightline.errors import BadInput, nearest

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

    from sightline.agents.algorithms.returns import RewardKind
    from sightline.agents.types import Advantages, Group
    from sightline.config.recipe import ControlRecipe
    from sightline.labels.types import Outcome, QuestionKind, Teacher
    from sightline.preferences.config import LearnedConfig
    from sightline.preferences.rounds import PreferenceLearner
    from sightline.rewards.base import OnlineRewardModel
    from sightline.rewards.building import RewardContext, RewardSetup, RunContext
    from sightline.rewards.learned.reward import LearnedReward
    from sightline.teachers.base import TeacherContext, TeacherRunContext

B = TypeVar("B", bound=Strict)
Reach = tuple[str, str, str]
"""A key of the block, its value, and what that reaches: an address, a service, a folder elsewhere."""


class Plugin:
    """Annotation of a recipe's field that holds the block of a plug-in; `kind` in the document says of which.

    Args:
        kind: of plug-in.
        default: name of the plug-in where the document names none.
    """

    def __init__(self, kind: registry.Kind, default: str) -> None:
        self.kind, self.default = kind, default

    def block(self, value: Any) -> type[Strict]:
        """The class of the block that a part of a document describes.

        Raises:
            BadInput: no plug-in has that name, or its package cannot be imported.
        """
        name = value.get("kind", self.default) if isinstance(value, dict) else self.default
        found: type[Strict] = registry.find(self.kind, str(name))
        return found

    def make_default(self) -> Any:
        """The block where the document has none."""
        return self.block({})()

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> core_schema.CoreSchema:
        return core_schema.no_info_plain_validator_function(
            self.check,
            serialization=core_schema.plain_serializer_function_ser_schema(_dump, info_arg=True),
        )

    def check(self, value: Any) -> Strict:
        """The checked block of a part of a document, or of a block that is one already.

        Raises:
            ValueError: it is none; pydantic's errors are of this class too.
        """
        if isinstance(value, Strict):
            return value
        if not isinstance(value, dict):
            raise PydanticCustomError("unknown_plugin", "must be a map of keys and values")
        name = str(value.get("kind", self.default))
        known = registry.names(self.kind) if name not in registry.BUILT_IN[self.kind] else [name]
        if name not in known:
            hint = nearest(name, known)
            hint = "" if hint.startswith("; known") else hint
            said = f"cannot be '{name[:80]}', only {', '.join(known)}{hint}"
            raise PydanticCustomError("unknown_plugin", "{said}", {"said": said})
        try:
            block = self.block(value)
        except BadInput as error:
            raise ValueError(str(error)) from error
        return block.model_validate(value)


def _dump(block: Strict, info: core_schema.SerializationInfo) -> dict[str, Any]:
    return block.model_dump(
        mode=info.mode,
        exclude_unset=info.exclude_unset,
        exclude_defaults=info.exclude_defaults,
        exclude_none=info.exclude_none,
    )


def checked_block(block: type[B], fields: dict[str, Any]) -> B:
    """A block from plain keyword arguments.

    Raises:
        BadInput: in one line.
    """
    try:
        return block.model_validate(fields)
    except ValidationError as error:
        item = error.errors()[0]
        name = ".".join(map(str, item["loc"]))
        message = item["msg"].removeprefix("Value error, ")
        if item["type"] == "extra_forbidden":
            raise BadInput(f"{block.__name__} has no '{name}'{nearest(name, block.model_fields)}") from error
        raise BadInput(f"{name}: {message}" if name else message) from error


@dataclass(frozen=True)
class RewardWording:
    """How reports speak of a reward: the heading of its curve, and what its landscape shows."""

    reward: str = "Reward"
    landscape: str = "What the reward model likes"
    higher: str = "the reward is higher"
    good: str = "The reward is what you want"


class RewardConfig(Strict):
    """Base of all reward blocks."""

    kind: str
    wording: ClassVar[RewardWording] = RewardWording()

    @property
    def needs_words(self) -> bool:
        """Whether the recipe must have a goal."""
        return False

    @property
    def needs_frames(self) -> bool:
        """Whether anything of it looks at frames."""
        return True

    @property
    def words_alpha(self) -> float | None:
        """The strength of goal-baseline regularisation that the words have to go with."""
        return None

    @property
    def feature_bytes(self) -> float | None:
        """Bytes that are kept beside each transition for relabelling; None where they are not known yet."""
        return 0.0

    @property
    def label_store(self) -> str | None:
        """The folder of a label store outside of the run, if it has one."""
        return None

    def check(self, recipe: ControlRecipe) -> None:
        """Refuse a recipe that does not go with this block.

        Raises:
            ValueError: in one line.
        """

    def reaches(self) -> Iterator[Reach]:
        """What lies outside of this machine and the run folder, with keys relative to the block."""
        return iter(())

    def sizes(self) -> Iterator[str]:
        """Further things that a run holds in memory and on disk, each in a few words with its size."""
        return iter(())

    def facts(self) -> dict[str, str]:
        """The block in a few words for a report: heading -> text."""
        return {"Reward": self.kind.replace("_", " ")}

    def build(self, context: RewardContext) -> RewardSetup:
        """Load what is needed and make the reward model.

        Raises:
            BadInput, RunFailed: in one line.
        """
        raise NotImplementedError

    def online(self, setup: RewardSetup, context: RunContext) -> OnlineRewardModel | None:
        """What goes on learning in a run, around the model that was built; None if nothing is learned."""
        return None


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

    def check(self, learned: LearnedConfig) -> None:
        """Refuse a reward block that does not go with this teacher.

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


class FeedbackConfig(Strict):
    """Base of all blocks that say what a teacher is asked, and how the reward learns from its answers."""

    kind: str
    question: ClassVar[QuestionKind] = "compare"
    noun: ClassVar[str] = "questions"
    """Plural of what is asked about."""
    bounded: ClassVar[bool] = False
    """Whether networks say numbers from 0 to 1, or any."""
    orders: ClassVar[bool] = False
    """Whether a label says which of two segments is better, so that accuracy can be measured."""

    @property
    def question_levels(self) -> int:
        """Levels of a rating; 0 for other questions."""
        return 0

    def check(self, learned: LearnedConfig) -> None:
        """Refuse a reward block that does not go with this feedback.

        Raises:
            ValueError: in one line.
        """

    def facts(self) -> str:
        """The feedback in a few words."""
        return self.kind

    def build_reward(self, learned: LearnedConfig, **options: Any) -> LearnedReward:
        """The reward that answers shape, before the first; options are those of `EnsembleReward`."""
        return learned.ensemble(bounded=self.bounded, **options)

    def memory(self) -> Any:
        """What a learner remembers for this feedback beside labels: an object with `state` and `restore`, or None."""
        return None

    def choose(self, learner: PreferenceLearner, count: int, rng: np.random.Generator) -> np.ndarray:
        """int[K, segments of a question]: places in the learner's pool to ask about, at most `count` rows."""
        raise NotImplementedError

    def compose(
        self, learner: PreferenceLearner, count: int, rng: np.random.Generator
    ) -> list[tuple[tuple[Any, ...], tuple[np.ndarray, ...]]]:
        """The segments of each question and their features, [L, …] each."""
        pool = learner.pool
        return [
            (tuple(pool.segment(i) for i in places), tuple(pool.features[i].copy() for i in places))
            for places in self.choose(learner, count, rng)
        ]

    def teaches(self, outcome: Outcome) -> bool:
        """Whether an answer with this outcome is learned from."""
        return True

    def learn(
        self, learner: PreferenceLearner, told: Sequence[tuple[Any, tuple[np.ndarray, ...], float]]
    ) -> dict[str, float | None]:
        """Shape the learner's reward by all labels so far; `told` are this round's (question, features, value)."""
        return learner.fit()

    def batches(self, values: np.ndarray, chosen: np.ndarray, size: int, rng: np.random.Generator) -> list[np.ndarray]:
        """Minibatches of one pass over the chosen labels, as indices."""
        order = rng.permutation(chosen)
        return [order[i : i + size] for i in range(0, len(order), size)]

    def strata(self, values: np.ndarray, chosen: np.ndarray) -> list[np.ndarray]:
        """The chosen labels in groups that count equally when the loss is averaged."""
        return [chosen]

    def label_loss(self, returns: Sequence[Tensor], values: Tensor, segment: int) -> Tensor:
        """float[M]: each network's loss, averaged over B labels.

        Args:
            returns: for each segment of a question, float[M, B]: what the networks say of it, summed over its steps.
            values: float[B], the labels.
            segment: steps in a segment.
        """
        raise NotImplementedError


class AlgorithmConfig(Strict):
    """Base of all blocks of an agent's RL algorithm."""

    kind: str
    needs_values: ClassVar[bool] = False
    """Whether the model must have a value head."""

    @property
    def episodes_per_task(self) -> int:
        """Episodes with the same task seed; 1 where episodes are not compared with each other."""
        return int(getattr(self, "group", 1))

    def compute_advantages(self, groups: Sequence[Group], reward: RewardKind) -> list[list[Advantages | None]]:
        """Advantages of every turn.

        Args:
            groups: all that was played for one update, by all processes; the episodes of a group share their task seed.
            reward: which rewards count, see `sightline.agents.algorithms.returns.rewards_of`.

        Returns:
            For each group and trajectory float64[turns]; None where there is nothing to learn: the episode broke or is
            empty, or its group shows no differences.
        """
        raise NotImplementedError


Dtype = Literal["auto", "float32", "float16", "bfloat16"]
