"""Learned reward models, whose rewards are standardised so that learners see one scale whatever they are made of."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pydantic import TypeAdapter
from torch import Tensor, nn

from sightline.errors import BadInput
from sightline.models.device import choose_devices, fast_dtype
from sightline.models.encoder_base import Encoder
from sightline.models.shrinking import Shrink, Shrinker
from sightline.rewards.arrays import to_numpy
from sightline.rewards.base import Clip, RewardModel
from sightline.rewards.learned.config import FittingConfig, RewardNet, RewardNetConfig
from sightline.rewards.learned.ladder import nearness
from sightline.runs.files import read_document, write_document
from sightline.runs.state import read_state, restoring, write_state

CONFIG = "config.json"
WEIGHTS = "model.safetensors"
IN_RUN = "reward"
"""Folder of the learned reward inside a run folder."""
BOUND = 5.0
"""Bound of standardised rewards, which are squashed smoothly to [-BOUND, BOUND]."""
FEATURES_AT_ONCE = 8192
FRAME_BYTES_AT_ONCE = 2_500_000
"""Frames read in one pass: about what fits into the caches of a core."""


def build_ensemble(config: RewardNetConfig, feature_shape: tuple[int, ...], members: int, seed: int) -> nn.Module:
    """An ensemble: features [B, …] -> float[members, B], unbounded. Equal seeds give equal weights.

    Args:
        feature_shape: of one state's features: (D,) for embeddings and most states, (H, W, 3) for frames (uint8).

    Raises:
        BadInput: frames are too small for the network's strides.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return config.build(feature_shape, members)


class LearnedReward(RewardModel):
    """A reward model that begins by knowing nothing and is shaped by labels.

    The reward of a state is its `raw_reward`, standardised to mean 0 and deviation `scale` over the segments that were
    judged so far, and bounded.

    Args:
        network: which kind of network, and so what it reads.
        seen_shape: shape of what is read of one state: (H, W, 3) of a frame, (D,) of a state or (C, H, W) of a picture
            that is a state.
        encoder: embeds frames, for networks on embeddings.
        seen_dtype: of states.
        scale: standard deviation of the rewards.

    Attributes:
        ready: whether it has learned from any label yet.
    """

    def __init__(
        self,
        network: RewardNetConfig,
        *,
        seen_shape: tuple[int, ...],
        encoder: Encoder | None = None,
        seen_dtype: Any = np.float32,
        scale: float = 1.0,
    ) -> None:
        self.network = network
        self.encoder = encoder
        self.scale = scale
        self.seen_shape = tuple(seen_shape)
        self.seen_dtype = np.dtype(seen_dtype)
        self.needs = frozenset({"states" if network.reads_states else "frames"})
        # One blank frame or state tells what features look like.
        dtype = seen_dtype if network.reads_states else np.uint8
        probe = self.features_of(np.zeros((1, *seen_shape), dtype))
        self.feature_shape: tuple[int, ...] = probe.shape[1:]
        self.feature_dtype: Any = probe.dtype
        self.ready = False
        self._mean = 0.0
        self._deviation = 1.0

    def raw_reward(self, features: np.ndarray) -> np.ndarray:
        """Features [N, …] -> float32[N], on whatever scale."""
        raise NotImplementedError

    def embed(self, clip: Clip) -> np.ndarray:
        inputs = clip.frames if "frames" in self.needs else clip.states
        assert inputs is not None, "a model is given what it needs"
        # [T, N, …] -> [T * N, …] -> features [T, N, …]
        inputs = to_numpy(inputs).reshape(-1, *inputs.shape[2:])
        return self.features_of(inputs).reshape(*clip.shape, *self.feature_shape)

    def shrink_frames(self, frames: np.ndarray) -> np.ndarray:
        return self._shrinker(frames)

    @cached_property
    def _shrinker(self) -> Shrink:
        if self.encoder is not None:
            return self.encoder.shrink_frames
        # The features of networks on frames are frames: of the size that they read.
        return Shrinker(self.features_of, lambda full, small: np.array_equal(self.features_of(small), small))

    def compute_elsewhere(self, elsewhere: Callable[[Encoder], Encoder]) -> bool:
        if self.encoder is None:
            return False
        self.encoder = elsewhere(self.encoder)
        return True

    def score(self, features: np.ndarray, clip: Clip) -> np.ndarray:
        return self.rewards_of(features.reshape(-1, *self.feature_shape)).reshape(clip.shape)

    def features_of(self, inputs: np.ndarray) -> np.ndarray:
        """Frames or states -> features: float16[N, D] embeddings, uint8[N, *size, 3] frames, float32[N, …] states, or
        uint8[N, C, H, W] states that are pictures."""
        return self.network.features(inputs, self.encoder)

    def rewards_of(self, features: np.ndarray) -> np.ndarray:
        """Features [N, …] -> float32[N] rewards, standardised and bounded."""
        standard = (self.raw_reward(features) - self._mean) / self._deviation
        return np.asarray(self.scale * BOUND * np.tanh(standard / BOUND), np.float32)

    def fit_normalizer(self, features: np.ndarray) -> None:
        """Choose origin and scale by these states. From now on it is ready."""
        values = self.raw_reward(features)
        self._mean = float(values.mean())
        self._deviation = max(float(values.std()), 1e-6)
        self.ready = True

    def save(self, folder: str | Path) -> None:
        """Write the reward as a folder with `config.json` and `model.safetensors`, as the Hugging Face Hub expects.

        Raises:
            BadInput: the folder cannot be made, as where a file has its name.
        """
        folder = Path(folder)
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise BadInput(f"the folder '{folder}' cannot be made ({error.strerror}); name another") from error
        document = {
            "model_type": "sightline_learned_reward",
            "kind": type(self).__name__,
            "network": self.network.model_dump(mode="json"),
            "seen_shape": list(self.seen_shape),
            "seen_dtype": str(self.seen_dtype),
            "scale": self.scale,
        }
        write_document(folder / CONFIG, document | self.settings())
        write_state(folder / WEIGHTS, self.state_dict())

    def settings(self) -> dict[str, Any]:
        """Further arguments of the class, as plain data."""
        return {}

    @classmethod
    def load(cls, folder: str | Path, device: str = "auto") -> LearnedReward:
        """Read a reward that `save` wrote: such a folder, or a run that ended with a learned reward.

        Raises:
            BadInput: there is none, or it is damaged.
        """
        folder = Path(folder)
        reward_folder = folder
        if (folder / IN_RUN / CONFIG).is_file():
            reward_folder = folder / IN_RUN
        if not (reward_folder / CONFIG).is_file():
            raise BadInput(f"'{folder}' holds no learned reward: neither a run that learned one, nor a folder of one")
        document = read_document(reward_folder / CONFIG)
        state = read_state(reward_folder / WEIGHTS)
        with restoring(reward_folder):
            network = TypeAdapter(RewardNet).validate_python(document["network"])
            options = {
                "seen_shape": tuple(document["seen_shape"]),
                "seen_dtype": np.dtype(document["seen_dtype"]),
                "scale": float(document["scale"]),
                "encoder": network.load_encoder(device),
            }
            reward: LearnedReward
            if document["kind"] == "EnsembleReward":
                fitting = FittingConfig.model_validate(document["fitting"])
                reward = EnsembleReward(network, fitting, bounded=bool(document["bounded"]), device=device, **options)
            elif document["kind"] == "LadderReward":
                reward = LadderReward(network, **options)
            else:
                raise BadInput(
                    f"'{folder}' holds a reward of the class {str(document['kind'])[:80]}, which its own package loads"
                )
            reward.load_state_dict(state)
        return reward

    @property
    def keeps_features(self) -> bool:  # type: ignore[override]
        """True for models of frames; states are in the replay buffer anyway."""
        return "frames" in self.needs

    def state_dict(self) -> dict[str, Any]:
        return {"mean": self._mean, "deviation": self._deviation, "fitted": self.ready}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._mean = state["mean"]
        self._deviation = state["deviation"]
        self.ready = state["fitted"]


class EnsembleReward(LearnedReward):
    """Networks fitted to labels (`sightline.rewards.learned.fitting`); the reward of a state is their mean.

    Args:
        network, options: see `LearnedReward`.
        fitting: how many members there are, and how they are fitted.
        bounded: whether their outputs are from 0 to 1, as for ratings and scores, or any numbers.
        seed: of the networks' first weights.
        device: where they are; of several, the first.
    """

    def __init__(
        self,
        network: RewardNetConfig,
        fitting: FittingConfig | None = None,
        *,
        bounded: bool = False,
        seed: int = 0,
        device: str = "auto",
        **options: Any,
    ) -> None:
        super().__init__(network, **options)
        self.fitting = fitting or FittingConfig()
        self.bounded = bounded
        self.seed = seed
        self.device = torch.device("cpu")
        self.reset_weights()
        self.device = choose_devices(device, self._weights())[0]
        self.ensemble.to(self.device)

    def _weights(self) -> int | None:
        """Number of weights; None of convolutions."""
        if len(self.feature_shape) > 1:
            return None
        return sum(weight.numel() for weight in self.ensemble.parameters())

    def settings(self) -> dict[str, Any]:
        return {"fitting": self.fitting.model_dump(mode="json"), "bounded": self.bounded}

    def reset_weights(self) -> None:
        """Give the members their first weights again."""
        members = self.fitting.ensemble
        self.ensemble = build_ensemble(self.network, self.feature_shape, members, self.seed).to(self.device)
        self.ensemble.eval()

    def forward(self, features: np.ndarray) -> Tensor:
        """Features [N, …] -> float[M, N] on the ensemble's device, for learning; in [0, 1] if ratings or scores are
        learned."""
        tensor = torch.from_numpy(np.ascontiguousarray(features)).to(self.device)
        outputs: Tensor = self.ensemble(self.network.scaled(tensor))
        return torch.sigmoid(outputs) if self.bounded else outputs

    def members(self, features: np.ndarray) -> np.ndarray:
        """Features [N, …] -> float32[M, N]: each member's reward. Frames are read in bfloat16 where that is fast."""
        if not len(features):
            return np.zeros((self.fitting.ensemble, 0), np.float32)
        batch_size = FEATURES_AT_ONCE
        dtype = torch.float32
        if features.ndim == 4 and features.dtype == np.uint8:
            batch_size = max(16, FRAME_BYTES_AT_ONCE // features[:1].nbytes)
            # Not for pictures that are states: their values are read as they are.
            if "frames" in self.needs:
                dtype = fast_dtype(self.device)
        batches = [features[start : start + batch_size] for start in range(0, len(features), batch_size)]
        with torch.inference_mode(), torch.autocast(self.device.type, dtype, enabled=dtype != torch.float32):
            outputs = [self.forward(batch).cpu() for batch in batches]
        return torch.cat(outputs, dim=1).numpy()

    def raw_reward(self, features: np.ndarray) -> np.ndarray:
        return np.asarray(self.members(features).mean(axis=0))

    def state_dict(self) -> dict[str, Any]:
        weights = {name: value.cpu() for name, value in self.ensemble.state_dict().items()}
        return super().state_dict() | {"weights": weights}

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
