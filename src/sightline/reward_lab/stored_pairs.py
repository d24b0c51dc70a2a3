"""Pairs that somebody has judged, of a label store: does a reward prefer what was preferred?"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from sightline.datasets.episode import Episode
from sightline.errors import BadInput
from sightline.labels.store import LabelStore, existing_store
from sightline.labels.types import PREFERENCES
from sightline.reward_lab.measures.resampling import RESAMPLES, estimate
from sightline.reward_lab.measures.result import Measure, undefined
from sightline.reward_lab.measures.table import ScoredFrames
from sightline.reward_lab.sources import Source

NAME = "labels"
"""Of the source whose episodes are segments."""


@dataclass(frozen=True, eq=False)
class StoredPairs:
    """Judged pairs of a label store.

    Attributes:
        source: each distinct segment as an episode.
        pairs: int64[P, 2], which of these episodes were compared.
        preferred: int64[P], which of the two was preferred.
    """

    source: Source
    pairs: np.ndarray
    preferred: np.ndarray


def read_pairs(path: Path, trust: bool, warn: Callable[[str], None]) -> StoredPairs:
    """The pairs of a label store, or of a run that has one.

    Raises:
        BadInput: there is no store, or no pair of it was decided.
    """
    folder = existing_store(path, trust)
    with LabelStore(folder, read_only=True) as store:
        labels = [label for label in store.labels() if label.kind == "compare"]
    decided = [label for label in labels if PREFERENCES.get(label.answer.outcome) in (0.0, 1.0)]
    if not decided:
        raise BadInput(f"--labels: '{path}' holds {len(labels)} answers to pairs, and none prefers one of the two")
    if len(decided) < len(labels):
        warn(f"answers of '{path}' that are left out, since they prefer neither: {len(labels) - len(decided)}")
    digests = list(dict.fromkeys(digest for label in decided for digest in label.segments))
    numbers = {digest: number for number, digest in enumerate(digests)}

    def read(*_: object) -> Iterator[Episode]:
        with LabelStore(folder, read_only=True) as opened:
            for digest in digests:
                segment = opened.segment(digest)
                truth = segment.true_rewards
                is_known = bool(np.isfinite(truth).any())
                yield Episode(NAME, frames=segment.frames, env_reward=truth if is_known else None)

    pairs = np.array([[numbers[digest] for digest in label.segments] for label in decided])
    preferred = np.array([int(PREFERENCES[label.answer.outcome]) for label in decided])
    return StoredPairs(Source(NAME, read, plays=False), pairs, preferred)


def preference_accuracy(frames: ScoredFrames, judged: StoredPairs, resamples: int = RESAMPLES) -> Measure:
    """Share of judged pairs in which the segment that was preferred has the higher sum of rewards, a tie counting one
    half; `details` tells the share of ties.

    Args:
        frames: of all sources, those of the pairs among them.
    """
    first = frames.sources.index(NAME)
    returns = np.array([frames.rewards[rows].sum() for rows in frames.episodes()[first:]])
    of_pairs = returns[judged.pairs]
    # Positive where the second is paid more; NaN where a frame of either had no reward.
    difference = of_pairs[:, 1] - of_pairs[:, 0]
    is_known = np.isfinite(difference)
    count = int(is_known.sum())
    if not count:
        return undefined(f"none of the {len(difference)} pairs has a reward for all of its frames", 0, "pairs")
    wanted = np.where(judged.preferred[is_known] == 1, 1.0, -1.0)
    correct = (np.sign(difference[is_known]) * wanted + 1) / 2

    def statistic(weights: np.ndarray) -> float | None:
        return float(np.average(correct, weights=weights))

    ties = float(np.mean(difference[is_known] == 0))
    return estimate(statistic, np.arange(count), resamples, "pairs", len(difference) - count, ties=ties)
