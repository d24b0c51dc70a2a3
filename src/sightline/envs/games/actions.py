"""Actions by name: what an agent says, and the value of an environment's action space that it means."""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from sightline.envs.frames import to_array
from sightline.errors import BadInput

AnyEnv = gymnasium.Env[Any, Any]


def named_actions(env: AnyEnv, owner: str, actions: Sequence[str] | Mapping[str, Any]) -> dict[str, Any]:
    """Actions of an environment by name: name -> value of its action space.

    Args:
        owner: name of the environment in error messages.
        actions: names in the order of their numbers, or name -> value; empty takes the environment's own, see
            `own_action_names`.

    Raises:
        BadInput: actions without names, or values that do not fit.
    """
    space = env.action_space
    if isinstance(actions, Mapping):
        return {name: _value(space, value, name, owner) for name, value in actions.items()}
    if not isinstance(space, spaces.Discrete):
        raise BadInput(
            f"actions of '{owner}' are of the kind {type(space).__name__} ({in_short(space)}), and an agent needs a "
            f"few that are named; say what they mean: actions={_example(space)}"
        )
    names = tuple(actions) or own_action_names(env)[0]
    count = int(space.n)
    if len(names) != count:
        trouble = f"{len(names)} names are given" if names else "does not name them"
        raise BadInput(f"'{owner}' has {count} actions and {trouble}; give {count} names, in order: actions=[…]")
    # In a reply an action is found by its name alone.
    check_action_names(names, owner)
    return {name: space.dtype.type(space.start + number) for number, name in enumerate(names)}


def own_action_names(env: AnyEnv) -> tuple[tuple[str, ...], str]:
    """Names that an environment gives its actions, in the order of their numbers, and where they are from.

    They are taken from `action_names`, which is Sightline's; from `get_action_meanings()`, as Atari's environments have
    it; or from an enumeration `actions`, as MiniGrid's have it. Empty if there are none.
    """
    names = tuple(attribute(env, "action_names") or ())  # some environments set it to None
    if names:
        return names, "action_names"
    count = getattr(env.action_space, "n", None)
    get_action_meanings = getattr(env.unwrapped, "get_action_meanings", None)
    if callable(get_action_meanings):
        meanings = tuple(str(meaning) for meaning in get_action_meanings())
        if len(meanings) == count:
            return meanings, "get_action_meanings()"
    actions = getattr(env.unwrapped, "actions", None)
    if isinstance(actions, type) and issubclass(actions, enum.IntEnum) and sorted(actions) == list(range(count or 0)):
        return tuple(member.name for member in sorted(actions)), "actions"
    return (), ""


def _value(space: spaces.Space[Any], value: Any, name: str, owner: str) -> Any:
    """The action that a recipe means by a value.

    Raises:
        BadInput: it is none of the space's.
    """
    try:
        action = _action(space, value)
    except (TypeError, ValueError, OverflowError, KeyError):
        action = None
    if action is None or not space.contains(action):
        in_one_line = " ".join(repr(value).split())
        raise BadInput(
            f"actions: '{name}' is {in_one_line:.60}, which is no action of '{owner}' ({in_short(space)}); a value is "
            f"written as in actions={_example(space)}"
        )
    return action


def _action(space: spaces.Space[Any], value: Any) -> Any:
    """A value of plain numbers, lists and maps in the form that a space has it in; nothing is rounded.

    Raises:
        TypeError, ValueError, OverflowError, KeyError: it has another form.
    """
    if isinstance(space, spaces.Discrete):
        return space.dtype.type(whole_number(value))
    if isinstance(space, spaces.Dict):
        if set(value) != set(space.spaces):
            raise KeyError("other keys")
        return {key: _action(part, value[key]) for key, part in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(_action(part, element) for part, element in zip(space.spaces, value, strict=True))
    if not isinstance(space, spaces.Box | spaces.MultiDiscrete | spaces.MultiBinary):
        return value
    numbers = np.asarray(value)
    if numbers.dtype.kind not in "biuf":
        raise TypeError("no numbers")
    if numbers.size == 1 and np.prod(space.shape) == 1:
        numbers = numbers.reshape(space.shape)  # 0.5 for Box(1,)
    converted = numbers.astype(space.dtype)
    if np.issubdtype(space.dtype, np.integer) and (converted != numbers).any():
        raise ValueError("no whole numbers")
    return converted


def whole_number(value: Any) -> int:
    """A whole number from any kind of number; truth values and text are none.

    Raises:
        TypeError, ValueError: it is none.
    """
    number = to_array(value)
    if number.size != 1 or number.dtype.kind not in "iuf":
        raise TypeError("no number")
    element = number.reshape(-1)[0]
    if element != int(element):
        raise ValueError("no whole number")
    return int(element)


def _example(space: spaces.Space[Any]) -> str:
    """How two actions of a space are named in a recipe."""
    rng = np.random.default_rng(0)
    first = _plain(space, rng)
    second = _plain(space, rng)
    return f"{{left: {first}, right: {second}}}"


def _plain(space: spaces.Space[Any], rng: np.random.Generator) -> str:
    """Some action of a space as it is written in YAML."""
    if isinstance(space, spaces.Dict):
        return "{" + ", ".join(f"{key}: {_plain(part, rng)}" for key, part in space.spaces.items()) + "}"
    if isinstance(space, spaces.Tuple):
        return "[" + ", ".join(_plain(part, rng) for part in space.spaces) + "]"
    if isinstance(space, spaces.Discrete):
        return str(space.start + rng.integers(space.n))
    if isinstance(space, spaces.MultiDiscrete):
        return str((space.start + rng.integers(space.nvec)).tolist())
    if isinstance(space, spaces.MultiBinary):
        return str(rng.integers(0, 2, space.shape).tolist())
    if isinstance(space, spaces.Box):
        # Numbers between -1 and 1 where the bounds allow that, since they are easily read.
        low = np.clip(space.low, -1.0, None)
        high = np.clip(space.high, None, 1.0)
        uniform = rng.uniform(np.minimum(low, high), np.maximum(low, high))
        numbers = np.where(low <= high, uniform, space.low)
        if np.issubdtype(space.dtype, np.integer):
            return str(np.rint(numbers).astype(int).tolist())
        return str(np.round(numbers, 1).tolist())
    return "…"


def in_short(space: spaces.Space[Any]) -> str:
    """A space in one line, such as `Discrete(4)`."""
    return f"{' '.join(str(space).split()):.80}"


def check_action_names(names: Sequence[str], owner: str) -> None:
    """Refuse action names that cannot be told apart in a reply. One may be part of another: replies are parsed whole.

    Args:
        names: the action names.
        owner: name of the environment in error messages.

    Raises:
        BadInput: no names, one that is empty or not a string, or two that differ in case and white space only.
    """
    if not names:
        raise BadInput(f"'{owner}' has no actions")
    by_plain_name: dict[str, str] = {}
    for name in names:
        if not isinstance(name, str):
            raise BadInput(f"'{owner}': the action name {name!r} is not a string; put it in quotes")
        plain = " ".join(name.split()).casefold()
        if not plain:
            raise BadInput(f"'{owner}' has an action with an empty name; every action needs a name")
        if plain in by_plain_name:
            raise BadInput(
                f"'{owner}': the action names '{by_plain_name[plain]}' and '{name}' read the same; rename one"
            )
        by_plain_name[plain] = name


def attribute(env: AnyEnv, name: str) -> Any:
    """An attribute of an environment or of a wrapper around it; empty if there is none."""
    if not env.has_wrapper_attr(name):
        return ()
    return env.get_wrapper_attr(name)
