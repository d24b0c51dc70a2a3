"""Turns and episodes made of a few numbers, without a game or a model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from sightline.agents.types import Advantages, Failure, Reply, Trajectory, Turn
from sightline.images import Picture
from sightline.models.vlm.types import ChatTurn, Prompt, Sample


def picture(number: int) -> Picture:
    return Picture(np.full((2, 2, 3), number, np.uint8))


def turn(
    reward: float = 0.0,
    value: float = 0.0,
    state: int = 0,
    ids: Sequence[int] = (7, 8, 9),
    prompt: Prompt | None = None,
    action: str | None = "left",
    thoughts: str = "",
    stated: dict[str, str] | None = None,
    failure: Failure | None = None,
    **rest: Any,
) -> Turn:
    """A turn in front of picture number `state`, whose last sampled token is the action."""
    count = len(ids)
    sample = Sample(np.array(ids, np.int64), np.full(count, -0.5, np.float32), "text", rest.pop("finished", True))
    tokens = np.zeros(count, bool)
    tokens[-1:] = action is not None
    return Turn(
        exchange=ChatTurn("rules", (picture(state),), tuple(ids)),
        prompt=prompt,
        sample=sample,
        reply=Reply(action, None, stated or {}, thoughts, failure),
        played=rest.pop("played", action),
        on_policy=rest.pop("on_policy", action is not None),
        legal=rest.pop("legal", action is not None),
        reward=reward,
        env_reward=reward + rest.get("penalty", 0.0),
        facts=rest.pop("facts", {}),
        legal_actions=("left", "right"),
        action_tokens=tokens,
        value=value,
        **rest,
    )


def episode(
    rewards: Sequence[float], values: Sequence[float] | None = None, states: Any = None, **rest: Any
) -> Trajectory:
    """An episode of such turns; each in a state of its own unless `states` says otherwise."""
    values = values or [0.0] * len(rewards)
    states = range(len(rewards)) if states is None else states
    turns = [turn(r, v, s) for r, v, s in zip(rewards, values, states, strict=True)]
    return Trajectory(seed=rest.pop("seed", 0), member=rest.pop("member", 0), turns=turns, **rest)


def turn_by_turn(
    played: Sequence[Trajectory], credits: Sequence[Advantages]
) -> tuple[list[Trajectory], list[Advantages]]:
    """The same turns with the same advantages, each as an episode of its own, so that none shares a passage."""
    apart = [(each, credit, i) for each, credit in zip(played, credits, strict=True) for i in range(len(each.turns))]
    return (
        [Trajectory(each.seed, each.member, [each.turns[i]]) for each, _, i in apart],
        [
            Advantages(credit.advantages[i : i + 1], None if credit.returns is None else credit.returns[i : i + 1])
            for _, credit, i in apart
        ],
    )
