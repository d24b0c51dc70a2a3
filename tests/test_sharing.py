"""What processes tell each other of their episodes."""

from __future__ import annotations

import pickle
from typing import Any, TypeVar

import numpy as np
import torch

from sightline.agents.engines.engine import SingleProcess
from sightline.agents.sharing import gather_episodes, without_tensors
from sightline.agents.types import Trajectory
from sightline.images import Picture
from sightline.models.vlm.types import ChatTurn, Prompt
from small_trajectories import episode

T = TypeVar("T")
TASKS, GROUP, TURNS = 5, 2, 3


class Part(SingleProcess):
    """One of two processes; `sent` is what each of them would send."""

    world = 2

    def __init__(self, rank: int, sent: dict[int, bytes]) -> None:
        self.rank, self._sent = rank, sent

    def gather(self, local: T) -> list[T]:
        self._sent[self.rank] = pickle.dumps(local)
        return [pickle.loads(self._sent[rank]) for rank in sorted(self._sent)]


def played(rank: int, side: int) -> list[Trajectory]:
    """The episodes of a process, with pictures and picture tensors of that many pixels a side."""
    made = []
    for task in range(TASKS)[rank::2]:
        for member in range(GROUP):
            one = episode([1.0] * TURNS, seed=task, member=member)
            for i, turn in enumerate(one.turns):
                tensors = {"pixel_values": torch.zeros(i + 1, 3, side, side)}
                turn.exchange = ChatTurn("rules", (Picture(np.full((side, side, 3), i, np.uint8)),))
                turn.prompt = Prompt(np.arange(9), {}, tensors)
                turn.frame = turn.exchange.pictures[0].pixels
            one.end = one.turns[-1].prompt
            made.append(one)
    return made


def gathered(side: int, pictured: int = 0) -> tuple[list[list[Trajectory]], dict[int, bytes], list[list[Trajectory]]]:
    sent: dict[int, bytes] = {}
    parts = [played(rank, side) for rank in range(2)]
    gather_episodes(Part(1, sent), parts[1], GROUP, pictured)  # so that process 0 finds what it sends
    return [gather_episodes(Part(rank, sent), parts[rank], GROUP, pictured) for rank in range(2)], sent, parts


def test_episodes_come_in_the_order_of_their_tasks_and_ones_own_as_they_are() -> None:
    by_rank, _, parts = gathered(4)
    for rank, found in enumerate(by_rank):
        order: list[Any] = [(one.seed, one.member) for one in found]
        assert order == [(task, member) for task in range(TASKS) for member in range(GROUP)]
        assert [one for one in found if not one.elsewhere] == parts[rank]
    mine, light = by_rank[1][2], by_rank[0][2]
    assert light.end is None and [turn.state for turn in light.turns] == [turn.state for turn in mine.turns]
    for turn in light.turns:
        assert turn.frame is None and turn.prompt is not None
        assert turn.prompt.per_picture == {} and turn.exchange.pictures[0].pixels.size == 0


def test_what_is_sent_does_not_grow_with_the_pictures() -> None:
    small, large = (sum(map(len, gathered(side)[1].values())) for side in (8, 64))
    assert large == small
    _, sent, parts = gathered(64)
    assert sum(map(len, sent.values())) < sum(len(pickle.dumps(part)) for part in parts) / 50


def test_pictures_for_people_are_sent_once() -> None:
    by_rank, sent, _ = gathered(64, pictured=4)
    shown = [one.turns[0].exchange.pictures[0].pixels.shape for one in by_rank[0]]
    assert shown[2:4] == [(64, 64, 3)] * 2 and shown[6:8] == [(0, 0, 3)] * 2
    picture = 64 * 64 * 3
    assert TURNS * picture < len(sent[1]) < (TURNS + 1) * picture  # two episodes with equal pictures


def test_what_is_only_looked_at_has_no_tensors() -> None:
    one = played(0, 64)[0]
    known: dict[str, Picture] = {}
    shown, referred = without_tensors(one, known), without_tensors(one, None)
    assert (shown.elsewhere, referred.elsewhere, shown.end) == (False, False, None)
    for light in (shown, referred):
        assert all(turn.prompt is not None and not turn.prompt.per_picture for turn in light.turns)
        assert [turn.state for turn in light.turns] == [turn.state for turn in one.turns]
    assert [turn.exchange.pictures[0] for turn in shown.turns] == [known[digest] for digest in known]
    assert all(turn.frame is None for turn in shown.turns)
    assert all(turn.frame is None and not turn.exchange.pictures[0].pixels.size for turn in referred.turns)
    assert one.end is not None and all(turn.prompt and turn.prompt.per_picture for turn in one.turns)
