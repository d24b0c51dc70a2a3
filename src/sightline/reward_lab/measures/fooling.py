"""Which frames fool the reward: paid as the goal is, and not showing it?"""

from __future__ import annotations

import numpy as np

from sightline.evaluation.statistics import Groups
from sightline.reward_lab.measures.resampling import RESAMPLES, estimate
from sightline.reward_lab.measures.result import Measure, undefined
from sightline.reward_lab.measures.success_detection import with_success
from sightline.reward_lab.measures.table import ScoredFrames

MOST_FOOLING = 9


def fooling(frames: ScoredFrames, resamples: int = RESAMPLES) -> Measure:
    """Share of frames beside the goal that are paid more than the median frame of the goal, a tie counting one half.
    From 0 to 1; 0.5 is blind.

    Details: `margin`, the highest reward beside the goal less the median at it, in units of the range of all rewards;
    above 0 something else pays better. `frames`, the nine rows that fool it most, of different episodes first.
    """
    reason, rows, success = with_success(frames)
    if reason:
        return undefined(reason, len(success), missing=frames.missing)
    groups = Groups(rows.rewards)

    def statistic(weights: np.ndarray) -> float | None:
        at_goal = weights * success
        others = weights * (1 - success)
        if not at_goal.any() or not others.any():
            return None
        median = groups.quantile(at_goal, 0.5)
        wins = (rows.rewards > median) + 0.5 * (rows.rewards == median)
        return float(np.average(wins, weights=others))

    median = float(np.median(rows.rewards[success == 1]))
    spread = float(np.ptp(rows.rewards))
    margin = (float(rows.rewards[success == 0].max()) - median) / spread
    return estimate(
        statistic, rows.episode, resamples, missing=frames.missing, margin=margin, frames=most_fooling(frames)
    )


def most_fooling(frames: ScoredFrames) -> list[int]:
    """Rows of the frames beside the goal that are paid best, at most nine, of different episodes first."""
    is_candidate = frames.answered.copy()
    if frames.success is not None:
        is_candidate &= frames.is_stated & ~frames.success.astype(bool)
    rows = np.flatnonzero(is_candidate)
    best_first = rows[np.argsort(-frames.rewards[rows], kind="stable")]
    # Neighbours in an episode look alike: the best of each comes before the second best of any.
    _, places = np.unique(frames.episode[best_first], return_index=True)
    best_of_each = best_first[np.sort(places)]
    rest = best_first[~np.isin(best_first, best_of_each)]
    return [int(row) for row in np.concatenate([best_of_each, rest])[:MOST_FOOLING]]
