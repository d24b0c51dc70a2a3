"""Environments that are played in words, as games: where commands, words, pictures and success are found."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

import sightline as sl
from sightline.envs.games.checking import check_game
from sightline.envs.games.contract import ActionText, AnyText
from sightline.envs.games.making import GameMaker
from sightline.errors import BadInput, RunFailed


class Doors(gymnasium.Env[str, str]):
    """One of some doors leads out; a sign says which. Commands differ from state to state."""

    def __init__(self) -> None:
        self.observation_space: Any = AnyText()
        self.action_space: Any = ActionText()

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        super().reset(seed=seed)
        self.doors, self.way_out = int(self.np_random.integers(2, 6)), 0
        self.way_out = int(self.np_random.integers(self.doors))
        return "You stand before doors.", self._info()

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        out = action == f"door {self.way_out}"
        return f"You tried {action}.", float(out), True, False, self._info() | {"escaped": out}

    def _info(self) -> dict[str, Any]:
        commands = [f"door {number}" for number in range(self.doors)]
        return {"admissible_commands": commands, "escaped": False, "floor": f"floor {self.doors}"}

    def sign(self) -> np.ndarray:
        picture = np.zeros((40, 60, 3), np.uint8)
        picture[:, 10 * self.way_out : 10 * self.way_out + 8] = 255
        return picture


def doors() -> gymnasium.Env[Any, Any]:
    """The game, as a recipe names it: `env=tests.test_text_game:doors`."""
    made = Doors()
    return sl.text_game(
        lambda: made,
        commands="admissible_commands",
        pictures=lambda observation, info: made.sign(),
        success="escaped",
        facts=lambda observation, info: {"way out": f"door {made.way_out}"},
        kind="floor",
    )


def test_a_state_is_told_shown_and_has_its_own_commands() -> None:
    game = doors()
    observation, info = game.reset(seed=3)
    assert observation.text == "You stand before doors." and observation.images[0].shape == (40, 60, 3)
    assert game.observation_space.contains(observation)
    assert info["legal_actions"] == tuple(info["admissible_commands"]) and info["kind"] == info["floor"]
    assert game.get_wrapper_attr("asked") == ("way out",)
    observation, reward, terminated, _, info = game.step(info["facts"]["way out"])
    assert (reward, terminated, info["success"], info["legal_actions"]) == (1.0, True, True, ())


def test_it_passes_the_checks_of_games(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend("tests")
    findings = check_game(GameMaker("test_text_game:doors"), episodes=6, round_trip=lambda name, names: name)
    assert [finding for finding in findings if not finding.passed] == []


def test_without_pictures_there_are_none() -> None:
    game = sl.text_game(Doors, commands=("door 0", "door 1"), success="reward")
    observation, info = game.reset(seed=0)
    assert observation.images == () and game.observation_space.contains(observation)
    assert info["legal_actions"] == ("door 0", "door 1")
    *_, info = game.step(f"door {game.unwrapped.way_out}")  # type: ignore[attr-defined]
    assert info["success"] is True


def test_numbered_actions_are_sent_as_numbers() -> None:
    pushes = ("left", "right")
    game = sl.text_game(
        "CartPole-v1",
        commands=pushes,
        text=lambda state, info: f"The pole leans by {state[2]:.2f}.",
        pictures="render",
        send=pushes.index,
    )
    observation, _ = game.reset(seed=0)
    assert observation.text.startswith("The pole leans by") and observation.images[0].dtype == np.uint8
    assert game.step("right")[1] == 1.0
    game.close()


@pytest.mark.parametrize("length", [0, 100_000])
def test_nothing_of_a_long_text_is_cut_and_an_empty_one_is_told(length: int) -> None:
    told = "🦊" * length + "!" * bool(length)
    game = sl.text_game(Doors, text=lambda observation, info: told)
    observation, _ = game.reset(seed=0)
    assert observation.text == told and game.observation_space.contains(observation)


class Silent(Doors):
    observation_space = spaces.Discrete(3)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        _, info = super().reset(seed=seed)
        return 3, info


@pytest.mark.parametrize(
    ("make", "options", "expected"),
    [
        (Doors, {"commands": "admissible"}, "there is no such info, but admissible_commands, escaped, floor"),
        (Doors, {"commands": lambda state, info: []}, "nothing can be done"),
        (Doors, {"pictures": lambda state, info: [[0]]}, "rendered int64[1]; frames must be uint8"),
        (Silent, {}, "the text of a state is a int"),
        (Doors, {"text": lambda state, info: "." * 1_000_001}, "has 1,000,001 characters; say by text= what of it"),
    ],
)
def test_what_is_not_there_is_said_in_one_line(make: Any, options: dict[str, Any], expected: str) -> None:
    with pytest.raises(RunFailed) as caught:
        sl.text_game(make, **options)
    assert expected in str(caught.value) and "\n" not in str(caught.value)


def test_an_unknown_id_is_said() -> None:
    with pytest.raises(BadInput, match="no environment 'Nowhere-v0'"):
        sl.text_game("Nowhere-v0")
