"""The progress reward: the rise of the similarity to the goal's words over the last few frames.

The rise of the similarity s over k steps, s(t) - s(t - k), prefers the same policies as s itself: discounted by gamma
and added up over an endless episode it is 1 - gamma^k times the sum of s, less a constant of the episode's beginning.
Two things differ. The constant part of s, which a critic must have learned before differences count, is gone. And the
reward is weaker by that factor (0.07 with gamma 0.99), so SAC's entropy coefficient must be smaller in proportion; a
share `level` of s itself strengthens it.

The rise is not discounted, unlike the shaping of Ng, Harada and Russell (ICML 1999), gamma s(t) - s(t - 1). That is
made to prefer no policy to another, and alone it teaches nothing.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np

from sightline.config.blocks import checked_block
from sightline.rewards.base import Clip, windows
from sightline.rewards.zero_shot import ZeroShotConfig, ZeroShotReward


class ProgressConfig(ZeroShotConfig):
    """The rise of the similarity to the goal's words over the last eight frames."""

    kind: Literal["progress"] = "progress"  # type: ignore[assignment]
    level: float = 0.3
    """Weight of the present similarity beside its rise."""

    def reward_class(self) -> type[ZeroShotReward]:
        return ProgressReward

    def options(self) -> dict[str, Any]:
        return super().options() | {"level": self.level}


class ProgressReward(ZeroShotReward):
    """The zero-shot reward's rise from the first to the last of eight frames, plus its present value times `level`.

    A window stops at its episode's first frame, so the first reward of an episode is `level` times the similarity.

    Args:
        goal, baseline, options: as of `ZeroShotReward`.
        level: weight of the present value; 0 rewards the rise alone.
    """

    window = 8

    def __init__(self, goal: Any, baseline: Any = (), *, level: float = 0.3, **options: Any) -> None:
        self.level = checked_block(ProgressConfig, {"level": level}).level
        super().__init__(goal, baseline, **options)

    def score(self, features: np.ndarray, clip: Clip) -> np.ndarray:
        """float32[T, N] from embeddings [T, N, D] of any float type."""
        similarity = super().score(features, clip)
        # The oldest step of each window, or the episode's first.
        oldest = windows(similarity, clip.first, self.window)[:, :, 0]
        rise = similarity - oldest
        return np.asarray(rise + self.level * similarity)
