"""Observations of N environments: one array, or, where a policy reads pictures beside numbers, one array of each part.

What is true of an array, [N, …], is true here of every part of a dictionary: it is copied, compared, indexed and
checked part by part.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from gymnasium import spaces

Observations = np.ndarray | dict[str, np.ndarray]
"""[N, …], or [N, …] of each part by its name."""


class Misfit(Exception):
    """An observation does not fit its space; the message follows "an observation"."""


def each_part(change: Callable[[np.ndarray], np.ndarray], observations: Observations) -> Observations:
    """The results of a function of one array, for an array or for every part."""
    if isinstance(observations, dict):
        return {name: change(part) for name, part in observations.items()}
    return change(observations)


def copied(observations: Observations) -> Observations:
    """A copy that no later step writes into."""
    return each_part(np.array, observations)


def picked(observations: Observations, index: Any) -> Observations:
    """What stands at an index of the first axes: a number, a slice, a mask, or arrays of indices."""
    return each_part(lambda part: np.asarray(part[index]), observations)


def joined(observations: Sequence[Observations]) -> Observations:
    """Observations of several steps, [M, …], one after the other."""
    first = observations[0]
    if isinstance(first, dict):
        parts: dict[str, np.ndarray] = {}
        for name in first:
            parts[name] = np.concatenate([dict(each)[name] for each in observations])
        return parts
    return np.concatenate([np.asarray(each) for each in observations])


def put(into: Observations, index: Any, observations: Observations) -> None:
    """Write observations to an index of the first axes of others, in place."""
    if isinstance(into, dict):
        for name, part in into.items():
            part[index] = observations[name]
    else:
        into[index] = observations


def blank(space: spaces.Space[Any], shape: tuple[int, ...]) -> Observations:
    """Zeros for as many observations of a space as the first axes say: [*shape, …]."""
    if isinstance(space, spaces.Dict):
        return {name: np.zeros((*shape, *(part.shape or ())), part.dtype) for name, part in space.items()}
    assert space.shape is not None, "learners read arrays, and dictionaries of them"
    return np.zeros((*shape, *space.shape), space.dtype)


def bytes_of(space: spaces.Space[Any]) -> int:
    """Bytes that one observation of a space takes in memory."""
    return sum(array.nbytes for array in named(blank(space, ()), "").values())


def count(observations: Observations) -> int:
    """N."""
    if isinstance(observations, dict):
        return len(next(iter(observations.values())))
    return len(observations)


def named(observations: Observations, name: str) -> dict[str, np.ndarray]:
    """Arrays by names for a file: `name`, or `name.part` of every part."""
    if isinstance(observations, dict):
        return {f"{name}.{part}": array for part, array in observations.items()}
    return {name: observations}


def same(first: Observations, second: Any) -> bool:
    """True if all parts are equal."""
    if isinstance(first, dict) or isinstance(second, dict):
        if not (isinstance(first, dict) and isinstance(second, dict)) or first.keys() != second.keys():
            return False
        return all(same(part, second[name]) for name, part in first.items())
    return np.array_equal(first, np.asarray(second), equal_nan=True)


def nearly_same(first: Observations, second: Any, tolerance: float = 1e-6) -> bool:
    """True if all parts are equal but for what is lost in rounding.

    Args:
        tolerance: relative and absolute difference.
    """
    if isinstance(first, dict) or isinstance(second, dict):
        if not (isinstance(first, dict) and isinstance(second, dict)) or first.keys() != second.keys():
            return False
        return all(nearly_same(part, second[name], tolerance) for name, part in first.items())
    array = np.asarray(second)
    return first.shape == array.shape and np.allclose(first, array, tolerance, tolerance, equal_nan=True)


def misfit(space: spaces.Space[Any], state: Any) -> str | None:
    """Defect of an observation as words that follow "an observation", such as "with NaN in it"; None if it is valid.

    Bounds are not checked: many environments exceed their own, and nothing here depends on them.
    """
    if isinstance(space, spaces.Dict):
        return _misfit_of_parts(space, state)
    try:
        numbers = np.asarray(state)
    except ValueError:
        return "whose parts have different lengths"
    if numbers.dtype.kind not in "biufc":
        return f"that is not an array of numbers: {state!r:.60}"
    if space.shape is not None and numbers.shape != space.shape:
        return f"of shape {list(numbers.shape)} where its observation_space says {list(space.shape)}"
    # float64 where the space says float32 is taken, floats where it says whole numbers are not.
    if space.dtype is not None and not np.can_cast(numbers.dtype, space.dtype, "same_kind"):
        return f"of dtype {numbers.dtype} where its observation_space says {space.dtype}"
    # One NaN in the replay buffer spoils all that is learned from it.
    if numbers.dtype.kind in "fc" and not np.isfinite(numbers).all():
        return "with NaN in it" if np.isnan(numbers).any() else "with an infinite number in it"
    return None


def _misfit_of_parts(space: spaces.Dict, state: Any) -> str | None:
    if not isinstance(state, dict):
        return f"that is no dictionary, as its observation_space says: {state!r:.60}"
    for name, part in space.items():
        if name not in state:
            return f"without '{name}', which its observation_space has"
        wrong = misfit(part, state[name])
        if wrong is not None:
            return f"whose part '{name}' is one {wrong}"
    return None
