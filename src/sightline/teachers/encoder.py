"""The encoder teacher: prefers the segment whose frames have the higher zero-shot reward. Offline, instant, free."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Generator, Iterable, Iterator

import numpy as np

from sightline.config import EncoderTeacherConfig
from sightline.labels.types import Answer, Outcome, Question, Segment, preference
from sightline.rewards.zero_shot import DEFAULT_ALPHA, ZeroShotReward

FRAMES_AT_ONCE = 1024
"""Frames that are put together for one call of the encoder: what is copied stays small, however much is asked."""


class EncoderTeacher:
    """Compares the zero-shot rewards of segments, each the mean over its frames.

    Answers have no confidence: differences of rewards are no probabilities. The words of a question are not read; the
    reward model brings its own, and they are in the signature.

    Args:
        config: `equal_below` is read; encoder and alpha are those of the reward model.
        reward_model: encoder and words.

    Attributes:
        reward_range: the lowest and the highest mean reward of a segment, the ends of the scale for `rate` and
            `score`. Its owner may set it; where it is None, it is that of the segments asked together.
    """

    def __init__(self, config: EncoderTeacherConfig, reward_model: ZeroShotReward) -> None:
        self.config = config
        self.reward_range: tuple[float, float] | None = None
        self._reward_model = reward_model
        words = reward_model
        alpha = DEFAULT_ALPHA if words.alpha is None else words.alpha
        parts = {
            "goal": words.goal,
            "baseline": words.baseline,
            "alpha": alpha if words.baseline else None,
            "equal_below": config.equal_below,
            "weights": fingerprint(reward_model),
        }
        self.name = f"encoder {reward_model.encoder.name}"
        self.signature = f"{self.name} {json.dumps(parts)}"

    def answers(self, questions: Iterable[Question]) -> Generator[tuple[int, Answer]]:
        """Yield (index, answer) in the order of the questions."""
        questions = list(questions)
        rewards = self._rewards({s.digest: s for question in questions for s in question.segments})
        scale = self.reward_range or (min(rewards.values(), default=0.0), max(rewards.values(), default=0.0))
        for index, question in enumerate(questions):
            values = [rewards[segment.digest] for segment in question.segments]
            if question.kind == "compare":
                yield index, self._compare(*values)
            else:
                yield index, Answer(Outcome.VALUE, _value(question, values[0], scale))

    def give_up(self) -> None:
        """Answers come at once: there is nothing to wait for."""

    def range_of(self, segments: Iterable[Segment]) -> tuple[float, float]:
        """The lowest and the highest mean reward of these segments, of which there is at least one."""
        rewards = self._rewards({segment.digest: segment for segment in segments}).values()
        return min(rewards), max(rewards)

    def _compare(self, first: float, second: float) -> Answer:
        if first == second or abs(first - second) < self.config.equal_below:
            return preference(0.5)
        return preference(float(second > first))

    def _rewards(self, segments: dict[str, Segment]) -> dict[str, float]:
        """Digest -> mean reward of the segment's frames."""
        rewards: dict[str, float] = {}
        for together in _in_batches(segments):
            per_frame = self._reward_model(np.concatenate([segments[digest].frames for digest in together]))
            ends = np.cumsum([len(segments[digest].frames) for digest in together])
            parts = np.split(per_frame.astype(np.float64), ends[:-1])
            rewards |= {digest: float(part.mean()) for digest, part in zip(together, parts, strict=True)}
        return rewards


def fingerprint(reward_model: ZeroShotReward) -> str:
    """Eight hexadecimal digits by which two encoders under one name are told apart: where they see a certain picture,
    and how they score certain embeddings. Coarse, so that another number of threads changes nothing."""
    rng = np.random.default_rng(0)
    side = reward_model.encoder.image_size
    picture = reward_model.encoder.embed_frames(rng.integers(0, 256, (1, side, side, 3), np.uint8))
    probes = rng.standard_normal((16, picture.shape[1])).astype(np.float32)
    probes /= np.linalg.norm(probes, axis=1, keepdims=True)
    seen = np.concatenate([probes @ picture[0], reward_model.head(probes)])
    return hashlib.sha256(np.rint(seen * 1000).astype(np.int32).tobytes()).hexdigest()[:8]


def _value(question: Question, reward: float, scale: tuple[float, float]) -> float:
    """A level or a score: the position on the scale, its middle where the scale has no length."""
    low, high = scale
    position = float(np.clip((reward - low) / (high - low), 0.0, 1.0)) if high > low else 0.5
    if question.kind == "score":
        return round(position, 4)  # what is beyond depends on how many frames were read together
    return float(min(int(position * question.levels), question.levels - 1))


def _in_batches(segments: dict[str, Segment]) -> Iterator[list[str]]:
    """Digests of segments that fit into one array: frames of one size, and not too many of them."""
    by_size: dict[tuple[int, ...], list[str]] = {}
    for digest, segment in segments.items():
        by_size.setdefault(segment.frames.shape[1:], []).append(digest)
    for digests in by_size.values():
        batch: list[str] = []
        frames = 0
        for digest in digests:
            length = len(segments[digest].frames)
            if batch and frames + length > FRAMES_AT_ONCE:
                yield batch
                batch, frames = [], 0
            batch.append(digest)
            frames += length
        yield batch
