"""An episode of a data set: the episode itself, and what is kept beside it."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Protocol

import numpy as np

from sightline.datasets.episode import Episode
from sightline.envs.tasks import SuccessRule
from sightline.errors import SightlineWarning


@dataclass(frozen=True, eq=False)
class StoredEpisode(Episode):
    """Episode of a data set.

    Attributes:
        index: its place in the data set, from 0.
        succeeded: whether the episode as a whole is a success, by the rule of its task; None where nobody says.
        quality: of the episode as a whole, in the data set's word, of which Robometer's are "failure", "suboptimal" and
            "successful"; None where nobody says.
        rewards: name of a reward model -> float32[T], its rewards of the states reached.
        reset_rewards: name of a reward model -> its reward of the state before the first step, where it has one.
        human: float32[T], what a person says of each state, 1 where the goal is reached and 0 where it is not; NaN
            where nobody says. None where nobody was asked.
        knows_last_state: whether the last row is of the state that the last step led to; where it is not known, the one
            before stands for it once more.
    """

    index: int = 0
    succeeded: bool | None = None
    quality: str | None = None
    rewards: Mapping[str, np.ndarray] = field(default_factory=dict)
    reset_rewards: Mapping[str, float] = field(default_factory=dict)
    human: np.ndarray | None = None
    knows_last_state: bool = True

    @classmethod
    def of(cls, episode: Episode, **beside: Any) -> StoredEpisode:
        """An episode with what is to be kept beside it, the attributes above."""
        own = {one.name: getattr(episode, one.name) for one in fields(Episode)}
        return cls(**own, **beside)


def is_successful(success: np.ndarray, rule: SuccessRule) -> bool:
    """Whether bool[T] of an episode's states make it a success, by the rule of its task."""
    by_rule = {"every": success.all(), "any": success.any(), "end": success[-1]}
    return bool(by_rule[rule])


def row_numbers(array: np.ndarray | None, what: str) -> np.ndarray | None:
    """An array of an episode as rows of a table: float32 or int64, [T], or [T, D] with D > 1.

    Args:
        what: its name, for the warning.

    Returns:
        None where there is none; or, with a warning, where a step holds more than a row of numbers.
    """
    if array is None:
        return None
    array = np.asarray(array)
    if array.ndim > 2:
        shape = "x".join(map(str, array.shape[1:]))
        warnings.warn(f"{what} of {shape} are left out: a table holds numbers in rows", SightlineWarning, stacklevel=2)
        return None
    if array.ndim == 2 and array.shape[1] == 1:
        array = array[:, 0]
    return array.astype(np.int64 if array.dtype.kind in "iub" else np.float32)


class EpisodeWriter(Protocol):
    """Writer of a data set, which is whole after every episode that was finished, and is closed at the end."""

    def __enter__(self) -> EpisodeWriter: ...

    def __exit__(self, *unused: object) -> None: ...

    def add(self, episode: StoredEpisode) -> None:
        """Write one more episode."""
