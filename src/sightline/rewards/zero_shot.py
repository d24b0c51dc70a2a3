"""The zero-shot reward: how near is a frame to the goal's words?

Method: goal-baseline regularisation, Rocamonde, Montesinos, Nava, Perez and Lindner, "Vision-Language Models are
Zero-Shot Reward Models for Reinforcement Learning", ICLR 2024, section 3.2. With the frame's embedding x, the mean g
of the goal sentences' embeddings, the mean b of the baseline's, and the unit vector u from b to g:

    r = 1 - 1/2 || alpha * proj_L(x) + (1 - alpha) * x - g ||^2,      L the line through b and g.

The same without any matrix, with z = x - g and s = z.u, which is what is computed here:

    r = 1 - 1/2 [ (1 - (1 - alpha)^2) s^2 + (1 - alpha)^2 ||z||^2 ].

Without a baseline the reward is the cosine similarity to the goal, averaged over its sentences.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from sightline.config import check_words
from sightline.errors import BadInput
from sightline.models.encoders import Encoder

DEFAULT_ALPHA = 0.5


@dataclass(frozen=True)
class GoalPrompt:
    """What is wanted, in words.

    Attributes:
        goal: sentences whose embeddings are averaged; a string is one sentence.
        baseline: the same for what the picture shows anyway; may be empty.
        alpha: strength of the regularisation in [0, 1]; None is 0.5 with a baseline and nothing without.
    """

    goal: tuple[str, ...]
    baseline: tuple[str, ...] = ()
    alpha: float | None = None

    def __post_init__(self) -> None:
        for name in ("goal", "baseline"):
            said = getattr(self, name)
            if isinstance(said, str):  # or each of its letters would be a sentence
                object.__setattr__(self, name, (said,))
        try:
            check_words(self.goal, self.baseline, self.alpha)
        except ValueError as error:
            raise BadInput(str(error)) from error


@dataclass(frozen=True)
class GoalBaselineHead:
    """The reward as a function of embeddings.

    Attributes:
        goal: float32[D], mean of unit vectors, not normalised again.
        baseline: float32[D] or None.
        alpha: in [0, 1]; ignored without a baseline.
    """

    goal: np.ndarray
    baseline: np.ndarray | None
    alpha: float

    def __post_init__(self) -> None:
        if self.baseline is not None and np.linalg.norm(self.goal - self.baseline) < 1e-6:
            raise BadInput(
                "the encoder cannot tell goal and baseline apart: their embeddings are equal; use other words"
            )

    def score(self, embeddings: np.ndarray) -> np.ndarray:
        """float[N, D] unit vectors (any float type) -> float32[N] rewards."""
        x = embeddings.astype(np.float32, copy=False)
        if self.baseline is None:
            return np.asarray(x @ self.goal)
        direction = self.goal - self.baseline
        unit = direction / np.linalg.norm(direction)
        offset = x - self.goal
        along = offset @ unit
        keep = (1 - self.alpha) ** 2
        rewards = 1 - 0.5 * ((1 - keep) * along**2 + keep * np.einsum("nd,nd->n", offset, offset))
        return np.asarray(rewards, np.float32)


class ZeroShotReward:
    """A reward model (`sightline.rewards.base`) that reads words: `reward(uint8[N, H, W, 3]) -> float32[N]`.

    Args:
        encoder: embeds frames and sentences. Its text tower can be freed once all words of interest are embedded.
        words: goal, baseline and alpha.
    """

    reads: Literal["frames"] = "frames"

    def __init__(self, encoder: Encoder, words: GoalPrompt) -> None:
        self.encoder = encoder
        self.words = words
        self._head = embed_words(encoder, words)

    def embed(self, frames: np.ndarray) -> np.ndarray:
        """uint8[N, H, W, 3] -> float32[N, D]."""
        return self.encoder.embed_frames(frames)

    def score(self, embeddings: np.ndarray) -> np.ndarray:
        """float[N, D] -> float32[N]: the reward of frames embedded before."""
        return self._head.score(embeddings)

    def reward(self, frames: np.ndarray) -> np.ndarray:
        """uint8[N, H, W, 3] -> float32[N]; any N, also 0."""
        return self.score(self.embed(frames))


def embed_words(encoder: Encoder, words: GoalPrompt) -> GoalBaselineHead:
    """Words as the encoder understands them.

    Raises:
        BadInput: goal and baseline fall on the same point.
    """
    goal = encoder.embed_texts(words.goal).mean(axis=0)
    baseline = encoder.embed_texts(words.baseline).mean(axis=0) if words.baseline else None
    return GoalBaselineHead(goal, baseline, DEFAULT_ALPHA if words.alpha is None else words.alpha)


def warn_of_unknown_words(encoder: Encoder, sentences: Sequence[str]) -> str | None:
    """One line if the encoder does not know some of the words, else None."""
    unknown = encoder.unknown_words(sentences)
    if not unknown:
        return None
    return (
        f"encoder '{encoder.name}' does not know the word{'s' if len(unknown) > 1 else ''} "
        f"{', '.join(repr(word) for word in unknown)}; expect little from a reward that rests on "
        f"{'them' if len(unknown) > 1 else 'it'}"
    )
