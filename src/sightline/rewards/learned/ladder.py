"""An Elo ladder of candidate goal frames; the reward is nearness to its top.

After Zakharov and Whiteson, "GoalLadder: Incremental Goal Discovery with Vision-Language Models", NeurIPS 2025: states
that look like progress become candidate goals, a teacher's comparisons rate them as chess players are rated (Elo,
1978), and the agent is rewarded for coming near the best. A wrong answer moves a rating by a few points, no more, and
no reward model is trained on it.

What is different here: distances are measured between embeddings of a frozen encoder, rather than in a space that is
learned beside the policy; and one kind of question serves for discovery and for rating: a match. Half of a round's
matches are challenges, where a frame from the pool meets a candidate that is drawn by its strength, and half are among
the candidates, those with the fewest matches first. Onto a full ladder newcomers come at its foot, with the rating of
the weakest, and have to earn their way up: one lucky win makes no goal. No pair is matched twice: most teachers would
only repeat themselves.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np

START = 1000.0
"""Rating at which candidates start until the ladder is full."""


@dataclass(frozen=True, eq=False)
class Candidate:
    """A segment that may be a goal.

    Attributes:
        digest: of its frames.
        embedding: float32[D], where it is.
    """

    digest: str
    embedding: np.ndarray


@dataclass(eq=False)
class Entry:
    """A candidate on the ladder, with its rating and the matches it has played since it entered."""

    candidate: Candidate
    rating: float
    matches: int = 0


Match = tuple[Candidate, Candidate]


class Ladder:
    """Elo ladder: rates candidates by their matches and keeps the best.

    Args:
        size: candidates on the ladder, at least 2.
        k_factor: how far one match moves a rating at most.

    Attributes:
        entries: the candidates on it, oldest first.
    """

    def __init__(self, size: int, k_factor: float) -> None:
        self.size = size
        self.k_factor = k_factor
        self.entries: list[Entry] = []

    def propose(
        self,
        count: int,
        pool: Sequence[Candidate],
        rng: np.random.Generator,
        asked: Collection[frozenset[str]] = frozenset(),
    ) -> list[Match]:
        """Matches to ask the teacher about.

        Before there are two candidates on the ladder, some of the pool stand in for them.

        Args:
            count: matches wanted.
            pool: where challengers come from.
            asked: digests of pairs that have been matched; they are not proposed again.

        Returns:
            `count` pairs, in random order within a pair; fewer if there are no more.
        """
        met = set(asked)
        on_ladder = {entry.candidate.digest for entry in self.entries}
        newcomers = list({c.digest: c for c in pool if c.digest not in on_ladder}.values())
        newcomers = [newcomers[i] for i in rng.permutation(len(newcomers))]
        standing = self.entries
        if len(standing) < 2:
            founders, newcomers = newcomers[: self.size], newcomers[self.size :]
            standing = [*standing, *(Entry(candidate, self._foot()) for candidate in founders)]
        challenges = _challenges(count, standing, newcomers, rng, met)
        among = _among(count - min(len(challenges), (count + 1) // 2), standing, rng, met)
        chosen = [*challenges[: count - len(among)], *among]
        return [pair if rng.random() < 0.5 else pair[::-1] for pair in chosen]

    def record(self, first: Candidate, second: Candidate, value: float) -> None:
        """Rate both by a match, and let a newcomer onto the ladder if it won or if there is room.

        Args:
            value: as `Answer.value`: 0.0 the first won, 1.0 the second, 0.5 neither.
        """
        a, b = self._entry(first), self._entry(second)
        gain = self.k_factor * ((1.0 - value) - expected(a.rating, b.rating))
        a.rating, b.rating = a.rating + gain, b.rating - gain
        a.matches, b.matches = a.matches + 1, b.matches + 1
        for entry, won in ((a, value < 0.5), (b, value > 0.5)):
            if entry not in self.entries and (won or len(self.entries) < self.size):
                self._enter(entry)

    def top(self) -> np.ndarray | None:
        """float32[D], embedding of the candidate with the highest rating (of equal ones, the oldest); None if the
        ladder is empty."""
        if not self.entries:
            return None
        return max(self.entries, key=lambda entry: entry.rating).candidate.embedding

    def state(self) -> dict[str, Any]:
        """The ladder as plain data: `embeddings` float32[n, D], `digests` n texts, `ratings` float64[n], `matches`
        int64[n]."""
        embeddings = [entry.candidate.embedding for entry in self.entries]
        return {
            "embeddings": np.stack(embeddings) if embeddings else np.empty((0, 0), np.float32),
            "digests": [entry.candidate.digest for entry in self.entries],
            "ratings": np.array([entry.rating for entry in self.entries], np.float64),
            "matches": np.array([entry.matches for entry in self.entries], np.int64),
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Restore the ladder that `state` was taken from."""
        columns = (state["embeddings"], state["digests"], state["ratings"], state["matches"])
        self.entries = [
            Entry(Candidate(str(digest), embedding.copy()), float(rating), int(matches))
            for embedding, digest, rating, matches in zip(*columns, strict=True)
        ]

    def _entry(self, candidate: Candidate) -> Entry:
        """Entry of a candidate on the ladder, or a newcomer's."""
        known = (entry for entry in self.entries if entry.candidate.digest == candidate.digest)
        return next(known, None) or Entry(candidate, self._foot())

    def _enter(self, newcomer: Entry) -> None:
        """Add a newcomer; of a full ladder the weakest leaves, which may be the newcomer itself."""
        self.entries.append(newcomer)
        if len(self.entries) > self.size:
            self.entries.remove(min(reversed(self.entries), key=lambda entry: entry.rating))

    def _foot(self) -> float:
        """The rating at which newcomers start."""
        return START if len(self.entries) < self.size else min(entry.rating for entry in self.entries)


def expected(rating: float, other: float) -> float:
    """Share of points that a player with the first rating is expected to win against the second (Elo, 1978)."""
    return float(1 / (1 + 10 ** ((other - rating) / 400)))


def nearness(features: np.ndarray, goal: np.ndarray) -> np.ndarray:
    """The reward: float[N, D], float[D] -> float32[N], minus the Euclidean distance; 0 at the goal."""
    distances = np.linalg.norm(features.astype(np.float32) - goal.astype(np.float32), axis=1)
    return np.asarray(-distances, np.float32)


def _challenges(
    count: int,
    standing: Sequence[Entry],
    newcomers: Sequence[Candidate],
    rng: np.random.Generator,
    met: set[frozenset[str]],
) -> list[Match]:
    """One match for each newcomer, with a candidate drawn by its strength: 400 points are a factor of ten."""
    ratings = np.array([entry.rating for entry in standing])
    matches: list[Match] = []
    for newcomer in newcomers:
        if len(matches) == count:
            break
        free = np.array([_key(newcomer, entry.candidate) not in met for entry in standing])
        if free.any():
            strength = np.where(free, 10 ** ((ratings - ratings.max()) / 400), 0.0)
            opponent = standing[rng.choice(len(standing), p=strength / strength.sum())].candidate
            matches.append((newcomer, opponent))
    return matches


def _among(count: int, standing: Sequence[Entry], rng: np.random.Generator, met: set[frozenset[str]]) -> list[Match]:
    """Matches among candidates: whoever has played least meets whoever is strongest of those it has not met."""
    played = {id(entry): entry.matches for entry in standing}
    pairs = [pair for pair in combinations(standing, 2) if _key(pair[0].candidate, pair[1].candidate) not in met]
    pairs = [pairs[i] for i in rng.permutation(len(pairs))]

    def urgency(pair: tuple[Entry, Entry]) -> tuple[float, ...]:
        counts = [played[id(entry)] for entry in pair]
        return min(counts), -max(entry.rating for entry in pair), sum(counts)

    matches: list[Match] = []
    while pairs and len(matches) < count:
        a, b = min(pairs, key=urgency)
        pairs.remove((a, b))
        played[id(a)] += 1
        played[id(b)] += 1
        matches.append((a.candidate, b.candidate))
    return matches


def _key(a: Candidate, b: Candidate) -> frozenset[str]:
    return frozenset((a.digest, b.digest))
