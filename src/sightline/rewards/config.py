"""Build a reward model from a recipe's reward block: the context that it gets, and the setup that it returns."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from pydantic import model_validator

from sightline.config.basics import check_words
from sightline.config.blocks import Reach
from sightline.config.recipe import AgentRecipe, ControlRecipe, Recipe, RewardBlock
from sightline.envs.tasks import Task
from sightline.errors import BadInput, RunFailed, blamed, reason_and_place
from sightline.models.shrinking import Shrink
from sightline.rewards.base import OnlineRewardModel, RewardModel, frame_shrinker

if TYPE_CHECKING:
    from sightline.labels.types import Lesson, Teacher
    from sightline.models.encoder_base import Encoder


@dataclass(frozen=True)
class RewardContext:
    """Context of the run that a reward block is built for.

    Attributes:
        goal, baseline: the recipe's words.
        seed: of the run.
        asks: False if no teacher will be asked, because what it has taught is only evaluated.
        first_seen: the environment's first frame at a size (None: its own), or with `states=True` its first state.
        folder: of the run, where what was paid for is kept; None where nothing is.
    """

    goal: tuple[str, ...]
    baseline: tuple[str, ...]
    seed: int
    asks: bool
    first_seen: Callable[[tuple[int, int] | None, bool], np.ndarray]
    folder: Path | None = None

    def of_part(self, key: str) -> RewardContext:
        """The context of a part of a combined reward, with a folder of its own: what two parts are paid and answered
        there stays apart."""
        if self.folder is None:
            return self
        return replace(self, folder=self.folder / "reward_parts" / key)


@dataclass(frozen=True)
class RewardSetup:
    """A reward model, and what goes with it.

    Attributes:
        frame_size: height and width at which frames are rendered; None for the environment's own.
        frames: whether the environment renders at all.
        encoder: the one that frames are embedded with, if any; its model card goes into the run folder.
        teacher: answers the questions; None if none does, or if people are only reached in the run.
        lessons: labels that exist, from which a learned reward begins.
        warnings: one line each.
        doubts: likewise, about the environment's first picture (`RewardModel.doubts`).
    """

    model: RewardModel
    frame_size: tuple[int, int] | None = None
    frames: bool = True
    encoder: Encoder | None = None
    teacher: Teacher | None = None
    lessons: tuple[Lesson, ...] = ()
    warnings: tuple[str, ...] = ()
    doubts: tuple[str, ...] = ()


@dataclass(frozen=True)
class RunContext:
    """Context of a run for a reward model that learns during it.

    Attributes:
        folder: of the run.
        env: the environment's name in the recipe.
        goal: the recipe's.
        frame_shape: (H, W, 3) of the rendered frames.
        seed, steps: of the run.
        visited: gives the states visited so far, [M, …], or the newest of them; None where there are only pictures.
        say: tells the user one line.
    """

    folder: Path
    env: str
    goal: tuple[str, ...]
    frame_shape: tuple[int, ...]
    seed: int
    steps: int
    visited: Callable[[], np.ndarray] | None
    say: Callable[[str], None]


class RewardConfig(RewardBlock):
    """Base of all reward blocks: a recipe's settings of a reward, and the construction of its reward model."""

    def build(self, context: RewardContext) -> RewardSetup:
        """Load what is needed and make the reward model.

        Raises:
            BadInput, RunFailed: in one line.
        """
        raise NotImplementedError

    def reworded(self, goal: Sequence[str], baseline: Sequence[str], alpha: float | None) -> RewardModel | None:
        """The reward model of other words, which reads the same features; None where words mean nothing to it."""
        return None

    def shown_prompt(self, goal: tuple[str, ...], baseline: tuple[str, ...]) -> str:
        """What a model is asked for this reward, with marks for pictures; empty where none is asked in words."""
        return ""

    def online(self, setup: RewardSetup, context: RunContext) -> OnlineRewardModel | None:
        """Online reward model around the one that was built, for a run; None if nothing is learned."""
        return None


def build_reward(block: RewardConfig, context: RewardContext) -> RewardSetup:
    """The setup that a reward block builds.

    Raises:
        BadInput: the block returned something else, or a setup that renders no frames for a model that reads them.
        RunFailed: as the block says.
    """
    with blamed(block, "build"):
        setup = block.build(context)
    name = type(block).__name__
    if not isinstance(setup, RewardSetup) or not isinstance(setup.model, RewardModel):
        returned = setup.model if isinstance(setup, RewardSetup) else setup
        raise BadInput(f"{name}.build must return a RewardSetup with a RewardModel, not {type(returned).__name__}")
    if "frames" in setup.model.needs and not setup.frames:
        raise BadInput(f"{name}.build returned a model that reads frames, with frames=False; leave out frames=False")
    return setup


def run_shrinker(block: RewardConfig, model: RewardModel) -> Shrink | None:
    """What makes the frames of a run smaller; None where they are kept as they are, since a reward that is learned in
    the run shows them to its teacher."""
    learns = type(block).online is not RewardConfig.online
    return None if learns else frame_shrinker(model)


class ModelClassConfig(RewardConfig):
    """Base of the blocks of reward models that a recipe names by `module:Class`."""

    options: dict[str, Any] = {}
    """Keyword arguments of the class. The recipe's words are passed on to a class that takes `goal` and `baseline`."""
    makes: ClassVar[type[RewardModel]]

    @classmethod
    def _words(cls) -> list[str]:
        """Which of the recipe's words the class takes."""
        return [name for name in ("goal", "baseline") if name in inspect.signature(cls.makes).parameters]

    @model_validator(mode="after")
    def _options_fit(self) -> ModelClassConfig:
        # The words come later, with the recipe: empty ones take their place.
        arguments: dict[str, Any] = dict.fromkeys(self._words(), ()) | self.options
        try:
            inspect.signature(self.makes).bind(**arguments)
        except TypeError as error:
            raise ValueError(f"options: {self.makes.__name__}: {error}") from error
        return self

    @property
    def needs_words(self) -> bool:
        return "goal" in self._words() and "goal" not in self.options

    @property
    def needs_frames(self) -> bool:
        return "frames" in self.makes.needs

    @property
    def feature_bytes(self) -> float | None:
        return None if self.makes.keeps_features else 0.0

    def build(self, context: RewardContext) -> RewardSetup:
        arguments = {name: getattr(context, name) for name in self._words()} | self.options
        try:
            model = self.makes(**arguments)
        except (BadInput, RunFailed):
            raise
        except (Exception, SystemExit) as error:
            raise RunFailed(f"reward.kind={self.kind} cannot be made: {reason_and_place(error)}") from error
        return RewardSetup(model, frames=self.needs_frames)


def block_of_model(model: type[RewardModel]) -> type[RewardConfig]:
    """The recipe block of a class of reward models.

    Raises:
        BadInput: it learns in the run, which a block of its own has to begin.
    """
    if issubclass(model, OnlineRewardModel):
        raise BadInput(
            f"{model.__name__} learns in the run; name a subclass of sl.RewardConfig whose online() makes it"
        )
    block: type[ModelClassConfig] = type(model.__name__, (ModelClassConfig,), {"__module__": __name__})
    block.makes = model
    return block


class CombinedConfig(RewardConfig):
    """Base of blocks that combine other rewards, which may be of any kind but learned ones."""

    def parts(self) -> dict[str, RewardBlock]:
        """The blocks of the rewards that are combined, by their keys."""
        raise NotImplementedError

    @model_validator(mode="after")
    def _parts_learn_nothing(self) -> CombinedConfig:
        for key, part in self.parts().items():
            if part.teaching is not None:
                raise ValueError(f"{key} is learned from a teacher, and only a whole reward can be; use another kind")
        return self

    @property
    def needs_words(self) -> bool:
        return any(part.needs_words for part in self.parts().values())

    @property
    def needs_frames(self) -> bool:
        return any(part.needs_frames for part in self.parts().values())

    @property
    def reads_own_reward(self) -> bool:
        return any(part.reads_own_reward for part in self.parts().values())

    @property
    def reads_success(self) -> bool:
        return any(part.reads_success for part in self.parts().values())

    @property
    def words_alpha(self) -> float | None:
        return next((part.words_alpha for part in self.parts().values() if part.words_alpha is not None), None)

    def check(self, recipe: ControlRecipe | AgentRecipe) -> None:
        for part in self.parts().values():
            part.check(recipe)

    def reaches(self) -> Iterator[Reach]:
        for key, part in self.parts().items():
            for inner_key, value, what in part.reaches():
                yield f"{key}.{inner_key}", value, what

    def places(self) -> Iterator[str]:
        for key, part in self.parts().items():
            for inner_key in part.places():
                yield f"{key}.{inner_key}"

    def facts(self) -> dict[str, str]:
        facts = super().facts()
        for key, part in self.parts().items():
            for heading, text in part.facts().items():
                facts[f"{heading} ({key})"] = text
        return facts

    def build_parts(self, context: RewardContext) -> list[RewardSetup]:
        """The setups of the parts, in their order."""
        return [reward_config(part).build(context.of_part(key)) for key, part in self.parts().items()]

    def combined(self, model: RewardModel, *setups: RewardSetup) -> RewardSetup:
        """The setup of a model of these parts."""
        # Frames are rendered at the largest size that a part asks for.
        sizes = [setup.frame_size for setup in setups if setup.frame_size is not None]
        encoders = [setup.encoder for setup in setups if setup.encoder is not None]
        # Parts may warn of the same encoder.
        warnings = dict.fromkeys(line for setup in setups for line in setup.warnings)
        doubts = dict.fromkeys(line for setup in setups for line in setup.doubts)
        return RewardSetup(
            model,
            max(sizes, default=None),
            frames=any(setup.frames for setup in setups),
            encoder=encoders[0] if encoders else None,
            warnings=tuple(warnings),
            doubts=tuple(doubts),
        )


def reward_config(block: RewardBlock) -> RewardConfig:
    """A recipe's reward block, as one that can make its reward model.

    Raises:
        BadInput: a third party's block cannot.
    """
    if not isinstance(block, RewardConfig):
        raise BadInput(f"the reward '{block.kind}' is no sightline.RewardConfig; its package must subclass that")
    return block


def resolved_words(recipe: Recipe, task: Task) -> dict[str, list[str]]:
    """Goal and baseline of a recipe, or those of its task where it has none, as keys of a recipe.

    Raises:
        BadInput: no goal where the reward needs one, an empty one for a task that has words, or words that make no
            reward.
    """
    goal = list(recipe.goal)
    baseline = list(recipe.baseline)
    if not goal:
        # A task without words has an empty goal when it is complete; that may be read again.
        if "goal" in recipe.model_fields_set and task.goal:
            raise BadInput("an empty goal was given; leave it out, for the task's own words, or write a sentence")
        goal = list(task.goal)
        if "baseline" not in recipe.model_fields_set:
            baseline = list(task.baseline)
    if recipe.reward.needs_words:
        try:
            check_words(goal, baseline, recipe.reward.words_alpha)
        except ValueError as error:
            raise BadInput(str(error)) from error
    return {"goal": goal, "baseline": baseline}
