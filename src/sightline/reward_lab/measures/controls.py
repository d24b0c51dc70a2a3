"""Does the reward look? Its measures against those of the same reward on frames, or words, that cannot help."""

from __future__ import annotations

import numpy as np

from sightline.evaluation.statistics import Groups
from sightline.reward_lab.measures.resampling import RESAMPLES, estimate
from sightline.reward_lab.measures.result import Measure, undefined
from sightline.reward_lab.measures.success_detection import area_under_curve, with_success
from sightline.reward_lab.measures.table import ScoredFrames


def control_difference(frames: ScoredFrames, control: np.ndarray, resamples: int = RESAMPLES) -> Measure:
    """AUROC of a reward less that of a control on the same frames, drawn together (a paired bootstrap). From -1 to 1; a
    reward that looks at its frames is well above 0, and its interval holds no 0.

    Args:
        control: float[N], rewards of the same frames blank or shuffled, or by words that mean nothing. A constant
            control is blind, which is no error here: all its pairs are ties, and its AUROC is one half.
    """
    is_known = frames.answered & np.isfinite(control)
    missing = int(np.count_nonzero(~is_known))
    if not is_known.any():
        return undefined("no frame has both a reward and that of the control", missing=missing)
    if frames.success is not None:
        is_known &= frames.is_stated
    reason, rows, success = with_success(frames.select(is_known))
    if reason:
        return undefined(reason, len(success), missing=missing)
    real = Groups(rows.rewards)
    other = Groups(control[is_known])

    def statistic(weights: np.ndarray) -> float | None:
        of_real = area_under_curve(real, success, weights)
        of_control = area_under_curve(other, success, weights)
        if of_real is None or of_control is None:
            return None
        return of_real - of_control

    return estimate(statistic, rows.episode, resamples, missing=missing)
