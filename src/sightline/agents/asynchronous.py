"""Asynchronous rollouts: a server samples the next episodes while the learner learns from those before.

    staleness 1     rollout 0 | rollout 1 | rollout 2 | rollout 3
    weights         0           0           1           2            the server's, for a whole rollout
    learner                     update 0  | update 1  | update 2     learns from the rollout before
    weights                     0 -> 1      1 -> 2      2 -> 3

Rollout n is played with the weights of `max(n - staleness, first)` updates, whatever is ready sooner: so what is played
does not depend on who is faster, and with staleness 0 each rollout waits for the update before, as if there were no
second thread. The bound holds where it matters, when an episode is learned from (`within_bound`); a bound on what is in
flight would not give that: an episode grows older while it waits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

from sightline.agents.types import Trajectory

Play = Callable[[int, int], list[Trajectory]]
"""(number of the update, number of the weights) -> the episodes of a rollout."""


class RolloutsAhead:
    """Rollouts that are played in a thread of their own, in order, at most `staleness` updates ahead.

    Args:
        play: plays a rollout with published weights of that number.
        first: number of the update, and of the weights, that the run begins or goes on with.
        staleness: updates that weights may be old when an episode is learned from.
    """

    def __init__(self, play: Play, first: int, staleness: int) -> None:
        self._play = play
        self._first = first
        self._staleness = staleness
        # One thread: rollouts are played in order, and never two at a time by one sampler.
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="rollouts")
        self._waiting: dict[int, Future[list[Trajectory]]] = {}

    def take(self, update: int) -> list[Trajectory]:
        """Wait for the episodes of an update, and let those that may be played meanwhile begin.

        Args:
            update: its number; the weights of that number are published.
        """
        # The newest weights are those of `update`: no later rollout than that many ahead may be played with them.
        for number in range(update, update + self._staleness + 1):
            if number not in self._waiting:
                weights = max(number - self._staleness, self._first)
                self._waiting[number] = self._pool.submit(self._play, number, weights)
        return self._waiting.pop(update).result()

    def close(self) -> None:
        """Forget what has not begun, and wait for what has."""
        self._pool.shutdown(wait=True, cancel_futures=True)


def staleness(episode: Trajectory, update: int) -> int:
    """Updates by which the oldest weights that played an episode are behind; 0 where they are not known."""
    versions = [turn.version for turn in episode.turns if turn.version is not None]
    if not versions:
        return 0
    return update - min(versions)


def within_bound(episodes: Sequence[Trajectory], update: int, bound: int) -> list[Trajectory]:
    """The episodes that may be learned from at an update: those whose weights are at most `bound` updates old."""
    return [episode for episode in episodes if staleness(episode, update) <= bound]
