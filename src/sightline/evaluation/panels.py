"""A panel: a fixed, hashed list of task seeds. Two evaluations are comparable if their panels have the same hash."""

from __future__ import annotations

import hashlib
import json
import zlib
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Panel:
    """Seeds of the episodes of an evaluation.

    Attributes:
        name: what it is for; different names give different seeds.
        env: the environment that it is for.
        seeds: one for each episode.
    """

    name: str
    env: str
    seeds: tuple[int, ...]

    @property
    def digest(self) -> str:
        """12 hexadecimal digits that change with the environment and with any seed."""
        text = json.dumps([self.env, self.seeds])
        return hashlib.sha256(text.encode()).hexdigest()[:12]

    def __str__(self) -> str:
        return f"{self.name}-{len(self.seeds)}-{self.digest}"


def make_panel(name: str, env: str, episodes: int, seed: int = 0) -> Panel:
    """The panel of that name: the same on every machine, and apart from the training seeds (by other hashes)."""
    sequence = np.random.SeedSequence([zlib.crc32(name.encode()), seed])
    seeds = sequence.generate_state(episodes, np.uint32)
    return Panel(name, env, tuple(int(s) for s in seeds))
