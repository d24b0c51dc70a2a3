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
    # Tasks are dealt out in turn, so this process's i-th episode has its place among those of all processes:
    #
    #     group 2, world 2     rank 0: task 0, task 2     places 0 1, 4 5
    #                          rank 1: task 1, task 3     places 2 3, 6 7
    places: list[int] = []
    for i in range(len(local)):
        local_task, member = divmod(i, group)
        task = local_task * engine.world + engine.rank
        places.append(task * group + member)
    sent: dict[str, Picture] = {}  # equal pictures become one object, which is pickled once
    light: list[tuple[int, Trajectory]] = []
    for place, episode in zip(places, local, strict=True):
        pictures = sent if place < pictured else None
        light.append((place, replace(without_tensors(episode, pictures), elsewhere=True)))
    episodes: dict[int, Trajectory] = {}
    for part in engine.gather(light):
        episodes |= dict(part)
    # Those of this process as they were, with all that it learns from.
    episodes |= dict(zip(places, local, strict=True))
    return [episodes[place] for place in sorted(episodes)]


def without_tensors(episode: Trajectory, pictures: dict[str, Picture] | None) -> Trajectory:
    """Copy an episode without what only learning needs.

    Args:
        pictures: digest -> picture, to which those of the episode are added, so that equal ones are kept once; None
            replaces them by references.
    """

    def stand_in(picture: Picture) -> Picture:
        if pictures is None:
            return reference_to(picture)
        return pictures.setdefault(picture.digest, picture)

    turns = [replace(light_turn(turn, stand_in), frame=None) for turn in episode.turns]
    return replace(episode, turns=turns, end=None, reset_frame=None)


def light_turn(turn: Turn, stand_in: Callable[[Picture], Picture]) -> Turn:
    """Copy a turn without what only learning needs; the frame stays, which a reward model may not have seen yet.

    Args:
        stand_in: picture -> what stands in its place.
    """
    # Empty, not None: None says that another sampler than the policy replied.
    prompt = None if turn.prompt is None else Prompt(np.zeros(0, np.int64))
    return replace(
        turn,
        exchange=replace(turn.exchange, pictures=tuple(map(stand_in, turn.exchange.pictures))),
        prompt=prompt,
        sample=replace(turn.sample, support=()),
    )


def reference_to(picture: Picture) -> Picture:
    """A picture's digest, without its pixels."""
    return Picture.reference(picture.digest)
