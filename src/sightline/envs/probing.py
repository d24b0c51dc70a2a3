"""Probe an environment by a few random steps, to find before a run begins what cannot be learned from.

    reset(seed) ── reset(seed) ── random step ── … ── random step
        └── alike? ──┘ pictures, own rewards, success: watched

This module imports little, and draws no random numbers but its own.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np

from sightline.envs.frames import rgb_frame
from sightline.envs.stepping import scalar_reward
from sightline.envs.success import stated_success
from sightline.envs.watching import PictureWatch, equal

STEPS = 16
"""Random steps of a probe."""
LONGER = 64
"""Random steps of a probe whose pictures show nothing so far: some worlds move slowly."""
PATIENCE = 2.0
"""Seconds after which a probe makes no further step."""
ROUNDING = 1e-6
"""Difference of numbers, as a share of them or in itself, that only rounding has made: drawing moves some states."""


@dataclass(frozen=True)
class Probe:
    """Findings of a few random steps of an environment.

    Attributes:
        steps: how many were made.
        pictures: uint8[K, H, W, 3], some of the states', in order; K = 0 if nothing was drawn.
        picture_trouble: what is wrong with the pictures, and what to do, in one line; None if nothing is.
        unrepeated: what differed between two resets with one seed, `observation` or `picture`; None if nothing did.
        states_success: whether an info said that a state is a success, or is none.
        own_rewards: the environment's own rewards of the steps; None where one is no number.
        ended: whether an episode ended.
        step_seconds, frame_seconds: mean time of a step and of a picture; 0.0 without any.
    """

    steps: int
    pictures: np.ndarray
    picture_trouble: str | None
    unrepeated: str | None
    states_success: bool
    own_rewards: tuple[float | None, ...]
    ended: bool
    step_seconds: float
    frame_seconds: float

    @property
    def pays_nothing(self) -> bool:
        """True if the environment's own reward was 0 at every step."""
        return bool(self.own_rewards) and all(reward == 0 for reward in self.own_rewards)


def probe(env: gymnasium.Env[Any, Any], frames: bool, steps: int = STEPS, seed: int = 0) -> Probe:
    """Play a few random steps of an environment that was just made; it is left open.

    Pictures are taken after steps 1, 2, 4, 8, …, since they may take much longer than steps. Where they show nothing, a
    few more steps are made.

    Args:
        env: any environment with Gymnasium's interface.
        frames: whether it draws.
        steps: random steps; 0 only resets.
        seed: of the first episode and of the actions.

    Raises:
        BadInput: the environment states success by something that is no truth value.
        RunFailed: it cannot draw.
        Exception: whatever the environment raises.
    """
    actions = random_actions(env, seed)
    watch = PictureWatch()
    clock = _Clock()
    pictures: list[np.ndarray] = []
    infos: list[dict[str, Any]] = []
    rewards: list[float | None] = []
    episodes = 1
    begins = False

    def draw() -> np.ndarray:
        with clock("frame"):
            return rgb_frame(env)

    # Two resets with one seed should give one state, and one picture of it.
    first, info = env.reset(seed=seed)
    first = copy.deepcopy(first)
    infos.append(info)
    opening = draw() if frames else None
    observed, _ = env.reset(seed=seed)
    unrepeated = None
    if not equal(first, observed, ROUNDING):
        unrepeated = "observation"
    if opening is not None:
        pictures.append(draw())
        watch.see(pictures, observed)
        if unrepeated is None and not np.array_equal(opening, pictures[0]):
            unrepeated = "picture"
    until = time.monotonic() + PATIENCE
    while len(rewards) < steps or (steps and watch.flaw is not None and len(rewards) < LONGER):
        if time.monotonic() > until:
            break
        with clock("step"):
            observed, reward, terminated, truncated, info = env.step(next(actions))
        infos.append(info)
        rewards.append(scalar_reward(reward))
        # After steps 1, 2, 4, 8, …: a picture may take much longer than a step.
        if frames and len(rewards).bit_count() == 1:
            pictures.append(draw())
            watch.see(pictures[-1:], observed, [begins])
            begins = False
        # Every episode has a seed of its own, so that chance does not repeat itself.
        if terminated or truncated:
            env.reset(seed=seed + episodes)
            episodes += 1
            begins = True
    # One picture alone, of an environment that was only reset, tells nothing.
    trouble = None
    if rewards:
        trouble = watch.trouble_with(f"all pictures of {len(rewards)} random steps")
    return Probe(
        steps=len(rewards),
        pictures=np.stack(pictures) if pictures else np.zeros((0, 1, 1, 3), np.uint8),
        picture_trouble=trouble,
        unrepeated=unrepeated,
        states_success=any(stated_success(info) is not None for info in infos),
        own_rewards=tuple(rewards),
        ended=episodes > 1,
        step_seconds=clock.mean("step"),
        frame_seconds=clock.mean("frame"),
    )


def random_actions(env: gymnasium.Env[Any, Any], seed: int) -> Iterator[Any]:
    """Actions drawn at random from a copy of an environment's action space, which keeps its own random state."""
    # A copy: the environment's own stream of chance must not notice the probe.
    space = copy.deepcopy(env.action_space)
    space.seed(seed)
    while True:
        yield space.sample()


class _Clock:
    """Stopwatch for several things, by name."""

    def __init__(self) -> None:
        self._seconds: dict[str, list[float]] = {}
        self._name = ""
        self._began = 0.0

    def __call__(self, name: str) -> _Clock:
        self._name = name
        return self

    def __enter__(self) -> None:
        self._began = time.perf_counter()

    def __exit__(self, *_: object) -> None:
        self._seconds.setdefault(self._name, []).append(time.perf_counter() - self._began)

    def mean(self, name: str) -> float:
        """Mean seconds of a thing; 0.0 if it was never timed."""
        return float(np.mean(self._seconds.get(name, [0.0])))
