"""What is collected as a data set: the one place where its options are declared, for Python and for the command."""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from sightline.errors import BadInput

if TYPE_CHECKING:
    from sightline.rewards.base import RewardModel

Layout = Literal["lerobot", "pictures"]
Player = Literal["run", "random", "scripted"]


@dataclass(frozen=True)
class Collection:
    """Episodes that are to be collected.

    Args:
        source: a run folder, a recipe, a task or a Gymnasium id.
        out: new folder of the data set.
        overrides: keys of its recipe, as a mapping or as texts `key=value`.
        episodes: how many.
        format: lerobot (LeRobotDataset v3.0) or pictures (PNG files and a table).
        rewards: name -> keys of the recipe that differ (goal, baseline, reward.…), or a reward model. Each judges every
            state; without any key it is the recipe's own, of a run the reward as it was learned.
        policy: run, random or scripted; default: a run's own policy, else random play.
        seed: of the episodes.
        size: sides of the frames; default: what the rewards read, else as drawn.
        lossless: keep the frames of a LeRobotDataset as PNGs, instead of films.
        trust: whether code that the run's recipe names may be imported.

    Raises:
        BadInput: an option has none of its values.
    """

    source: str | Path
    out: str | Path
    overrides: Sequence[str] | Mapping[str, Any] = ()
    episodes: int = 10
    format: Layout = "lerobot"
    rewards: Mapping[str, Sequence[str] | Mapping[str, Any] | RewardModel] | None = None
    policy: Player | None = None
    seed: int = 0
    size: int | None = None
    lossless: bool = False
    trust: bool = False

    def __post_init__(self) -> None:
        for name, value, values in (("format", self.format, Layout), ("policy", self.policy, Player)):
            if value is not None and value not in get_args(values):
                raise BadInput(f"--{name} '{str(value)[:40]}': it is one of {', '.join(get_args(values))}")
        for name, count, least in (("episodes", self.episodes, 1), ("seed", self.seed, 0), ("size", self.size, 2)):
            is_whole = isinstance(count, int) and not isinstance(count, bool)
            if count is not None and not (is_whole and count >= least):
                raise BadInput(f"{name}={count!r}: say a whole number, at least {least}")


def meaning(option: str) -> str:
    """What an option of a collection means, for the help of the command."""
    text = inspect.getdoc(Collection) or ""
    said = re.search(rf"^    {option}: (.*?)(?=^    \w+: |^\S|\Z)", text, re.DOTALL | re.MULTILINE)
    words = " ".join(said.group(1).split()) if said else ""
    return words[:1].upper() + words[1:]
