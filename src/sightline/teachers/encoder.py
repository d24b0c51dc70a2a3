"""Encoder teacher: prefers the segment whose frames have the higher zero-shot reward. Offline, instant, free."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from typing import Literal

import numpy as np
from pydantic import Field

from sightline.config.basics import Aspect
from sightline.errors import BadInput
from sightline.labels.types import Answer, Outcome, Question, Scale, Segment, Teacher, preference, sentences_of
from sightline.models.encoders import load_encoder, warn_of_cropping
from sightline.models.familiarity import warn_of_unfamiliar_pictures
from sightline.rewards.zero_shot import DEFAULT_ALPHA, ZeroShotReward, from_words
from sightline.teachers.base import TeacherConfig, TeacherContext

FRAMES_AT_ONCE = 1024
"""Batch size of the encoder, in frames: bounds the memory copied, however many questions are asked."""


class EncoderTeacherConfig(TeacherConfig):
    """Recipe block of the encoder teacher, which prefers the higher zero-shot reward: no key, no network, no cost."""

    kind: Literal["encoder"] = "encoder"
    encoder: str = "bundled"
    alpha: float | None = Field(default=None, ge=0, le=1)
    """Strength of goal-baseline regularisation; default 0.5 with a baseline."""
    aspect: Aspect = "crop"
    """Handling of frames that are not square, as in `zero_shot`: `crop`, `pad` or `squash`."""
    equal_below: float = Field(default=0.0, ge=0)
    """Threshold of equality: rewards that differ by less than this count as equal."""

    @property
    def words_alpha(self) -> float | None:
        return self.alpha

    @property
    def judges_by_own_words(self) -> bool:
        return True

    def facts(self) -> str:
        return f"encoder, {self.encoder}"

    def build(self, context: TeacherContext) -> EncoderTeacher:
        # The reward's encoder serves for both, if it is the same: weights are in memory once.
        encoder = context.encoder
        if encoder is None or (encoder.name, encoder.aspect) != (self.encoder, self.aspect):
            encoder = load_encoder(self.encoder, context.device, aspect=self.aspect)
        reward, warnings = from_words(context.goal, context.baseline, encoder, alpha=self.alpha)
        for warning in warnings:
            context.warn(warning)
        return EncoderTeacher(reward, equal_below=self.equal_below)


class EncoderTeacher(Teacher):
    """Encoder teacher: compares the zero-shot rewards of segments, each the mean over its frames.

    Answers have no confidence: differences of rewards are no probabilities. The words of a question are not read; the
    reward model brings its own, and they are in the signature. `compare` refuses another goal than the reward model's.

    Args:
        reward_model: encoder, words and alpha.
        equal_below: rewards that differ by less than this count as equal.

    Attributes:
        reward_range: the lowest and the highest mean reward of a segment, the ends of the scale for `rate` and
            `score`. Its owner may set it; where it is None, it is that of the segments asked together.
        encoder: the encoder of the reward model.
    """

    def __init__(self, reward_model: ZeroShotReward, *, equal_below: float = 0.0) -> None:
        self.equal_below = equal_below
        self.reward_range: tuple[float, float] | None = None
        self.encoder = reward_model.encoder
        self._reward_model = reward_model
        alpha = DEFAULT_ALPHA if reward_model.alpha is None else reward_model.alpha
        parts = {
            "goal": reward_model.goal,
            "baseline": reward_model.baseline,
            "alpha": alpha if reward_model.baseline else None,
            "equal_below": equal_below,
            "weights": fingerprint(reward_model),
        }
        if self.encoder.aspect != "crop":  # left out otherwise, so that earlier answers stay valid
            parts["aspect"] = self.encoder.aspect
        self.name = f"encoder {reward_model.encoder.name}"
        self.signature = f"{self.name} {json.dumps(parts)}"

    def compare(self, pairs: Iterable[tuple[np.ndarray, np.ndarray]], goal: str | Sequence[str]) -> list[Answer]:
        own = self._reward_model.goal
        if sorted(sentences_of(goal)) != sorted(own):
            words = " / ".join(own)
            raise BadInput(f"this teacher judges by '{words}'; ask with that goal, or make a teacher for the other one")
        return super().compare(pairs, goal)

    def answers(self, questions: Iterable[Question]) -> Generator[tuple[int, Answer]]:
        """Yield (index, answer) in the order of the questions."""
        questions = list(questions)
        rewards = self._rewards(_segments_of(questions))
        scale = self.reward_range
        if scale is None:
            scale = (min(rewards.values(), default=0.0), max(rewards.values(), default=0.0))
        for index, question in enumerate(questions):
            values = [rewards[segment.digest] for segment in question.segments]
            if question.kind == "compare":
                yield index, self._compare(*values)
            else:
                yield index, Answer(Outcome.VALUE, _value(question, values[0], scale))

    def measure_scale(self, questions: Sequence[Question], returns: np.ndarray) -> Scale:
        if questions[0].kind == "compare":
            return None, None
        rewards = self._rewards(_segments_of(questions)).values()
        return None, (min(rewards), max(rewards))

    def check_frames(self, frame: np.ndarray, warn: Callable[[str], None]) -> None:
        height, width = frame.shape[:2]
        of_cropping = warn_of_cropping(self.encoder, height, width, "reward.teacher.aspect")
        of_unfamiliarity = warn_of_unfamiliar_pictures(self.encoder, frame[None])
        for warning in (of_cropping, of_unfamiliarity):
            if warning:
                warn(warning)

    def use_scale(self, scale: Scale) -> None:
        _, self.reward_range = scale

    def _compare(self, first: float, second: float) -> Answer:
        if first == second or abs(first - second) < self.equal_below:
            return preference(0.5)
        return preference(float(second > first))

    def _rewards(self, segments: dict[str, Segment]) -> dict[str, float]:
        """Digest -> mean reward of the segment's frames."""
        rewards: dict[str, float] = {}
        for batch in _in_batches(segments):
            frames = [segments[digest].frames for digest in batch]
            per_frame = self._reward_model(np.concatenate(frames)).astype(np.float64)
            # Back to segments: where each ends in the batch.
            ends = np.cumsum([len(of_segment) for of_segment in frames])
            per_segment = np.split(per_frame, ends[:-1])
            for digest, values in zip(batch, per_segment, strict=True):
                rewards[digest] = float(values.mean())
        return rewards


def fingerprint(reward_model: ZeroShotReward) -> str:
    """Fingerprint, eight hexadecimal digits, that tells two encoders of one name apart: by the embedding of a fixed
    picture and the scores of fixed embeddings. Coarse, so that another number of threads changes nothing."""
    rng = np.random.default_rng(0)
    side = reward_model.encoder.image_size
    picture = reward_model.encoder.embed_frames(rng.integers(0, 256, (1, side, side, 3), np.uint8))
    probes = rng.standard_normal((16, picture.shape[1])).astype(np.float32)
    probes /= np.linalg.norm(probes, axis=1, keepdims=True)
    numbers = np.concatenate([probes @ picture[0], reward_model.head(probes)])
    rounded = np.rint(numbers * 1000).astype(np.int32)
    return hashlib.sha256(rounded.tobytes()).hexdigest()[:8]


def _segments_of(questions: Sequence[Question]) -> dict[str, Segment]:
    """Digest -> segment; one that several questions are about is in there once."""
    segments: dict[str, Segment] = {}
    for question in questions:
        segments |= {segment.digest: segment for segment in question.segments}
    return segments


def _value(question: Question, reward: float, scale: tuple[float, float]) -> float:
    """Level or score: the position on the scale, its middle where the scale has no length."""
    low, high = scale
    position = 0.5
    if high > low:
        position = float(np.clip((reward - low) / (high - low), 0.0, 1.0))
    if question.kind == "score":
        return round(position, 4)  # what is beyond depends on how many frames were read together
    return float(min(int(position * question.levels), question.levels - 1))


def _in_batches(segments: dict[str, Segment]) -> Iterator[list[str]]:
    """Batch segments by digest: frames of one size, at most `FRAMES_AT_ONCE` unless one segment has more."""
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
                batch = []
                frames = 0
            batch.append(digest)
            frames += length
        yield batch
