"""Floor plans of AI2-THOR, on which ALFWorld's games were made, as its package `alfworld` ships them (MIT licence).

For each of 120 rooms there are two files: `FloorPlan7-openable.json` has the furniture that its robot can reach, by
`Kind|x|y|z`; `FloorPlan7-objects.json` lists the kinds of all that is in the room. Of these, what the household's rules
know is taken; where things lie is drawn, as in rooms of our own. The package is read as files, and never imported: it
needs no TextWorld.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from sightline.errors import BadInput

ROOM_OF_HUNDREDS = {0: "kitchen", 2: "living room", 3: "bedroom", 4: "bathroom"}
"""Floor plans 1 to 30 are kitchens, 201 to 230 living rooms, and so on."""
PLANS = range(1, 31)
BURNERS = 4
"""Stove burners of a kitchen; files of reachable furniture have none."""


class FloorPlan(NamedTuple):
    """What a room has: kinds of furniture with their numbers, and the kinds of things."""

    places: dict[str, int]
    things: tuple[str, ...]


@cache
def floor_plans(places: frozenset[str], things: frozenset[str]) -> dict[tuple[str, int], FloorPlan]:
    """All floor plans, by kind of room and number from 1 to 30.

    Args:
        places: kinds of furniture that are known; others are left out.
        things: the same of things.

    Raises:
        BadInput: the package is not installed, or has no such files.
    """
    # Found, and not imported: it would bring TextWorld, or fail without.
    package = find_spec("alfworld")
    if package is None or not package.submodule_search_locations:
        raise BadInput("layouts=alfworld reads the files of its package: pip install 'sightline[alfworld]'")
    folder = Path(package.submodule_search_locations[0], "gen", "layouts")
    plans = {}
    for hundreds, room in ROOM_OF_HUNDREDS.items():
        for number in PLANS:
            plans[room, number] = _floor_plan(folder, 100 * hundreds + number, places, things)
    return plans


def _floor_plan(folder: Path, number: int, places: Collection[str], things: Collection[str]) -> FloorPlan:
    reachable = Counter(map(_kind_of_furniture, _names(folder / f"FloorPlan{number}-openable.json")))
    kinds = {name.lower() for name in _names(folder / f"FloorPlan{number}-objects.json")}
    counts = {}
    for kind in sorted({*reachable, *kinds} & set(places)):
        # A kind that is in the room but cannot be reached is there once, as far as the files say.
        counts[kind] = reachable[kind] or 1
        if kind == "stoveburner" and not reachable[kind]:
            counts[kind] = BURNERS
    return FloorPlan(counts, tuple(sorted(kinds & set(things))))


def _kind_of_furniture(name: str) -> str:
    """`Sink|-01.90|+00.97|-01.50|SinkBasin` -> `sinkbasin`, and so on."""
    parts = name.lower().split("|")
    if len(parts) > 4:
        return parts[-1]
    return parts[0]


def _names(file: Path) -> list[str]:
    """The names in a file: the keys of a mapping, or the entries of a list.

    Raises:
        BadInput: there is no such file, or it holds something else.
    """
    try:
        document = json.loads(file.read_text())
    except (OSError, ValueError) as error:
        raise BadInput(f"'{file}' cannot be read ({error}); install another version of alfworld") from error
    names = list(document) if isinstance(document, dict | list) else []
    if not names or not all(isinstance(name, str) for name in names):
        raise BadInput(f"'{file}' does not list what is in a room; install another version of alfworld")
    return names
