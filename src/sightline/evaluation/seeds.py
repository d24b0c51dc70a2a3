"""Panels of evaluation seeds: fixed, hashed lists of task seeds.

Two evaluations are comparable if their panels have the same hash. The hash covers everything that changes the
episodes or their success: the environment, its arguments, the time limit and the success rule, as `describe_env`
formats them.
"""

from __future__ import annotations

import hashlib
import json
import re
import zlib
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class EvalSeeds:
    """Panel: the seeds of the episodes of an evaluation.

    Attributes:
        name: the panel's purpose; different names give different seeds.
        env: the environment and its changes, as `describe_env` formats them.
        seeds: one for each episode.
    """

    name: str
    env: str
    seeds: tuple[int, ...]

    @property
    def digest(self) -> str:
        """Hash of the panel, 12 hexadecimal digits, over its environment and seeds."""
        text = json.dumps([self.env, self.seeds])
        return hashlib.sha256(text.encode()).hexdigest()[:12]

    def __str__(self) -> str:
        return f"{self.name}-{len(self.seeds)}-{self.digest}"


def describe_env(env: str, **changes: Any) -> str:
    """Describe the environment of a panel: its name, and with it all changes to the game.

    Args:
        changes: whatever else decides about episodes and their success. What is None, empty or False changes nothing
            and is left out, so that panels of plain environments keep their hashes.

    Returns:
        Equal text for equal values, in whatever order and on whatever machine they are given.
    """
    plain = {name: _plain(value) for name, value in changes.items() if value}
    if not plain:
        return env
    return f"{env} {json.dumps(plain, sort_keys=True)}"


def _plain(value: Any) -> Any:
    """Convert a value to plain JSON data; objects without a JSON form become their `repr` without addresses."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, dict):
        plain = {}
        for key, item in value.items():
            name = key if isinstance(key, str) else json.dumps(_plain(key))
            plain[name] = _plain(item)
        return plain
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, set | frozenset):
        return sorted(map(_plain, value), key=json.dumps)
    if isinstance(value, np.ndarray | np.generic):
        return _plain(value.tolist())
    if hasattr(value, "__qualname__"):  # classes and functions
        return f"{value.__module__}.{value.__qualname__}"
    # An address differs from process to process.
    return re.sub(r" at 0x[0-9a-fA-F]+", "", repr(value))


def make_panel(name: str, env: str, episodes: int, seed: int = 0) -> EvalSeeds:
    """Make the panel of that name: the same on every machine, and apart from the training seeds (by other hashes).

    Args:
        env: the environment and its changes, as `describe_env` formats them.
    """
    # Panels of several names are apart, and none of them is a sequence that training draws from.
    sequence = np.random.SeedSequence([zlib.crc32(name.encode()), seed])
    seeds = sequence.generate_state(episodes, np.uint32)
    return EvalSeeds(name, env, tuple(int(s) for s in seeds))
