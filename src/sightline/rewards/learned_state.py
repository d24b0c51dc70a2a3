"""What a reward model has learned, as a file beside the policy that it has judged."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sightline.errors import Damaged
from sightline.rewards.base import RewardModel
from sightline.runs.state import read_state, restoring, write_state

REWARD = "reward.safetensors"


def save_reward(folder: Path, model: RewardModel) -> None:
    """Write what a reward model has learned so far; nothing if it learns nothing."""
    state = model.state_dict()
    if state:
        write_state(folder / REWARD, state)


def learned_reward(folder: Path) -> dict[str, Any] | None:
    """What `save_reward` wrote; None if nothing.

    Raises:
        Damaged: the file is.
    """
    if not (folder / REWARD).exists():
        return None
    state = read_state(folder / REWARD)
    if not isinstance(state, dict):
        raise Damaged(f"'{folder / REWARD}' is damaged: it holds no reward model")
    return state


def load_reward(folder: Path, model: RewardModel) -> None:
    """Have a reward model take over what `save_reward` wrote, if anything.

    Raises:
        Damaged: it does not fit the model.
    """
    state = learned_reward(folder)
    if state is not None:
        with restoring(folder):
            model.load_state_dict(state)


@contextlib.contextmanager
def as_learned(folder: Path, model: RewardModel) -> Iterator[None]:
    """Context in which a reward model is what it was when `save_reward` wrote the folder."""
    # A copy: networks give their weights themselves, into which others are loaded below.
    now = copy.deepcopy(model.state_dict())
    load_reward(folder, model)
    try:
        yield
    finally:
        if now:
            model.load_state_dict(now)
