"""What learners do: actions of any environment, as those that learners choose.

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
"""Combinations of several choices that are counted through, at most."""
WIDEST = 1e15
"""Bounds beyond this are none: nobody would find an action between them."""


@dataclass(frozen=True)
class _Deed:
    """How actions are chosen.

    Attributes:
        space: that a learner chooses from.
        done: makes the environment's own action of what was chosen; None where it is the same.
        words: what is special about it, for people.
    """

    space: spaces.Space[Any]
    done: Callable[[Any], Any] | None = None
    words: str | None = None


class ChosenActions(gymnasium.ActionWrapper[Any, Any, Any]):
    """Wrapper that takes the actions that learners choose.

    Attributes:
        describe: what is special about them, in one line; None if nothing is.

    Args:
        env: the environment.
        space: that a learner chooses from.
        done: makes the environment's own action of what was chosen.
        describe: see there.
    """

    def __init__(
        self, env: gymnasium.Env[Any, Any], space: spaces.Space[Any], done: Callable[[Any], Any], describe: str | None
    ) -> None:
        super().__init__(env)
        self.action_space, self.describe, self._done = space, describe, done

    def action(self, action: Any) -> Any:
        """The environment's own action."""
        return self._done(action)


def what_is_done(env: gymnasium.Env[Any, Any]) -> str | None:
    """What is special about the actions of an adapted environment, in one line; None if nothing is."""
    chosen = next((layer for layer in layers_of(env) if isinstance(layer, ChosenActions)), None)
    return None if chosen is None else chosen.describe


def adapted_actions(env: gymnasium.Env[Any, Any], env_id: str, enumerates: bool) -> gymnasium.Env[Any, Any]:
    """Wrap an environment so that its actions are those that learners choose.

    Args:
        enumerates: whether combinations of several choices are counted through, as one choice.

    Raises:
        BadInput: they cannot be converted.
    """
    deed = _deed(env, env.action_space, f"actions of '{env_id}'")
    if enumerates and isinstance(deed.space, spaces.MultiDiscrete | spaces.MultiBinary):
        deed = _enumerated(deed, f"actions of '{env_id}'")
    return env if deed.done is None else ChosenActions(env, deed.space, deed.done, deed.words)


def combinations(space: spaces.Space[Any]) -> int:
    """How many actions there are in a space of several choices."""
    return math.prod(_choices(space))


def _deed(env: gymnasium.Env[Any, Any], space: spaces.Space[Any], what: str) -> _Deed:
    if isinstance(space, spaces.Box):
        return _box(env, space, what)
    if isinstance(space, spaces.Discrete):
        first = space.start
        return _Deed(space) if first == 0 else _Deed(spaces.Discrete(int(space.n)), lambda action: action + first)
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


def _box(env: gymnasium.Env[Any, Any], space: spaces.Box, what: str) -> _Deed:
    if not math.prod(space.shape):
        raise BadInput(f"{what} are empty (shape {list(space.shape)}), so there is nothing to choose")
    low, high = (side.reshape(-1).astype(np.float64) for side in (space.low, space.high))
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
    if space.dtype == np.float32 and is_free.all() and space.shape:
        return _Deed(space)
    free = spaces.Box(low[is_free].astype(np.float32), high[is_free].astype(np.float32), dtype=np.float32)
    if is_free.all() and space.shape:
        free = spaces.Box(free.low.reshape(space.shape), free.high.reshape(space.shape), dtype=np.float32)
    is_whole = np.dtype(space.dtype).kind in "iub"

    def done(action: Any) -> np.ndarray:
        numbers = low.copy()
        numbers[is_free] = np.asarray(action, np.float64).reshape(-1)
        numbers = (np.rint(numbers) if is_whole else numbers).clip(low, high)
        # A number between the bounds may be rounded beyond them on its way to the environment's own dtype.
        own = numbers.astype(space.dtype).reshape(space.shape)
        return np.asarray(np.minimum(np.maximum(own, space.low), space.high), space.dtype)

    words = [f"are rounded to whole numbers ({space.dtype})"] if is_whole else []
    if not is_free.all():
        words.append(f"have low = high in {(~is_free).sum()} of {is_free.size} numbers, which are left as they are")
    return _Deed(free, done, f"{what} {' and '.join(words)}" if words else None)


def _several(space: spaces.MultiDiscrete | spaces.MultiBinary, what: str) -> _Deed:
    counts = _choices(space)
    if not counts:
        raise BadInput(f"{what} are empty, so there is nothing to choose")
    if isinstance(space, spaces.MultiBinary):
        # Policies draw zeros and ones in floats.
        return _Deed(
            spaces.MultiBinary(len(counts)), lambda action: np.asarray(action).astype(space.dtype).reshape(space.shape)
        )
    if len(space.shape) == 1 and not space.start.any() and space.dtype == np.int64:
        return _Deed(space)
    return _Deed(
        spaces.MultiDiscrete(counts),
        lambda action: (np.asarray(action).reshape(space.shape) + space.start).astype(space.dtype),
    )


def _parts(env: gymnasium.Env[Any, Any], space: Any, what: str) -> _Deed:
    """One choice of everything in a dictionary or a tuple."""
    named = list(space.items()) if isinstance(space, spaces.Dict) else list(enumerate(space))
    deeds = [_deed(env, part, f"'{name}' of the {what}") for name, part in named]
    if not deeds:
        raise BadInput(f"{what} are empty, so there is nothing to choose")
    sizes = [math.prod(deed.space.shape or (1,)) for deed in deeds]
    places = np.cumsum(sizes)[:-1]
    boxes = [deed.space for deed in deeds if isinstance(deed.space, spaces.Box)]
    if len(boxes) == len(deeds):
        low, high = (np.concatenate([getattr(box, side).reshape(-1) for box in boxes]) for side in ("low", "high"))
        joint: spaces.Space[Any] = spaces.Box(low, high, dtype=np.float32)
    elif not boxes:
        joint = spaces.MultiDiscrete([count for deed in deeds for count in _choices(deed.space)])
    else:
        raise BadInput(
            f"{what} hold numbers (Box) beside choices, and a learner draws the one or the other; make it all Box, or "
            "all Discrete"
        )

    def done(action: Any) -> Any:
        own = [_own(deed, chosen) for deed, chosen in zip(deeds, np.split(np.asarray(action), places), strict=True)]
        if isinstance(space, spaces.Dict):
            return {name: part for (name, _), part in zip(named, own, strict=True)}
        return tuple(own)

    words = [deed.words for deed in deeds if deed.words]
    return _Deed(joint, done, "; ".join(words) or None)


def _own(deed: _Deed, chosen: np.ndarray) -> Any:
    """A part's own action, of the numbers that were chosen for it: [D]."""
    shaped: Any = np.int64(chosen[0]) if isinstance(deed.space, spaces.Discrete) else chosen.reshape(deed.space.shape)
    return shaped if deed.done is None else deed.done(shaped)


def _enumerated(deed: _Deed, what: str) -> _Deed:
    """One choice among all combinations.

    Raises:
        BadInput: there are too many.
    """
    counts = _choices(deed.space)
    if math.prod(counts) > COMBINATIONS:
        raise BadInput(
            f"{what} are {len(counts)} choices at once, {math.prod(counts):,} combinations, and this learner counts "
            f"through {COMBINATIONS} at most; say learner.algorithm=PPO"
        )

    def done(action: Any) -> Any:
        chosen = np.array(np.unravel_index(int(action), counts), np.int64)
        return chosen if deed.done is None else deed.done(chosen)

    words = f"{what} are {len(counts)} choices at once, learned as one of {math.prod(counts)} combinations"
    return _Deed(spaces.Discrete(math.prod(counts)), done, words)


def _choices(space: spaces.Space[Any]) -> list[int]:
    """How many choices there are in each place."""
    if isinstance(space, spaces.Discrete):
        return [int(space.n)]
    if isinstance(space, spaces.MultiBinary):
        return [2] * math.prod(space.shape)
    assert isinstance(space, spaces.MultiDiscrete)
    return [int(count) for count in space.nvec.reshape(-1)]
