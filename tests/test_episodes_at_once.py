"""How many episodes are played at the same time, where a recipe of an agent leaves it open."""

from __future__ import annotations

import subprocess
import sys
from typing import Any, ClassVar

import numpy as np
import pytest

from odd_games import Coins
from sightline.agents.resolving import resolve
from sightline.agents.sizes import FEW_EPISODES, MANY_EPISODES, SMALL_GAME
from sightline.config.loading import for_agent, load_recipe
from sightline.config.recipe import AgentRecipe

HERE = __name__


class Large(Coins):
    """A game that keeps much in memory."""

    def __init__(self, **how: Any) -> None:
        super().__init__(**how)
        self.world = np.ones(4 * SMALL_GAME, np.uint8)


class InAProcess(Coins):
    """A game that is played by another process, as those in a browser are."""

    def __init__(self, **how: Any) -> None:
        super().__init__(**how)
        code = f"world = bytearray(b'1') * {4 * SMALL_GAME}; print('begun', flush=True); input()"
        self.player = subprocess.Popen(
            [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self.player.stdout is not None and self.player.stdout.readline() == "begun\n"

    def close(self) -> None:
        self.player.communicate("\n")


class OnlyOne(Coins):
    """A game that cannot be there twice, such as a robot."""

    there: ClassVar[int] = 0

    def __init__(self, **how: Any) -> None:
        super().__init__(**how)
        OnlyOne.there += 1
        assert OnlyOne.there == 1

    def close(self) -> None:
        OnlyOne.there -= 1


def completed(*overrides: str) -> AgentRecipe:
    return resolve(for_agent(load_recipe(None, ["role=agent", *overrides])))


def of(game: str, *overrides: str) -> AgentRecipe:
    return completed(f"env={HERE}:{game}", "actions=[low, high]", "prompt=Take one.", *overrides)


@pytest.mark.parametrize("game", ["numberline", "ezpoints", "sokoban"])
def test_small_games_of_a_small_model_are_played_in_large_batches(game: str) -> None:
    recipe = completed(f"env={game}")
    assert recipe.rollouts.parallel == MANY_EPISODES
    assert resolve(recipe) == recipe


@pytest.mark.parametrize("game", ["Large", "InAProcess"])
def test_large_games_are_not(game: str) -> None:
    assert of(game).rollouts.parallel == FEW_EPISODES
    assert of("Coins").rollouts.parallel == MANY_EPISODES


def test_nor_are_models_that_may_be_large() -> None:
    assert completed("env=numberline", "policy.model=somebody/large").rollouts.parallel == FEW_EPISODES


def test_what_the_recipe_says_holds_and_one_game_is_made_at_a_time() -> None:
    assert of("OnlyOne", "rollouts.parallel=1").rollouts.parallel == 1
    assert OnlyOne.there == 0
