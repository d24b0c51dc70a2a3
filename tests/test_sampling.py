"""Each sampler asks about what it is meant to ask about."""

from __future__ import annotations

from collections import Counter
from itertools import combinations
from typing import get_args

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare

from sightline.preferences.feedback.pairs import PairSampler
from sightline.preferences.sampling import (
    AskedPairs,
    PoolView,
    choose_pairs,
    choose_singles,
    disagreement,
    farthest_first,
    uncertainty,
)
from sightline.rewards.learned.fitting import stratified_batches

SAMPLERS: tuple[PairSampler, ...] = get_args(PairSampler)
EVERY_PAIR = 10_000
"""So many candidates that every pair of a small pool is one."""


def pool_of(count: int, members: int = 3, width: int = 4, seed: int = 0) -> PoolView:
    rng = np.random.default_rng(seed)
    digests = [f"segment {i}" for i in range(count)]
    return PoolView(digests, rng.standard_normal((count, width)), rng.standard_normal((members, count)))


def unordered(pairs: np.ndarray) -> list[tuple[int, ...]]:
    return [tuple(sorted(pair)) for pair in pairs.tolist()]


def choose(sampler: PairSampler, count: int, pool: PoolView, seed: int = 0, candidates: int = 10) -> np.ndarray:
    return choose_pairs(sampler, count, pool, np.random.default_rng(seed), candidates)


@pytest.mark.parametrize("sampler", SAMPLERS)
@settings(deadline=None, max_examples=40)
@given(data=st.data())
def test_no_pair_is_of_one_look_or_asked_twice(sampler: PairSampler, data: st.DataObject) -> None:
    looks = data.draw(st.lists(st.integers(0, 5), max_size=9), "looks")
    asked = data.draw(st.lists(st.tuples(st.integers(0, 7), st.integers(0, 7)), max_size=8), "asked")
    count = data.draw(st.integers(0, 20), "count")
    fitted = data.draw(st.booleans(), "fitted")
    rng = np.random.default_rng(data.draw(st.integers(0, 99), "seed"))
    returns = rng.standard_normal((3, len(looks))) if fitted else None
    pool = PoolView([f"look {look}" for look in looks], rng.standard_normal((len(looks), 2)), returns)
    before = AskedPairs([(f"look {a}", f"look {b}") for a, b in asked], rng.standard_normal((len(asked), 2, 2)))

    pairs = choose_pairs(sampler, count, pool, rng, 3, before)

    seen = [tuple(sorted((looks[a], looks[b]))) for a, b in pairs]
    possible = {tuple(sorted(pair)) for pair in combinations(set(looks), 2)} - {tuple(sorted(pair)) for pair in asked}
    assert pairs.shape == (min(count, len(possible)), 2)
    assert len(set(seen)) == len(seen)
    assert set(seen) <= possible


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_the_same_seed_asks_the_same(sampler: PairSampler) -> None:
    pool = pool_of(50)
    np.testing.assert_array_equal(choose(sampler, 8, pool), choose(sampler, 8, pool))
    assert choose(sampler, 8, pool).tolist() != choose(sampler, 8, pool, seed=1).tolist()


def test_uniform_pairs_are_uniform_in_either_order() -> None:
    rng, pool = np.random.default_rng(0), pool_of(5)
    drawn = Counter(tuple(pair) for _ in range(2000) for pair in choose_pairs("uniform", 2, pool, rng).tolist())
    assert len(drawn) == 20
    assert chisquare(list(drawn.values())).pvalue > 1e-3


def test_a_large_pool_is_no_trouble() -> None:
    pool = PoolView([str(i) for i in range(100_000)], np.empty((100_000, 0)))
    pairs = choose("uniform", 1000, pool)
    assert len(set(unordered(pairs))) == 1000
    assert pairs.min() >= 0 and pairs.max() < 100_000 and 40_000 < pairs.mean() < 60_000


def test_disagreement_picks_the_pairs_with_the_largest_member_spread() -> None:
    pool = pool_of(12)
    assert pool.returns is not None
    first_wins = {
        (a, b): [1 / (1 + np.exp(member[b] - member[a])) for member in pool.returns]
        for a, b in combinations(range(12), 2)
    }
    by_spread = sorted(first_wins, key=lambda pair: -float(np.std(first_wins[pair])))
    assert unordered(choose("disagreement", 5, pool, candidates=EVERY_PAIR)) == by_spread[:5]


def test_entropy_picks_the_pairs_whose_outcome_is_least_sure() -> None:
    returns = np.array([[0.0, 1.0, 1.3, 5.0], [0.0, 2.0, 2.3, 5.0]])  # the members never differ much about 1 and 2
    pool = PoolView(list("abcd"), np.zeros((4, 1)), returns)
    assert unordered(choose("entropy", 2, pool, candidates=EVERY_PAIR)) == [(1, 2), (0, 1)]


def test_disagreement_and_uncertainty_by_hand() -> None:
    differences = np.log(np.array([[3.0, 1.0], [1 / 3, 1.0]]))  # P(first) = 3/4 and 1/4; 1/2 and 1/2
    np.testing.assert_allclose(disagreement(differences), [0.25, 0.0], atol=1e-12)
    quarter = -0.25 * np.log(0.25) - 0.75 * np.log(0.75)
    np.testing.assert_allclose(uncertainty(differences), [quarter, np.log(2)])
    extreme = np.array([[1e4], [-1e4]])
    assert disagreement(extreme) == [0.5] and uncertainty(extreme) == [0.0]


def test_farthest_first_by_hand() -> None:
    line = np.array([0.0, 1.0, 5.0, 9.0])
    pairs = np.stack([np.zeros(4), line], axis=1)[:, :, None]
    assert farthest_first(4, pairs).tolist() == [0, 3, 2, 1]
    asked = np.array([[[0.0], [9.0]]])
    assert farthest_first(3, pairs, asked).tolist() == [0, 2, 1]


def test_a_pair_means_the_same_in_both_orders() -> None:
    pairs = np.array([[[1.0], [3.0]], [[3.0], [1.0]], [[1.0], [3.5]]])
    assert farthest_first(2, pairs).tolist() == [0, 2]
    assert farthest_first(1, pairs, np.array([[[3.0], [1.0]]])).tolist() == [2]


@settings(deadline=None, max_examples=40)
@given(seed=st.integers(0, 999), count=st.integers(1, 12))
def test_each_choice_is_the_farthest_from_those_before(seed: int, count: int) -> None:
    rng = np.random.default_rng(seed)
    pairs, asked = rng.standard_normal((12, 2, 3)), rng.standard_normal((2, 2, 3))

    def distance(a: np.ndarray, b: np.ndarray) -> float:
        return min(float(np.linalg.norm(a - b)), float(np.linalg.norm(a - b[::-1])))

    before = list(asked)
    for chosen in farthest_first(count, pairs, asked):
        nearest = [min(distance(pair, other) for other in before) for pair in pairs]
        assert nearest[chosen] == pytest.approx(max(nearest))
        before.append(pairs[chosen])


def test_k_center_covers_clusters_and_keeps_off_what_was_asked() -> None:
    corners = np.repeat(np.array([[0.0, 0.0], [50.0, 0.0], [0.0, 70.0]]), 10, axis=0)
    features = corners + np.random.default_rng(0).uniform(-1, 1, corners.shape)
    pool = PoolView([str(i) for i in range(30)], features)  # k_center needs no predictions

    def kinds(pairs: np.ndarray) -> set[tuple[int, ...]]:
        return {tuple(sorted(pair)) for pair in (pairs // 10).tolist()}

    assert len(kinds(choose("k_center", 6, pool, candidates=EVERY_PAIR))) == 6
    known = np.array([[corners[0], corners[10]], [corners[20], corners[0]], [corners[10], corners[20]]])
    asked = AskedPairs([("gone", "too")] * 3, known)
    rest = choose_pairs("k_center", 3, pool, np.random.default_rng(0), EVERY_PAIR, asked)
    assert kinds(rest) == {(0, 0), (1, 1), (2, 2)}


@pytest.mark.parametrize(
    ("sampler", "score"), [("k_center_disagreement", disagreement), ("k_center_entropy", uncertainty)]
)
def test_hybrids_spread_over_the_better_half(sampler: PairSampler, score: object) -> None:
    assert callable(score)
    pool = pool_of(13)  # 78 pairs
    assert pool.returns is not None
    every = list(combinations(range(13), 2))
    a, b = np.array(every).T
    ranked = np.argsort(-score(pool.returns[:, a] - pool.returns[:, b]))
    better = [every[i] for i in ranked[:39]]
    chosen = unordered(choose(sampler, 39, pool, candidates=2))
    assert sorted(chosen) == sorted(better)
    few = choose(sampler, 5, pool, candidates=EVERY_PAIR)
    assert set(unordered(few)) <= set(better)
    assert sorted(unordered(few)) != sorted(better[:5])
    assert unordered(few)[0] == better[0]


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_before_the_first_fit_all_samplers_work(sampler: PairSampler) -> None:
    pool = PoolView(list("abcdefgh"), np.arange(8.0)[:, None])
    pairs = choose(sampler, 6, pool)
    assert pairs.shape == (6, 2)
    if sampler != "k_center":
        np.testing.assert_array_equal(pairs, choose("uniform", 6, pool))


@given(looks=st.lists(st.integers(0, 9), max_size=20), asked=st.sets(st.integers(0, 9)), count=st.integers(0, 12))
def test_singles_are_new_and_of_different_looks(looks: list[int], asked: set[int], count: int) -> None:
    pool = PoolView([str(look) for look in looks], np.zeros((len(looks), 1)))
    chosen = choose_singles(count, pool, np.random.default_rng(0), {str(look) for look in asked})
    seen = [looks[i] for i in chosen]
    assert len(set(seen)) == len(seen) == min(count, len(set(looks) - asked))
    assert not set(seen) & asked


def test_singles_are_uniform() -> None:
    rng, pool = np.random.default_rng(0), pool_of(6)
    drawn = Counter(i for _ in range(2000) for i in choose_singles(2, pool, rng).tolist())
    assert chisquare([drawn[i] for i in range(6)]).pvalue > 1e-3


def test_stratified_batches_balance_the_levels() -> None:
    levels = np.array([0] * 90 + [1] * 8 + [2] * 2)
    batches = list(stratified_batches(levels, 30, np.random.default_rng(0)))
    assert [len(batch) for batch in batches] == [30] * 4
    for batch in batches:
        assert np.bincount(levels[batch]).tolist() == [10, 10, 10]
    frequent = [i for batch in batches for i in batch if levels[i] == 0]
    assert len(set(frequent)) == 40, "a frequent level repeats itself although it has more"


@settings(max_examples=50)
@given(levels=st.lists(st.integers(0, 4), max_size=40), size=st.integers(1, 16), seed=st.integers(0, 9))
def test_levels_that_do_not_divide_a_batch_take_turns(levels: list[int], size: int, seed: int) -> None:
    batches = list(stratified_batches(np.array(levels, np.int64), size, np.random.default_rng(seed)))
    assert len(batches) == -(-len(levels) // size)
    together = Counter(levels[i] for batch in batches for i in batch)
    for batch in batches:
        assert len(batch) == min(size, len(levels))
    if batches:
        counts = [together[level] for level in set(levels)]
        assert max(counts) - min(counts) <= 1
