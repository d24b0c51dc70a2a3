"""Running statistics by which an on-policy learner standardises what it learns from: rewards and observations.

This does what Stable-Baselines3's `VecNormalize` does, which Sightline does not use: a wrapper around the environments
would hide their states from reward models and need files of its own. Here rewards are standardised after a chunk is
scored (`RewardScale`, recipe key `learner.standardise_rewards`), and observations inside of the policy network
(`StandardisedObservations`, `learner.standardise_observations`), so that a saved policy takes raw observations.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor, NatureCNN

from sightline.envs.observations import Observations
from sightline.envs.spaces import is_picture
from sightline.rewards.base import Clip

GREATEST = 10.0
"""Greatest standardised observation, in deviations."""


class RewardScale:
    """Scale of rewards, measured on all chunks so far.

    An advantage does not depend on it, but the value loss and the entropy bonus are weighed against it. Rewards of
    words vary by hundredths around a large mean, which a value function has to learn before it can tell states apart.

    Attributes:
        count, mean, deviation: of the rewards.
        terminates: whether an episode was terminated.
    """

    def __init__(self) -> None:
        self.count = 0
        self.mean = 0.0
        self.deviation = 0.0
        self.terminates = False

    def standardise(self, rewards: np.ndarray, steps: Clip) -> np.ndarray:
        """float32[T, N]: the rewards of a chunk, standardised by those of all chunks up to this one.

        Args:
            rewards: float32[T, N].
            steps: the chunk's.
        """
        # Statistics of two samples together (Chan et al., 1979): squares around each sample's own mean, and the
        # distance between the means.
        new = rewards.size
        mean = float(rewards.mean(dtype=np.float64))
        deviation = float(rewards.std(dtype=np.float64))
        count = self.count + new
        between = (mean - self.mean) ** 2 * self.count * new / count
        squares = self.count * self.deviation**2 + new * deviation**2 + between
        self.mean += (mean - self.mean) * new / count
        self.count = count
        self.deviation = math.sqrt(squares / count)
        # Where all episodes are of one length, a shift adds the same to every return. Where they can be terminated it
        # pays for ending them early, or late: nothing is subtracted from the first chunk on in which one is.
        self.terminates |= steps.terminated is not None and bool(steps.terminated.any())
        shift = 0.0
        if not self.terminates:
            shift = self.mean
        scale = 1.0
        if self.deviation > 1e-6 * max(abs(self.mean), 1e-6):  # else it is a rounding error: the reward never varies
            scale = self.deviation
        return np.asarray((rewards - shift) / scale, np.float32)

    def begin_anew(self) -> None:
        """Forget the rewards, but not that an episode was terminated: other rewards leave the environment as it is."""
        self.count = 0
        self.mean = 0.0
        self.deviation = 0.0

    def state(self) -> dict[str, Any]:
        """For a checkpoint."""
        return dict(vars(self))

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take over what `state` gave."""
        self.count = int(state["count"])
        self.terminates = bool(state["terminates"])
        self.mean = float(state["mean"])
        self.deviation = float(state["deviation"])


class StandardisedObservations(BaseFeaturesExtractor):
    """Observations less their mean, in deviations, of all that training has seen.

    Without it, what matters most to balance (a tilt of hundredths) is lost beside joint angles of tenths. The
    statistics are buffers of the policy, so that they are saved, loaded and handed over with it.

    Args:
        space: of the observations.
        part: name of the part of them that is standardised; None for observations of one part.
    """

    mean: torch.Tensor
    variance: torch.Tensor
    count: torch.Tensor

    def __init__(self, space: spaces.Box, part: str | None = None) -> None:
        super().__init__(space, math.prod(space.shape))
        self._part = part
        self.register_buffer("mean", torch.zeros(self.features_dim))
        self.register_buffer("variance", torch.ones(self.features_dim))
        self.register_buffer("count", torch.zeros(()))

    def forward(self, observations: torch.Tensor) -> torch.Tensor:
        """float32[N, D], within ten deviations, from [N, ...]."""
        offsets = observations.flatten(1) - self.mean
        return (offsets / torch.sqrt(self.variance + 1e-8)).clamp(-GREATEST, GREATEST)

    def take_in(self, observations: Observations) -> None:
        """Take observations [..., *shape] into mean and variance."""
        values: Any = observations if self._part is None else dict(observations)[self._part]
        tensor = torch.as_tensor(values, dtype=torch.float32, device=self.mean.device)
        new = tensor.reshape(-1, self.features_dim)
        mean = new.mean(dim=0)
        variance = new.var(dim=0, unbiased=False)
        total = self.count + len(new)
        # Shares of the observations before and of the new ones; the statistics are joined as in `RewardScale`.
        share_before = self.count / total
        share_new = len(new) / total
        offset = mean - self.mean
        self.variance.copy_(share_before * self.variance + share_new * variance + share_before * share_new * offset**2)
        self.mean.add_(share_new * offset)
        self.count.copy_(total)


class ReadParts(BaseFeaturesExtractor):
    """Observations of several parts: pictures through the convolutions of `NatureCNN`, all else as it is.

    SB3's own `CombinedExtractor` does the same, but for parts of certain names (`a.b`, `type`).

    Args:
        space: of the observations; its pictures are large enough for convolutions.
        standardises: standardise what is no picture.
        width: features of a picture.
    """

    def __init__(self, space: spaces.Dict, standardises: bool = False, width: int = 256) -> None:
        readers: dict[str, torch.nn.Module] = {}
        size = 0
        for name, part in space.items():
            if is_picture(part):
                readers[name] = NatureCNN(part, width)
                size += width
                continue
            size += math.prod(part.shape or (1,))
            if standardises and isinstance(part, spaces.Box):
                readers[name] = StandardisedObservations(part, name)
            else:
                readers[name] = torch.nn.Flatten()
        super().__init__(space, size)
        self._names = list(readers)
        self.readers = torch.nn.ModuleList(readers.values())

    def forward(self, observations: dict[str, torch.Tensor]) -> torch.Tensor:
        """float32[N, D] from parts [N, …]."""
        features = [reader(observations[name]) for name, reader in zip(self._names, self.readers, strict=True)]
        return torch.cat(features, dim=1)
