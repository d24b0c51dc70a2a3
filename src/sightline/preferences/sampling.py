"""Samplers that choose the segments and pairs to query.

The samplers of B-Pref (Lee et al., NeurIPS 2021) and PEBBLE (Lee, Smith and Abbeel, ICML 2021), on arrays alone: what a
segment is made of (pixels, embeddings, states) is decided by whoever makes its features.

- `uniform`: any pair.
- `disagreement`: candidates on which the members of the ensemble differ most, by the standard deviation of
  P(first > second).
- `entropy`: candidates of which the members are least sure, by the mean entropy of that probability.
- `k_center`: candidates that are far from what was asked before and from each other: farthest first (Gonzalez, 1985).
- `k_center_disagreement`, `k_center_entropy`: of the better half of the candidates, those far from each other.

Candidates are uniform pairs. Before the first fit there is no disagreement: these samplers are uniform then.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

PairSampler = Literal["uniform", "disagreement", "entropy", "k_center", "k_center_disagreement", "k_center_entropy"]
"""Sampler of the pairs, see above."""


@dataclass(frozen=True, eq=False)
class PoolView:
    """The pool as a sampler sees it: N segments that can be asked about.

    Attributes:
        digests: of their frames; segments with equal ones look the same, and count as one.
        features: float[N, D], what distances are measured on.
        returns: float[M, N], their returns as each member of the ensemble predicts them; None before the first fit.
    """

    digests: Sequence[str]
    features: np.ndarray
    returns: np.ndarray | None = None


@dataclass(frozen=True, eq=False)
class AskedPairs:
    """K pairs that were asked before, whether their segments are still in the pool or not.

    Attributes:
        digests: of both segments, in any order.
        features: float[K, 2, D], for `k_center`; None if unknown.
    """

    digests: Sequence[tuple[str, str]] = ()
    features: np.ndarray | None = None


def choose_pairs(
    sampler: PairSampler,
    count: int,
    pool: PoolView,
    rng: np.random.Generator,
    candidates: int = 10,
    previous: AskedPairs | None = None,
) -> np.ndarray:
    """Pairs to ask about.

    Args:
        sampler: see above.
        count: pairs to choose.
        candidates: candidate pairs for each of these, from which all but `uniform` choose.
        previous: pairs that are not asked again, in neither order.

    Returns:
        int64[count, 2] indices into the pool, in random order within a pair; the two never look the same, and no pair
        comes twice. Fewer, if the pool has no more pairs that were not asked.
    """
    previous = previous or AskedPairs()
    needs_returns = sampler not in ("uniform", "k_center")
    # Before the first fit no member has an opinion of its own, so there is nothing to choose by.
    if sampler == "uniform" or (needs_returns and pool.returns is None):
        return _uniform_pairs(count, pool, rng, previous)
    pairs = _uniform_pairs(count * candidates, pool, rng, previous)

    # Sort the candidates by what the ensemble does not know; of equal ones the earlier stays in front.
    if needs_returns and pool.returns is not None:
        differences = pool.returns[:, pairs[:, 0]] - pool.returns[:, pairs[:, 1]]
        score = disagreement if sampler.endswith("disagreement") else uncertainty
        pairs = pairs[np.argsort(-score(differences), kind="stable")]
    if not sampler.startswith("k_center"):
        return np.asarray(pairs[:count])

    # The candidates of which the ensemble knows least are often alike: spread the questions over the better half.
    if sampler != "k_center":
        pairs = pairs[: max(count, len(pairs) // 2)]
    return np.asarray(pairs[farthest_first(count, pool.features[pairs], previous.features)])


def choose_singles(
    count: int, pool: PoolView, rng: np.random.Generator, previous: Collection[str] = frozenset()
) -> np.ndarray:
    """Segments to ask about one by one.

    Args:
        count: segments to choose.
        previous: digests of segments that are not asked about again.

    Returns:
        int64[count] indices into the pool, uniform, no two that look the same. Fewer, if there are no more.
    """
    excluded = set(previous)
    free = [index for index in _distinct(pool) if pool.digests[index] not in excluded]
    return np.asarray(rng.choice(np.array(free, np.int64), min(count, len(free)), replace=False))


def disagreement(differences: np.ndarray) -> np.ndarray:
    """float[M, P] predicted differences of returns -> float[P]: standard deviation over the members of P(first >
    second)."""
    return np.asarray(_sigmoid(differences).std(axis=0))


def uncertainty(differences: np.ndarray) -> np.ndarray:
    """float[M, P] predicted differences of returns -> float[P]: mean entropy of the members' preferences, in nats."""
    # The entropy of a Bernoulli variable with logit z is softplus(z) - z * sigmoid(z).
    z = differences.astype(np.float64)
    softplus = np.logaddexp(0.0, z)
    entropy = softplus - z * _sigmoid(z)
    return np.asarray(entropy.mean(axis=0))


def farthest_first(count: int, pairs: np.ndarray, previous: np.ndarray | None = None) -> np.ndarray:
    """Choose pairs one after the other, each the farthest from all that were chosen or asked before.

    A pair means the same in both orders, so of the two Euclidean distances between pairs the smaller one counts.

    Args:
        count: how many.
        pairs: float[C, 2, D] features of the candidates. The first is chosen first if nothing was asked before.
        previous: float[K, 2, D], features of the pairs asked before, or None.

    Returns:
        int64[min(count, C)], indices of candidates in the order of choice.
    """
    # Squared distance of each candidate from the nearest pair that was asked or is chosen already.
    distances = np.full(len(pairs), np.inf)
    if previous is not None and len(previous):
        distances = _squared_distances(pairs, previous).min(axis=1)
    centres = np.empty(min(count, len(pairs)), np.int64)
    for place in range(len(centres)):
        farthest = int(np.argmax(distances))
        centres[place] = farthest
        from_centre = _squared_distances(pairs, pairs[farthest : farthest + 1])[:, 0]
        distances = np.minimum(distances, from_centre)
        # Rounding may leave a chosen pair a little away from itself, and equal candidates are all at 0.
        distances[centres[: place + 1]] = -1.0
    return centres


def _uniform_pairs(count: int, pool: PoolView, rng: np.random.Generator, previous: AskedPairs) -> np.ndarray:
    """Uniform pairs, as `choose_pairs`, drawn by their numbers, so that none comes twice however small the pool is."""
    segments = _distinct(pool)
    total = len(segments) * (len(segments) - 1) // 2

    # Numbers of the pairs that were asked and are in the pool still.
    place = {pool.digests[index]: position for position, index in enumerate(segments)}
    excluded = set()
    for first, second in previous.digests:
        if first != second and first in place and second in place:
            excluded.add(_pair_number(place[first], place[second]))

    # As many more are drawn as may have to be left out.
    draws = np.empty(0, np.int64)
    if total:
        draws = rng.choice(total, min(total, count + len(excluded)), replace=False)
    free = [number for number in draws.tolist() if number not in excluded]
    numbers = np.array(free[:count], np.int64)

    # Back from a number to its pair: `higher` is the largest h with h (h - 1) / 2 <= number.
    higher = ((1 + np.sqrt(1 + 8 * numbers.astype(np.float64))) / 2).astype(np.int64)
    lower = numbers - higher * (higher - 1) // 2
    pairs = np.stack([lower, higher], axis=1)

    # A teacher may prefer whatever it sees first, so the order within a pair is random.
    swapped = rng.random(len(pairs)) < 0.5
    pairs[swapped] = pairs[swapped][:, ::-1]
    return np.asarray(segments[pairs])


def _pair_number(a: int, b: int) -> int:
    """Number of the pair {a, b}: 0 for {0, 1}, 1 for {0, 2}, 2 for {1, 2}, 3 for {0, 3} and so on."""
    lower, higher = sorted((a, b))
    return higher * (higher - 1) // 2 + lower


def _distinct(pool: PoolView) -> np.ndarray:
    """Indices int64 of distinct segments: the first of those that look the same."""
    first: dict[str, int] = {}
    for index, digest in enumerate(pool.digests):
        first.setdefault(digest, index)
    return np.array(list(first.values()), np.int64)


def _squared_distances(pairs: np.ndarray, centres: np.ndarray) -> np.ndarray:
    """Squared distances of pairs, float[C, 2, D] and float[K, 2, D] -> float64[C, K]; the smaller of both orders."""
    straight = _squared(pairs[:, 0], centres[:, 0]) + _squared(pairs[:, 1], centres[:, 1])
    crossed = _squared(pairs[:, 0], centres[:, 1]) + _squared(pairs[:, 1], centres[:, 0])
    return np.asarray(np.minimum(straight, crossed))


def _squared(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Squared Euclidean distances, float[C, D] and float[K, D] -> float64[C, K]."""
    x = x.astype(np.float64)
    y = y.astype(np.float64)
    # |x - y|^2 = |x|^2 + |y|^2 - 2 x·y needs no array [C, K, D]; rounding may bring it a little below 0.
    norms = (x * x).sum(axis=1)[:, None] + (y * y).sum(axis=1)[None]
    return np.asarray(np.maximum(norms - 2 * x @ y.T, 0.0))


def _sigmoid(z: np.ndarray) -> np.ndarray:
    # By way of the logarithm, which overflows for no z.
    return np.asarray(np.exp(-np.logaddexp(0.0, -z.astype(np.float64))))
