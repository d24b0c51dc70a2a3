"""Success as environments state it, in the infos `success` and `is_success`: the one place where they are read.

True, np.True_, 1, 1.0, np.array([True])       yes
False, np.False_, 0, 0.0, np.array(0)          no
no such info, None                             not stated, which is not "no"
"False", NaN, 0.7, {"arm": True}, [1, 0]       refused: whatever is guessed would be wrong for somebody
"""

from __future__ import annotations

import numbers
from collections.abc import Mapping
from typing import Any

import numpy as np

from sightline.errors import BadInput

KEYS = ("success", "is_success")
"""Infos that state success, the one that counts first."""
SAY_WHAT_IT_IS = (
    "make it True or False, or say what success is: success_from=reward, or success_from=KEY of another info"
)


def stated_success(
    info: Mapping[str, Any], owner: str = "the environment", advice: str = SAY_WHAT_IT_IS
) -> bool | None:
    """Whether a state is a success by its info; None if the info does not say.

    Args:
        owner: name of the environment in error messages.
        advice: last words of error messages.

    Raises:
        BadInput: the info holds something else than a truth value.
    """
    # None is as good as absent: some wrappers fill infos up with it.
    for key in KEYS:
        if info.get(key) is not None:
            return truth(info[key], f"the info '{key}' of {owner}", advice)
    return None


def with_success(info: Mapping[str, Any], owner: str = "the environment") -> dict[str, Any]:
    """The info with its success as a plain bool under `success`, and without either key where it is not stated.

    Vector environments need it: they put the values of all environments into one array of the first one's type, in
    which a text or NaN would become true.

    Raises:
        BadInput: as `stated_success`.
    """
    success = stated_success(info, owner)
    infos = {key: value for key, value in info.items() if key not in KEYS}
    if success is not None:
        infos["success"] = success
    return infos


def truth(value: Any, what: str, advice: str = SAY_WHAT_IT_IS) -> bool:
    """Read a truth value that an environment states: a bool, 0 or 1, or an array or tensor that holds one of these.

    Args:
        value: what was stated.
        what: where, such as "the info 'won' of 'coins'", for error messages.
        advice: last words of error messages.

    Raises:
        BadInput: it is anything else.
    """
    # numpy's, torch's and JAX's truth values come as arrays of one element.
    scalar = _only_element(value)
    is_number = isinstance(scalar, bool | np.bool_ | numbers.Real)
    if not is_number or scalar not in (0, 1):
        raise BadInput(
            f"{what} should say whether a state is a success and is {_shown(value)}, neither true nor false; {advice}"
        )
    return bool(scalar)


def _only_element(value: Any) -> Any:
    """The element of an array or tensor of size 1, wherever it lies; anything else as it is."""
    take = getattr(value, "item", None)
    if not callable(take):
        return value
    try:
        return take()
    except (ValueError, RuntimeError, TypeError):  # there are several elements, or none
        return value


def _shown(value: Any) -> str:
    """A value and its kind in one line."""
    kind = "text" if isinstance(value, str | bytes) else f"a {type(value).__name__}"
    return f"{' '.join(repr(value).split()):.60} ({kind})"
