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
    """A candidate on the ladder, with its rating and the number of its matches since it entered."""

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
        previous: Collection[frozenset[str]] = frozenset(),
    ) -> list[Match]:
        """Matches to ask the teacher about.

        Before there are two candidates on the ladder, some of the pool stand in for them.

        Args:
            count: matches to propose.
            pool: where challengers come from.
            previous: digests of pairs that have been matched; they are not proposed again.

        Returns:
            `count` pairs, in random order within a pair; fewer if there are no more.
        """
        excluded = set(previous)
        on_ladder = {entry.candidate.digest for entry in self.entries}
        by_digest = {candidate.digest: candidate for candidate in pool if candidate.digest not in on_ladder}
        newcomers = list(by_digest.values())
        newcomers = [newcomers[i] for i in rng.permutation(len(newcomers))]

        entries = list(self.entries)
        if len(entries) < 2:
            entries += [Entry(candidate, self._foot()) for candidate in newcomers[: self.size]]
            newcomers = newcomers[self.size :]

        # Half of each, or more of one kind where there are too few of the other.
        challenges = _challenges(count, entries, newcomers, rng, excluded)
        share = min(len(challenges), (count + 1) // 2)
        matches = _matches_among(count - share, entries, rng, excluded)
        matches = [*challenges[: count - len(matches)], *matches]

        # A teacher may prefer whatever it sees first, so the order within a pair is random.
        ordered = []
        for first, second in matches:
            ordered.append((first, second) if rng.random() < 0.5 else (second, first))
        return ordered

    def record(self, first: Candidate, second: Candidate, value: float) -> None:
        """Rate both by a match, and let a newcomer onto the ladder if it won or if there is room.

        Args:
            value: as `Answer.value`: 0.0 the first won, 1.0 the second, 0.5 neither.
        """
        a = self._entry(first)
        b = self._entry(second)
        # What one gains the other loses, by how far the result is from the one that the ratings predicted.
        gain = self.k_factor * ((1.0 - value) - expected(a.rating, b.rating))
        a.rating += gain
        b.rating -= gain
        a.matches += 1
        b.matches += 1
        for entry, has_won in ((a, value < 0.5), (b, value > 0.5)):
            if entry not in self.entries and (has_won or len(self.entries) < self.size):
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
        self.entries = []
        for embedding, digest, rating, matches in zip(*columns, strict=True):
            candidate = Candidate(str(digest), embedding.copy())
            self.entries.append(Entry(candidate, float(rating), int(matches)))

    def _entry(self, candidate: Candidate) -> Entry:
        """Entry of a candidate on the ladder, or a newcomer's."""
        for entry in self.entries:
            if entry.candidate.digest == candidate.digest:
                return entry
        return Entry(candidate, self._foot())

    def _enter(self, newcomer: Entry) -> None:
        """Add a newcomer; of a full ladder the weakest leaves, which may be the newcomer itself."""
        self.entries.append(newcomer)
        if len(self.entries) > self.size:
            # Of equally weak ones the newest, so that a newcomer does not replace its equal.
            self.entries.remove(min(reversed(self.entries), key=lambda entry: entry.rating))

    def _foot(self) -> float:
        """The rating at which newcomers start."""
        if len(self.entries) < self.size:
            return START
        return min(entry.rating for entry in self.entries)


def expected(rating: float, opponent: float) -> float:
    """Share of points that a player with the first rating is expected to win against the second (Elo, 1978)."""
    return float(1 / (1 + 10 ** ((opponent - rating) / 400)))


def nearness(features: np.ndarray, goal: np.ndarray) -> np.ndarray:
    """The reward: float[N, D], float[D] -> float32[N], minus the Euclidean distance; 0 at the goal."""
    distances = np.linalg.norm(features.astype(np.float32) - goal.astype(np.float32), axis=1)
    return np.asarray(-distances, np.float32)


def _challenges(
    count: int,
    entries: Sequence[Entry],
    newcomers: Sequence[Candidate],
    rng: np.random.Generator,
    excluded: set[frozenset[str]],
) -> list[Match]:
    """One match for each newcomer, with a candidate drawn by its strength: 400 points are a factor of ten."""
    ratings = np.array([entry.rating for entry in entries])
    # Divided by the strongest one's, so that no power overflows.
    strengths = 10 ** ((ratings - ratings.max()) / 400) if len(ratings) else ratings
    matches: list[Match] = []
    for newcomer in newcomers:
        if len(matches) == count:
            break
        is_free = np.array([_pair_key(newcomer, entry.candidate) not in excluded for entry in entries])
        if is_free.any():
            weights = np.where(is_free, strengths, 0.0)
            opponent = entries[rng.choice(len(entries), p=weights / weights.sum())]
            matches.append((newcomer, opponent.candidate))
    return matches


def _matches_among(
    count: int, entries: Sequence[Entry], rng: np.random.Generator, excluded: set[frozenset[str]]
) -> list[Match]:
    """Matches among candidates: the one with the fewest matches meets the strongest of those it has not met."""
    match_counts = {id(entry): entry.matches for entry in entries}
    pairs = []
    for a, b in combinations(entries, 2):
        if _pair_key(a.candidate, b.candidate) not in excluded:
            pairs.append((a, b))
    # Shuffled, so that chance decides between pairs of equal urgency.
    pairs = [pairs[i] for i in rng.permutation(len(pairs))]

    def urgency(pair: tuple[Entry, Entry]) -> tuple[float, ...]:
        counts = [match_counts[id(entry)] for entry in pair]
        highest_rating = max(entry.rating for entry in pair)
        return min(counts), -highest_rating, sum(counts)

    matches: list[Match] = []
    while pairs and len(matches) < count:
        a, b = min(pairs, key=urgency)
        pairs.remove((a, b))
        # Matches of this round count already: the next one goes to other candidates.
        match_counts[id(a)] += 1
        match_counts[id(b)] += 1
        matches.append((a.candidate, b.candidate))
    return matches


def _pair_key(a: Candidate, b: Candidate) -> frozenset[str]:
    return frozenset((a.digest, b.digest))
