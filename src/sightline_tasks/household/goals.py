"""The six kinds of household tasks of ALFRED (Shridhar et al., CVPR 2020): when one is done, and who does it best."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from sightline_tasks.household.world import CLEANS, COOLS, HEATS, KNIVES, Place, Thing, World

KINDS = (
    "pick_and_place_simple",
    "look_at_obj_in_light",
    "pick_clean_then_place_in_recep",
    "pick_heat_then_place_in_recep",
    "pick_cool_then_place_in_recep",
    "pick_two_obj_and_place",
)
"""Names of the kinds, as in ALFWorld."""
CHANGES = {
    "pick_clean_then_place_in_recep": ("clean", CLEANS),
    "pick_heat_then_place_in_recep": ("hot", HEATS),
    "pick_cool_then_place_in_recep": ("cool", COOLS),
}
"""Kinds of tasks that want a thing changed -> the state that it should have, and the place that gives it."""
VERBS = {"clean": "clean", "hot": "heat", "cool": "cool"}

_SENTENCES = {
    "pick_and_place_simple": ("put a {sliced}{thing} in {place}", "put some {sliced}{thing} on {place}"),
    "look_at_obj_in_light": ("look at {sliced}{thing} under the {lamp}", "examine the {sliced}{thing} with the {lamp}"),
    "pick_two_obj_and_place": (
        "put two {sliced}{thing} in {place}",
        "find two {sliced}{thing} and put them in {place}",
    ),
}
_OF_CHANGES = ("put a {state} {slice_of}{thing} in {place}", "{verb} some {sliced}{thing} and put it in {place}")


@dataclass(frozen=True)
class Goal:
    """Task of an episode.

    Attributes:
        task: one of `KINDS`.
        thing: kind of the thing that it is about.
        place: kind of the place where it should be in the end; empty for `look_at_obj_in_light`.
        lamp: kind of the lamp to look at it under; empty elsewhere.
        sliced: whether the thing should be sliced.
    """

    task: str
    thing: str
    place: str = ""
    lamp: str = ""
    sliced: bool = False

    @property
    def changed(self) -> str:
        """State that the thing should have, such as `hot`; empty if any will do."""
        state, _ = CHANGES.get(self.task, ("", ""))
        return state

    @property
    def sentences(self) -> tuple[str, ...]:
        """The ways in which ALFWorld says this task."""
        words = {
            "thing": self.thing,
            "place": self.place,
            "lamp": self.lamp,
            "sliced": "sliced " if self.sliced else "",
            "slice_of": "slice of " if self.sliced else "",
            "state": self.changed,
            "verb": VERBS.get(self.changed, ""),
        }
        return tuple(sentence.format(**words) for sentence in _SENTENCES.get(self.task, _OF_CHANGES))

    def is_done(self, world: World) -> bool:
        """Whether the task is done in this state."""
        return self.conditions(world) == 1.0

    def conditions(self, world: World) -> float:
        """Share of the goal's conditions that are true now, of the things that come closest: 0 to 1.

        One condition is that the thing is where it should be; then each change, and each of two things, counts for one.
        """
        household = world.household
        if self.task == "look_at_obj_in_light":
            holds_it = world.held is not None and self.fits(household.things[world.held], world)
            return (holds_it + self._is_lit(world)) / 2
        if self.task == "pick_two_obj_and_place":
            # Two at one place count, not one at each of two.
            counts = [sum(self.placed(world, place)) for place in self.places(world)]
            return min(max(counts, default=0), 2) / 2
        states = []
        if self.changed:
            states.append(self.changed)
        if self.sliced:
            states.append("sliced")
        best = 0.0
        for thing in household.things.values():
            if thing.kind != self.thing:
                continue
            place = household.places.get(world.inside.get(thing.name, ""))
            hold = [thing.name in world.states[state] for state in states]
            hold.append(place is not None and place.kind == self.place)
            best = max(best, sum(hold) / len(hold))
        return best

    def fits(self, thing: Thing, world: World) -> bool:
        """Tell whether a thing is of the kind that the goal names, and sliced if it should be."""
        return thing.kind == self.thing and (not self.sliced or thing.name in world.states["sliced"])

    def places(self, world: World) -> Iterator[Place]:
        """Places of the kind that the goal names."""
        return (place for place in world.household.places.values() if place.kind == self.place)

    def placed(self, world: World, place: Place) -> list[bool]:
        """For each thing at a place, whether it fits."""
        return [self.fits(world.household.things[name], world) for name in world.contents(place.name)]

    def _is_lit(self, world: World) -> bool:
        """Whether the agent stands where a lamp is that was turned on."""
        things = world.household.things
        for place in world.here:
            for name in world.contents(place.name):
                if things[name].kind == self.lamp and name in world.states["toggled"]:
                    return True
        return False


def expert(world: World, goal: Goal) -> str | None:
    """The next command of a player who knows where everything is; None if the task is done or cannot be.

    It fetches a knife if something has to be sliced, then a thing of the right kind, changes it, and brings it to the
    place that needs the fewest commands.
    """
    if goal.is_done(world):
        return None
    held = _held_thing(world)
    # The hand is free, or has what is needed; anything else is put down.
    if held is not None and not (held.kind == goal.thing or _is_a_needed_knife(world, goal, held)):
        return _drop(world, held)
    # What has to be sliced is sliced where it lies, before it is taken.
    if goal.sliced:
        command = _slice(world, goal, held)
        if command is not None:
            return command
    if held is None:
        return _fetch_one(world, goal)
    if goal.task == "look_at_obj_in_light":
        return _light(world, goal)
    state, place = CHANGES.get(goal.task, ("", ""))
    if state and held.name not in world.states[state]:
        return _at(world, place, f"{VERBS[state]} {held.name} with {{}}")
    return _put(world, goal, held)


def _held_thing(world: World) -> Thing | None:
    if world.held is None:
        return None
    return world.household.things[world.held]


def find_target(world: World, goal: Goal) -> tuple[str, bool]:
    """Kind of what the task needs next (a thing to take, or a place or lamp to take it to), and whether one of that
    kind is seen where the agent is."""
    visible = [world.household.things[name] for name in world.in_sight()]
    held = _held_thing(world)
    if held is not None and goal.fits(held, world):
        if goal.task == "look_at_obj_in_light":
            return goal.lamp, any(thing.kind == goal.lamp for thing in visible)
        # First to the place that changes the thing, then to the place where it should be.
        kind = goal.place
        if goal.changed and held.name not in world.states[goal.changed]:
            _, kind = CHANGES[goal.task]
        return kind, any(place.kind == kind for place in world.here)
    if goal.sliced and held is None and _to_slice(world, goal) is not None:
        return "knife", any(thing.kind in KNIVES for thing in visible)
    settled = _settled(world, goal)
    return goal.thing, any(thing.kind == goal.thing and world.inside[thing.name] != settled for thing in visible)


def _is_a_needed_knife(world: World, goal: Goal, held: Thing) -> bool:
    return goal.sliced and held.kind in KNIVES and _to_slice(world, goal) is not None


def _to_slice(world: World, goal: Goal) -> Thing | None:
    """A thing that still has to be sliced; None if enough are."""
    count = 2 if goal.task == "pick_two_obj_and_place" else 1
    sliced = world.states["sliced"]
    candidates = [thing for thing in world.household.things.values() if thing.kind == goal.thing]
    if sum(thing.name in sliced for thing in candidates) >= count:
        return None
    for thing in candidates:
        if thing.name not in sliced and thing.name in world.inside:
            return thing
    return None


def _slice(world: World, goal: Goal, held: Thing | None) -> str | None:
    """The next command on the way to a slice; None if there is one."""
    whole = _to_slice(world, goal)
    if whole is None:
        if held is None or held.kind == goal.thing:
            return None
        return _drop(world, held)  # the knife has done its work
    if held is None:
        for thing in world.household.things.values():
            if thing.kind in KNIVES and thing.name in world.inside:
                return _take(world, thing)
        return None
    if held.kind == goal.thing and held.kind not in KNIVES:
        return _drop(world, held)
    place = world.household.places[world.inside[whole.name]]
    if world.spot != place.spot:
        return f"go to {place.name}"
    return f"slice {whole.name} with {held.name}"


def _fetch_one(world: World, goal: Goal) -> str | None:
    """Fetch a thing of the right kind that is not where it should be already."""
    settled = _settled(world, goal)
    candidates = []
    for thing in world.household.things.values():
        # The place that has one of two things already keeps it.
        is_free = "take" in thing.can and thing.name in world.inside and world.inside[thing.name] != settled
        if goal.fits(thing, world) and is_free:
            candidates.append(thing)

    def order(thing: Thing) -> tuple[bool, bool, bool]:
        # What has been changed already comes first; then what is at hand.
        unchanged = bool(goal.changed) and thing.name not in world.states[goal.changed]
        return unchanged, *_effort(world, world.household.places[world.inside[thing.name]])

    if not candidates:
        return None
    return _take(world, min(candidates, key=order))


def _settled(world: World, goal: Goal) -> str | None:
    """The place where the first of two things is."""
    if goal.task != "pick_two_obj_and_place":
        return None
    settled = None
    most = 0
    for place in goal.places(world):
        count = sum(goal.placed(world, place))
        if count > most:
            most = count
            settled = place.name
    return settled


def _effort(world: World, place: Place) -> tuple[bool, bool]:
    """What it takes to reach the inside of a place, to sort by: going there, opening it."""
    return place.spot != world.spot, not world.is_reachable(place)


def _take(world: World, thing: Thing) -> str:
    place = world.household.places[world.inside[thing.name]]
    return _reach(world, place) or f"take {thing.name} from {place.name}"


def _reach(world: World, place: Place) -> str | None:
    """The next command on the way to the inside of a place; None if it is in reach."""
    if world.spot != place.spot:
        return f"go to {place.name}"
    if not world.is_reachable(place):
        return f"open {place.name}"
    return None


def _at(world: World, kind: str, command: str) -> str | None:
    """Go to the first place of a kind, and say a command there."""
    for place in world.household.places.values():
        if place.kind == kind:
            if world.spot != place.spot:
                return f"go to {place.name}"
            return command.format(place.name)
    return None


def _light(world: World, goal: Goal) -> str | None:
    """The next command on the way to a lamp that shines."""
    for thing in world.household.things.values():
        if thing.kind == goal.lamp and thing.name in world.inside:
            place = world.household.places[world.inside[thing.name]]
            if world.spot != place.spot:
                return f"go to {place.name}"
            return f"use {thing.name}"
    return None


def _put(world: World, goal: Goal, held: Thing) -> str | None:
    # Two things belong to one place: where the first one is.
    settled = _settled(world, goal)
    places = [place for place in goal.places(world) if settled in (None, place.name)]
    return _move(world, held, places)


def _drop(world: World, held: Thing) -> str | None:
    """Put what is held somewhere, here if possible."""
    return _move(world, held, world.household.places.values())


def _move(world: World, held: Thing, places: Iterable[Place]) -> str | None:
    """The next command on the way of what is held to the nearest of these places that takes it; None if none does."""
    fitting = [place for place in places if held.kind in world.household.fits.get(place.kind, ())]
    if not fitting:
        return None
    place = min(fitting, key=lambda place: _effort(world, place))
    return _reach(world, place) or f"move {held.name} to {place.name}"
