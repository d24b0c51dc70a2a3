"""Game files of ALFWorld (`game.tw-pddl`), read into our own rules.

Such a file is JSON with a problem in PDDL: objects, facts that hold at first, and a goal. Facts and goals beyond those
of ALFWorld's domain are refused rather than left out, for they might matter. Nothing in a file is run.

    (:objects agent1 - agent  Mug_bar__plus_00 - object  Cabinet_bar__minus_01 - receptacle  loc_bar_1 - location …)
    (:init (inReceptacle Mug_bar__plus_00 Cabinet_bar__minus_01) (openable Cabinet_bar__minus_01) …)
    (:goal (and (exists (?r - receptacle) (exists (?o - object) (and (inReceptacle ?o ?r) …)))))
"""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from sightline.config.decoding import decoded
from sightline.errors import BadInput
from sightline_tasks.household.goals import CHANGES, Goal
from sightline_tasks.household.world import Household, Place, Thing

FILE = "game.tw-pddl"
MOST_BYTES = 8_000_000
"""Greatest size of a file. Those of ALFWorld have about 100 kB, most of them its grammar."""
ABILITIES = {
    "pickupable": "take",
    "cleanable": "clean",
    "heatable": "heat",
    "coolable": "cool",
    "sliceable": "slice",
    "toggleable": "toggle",
    "isreceptacleobject": "contain",
}
"""Fact -> what it says can be done with a thing."""
STATES = {"isclean": "clean", "ishot": "hot", "iscool": "cool", "issliced": "sliced", "istoggled": "toggled"}
"""Fact -> state."""
_WITHOUT_EFFECT = {"moveable", "ison", "checked", "examined", "full", "wasinreceptacle", "isreceptacleobjectfull"}
"""Facts that no rule of ALFWorld's domain reads."""
_FACTS = {
    "receptacletype",
    "objecttype",
    "receptacleatlocation",
    "objectatlocation",
    "inreceptacle",
    "atlocation",
    "cancontain",
    "openable",
    "opened",
    "inreceptacleobject",
    *ABILITIES,
    *STATES,
    *_WITHOUT_EFFECT,
}
"""All facts of ALFWorld's domain."""

Expression = str | list[Any]


def read_game(file: Path) -> tuple[Household, Goal]:
    """Read a game.

    Raises:
        BadInput: it is no such file, or holds what ALFWorld's domain does not have; it names the file.
    """
    try:
        # Before it is read: a hostile file may be of any size.
        if file.stat().st_size > MOST_BYTES:
            raise BadInput(f"'{file}' is larger than {MOST_BYTES // 1_000_000} MB, which no game of ALFWorld is")
        document = json.loads(decoded(file.read_bytes()))
        problem = document["pddl_problem"]
    except OSError as error:
        raise BadInput(f"'{file}' cannot be read: {error.strerror}") from error
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise BadInput(f"'{file}' is no game of ALFWorld: it must be JSON with a text 'pddl_problem'") from error
    try:
        return of_problem(problem)
    except BadInput as error:
        raise BadInput(f"'{file}': {error}") from error


def of_problem(problem: str) -> tuple[Household, Goal]:
    """Read a PDDL problem.

    Raises:
        BadInput: it does not read as one of ALFWorld's.
    """
    if not isinstance(problem, str):
        raise BadInput("pddl_problem is not a text")
    parts = {}  # such as ":init" -> its facts
    for part in _parse(problem)[1:]:
        if isinstance(part, list) and part and isinstance(part[0], str):
            parts[part[0]] = part[1:]
    for name in (":objects", ":init", ":goal"):
        if name not in parts:
            raise BadInput(f"the problem has no ({name} …)")
    types = dict(_typed(parts[":objects"]))
    facts: dict[str, list[list[str]]] = defaultdict(list)
    for fact in parts[":init"]:
        if isinstance(fact, str) or not fact or not isinstance(fact[0], str):
            raise BadInput(f"a fact reads {fact!r}")
        if fact[0] != "=":
            facts[fact[0]].append([str(argument) for argument in fact[1:]])
    return _household(types, facts), _goal(parts[":goal"])


def _household(types: dict[str, str], facts: dict[str, list[list[str]]]) -> Household:
    """The household that the first facts describe.

    Args:
        types: identifier -> type.
        facts: name of a fact -> the arguments of each such fact.
    """
    unknown = sorted(set(facts) - _FACTS)
    if unknown:
        raise BadInput(f"the fact '{unknown[0]}' is unknown; games of ALFWorld are read, with its domain of 2020")
    names = names_of(types)

    def pairs(fact: str) -> Iterator[tuple[str, str]]:
        for arguments in facts.get(fact, ()):
            if len(arguments) != 2:
                raise BadInput(f"the fact '{fact}' has {len(arguments)} arguments instead of 2")
            yield arguments[0], arguments[1]

    def first_arguments(fact: str) -> set[str]:
        return {arguments[0] for arguments in facts.get(fact, ()) if arguments}

    def names_with(fact: str) -> frozenset[str]:
        return frozenset(names[identifier] for identifier in first_arguments(fact) if identifier in names)

    # Places and things, in the order of their identifiers, in which sentences list them.
    spots = dict(pairs("receptacleatlocation"))
    place_kinds = dict(pairs("receptacletype"))
    thing_kinds = dict(pairs("objecttype"))
    openable = first_arguments("openable")
    abilities = {identifier: set[str]() for identifier in types}
    for fact, ability in ABILITIES.items():
        for identifier in first_arguments(fact):
            abilities.setdefault(identifier, set()).add(ability)
    places: dict[str, Place] = {}
    things: dict[str, Thing] = {}
    for identifier in sorted(names):
        name = names[identifier]
        if types[identifier] == "receptacle" and identifier in spots:
            kind = _kind(place_kinds.get(identifier, ""))
            places[name] = Place(name, kind, spots[identifier], identifier in openable)
        if types[identifier] == "object" and identifier in thing_kinds:
            things[name] = Thing(name, _kind(thing_kinds[identifier]), frozenset(abilities[identifier]))

    # What is where, and what fits where.
    inside = {names[thing]: names[place] for thing, place in pairs("inreceptacle") if thing in names and place in names}
    inside = {thing: place for thing, place in inside.items() if thing in things and place in places}
    vessels: dict[str, list[str]] = defaultdict(list)
    for inner, outer in sorted(pairs("inreceptacleobject")):
        if inner in names and outer in names:
            vessels[names[outer]].append(names[inner])
    fits: dict[str, set[str]] = defaultdict(set)
    for place, thing in pairs("cancontain"):
        fits[_kind(place)].add(_kind(thing))
    starts = [spot for _, spot in pairs("atlocation")]
    if len(starts) != 1:
        raise BadInput(f"the agent is at {len(starts)} locations")
    states = {state: names_with(fact) for fact, state in STATES.items()}
    return Household(
        things,
        places,
        {place: frozenset(kinds) for place, kinds in fits.items()},
        inside,
        start=starts[0],
        opened=names_with("opened"),
        states=states,
        vessels={vessel: tuple(contents) for vessel, contents in vessels.items()},
    )


def names_of(identifiers: Iterable[str]) -> dict[str, str]:
    """Number things as ALFWorld does: in the order of their identifiers, each kind counts down to 1.

    Args:
        identifiers: as `cabinet_bar__minus_00_dot_42`, in lower case.

    Returns:
        Identifier -> name, such as `cabinet 3`. Those of types and of the agent have none and are left out.
    """
    kinds = {}
    for identifier in sorted(identifiers):
        if "_bar_" in identifier:
            kind = identifier.split("_bar_", 1)[0]
            kinds[identifier] = kind + ("basin" if "basin" in identifier else "")
    number = Counter(kinds.values())  # of the next one of a kind
    names = {}
    for identifier, kind in kinds.items():
        names[identifier] = f"{kind} {number[kind]}"
        number[kind] -= 1
    return names


def _kind(type_name: str) -> str:
    """`mugtype` -> `mug`"""
    return type_name.removesuffix("type")


# -- goals ---------------------------------------------------------------------------------------------------------


def _goal(parts: list[Expression]) -> Goal:
    """Recognise one of ALFWorld's goals by the facts that it asks for."""
    facts: dict[str, list[list[str]]] = defaultdict(list)  # name -> arguments of each such fact
    for fact in _facts(parts):
        facts[fact[0]].append(fact[1:])
    things = {arguments[-1] for arguments in facts["objecttype"]}
    places = {_kind(arguments[-1]) for arguments in facts["receptacletype"]}
    sliced = "issliced" in facts
    changes = [state for fact, state in STATES.items() if fact in facts and state in ("clean", "hot", "cool")]
    try:
        # Each unpacking asks for exactly one; a goal with more or fewer is none of the six.
        if "holds" in facts:
            lit_variables = {arguments[0] for arguments in facts["toggleable"]}
            (lamp,) = {arguments[-1] for arguments in facts["objecttype"] if arguments[0] in lit_variables}
            (thing,) = things - {lamp}
            return Goal("look_at_obj_in_light", _kind(thing), lamp=_kind(lamp), sliced=sliced)
        (thing,) = things
        (place,) = places
        if "=" in facts:
            return Goal("pick_two_obj_and_place", _kind(thing), place, sliced=sliced)
        if changes:
            (task,) = [name for name, (state, _) in CHANGES.items() if [state] == changes]
            return Goal(task, _kind(thing), place, sliced=sliced)
    except ValueError as error:
        raise BadInput("the goal is none of ALFWorld's six kinds") from error
    if "inreceptacle" not in facts or "inreceptacleobject" in facts:
        raise BadInput("the goal is none of ALFWorld's six kinds")
    return Goal("pick_and_place_simple", _kind(thing), place, sliced=sliced)


def _facts(parts: list[Expression]) -> Iterator[list[str]]:
    """All facts in a formula of `and`, `exists` and `not`."""
    formulas = list(parts)  # to be looked at; a list, since a hostile file may nest them too deep for recursion
    while formulas:
        part = formulas.pop()
        if not isinstance(part, list) or not part:
            raise BadInput(f"the goal reads {part!r}")
        head = part[0]
        if head == "exists":
            formulas += part[2:]
        elif head in ("and", "not"):
            formulas += part[1:]
        elif len(part) > 1 and all(isinstance(word, str) for word in part):
            yield part
        else:
            raise BadInput(f"the goal has {head!r}, which those of ALFWorld do not have")


# -- PDDL ----------------------------------------------------------------------------------------------------------


def _parse(text: str) -> list[Expression]:
    """Nested lists of lower-case words."""
    # A stack in place of recursion, since a hostile file may nest brackets without end.
    stack: list[list[Any]] = [[]]
    for token in re.findall(r"[()]|[^\s()]+", re.sub(r";[^\n]*", "", text).lower()):
        if token == "(":
            stack.append([])
        elif token == ")":
            closed = stack.pop()
            if not stack:
                raise BadInput("the problem has a ')' too many")
            stack[-1].append(closed)
        else:
            stack[-1].append(token)
    if len(stack) != 1 or len(stack[0]) != 1 or not isinstance(stack[0][0], list):
        raise BadInput("the problem is not one expression in brackets; is the file cut off?")
    problem: list[Expression] = stack[0][0]
    return problem


def _typed(words: list[Expression]) -> Iterator[tuple[str, str]]:
    """`a b - object c - location` -> (a, object), (b, object), (c, location)"""
    names: list[str] = []  # those whose type comes after the next hyphen
    remaining = iter(words)
    for word in remaining:
        if not isinstance(word, str):
            raise BadInput(f"the objects have {word!r} among them")
        if word != "-":
            names.append(word)
            continue
        kind = str(next(remaining, ""))
        for name in names:
            yield name, kind
        names = []
