"""The encoder teacher agrees with the zero-shot reward it is made of."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from conftest import SENTENCES
from sightline.errors import BadInput
from sightline.labels.types import Answer, Outcome, Question, Segment
from sightline.models.encoders import load_encoder
from sightline.rewards.zero_shot import ZeroShotReward
from sightline.teachers import encoder as encoder_teacher
from sightline.teachers.chat import ChatTeacher
from sightline.teachers.encoder import EncoderTeacher
from sightline.teachers.scripted import ScriptedTeacher

WORDS: Any = (SENTENCES[:1], SENTENCES[2:3])
GOAL = WORDS[0]


class Counting:
    """An encoder that notes how many frames it was given each time."""

    def __init__(self, encoder: Any) -> None:
        self.encoder = encoder
        self.calls: list[int] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self.encoder, name)

    def embed_frames(self, frames: np.ndarray) -> np.ndarray:
        self.calls.append(len(frames))
        return np.asarray(self.encoder.embed_frames(frames))


def teacher(encoder: Any, words: Any = WORDS, alpha: float | None = None, **config: Any) -> EncoderTeacher:
    return EncoderTeacher(ZeroShotReward(*words, alpha=alpha, encoder=encoder), **config)


def ask(who: EncoderTeacher, questions: Sequence[Question]) -> list[Answer]:
    answers = dict(who.answers(questions))
    assert sorted(answers) == list(range(len(questions)))
    return [answers[index] for index in range(len(questions))]


@pytest.fixture
def segments(frames_of: Callable[..., np.ndarray]) -> list[Segment]:
    """Of one, two and three frames."""
    frames, unknown = frames_of(12), np.full(3, np.nan, np.float32)
    starts = (0, 1, 3, 6, 7, 9)
    return [Segment(frames[a : a + 1 + i % 3], unknown[: 1 + i % 3]) for i, a in enumerate(starts)]


@pytest.fixture
def rewards(bundled: Any, segments: list[Segment]) -> list[float]:
    """Segment by segment."""
    reward = ZeroShotReward(*WORDS, encoder=bundled)
    return [float(reward(segment.frames).mean()) for segment in segments]


def test_it_prefers_the_higher_mean_reward(bundled: Any, segments: list[Segment], rewards: list[float]) -> None:
    pairs = [(a, b) for a in range(len(segments)) for b in range(len(segments))]
    answers = ask(teacher(bundled), [Question("compare", (segments[a], segments[b]), GOAL) for a, b in pairs])
    for (a, b), answer in zip(pairs, answers, strict=True):
        assert answer.value == (0.5 if a == b else float(rewards[b] > rewards[a]))
        assert answer.confidence is None


def test_it_compares_for_its_own_goal_only(bundled: Any, frames_of: Callable[..., np.ndarray]) -> None:
    frames = frames_of(2)
    who = teacher(bundled)
    (answer,) = who.compare([(frames[0], frames[1])], GOAL[0])
    assert answer == who.compare([(frames[:1], frames[1:])], list(GOAL))[0]
    with pytest.raises(BadInput, match=f"judges by '{GOAL[0]}'; ask with that goal"):
        who.compare([(frames[0], frames[1])], "a totally different goal")


FRAME = np.zeros((8, 8, 3), np.uint8)
NO_PAIRS: dict[str, tuple[Any, str]] = {
    "triple": ([(FRAME, FRAME, FRAME)], r"pair 1: .* about two segments, \(first, second\), not 3"),
    "frame": ([(FRAME, FRAME), FRAME], r"pair 2: .* not uint8\[8, 8, 3\]"),
    "path": ([Path("a.png")], "pair 1: .* not PosixPath"),
    "paths": ([("a.png", "b.png")], "pair 1: a segment must be .* not str"),
    "floats": (
        [(FRAME / 255, FRAME / 255)],
        r"pair 1: a segment must be uint8\[L, H, W, 3\], or .* not float64\[8, 8, 3\]",
    ),
    "grey": ([(FRAME[..., 0], FRAME[..., 0])], r"not uint8\[8, 8\]"),
    "no steps": ([(FRAME[None][:0], FRAME)], r"not uint8\[0, 8, 8, 3\]"),
    "frames of two sizes": ([([FRAME, FRAME[:4]], FRAME)], "not list"),
    "nothing": (None, "pairs must be a list"),
}


@pytest.mark.parametrize(("pairs", "why"), NO_PAIRS.values(), ids=NO_PAIRS)
def test_what_is_no_pair_is_refused(bundled: Any, pairs: Any, why: str) -> None:
    for who in (teacher(bundled), ChatTeacher("a-model", url="http://localhost:1/v1"), ScriptedTeacher()):
        with pytest.raises(BadInput, match=why) as refusal:
            who.compare(pairs, GOAL)
        assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("goal", [None, 5, "", (), [None], b"red"])
def test_what_is_no_goal_is_refused(bundled: Any, goal: Any) -> None:
    for who in (teacher(bundled), ScriptedTeacher()):
        with pytest.raises(BadInput, match=r"goal|sentence"):
            who.compare([(FRAME, FRAME)], goal)


def test_small_differences_are_equal(bundled: Any, segments: list[Segment], rewards: list[float]) -> None:
    gap = abs(rewards[0] - rewards[1])
    question = Question("compare", (segments[0], segments[1]), GOAL)
    assert ask(teacher(bundled, equal_below=gap * 1.01), [question])[0].outcome is Outcome.EQUAL
    assert ask(teacher(bundled, equal_below=gap * 0.99), [question])[0].outcome is not Outcome.EQUAL


def test_levels_and_scores_are_positions_between_the_ends(
    bundled: Any, segments: list[Segment], rewards: list[float]
) -> None:
    who = teacher(bundled)
    scored = ask(who, [Question("score", (segment,), GOAL) for segment in segments])
    positions = (np.array(rewards) - min(rewards)) / (max(rewards) - min(rewards))
    np.testing.assert_allclose([answer.value for answer in scored], positions, atol=1e-4)
    who.reward_range = (rewards[0] - 0.3, rewards[0] + 0.1)
    rated, score = ask(who, [Question("rate", (segments[0],), GOAL, 5), Question("score", (segments[0],), GOAL)])
    assert (rated.value, score.value) == (3.0, pytest.approx(0.75, abs=1e-4))
    who.reward_range = (rewards[0] + 0.1, rewards[0] + 0.2)
    assert ask(who, [Question("rate", (segments[0],), GOAL, 5)])[0].value == 0.0
    who.reward_range = (0.0, 0.0)
    assert ask(who, [Question("score", (segments[0],), GOAL)])[0].value == 0.5


def test_every_segment_is_read_once_and_all_together(bundled: Any, segments: list[Segment]) -> None:
    counting = Counting(bundled)
    who = teacher(counting)
    counting.calls.clear()
    again = Segment(segments[0].frames.copy(), segments[0].true_rewards)
    pairs = [(segments[0], segments[1]), (again, segments[2]), (segments[1], again)]
    ask(who, [Question("compare", pair, GOAL) for pair in pairs])
    assert counting.calls == [1 + 2 + 3]
    assert ask(who, []) == []


def test_many_frames_are_read_in_parts(
    bundled: Any, segments: list[Segment], monkeypatch: pytest.MonkeyPatch, frames_of: Callable[..., np.ndarray]
) -> None:
    small = Segment(frames_of(2, 20, 20), np.zeros(2, np.float32))
    questions = [Question("score", (segment,), GOAL) for segment in [*segments, small]]
    counting = Counting(bundled)
    who = teacher(counting)
    whole = ask(who, questions)
    counting.calls.clear()
    monkeypatch.setattr(encoder_teacher, "FRAMES_AT_ONCE", 4)
    parts = ask(who, questions)
    assert counting.calls == [3, 4, 2, 3, 2]
    np.testing.assert_allclose([a.value for a in parts], [a.value for a in whole], atol=1e-4)


def test_the_signature_says_what_answers_depend_on(
    bundled: Any, encoder_folder: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    other_weights = load_encoder(f"local-dir:{encoder_folder('small')}", device="cpu")
    monkeypatch.setattr(other_weights, "name", bundled.name)
    who = [
        teacher(bundled),
        teacher(bundled, equal_below=0.1),
        teacher(bundled, (SENTENCES[1:2], WORDS[1])),
        teacher(bundled, (GOAL, SENTENCES[3:4])),
        teacher(bundled, (GOAL,)),
        teacher(bundled, (GOAL, WORDS[1]), alpha=0.25),
        teacher(other_weights),
    ]
    assert len({one.signature for one in who}) == len(who)
    assert teacher(bundled).signature == who[0].signature == teacher(bundled, (GOAL, WORDS[1]), alpha=0.5).signature
