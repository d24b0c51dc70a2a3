"""Recipe blocks of a learned reward: the kinds of reward networks, and the settings of fitting."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Annotated, Literal

import numpy as np
from pydantic import Discriminator, Field, PositiveInt, Tag

from sightline.config.basics import Aspect, Strict, tag_of
from sightline.config.blocks import Dtype
from sightline.models.device import check_layers

if TYPE_CHECKING:
    from torch import Tensor, nn

    from sightline.models.encoder_base import Encoder


class RewardNetConfig(Strict):
    """Base of all kinds of reward networks."""

    kind: str

    @property
    def reads_states(self) -> bool:
        """True if it reads states instead of frames."""
        return False

    @property
    def encoder_name(self) -> str | None:
        """The encoder that embeds frames for it, if any."""
        return None

    def load_encoder(self, device: str) -> Encoder | None:
        """The encoder of that name, loaded."""
        return None

    @property
    def feature_bytes(self) -> float | None:
        """Bytes that are kept beside each transition; None where they are not known yet."""
        return 0.0

    def facts(self) -> str:
        """The network in a few words."""
        if self.encoder_name is None:
            return self.kind
        return f"{self.kind}, {self.encoder_name}"

    def features(self, inputs: np.ndarray, encoder: Encoder | None) -> np.ndarray:
        """The network's input features, [N, …], of frames uint8[N, H, W, 3] or states [N, …]."""
        raise NotImplementedError

    def scaled(self, features: Tensor) -> Tensor:
        """Features scaled to about unit size."""
        return features

    def build(self, feature_shape: tuple[int, ...], members: int) -> nn.Module:
        """An ensemble with torch's present random numbers: features [B, …] -> float[members, B].

        Raises:
            BadInput: frames are too small for the network's strides.
        """
        raise NotImplementedError


class EmbeddingHeadConfig(RewardNetConfig):
    """A small network on a frozen encoder's embeddings: every frame is read once, and relabelling is nearly free."""

    kind: Literal["embeddings"] = "embeddings"
    encoder: str = "bundled"
    aspect: Aspect = "crop"
    """Frames that are not square, as in `zero_shot`: `crop`, `pad` or `squash`."""
    hidden: tuple[PositiveInt, ...] = (64, 64)
    dtype: Dtype = "auto"

    @property
    def encoder_name(self) -> str | None:
        return self.encoder

    def load_encoder(self, device: str) -> Encoder:
        from sightline.models.encoders import load_encoder

        return load_encoder(self.encoder, device, self.dtype, aspect=self.aspect)

    @property
    def feature_bytes(self) -> float | None:
        from sightline.models.encoder_files import embedding_size

        size = embedding_size(self.encoder)
        return None if size is None else 2.0 * size

    def features(self, inputs: np.ndarray, encoder: Encoder | None) -> np.ndarray:
        assert encoder is not None, "loaded with the reward"
        return encoder.embed_frames(inputs).astype(np.float16)

    def scaled(self, features: Tensor) -> Tensor:
        # Unit vectors of D numbers have components of about 1/sqrt(D); networks learn best from numbers of about 1.
        dimension = features.shape[1]
        inputs: Tensor = features.float() * dimension**0.5
        return inputs

    def build(self, feature_shape: tuple[int, ...], members: int) -> nn.Module:
        from sightline.rewards.learned.networks import MLPEnsemble

        inputs = math.prod(feature_shape)
        check_layers([inputs, *self.hidden], members, "reward.model.hidden")
        return MLPEnsemble(inputs, self.hidden, members)


class CNNConfig(RewardNetConfig):
    """The convolutional network of RL-VLM-F (Wang et al., ICML 2024), on frames."""

    kind: Literal["cnn"] = "cnn"
    channels: Annotated[tuple[PositiveInt, ...], Field(min_length=1)] = (16, 32, 64, 128)
    size: tuple[PositiveInt, PositiveInt] = (84, 84)
    """Height and width at which frames are kept and read; what the teacher is shown may be larger."""

    @property
    def feature_bytes(self) -> float | None:
        return 3.0 * self.size[0] * self.size[1]

    def features(self, inputs: np.ndarray, encoder: Encoder | None) -> np.ndarray:
        return _resized(inputs, self.size)

    def build(self, feature_shape: tuple[int, ...], members: int) -> nn.Module:
        from sightline.rewards.learned.networks import FrameEnsemble, cnn

        return FrameEnsemble([cnn(feature_shape, self.channels) for _ in range(members)])


class ResNetConfig(RewardNetConfig):
    """A ResNet-18 from random weights, on frames."""

    kind: Literal["resnet"] = "resnet"
    size: tuple[PositiveInt, PositiveInt] = (84, 84)

    @property
    def feature_bytes(self) -> float | None:
        return 3.0 * self.size[0] * self.size[1]

    def features(self, inputs: np.ndarray, encoder: Encoder | None) -> np.ndarray:
        return _resized(inputs, self.size)

    def build(self, feature_shape: tuple[int, ...], members: int) -> nn.Module:
        from sightline.rewards.learned.networks import FrameEnsemble, resnet

        return FrameEnsemble([resnet(feature_shape) for _ in range(members)])


def _resized(frames: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """uint8[N, H, W, 3] -> uint8[N, *size, 3], anti-aliased."""
    from PIL import Image

    from sightline.models.resizing import resized_by_torch

    return np.asarray(resized_by_torch(frames, size, Image.Resampling.BILINEAR))


class StatesConfig(RewardNetConfig):
    """A network on the states that were reached, without pictures (the teacher still sees them)."""

    kind: Literal["states"] = "states"
    hidden: tuple[PositiveInt, ...] = (256, 256, 256)

    @property
    def reads_states(self) -> bool:
        return True

    def features(self, inputs: np.ndarray, encoder: Encoder | None) -> np.ndarray:
        if inputs.ndim == 4 and inputs.dtype == np.uint8:
            return inputs  # states that are pictures are kept small, and scaled by the network
        return inputs.astype(np.float32)

    def build(self, feature_shape: tuple[int, ...], members: int) -> nn.Module:
        from sightline.rewards.learned.networks import MLPEnsemble

        inputs = math.prod(feature_shape)
        check_layers([inputs, *self.hidden], members, "reward.model.hidden")
        return MLPEnsemble(inputs, self.hidden, members)


RewardNet = Annotated[
    Annotated[EmbeddingHeadConfig, Tag("embeddings")]
    | Annotated[CNNConfig, Tag("cnn")]
    | Annotated[ResNetConfig, Tag("resnet")]
    | Annotated[StatesConfig, Tag("states")],
    Discriminator(lambda value: tag_of(value, "kind", "embeddings")),
]


class FittingConfig(Strict):
    """Settings of fitting the reward networks to the labels after each round."""

    ensemble: PositiveInt = 3
    epochs: PositiveInt = 60
    """Most epochs of a fit, which stops when the held-out loss has not fallen for `patience` epochs."""
    patience: PositiveInt = 10
    held_out: float = Field(default=0.2, ge=0, lt=1)
    """Share of the labels that is never trained on and tells when to stop; 0 trains all epochs on everything."""
    learning_rate: float = Field(default=1e-3, gt=0)
    weight_decay: float = Field(default=1e-3, ge=0)
    batch_size: PositiveInt = 64
    reset_weights: bool = True
    """Begin from the first weights in every round; otherwise from those of the round before (large networks)."""
