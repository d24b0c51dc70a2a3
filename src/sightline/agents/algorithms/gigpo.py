"""GiGPO advantages, groups within groups: Feng et al., "Group-in-Group Policy Optimization for LLM Agent Training",
NeurIPS 2025 (arXiv 2505.10978), section 4.

    advantage of a turn = episode advantage + turn_weight * turn advantage

    episode advantage   return of the episode, relative to the group's (as in GRPO)
    turn advantage      discounted return from the turn on, relative to that of all turns in the same anchor state

                     s0 ---- s1 ---- s2   won          anchor state s1: three visits, by two episodes,
                     s0 ---- s1 ---- s1   lost         compared with each other

An anchor state is the same words and pictures, in whichever episode of the group and however often it was visited;
with `similarity` below 1, words that are nearly the same, apart from what all states of the group begin and end with. A
turn whose state was seen once has nothing to be compared with and a turn advantage of 0. Groups in which all advantages
are 0 are dropped; unlike in GRPO, episodes with equal returns may still differ in how soon they got there.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from difflib import SequenceMatcher
from typing import ClassVar, Literal

import numpy as np
from pydantic import NonNegativeFloat

from sightline.agents.algorithms.base import AlgorithmConfig, GroupSize, within_groups
from sightline.agents.algorithms.grpo import Deviation, episode_advantages, relative_to_group
from sightline.agents.algorithms.returns import discounted_returns
from sightline.agents.prompting import common_start
from sightline.agents.types import Advantages, Group, Turn
from sightline.config.basics import Fraction


class GiGPO(AlgorithmConfig):
    """Groups of episodes, and within them groups of turns in the same state (Feng et al. 2025, arXiv 2505.10978)."""

    kind: Literal["gigpo"] = "gigpo"
    group: GroupSize = 8
    """Episodes with the same task seed."""
    gamma: Fraction = 0.95
    turn_weight: NonNegativeFloat = 1.0
    """Weight of the advantage among turns in the same state beside that among episodes."""
    deviation: Deviation = "sample"
    """As of GRPO."""
    similarity: Fraction = 1.0
    """Likeness of words from which on two states with equal pictures are one: 1 asks for equal words, less for that
    share of characters in common (`difflib`'s ratio), for worlds that say the same in many ways. What all states of a
    group begin and end with, such as rules, is left out."""

    title: ClassVar[str] = "GiGPO"

    def compute_advantages(self, groups: Sequence[Group]) -> list[list[Advantages | None]]:
        """GiGPO advantages of each trajectory; None for broken or empty episodes, and for groups without signal."""
        return within_groups(groups, self._compare)

    def _compare(self, episodes: Group) -> list[np.ndarray]:
        # Undiscounted between episodes, as in GRPO; discounted between turns: a shorter way from a state is better.
        among_episodes = episode_advantages(episodes, self.deviation)
        returns = [discounted_returns(episode.rewards, self.gamma) for episode in episodes]
        among_turns = _turn_advantages(episodes, returns, self.deviation, self.similarity)
        return [outcome + self.turn_weight * turns for outcome, turns in zip(among_episodes, among_turns, strict=True)]


def _turn_advantages(
    group: Group, returns: list[np.ndarray], deviation: Deviation, similarity: float
) -> list[np.ndarray]:
    """float64[turns] for each episode: discounted returns relative to those of turns in the same anchor state."""
    states: dict[str, Turn] = {}
    for episode in group:
        states |= {turn.state: turn for turn in episode.turns}
    anchors = _anchors(states, similarity)
    # Anchor state -> (episode, turn) of each visit, by any episode of the group.
    visits: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for i, episode in enumerate(group):
        for j, turn in enumerate(episode.turns):
            visits[anchors[turn.state]].append((i, j))
    advantages = [np.zeros(len(episode.turns)) for episode in group]
    # Comparing turns in the same state removes what the state is worth from the advantage, as a critic would.
    for places in visits.values():
        returns_from_here = np.array([returns[i][j] for i, j in places])
        relative = relative_to_group(returns_from_here, deviation)
        for (i, j), advantage in zip(places, relative, strict=True):
            advantages[i][j] = advantage
    return advantages


def _anchors(states: Mapping[str, Turn], similarity: float) -> dict[str, str]:
    """State -> its anchor, the first state that was seen and is similar enough; in the order of the turns."""
    if similarity == 1.0:
        return {state: state for state in states}
    anchors: dict[str, str] = {}
    # Digests of pictures -> anchors with these: only words may differ a little.
    candidates: dict[tuple[str, ...], list[str]] = defaultdict(list)
    # Rules and instructions are most of a prompt: beside them all states would look alike.
    texts = dict(zip(states, _what_differs([turn.exchange.text for turn in states.values()]), strict=True))
    for state, turn in states.items():
        same_pictures = candidates[tuple(picture.digest for picture in turn.exchange.pictures)]
        similar = (anchor for anchor in same_pictures if _likeness(texts[anchor], texts[state]) >= similarity)
        anchors[state] = next(similar, state)
        if anchors[state] == state:
            same_pictures.append(state)
    return anchors


def _what_differs(texts: Sequence[str]) -> list[str]:
    """The texts without what they all begin and end with."""
    begin = len(common_start(texts))
    rest = [text[begin:] for text in texts]
    end = len(common_start([text[::-1] for text in rest]))
    return [text[: len(text) - end] for text in rest]


def _likeness(first: str, second: str) -> float:
    return SequenceMatcher(None, first, second, autojunk=False).ratio()
