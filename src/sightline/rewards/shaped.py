"""Potential-based shaping: a reward plus the change of a potential, which leaves the best policy what it was.

    r'(s, a, s') = r(s, a, s') + weight * (gamma * Phi(s') - Phi(s))        Ng, Harada & Russell, ICML 1999

Summed over an episode, discounted, the added terms leave only -Phi(s_0), on which no action has any influence: each
potential is paid when its state is reached and taken back by the next step. That holds if a terminal state's potential
is 0, so it is set to 0 there; a time limit is no terminal state. A clip does not show an episode's first state, so
-Phi(s_0) is left out, which changes all returns from that state by the same number.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from sightline.config.recipe import REWARD, RewardBlock
from sightline.models.encoder_base import Encoder
from sightline.rewards.base import Clip, RewardModel, added_costs, common_scope, common_shrinker, windows
from sightline.rewards.config import CombinedConfig, RewardContext, RewardSetup
from sightline.rewards.ground_truth import GroundTruthConfig


class ShapedConfig(CombinedConfig):
    """A reward and a potential that is paid when a state is reached and taken back when it is left."""

    kind: Literal["shaped"] = "shaped"
    reward: Annotated[RewardBlock, REWARD] = GroundTruthConfig()
    """The reward whose best policy is to be learned."""
    potential: Annotated[RewardBlock, REWARD] = Field(default_factory=REWARD.make_default)
    """Any reward model, as the potential of the states reached."""
    gamma: float = Field(default=0.99, gt=0, le=1)
    """Discount factor; the learner's, or the best policy is another."""
    weight: float = 1.0

    def parts(self) -> dict[str, RewardBlock]:
        return {"reward": self.reward, "potential": self.potential}

    def build(self, context: RewardContext) -> RewardSetup:
        reward, potential = self.build_parts(context)
        model = ShapedReward(reward.model, potential.model, self.gamma, self.weight)
        return self.combined(model, reward, potential)


class ShapedReward(RewardModel):
    """Potential-based shaping of a reward.

    Args:
        reward: the reward model whose best policy is to be learned.
        potential: reward model whose reward of a state is its potential.
        gamma: discount factor of the learner.
        weight: factor of the potential.
    """

    def __init__(self, reward: RewardModel, potential: RewardModel, gamma: float = 0.99, weight: float = 1.0) -> None:
        self.parts = (reward, potential)
        self.gamma = gamma
        self.weight = weight
        self.needs = reward.needs | potential.needs
        # The potential of the state before is that of the step before.
        self.window = max(reward.window, potential.window + 1)
        self.scope = common_scope(self.parts)
        self._shrink = common_shrinker(self.parts)

    @property
    def judges_stills(self) -> bool:
        return all(part.judges_stills for part in self.parts)

    def shrink_frames(self, frames: np.ndarray) -> np.ndarray:
        return self._shrink(frames)

    def doubts(self, frames: np.ndarray) -> list[str]:
        return [line for model in self.parts for line in model.doubts(frames)]

    def compute_elsewhere(self, elsewhere: Callable[[Encoder], Encoder]) -> bool:
        # Of all, and not only of the first that has one.
        moves = [part.compute_elsewhere(elsewhere) for part in self.parts]
        return any(moves)

    def costs(self) -> dict[str, float]:
        return added_costs(self.parts)

    def reward(self, clip: Clip) -> np.ndarray:
        reward_model, potential_model = self.parts
        reward = np.asarray(reward_model.reward(clip), np.float32)
        potential = np.asarray(potential_model.reward(clip), np.float32)
        before = windows(potential, clip.first, 2)[:, :, 0]
        # At an episode's first step `windows` repeats the step itself; there is no state before it.
        before = np.where(clip.first, np.float32(0), before)
        # The potential of a terminal state is 0, or the best policy would be another.
        after = potential
        if clip.terminated is not None:
            after = np.where(clip.terminated, np.float32(0), potential)
        shaping = self.gamma * after - before
        return np.asarray(reward + self.weight * shaping, np.float32)
