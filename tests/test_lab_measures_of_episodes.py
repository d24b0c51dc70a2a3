"""Measures along and between episodes, of what fools a reward, of controls and of instructions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from sightline.evaluation.statistics import Groups
from sightline.reward_lab.measures import OF_FRAMES
from sightline.reward_lab.measures.confusion import confusion_margin
from sightline.reward_lab.measures.controls import control_difference
from sightline.reward_lab.measures.fooling import fooling, most_fooling
from sightline.reward_lab.measures.progress import after_success, roughness, value_order
from sightline.reward_lab.measures.ranking import kendall_tau, pair_accuracy
from sightline.reward_lab.measures.resampling import draws
from sightline.reward_lab.measures.table import ScoredFrames

RNG = np.random.default_rng(3)


def episodes(rewards: list[Any], success: list[Any] | None = None, **facts: Any) -> ScoredFrames:
    """A table of whole episodes, given one by one."""
    lengths = [len(part) for part in rewards]
    return ScoredFrames(
        np.concatenate([np.asarray(part, np.float64) for part in rewards]),
        np.repeat(np.arange(len(rewards)), lengths),
        np.concatenate([np.arange(length) for length in lengths]),
        ["scripted"] * len(rewards),
        success=None if success is None else np.concatenate([np.asarray(part, bool) for part in success]),
        **facts,
    )


def test_value_order_is_spearman_up_to_the_first_success() -> None:
    rewards = [RNG.normal(size=12).round(1) for _ in range(6)]
    success = [np.arange(12) >= 8 for _ in range(6)]
    by_hand = [stats.spearmanr(np.arange(9), part[:9]).statistic for part in rewards]
    measure = value_order(episodes(rewards, success))
    assert measure.value == pytest.approx(np.mean(by_hand), abs=1e-12)
    assert measure.n == 6 and measure.unit == "episodes" and measure.low is not None


def test_value_order_tells_silence_from_disorder() -> None:
    """Constant rewards, short episodes and missing answers are counted, and are no zeros; failures and single frames
    do not count."""
    rewards = [[1, 2, np.nan, 4], [5, 5, 5, 5], [1, 2], [4, 3, 2, 1], [7]]
    success = [[0, 0, 0, 1], [0, 0, 0, 1], [0, 1], [0, 0, 0, 0], [1]]
    measure = value_order(episodes(rewards, success))
    assert measure.value == pytest.approx(1) and measure.n == 1
    assert measure.details == {"constant_episodes": 1, "short_episodes": 1, "answer_rate": 0.9}
    nothing = value_order(episodes(rewards[3:4], success[3:4]))
    assert nothing.undefined == "no episode reaches the goal" and nothing.details["answer_rate"] is None
    assert "1 have a constant reward" in value_order(episodes(rewards[1:2], success[1:2])).undefined


def test_after_success_by_hand() -> None:
    # Lowest 1. At first success 5 and 3; after it 3, 3 and 2: (2 + 1) / (4 + 2).
    scored = episodes([[1, 5, 3, 3], [1, 3, 2]], [[0, 1, 0, 1], [0, 1, 0]])
    assert after_success(scored).value == pytest.approx(0.5)
    # Of a long stay 20 steps count.
    long = episodes([[0.0, 1.0, *[1.0] * 20, *[0.0] * 50]], [[0, *[1] * 71]])
    assert after_success(long).value == pytest.approx(1)
    ends = episodes([[1, 2], [1, 3]], [[0, 1], [0, 1]])
    assert after_success(ends).undefined == "no episode goes on after its first success"
    assert "lowest" in after_success(episodes([[5, 1, 3]], [[0, 1, 0]])).undefined


def test_roughness_by_hand() -> None:
    rewards = [[0, 1, 3, 4], [2, 2, 8]]
    low, high = np.percentile([0, 1, 3, 4, 2, 2, 8], [25, 75])
    assert roughness(episodes(rewards)).value == pytest.approx((1 + 1 + 6) / 3 / (high - low))
    assert roughness(episodes([np.arange(9.0), np.arange(5.0)])).value == 0
    assert "no three frames" in roughness(episodes([[1, 2], [3, 4]])).undefined
    gap = ScoredFrames(np.array([1.0, 2, 9]), np.zeros(3, int), np.array([0, 1, 5]), ["a"])
    assert "no three frames" in roughness(gap).undefined


QUALITY = np.array([0, 2, 1, 0, 2, 1, 0, 2, 2])
MEANS = np.array([1.0, 3, 2, 2, 4, 2, 0, 2, 5])  # with ties


def test_kendall_is_tau_b_of_scipy() -> None:
    scored = episodes([[mean - 1, mean + 1] for mean in MEANS], quality=QUALITY)
    measure = kendall_tau(scored)
    assert measure.value == pytest.approx(stats.kendalltau(MEANS, QUALITY).statistic, abs=1e-12)
    assert measure.n == 9 and measure.low is not None
    pairs = [(a, b) for a in range(9) for b in range(9) if QUALITY[a] > QUALITY[b]]
    right = [(MEANS[a] > MEANS[b]) + 0.5 * (MEANS[a] == MEANS[b]) for a, b in pairs]
    assert measure.details["ranking_accuracy"] == pytest.approx(np.mean(right))
    assert measure.details["ties"] == pytest.approx(np.mean([MEANS[a] == MEANS[b] for a, b in pairs]))


def test_kendall_of_success_alone_and_of_nothing() -> None:
    scored = episodes([[1, 1], [2, 2], [3, 3]], [[0, 0], [0, 0], [0, 1]])
    assert kendall_tau(scored).value == pytest.approx(stats.kendalltau([1, 2, 3], [0, 0, 2]).statistic)
    assert "one quality" in kendall_tau(episodes([[1, 1], [2, 2]], [[0, 0], [0, 0]])).undefined
    assert "equal" in kendall_tau(episodes([[1, 1], [1, 1]], [[0, 0], [0, 1]])).undefined
    assert "several frames" in kendall_tau(episodes([[1], [2]], [[0], [1]])).undefined
    assert kendall_tau(episodes([[1, 2], [2, 2]])).undefined.startswith("it is not stated")


def test_pair_accuracy_by_all_pairs() -> None:
    truth = RNG.integers(0, 5, 40).astype(np.float64)
    rewards = np.round(truth + RNG.normal(size=40))
    measure = pair_accuracy(episodes([[r] for r in rewards], truth=truth))
    pairs = [(a, b) for a in range(40) for b in range(40) if truth[a] > truth[b]]
    right = [(rewards[a] > rewards[b]) + 0.5 * (rewards[a] == rewards[b]) for a, b in pairs]
    assert measure.value == pytest.approx(np.mean(right), abs=0.02)  # 10 000 draws of 1 600 pairs
    bins = measure.details["bins"]
    assert [one["difference"] for one in bins] == sorted(one["difference"] for one in bins)
    assert sum(one["pairs"] for one in bins) == measure.n
    assert measure.value == pytest.approx(np.average([b["accuracy"] for b in bins], weights=[b["pairs"] for b in bins]))
    assert bins[0]["accuracy"] < bins[-1]["accuracy"]


def test_pairs_stand_as_often_as_both_of_their_episodes() -> None:
    truth = RNG.normal(size=30)
    rewards = truth + 2 * RNG.normal(size=30)
    better, worse = np.nonzero(truth[:, None] > truth)
    right = rewards[better] > rewards[worse]
    values = [np.average(right, weights=weights[better] * weights[worse]) for weights in draws(30, 400)]
    low, high = np.percentile(values, [2.5, 97.5])
    measure = pair_accuracy(episodes([[r] for r in rewards], truth=truth), 400)
    assert (measure.low, measure.high) == pytest.approx((low, high), abs=0.03) and high - low > 0.2


def test_ties_are_half_right_and_shown() -> None:
    measure = pair_accuracy(episodes([[0], [1], [1], [1]], truth=np.array([0.0, 1, 2, 3])))
    # Of six pairs three are right, and three are ties.
    assert measure.value == pytest.approx(0.75, abs=0.02) and measure.details["ties"] == pytest.approx(0.5, abs=0.02)


def test_fooling_by_hand() -> None:
    # The goal's median is 6; beside it 9 is above, 6 a tie, 1 and 2 below; all rewards span 8.
    scored = episodes([[1, 9, 6], [2, 4, 8]], [[0, 0, 0], [0, 1, 1]])
    measure = fooling(scored)
    assert measure.value == pytest.approx(1.5 / 4) and measure.details["margin"] == pytest.approx(3 / 8)
    assert measure.details["frames"] == [1, 3, 2, 0]  # the best of each episode first
    assert scored.rewards[measure.details["frames"]].tolist() == [9, 2, 6, 1]


def test_the_most_fooling_frames_are_rows_of_the_whole_table() -> None:
    rewards = np.arange(40.0)
    rewards[39] = np.nan
    success = np.zeros(40, bool)
    success[38] = True
    scored = episodes(list(rewards.reshape(20, 2)), list(success.reshape(20, 2)))
    assert most_fooling(scored) == [37, 35, 33, 31, 29, 27, 25, 23, 21]
    assert fooling(scored).details["frames"] == most_fooling(scored)


def test_a_control_that_does_not_see_is_far_from_the_reward() -> None:
    success = np.arange(40) % 4 == 0
    rewards = success + 0.1 * RNG.normal(size=40)
    scored = episodes(list(rewards.reshape(10, 4)), list(success.reshape(10, 4)))
    blank = control_difference(scored, np.ones(40))
    assert blank.value == pytest.approx(0.5) and blank.low == pytest.approx(0.5)
    assert control_difference(scored, rewards).value == 0
    shuffled = control_difference(scored, RNG.permutation(rewards))
    assert shuffled.low is not None and shuffled.low > 0
    assert "no frame has both" in control_difference(scored, np.full(40, np.nan)).undefined
    some = np.ones(40)
    some[:3] = np.nan
    assert control_difference(scored, some).missing == 3


def test_what_is_not_stated_is_no_failure() -> None:
    """Frames that nobody has judged change no measure that needs success."""
    judged = [RNG.normal(size=4) for _ in range(8)]
    success = [np.arange(4) >= 4 - number % 3 for number in range(8)]
    others = [RNG.normal(size=4) + 9 for _ in range(3)]
    alone = episodes(judged, success)
    beside = episodes(
        [*judged, *others], [*success, *[np.zeros(4)] * 3], stated=np.arange(44) < 32, quality=None, truth=None
    )
    for name in ("auroc", "auroc_last", "auroc_max", "auprc", "kendall_tau", "fooling", "value_order"):
        with_others = OF_FRAMES[name](beside, 0)
        assert with_others.value == OF_FRAMES[name](alone, 0).value and with_others.value is not None, name
    control = RNG.normal(size=44)
    difference = control_difference(beside, control, 0)
    assert difference.value == control_difference(alone, control[:32], 0).value and difference.n == 32


def test_confusion_margin_by_hand() -> None:
    rewards = np.array([[2.0, 1, 0], [0, 0, 4], [5, 5, 5], [np.nan, 1, 2]])
    measure = confusion_margin(rewards, np.array([0, 1, 2, 0]))
    # Rows scaled: (1, ½, 0) with 1 its own, (0, 0, 1) with 0 its own.
    assert measure.value == pytest.approx(((1 - 0.25) + (0 - 0.5)) / 2)
    assert measure.n == 2 and measure.details["constant_rows"] == 1 and measure.details["unanswered_rows"] == 1


def test_favouring_one_instruction_is_no_reading() -> None:
    own = np.arange(60) % 3
    reads = 0.3 * RNG.normal(size=(60, 3))
    reads[np.arange(60), own] += 1
    assert confusion_margin(reads, own).details["p"] == pytest.approx(1 / 2001)
    favours = RNG.normal(size=(60, 3)) + np.array([5, 0, 0])
    assert confusion_margin(favours, own).details["p"] > 0.02
    # Neither where most videos happen to be of the one that it favours.
    mostly = confusion_margin(favours, np.minimum(np.arange(60) // 25, 2) % 2)
    assert mostly.value is not None and mostly.value > 0.2 and mostly.details["p"] > 0.02
    assert confusion_margin(reads[:, :1], own).undefined == "one instruction cannot be confused"
    assert confusion_margin(np.ones((3, 3)), np.arange(3)).undefined.startswith("no video")


@given(st.lists(st.tuples(st.integers(-2, 2), st.integers(0, 3)), min_size=1, max_size=12))
def test_weights_stand_for_repetitions(pairs: list[tuple[int, int]]) -> None:
    values = np.array([value for value, _ in pairs], np.float64)
    weights = np.array([weight for _, weight in pairs])
    repeated = values.repeat(weights)
    if len(repeated):
        groups = Groups(values)
        assert groups.quantile(weights, 0.5) == np.median(repeated)
        expected = stats.rankdata(repeated) - 0.5
        assert groups.ranks(weights).repeat(weights) == pytest.approx(expected)
