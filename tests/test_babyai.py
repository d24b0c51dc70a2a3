"""BabyAI and MiniGrid as games: missions, views, what is held, the bot as oracle, wrong input."""

from __future__ import annotations

import sys
from typing import Any

import gymnasium
import numpy as np
import pytest

from sightline.envs.games.babyai import ACTIONS, BabyAI
from sightline.envs.games.checking import check_game
from sightline.envs.games.making import GameMaker
from sightline.errors import BadInput, RunFailed

pytest.importorskip("minigrid")


def step(game: BabyAI, name: str) -> tuple[Any, float, bool, bool, dict[str, Any]]:
    return game.step(np.int64(ACTIONS.index(name)))


@pytest.mark.parametrize("options", [{}, {"view": "whole", "level": "GoToLocal"}, {"level": "PickupLoc"}])
def test_levels_pass_the_checks_of_games(options: dict[str, Any]) -> None:
    findings = check_game(GameMaker("babyai", options), episodes=4, round_trip=lambda name, names: name)
    assert [finding for finding in findings if not finding.passed] == []


@pytest.mark.parametrize("level", ["GoToObj", "GoToLocal", "PutNextLocal", "UnlockLocal", "Open"])
def test_the_bot_fulfils_missions(level: str) -> None:
    game = BabyAI(level)
    for seed in range(3):
        _, info = game.reset(seed=seed)
        rewards = [0.0]
        while (command := game.oracle()) is not None:
            _, reward, _, _, info = step(game, command)
            rewards.append(reward)
        assert info["success"] and rewards[-1] > 0.5 and not any(rewards[:-1])


def test_the_bot_goes_on_from_wherever_it_is() -> None:
    game, rng = BabyAI("GoToLocal"), np.random.default_rng(0)
    game.reset(seed=5)
    assert game.oracle() in ACTIONS
    for _ in range(6):
        _, _, over, _, info = step(game, ("left", "right")[int(rng.integers(2))])
        assert not over
    while (command := game.oracle()) is not None:
        *_, info = step(game, command)
    assert info["success"]


def test_the_mission_is_in_words_and_new_in_every_episode() -> None:
    game, missions = BabyAI("GoToLocal"), set()
    for seed in range(8):
        observation, _ = game.reset(seed=seed)
        missions.add(observation.text.partition("Your mission: ")[2])
    assert len(missions) > 4 and all(mission.startswith("go to ") for mission in missions)


def test_what_is_held_and_ahead_is_seen() -> None:
    game = BabyAI("PickupLoc", "whole")
    game.reset(seed=2)
    while game.facts()["holding"] == "nothing" and game.oracle() != "pick up":
        step(game, str(game.oracle()))
    ahead = game.facts()["ahead"]
    before = game.draw()
    _, reward, *_ = step(game, "pick up")
    assert reward > 0 and game.facts()["holding"] == ahead and game.facts()["ahead"] == "nothing"
    assert (game.draw()[:12, :12] != before[:12, :12]).any(), "it is shown in the corner"


def test_both_views_have_the_size_that_is_asked_for() -> None:
    for view in ("whole", "agent"):
        game = BabyAI("BossLevel", view, render_size=(64, 80))
        observation, _ = game.reset(seed=0)
        assert observation.images[0].shape == (64, 80, 3)


def test_the_target_is_where_the_picture_shows_it() -> None:
    """In the agent's view, a thing straight ahead is above the agent, and turning to the right moves it to the left."""
    game = BabyAI("GoToObj")
    game.reset(seed=3)
    assert game.facts() == {"ahead": "nothing", "holding": "nothing", "target": "not in sight"}
    step(game, "right")
    assert game.facts()["target"] == "column 2, row 2"  # two columns to the left, five rows ahead
    (thing,) = game.inner.instrs.desc.obj_set
    away = np.subtract(thing.cur_pos, game.inner.agent_pos)
    assert (away @ game.inner.right_vec, away @ game.inner.dir_vec) == (-2, 5)
    while (command := game.oracle()) is not None:
        *_, info = step(game, command)
    assert info["facts"]["target"] == "column 4, row 6" and info["facts"]["ahead"] == "yellow box"

    whole = BabyAI("GoToObj", "whole")
    whole.reset(seed=3)
    column, row = whole.inner.instrs.desc.obj_set[0].cur_pos
    assert whole.facts()["target"] == f"column {column + 1}, row {row + 1}"
    assert list(whole.facts()) == ["position", "facing", "ahead", "holding", "target"]


def test_the_target_is_what_the_mission_names_next() -> None:
    game = BabyAI("PutNextLocal", "whole")
    game.reset(seed=3)
    move, fixed = game.inner.instrs.desc_move.obj_set, game.inner.instrs.desc_fixed.obj_set

    def places(things: list[Any]) -> set[str]:
        return {"column {}, row {}".format(*np.add(thing.cur_pos, 1)) for thing in things}

    while game.facts()["holding"] == "nothing":
        assert game.facts()["target"] in places(move)
        step(game, str(game.oracle()))
    assert game.facts()["target"] in places(fixed)


@pytest.mark.parametrize("joined", [", then ", " after you "])
def test_of_two_missions_in_a_row_the_target_is_that_of_the_first_then_of_the_second(joined: str) -> None:
    game = BabyAI("GoToSeqS5R2", "whole")
    seed = 0
    while joined not in (text := game.reset(seed=seed)[0].text) or " and " in text.partition("mission")[2]:
        seed += 1
    instruction = game.inner.instrs
    parts = [instruction.instr_a, instruction.instr_b][:: 1 if "then" in joined else -1]
    places = [{"column {}, row {}".format(*np.add(thing.cur_pos, 1)) for thing in part.desc.obj_set} for part in parts]
    seen = [game.facts()["target"]]
    while (command := game.oracle()) is not None:
        *_, info = step(game, command)
        seen.append(game.facts()["target"])
    assert info["success"] and seen[0] in places[0] and seen[-1] in places[1]


def test_told_in_words_the_agent_knows_no_more_than_it_sees() -> None:
    game = BabyAI("GoToLocal")
    game.reset(seed=3)
    told = game.caption()
    assert told.startswith("You are at column 4, row 7 of 7 x 7") and "red ball" not in told
    assert "purple ball at column 4, row 3; green ball at column 6, row 4" in told
    whole = BabyAI("GoToLocal", "whole")
    whole.reset(seed=3)
    assert "red ball" in whole.caption() and "of 8 x 8" in whole.caption()


def test_levels_without_a_bot_have_no_oracle() -> None:
    game = BabyAI("MiniGrid-DoorKey-5x5-v0")
    observation, _ = game.reset(seed=0)
    assert game.oracle() is None and "use the key" in observation.text
    assert list(game.facts()) == ["ahead", "holding"], "its mission names no things to look for"


def test_an_empty_mission_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    game = BabyAI()
    monkeypatch.setattr(type(game.inner), "mission", property(lambda self: "", lambda self, value: None), raising=False)
    with pytest.raises(RunFailed, match="empty mission"):
        game.reset(seed=0)


@pytest.mark.parametrize(
    ("options", "expected"), [({"level": "GoToObject"}, "GoToObj"), ({"view": "above"}, "known: agent, whole")]
)
def test_wrong_options_are_said_in_one_line(options: dict[str, Any], expected: str) -> None:
    with pytest.raises(BadInput) as caught:
        GameMaker("babyai", options)()
    assert expected in str(caught.value) and "\n" not in str(caught.value)


def test_without_the_package_one_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "minigrid", None)
    with pytest.raises(RunFailed, match=r"pip install 'sightline\[minigrid\]'"):
        GameMaker("babyai")()
    with pytest.raises(gymnasium.error.DependencyNotInstalled):
        BabyAI()
