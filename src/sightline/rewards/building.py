"""Build a reward model from a recipe's reward block: the context that it gets, and the setup that it returns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from sightline.config.recipe import RewardBlock
from sightline.errors import BadInput
from sightline.rewards.base import OnlineRewardModel, RewardModel

if TYPE_CHECKING:
    from sightline.labels.types import Teacher
    from sightline.models.encoders import Encoder


@dataclass(frozen=True)
class RewardContext:
    """Context of the run that a reward block is built for.

    Attributes:
        goal, baseline: the recipe's words.
        seed: of the run.
        asks: False if no teacher will be asked, because what it has taught is only evaluated.
        first_seen: the environment's first frame at a size (None: its own), or with `states=True` its first state.
    """

    goal: tuple[str, ...]
    baseline: tuple[str, ...]
    seed: int
    asks: bool
    first_seen: Callable[[tuple[int, int] | None, bool], np.ndarray]


@dataclass(frozen=True)
class RewardSetup:
    """A reward model, and what goes with it.

    Attributes:
        frame_size: height and width at which frames are rendered; None for the environment's own.
        frames: whether the environment renders at all.
        encoder: the one that frames are embedded with, if any; its model card goes into the run folder.
        teacher: answers the questions; None if none does, or if people are only reached in the run.
        warnings: one line each.
    """

    model: RewardModel
    frame_size: tuple[int, int] | None = None
    frames: bool = True
    encoder: Encoder | None = None
    teacher: Teacher | None = None
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True)
class RunContext:
    """Context of a run for a reward model that learns during it.

    Attributes:
        folder: of the run.
        env: the environment's name in the recipe.
        goal: the recipe's.
        frame_shape: (H, W, 3) of the rendered frames.
        seed, steps: of the run.
        visited: gives all states visited so far, [M, …].
        say: tells the user one line.
    """

    folder: Path
    env: str
    goal: tuple[str, ...]
    frame_shape: tuple[int, ...]
    seed: int
    steps: int
    visited: Callable[[], np.ndarray]
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

    def online(self, setup: RewardSetup, context: RunContext) -> OnlineRewardModel | None:
        """Online reward model around the one that was built, for a run; None if nothing is learned."""
        return None


def build_reward(block: RewardConfig, context: RewardContext) -> RewardSetup:
    """The setup that a reward block builds.

    Raises:
        BadInput: the block returned something else, or a setup that renders no frames for a model that reads them.
        RunFailed: as the block says.
    """
    setup = block.build(context)
    name = type(block).__name__
    if not isinstance(setup, RewardSetup) or not isinstance(setup.model, RewardModel):
        built = setup.model if isinstance(setup, RewardSetup) else setup
        raise BadInput(f"{name}.build must return a RewardSetup with a RewardModel, not {type(built).__name__}")
    if "frames" in setup.model.needs and not setup.frames:
        raise BadInput(f"{name}.build returned a model that reads frames, with frames=False; leave out frames=False")
    return setup
