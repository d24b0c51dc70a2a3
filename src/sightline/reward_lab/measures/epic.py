"""Equivalent-policy invariant comparison (EPIC): how far two rewards are from ordering all policies alike.

Gleave et al., "Quantifying differences in reward functions", 2021. The distance is 0 for rewards that differ by
shaping, a positive factor and a constant, and at most 1. It belongs to its coverage, the transitions that it is taken
over: the same two rewards may be close on random play and far apart near the goal, so that coverage and number stand
beside it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from sightline.evaluation.statistics import correlation
from sightline.reward_lab.measures.correlation import with_truth
from sightline.reward_lab.measures.resampling import RESAMPLES, estimate
from sightline.reward_lab.measures.result import CONSTANT_REWARD, CONSTANT_TRUTH, Measure, is_constant, undefined
from sightline.reward_lab.measures.table import ScoredFrames

TransitionReward = Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray]
"""Reward of K transitions: from states [K, …], actions [K, …] and next states [K, …] to float[K]."""


@dataclass(frozen=True, eq=False)
class TransitionSample:
    """N transitions: states [N, …], actions [N, …] and next states [N, …]."""

    states: np.ndarray
    actions: np.ndarray
    next_states: np.ndarray

    def __len__(self) -> int:
        return len(self.states)


def epic(frames: ScoredFrames, resamples: int = RESAMPLES) -> Measure:
    """EPIC distance from the ground truth of a reward that depends on the state reached alone.

    `sqrt((1 - rho) / 2)`, with Pearson's rho over the frames: the canonical form of such a reward is the reward itself,
    up to factor and constant. From 0 (a rising line over the truth) to 1 (a falling one); 0.71 is no relation.
    """
    reason, rows, truth = with_truth(frames)
    if reason:
        return undefined(reason, len(truth), missing=frames.missing)

    def statistic(weights: np.ndarray) -> float | None:
        return _distance(correlation(rows.rewards, truth, weights))

    return estimate(statistic, rows.episode, resamples, missing=frames.missing, coverage=rows.coverage)


def epic_of_transitions(
    reward: TransitionReward,
    truth: TransitionReward,
    transitions: TransitionSample,
    background: TransitionSample,
    episode: np.ndarray,
    discount: float,
    coverage: str,
    resamples: int = RESAMPLES,
) -> Measure:
    """EPIC distance of two rewards of transitions, canonically shaped by a sample (Gleave et al., 2021, section 4).

    Args:
        transitions: N transitions of the coverage distribution.
        background: M transitions, whose actions and next states stand for what might be done from any state; their next
            states must be drawn apart from their states.
        episode: int64[N], the number of each transition's episode.
        discount: of both rewards, from 0 to 1.
        coverage: where the transitions are from.
    """
    shaped_reward, reward_scale = canonically_shaped(reward, transitions, background, discount)
    shaped_truth, truth_scale = canonically_shaped(truth, transitions, background, discount)
    is_known = np.isfinite(shaped_reward) & np.isfinite(shaped_truth)
    missing = int(np.count_nonzero(~is_known))
    shaped_reward = shaped_reward[is_known]
    shaped_truth = shaped_truth[is_known]
    n = len(shaped_reward)
    if n < 3:
        reason = f"{n} transitions have a reward, and 3 are needed"
        return undefined(reason, n, "transitions", missing)
    if is_constant(shaped_reward, reward_scale):
        return undefined(f"{CONSTANT_REWARD} but for shaping", n, "transitions", missing)
    if is_constant(shaped_truth, truth_scale):
        return undefined(f"{CONSTANT_TRUTH} but for shaping", n, "transitions", missing)

    def statistic(weights: np.ndarray) -> float | None:
        return _distance(correlation(shaped_reward, shaped_truth, weights))

    details = {"coverage": coverage, "background": len(background), "discount": discount}
    return estimate(statistic, episode[is_known], resamples, "transitions", missing, **details)


def canonically_shaped(
    reward: TransitionReward, transitions: TransitionSample, background: TransitionSample, discount: float
) -> tuple[np.ndarray, float]:
    """float64[N], the canonical form of a reward, which all its shaped forms share, up to a constant.

    `C(s, a, s') = R(s, a, s') + mean_j [discount R(s', a_j, s'_j) - R(s, a_j, s'_j)]` over the background; the constant
    `-discount R(S, A, S')` drops out of every correlation.

    Returns:
        The canonical form, and the size of the rewards that it is a difference of.
    """
    plain = np.asarray(reward(transitions.states, transitions.actions, transitions.next_states), np.float64)
    after = np.zeros(len(transitions))
    before = np.zeros(len(transitions))
    # One background action at a time, so that memory does not grow with their product.
    for j in range(len(background)):
        action = np.broadcast_to(background.actions[j], (len(transitions), *background.actions.shape[1:]))
        target = np.broadcast_to(background.next_states[j], transitions.next_states.shape)
        after += reward(transitions.next_states, action, target)
        before += reward(transitions.states, action, target)
    scale = float(np.nanmax(np.abs(plain), initial=0.0))
    return plain + (discount * after - before) / len(background), scale


def _distance(rho: float | None) -> float | None:
    if rho is None:
        return None
    return math.sqrt((1 - rho) / 2)
