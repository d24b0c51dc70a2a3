"""`sightline check-env` of environments for a policy on states: every flaw is found, and nothing in sound ones."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from typer.testing import CliRunner

from odd_pictures import Walk
from sightline.cli.commands import app
from sightline.envs.checking import check_control, described
from sightline.envs.games.checking import Finding, check_game, picture_trouble
from sightline.envs.games.making import GameMaker
from sightline.envs.making import EnvMaker
from sightline.errors import BadInput, RunFailed

HERE = __name__
NAMES = [
    "observations",
    "actions",
    "equal seeds",
    "other seeds",
    "pictures",
    "success",
    "own reward",
    "ends",
    "time",
    "copies",
    "closes",
]


class Alone(Walk):
    """One at a time in a process."""

    count = 0

    def __init__(self, render_mode: str | None = None) -> None:
        super().__init__(render_mode)
        if type(self).count:
            raise RuntimeError("the emulator runs already")
        type(self).count += 1

    def close(self) -> None:
        type(self).count = 0


class Shutting(Walk):
    """Closing one shuts the library down for all, as `pygame.quit` does."""

    shut = False

    def __init__(self, render_mode: str | None = None) -> None:
        super().__init__(render_mode)
        type(self).shut = False

    def render(self) -> np.ndarray:
        if type(self).shut:
            raise RuntimeError("display Surface quit")
        return super().render()

    def close(self) -> None:
        type(self).shut = True


class Endless(Walk):
    """Never ends."""

    def __init__(self, render_mode: str | None = None) -> None:
        super().__init__(render_mode, length=10**9)


class Sloppy(Walk):
    """Fails when it is closed."""

    def close(self) -> None:
        raise OSError("no such window")


class Nans(Walk):
    """Observes NaN from its third step on."""

    def _state(self) -> np.ndarray:
        return super()._state() * (np.nan if self.time == 3 else 1)


class Frameless(Walk):
    """Cannot draw."""

    def render(self) -> np.ndarray:
        raise NotImplementedError("no renderer")


class Same(Walk):
    """Every seed gives the same episode."""

    def reset(self, **options: Any) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(**options)
        self.start = self.place = self.shown = 0.0
        return self._state(), self._info()


class Drifting(Walk):
    """Its chance is seeded by the constructor, so that copies begin alike, and goes on from reset to reset."""

    def __init__(self, render_mode: str | None = None) -> None:
        super().__init__(render_mode)
        self.chance = np.random.default_rng(0)

    def reset(self, **options: Any) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(**options)
        self.start = self.place = self.shown = float(self.chance.uniform(-1, 1))
        return self._state(), self._info()


class Flagged(Walk):
    """Its infos hold a truth value among numbers and texts."""

    def _info(self) -> dict[str, Any]:
        return {"at_goal": np.bool_(False), "lives": 3, "name": "walk"}


class FailsFirst(Walk):
    """It cannot be reset."""

    def reset(self, **options: Any) -> tuple[np.ndarray, dict[str, Any]]:
        raise TypeError("bad level")


def checked(env: str, in_processes: bool = False, **options: Any) -> dict[str, Finding]:
    module = "odd_pictures" if env == "Walk" else HERE
    return {f.name: f for f in check_control(EnvMaker(f"{module}:{env}", options), 3, in_processes=in_processes)}


def test_a_sound_environment_passes_every_check_with_its_numbers() -> None:
    found = checked("Walk", states=True)
    assert list(found) == NAMES and all(finding.passed for finding in found.values())
    assert found["observations"].detail == ("float32[2] from -1 to 1; a policy reads float32[2] from -1 to 1")
    assert found["actions"].detail == "float32[1] from -1 to 1"
    assert found["pictures"].detail.startswith("32x32; a random step changes ")
    assert found["success"].played == 3 and found["success"].won is not None
    assert found["ends"].detail == "after 40 steps at the latest in random play"
    assert found["own reward"].detail.startswith("returns from ")


@pytest.mark.parametrize(
    ("env", "options", "wrong", "said"),
    [
        ("Walk", {"draws": "black"}, "pictures", "of one colour, (0, 0, 0)"),
        ("Walk", {"draws": "sky"}, "pictures", "are the same, though what is observed changes"),
        ("Walk", {"draws": "start"}, "pictures", "render() must draw the present state"),
        ("Walk", {"seeded": False}, "equal seeds", "seed 0, step 0: the observation differs between two copies"),
        ("Alone", {}, "copies", "one at a time in a process"),
        ("Shutting", {}, "copies", "train with workers=processes"),
        ("Sloppy", {}, "closes", "OSError: no such window (test_check_control.py:"),
        ("Nans", {}, "no exception", "'test_check_control:Nans' returned an observation with NaN in it (at step 3"),
        ("Frameless", {}, "pictures", "NotImplementedError: no renderer"),
        ("Drifting", {}, "equal seeds", "two resets with seed 0 give other observations"),
    ],
)
def test_what_is_wrong_is_found_and_nothing_else(env: str, options: dict[str, Any], wrong: str, said: str) -> None:
    Alone.count = 0
    found = checked(env, **options)
    assert [name for name, finding in found.items() if not finding.passed] == [wrong]
    assert said in found[wrong].detail and "\n" not in found[wrong].detail


@pytest.mark.parametrize(
    ("env", "options", "name", "said"),
    [
        ("Walk", {"draws": "rarely"}, "pictures", "32x32; a random step changes"),
        ("Walk", {}, "success", "is not stated, so that runs report returns alone"),
        ("Walk", {"pays": "nothing"}, "own reward", "was 0 at every step of 3 random episodes; if it always is, pay"),
        ("Walk", {"pays": "vector"}, "own reward", "mo_gymnasium.wrappers.LinearReward"),
        ("Walk", {"pays": "none"}, "own reward", "cannot be learned from (reward.kind=ground_truth)"),
        ("Flagged", {}, "success", "success_from=KEY if one of its infos does (at_goal)"),
        ("Same", {}, "other seeds", "a panel of many seeds is one episode"),
        ("Endless", {}, "ends", "after 1000 steps at the latest, which is our own limit"),
    ],
)
def test_what_is_odd_is_said_and_passes(env: str, options: dict[str, Any], name: str, said: str) -> None:
    found = checked(env, **options)
    assert all(finding.passed for finding in found.values())
    assert said in found[name].detail


def test_a_reset_that_fails_is_named_with_its_place() -> None:
    with pytest.raises(
        RunFailed,
        match=r"'test_check_control:FailsFirst' failed in reset\(\): TypeError: bad level \(test_check_control.py:",
    ):
        checked("FailsFirst")


def test_a_close_that_fails_costs_no_other_finding() -> None:
    found = CliRunner().invoke(app, ["check-env", f"{HERE}:Sloppy", "--episodes", "2"])
    lines = found.stdout.splitlines()
    assert [line for line in lines if line.startswith("-- ")] == [
        line for line in lines if line.startswith("--  closes ") and "OSError: no such window (" in line
    ]
    assert found.exit_code == 1 and len(lines) == len(NAMES) + 1


def test_without_pictures_or_a_reward_nothing_is_trained_with() -> None:
    keys = ["env_options.draws=black", "env_options.pays=vector"]
    found = CliRunner().invoke(app, ["check-env", "odd_pictures:Walk", *keys, "--episodes", "2"])
    assert "cannot be learned from" in found.stdout and "train with" not in found.stdout


def test_what_needs_a_process_of_its_own_passes_if_it_gets_one() -> None:
    Alone.count = 0
    assert checked("Alone", in_processes=True)["copies"].passed


def test_spaces_are_described_in_a_few_words() -> None:
    parts = {"place": spaces.Box(-1, 1, (2,)), "said": spaces.Text(9), "door": spaces.Discrete(3)}
    assert described(spaces.Dict(parts)) == (
        "a dictionary of door: 3 choices, place: float32[2] from -1 to 1, said: text"
    )
    assert described(spaces.MultiDiscrete([2, 3])) == "MultiDiscrete([2 3])"


def test_what_cannot_be_made_is_refused() -> None:
    with pytest.raises(BadInput, match="there is no environment 'CartPole-v9'"):
        check_control(EnvMaker("CartPole-v9"))
    with pytest.raises(BadInput, match="episodes=1 is too few"):
        check_control(EnvMaker("CartPole-v1"), 1)


def test_the_command_checks_what_an_environment_is_for() -> None:
    run = CliRunner()
    walk = run.invoke(app, ["check-env", "odd_pictures:Walk", "env_options.states=true", "--episodes", "2", "--json"])
    told = json.loads(walk.stdout)
    assert walk.exit_code == 0 and told["passed"] and told["env"] == "odd_pictures:Walk"
    assert [finding["name"] for finding in told["findings"]] == [*NAMES, "train with"]
    assert told["findings"][-1]["detail"] == (
        'sightline train env=odd_pictures:Walk env_options.states=true goal="what the picture should show"'
    )
    black = run.invoke(app, ["check-env", "odd_pictures:Walk", "env_options.draws=black", "--episodes", "2"])
    assert black.exit_code == 1 and "--  pictures " in black.stdout
    discrete = run.invoke(app, ["check-env", "CartPole-v1", "--episodes", "2"])
    assert discrete.exit_code == 0 and "2 choices; to check it for an agent, name them: prompt=" in discrete.stdout
    game = run.invoke(app, ["check-env", "CartPole-v1", "prompt=Balance.", "actions=[left, right]", "--episodes", "2"])
    assert game.stdout.splitlines()[-1].endswith(
        "sightline train role=agent env=CartPole-v1 prompt=Balance. 'actions=[left, right]'"
    )
    assert "a step with its picture takes " in game.stdout
    assert "replies" in run.invoke(app, ["check-env", "numberline", "--episodes", "2"]).stdout
    assert run.invoke(app, ["check-env", "CartPole-v9"]).exit_code != 0


@pytest.mark.parametrize(
    ("draws", "said"),
    [
        ("black", "all pictures of 64 random turns are of one colour, (0, 0, 0)"),
        ("sky", "all pictures of 64 random turns are the same"),
        ("bar", None),
        ("rarely", None),
    ],
)
def test_pictures_that_show_an_agent_nothing_are_noticed(draws: str, said: str | None) -> None:
    actions = {"left": [-1.0], "right": [1.0]}
    maker = GameMaker("odd_pictures:Walk", {"draws": draws}, "Go right.", actions)
    trouble = picture_trouble(maker)
    assert trouble is None if said is None else trouble is not None and trouble.startswith(said)


def test_our_own_limit_of_a_game_is_told_as_such() -> None:
    maker = GameMaker("odd_pictures:Walk", {"length": 10**6}, "Go right.", {"left": [-1.0], "right": [1.0]})
    (ends,) = [finding for finding in check_game(maker, 2) if finding.name == "ends"]
    assert ends.detail.startswith("after 1000 steps at the latest, which is our own limit")
