"""Measures of frames against ground truth and success: by SciPy, by hand arithmetic, and where nothing can be said."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from sightline.errors import BadInput
from sightline.reward_lab.measures import OF_FRAMES
from sightline.reward_lab.measures.correlation import pearson, spearman
from sightline.reward_lab.measures.epic import TransitionSample, canonically_shaped, epic, epic_of_transitions
from sightline.reward_lab.measures.resampling import draws
from sightline.reward_lab.measures.result import ALL_SUCCESSES, CONSTANT_REWARD, CONSTANT_TRUTH, NO_SUCCESS, NO_TRUTH
from sightline.reward_lab.measures.success_detection import auprc, auroc, auroc_last, auroc_max, calibration_error
from sightline.reward_lab.measures.table import ScoredFrames

RNG = np.random.default_rng(7)


def frames(rewards: Any, truth: Any = None, success: Any = None, length: int = 1) -> ScoredFrames:
    """Frames in episodes of this length."""
    rewards = np.asarray(rewards, np.float64)
    row = np.arange(len(rewards))
    return ScoredFrames(
        rewards,
        row // length,
        row % length,
        ["random"] * -(-len(rewards) // length),
        None if truth is None else np.asarray(truth, np.float64),
        None if success is None else np.asarray(success, bool),
    )


TRUTH = np.round(RNG.normal(size=60), 1)  # with ties
REWARDS = np.round(TRUTH + RNG.normal(size=60), 1)
SUCCESS = TRUTH > 0.5
SCORED = frames(REWARDS, TRUTH, SUCCESS, length=6)


def test_correlations_are_those_of_scipy() -> None:
    assert pearson(SCORED).value == pytest.approx(stats.pearsonr(REWARDS, TRUTH).statistic, abs=1e-12)
    assert spearman(SCORED).value == pytest.approx(stats.spearmanr(REWARDS, TRUTH).statistic, abs=1e-12)


def test_areas_under_curves_by_counting_pairs() -> None:
    pairs = [(a > b) + 0.5 * (a == b) for a in REWARDS[SUCCESS] for b in REWARDS[~SUCCESS]]
    assert auroc(SCORED).value == pytest.approx(np.mean(pairs), abs=1e-12)
    u = stats.mannwhitneyu(REWARDS[SUCCESS], REWARDS[~SUCCESS]).statistic
    assert auroc(SCORED).value == pytest.approx(u / len(pairs), abs=1e-12)


def test_average_precision_by_hand() -> None:
    # Thresholds 3: 1 of 1 right; 2: 2 of 3 right (a tie of two); 1: nothing new; so 1/2 · 1 + 1/2 · 2/3.
    measure = auprc(frames([3, 2, 2, 1], success=[1, 0, 1, 0]))
    assert measure.value == pytest.approx(0.5 + 0.5 * 2 / 3)
    assert measure.details["share_of_goal"] == 0.5


def test_areas_by_episode() -> None:
    # Episodes (1, 9), (5, 2), (3, 3): the second one reaches the goal at its first step.
    scored = frames([1, 9, 5, 2, 3, 3], success=[0, 0, 1, 0, 0, 0], length=2)
    assert auroc_last(scored).value == 0.0  # 2 against 9 and 3
    assert auroc_max(scored).value == 0.5  # 5 against 9 and 3
    assert auroc_max(scored).n == 3 and auroc_max(scored).unit == "episodes"


def test_calibration_error_by_hand() -> None:
    measure = calibration_error(frames([0.95, 0.95, 0.05, 0.12], success=[1, 0, 0, 1]))
    assert measure.value == pytest.approx((abs(1 - 1.9) + 0.05 + 0.88) / 4)
    assert measure.details["brier"] == pytest.approx((0.05**2 + 0.95**2 + 0.05**2 + 0.88**2) / 4)


def test_rewards_outside_0_to_1_are_no_probabilities() -> None:
    assert "no probability" in calibration_error(frames([0.5, 1.2], success=[0, 1])).undefined


@pytest.mark.parametrize("measure", [pearson, spearman, epic, auroc])
def test_intervals_are_percentiles_over_repeated_episodes(measure: Any) -> None:
    """The interval by weights is that of tables in which episodes really stand several times."""
    values = []
    rows_of = SCORED.episodes()
    for weights in draws(len(rows_of), 100):
        rows = np.concatenate([np.arange(60)[rows_of[e]] for e in range(len(rows_of)) for _ in range(int(weights[e]))])
        values.append(measure(frames(REWARDS[rows], TRUTH[rows], SUCCESS[rows], length=6), 0).value)
    result = measure(SCORED, 100)
    assert (result.low, result.high) == pytest.approx(tuple(np.percentile(values, [2.5, 97.5])), abs=1e-9)
    assert result.low < result.value < result.high


def test_frames_of_an_episode_are_no_independent_frames() -> None:
    """Ten times the same frames in each episode make no narrower interval."""
    repeated = frames(REWARDS.repeat(10), TRUTH.repeat(10), length=60)
    alike = frames(REWARDS, TRUTH, length=6)
    wide, narrow = pearson(repeated), pearson(frames(REWARDS.repeat(10), TRUTH.repeat(10)))
    assert (wide.low, wide.high) == pytest.approx((pearson(alike).low, pearson(alike).high))
    assert wide.high - wide.low > 1.5 * (narrow.high - narrow.low)  # type: ignore[operator]


def test_few_episodes_have_no_interval() -> None:
    measure = pearson(frames(REWARDS, TRUTH, length=15))
    assert measure.value is not None and measure.low is None and measure.high is None
    assert measure.no_interval == "an interval needs 5 episodes, and this rests on 4"
    assert "no_interval" in measure.document() and "undefined" not in measure.document()


def test_few_successes_have_no_interval() -> None:
    success = np.zeros(60, bool)
    success[:3] = True  # all in the first of ten episodes, which a third of all draws lacks
    measure = auroc(frames(REWARDS, success=success, length=6))
    assert measure.value is not None and measure.low is None
    assert measure.no_interval.startswith("too few episodes of a kind: 3")


def test_frames_without_reward_are_left_out_and_counted() -> None:
    rewards = REWARDS.copy()
    rewards[[0, 7]] = np.nan
    rewards[30] = -np.inf
    known = np.isfinite(rewards)
    measure = pearson(frames(rewards, TRUTH, length=6))
    assert measure.value == pytest.approx(stats.pearsonr(rewards[known], TRUTH[known]).statistic)
    assert measure.missing == 3 and measure.n == 57
    unknown = TRUTH.copy()
    unknown[:10] = np.nan
    assert pearson(frames(REWARDS, unknown)).n == 50 and pearson(frames(REWARDS, unknown)).missing == 0


@pytest.mark.parametrize(
    ("name", "scored", "reason"),
    [
        ("pearson", frames(REWARDS), NO_TRUTH),
        ("spearman", frames(REWARDS, np.full(60, np.nan)), NO_TRUTH),
        ("epic", frames(np.full(60, 0.1), TRUTH), CONSTANT_REWARD),
        ("epic", frames(0.1 + 1e-9 * REWARDS, TRUTH), CONSTANT_REWARD),
        ("pearson", frames(REWARDS, np.ones(60)), CONSTANT_TRUTH),
        ("pearson", frames([1, 2], [1, 2]), "2 frames have a reward, and 3 are needed"),
        ("pearson", frames([], []), NO_TRUTH),
        ("auroc", frames(REWARDS), NO_SUCCESS),
        ("auroc", frames(REWARDS, success=np.ones(60)), ALL_SUCCESSES),
        ("auprc", frames(REWARDS, success=np.zeros(60)), "no frame shows the goal"),
        ("auroc_last", frames(REWARDS, success=np.zeros(60), length=6), "no episode shows the goal"),
        ("auroc_max", frames(np.full(60, np.nan), success=SUCCESS), "none of the 60 episodes has a reward"),
        ("auroc", frames(np.full(60, np.nan), success=SUCCESS), "none of the 60 frames has a reward"),
        ("auroc", frames([], success=[]), "there are no frames"),
    ],
)
def test_what_cannot_be_said_has_a_reason_and_no_number(name: str, scored: ScoredFrames, reason: str) -> None:
    measure = OF_FRAMES[name](scored, 100)
    assert (measure.value, measure.low, measure.high) == (None, None, None)
    assert measure.undefined == reason
    assert measure.document()["undefined"] == reason


@pytest.mark.parametrize("name", OF_FRAMES)
@pytest.mark.parametrize(
    "scored",
    [
        frames([], [], []),
        frames([1.0], [1.0], [True]),
        frames(np.full(12, np.nan), np.arange(12), np.arange(12) > 6, length=3),
        frames(np.ones(12), np.arange(12), np.arange(12) > 6, length=3),
        frames(np.arange(12), np.ones(12), np.ones(12), length=3),
        frames(np.arange(12), length=12),
    ],
)
def test_no_measure_gives_a_silent_number(name: str, scored: ScoredFrames) -> None:
    measure = OF_FRAMES[name](scored, 20)
    assert (measure.value is None) == bool(measure.undefined)
    assert measure.value is None or np.isfinite(measure.value)
    assert (measure.low is None) == (measure.high is None)
    assert measure.value is None or (measure.low is None) == bool(measure.no_interval)


def test_tables_that_do_not_match_are_refused() -> None:
    with pytest.raises(BadInput, match=r"truth has the shape \[2\]"):
        frames([1, 2, 3], truth=[1, 2])
    with pytest.raises(BadInput, match="numbered from 0 to 0"):
        ScoredFrames(np.zeros(2), np.array([0, 1]), np.zeros(2), ["random"])
    with pytest.raises(BadInput, match="order of its steps"):
        ScoredFrames(np.zeros(2), np.array([0, 0]), np.array([1, 0]), ["random"])
    with pytest.raises(BadInput, match="episode after episode"):
        ScoredFrames(np.zeros(2), np.array([1, 0]), np.array([0, 1]), ["random", "random"])
    with pytest.raises(BadInput, match="quality is of 1 episodes"):
        ScoredFrames(np.zeros(2), np.array([0, 1]), np.zeros(2), ["a", "b"], quality=np.zeros(1))


def test_frames_of_one_source() -> None:
    table = ScoredFrames(
        np.arange(6.0), np.arange(6) // 2, np.arange(6) % 2, ["random", "expert", "random"], quality=np.array([0, 2, 1])
    )
    part = table.of_source("random")
    assert part.rewards.tolist() == [0, 1, 4, 5] and part.episode.tolist() == [0, 0, 1, 1]
    assert part.coverage == "random" and table.coverage == "random + expert"
    assert part.quality is not None and part.quality.tolist() == [0, 1]


def transition_reward(states: np.ndarray, actions: np.ndarray, next_states: np.ndarray) -> np.ndarray:
    return np.asarray(np.sin(3 * states) * actions + next_states**2)


def sample(n: int, seed: int) -> TransitionSample:
    rng = np.random.default_rng(seed)
    return TransitionSample(rng.normal(size=n), rng.normal(size=n), rng.normal(size=n))


def epic_between(first: Any, second: Any, n: int = 80, m: int = 16, discount: float = 0.9) -> Any:
    return epic_of_transitions(first, second, sample(n, 0), sample(m, 1), np.arange(n), discount, "normal", 50)


def test_canonical_form_by_double_loop() -> None:
    some, others = sample(5, 0), sample(3, 1)
    by_hand = []
    for s, a, s2 in zip(some.states, some.actions, some.next_states, strict=True):
        value = transition_reward(s, a, s2)
        for a_j, s2_j in zip(others.actions, others.next_states, strict=True):
            value += (0.9 * transition_reward(s2, a_j, s2_j) - transition_reward(s, a_j, s2_j)) / 3
        by_hand.append(value)
    assert canonically_shaped(transition_reward, some, others, 0.9)[0] == pytest.approx(np.array(by_hand), abs=1e-12)


@given(factor=st.floats(0.01, 100), shift=st.floats(-10, 10), slope=st.floats(-5, 5), discount=st.floats(0, 1))
def test_epic_is_0_for_scaled_and_shaped_rewards(factor: float, shift: float, slope: float, discount: float) -> None:
    def shaped(s: np.ndarray, a: np.ndarray, s2: np.ndarray) -> np.ndarray:
        potential, potential_after = slope * np.cos(2 * s), slope * np.cos(2 * s2)
        return factor * transition_reward(s, a, s2) + shift + discount * potential_after - potential

    measure = epic_between(transition_reward, shaped, discount=discount)
    assert measure.value == pytest.approx(0, abs=1e-5)
    # The same without canonical shaping, which makes the difference.
    assert measure.details == {"coverage": "normal", "background": 16, "discount": discount}


def test_epic_of_opposite_and_of_mere_shaping() -> None:
    opposite = epic_between(transition_reward, lambda s, a, s2: -transition_reward(s, a, s2))
    assert opposite.value == pytest.approx(1)
    mere_shaping = epic_between(lambda s, a, s2: 0.9 * np.cos(s2) - np.cos(s), transition_reward)
    assert mere_shaping.undefined == "the reward is constant but for shaping"


def test_epic_grows_with_noise() -> None:
    noise = np.random.default_rng(0).normal(size=1000)
    truth = np.random.default_rng(1).normal(size=1000)
    distances = [epic(frames(truth + scale * noise, truth), 0).value for scale in (0, 0.1, 0.5, 1, 3, 10)]
    assert distances[0] == pytest.approx(0, abs=1e-7) and distances == sorted(distances)  # type: ignore[type-var]
    # Independent noise of the truth's own size: rho is 1/sqrt(2).
    assert distances[3] == pytest.approx(np.sqrt((1 - np.sqrt(0.5)) / 2), abs=0.02)


def test_epic_of_states_is_that_of_transitions() -> None:
    """The state form agrees with the canonical one for rewards of the state reached, at any size of background."""
    some = sample(200, 3)
    measure = epic_of_transitions(
        lambda s, a, s2: s2**3, lambda s, a, s2: s2, some, sample(8, 4), np.arange(200), 0.99, "normal", 0
    )
    assert epic(frames(some.next_states**3, some.next_states), 0).value == pytest.approx(measure.value, abs=1e-9)


def test_transitions_without_reward_are_counted() -> None:
    def patchy(s: np.ndarray, a: np.ndarray, s2: np.ndarray) -> np.ndarray:
        return np.where(s > 1.5, np.nan, s2)

    measure = epic_between(patchy, lambda s, a, s2: s2)
    some = sample(80, 0)
    assert measure.missing == np.count_nonzero((some.states > 1.5) | (some.next_states > 1.5))
    assert measure.n == 80 - measure.missing and measure.value == pytest.approx(0, abs=1e-7)


LEVELS = st.lists(st.tuples(st.integers(-3, 3), st.booleans()), min_size=4, max_size=40)


@given(LEVELS)
def test_auroc_is_blind_to_rising_scales_and_mirrors_with_the_sign(levels: list[tuple[int, bool]]) -> None:
    rewards = np.array([level for level, _ in levels], np.float64)
    success = np.array([one for _, one in levels])
    plain, cubed, mirrored = (auroc(frames(r, success=success), 0) for r in (rewards, rewards**3 + 2, -rewards))
    assert plain.value == cubed.value
    if plain.value is not None and mirrored.value is not None:
        assert plain.value + mirrored.value == pytest.approx(1)  # ties stay one half
