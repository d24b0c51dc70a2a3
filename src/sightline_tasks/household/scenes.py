"""Rooms of our own making, what is in them, and the tasks that can be given there.

Kinds of things and places, and which fit together, are those of ALFWorld's rooms; how many there are, and what lies
where, is drawn. A scene is a room with its furniture: equal numbers give equal rooms. Every episode puts things into it
anew. So scores here are not comparable with scores on ALFWorld's own games, whose rooms are AI2-THOR's. Where the
package `alfworld` is installed, furniture can be that of its floor plans (see `layouts`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Literal, NamedTuple, get_args

import numpy as np

from sightline_tasks.household.goals import CHANGES, KINDS, VERBS, Goal, expert
from sightline_tasks.household.layouts import PLANS, floor_plans
from sightline_tasks.household.world import KNIVES, Household, Place, Thing, World

SCENES = 30
"""Scenes of each room; with higher numbers there are as many more for training as are asked for."""
SEEN = 24
"""Of the first ones those with lower numbers are for training; the rest are held out."""
HELD_OUT_PLANS = 6
"""Of the 30 floor plans of each room, those up to this number are held out, as `alfworld` itself divides them."""
Layouts = Literal["own", "alfworld"]
"""Whose rooms: ours, or the floor plans of the package `alfworld`."""
LAYOUTS: tuple[Layouts, ...] = get_args(Layouts)
MOST_OF_A_KIND = 3

_FOOD = ("apple", "bread", "egg", "lettuce", "potato", "tomato")
_CUTLERY = ("butterknife", "fork", "knife", "ladle", "spatula", "spoon")
_DISHES = ("bowl", "cup", "mug", "plate")
_POTS = ("kettle", "pan", "pot")
_SMALL = ("cd", "cellphone", "creditcard", "keychain", "pen", "pencil", "remotecontrol", "watch")
_SHELVED = ("alarmclock", "book", "box", "candle", "laptop", "newspaper", "pillow", "statue", "tissuebox", "vase")
_BATHING = ("cloth", "handtowel", "soapbar", "soapbottle", "spraybottle", "toiletpaper", "towel")
_CONDIMENTS = ("dishsponge", "peppershaker", "saltshaker", "winebottle")

ABILITIES: dict[str, tuple[str, ...]] = {
    "clean": (*_FOOD[:1], *_FOOD[2:], *_CUTLERY, *_DISHES, *_POTS, "cloth", "dishsponge", "soapbar"),
    "heat": (*(food for food in _FOOD if food != "lettuce"), "cup", "mug", "plate"),
    "cool": (*_FOOD, *_DISHES, "pan", "pot", "winebottle"),
    "slice": _FOOD,
    "toggle": ("desklamp", "floorlamp"),
    "contain": (*_DISHES, "box", "pan", "pot"),
}
"""What can be done with which kinds of things, beside carrying them. Lamps stay where they are."""

_TABLES = (*_FOOD, *_CUTLERY, *_DISHES, *_POTS, *_SMALL, *_SHELVED, *_BATHING, *_CONDIMENTS)
FITS: dict[str, frozenset[str]] = {
    place: frozenset(things)
    for place, things in {
        "armchair": ("book", "box", "cellphone", "laptop", "newspaper", "pillow", "remotecontrol"),
        "bed": ("book", "cellphone", "laptop", "newspaper", "pillow"),
        "cabinet": (*_DISHES, *_POTS, *_CONDIMENTS, *_BATHING, "book", "candle", "ladle", "vase"),
        "cart": (*_BATHING, "candle", "tissuebox"),
        "coffeemachine": ("mug",),
        "coffeetable": _TABLES,
        "countertop": _TABLES,
        "desk": (*_SMALL, *_SHELVED, "mug"),
        "diningtable": _TABLES,
        "drawer": (
            *_SMALL,
            *_CUTLERY,
            *_CONDIMENTS[:3],
            "book",
            "candle",
            "cloth",
            "handtowel",
            "newspaper",
            "soapbar",
        ),
        "dresser": (*_SMALL, *_SHELVED, "handtowel", "spraybottle"),
        "fridge": (*_FOOD, *_DISHES, "pan", "pot", "winebottle"),
        "garbagecan": (*_FOOD, *_CONDIMENTS, *_BATHING[2:6], "cd", "newspaper", "pen", "pencil", "tissuebox"),
        "handtowelholder": ("handtowel",),
        "microwave": (*(food for food in _FOOD if food != "lettuce"), *_DISHES),
        "safe": ("cd", "cellphone", "creditcard", "keychain", "statue", "vase", "watch"),
        "shelf": (*_SMALL, *_SHELVED, *_DISHES, *_BATHING, *_CONDIMENTS[1:], "kettle", "pot"),
        "sidetable": _TABLES,
        "sinkbasin": (
            *_FOOD[:1],
            *_FOOD[2:],
            *_CUTLERY,
            *_DISHES,
            *_POTS,
            "cloth",
            "dishsponge",
            "handtowel",
            "soapbar",
        ),
        "sofa": ("book", "box", "cellphone", "laptop", "newspaper", "pillow", "remotecontrol"),
        "stoveburner": _POTS,
        "toilet": (
            "candle",
            "cloth",
            "handtowel",
            "newspaper",
            "soapbar",
            "soapbottle",
            "spraybottle",
            "tissuebox",
            "toiletpaper",
        ),
        "toiletpaperhanger": ("toiletpaper",),
        "towelholder": ("towel",),
        "tvstand": (*_SMALL, *_SHELVED),
    }.items()
}
"""Kind of a place -> the kinds of things that can be put there."""
OPENABLE = frozenset({"cabinet", "drawer", "fridge", "microwave", "safe"})


class Room(NamedTuple):
    """Kind of room.

    Attributes:
        places: kind of a place -> the least and the greatest number of it.
        things: the kinds of things that may be there.
        lamp: kind of lamp, if there is one.
        lamp_on: kinds of places on which it may stand.
    """

    places: Mapping[str, tuple[int, int]]
    things: tuple[str, ...]
    lamp: str = ""
    lamp_on: tuple[str, ...] = ()


ROOMS = {
    "kitchen": Room(
        {
            "cabinet": (2, 8),
            "coffeemachine": (1, 1),
            "countertop": (1, 3),
            "diningtable": (0, 1),
            "drawer": (1, 6),
            "fridge": (1, 1),
            "garbagecan": (1, 1),
            "microwave": (1, 1),
            "shelf": (0, 3),
            "sinkbasin": (1, 1),
            "stoveburner": (2, 4),
        },
        (*_FOOD, *_CUTLERY, *_DISHES, *_POTS, *_CONDIMENTS),
    ),
    "living room": Room(
        {
            "armchair": (1, 3),
            "coffeetable": (1, 1),
            "drawer": (0, 4),
            "dresser": (0, 1),
            "garbagecan": (0, 1),
            "shelf": (0, 4),
            "sidetable": (1, 2),
            "sofa": (1, 1),
            "tvstand": (0, 1),
        },
        (*_SHELVED[1:6], *_SHELVED[6:], "cellphone", "creditcard", "keychain", "remotecontrol", "watch"),
        "floorlamp",
        ("sidetable", "coffeetable", "shelf"),
    ),
    "bedroom": Room(
        {
            "armchair": (0, 1),
            "bed": (1, 2),
            "desk": (1, 2),
            "drawer": (2, 6),
            "dresser": (0, 1),
            "garbagecan": (1, 1),
            "safe": (0, 1),
            "shelf": (0, 4),
            "sidetable": (0, 2),
        },
        (*_SMALL, "alarmclock", "book", "laptop", "mug", "pillow", "statue", "vase", "tissuebox"),
        "desklamp",
        ("desk", "sidetable", "dresser"),
    ),
    "bathroom": Room(
        {
            "cabinet": (1, 4),
            "cart": (0, 1),
            "countertop": (1, 1),
            "drawer": (0, 4),
            "garbagecan": (1, 1),
            "handtowelholder": (1, 2),
            "shelf": (0, 2),
            "sinkbasin": (1, 2),
            "toilet": (1, 1),
            "toiletpaperhanger": (1, 1),
            "towelholder": (1, 1),
        },
        (*_BATHING, "candle", "tissuebox"),
    ),
}
_ROOM_NAMES = tuple(ROOMS)
LAMP_ON = ("coffeetable", "desk", "diningtable", "dresser", "shelf", "sidetable")
"""Kinds of places on which the lamp of a floor plan may stand."""


class Scene(NamedTuple):
    """Room with its furniture: the kind of room, a number, and whose rooms are counted."""

    room: str
    number: int
    layouts: Layouts = "own"

    @property
    def is_held_out(self) -> bool:
        if self.layouts == "alfworld":
            return self.number <= HELD_OUT_PLANS
        return SEEN <= self.number < SCENES


@cache
def room_of(scene: Scene) -> Room:
    """What a scene can have; of a floor plan, how much of it is known.

    Raises:
        BadInput: the package with the floor plans is not installed.
    """
    if scene.layouts == "own":
        return ROOMS[scene.room]
    lamps = ABILITIES["toggle"]
    plan = floor_plans(frozenset(FITS), frozenset({*_TABLES, *lamps}))[scene.room, scene.number]
    lamp = next((kind for kind in lamps if kind in plan.things), "")
    return Room(
        {kind: (count, count) for kind, count in plan.places.items()},
        tuple(kind for kind in plan.things if kind not in lamps),
        lamp,
        tuple(kind for kind in LAMP_ON if kind in plan.places),
    )


def numbered(counts: Mapping[str, int]) -> list[str]:
    """Names `kind number` in ALFWorld's order: kinds by the alphabet, and the last of a kind first."""
    names: list[str] = []
    for kind in sorted(counts):
        names += [f"{kind} {number}" for number in range(counts[kind], 0, -1)]
    return names


def kind_of(name: str) -> str:
    return name.rsplit(" ", 1)[0]


def number_of(name: str) -> int:
    """The number in `drawer 3`; 0 if there is none."""
    number = name.rsplit(" ", 1)[-1]
    if not number.isdecimal():
        return 0
    return int(number)


@cache
def furniture(scene: Scene) -> dict[str, Place]:
    """The places of a scene, by name."""
    # A stream of its own: a scene has the same furniture in every episode and process.
    rng = np.random.default_rng((_ROOM_NAMES.index(scene.room), scene.number))
    counts = {kind: int(rng.integers(low, high + 1)) for kind, (low, high) in room_of(scene).places.items()}
    places = {}
    for name in numbered(counts):
        kind = kind_of(name)
        places[name] = Place(name, kind, spot=name, openable=kind in OPENABLE)
    return places


@cache
def goals_of(scene: Scene, task: str, sliced: bool) -> tuple[Goal, ...]:
    """All goals of a kind that a scene allows; of slices if `sliced`."""
    room = room_of(scene)
    places = {place.kind for place in furniture(scene).values()}
    things = [thing for thing in room.things if not sliced or thing in ABILITIES["slice"]]
    if sliced and not set(KNIVES) & set(room.things):
        return ()
    if task == "look_at_obj_in_light":
        if not room.lamp or not places & set(room.lamp_on):
            return ()
        return tuple(Goal(task, thing, lamp=room.lamp, sliced=sliced) for thing in things)
    if task in CHANGES:
        state, appliance = CHANGES[task]
        if appliance not in places:
            return ()
        things = [thing for thing in things if thing in ABILITIES[VERBS[state]]]
        # What is to be heated and then left in the microwave could as well have been there before.
        places = places - {appliance}
    goals: list[Goal] = []
    for thing in things:
        goals += [Goal(task, thing, place, sliced=sliced) for place in sorted(places) if thing in FITS[place]]
    return tuple(goals)


@cache
def scenes(held_out: bool, task: str, sliced: bool, layouts: Layouts = "own", rooms: int = SEEN) -> tuple[Scene, ...]:
    """The held-out scenes that allow a task, or those of the first `rooms` seen ones of each room that do."""
    # The held-out numbers lie between the first ones that are seen and those that are there only on request.
    numbers = [*range(min(rooms, SEEN)), *range(SEEN, SCENES + max(rooms - SEEN, 0))]
    if layouts == "alfworld":
        numbers = list(PLANS)
    allowing = []
    for room in ROOMS:
        for number in numbers:
            scene = Scene(room, number, layouts)
            if scene.is_held_out == held_out and goals_of(scene, task, sliced):
                allowing.append(scene)
    return tuple(allowing)


def draw_game(
    rng: np.random.Generator,
    tasks: Sequence[str] = KINDS,
    held_out: bool = False,
    sliced: bool = False,
    layouts: Layouts = "own",
    rooms: int = SEEN,
) -> tuple[Scene, Household, Goal]:
    """Draw a scene, a task and where things lie, so that the task is neither done nor impossible."""
    while True:
        task = tasks[int(rng.integers(len(tasks)))]
        candidates = scenes(held_out, task, sliced, layouts, rooms)
        scene = candidates[int(rng.integers(len(candidates)))]
        goals = goals_of(scene, task, sliced)
        goal = goals[int(rng.integers(len(goals)))]
        household = fill(scene, goal, rng)
        if household is None:
            continue
        world = World(household)
        # A task that is half done, or cannot be done, is drawn again.
        if goal.conditions(world) == 0 and expert(world, goal) is not None:
            return scene, household, goal


def fill(scene: Scene, goal: Goal, rng: np.random.Generator) -> Household | None:
    """Put things into a scene, those of the goal among them; None if there is no place for one."""
    room = room_of(scene)
    places = furniture(scene)
    # Half of the kinds that may be there are, so that a room does not tell what it holds.
    counts: Counter[str] = Counter()
    for kind in room.things:
        if rng.random() < 0.5:
            counts[kind] = int(rng.integers(1, MOST_OF_A_KIND + 1))
    needed = 2 if goal.task == "pick_two_obj_and_place" else 1
    counts[goal.thing] = max(counts[goal.thing], needed)
    if goal.sliced:
        counts["knife"] = max(counts["knife"], 1)
    if room.lamp:
        counts[room.lamp] = 1
    things = {}
    inside = {}
    for name in numbered(counts):
        kind = kind_of(name)
        candidates = [place.name for place in places.values() if _may_lie(kind, place.kind, room, goal)]
        if not candidates:
            return None
        inside[name] = candidates[int(rng.integers(len(candidates)))]
        things[name] = Thing(name, kind, _abilities(kind))
    return Household(things, places, FITS, inside)


def _may_lie(thing: str, place: str, room: Room, goal: Goal) -> bool:
    """Whether a thing may be at a kind of place at first; of the goal's kind, none is where it should be."""
    if thing == room.lamp:
        return place in room.lamp_on
    return thing in FITS[place] and not (thing == goal.thing and place == goal.place)


@cache
def _abilities(kind: str) -> frozenset[str]:
    abilities = {ability for ability, kinds in ABILITIES.items() if kind in kinds}
    if "toggle" not in abilities:  # lamps stay where they are
        abilities.add("take")
    return frozenset(abilities)
