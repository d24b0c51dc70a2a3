"""Running statistics by which an on-policy learner standardises what it learns from: rewards and observations."""

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
        self.count, self.mean, self.deviation, self.terminates = 0, 0.0, 0.0, False

    def standardise(self, rewards: np.ndarray, steps: Clip) -> np.ndarray:
        """float32[T, N]: the rewards of a chunk, standardised by those of all chunks up to this one.

        Args:
            rewards: float32[T, N].
            steps: the chunk's.
        """
        new, mean, deviation = rewards.size, float(rewards.mean(dtype=np.float64)), float(rewards.std(dtype=np.float64))
        count = self.count + new
        between = (mean - self.mean) ** 2 * self.count * new / count
        squares = self.count * self.deviation**2 + new * deviation**2 + between
        self.mean += (mean - self.mean) * new / count
        self.count, self.deviation = count, math.sqrt(squares / count)
        # Where all episodes are of one length, a shift adds the same to every return. Where they can be terminated it
        # pays for ending them early, or late: nothing is subtracted from the first chunk on in which one is.
        self.terminates |= steps.terminated is not None and bool(steps.terminated.any())
        shift = 0.0 if self.terminates else self.mean
        scale = self.deviation if self.deviation > 1e-6 * max(abs(self.mean), 1e-6) else 1.0
        return np.asarray((rewards - shift) / scale, np.float32)

    def state(self) -> dict[str, Any]:
        """For a checkpoint."""
        return dict(vars(self))

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take over what `state` gave."""
        self.count, self.terminates = int(state["count"]), bool(state["terminates"])
        self.mean, self.deviation = float(state["mean"]), float(state["deviation"])


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
        seen = observations if self._part is None else dict(observations)[self._part]
        new = torch.as_tensor(seen, dtype=torch.float32, device=self.mean.device).reshape(-1, self.features_dim)
        mean, variance = new.mean(dim=0), new.var(dim=0, unbiased=False)
        total = self.count + len(new)
        before, now = self.count / total, len(new) / total
        offset = mean - self.mean
        self.variance.copy_(before * self.variance + now * variance + before * now * offset**2)
        self.mean.add_(now * offset)
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
        names, parts = list(space), dict(space.items())
        readers: list[torch.nn.Module] = []
        size = 0
        for name, part in parts.items():
            numbers = math.prod(part.shape or (1,))
            if is_picture(part):
                readers.append(NatureCNN(part, width))
            elif standardises and isinstance(part, spaces.Box):
                readers.append(StandardisedObservations(part, name))
            else:
                readers.append(torch.nn.Flatten())
            size += width if is_picture(part) else numbers
        super().__init__(space, size)
        self._names, self.readers = names, torch.nn.ModuleList(readers)

    def forward(self, observations: dict[str, torch.Tensor]) -> torch.Tensor:
        """float32[N, D] from parts [N, …]."""
        read = [reader(observations[name]) for name, reader in zip(self._names, self.readers, strict=True)]
        return torch.cat(read, dim=1)
