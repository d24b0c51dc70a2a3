"""Base of an agent's RL algorithms: a recipe block that computes advantages; and what several of them share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated

import numpy as np
from pydantic import AfterValidator

from sightline.agents.algorithms.returns import is_complete
from sightline.agents.types import Advantages, Group
from sightline.config.blocks import AlgorithmBlock
from sightline.errors import RunFailed, blamed


def _comparable(size: int) -> int:
    if size < 2:
        raise ValueError(
            f"{size} episode of a task has no other to be compared with; say 2 or more, or take algorithm.kind=ppo, "
            "reinforce or reinforce_plus_plus"
        )
    return size


GroupSize = Annotated[int, AfterValidator(_comparable)]
"""Episodes with the same task seed, at least two."""
EPSILON = 1e-8
"""Added to the standard deviation that the advantages of a whole update are divided by (`grpo.EPSILON`: of a group)."""


class AlgorithmConfig(AlgorithmBlock):
    """Base of all blocks of an agent's RL algorithm."""

    def compute_advantages(self, groups: Sequence[Group]) -> list[list[Advantages | None]]:
        """Advantages of every turn.

        Args:
            groups: all that was played for one update, by all processes; the episodes of a group share their task seed.

        Returns:
            For each group and trajectory float64[turns]; None where there is nothing to learn: the episode broke or is
            empty, or its group shows no differences.
        """
        raise NotImplementedError


def checked_advantages(algorithm: AlgorithmConfig, groups: Sequence[Group]) -> list[list[Advantages | None]]:
    """Advantages as an algorithm computes them, of the shapes that learning expects.

    Raises:
        RunFailed: the algorithm raises, or returns anything else.
    """
    with blamed(algorithm, "compute_advantages"):
        by_group = algorithm.compute_advantages(groups)
    must = f"{type(algorithm).__name__}.compute_advantages must return"
    if not isinstance(by_group, list | tuple) or len(by_group) != len(groups):
        raise RunFailed(f"{must} a list for each of {len(groups)} groups, not {_in_short(by_group)}")
    for group, credited in zip(groups, by_group, strict=True):
        if not isinstance(credited, list | tuple) or len(credited) != len(group):
            raise RunFailed(
                f"{must} Advantages or None for each of the {len(group)} episodes of a group, not {_in_short(credited)}"
            )
        for episode, advantages in zip(group, credited, strict=True):
            if advantages is not None:
                _check_advantages(advantages, len(episode.turns), algorithm.needs_values, must)
    return [list(credited) for credited in by_group]


def _check_advantages(advantages: Advantages, turns: int, needs_values: bool, must: str) -> None:
    if not isinstance(advantages, Advantages):
        raise RunFailed(f"{must} Advantages or None for each episode, not {_in_short(advantages)}")
    arrays: dict[str, np.ndarray | None] = {"advantages": advantages.advantages}
    if needs_values:
        arrays["returns"] = advantages.returns
    for name, array in arrays.items():
        if array is None or np.shape(array) != (turns,):
            raise RunFailed(f"{must} {name} of the {turns} turns of an episode, not {_in_short(array)}")
        if not np.isfinite(array).all():
            raise RunFailed(f"{must} finite {name}, not {np.asarray(array)!s:.80}")


def _in_short(value: object) -> str:
    if isinstance(value, list | tuple):
        return f"{len(value)} of {type(value[0]).__name__}" if value else "an empty list"
    if isinstance(value, np.ndarray):
        return f"an array of shape {list(value.shape)}"
    return type(value).__name__


def within_groups(
    groups: Sequence[Group], compare: Callable[[Group], Sequence[np.ndarray]]
) -> list[list[Advantages | None]]:
    """Advantages of episodes that are compared with the others of their group.

    Args:
        groups: as in `compute_advantages`.
        compare: gives float64[turns] for each of at least two complete episodes; 0 where nothing tells them apart.

    Returns:
        None for broken or empty episodes, and for groups that carry no signal: all their advantages are 0.
    """
    results: list[list[Advantages | None]] = []
    for group in groups:
        group_advantages: list[Advantages | None] = [None] * len(group)
        results.append(group_advantages)
        # A broken episode says nothing about the policy, so the others are not compared with it.
        complete = [i for i, episode in enumerate(group) if is_complete(episode)]
        if len(complete) < 2:
            continue
        advantages = compare([group[i] for i in complete])
        # Where nothing tells the episodes apart there is no gradient, and they need not pass through the model.
        if any(turn_advantages.any() for turn_advantages in advantages):
            for i, turn_advantages in zip(complete, advantages, strict=True):
                group_advantages[i] = Advantages(turn_advantages)
    return results


def standardised(
    advantages: list[list[Advantages | None]], among: Sequence[Sequence[Advantages | None]] | None = None
) -> list[list[Advantages | None]]:
    """Advantages of an update with mean 0 and deviation 1; the targets of the values keep their scale.

    Args:
        advantages: of each group and episode.
        among: what has that mean and deviation, if it is more than these.
    """
    population: list[np.ndarray] = []
    for group in among or advantages:
        population += [episode.advantages for episode in group if episode is not None]
    if not population:
        return advantages
    # Over turns, not episodes: the unit that the loss sums over.
    turns = np.concatenate(population)
    mean = turns.mean()
    deviation = turns.std()

    def standardise(episode: Advantages | None) -> Advantages | None:
        if episode is None:
            return None
        return Advantages((episode.advantages - mean) / (deviation + EPSILON), episode.returns)

    # Back into the groups that they came in.
    return [[standardise(episode) for episode in group] for group in advantages]
