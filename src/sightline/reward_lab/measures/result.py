"""The result of a measure: a number with its interval, or the reason why there is none."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from sightline.reward_lab.measures.table import ScoredFrames

ROUNDING = 4 * float(np.finfo(np.float32).eps)
"""Relative spread up to which numbers count as constant: rewards are float32, and one model gives them in batches."""
NO_TRUTH = "there is no ground truth"
NO_SUCCESS = "it is not stated which frames show the goal"
CONSTANT_REWARD = "the reward is constant"
CONSTANT_TRUTH = "the ground truth is constant"
ALL_SUCCESSES = "all frames show the goal"
NO_SUCCESSES = "no frame shows the goal"


@dataclass(frozen=True)
class Measure:
    """Result of a measure.

    Attributes:
        value: None where it is undefined.
        low, high: its 95 % interval; None where there is none.
        n: number of what it rests on, in `unit`.
        unit: "frames", "episodes", "pairs", …
        missing: frames that had no reward, and are left out.
        undefined: why there is no value; empty if there is one.
        no_interval: why there is a value without an interval.
        details: what is to be read beside the value, as plain data.
    """

    value: float | None
    low: float | None = None
    high: float | None = None
    n: int = 0
    unit: str = "frames"
    missing: int = 0
    undefined: str = ""
    no_interval: str = ""
    details: Mapping[str, Any] = field(default_factory=dict)

    def document(self) -> dict[str, Any]:
        """Plain data for JSON, without what is empty."""
        document = asdict(self)
        optional = ("undefined", "no_interval", "details")
        return {name: value for name, value in document.items() if value or name not in optional}


def undefined(reason: str, n: int = 0, unit: str = "frames", missing: int = 0, **details: Any) -> Measure:
    """A measure without a value."""
    return Measure(None, n=n, unit=unit, missing=missing, undefined=reason, details=details)


def is_constant(values: np.ndarray, scale: float = 0.0) -> bool:
    """Whether float[N], N >= 1, are equal up to the rounding of float32.

    Args:
        scale: size of the numbers that the values are differences of, where those were larger.
    """
    spread = float(np.max(values) - np.min(values))
    largest = float(np.max(np.abs(values)))
    return spread <= ROUNDING * max(largest, scale)


def unusable_reward(frames: ScoredFrames, least: int = 2) -> str:
    """Why the rewards of these frames tell nothing; empty if they do.

    Args:
        least: the number of frames with a reward that a measure needs.
    """
    answered = frames.rewards[frames.answered]
    if not len(frames.rewards):
        return "there are no frames"
    if not len(answered):
        return f"none of the {len(frames.rewards)} frames has a reward"
    if len(answered) < least:
        return f"{len(answered)} frames have a reward, and {least} are needed"
    if is_constant(answered):
        return CONSTANT_REWARD
    return ""


def unusable_classes(success: np.ndarray | None) -> str:
    """Why bool[N] does not tell successes from the rest; empty if it does."""
    if success is None:
        return NO_SUCCESS
    if success.all():
        return ALL_SUCCESSES
    if not success.any():
        return NO_SUCCESSES
    return ""
