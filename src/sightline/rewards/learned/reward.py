"""The rewards that answers shape, standardised so that learners see one scale whatever they are made of."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sightline.config import CNNConfig, EmbeddingHeadConfig, LearnedConfig, ResNetConfig, StatesConfig
from sightline.models.device import choose_device, fast_dtype
from sightline.models.encoders import Encoder
from sightline.rewards.base import Clip, RewardModel, to_numpy
from sightline.rewards.learned.ladder import nearness
from sightline.rewards.learned.networks import build_ensemble

BOUND = 5.0
"""Standardised rewards are bounded smoothly to [-BOUND, BOUND]."""
FEATURES_AT_ONCE = 8192
FRAME_BYTES_AT_ONCE = 5_000_000
"""Frames read in one pass: about what fits into the caches of a core."""


class LearnedReward(RewardModel):
    """A reward model that begins by knowing nothing and is shaped by labels.

    The reward of a state is its `raw_reward`, standardised to mean 0 and deviation `config.scale` over the segments
    that were judged so far, and bounded.

    Args:
        config: the recipe's block.
        seen_shape: shape of what is read of one state: (H, W, 3) of a frame, (D,) of a state or (C, H, W) of a picture
            that is a state.
        encoder: embeds frames, for `model.kind=embeddings`.
        seen_dtype: of states.

    Attributes:
        ready: whether it has learned from any label yet.
    """

    def __init__(
        self, config: LearnedConfig, seen_shape: tuple[int, ...], encoder: Encoder | None, seen_dtype: Any = np.float32
    ) -> None:
        self.config = config
        self.encoder = encoder
        self.needs = frozenset({"states" if config.model.kind == "states" else "frames"})
        probe = self.features_of(np.zeros((1, *seen_shape), np.uint8 if "frames" in self.needs else seen_dtype))
        self.feature_shape: tuple[int, ...] = probe.shape[1:]
        self.feature_dtype: Any = probe.dtype
        self.ready = False
        self._mean, self._deviation = 0.0, 1.0

    def raw_reward(self, features: np.ndarray) -> np.ndarray:
        """Features [N, …] -> float32[N], on whatever scale."""
        raise NotImplementedError

    def embed(self, clip: Clip) -> np.ndarray:
        seen = clip.frames if "frames" in self.needs else clip.states
        assert seen is not None, "a model is given what it needs"
        flat = to_numpy(seen).reshape(-1, *seen.shape[2:])
        return self.features_of(flat).reshape(*clip.shape, *self.feature_shape)

    def score(self, features: np.ndarray, clip: Clip) -> np.ndarray:
        return self.rewards_of(features.reshape(-1, *self.feature_shape)).reshape(clip.shape)

    def features_of(self, seen: np.ndarray) -> np.ndarray:
        """Frames or states -> features: float16[N, D] embeddings, uint8[N, *size, 3] frames, float32[N, …] states, or
        uint8[N, C, H, W] states that are pictures."""
        match self.config.model:
            case EmbeddingHeadConfig():
                assert self.encoder is not None
                return self.encoder.embed_frames(seen).astype(np.float16)
            case CNNConfig(size=size) | ResNetConfig(size=size):
                return resize(seen, size)
            case StatesConfig():
                return seen if _are_pictures(seen) else seen.astype(np.float32)

    def rewards_of(self, features: np.ndarray) -> np.ndarray:
        """Features [N, …] -> float32[N] rewards, standardised and bounded."""
        standard = (self.raw_reward(features) - self._mean) / self._deviation
        return np.asarray(self.config.scale * BOUND * np.tanh(standard / BOUND), np.float32)

    def fit_normalizer(self, features: np.ndarray) -> None:
        """Choose origin and scale by these states. From now on it is ready."""
        values = self.raw_reward(features)
        self._mean, self._deviation = float(values.mean()), max(float(values.std()), 1e-6)
        self.ready = True

    @property
    def keeps_features(self) -> bool:  # type: ignore[override]
        """States are in the replay buffer anyway; of frames, features are kept."""
        return "frames" in self.needs

    def state_dict(self) -> dict[str, Any]:
        return {"mean": self._mean, "deviation": self._deviation, "fitted": self.ready}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._mean, self._deviation, self.ready = state["mean"], state["deviation"], state["fitted"]


class EnsembleReward(LearnedReward):
    """Networks fitted to labels (`sightline.rewards.learned.fitting`); the worth of a state is their mean.

    Args:
        seed: of the networks' first weights.
    """

    def __init__(
        self,
        config: LearnedConfig,
        seen_shape: tuple[int, ...],
        encoder: Encoder | None,
        seed: int,
        seen_dtype: Any = np.float32,
    ) -> None:
        super().__init__(config, seen_shape, encoder, seen_dtype)
        self.device = choose_device(config.device)
        self._seed = seed
        self.reset_weights()

    def reset_weights(self) -> None:
        """Give the members their first weights again."""
        members = self.config.fitting.ensemble
        self.ensemble = build_ensemble(self.config.model, self.feature_shape, members, self._seed).to(self.device)
        self.ensemble.eval()

    def forward(self, features: np.ndarray) -> Tensor:
        """Features [N, …] -> float[M, N] on the ensemble's device, for learning; in [0, 1] if ratings or scores are
        learned."""
        tensor = torch.from_numpy(np.ascontiguousarray(features)).to(self.device)
        if self.config.model.kind == "embeddings":
            # Unit vectors of D numbers have components of about 1/sqrt(D); networks like them of about 1.
            tensor = tensor.float() * features.shape[1] ** 0.5
        out: Tensor = self.ensemble(tensor)
        return torch.sigmoid(out) if self.config.feedback.kind in ("ratings", "scores") else out

    def members(self, features: np.ndarray) -> np.ndarray:
        """Features [N, …] -> float32[M, N]: what each member says. Frames are read in bfloat16 where that is fast."""
        pictures = _are_pictures(features)
        size = max(16, FRAME_BYTES_AT_ONCE // features[:1].nbytes) if pictures and len(features) else FEATURES_AT_ONCE
        dtype = fast_dtype(self.device) if pictures and "frames" in self.needs else torch.float32
        lower = torch.autocast(self.device.type, dtype, enabled=dtype != torch.float32)
        with torch.inference_mode(), lower:
            parts = [self.forward(features[i : i + size]).cpu() for i in range(0, len(features), size)]
        if not parts:
            return np.zeros((self.config.fitting.ensemble, 0), np.float32)
        return torch.cat(parts, dim=1).numpy()

    def raw_reward(self, features: np.ndarray) -> np.ndarray:
        return np.asarray(self.members(features).mean(axis=0))

    def state_dict(self) -> dict[str, Any]:
        return super().state_dict() | {
            "weights": {name: value.cpu() for name, value in self.ensemble.state_dict().items()}
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        self.ensemble.load_state_dict(state["weights"])


class LadderReward(LearnedReward):
    """Nearness to the frame at the top of a ladder (`sightline.rewards.learned.ladder`), between embeddings.

    Attributes:
        top: float32[D], None before the first comparison.
    """

    top: np.ndarray | None = None

    def raw_reward(self, features: np.ndarray) -> np.ndarray:
        if self.top is None:
            return np.zeros(len(features), np.float32)
        return nearness(features.astype(np.float32), self.top)

    def state_dict(self) -> dict[str, Any]:
        return super().state_dict() | {"top": self.top}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        self.top = state["top"]


def _are_pictures(features: np.ndarray) -> bool:
    return features.ndim == 4 and features.dtype == np.uint8


def resize(frames: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """uint8[N, H, W, 3] -> uint8[N, *size, 3], anti-aliased."""
    if frames.shape[1:3] == tuple(size) or not len(frames):
        return frames.reshape(len(frames), *size, 3)
    pixels = torch.from_numpy(frames).permute(0, 3, 1, 2)
    smaller = torch.nn.functional.interpolate(pixels, size, mode="bilinear", antialias=True, align_corners=False)
    return np.ascontiguousarray(smaller.permute(0, 2, 3, 1).numpy())


def build_reward(
    config: LearnedConfig,
    seen_shape: tuple[int, ...],
    encoder: Encoder | None,
    seed: int,
    seen_dtype: Any = np.float32,
) -> EnsembleReward | LadderReward:
    """The reward that a recipe's block describes, before it has learned anything."""
    if config.feedback.kind == "ladder":
        return LadderReward(config, seen_shape, encoder, seen_dtype)
    return EnsembleReward(config, seen_shape, encoder, seed, seen_dtype)
