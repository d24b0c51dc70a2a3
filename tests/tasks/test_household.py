"""Household tasks: the rules against transcripts of ALFWorld's own engine, game files, goals, and the expert."""

from __future__ import annotations

import contextlib
import gzip
import json
import re
from collections import Counter
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from household_problems import problem_of
from sightline.envs.games.checking import check_game
from sightline.envs.games.making import GameMaker
from sightline.errors import BadInput
from sightline_tasks.household import layouts
from sightline_tasks.household import scenes as scenes_module
from sightline_tasks.household.env import HouseholdGame
from sightline_tasks.household.files import FILE, names_of, of_problem, read_game
from sightline_tasks.household.goals import KINDS, Goal, expert, find_target
from sightline_tasks.household.pictures import PLACES, THINGS, draw_world
from sightline_tasks.household.scenes import FITS, ROOMS, Scene, draw_game, scenes
from sightline_tasks.household.world import NOTHING_HAPPENS, Household, Place, Thing, World

RECORDED = Path(__file__).parent / "data" / "household" / "transcripts.json.gz"


def transcripts() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(gzip.decompress(RECORDED.read_bytes()))
    return found


def small() -> Household:
    """A kitchen with an apple in a closed fridge, a knife, a mug and a lamp on the countertop."""
    things = {
        "apple 1": Thing("apple 1", "apple", frozenset({"take", "cool", "heat", "clean", "slice"})),
        "desklamp 1": Thing("desklamp 1", "desklamp", frozenset({"toggle"})),
        "knife 1": Thing("knife 1", "knife", frozenset({"take"})),
        "mug 1": Thing("mug 1", "mug", frozenset({"take", "contain"})),
    }
    kinds = ("countertop", "fridge", "microwave", "sinkbasin")
    places = {f"{kind} 1": Place(f"{kind} 1", kind, kind, kind in ("fridge", "microwave")) for kind in kinds}
    inside = {"apple 1": "fridge 1", "desklamp 1": "countertop 1", "knife 1": "countertop 1", "mug 1": "countertop 1"}
    return Household(things, places, FITS, inside)


def two_mugs() -> Household:
    """The same kitchen with another mug on the countertop."""
    one = small()
    things = one.things | {"mug 2": Thing("mug 2", "mug", one.things["mug 1"].can)}
    return Household(things, one.places, one.fits, one.inside | {"mug 2": "countertop 1"})


def played(world: World, *commands: str) -> list[str]:
    return [world.do(command) for command in commands]


# -- rules ----------------------------------------------------------------------------------------------------------


def test_every_recorded_turn_of_the_original_is_repeated_word_for_word() -> None:
    turns, verbs = 0, Counter[str]()
    for number, game in enumerate(transcripts()):
        household, goal = of_problem(game["problem"])
        world = World(household)
        assert game["introduction"].split("\n\n")[1:] == [
            world.introduction(),
            f"Your task is to: {goal.sentences[0]}.",
        ]
        assert world.commands() == game["commands"]
        for command, answer, commands, won in game["turns"]:
            where = f"game {number}, {command}"
            assert world.do(command) == answer, where
            assert world.commands() == commands, where
            assert goal.is_done(world) == won, where
            turns += 1
            verbs[command.split()[0]] += answer != NOTHING_HAPPENS
    assert turns >= 1000
    expected = ("go", "open", "close", "take", "move", "examine", "use", "heat", "clean", "cool", "slice", "look")
    assert all(verbs[verb] >= 4 for verb in expected), verbs
    assert {of_problem(game["problem"])[1].task for game in transcripts()} == set(KINDS)


def test_what_is_behind_a_closed_door_is_out_of_reach() -> None:
    world = World(small())
    assert played(world, "take apple 1 from fridge 1", "go to fridge 1") == [
        NOTHING_HAPPENS,
        "You arrive at fridge 1. The fridge 1 is closed.",
    ]
    assert "take apple 1 from fridge 1" not in world.commands()
    assert played(world, "open fridge 1", "take apple 1 from fridge 1", "examine apple 1") == [
        "You open the fridge 1. The fridge 1 is open. In it, you see a apple 1.",
        "You pick up the apple 1 from the fridge 1.",
        "There's nothing special about apple 1.",
    ]


def test_heat_undoes_cold_and_cold_undoes_heat() -> None:
    world = World(small())
    played(world, "go to fridge 1", "open fridge 1", "take apple 1 from fridge 1", "cool apple 1 with fridge 1")
    assert world.do("examine apple 1") == "This is a cold apple 1."
    played(world, "go to microwave 1", "heat apple 1 with microwave 1")
    assert world.do("examine apple 1") == "This is a hot apple 1."
    played(world, "go to sinkbasin 1", "clean apple 1 with sinkbasin 1")
    assert world.do("examine apple 1") == "This is a hot and clean apple 1."


def test_a_command_without_a_meaning_changes_nothing() -> None:
    world = World(small())
    before = world.commands()
    assert played(world, "dance", "", "take mug 1 from countertop 1", "GO TO FRIDGE 1") == [NOTHING_HAPPENS] * 4
    assert world.commands() == before


# -- goals and the expert -------------------------------------------------------------------------------------------


def test_conditions_are_counted_for_the_thing_that_comes_closest() -> None:
    goal, world = Goal("pick_cool_then_place_in_recep", "apple", "microwave"), World(small())
    seen = [goal.conditions(world)]
    for command in (
        *("go to fridge 1", "open fridge 1", "take apple 1 from fridge 1", "cool apple 1 with fridge 1"),
        *("go to microwave 1", "open microwave 1", "move apple 1 to microwave 1"),
    ):
        world.do(command)
        seen.append(goal.conditions(world))
    assert seen == [0, 0, 0, 0, 0.5, 0.5, 0.5, 1]
    assert goal.is_done(world)


def test_looking_needs_the_thing_in_hand_and_a_lamp_that_was_turned_on_here() -> None:
    goal, world = Goal("look_at_obj_in_light", "mug", lamp="desklamp"), World(small())
    played(world, "go to countertop 1", "use desklamp 1")
    assert goal.conditions(world) == 0.5
    world.do("take mug 1 from countertop 1")
    assert goal.is_done(world)
    world.do("go to fridge 1")
    assert goal.conditions(world) == 0.5


@pytest.mark.parametrize("task", KINDS)
@pytest.mark.parametrize("sliced", [False, True])
def test_the_expert_wins_every_game(task: str, sliced: bool) -> None:
    if not scenes(True, task, sliced):
        assert sliced and task == "look_at_obj_in_light", "no kitchen has a lamp"
        return
    for seed in range(5):
        _, household, goal = draw_game(np.random.default_rng(seed), [task], held_out=bool(seed % 2), sliced=sliced)
        world, commands = World(household), list[str]()
        while (command := expert(world, goal)) is not None:
            assert command in world.commands()
            commands.append(command)
            world.do(command)
            assert len(commands) <= 30
        assert goal.is_done(world), (goal, commands)
        assert goal.sliced == any(command.startswith("slice") for command in commands)


def test_short_commands_mean_the_thing_that_the_task_needs() -> None:
    """Of two potatoes the one that is not sliced yet is sliced, and the sliced one is taken."""
    game = HouseholdGame("pick_two_obj_and_place", sliced=True, words=False)
    for seed in range(25):
        assert through(game, seed)[2]["success"], seed


def test_the_expert_gets_rid_of_what_it_does_not_need() -> None:
    world, goal = World(small()), Goal("pick_and_place_simple", "apple", "countertop")
    played(world, "go to countertop 1", "take mug 1 from countertop 1")
    commands = []
    while (command := expert(world, goal)) is not None:
        commands.append(command)
        world.do(command)
    assert commands[0] == "move mug 1 to countertop 1"
    assert goal.is_done(world)


@pytest.mark.parametrize(
    ("goal", "commands", "expected"),
    [
        (
            Goal("pick_heat_then_place_in_recep", "apple", "countertop"),
            # What is behind a closed door is not seen; then the apple is, then the microwave, then the countertop.
            ("go to fridge 1", "open fridge 1", "take apple 1 from fridge 1", "go to microwave 1",
             "heat apple 1 with microwave 1", "go to countertop 1"),
            ("apple, elsewhere", "apple, here", "microwave, elsewhere", "microwave, here", "countertop, elsewhere",
             "countertop, here"),
        ),
        (
            Goal("look_at_obj_in_light", "mug", lamp="desklamp"),
            ("go to countertop 1", "take mug 1 from countertop 1", "go to sinkbasin 1"),
            ("mug, here", "desklamp, here", "desklamp, elsewhere"),
        ),
        (
            Goal("pick_and_place_simple", "apple", "sinkbasin", sliced=True),
            ("go to countertop 1", "take knife 1 from countertop 1", "go to fridge 1", "open fridge 1"),
            ("knife, here", "apple, elsewhere", "apple, elsewhere", "apple, here"),
        ),
        (
            Goal("pick_and_place_simple", "apple", "sinkbasin"),
            ("go to countertop 1", "take mug 1 from countertop 1", "go to sinkbasin 1"),
            ("apple, elsewhere", "apple, elsewhere", "apple, elsewhere"),
        ),
    ],
)  # fmt: skip
def test_the_target_is_what_the_task_needs_next(
    goal: Goal, commands: tuple[str, ...], expected: tuple[str, ...]
) -> None:
    world = World(small())
    assert not find_target(world, goal)[1]
    for command, said in zip(commands, expected, strict=True):
        assert world.do(command) != NOTHING_HAPPENS
        kind, is_here = find_target(world, goal)
        assert f"{kind}, {'here' if is_here else 'elsewhere'}" == said, command


def test_of_two_things_the_one_that_is_brought_is_no_target_any_more() -> None:
    world, goal = World(two_mugs()), Goal("pick_two_obj_and_place", "mug", "sinkbasin")
    for command in ("go to countertop 1", "take mug 1 from countertop 1", "go to sinkbasin 1"):
        world.do(command)
    assert find_target(world, goal) == ("sinkbasin", True)
    world.do("move mug 1 to sinkbasin 1")
    assert find_target(world, goal) == ("mug", False)
    world.do("go to countertop 1")
    assert find_target(world, goal) == ("mug", True)


def test_the_expert_gives_up_what_cannot_be_done() -> None:
    assert expert(World(small()), Goal("pick_and_place_simple", "banana", "fridge")) is None
    assert expert(World(small()), Goal("pick_and_place_simple", "apple", "bathtub")) is not None  # it fetches the apple
    world = World(small())
    played(world, "go to fridge 1", "open fridge 1", "take apple 1 from fridge 1")
    assert expert(world, Goal("pick_and_place_simple", "apple", "bathtub")) is None


# -- scenes ---------------------------------------------------------------------------------------------------------


def test_drawn_games_begin_with_nothing_done_and_differ() -> None:
    games = [draw_game(np.random.default_rng(seed)) for seed in range(60)]
    assert all(goal.conditions(World(household)) == 0 for _, household, goal in games)
    assert {goal.task for _, _, goal in games} == set(KINDS)
    assert len({(scene, goal) for scene, _, goal in games}) > 50
    again = draw_game(np.random.default_rng(7))
    assert again == games[7]


def test_held_out_scenes_are_never_seen() -> None:
    drawn = {held: {draw_game(np.random.default_rng(i), held_out=held)[0] for i in range(80)} for held in (0, 1)}
    assert not drawn[0] & drawn[1]
    assert all(scene.is_held_out == bool(held) for held, found in drawn.items() for scene in found)
    assert Scene("kitchen", 29).is_held_out and not Scene("kitchen", 0).is_held_out


# -- floor plans of another package ---------------------------------------------------------------------------------


@pytest.fixture
def floor_plans_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A package `alfworld` with the files of its floor plans, in its form; 120 equal rooms."""
    folder = tmp_path / "alfworld" / "gen" / "layouts"
    folder.mkdir(parents=True)
    (tmp_path / "alfworld" / "__init__.py").write_text("raise RuntimeError('it is read, never imported')")
    reachable = ["Sink|-01.90|+00.97|-01.50|SinkBasin", "Drawer|+00.95|+00.22|-02.20", "Drawer|+00.95|+00.39|-02.20"]
    kinds = ["SinkBasin", "Drawer", "Toilet", "SoapBar", "Cloth", "Plunger", "DeskLamp", "Dresser", "StoveBurner"]
    for number in (100 * hundreds + plan for hundreds in (0, 2, 3, 4) for plan in range(1, 31)):
        (folder / f"FloorPlan{number}-openable.json").write_text(
            json.dumps({name: [0, 0, 90, 30] for name in reachable})
        )
        (folder / f"FloorPlan{number}-objects.json").write_text(json.dumps(kinds))
    monkeypatch.syspath_prepend(tmp_path)
    cached = (layouts.floor_plans, scenes_module.room_of, scenes, scenes_module.furniture, scenes_module.goals_of)
    for function in cached:
        function.cache_clear()
    yield folder
    for function in cached:
        function.cache_clear()


def test_furniture_of_floor_plans_is_read(floor_plans_installed: Path) -> None:
    room = scenes_module.room_of(Scene("bathroom", 7, "alfworld"))
    assert room.places == {  # reachable furniture is counted, other furniture is there once, of burners there are four
        "drawer": (2, 2), "dresser": (1, 1), "sinkbasin": (1, 1), "stoveburner": (4, 4), "toilet": (1, 1),
    }  # fmt: skip
    assert room.things == ("cloth", "soapbar") and room.lamp == "desklamp" and room.lamp_on == ("dresser",)
    places = scenes_module.furniture(Scene("bathroom", 7, "alfworld"))
    assert [name for name in places if name.startswith("drawer")] == ["drawer 2", "drawer 1"]


@pytest.mark.when_changed("tasks")
def test_more_rooms_to_train_in_are_none_of_those_held_out() -> None:
    def numbers(held_out: bool, rooms: int) -> set[int]:
        return {scene.number for scene in scenes(held_out, "pick_and_place_simple", False, "own", rooms)}

    assert numbers(False, 24) == set(range(24)) and numbers(False, 5) == set(range(5))
    assert numbers(False, 40) == {*range(24), *range(30, 46)}
    assert numbers(True, 24) == numbers(True, 40) == set(range(24, 30))
    game = HouseholdGame("pick_and_place_simple", rooms=1000, words=False)
    listed = [game.reset(seed=seed)[1]["legal_actions"] for seed in range(30)]
    assert len(set(listed)) > 25, "hardly ever the same room twice"
    for wrong in ({"rooms": 0}, {"rooms": 30, "layouts": "alfworld"}):
        with pytest.raises(BadInput, match=f"rooms={wrong['rooms']}: say 1 or more"):
            HouseholdGame(**wrong)  # type: ignore[arg-type]


def test_games_on_floor_plans_are_won_in_rooms_that_are_seen_or_held_out(floor_plans_installed: Path) -> None:
    for held_out in (False, True):
        game = HouseholdGame(("pick_and_place_simple", "look_at_obj_in_light"), held_out, layouts="alfworld")
        assert all(through(game, seed)[2]["success"] for seed in range(6))
        allowed = scenes(held_out, "pick_and_place_simple", False, "alfworld")
        assert {scene.number for scene in allowed} == set(range(1, 7) if held_out else range(7, 31))


@pytest.mark.parametrize("content", ["", "[]", "{", "3", "[1, 2]"])
def test_broken_floor_plans_are_refused_in_one_line(content: str, floor_plans_installed: Path) -> None:
    (floor_plans_installed / "FloorPlan203-objects.json").write_text(content)
    with pytest.raises(BadInput, match=r"FloorPlan203-objects\.json.*another version of alfworld"):
        HouseholdGame(layouts="alfworld")


def test_tasks_that_no_floor_plan_allows_are_refused(floor_plans_installed: Path) -> None:
    with pytest.raises(BadInput, match="pick_heat_then_place_in_recep: no floor plan allows it"):
        HouseholdGame("pick_heat_then_place_in_recep", layouts="alfworld")


def test_without_the_package_floor_plans_are_refused() -> None:
    if find_spec("alfworld") is not None:
        pytest.skip("the package is installed")
    with pytest.raises(BadInput, match=r"pip install 'sightline\[alfworld\]'"):
        HouseholdGame(layouts="alfworld")


# -- files ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("task", KINDS)
def test_what_is_written_is_read(task: str) -> None:
    sliced = task != "look_at_obj_in_light"
    _, household, goal = draw_game(np.random.default_rng(3), [task], sliced=sliced)
    read, read_goal = of_problem(problem_of(household, goal))
    assert read_goal == goal
    assert list(read.things.values()) == list(household.things.values())
    assert [(place.name, place.kind, place.openable) for place in read.places.values()] == [
        (place.name, place.kind, place.openable) for place in household.places.values()
    ]
    assert (read.inside, read.fits) == (household.inside, household.fits)


def test_things_are_numbered_as_by_alfworld() -> None:
    """Identifiers in order, the last number first; a basin is named after its sink."""
    names = names_of(
        ["mug_bar__plus_02", "mug_bar__minus_01", "sink_bar__plus_00_bar_sinkbasin", "mugtype", "agent1", "cup_bar_1"]
    )
    assert names == {
        "cup_bar_1": "cup 1",
        "mug_bar__minus_01": "mug 2",
        "mug_bar__plus_02": "mug 1",
        "sink_bar__plus_00_bar_sinkbasin": "sinkbasin 1",
    }


PROBLEM = """
(define (problem plan_trial) (:domain alfred)
  (:objects agent1 - agent
    Mug_bar__plus_00_dot_50 - object  Mug - object
    Cabinet_bar__minus_01_dot_25 - receptacle
    loc_bar_1_bar_2 loc_bar_0_bar_0 - location  CabinetType - rtype  MugType - otype)
  (:init ; where things are
    (= (total-cost) 0) (atLocation agent1 loc_bar_0_bar_0)
    (receptacleType Cabinet_bar__minus_01_dot_25 CabinetType) (objectType Mug_bar__plus_00_dot_50 MugType)
    (receptacleAtLocation Cabinet_bar__minus_01_dot_25 loc_bar_1_bar_2) (openable Cabinet_bar__minus_01_dot_25)
    (pickupable Mug_bar__plus_00_dot_50) (canContain CabinetType MugType))
  (:goal (and (exists (?r - receptacle) (exists (?o - object)
    (and (inReceptacle ?o ?r) (objectType ?o MugType) (receptacleType ?r CabinetType)))))))
"""


def test_a_problem_of_alfworlds_form_is_read() -> None:
    household, goal = of_problem(PROBLEM)
    assert goal == Goal("pick_and_place_simple", "mug", "cabinet")
    assert household.things == {"mug 1": Thing("mug 1", "mug", frozenset({"take"}))}
    assert household.places == {"cabinet 1": Place("cabinet 1", "cabinet", "loc_bar_1_bar_2", True)}
    assert World(household).introduction().endswith("you see a cabinet 1.")


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        (")))))))", ")))", "cut off"),
        ("(:goal", "(:aim", "no (:goal"),
        ("(openable", "(locked", "'locked' is unknown"),
        ("(canContain CabinetType MugType)", "(canContain CabinetType)", "1 arguments"),
        ("(atLocation agent1 loc_bar_0_bar_0)", "", "0 locations"),
        ("(inReceptacle ?o ?r)", "(or (inReceptacle ?o ?r))", "'or'"),
        ("(inReceptacle ?o ?r) (objectType ?o MugType)", "(inReceptacle ?o ?r)", "six kinds"),
    ],
)
def test_other_problems_are_refused_in_one_line(old: str, new: str, expected: str, tmp_path: Path) -> None:
    file = tmp_path / FILE
    file.write_text(json.dumps({"pddl_problem": PROBLEM.replace(old, new)}))
    with pytest.raises(BadInput) as caught:
        read_game(file)
    assert expected in str(caught.value) and str(file) in str(caught.value)
    assert "\n" not in str(caught.value)


@settings(max_examples=300, deadline=None)
@given(st.integers(0, 10_000), st.sampled_from(["", "(", ")", "()", "(())", "(and)", "(objectType)", "x"]))
def test_no_slip_of_a_file_is_more_than_bad_input(place: int, word: str) -> None:
    """Any word of a problem may be missing, or another one."""
    words = re.findall(r"[()]|[^\s()]+", PROBLEM)
    words[place % len(words)] = word
    with contextlib.suppress(BadInput):
        of_problem(" ".join(words))


@pytest.mark.parametrize("content", [b"\xff\xfe", b"[]", b"{}", b"[" * 100_000, b'{"pddl_problem": 3}'])
def test_files_that_are_no_games_are_refused(content: bytes, tmp_path: Path) -> None:
    file = tmp_path / FILE
    file.write_bytes(content)
    with pytest.raises(BadInput):
        read_game(file)


def test_a_file_that_is_too_large_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sightline_tasks.household.files.MOST_BYTES", 10)
    (tmp_path / FILE).write_text(json.dumps({"pddl_problem": PROBLEM}))
    with pytest.raises(BadInput, match="larger than"):
        read_game(tmp_path / FILE)
    with pytest.raises(BadInput, match="cannot be read"):
        read_game(tmp_path / "missing")


# -- the game -------------------------------------------------------------------------------------------------------


@pytest.mark.when_changed("tasks")
@pytest.mark.parametrize("words", [True, False])
def test_the_game_passes_the_checks_of_games(words: bool) -> None:
    maker = GameMaker("household", {"words": words})
    findings = check_game(maker, episodes=8, round_trip=lambda name, names: name)
    assert [finding for finding in findings if not finding.passed] == []


def through(game: HouseholdGame, seed: int) -> tuple[list[str], list[float], dict[str, Any]]:
    """An episode of the expert: its commands, the rewards, the last info."""
    _, info = game.reset(seed=seed)
    commands, rewards = list[str](), list[float]()
    while (command := game.oracle()) is not None:
        assert command in info["legal_actions"]
        _, reward, _, _, info = game.step(command)
        commands.append(command)
        rewards.append(reward)
    return commands, rewards, info


@pytest.mark.parametrize("task", KINDS)
def test_short_commands_do_what_whole_ones_do(task: str) -> None:
    whole, short = HouseholdGame(task), HouseholdGame(task, words=False)
    for seed in range(3):
        commands, rewards, info = through(whole, seed)
        shorter, same_rewards, same_info = through(short, seed)
        assert (info["success"], same_info["success"], info["kind"]) == (True, True, task)
        assert rewards == same_rewards == [0.0] * (len(rewards) - 1) + [1.0]
        assert [command.split()[0].replace("move", "put") for command in commands] == [c.split()[0] for c in shorter]
        assert short.text().endswith("."), "no answers in words"


def test_without_words_the_actions_of_an_episode_tell_nothing() -> None:
    game = HouseholdGame(words=False)
    _, info = game.reset(seed=3)
    listed = info["legal_actions"]
    while (command := game.oracle()) is not None:
        _, _, over, _, info = game.step(command)
        assert over or info["legal_actions"] == listed
    assert info["legal_actions"] == ()


def test_where_the_agent_has_not_been_is_told_if_wanted() -> None:
    game, silent = HouseholdGame(words=False, recall=True), HouseholdGame(words=False)
    for _ in range(2):
        observation, info = game.reset(seed=3)
        places = [name.removeprefix("go to ") for name in info["legal_actions"] if name.startswith("go to ")]
        assert observation.text == f"{silent.reset(seed=3)[0].text}\nYou have not been at: {', '.join(places)}."
    for place in (places[2], places[0], places[0], places[2]):
        observation, *_ = game.step(f"go to {place}")
    left = ", ".join([places[1], *places[3:]])
    assert observation.text.endswith(f"\nYou have not been at: {left}.")
    assert game.thoughts() == f"not seen yet: {places[1]}" and silent.thoughts() is None
    for place in places:
        observation, *_ = game.step(f"go to {place}")
    assert observation.text.endswith("\nYou have not been at: nothing.") and game.thoughts() == "not seen yet: nothing"


def test_a_game_may_begin_before_a_place(tmp_path: Path) -> None:
    """It has been seen then."""
    before = PROBLEM.replace("(atLocation agent1 loc_bar_0_bar_0)", "(atLocation agent1 loc_bar_1_bar_2)")
    (tmp_path / FILE).write_text(json.dumps({"pddl_problem": before}))
    game = HouseholdGame(words=False, recall=True, games=str(tmp_path))
    game.reset(seed=0)
    assert [place.name for place in game.world.here] == ["cabinet 1"] and game.unvisited() == []


def test_shaped_rewards_sum_to_the_same() -> None:
    game = HouseholdGame("pick_clean_then_place_in_recep", shaped=True)
    _, rewards, info = through(game, 5)
    assert sum(rewards) == info["conditions"] == 1.0
    assert sorted(rewards)[-2:] == [0.5, 0.5]


def test_a_folder_of_game_files_is_played(tmp_path: Path) -> None:
    goals = set()
    for seed in range(3):
        _, household, goal = draw_game(np.random.default_rng(seed))
        (tmp_path / f"trial_{seed}").mkdir()
        (tmp_path / f"trial_{seed}" / FILE).write_text(json.dumps({"pddl_problem": problem_of(household, goal)}))
        goals.add(goal)
    game = HouseholdGame(games=str(tmp_path))
    assert all(through(game, seed)[2]["success"] for seed in range(6))
    single = HouseholdGame(games=str(tmp_path / "trial_1" / FILE))
    assert through(single, 0)[2]["success"]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"tasks": "pick_and_throw"}, "pick_and_place_simple"),
        ({"tasks": "look_at_obj_in_light", "sliced": True}, "knife and a lamp"),
        ({"games": "/nowhere"}, FILE),
        ({"render_size": (16, 16)}, "too small"),
    ],
)
def test_wrong_options_are_said_in_one_line(options: dict[str, Any], expected: str) -> None:
    with pytest.raises(BadInput) as caught:
        GameMaker("household", options)()
    assert expected in str(caught.value) and "\n" not in str(caught.value)


# -- pictures -------------------------------------------------------------------------------------------------------


def test_every_kind_has_a_sign_of_its_own() -> None:
    things = {thing for room in ROOMS.values() for thing in (*room.things, room.lamp) if thing}
    assert things <= set(THINGS)
    assert set(FITS) <= set(PLACES) and {place for room in ROOMS.values() for place in room.places} <= set(PLACES)
    assert len(set(THINGS.values())) == len(THINGS) and len(set(PLACES.values())) == len(PLACES)


def test_pictures_show_doors_things_and_what_is_held() -> None:
    world, size = World(small()), (96, 96)
    shown = [draw_world(world, size)]
    for command in (
        *("go to fridge 1", "open fridge 1", "take apple 1 from fridge 1", "cool apple 1 with fridge 1"),
        *("go to countertop 1", "use desklamp 1", "move apple 1 to countertop 1", "take knife 1 from countertop 1"),
        "slice apple 1 with knife 1",
    ):
        world.do(command)
        shown.append(draw_world(world, size))
    assert all(picture.shape == (96, 96, 3) and picture.dtype == np.uint8 for picture in shown)
    assert len({picture.tobytes() for picture in shown}) == len(shown), "each command changes the picture"
    closed, opened = shown[1], shown[2]
    assert (closed[80:] == opened[80:]).all(), "nothing is held before or after"


def test_kinds_of_other_peoples_files_are_drawn_too() -> None:
    things = {f"{kind} 1": Thing(f"{kind} 1", kind, frozenset({"take"})) for kind in ("plunger", "dumbbell")}
    place = Place("ottoman 1", "ottoman", "there")
    pictures = set()
    for thing in things:
        world = World(Household(things, {place.name: place}, {}, {thing: place.name}, start="there"))
        pictures.add(draw_world(world, (64, 64)).tobytes())
    assert len(pictures) == 2
