"""Households and goals as PDDL problems of ALFWorld's domain, for its own engine to play."""

from __future__ import annotations

from collections import Counter

from sightline_tasks.household.files import ABILITIES, STATES
from sightline_tasks.household.goals import Goal
from sightline_tasks.household.world import Household


def problem_of(household: Household, goal: Goal) -> str:
    """Write a household and a goal as a PDDL problem of ALFWorld's domain.

    Only households can be written whose names are numbered as `names_of` does.
    """
    counts = Counter(name.rsplit(" ", 1)[0] for name in (*household.things, *household.places))

    def identifier(name: str) -> str:
        kind, number = name.rsplit(" ", 1)
        # A basin is part of its sink, and named so.
        stem, part = (kind.removesuffix("basin"), "basin") if kind.endswith("basin") else (kind, "")
        return f"{stem}_bar_{counts[kind] - int(number):03d}{part}"

    spots = {household.start: "loc_bar_start"}
    for place in household.places.values():
        spots.setdefault(place.spot, f"loc_bar_{len(spots):03d}")
    thing_kinds = sorted({thing.kind for thing in household.things.values()} | set().union(*household.fits.values()))
    place_kinds = sorted({place.kind for place in household.places.values()} | set(household.fits))
    objects = ["agent1 - agent", *(f"{spot} - location" for spot in spots.values())]
    objects += [f"{identifier(name)} - object" for name in household.things]
    objects += [f"{identifier(name)} - receptacle" for name in household.places]
    objects += [f"{kind}type - otype" for kind in thing_kinds] + [f"{kind}type - rtype" for kind in place_kinds]
    facts = [f"atLocation agent1 {spots[household.start]}"]
    for place in household.places.values():
        key = identifier(place.name)
        facts += [f"receptacleType {key} {place.kind}type", f"receptacleAtLocation {key} {spots[place.spot]}"]
        facts += [f"openable {key}"] * place.openable + [f"opened {key}"] * (place.name in household.opened)
    for thing in household.things.values():
        key = identifier(thing.name)
        facts.append(f"objectType {key} {thing.kind}type")
        facts += [f"{fact} {key}" for fact, ability in ABILITIES.items() if ability in thing.can]
        facts += [f"{fact} {key}" for fact, s in STATES.items() if thing.name in household.states.get(s, ())]
        if thing.name in household.inside:
            place = household.places[household.inside[thing.name]]
            facts += [f"inReceptacle {key} {identifier(place.name)}", f"objectAtLocation {key} {spots[place.spot]}"]
        facts += [f"inReceptacleObject {identifier(inner)} {key}" for inner in household.vessels.get(thing.name, ())]
    facts += [f"canContain {p}type {t}type" for p in sorted(household.fits) for t in sorted(household.fits[p])]
    lines = ["(define (problem household)", "(:domain alfred)", "(:objects", *objects, ")", "(:init"]
    lines += [f"({fact})" for fact in facts]
    return "\n".join([*lines, ")", f"(:goal {_formula(goal)})", ")"])


def _formula(goal: Goal) -> str:
    sliced = " (sliceable {0}) (isSliced {0})" if goal.sliced else ""
    if goal.task == "look_at_obj_in_light":
        return (
            "(and (exists (?ot - object ?r - receptacle ?a - agent ?l - location) "
            f"(and (objectType ?ot {goal.lamp}type) (toggleable ?ot) (isToggled ?ot) "
            "(receptacleAtLocation ?r ?l) (atLocation ?a ?l) (inReceptacle ?ot ?r))) "
            f"(exists (?o - object ?a - agent) (and (objectType ?o {goal.thing}type) (holds ?a ?o)"
            f"{sliced.format('?o')})))"
        )
    place = f"(receptacleType ?r {goal.place}type)"
    one = f"(objectType {{0}} {goal.thing}type) (inReceptacle {{0}} ?r){sliced}"
    if goal.task == "pick_two_obj_and_place":
        inner = f"(exists (?o2 - object) (and (not (= ?o1 ?o2)) {one.format('?o2')}))"
        return f"(and (exists (?r - receptacle) (exists (?o1 - object) (and {place} {one.format('?o1')} {inner}))))"
    state = next((fact for fact, name in STATES.items() if name == goal.changed), "")
    wanted = f"{place} {one.format('?o')}" + (f" ({state} ?o)" if state else "")
    return f"(and (exists (?r - receptacle) (exists (?o - object) (and {wanted}))))"
