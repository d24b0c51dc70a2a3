"""Noticing, before training costs anything, that nothing can be learned: from blank pictures, or a reward that never
varies."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import gymnasium
import numpy as np

from sightline.config.recipe import ControlRecipe
from sightline.envs.probing import STEPS, Probe, probe
from sightline.envs.watching import NOISE, PictureWatch
from sightline.models.device import random_states_kept
from sightline.rewards.base import Clip
from sightline.rewards.config import RewardSetup

PICTURES = "nothing can be learned from these pictures"
REWARD = "nothing can be learned from this reward"
"""First words of warnings; each is given once."""


def noticed_in(env: gymnasium.Env[Any, Any], recipe: ControlRecipe, reward: RewardSetup) -> tuple[str, ...]:
    """Warnings of a few random steps, one line each.

    An environment that fails in these steps is left to the run, which reports that with seed and step.

    Args:
        env: of the recipe, just made; it is left open.
    """
    steps = STEPS
    if recipe.workers == "processes":
        steps = 0  # what the user wants in processes of its own may not bear to be stepped in this one
    with random_states_kept():
        try:
            return tuple(_warnings(probe(env, reward.frames, steps), recipe, reward))
        except (Exception, SystemExit):
            return ()


def _warnings(probe: Probe, recipe: ControlRecipe, reward: RewardSetup) -> Iterator[str]:
    if probe.picture_trouble is not None:
        yield f"{PICTURES}: {probe.picture_trouble}"
    elif _is_constant(reward, probe.pictures):
        yield constant_reward(f"the first {probe.steps} steps")
    if probe.unrepeated is not None:
        yield (
            f"panels are not fixed: two resets with seed 0 gave another {probe.unrepeated}, so that every evaluation "
            "plays other episodes; draw all chance from self.np_random, after super().reset(seed=seed)"
        )
    if probe.pays_nothing and recipe.reward.reads_own_reward and not recipe.reward.needs_words:
        yield pays_nothing(f"the first {probe.steps} steps", probe.states_success)


def constant_reward(when: str) -> str:
    """Complaint that a model of pictures pays the same for all of them."""
    return (
        f"{REWARD}: it was the same in {when}, though the pictures differ, so the model "
        "cannot tell them apart; try other words, a closer camera or a larger encoder"
    )


def pays_nothing(when: str, states_success: bool) -> str:
    """Complaint that an environment's own reward, which is to be learned from, is 0."""
    success = "reward.kind=success"
    if not states_success:
        success = f"success_from=KEY {success}"
    return (
        f"the environment's own reward was 0 in {when}; if it always is, pay with {success} or a sentence "
        "(reward.kind=zero_shot goal=…)"
    )


class RunWatch:
    """Watch on what a run learns from, until its pictures and its rewards are seen to vary.

    Args:
        reward: what pays.
    """

    def __init__(self, reward: RewardSetup) -> None:
        self._reads_pictures = "frames" in reward.model.needs
        self._has_encoder = reward.encoder is not None
        self._pictures = PictureWatch()
        self._lowest = np.inf
        self._highest = -np.inf

    def see(self, clip: Clip) -> None:
        """Look at the pictures of a chunk."""
        if clip.frames is None or not self._reads_pictures:
            return
        for step, pictures in enumerate(np.asarray(clip.frames)):
            if self._pictures.is_content:
                break
            observations: Any = self._pictures.steps
            if clip.states is not None:  # those of several parts are in no clip: that they move is taken for granted
                observations = clip.states[step]
            self._pictures.see(pictures, observations, clip.first[step])

    def see_rewards(self, rewards: np.ndarray) -> None:
        """Look at the rewards of a chunk, [T, N]."""
        self._lowest = min(self._lowest, float(rewards.min()))
        self._highest = max(self._highest, float(rewards.max()))

    @property
    def constant(self) -> list[str]:
        """What has not varied so far: `pictures`, `reward`.

        A reward that is not read from pictures only counts if it was always 0: from others, such as 1 for every step,
        the lengths of episodes are learned.
        """
        constant = []
        if self._pictures.flaw is not None:
            constant.append("pictures")
        # Embeddings of equal pictures differ by rounding errors, by the batch that they are computed in.
        is_same = self._highest - self._lowest <= NOISE
        is_zero = self._highest == self._lowest == 0
        if is_same and (self._has_encoder or is_zero):
            constant.append("reward")
        return constant

    def complaints(self) -> Iterator[str]:
        """Warnings, one line each."""
        if self._pictures.trouble is not None:
            yield f"{PICTURES}: {self._pictures.trouble}"
        elif self._has_encoder and "reward" in self.constant:
            steps = self._pictures.steps
            yield constant_reward(f"the first {steps} steps" if steps else "all steps")


def _is_constant(reward: RewardSetup, pictures: np.ndarray) -> bool:
    """Whether an encoder's reward is the same for pictures that differ; other models may pay nothing for long."""
    model = reward.model
    if reward.encoder is None or model.needs != {"frames"} or model.window > 1 or model.sees_past or not model.ready:
        return False
    differ = any(not np.array_equal(picture, pictures[0]) for picture in pictures)
    return differ and bool(np.ptp(model(pictures)) <= NOISE)
