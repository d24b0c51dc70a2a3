"""How far pictures are from those that a small encoder was taught.

An encoder gives every picture an embedding, also one of a world that it has never seen, whose similarity to a sentence
means nothing. Statistics of the features of its training pictures, world by world, tell such pictures apart:

    features    the means of the channels of an early layer, and the embedding
    distance    Mahalanobis distance to the nearest world (Lee et al., NeurIPS 2018), where 1 is farther than 99 % of
                pictures of its worlds that it was not trained on

`tools/pretraining/encoder/taught.py` writes them into the folder of an encoder.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from sightline.errors import BadInput

FILE = "taught.safetensors"
"""Name of the statistics in an encoder's folder."""
EARLY_LAYER = "layer2.0.act3"
"""Module of the image tower whose channels are averaged."""
MOST_PICTURES = 16
"""Pictures that are checked, at most: it takes a pass of the encoder."""


@dataclass(frozen=True)
class TaughtPictures:
    """Statistics of the features of K worlds.

    Attributes:
        means: float32[K, F].
        whitenings: float32[K, F, F]; the distance is the length of their product with what differs from the mean.
    """

    means: np.ndarray
    whitenings: np.ndarray

    @classmethod
    def fit(cls, features: np.ndarray, worlds: np.ndarray, held_out: np.ndarray) -> TaughtPictures:
        """Statistics of features [N, F] of pictures of worlds int[N], scaled by further features [M, F]."""
        means = []
        whitenings = []
        for world in np.unique(worlds):
            of_world = features[worlds == world].astype(np.float64)
            # Standardised first: channels and embedding have different units.
            mean = of_world.mean(axis=0)
            deviation = of_world.std(axis=0) + 1e-9
            correlation = np.cov(((of_world - mean) / deviation).T)
            # As much again of noise as makes the smallest directions harmless, in which pictures hardly differ.
            regularised = correlation + 0.02 * np.eye(len(correlation))
            means.append(mean)
            whitenings.append(np.linalg.inv(np.linalg.cholesky(regularised)) / deviation)
        unscaled = cls(np.stack(means), np.stack(whitenings))
        # So that 1 is farther than 99 % of pictures that the encoder was not trained on.
        scale = np.quantile(unscaled.distance(held_out), 0.99)
        return cls(unscaled.means, unscaled.whitenings / scale)

    def distance(self, features: np.ndarray) -> np.ndarray:
        """float[N, F] -> float64[N], to the nearest world."""
        differences = features[:, None].astype(np.float64) - self.means
        whitened = np.einsum("kfg,nkg->nkf", self.whitenings, differences)
        distances = np.linalg.norm(whitened, axis=2)
        return np.asarray(distances.min(axis=1))

    def save(self, folder: Path) -> None:
        """Write `FILE` into an encoder's folder, in float16 where it is large."""
        from safetensors.numpy import save_file

        parts: dict[str, np.ndarray] = {
            "means": self.means.astype(np.float32),
            "whitenings": self.whitenings.astype(np.float16),
        }
        save_file(parts, folder / FILE)

    @classmethod
    def load(cls, folder: Path) -> TaughtPictures | None:
        """The statistics in an encoder's folder; None if there are none.

        Raises:
            BadInput: the file is damaged.
        """
        from safetensors import SafetensorError
        from safetensors.numpy import load_file

        file = folder / FILE
        if not file.is_file():
            return None
        try:
            parts = load_file(file)
            means = parts["means"]
            whitenings = parts["whitenings"]
        except (SafetensorError, OSError, KeyError) as error:
            raise BadInput(f"'{file}' is damaged; fetch the encoder again, or remove the file") from error
        return cls(means, whitenings.astype(np.float32))


class SpreadPictures:
    """Some of many pictures, spread over all of them: those of one episode are alike.

    Attributes:
        pictures: uint8[H, W, 3] each, of any sizes; `MOST_PICTURES` at most.
    """

    def __init__(self) -> None:
        self.pictures: list[np.ndarray] = []
        self._every = 1
        self._count = 0

    def add(self, frames: np.ndarray) -> None:
        """Take in frames uint8[N, H, W, 3], of which some are kept."""
        for frame in frames:
            if self._count % self._every == 0:
                self.pictures.append(np.array(frame))
            self._count += 1
            # Every second one is enough, from now on.
            if len(self.pictures) > MOST_PICTURES:
                self.pictures = self.pictures[::2]
                self._every *= 2

    def by_size(self) -> list[np.ndarray]:
        """The pictures as an array uint8[N, H, W, 3] for each of their sizes."""
        shapes = dict.fromkeys(picture.shape for picture in self.pictures)
        return [np.stack([picture for picture in self.pictures if picture.shape == shape]) for shape in shapes]


def warn_of_unfamiliar_pictures(encoder: Any, frames: np.ndarray) -> str | None:
    """One line if most of some frames uint8[N, H, W, 3] are of no world that an encoder was taught, else None.

    Only small encoders of a few worlds say so, such as the bundled ones.
    """
    unfamiliarity = getattr(encoder, "unfamiliarity", None)  # encoders of other people may have none
    if unfamiliarity is None or not len(frames):
        return None
    # Spread over all frames, as those of one episode are alike.
    every = math.ceil(len(frames) / MOST_PICTURES)
    distances = unfamiliarity(frames[::every])
    if distances is None or np.median(distances) <= 1:
        return None
    return (
        f"these pictures are unlike those that encoder '{encoder.name}' was taught, a few small worlds of its own, so "
        "expect nothing from its reward; take an encoder that knows more, such as ViT-B-32/laion2b_s34b_b79k"
    )
