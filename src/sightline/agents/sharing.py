"""Episodes without their pictures: those of all processes on each of them, and those that nobody learns from.

    process that played     prompts, picture tensors, pictures      it alone learns from these turns
    all the others          replies, values, rewards, digests       what advantages and metrics need

A picture tensor takes megabytes, and a prompt has those of all its turns: sent to all processes, they would be by far
the most of what is sent.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from sightline.agents.engines.engine import Engine
from sightline.agents.types import Trajectory, Turn
from sightline.images import Picture
from sightline.models.vlm.types import Prompt


def gather_episodes(engine: Engine, local: Sequence[Trajectory], group: int, pictured: int = 0) -> list[Trajectory]:
    """Gather episodes in the order of their tasks, as one process would have played them.

    Args:
        local: those of this process, which played the tasks rank, rank + world, …; they come back as they are.
        group: episodes of a task.
        pictured: that many episodes, the first ones, keep the pictures of their observations, to be shown to people.
    """
    if engine.world == 1:
        return list(local)
    # index of a local episode -> place in the order of all
    places = [(i // group * engine.world + engine.rank) * group + i % group for i in range(len(local))]
    sent: dict[str, Picture] = {}  # equal pictures become one object, which is pickled once
    light = [
        (place, replace(without_tensors(episode, sent if place < pictured else None), elsewhere=True))
        for place, episode in zip(places, local, strict=True)
    ]
    mine = dict(zip(places, local, strict=True))
    gathered = dict(pair for part in engine.gather(light) for pair in part) | mine
    return [gathered[place] for place in sorted(gathered)]


def without_tensors(episode: Trajectory, pictures: dict[str, Picture] | None) -> Trajectory:
    """Copy an episode without what only learning needs.

    Args:
        pictures: digest -> picture, to which those of the episode are added, so that equal ones are kept once; None
            replaces them by references.
    """

    def kept(picture: Picture) -> Picture:
        return reference_to(picture) if pictures is None else pictures.setdefault(picture.digest, picture)

    return replace(episode, turns=[replace(light_turn(turn, kept), frame=None) for turn in episode.turns], end=None)


def light_turn(turn: Turn, kept: Callable[[Picture], Picture]) -> Turn:
    """Copy a turn without what only learning needs; the frame stays, which a reward model may not have seen yet.

    Args:
        kept: picture -> what stands in its place.
    """
    return replace(
        turn,
        exchange=replace(turn.exchange, pictures=tuple(map(kept, turn.exchange.pictures))),
        prompt=None if turn.prompt is None else Prompt(np.zeros(0, np.int64)),
        sample=replace(turn.sample, kept=()),
    )


def reference_to(picture: Picture) -> Picture:
    """A picture's digest, without its pixels."""
    return Picture.reference(picture.digest)
