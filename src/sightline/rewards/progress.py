"""The progress reward: how much nearer to the goal's words the last few frames have come.

The similarity of one frame says where the state is; its rise over the last steps says whether the policy is on its way.
The sum of both is dense where the similarity alone is flat or, as on the far side of Mountain Car's valley, misleading.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np

from sightline.rewards.base import Clip, windows
from sightline.rewards.zero_shot import ZeroShotConfig, ZeroShotReward


class ProgressConfig(ZeroShotConfig):
    """How much nearer to the goal's words the last eight frames have come."""

    kind: Literal["progress"] = "progress"  # type: ignore[assignment]
    level: float = 0.0
    """Weight of the present similarity beside its rise."""

    def reward_class(self) -> type[ZeroShotReward]:
        return ProgressReward

    def options(self) -> dict[str, Any]:
        return {"level": self.level}


class ProgressReward(ZeroShotReward):
    """The zero-shot reward's rise from the first to the last of eight frames, plus its present value times `level`.

    Args:
        goal, baseline, options: as of `ZeroShotReward`.
        level: weight of the present value; 0 rewards progress alone.
    """

    window = 8

    def __init__(self, goal: Any, baseline: Any = (), *, level: float = 0.0, **options: Any) -> None:
        super().__init__(goal, baseline, **options)
        self.level = level

    def score(self, features: np.ndarray, clip: Clip) -> np.ndarray:
        similarity = super().score(features, clip)
        seen = windows(similarity, clip.first, self.window)
        return np.asarray(similarity - seen[:, :, 0] + self.level * similarity)
