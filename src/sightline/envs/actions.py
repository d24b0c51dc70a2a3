"""Convert the actions of any environment to a space that learners can choose from.

Discrete                        Discrete from 0
Box                             Box float32; the environment is given its own dtype, within its bounds
MultiDiscrete, MultiBinary      themselves; for learners that make one choice only, their combinations: Discrete
Dict, Tuple of boxes            one Box
Dict, Tuple of choices          one MultiDiscrete
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.wrappers import ClipAction

from sightline.envs.gymnasium_api import layers_of
from sightline.errors import BadInput

COMBINATIONS = 64
"""Greatest number of combinations of several choices that become one `Discrete` choice."""
WIDEST = 1e15
"""Bounds beyond this count as infinite."""


@dataclass(frozen=True)
class _ActionForm:
    """The form in which learners choose actions.

    Attributes:
        space: that a learner chooses from.
        to_env: from the learner's action to the environment's own; None where it is the same.
        words: what is special about it, for people.
    """

    space: spaces.Space[Any]
    to_env: Callable[[Any], Any] | None = None
    words: str | None = None


class ChosenActions(gymnasium.ActionWrapper[Any, Any, Any]):
    """Wrapper that takes the actions that learners choose.

    Attributes:
        describe: what is special about them, in one line; None if nothing is.

    Args:
        env: the environment.
        space: that a learner chooses from.
        to_env: from the learner's action to the environment's own.
        describe: see there.
    """

    def __init__(
        self, env: gymnasium.Env[Any, Any], space: spaces.Space[Any], to_env: Callable[[Any], Any], describe: str | None
    ) -> None:
        super().__init__(env)
        self.action_space = space
        self.describe = describe
        self._to_env = to_env

    def action(self, action: Any) -> Any:
        """The environment's own action."""
        return self._to_env(action)


def describe_actions(env: gymnasium.Env[Any, Any]) -> str | None:
    """What is special about the actions of an adapted environment, in one line; None if nothing is."""
    for layer in layers_of(env):
        if isinstance(layer, ChosenActions):
            return layer.describe
    return None


def adapted_actions(env: gymnasium.Env[Any, Any], env_id: str, enumerates: bool) -> gymnasium.Env[Any, Any]:
    """Wrap an environment so that its actions are those that learners choose.

    Args:
        enumerates: whether several choices become one `Discrete` choice among all combinations.

    Raises:
        BadInput: they cannot be converted.
    """
    form = _form(env, env.action_space, f"actions of '{env_id}'")
    if enumerates and isinstance(form.space, spaces.MultiDiscrete | spaces.MultiBinary):
        form = _enumerated(form, f"actions of '{env_id}'")
    if form.to_env is None:
        return env
    return ChosenActions(env, form.space, form.to_env, form.words)


def combinations(space: spaces.Space[Any]) -> int:
    """How many actions there are in a space of several choices."""
    return math.prod(_choices(space))


def _form(env: gymnasium.Env[Any, Any], space: spaces.Space[Any], what: str) -> _ActionForm:
    if isinstance(space, spaces.Box):
        return _box(env, space, what)
    if isinstance(space, spaces.Discrete):
        first = space.start
        if first == 0:
            return _ActionForm(space)
        return _ActionForm(spaces.Discrete(int(space.n)), lambda action: action + first)
    if isinstance(space, spaces.MultiDiscrete | spaces.MultiBinary):
        return _several(space, what)
    if isinstance(space, spaces.Dict | spaces.Tuple):
        return _parts(env, space, what)
    if isinstance(space, spaces.Text):
        raise BadInput(
            f"{what} are words, which a policy on states cannot choose; have a model play it: role=agent, with "
            "sightline.text_game around it unless it is one of Sightline's games"
        )
    raise BadInput(
        f"{what} are of the kind {type(space).__name__}; learners take Discrete, Box, MultiDiscrete or MultiBinary"
    )


def _box(env: gymnasium.Env[Any, Any], space: spaces.Box, what: str) -> _ActionForm:
    if not math.prod(space.shape):
        raise BadInput(f"{what} are empty (shape {list(space.shape)}), so there is nothing to choose")
    low = space.low.reshape(-1).astype(np.float64)
    high = space.high.reshape(-1).astype(np.float64)
    if (np.abs(low) > WIDEST).any() or (np.abs(high) > WIDEST).any():  # true of infinite ones, too
        how = "give action_space finite bounds, such as Box(-1, 1, …)"
        if any(isinstance(layer, ClipAction) for layer in layers_of(env)):
            how = "leave out the wrapper ClipAction, which takes bounds away; actions are clipped to them here"
        raise BadInput(
            f"{what} have no finite bounds ({low.min():g} to {high.max():g}), between which learners explore; {how}"
        )
    is_free = low.astype(np.float32) < high.astype(np.float32)
    if not is_free.any():
        raise BadInput(f"{what} have bounds with low = high everywhere, so there is nothing to choose")
    # The usual case: learners choose exactly what the environment takes.
    if space.dtype == np.float32 and is_free.all() and space.shape:
        return _ActionForm(space)
    # Numbers with low = high are no choice: learners do not see them.
    free = spaces.Box(low[is_free].astype(np.float32), high[is_free].astype(np.float32), dtype=np.float32)
    if is_free.all() and space.shape:
        free = spaces.Box(free.low.reshape(space.shape), free.high.reshape(space.shape), dtype=np.float32)
    is_whole = np.dtype(space.dtype).kind in "iub"

    def to_env(action: Any) -> np.ndarray:
        numbers = low.copy()
        numbers[is_free] = np.asarray(action, np.float64).reshape(-1)
        if is_whole:
            numbers = np.rint(numbers)
        numbers = numbers.clip(low, high)
        # A number between the bounds may be rounded beyond them on its way to the environment's own dtype.
        own = numbers.astype(space.dtype).reshape(space.shape)
        return np.asarray(np.minimum(np.maximum(own, space.low), space.high), space.dtype)

    remarks = []
    if is_whole:
        remarks.append(f"are rounded to whole numbers ({space.dtype})")
    if not is_free.all():
        remarks.append(f"have low = high in {(~is_free).sum()} of {is_free.size} numbers, which are left as they are")
    words = None
    if remarks:
        words = f"{what} {' and '.join(remarks)}"
    return _ActionForm(free, to_env, words)


def _several(space: spaces.MultiDiscrete | spaces.MultiBinary, what: str) -> _ActionForm:
    counts = _choices(space)
    if not counts:
        raise BadInput(f"{what} are empty, so there is nothing to choose")
    if isinstance(space, spaces.MultiBinary):

        def zeros_and_ones(action: Any) -> np.ndarray:
            # Policies draw them in floats.
            return np.asarray(action).astype(space.dtype).reshape(space.shape)

        return _ActionForm(spaces.MultiBinary(len(counts)), zeros_and_ones)
    # SB3's distributions number choices from 0, in one row.
    if len(space.shape) == 1 and not space.start.any() and space.dtype == np.int64:
        return _ActionForm(space)
    first = space.start

    def numbered(action: Any) -> np.ndarray:
        return np.asarray((np.asarray(action).reshape(space.shape) + first).astype(space.dtype))

    return _ActionForm(spaces.MultiDiscrete(counts), numbered)


def _parts(env: gymnasium.Env[Any, Any], space: Any, what: str) -> _ActionForm:
    """One choice of everything in a dictionary or a tuple."""
    parts: dict[Any, Any] = dict(space.items() if isinstance(space, spaces.Dict) else enumerate(space))
    forms = [_form(env, part, f"'{name}' of the {what}") for name, part in parts.items()]
    if not forms:
        raise BadInput(f"{what} are empty, so there is nothing to choose")
    # The joint action holds the numbers of all parts, one part after the other: [D1 + D2 + …].
    sizes = [math.prod(form.space.shape or (1,)) for form in forms]
    borders = np.cumsum(sizes)[:-1]
    boxes = [form.space for form in forms if isinstance(form.space, spaces.Box)]
    joint: spaces.Space[Any]
    # A policy draws from one distribution, Gaussian or categorical, never from both.
    if len(boxes) == len(forms):
        low = np.concatenate([box.low.reshape(-1) for box in boxes])
        high = np.concatenate([box.high.reshape(-1) for box in boxes])
        joint = spaces.Box(low, high, dtype=np.float32)
    elif not boxes:
        counts: list[int] = []
        for form in forms:
            counts += _choices(form.space)
        joint = spaces.MultiDiscrete(counts)
    else:
        raise BadInput(
            f"{what} hold numbers (Box) beside choices, and a learner draws the one or the other; make it all Box, or "
            "all Discrete"
        )

    def to_env(action: Any) -> Any:
        numbers = np.split(np.asarray(action), borders)
        own = [_own(form, of_part) for form, of_part in zip(forms, numbers, strict=True)]
        if isinstance(space, spaces.Dict):
            return dict(zip(parts, own, strict=True))
        return tuple(own)

    words = [form.words for form in forms if form.words]
    return _ActionForm(joint, to_env, "; ".join(words) or None)


def _own(form: _ActionForm, numbers: np.ndarray) -> Any:
    """A part's own action, of the numbers that the learner chose for it: [D]."""
    action: Any = numbers.reshape(form.space.shape)
    if isinstance(form.space, spaces.Discrete):
        action = np.int64(numbers[0])
    return action if form.to_env is None else form.to_env(action)


def _enumerated(form: _ActionForm, what: str) -> _ActionForm:
    """One choice among all combinations.

    Raises:
        BadInput: there are too many.
    """
    counts = _choices(form.space)
    if math.prod(counts) > COMBINATIONS:
        raise BadInput(
            f"{what} are {len(counts)} choices at once, {math.prod(counts):,} combinations, and this learner counts "
            f"through {COMBINATIONS} at most; say learner.algorithm=PPO"
        )

    def to_env(action: Any) -> Any:
        choices = np.array(np.unravel_index(int(action), counts), np.int64)
        return choices if form.to_env is None else form.to_env(choices)

    words = f"{what} are {len(counts)} choices at once, learned as one of {math.prod(counts)} combinations"
    return _ActionForm(spaces.Discrete(math.prod(counts)), to_env, words)


def _choices(space: spaces.Space[Any]) -> list[int]:
    """How many choices there are in each place."""
    if isinstance(space, spaces.Discrete):
        return [int(space.n)]
    if isinstance(space, spaces.MultiBinary):
        return [2] * math.prod(space.shape)
    assert isinstance(space, spaces.MultiDiscrete)
    return [int(count) for count in space.nvec.reshape(-1)]
