"""Does the reward rise on the way to the goal, stay there, and move evenly?"""

from __future__ import annotations

import numpy as np

from sightline.evaluation.statistics import spearman as rank_correlation
from sightline.reward_lab.measures.resampling import RESAMPLES, estimate
from sightline.reward_lab.measures.result import NO_SUCCESS, Measure, is_constant, undefined, unusable_reward
from sightline.reward_lab.measures.table import ScoredFrames

LEAST_FRAMES = 3
"""Frames of an episode below which there is no order to speak of."""
STEPS_AFTER = 20
"""Steps after the first success that are looked at."""


def value_order(frames: ScoredFrames, resamples: int = RESAMPLES) -> Measure:
    """Value-order correlation (VOC; Ma et al., "Generative value learning", 2025): Spearman's correlation of the reward
    with the step, the mean over successful episodes up to their first success. From -1 to 1.

    Episodes with a constant reward, too short ones and frames without an answer are counted in the details: they are no
    zeros, which would mix a model that sees no progress with one that does not answer.
    """
    if frames.success is None:
        return undefined(NO_SUCCESS, unit="episodes", missing=frames.missing)
    values: list[float] = []
    numbers: list[int] = []
    constant = 0
    short = 0
    unanswered = 0
    total = 0
    whole = frames.episodes()
    for number, rows in enumerate(_until_success(frames)):
        # A frame that stands alone, such as a state of a grid, has no order to be asked for.
        if rows is None or whole[number].stop - whole[number].start == 1:
            continue
        rewards = frames.rewards[rows]
        is_known = frames.answered[rows]
        total += len(rewards)
        unanswered += int(np.count_nonzero(~is_known))
        if np.count_nonzero(is_known) < LEAST_FRAMES:
            short += 1
            continue
        if is_constant(rewards[is_known]):
            constant += 1
            continue
        value = rank_correlation(frames.step[rows][is_known], rewards[is_known])
        assert value is not None, "the reward is not constant, and steps rise"
        values.append(value)
        numbers.append(number)
    answer_rate = 1 - unanswered / total if total else None
    details = {"constant_episodes": constant, "short_episodes": short, "answer_rate": answer_rate}
    if not values:
        reason = f"of the successful episodes {constant} have a constant reward, and {short} less than 3 rewards"
        if not total:
            reason = "no episode reaches the goal"
        return undefined(reason, 0, "episodes", frames.missing, **details)
    by_episode = np.array(values)

    def statistic(weights: np.ndarray) -> float:
        return float(np.average(by_episode, weights=weights))

    return estimate(statistic, np.array(numbers), resamples, "episodes", frames.missing, **details)


def after_success(frames: ScoredFrames, resamples: int = RESAMPLES) -> Measure:
    """Reward in the 20 steps after the first success, as a share of the reward at it, both from the lowest of all
    rewards on, and summed over successful episodes.

    1 is a reward that stays. Much less punishes staying at the goal. Undefined where episodes end with success.
    """
    if frames.success is None:
        return undefined(NO_SUCCESS, unit="episodes", missing=frames.missing)
    reason = unusable_reward(frames)
    if reason:
        return undefined(reason, 0, "episodes", frames.missing)
    lowest = float(frames.rewards[frames.answered].min())
    at_goal: list[float] = []
    afterwards: list[float] = []
    numbers: list[int] = []
    whole = frames.episodes()
    for number, rows in enumerate(_until_success(frames)):
        if rows is None:
            continue
        later = frames.rewards[rows.stop : min(rows.stop + STEPS_AFTER, whole[number].stop)]
        later = later[np.isfinite(later)]
        first = frames.rewards[rows.stop - 1]
        if np.isfinite(first) and len(later):
            at_goal.append(first - lowest)
            afterwards.append(float(later.mean()) - lowest)
            numbers.append(number)
    if not numbers:
        return undefined("no episode goes on after its first success", 0, "episodes", frames.missing)
    at = np.array(at_goal)
    after = np.array(afterwards)

    def statistic(weights: np.ndarray) -> float | None:
        total = float(weights @ at)
        return float(weights @ after) / total if total > 0 else None

    if statistic(np.ones(len(at))) is None:
        return undefined("the reward is lowest at the first success", len(at), "episodes", frames.missing)
    return estimate(statistic, np.array(numbers), resamples, "episodes", frames.missing)


def roughness(frames: ScoredFrames, resamples: int = RESAMPLES) -> Measure:
    """Mean size of the second difference along episodes, `|r_t - 2 r_{t-1} + r_{t-2}|`, in units of the interquartile
    range of all rewards. 0 is a straight line; above 1 neighbouring frames differ as much as any two."""
    reason = unusable_reward(frames)
    if reason:
        return undefined(reason, missing=frames.missing)
    low, high = np.percentile(frames.rewards[frames.answered], [25, 75])
    if high == low:
        return undefined("the middle half of the rewards is constant", missing=frames.missing)
    # Three steps that follow each other in one episode, all with a reward.
    is_triple = (frames.episode[2:] == frames.episode[:-2]) & (frames.step[2:] - frames.step[:-2] == 2)
    bends = np.abs(frames.rewards[2:] - 2 * frames.rewards[1:-1] + frames.rewards[:-2]) / (high - low)
    is_triple &= np.isfinite(bends)
    if not is_triple.any():
        return undefined("no three frames with a reward follow each other", missing=frames.missing)
    bends = bends[is_triple]

    def statistic(weights: np.ndarray) -> float:
        return float(np.average(bends, weights=weights))

    return estimate(statistic, frames.episode[2:][is_triple], resamples, missing=frames.missing)


def _until_success(frames: ScoredFrames) -> list[slice | None]:
    """Rows of each episode up to its first success, and that; None where it has none."""
    assert frames.success is not None, "asked before"
    parts: list[slice | None] = []
    for rows in frames.episodes():
        successes = np.flatnonzero(frames.success[rows])
        parts.append(slice(rows.start, rows.start + int(successes[0]) + 1) if len(successes) else None)
    return parts
