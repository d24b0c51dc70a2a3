"""Credit in groups within groups: Feng et al., "Group-in-Group Policy Optimization for LLM Agent Training", NeurIPS
2025 (arXiv 2505.10978), section 4.

Each turn is credited with two things. First its episode, as in GRPO: the episode's return against those of the group.
Then, weighted by `turn_weight`, the turn itself: its discounted rewards to come against those of all turns of the group
that were in the same state (an anchor state; the same words and pictures, wherever and how often it was visited). A
turn whose state was seen once has nothing to be compared with and gets 0 there. Groups in which neither says anything
are dropped; unlike in GRPO, episodes that all ended alike may still differ in how soon they got there.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from sightline.agents.algorithms.grpo import compared
from sightline.agents.algorithms.returns import RewardKind, discounted, is_whole, rewards_of
from sightline.agents.types import Advantages, Group
from sightline.config.agents import GiGPO


def compute_advantages(groups: Sequence[Group], settings: GiGPO, reward: RewardKind) -> list[list[Advantages | None]]:
    """A credit for each trajectory; None for those that broke or are empty, and for groups without differences."""
    return [_of_group(group, settings, reward) for group in groups]


def _of_group(group: Group, settings: GiGPO, reward: RewardKind) -> list[Advantages | None]:
    credits: list[Advantages | None] = [None] * len(group)
    whole = [i for i, episode in enumerate(group) if is_whole(episode)]
    if len(whole) < 2:
        return credits
    episodes = [group[i] for i in whole]
    rewards = [rewards_of(episode, reward) for episode in episodes]
    among_episodes = compared(np.array([each.sum() for each in rewards]), settings.divide_by_deviation)
    to_come = [discounted(each, settings.gamma) for each in rewards]
    among_turns = _among_turns(episodes, to_come, settings.divide_by_deviation)
    advantages = [one + settings.turn_weight * turns for one, turns in zip(among_episodes, among_turns, strict=True)]
    if any(each.any() for each in advantages):
        for i, each in zip(whole, advantages, strict=True):
            credits[i] = Advantages(each)
    return credits


def _among_turns(group: Group, to_come: list[np.ndarray], divide_by_deviation: bool) -> list[np.ndarray]:
    """float64[turns] for each episode: the rewards to come against those of turns in the same state."""
    visits: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for i, episode in enumerate(group):
        for j, turn in enumerate(episode.turns):
            visits[turn.state].append((i, j))
    advantages = [np.zeros(len(episode.turns)) for episode in group]
    for places in visits.values():
        values = np.array([to_come[i][j] for i, j in places])
        for (i, j), advantage in zip(places, compared(values, divide_by_deviation), strict=True):
            advantages[i][j] = advantage
    return advantages
