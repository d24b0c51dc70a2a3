"""An environment whose frames tell their step and their episode, and reward models that say what they are shown."""

from __future__ import annotations

from typing import Any

import numpy as np

from sightline.rewards.arrays import to_numpy
from sightline.rewards.base import Clip, RewardModel
from sightline.rewards.scopes import Scope, ScopeKind
from small_envs import Clock

GOLDEN: dict[str, dict[int, tuple[int, ...]]] = {
    "prefix": {
        1: (0, 1),
        2: (0, 1, 2),
        3: (0, 1, 2, 3),
        4: (0, 2, 4),
        5: (0, 2, 4, 5),
        6: (0, 2, 4, 6),
        7: (0, 4, 7),
        8: (0, 4, 8),
        9: (0, 4, 8, 9),
    },
    "window": {step: tuple(range(max(step - 3, 0), step + 1)) for step in range(1, 10)},
}
"""Steps whose frames are shown for a step of an episode, by hand: at most four."""
GOLDEN["episode"] = GOLDEN["prefix"]


def code(steps: Any) -> float:
    """A number of its own for each list of steps below 16, which float32 holds: as hexadecimal digits, after a 1."""
    return float(int("1" + "".join(f"{int(step):x}" for step in steps), 16))


class Hued(Clock):
    """Red: the time since the reset; green: the episode's own hue."""

    def reset(self, **options: Any) -> Any:
        outcome = super().reset(**options)
        self.hue = int(self.np_random.integers(256))
        return outcome

    def render(self) -> np.ndarray:
        picture = np.zeros((*self.render_size, 3), np.uint8)
        picture[..., 0] = self.time
        picture[..., 1] = self.hue
        return picture


class Shown(RewardModel):
    """Pays the code of the frames that it is shown, which are all of one episode; of whole episodes, at their ends."""

    window = 2

    def __init__(self, kind: ScopeKind = "prefix", frames: int = 4, hued: bool = True) -> None:
        self.scope = Scope(kind, frames)
        self.hued = hued

    def reward(self, clip: Clip) -> np.ndarray:
        return self.codes(clip)

    def codes(self, clip: Clip) -> np.ndarray:
        rewards = np.zeros(clip.shape, np.float32)
        for step, env in np.ndindex(clip.shape):
            if self.scope.kind == "episode" and not clip.ended[step, env]:  # type: ignore[index]
                continue
            frames, steps = clip.shown(step, env, self.scope)
            pixels = to_numpy(frames)[:, 0, 0]
            if self.hued:
                assert len(set(pixels[:, 1].tolist())) == 1, "frames of one episode"
                assert pixels[:, 0].tolist() == steps.tolist()
            rewards[step, env] = code(pixels[:, 0])
        return rewards


class Embedded(Shown):
    """The same, of features."""

    reward = RewardModel.reward
    window = 1

    def embed(self, clip: Clip) -> np.ndarray:
        return self.codes(clip)[..., None]

    def score(self, features: np.ndarray, clip: Clip) -> np.ndarray:
        assert clip.frames is None and clip.past is None
        return np.asarray(features[..., 0])
