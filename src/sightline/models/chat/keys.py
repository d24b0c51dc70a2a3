"""Keys come from the environment, and go to no other server than the one that they were made for."""

from __future__ import annotations

import os

from sightline.errors import BadInput


def key_from(variable: str) -> str:
    """The key in an environment variable.

    Raises:
        BadInput: there is none, or it cannot be a key.
    """
    key = os.environ.get(variable, "").strip()
    if not key:
        raise BadInput(f"there is no key in the environment variable {variable}; set it, or name another with key_env")
    if not key.isascii() or not key.isprintable() or " " in key:
        raise BadInput(f"the environment variable {variable} does not hold a key: it has blanks or strange characters")
    return key
