"""Measures of rewards: one file for each question, all by numpy alone.

`OF_FRAMES` holds those that read nothing but scored frames. The others compare with further rewards.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from sightline.reward_lab.measures.confusion import confusion_margin as confusion_margin
from sightline.reward_lab.measures.correlation import pearson, spearman
from sightline.reward_lab.measures.epic import epic
from sightline.reward_lab.measures.epic import epic_of_transitions as epic_of_transitions
from sightline.reward_lab.measures.fooling import fooling
from sightline.reward_lab.measures.progress import after_success, roughness, value_order
from sightline.reward_lab.measures.ranking import kendall_tau, pair_accuracy
from sightline.reward_lab.measures.result import Measure
from sightline.reward_lab.measures.success_detection import auprc, auroc, auroc_last, auroc_max, calibration_error
from sightline.reward_lab.measures.table import ScoredFrames

OF_FRAMES: Mapping[str, Callable[[ScoredFrames, int], Measure]] = {
    "spearman": spearman,
    "epic": epic,
    "auroc": auroc,
    "pearson": pearson,
    "auroc_last": auroc_last,
    "auroc_max": auroc_max,
    "auprc": auprc,
    "pair_accuracy": pair_accuracy,
    "value_order": value_order,
    "kendall_tau": kendall_tau,
    "fooling": fooling,
    "after_success": after_success,
    "roughness": roughness,
    "calibration_error": calibration_error,
}
"""Measures of scored frames by name; each is called with them and a number of resamples."""
