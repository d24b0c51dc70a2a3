"""What is asked about and what is learned from the answers, with every sampler and every kind of feedback."""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest

from sightline.evaluation.statistics import spearman
from sightline.labels.types import Answer, ModelCall, Outcome, preference
from sightline.preferences.config import LearnedConfig
from sightline.preferences.feedback.ladder import LadderConfig
from sightline.preferences.feedback.pairs import PairSampler, PairsConfig
from sightline.preferences.feedback.ratings import RatingsConfig
from sightline.preferences.feedback.scores import ScoresConfig
from sightline.preferences.rounds import PreferenceLearner, QueryRound
from sightline.rewards.learned.config import CNNConfig, EmbeddingHeadConfig, FittingConfig, StatesConfig
from sightline.rewards.learned.reward import LadderReward
from sightline.runs.archive import Archives
from sightline.runs.state import read_state, write_state
from sightline.teachers.scripted import ScriptedTeacher

SIDE = 32
MODELS = {
    "states": StatesConfig(kind="states", hidden=(32, 32)),
    "cnn": CNNConfig(kind="cnn", channels=(4, 8), size=(16, 16)),
    "embeddings": EmbeddingHeadConfig(hidden=(16,)),
}
FEEDBACKS = {
    "pairs": PairsConfig(),
    "ratings": RatingsConfig(kind="ratings"),
    "scores": ScoresConfig(kind="scores"),
    "ladder": LadderConfig(kind="ladder", size=4),
}


class Eye:
    """An encoder whose embedding is the mean brightness of each quarter of the picture."""

    image_size, name = SIDE, "eye"

    def embed_frames(self, frames: np.ndarray) -> np.ndarray:
        half = frames.shape[1] // 2
        parts = [frames[:, y : y + half, x : x + half] for y in (0, half) for x in (0, half)]
        return np.stack([part.mean(axis=(1, 2, 3)) / 255 for part in parts], axis=1).astype(np.float32)


def make(feedback: Any, model: str = "states", segment: int = 1, seed: int = 0, **keys: Any) -> PreferenceLearner:
    config = LearnedConfig(
        kind="learned",
        feedback=feedback,
        model=MODELS[model],
        segment=segment,
        pool=60,
        questions=10,
        device="cpu",
        fitting=FittingConfig(ensemble=2, epochs=30, learning_rate=5e-3, **keys),
    )
    shape = (2,) if model == "states" else (SIDE, SIDE, 3)
    reward = config.make_reward(shape, Eye() if model == "embeddings" else None, seed)  # type: ignore[arg-type]
    return PreferenceLearner(config, reward, ("a bright picture",), (SIDE, SIDE, 3), seed)


def fill(lessons: PreferenceLearner, count: int = 60, seed: int = 0) -> None:
    """Segments of pictures of one brightness each, with noise; the brighter, the better."""
    rng, length = np.random.default_rng(seed), lessons.config.segment
    for _ in range(count):
        worth = rng.uniform(0, 1, length).astype(np.float32)
        frames = (220 * worth[:, None, None, None] + rng.integers(0, 30, (length, SIDE, SIDE, 3))).astype(np.uint8)
        if lessons.reward.needs == {"states"}:
            features = lessons.reward.features_of(np.stack([worth, rng.normal(size=length)], 1).astype(np.float32))
        else:
            features = lessons.reward.features_of(frames)
        lessons.pool.add(frames[None], features[None], worth[None])


def answer(asked: QueryRound, **failings: Any) -> list[Answer | None]:
    teacher = ScriptedTeacher(0, **failings)
    answers: list[Answer | None] = [None] * len(asked.questions)
    for i, given in teacher.answers(asked.questions):
        answers[i] = given
    return answers


def check_round(lessons: PreferenceLearner, asked: QueryRound, count: int) -> None:
    kind = lessons.config.feedback.kind
    wanted = {"pairs": ("compare", 2, 0), "ladder": ("compare", 2, 0), "ratings": ("rate", 1, 3)}.get(
        kind, ("score", 1, 0)
    )
    assert len(asked.questions) == len(asked.features) == count
    for question, features in zip(asked.questions, asked.features, strict=True):
        assert (question.kind, len(question.segments), question.levels) == wanted
        assert question.goal == ("a bright picture",)
        assert len(features) == len(question.segments)
        for segment, kept in zip(question.segments, features, strict=True):
            assert segment.frames.shape == (lessons.config.segment, SIDE, SIDE, 3)
            if lessons.reward.needs == {"states"}:
                np.testing.assert_allclose(kept[:, 0], segment.true_rewards, rtol=1e-6)
            else:
                expected = lessons.reward.features_of(segment.frames)
                np.testing.assert_array_equal(np.float32(kept), np.float32(expected))
    shown = [frozenset(s.digest for s in question.segments) for question in asked.questions]
    assert len(set(shown)) == count
    assert all(len(digests) == wanted[1] for digests in shown)


@pytest.mark.parametrize(("model", "segment"), [("states", 1), ("states", 3), ("cnn", 3), ("embeddings", 1)])
@pytest.mark.parametrize("sampler", get_args(PairSampler))
def test_every_sampler_asks_and_learns(sampler: PairSampler, model: str, segment: int) -> None:
    lessons = make(PairsConfig(sampler=sampler), model, segment)
    fill(lessons)
    seen: set[frozenset[str]] = set()
    for number in range(3):
        asked = lessons.compose(10, due_step=7)
        assert asked.due_step == 7
        check_round(lessons, asked, 10)
        shown = {frozenset(s.digest for s in question.segments) for question in asked.questions}
        assert not shown & seen, "nothing is asked again"
        seen |= shown
        numbers = lessons.learn(asked, answer(asked))
        assert (lessons.questions, lessons.usable_answers) == (10 * number + 10, 10 * number + 10)
        assert numbers["labels/accuracy"] == 1
    assert lessons.reward.ready
    correlation = numbers["reward/rank_correlation"]
    assert correlation is not None
    assert correlation > 0.4


@pytest.mark.parametrize("model", ["states", "cnn", "embeddings"])
@pytest.mark.parametrize("feedback", ["ratings", "scores"])
def test_singles_are_asked_and_learned_from(feedback: str, model: str) -> None:
    lessons = make(FEEDBACKS[feedback], model, segment=2)
    fill(lessons)
    for _ in range(3):
        asked = lessons.compose(15, due_step=0)
        check_round(lessons, asked, 15)
        numbers = lessons.learn(asked, answer(asked))
    assert len({question.segments[0].digest for question in asked.questions}) == 15
    assert len(lessons.asked) == len(set(lessons.asked)) == 45
    assert numbers["labels/value"] == 1
    assert numbers["labels/accuracy"] is None
    assert "reward/accuracy" in numbers
    assert numbers["reward/accuracy"] is None
    correlation = numbers["reward/rank_correlation"]
    assert correlation is not None
    assert correlation > 0.6
    check_round(lessons, lessons.compose(99, due_step=0), 15)  # all that were not asked about yet


def test_the_ladder_climbs_to_the_best() -> None:
    lessons = make(FEEDBACKS["ladder"], "embeddings")
    fill(lessons)
    assert isinstance(lessons.reward, LadderReward)
    heights = []
    for _ in range(5):
        asked = lessons.compose(20, due_step=0)
        check_round(lessons, asked, 20)
        numbers = lessons.learn(asked, answer(asked))
        assert lessons.reward.top is not None
        heights.append(float(lessons.reward.top.mean()))
        fill(lessons, 10, seed=len(heights))
    best = max(lessons.pool.features[:, 0].mean(axis=1))
    assert heights[-1] > heights[0]
    assert heights[-1] > 0.8 * best
    assert numbers["labels/kept"] == 100
    correlation = numbers["reward/rank_correlation"]
    assert correlation is not None
    assert correlation > 0.9
    frames = np.stack([np.full((SIDE, SIDE, 3), level, np.uint8) for level in (40, 120, 200)])
    assert (np.diff(lessons.reward(frames)) > 0).all()


def test_candidates_that_left_the_pool_can_still_be_shown() -> None:
    lessons = make(FEEDBACKS["ladder"], "embeddings")
    fill(lessons)
    asked = lessons.compose(8, due_step=0)
    lessons.learn(asked, answer(asked))
    fill(lessons, 60, seed=1)
    again = lessons.compose(8, due_step=0)
    known = set(lessons.pool.digests)
    shown = {segment.digest for question in again.questions for segment in question.segments}
    assert shown - known, "some are on the ladder alone"
    check_round(lessons, again, 8)


@pytest.mark.parametrize("ties", [True, False])
def test_ties_are_learned_from_or_set_aside(ties: bool) -> None:
    lessons = make(PairsConfig(ties=ties))
    fill(lessons)
    asked = lessons.compose(6, due_step=0)
    given: list[Answer | None] = [preference(value) for value in (0.5, 0.5, 0.0, 1.0, 0.5, 1.0)]
    numbers = lessons.learn(asked, given)
    assert lessons.usable_answers == (6 if ties else 3)
    assert lessons.examples.values == ([0.5, 0.5, 0.0, 1.0, 0.5, 1.0] if ties else [0.0, 1.0, 1.0])
    assert numbers["labels/equal"] == 0.5
    assert len(lessons.asked) == 6


def test_what_is_counted_by_hand() -> None:
    lessons = make(PairsConfig())
    fill(lessons)
    asked = lessons.compose(9, due_step=0)
    exchange = ModelCall("compare", False, "?", "!")
    truths = [float(q.segments[1].true_return > q.segments[0].true_return) for q in asked.questions]
    given: list[Answer | None] = [
        preference(truths[0]),
        preference(1 - truths[1]),
        preference(truths[2]),
        preference(0.5),
        Answer(Outcome.UNSURE, exchanges=(exchange,), seconds=3.0),
        Answer(Outcome.SKIPPED),
        Answer(Outcome.FAILED, exchanges=(exchange,), seconds=1.0),
        None,
        None,
    ]
    numbers = lessons.learn(asked, given)
    assert (lessons.questions, lessons.usable_answers) == (6, 4)
    assert (numbers["labels/asked"], numbers["labels/kept"]) == (6, 4)
    names = [f"labels/{outcome}" for outcome in Outcome]
    shares = {name: numbers[name] for name in names if numbers[name]}
    decided = {"labels/first", "labels/second"}
    assert sum(shares.get(name) or 0 for name in decided) == pytest.approx(3 / 7)
    assert {name: share for name, share in shares.items() if name not in decided} == pytest.approx(
        dict.fromkeys(["labels/equal", "labels/unsure", "labels/skipped", "labels/failed"], 1 / 7)
    )
    assert numbers["labels/accuracy"] == pytest.approx(2 / 3), "of the decided ones"
    assert numbers["labels/seconds"] == 2
    digests = [tuple(segment.digest for segment in q.segments) for q in asked.questions]
    assert lessons.asked == digests[:6], "what failed, and what was not asked, may come again"
    assert lessons.examples.values == [truths[0], 1 - truths[1], truths[2], 0.5]


def test_nothing_usable_teaches_nothing() -> None:
    lessons = make(PairsConfig())
    fill(lessons)
    asked = lessons.compose(3, due_step=0)
    numbers = lessons.learn(asked, [Answer(Outcome.REFUSED)] * 3)
    assert not lessons.reward.ready
    assert lessons.usable_answers == 0
    assert "reward/loss" not in numbers
    assert numbers["labels/accuracy"] is None


def test_unknown_ground_truth_is_no_accuracy() -> None:
    lessons = make(PairsConfig())
    rng = np.random.default_rng(0)
    for _ in range(20):
        frames = rng.integers(0, 255, (1, 1, SIDE, SIDE, 3), np.uint8)
        lessons.pool.add(frames, rng.normal(size=(1, 1, 2)).astype(np.float32), np.full((1, 1), np.nan, np.float32))
    asked = lessons.compose(5, due_step=0)
    numbers = lessons.learn(asked, [preference(1.0)] * 5)
    assert numbers["labels/accuracy"] is None
    assert numbers["reward/rank_correlation"] is None
    assert lessons.reward.ready


@pytest.mark.parametrize("feedback", FEEDBACKS)
def test_an_empty_pool_has_nothing_to_ask_about(feedback: str) -> None:
    lessons = make(FEEDBACKS[feedback], "embeddings")
    assert lessons.compose(5, due_step=0).questions == []


@pytest.mark.parametrize("scale", ["mean", "deviation"])
def test_the_reward_is_standardised_over_all_that_was_judged(scale: str) -> None:
    lessons = make(PairsConfig())
    fill(lessons)
    for _ in range(2):
        asked = lessons.compose(30, due_step=0)
        lessons.learn(asked, answer(asked))
    assert len(lessons.examples.steps()) == 120
    paid = lessons.reward.raw_reward(lessons.examples.steps()).astype(np.float64)
    expected = paid.mean() if scale == "mean" else paid.std()
    assert getattr(lessons.reward, f"_{scale}") == pytest.approx(expected, rel=1e-4, abs=1e-6)


@pytest.mark.parametrize("taught", [0, 1, 2])
@pytest.mark.parametrize(
    ("feedback", "model"),
    [("pairs", "states"), ("pairs", "cnn"), ("ratings", "embeddings"), ("scores", "states"), ("ladder", "embeddings")],
)
def test_restored_lessons_go_on_alike(feedback: str, model: str, taught: int, tmp_path: Path) -> None:
    block = PairsConfig(sampler="k_center_disagreement") if feedback == "pairs" else FEEDBACKS[feedback]
    lessons, other = make(block, model), make(block, model)
    fill(lessons)
    for _ in range(taught):
        asked = lessons.compose(10, due_step=0)
        lessons.learn(asked, answer(asked))
    archives = Archives(tmp_path / "replay")
    write_state(tmp_path / "state.safetensors", {"lessons": lessons.state(archives), "archives": archives.state()})
    state, read = read_state(tmp_path / "state.safetensors"), Archives(tmp_path / "replay")
    read.restore(state["archives"])
    other.restore(state["lessons"], read)
    for turn in range(2):
        rounds = [each.compose(10, due_step=0) for each in (lessons, other)]
        keys = [[question.key("") for question in asked.questions] for asked in rounds]
        assert keys[0] == keys[1]
        assert len(keys[0]) == 10
        numbers = [each.learn(asked, answer(asked)) for each, asked in zip((lessons, other), rounds, strict=True)]
        assert numbers[0] == numbers[1]
        features = lessons.pool.features.reshape(-1, *lessons.reward.feature_shape)
        np.testing.assert_array_equal(lessons.reward.rewards_of(features), other.reward.rewards_of(features))
        for each in (lessons, other):
            fill(each, 7, seed=turn + 5)


def test_other_seeds_ask_other_questions() -> None:
    keys = []
    for seed in (0, 0, 1):
        lessons = make(PairsConfig(), seed=seed)
        fill(lessons)
        keys.append([question.key("") for question in lessons.compose(10, due_step=0).questions])
    assert keys[0] == keys[1] != keys[2]


def test_labels_that_are_wrong_now_and_then() -> None:
    """One in five is turned round; what is learned still orders the pool."""
    lessons = make(PairsConfig(loss="noise_aware"))
    fill(lessons)
    for _ in range(5):
        asked = lessons.compose(40, due_step=0)
        numbers = lessons.learn(asked, answer(asked, mistake=0.2))
    assert numbers["labels/accuracy"] is not None
    assert numbers["labels/accuracy"] < 1
    found = spearman(lessons.reward.rewards_of(lessons.pool.features[:, 0]), lessons.pool.true_returns)
    assert found is not None
    assert found > 0.85
