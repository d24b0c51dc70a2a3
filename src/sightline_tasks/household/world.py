"""A household and what can be done in it: the rules and sentences of ALFWorld.

ALFWorld (Shridhar et al., ICLR 2021) plays its text games through TextWorld, which solves a logic program in every
step. The rules themselves are few. They are written here by hand, and recorded transcripts of the original hold them to
it, word for word (`tests/data/household`).

    Household      what stays: things, places, who fits where
      └─ World     what changes: where the agent is, what it holds, what is open, hot, clean …
           ├─ commands()   every command that has a meaning now
           └─ do(command)  changes the state, and answers with a sentence
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property, partial

NOTHING_HAPPENS = "Nothing happens."
HELP = (
    "Available commands:\n"
    "  look:                             look around your current location\n"
    "  inventory:                        check your current inventory\n"
    "  go to (receptacle):               move to a receptacle\n"
    "  open (receptacle):                open a receptacle\n"
    "  close (receptacle):               close a receptacle\n"
    "  take (object) from (receptacle):  take an object from a receptacle\n"
    "  move (object) to (receptacle):  place an object in or on a receptacle\n"
    "  examine (something):              examine a receptacle or an object\n"
    "  use (object):                     use an object\n"
    "  heat (object) with (receptacle):  heat an object using a receptacle\n"
    "  clean (object) with (receptacle): clean an object using a receptacle\n"
    "  cool (object) with (receptacle):  cool an object using a receptacle\n"
    "  slice (object) with (object):     slice an object using a sharp object"
)
KNIVES = ("knife", "butterknife")
CLEANS = "sinkbasin"
HEATS = "microwave"
COOLS = "fridge"
"""Kinds of places that wash, heat and cool what is held."""


@dataclass(frozen=True)
class Thing:
    """Thing that can be found, and mostly be carried.

    Attributes:
        name: kind and number, as `apple 2`.
        kind: one lower-case word.
        can: what can be done with it: `take`, `clean`, `heat`, `cool`, `slice`, `toggle`; `contain` says that it is a
            vessel.
    """

    name: str
    kind: str
    can: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Place:
    """Place that holds things: a piece of furniture, or an appliance.

    Attributes:
        name: kind and number, as `drawer 3`.
        kind: one lower-case word.
        spot: where the agent stands when it is there; several places can share one.
        openable: whether it has a door; things inside are out of reach while that is closed.
    """

    name: str
    kind: str
    spot: str
    openable: bool = False


@dataclass(frozen=True)
class Household:
    """Things, places, and what holds at the start.

    Attributes:
        things, places: by name, in the order in which sentences list them.
        fits: kind of a place -> the kinds of things that can be put there.
        inside: name of a thing -> name of the place where it is at first; things that are nowhere are left out.
        start: spot of the agent.
        opened: names of places that are open at first.
        states: name of a state (`clean`, `hot`, `cool`, `sliced`, `toggled`) -> names of things that have it at first.
        vessels: name of a vessel -> names of what is in it. No rule changes that.
    """

    things: Mapping[str, Thing]
    places: Mapping[str, Place]
    fits: Mapping[str, frozenset[str]]
    inside: Mapping[str, str]
    start: str = "middle"
    opened: frozenset[str] = frozenset()
    states: Mapping[str, frozenset[str]] = field(default_factory=dict)
    vessels: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    @cached_property
    def at(self) -> dict[str, tuple[Place, ...]]:
        """Spot -> the places there."""
        by_spot: dict[str, tuple[Place, ...]] = {}
        for place in self.places.values():
            by_spot[place.spot] = (*by_spot.get(place.spot, ()), place)
        return by_spot


def listed(names: Iterable[str]) -> str:
    """Names in a sentence: `a cup 1, a mug 2, and a spoon 1`."""
    items = [f"a {name}" for name in names]
    if not items:
        return "nothing"
    if len(items) == 1:
        return items[0]
    return f"{', '.join(items[:-1])}, and {items[-1]}"


class World:
    """State of a household in an episode.

    Args:
        household: what it begins with.

    Attributes:
        spot: where the agent is.
        held: the name of what it holds, or None.
        inside: name of a thing -> name of the place where it is.
        opened: names of the places that are open.
        states: name of a state -> names of the things that have it.
    """

    def __init__(self, household: Household) -> None:
        self.household = household
        self.spot = household.start
        self.held: str | None = None
        self.inside = dict(household.inside)
        self.opened = set(household.opened)
        self.states = {
            state: set(household.states.get(state, ())) for state in ("clean", "hot", "cool", "sliced", "toggled")
        }
        # Cached until the state changes.
        self._commands: dict[str, Callable[[], str]] | None = None

    @property
    def here(self) -> tuple[Place, ...]:
        """The places in front of the agent."""
        return self.household.at.get(self.spot, ())

    def contents(self, place: str) -> list[str]:
        """Names of the things in a place, in the order of sentences."""
        return [thing for thing in self.household.things if self.inside.get(thing) == place]

    def is_reachable(self, place: Place) -> bool:
        """Whether its inside can be seen and reached from its spot."""
        return not place.openable or place.name in self.opened

    def in_sight(self) -> list[str]:
        """Names of the things that the agent sees and can reach where it is."""
        names: list[str] = []
        for place in self.here:
            if self.is_reachable(place):
                names += self.contents(place.name)
        return names

    def commands(self) -> list[str]:
        """Every command that has a meaning in this state, sorted."""
        return sorted(self._possible())

    def do(self, command: str) -> str:
        """Carry out a command.

        Returns:
            What came of it, in a sentence; `NOTHING_HAPPENS` for a command that has no meaning now.
        """
        action = self._possible().get(command)
        if action is None:
            return NOTHING_HAPPENS
        # The action changes what is possible.
        self._commands = None
        return action()

    def introduction(self) -> str:
        """What is said at the start of a game."""
        if self.here:
            return self.look()
        return f"You are in the middle of a room. Looking quickly around you, you see {listed(self.household.places)}."

    def look(self) -> str:
        """What is said to whoever looks around."""
        if not self.here:
            # So says the original, which lists the places at the start of a game only.
            return "You are in the middle of a room. Looking quickly around you, you see nothing."
        facing = ", and ".join(place.name for place in self.here)
        return f"You are facing the {facing}. Next to it, you see nothing."

    def describe(self, place: Place) -> str:
        """What is seen of a place."""
        if not self.is_reachable(place):
            return f"The {place.name} is closed."
        contents = listed(self.contents(place.name))
        if place.openable:
            return f"The {place.name} is open. In it, you see {contents}."
        return f"On the {place.name}, you see {contents}."

    # -- what can be done ----------------------------------------------------------------------------------------

    def _possible(self) -> dict[str, Callable[[], str]]:
        """Command -> what carries it out, for all that has a meaning now."""
        if self._commands is not None:
            return self._commands
        commands: dict[str, Callable[[], str]] = {
            "look": self.look,
            "inventory": self._inventory,
            "help": lambda: HELP,
        }
        for place in self.household.places.values():
            if place.spot != self.spot:
                commands[f"go to {place.name}"] = partial(self._go, place)
        for place in self.here:
            commands[f"examine {place.name}"] = partial(self.describe, place)
            if place.openable and place.name in self.opened:
                commands[f"close {place.name}"] = partial(self._close, place)
            elif place.openable:
                commands[f"open {place.name}"] = partial(self._open, place)
            for name in self.contents(place.name):
                thing = self.household.things[name]
                # The rule for lamps does not ask whether they are in reach.
                if "toggle" in thing.can:
                    commands[f"use {name}"] = partial(self._use, thing)
                if self.held is None and "take" in thing.can and self.is_reachable(place):
                    commands[f"take {name} from {place.name}"] = partial(self._take, thing, place)
        if self.held is not None:
            commands |= self._possible_with(self.household.things[self.held])
        self._commands = commands
        return commands

    def _possible_with(self, held: Thing) -> dict[str, Callable[[], str]]:
        """Commands about the thing that is held."""
        commands: dict[str, Callable[[], str]] = {f"examine {held.name}": partial(self._examine, held)}
        for place in self.here:
            if self.is_reachable(place) and held.kind in self.household.fits.get(place.kind, ()):
                commands[f"move {held.name} to {place.name}"] = partial(self._move, held, place)
            for verb, appliance, change in (
                ("clean", CLEANS, self._clean),
                ("heat", HEATS, self._heat),
                ("cool", COOLS, self._cool),
            ):
                if place.kind == appliance and verb in held.can:
                    commands[f"{verb} {held.name} with {place.name}"] = partial(change, held, place)
            if held.kind in KNIVES:
                for name in self.contents(place.name):
                    thing = self.household.things[name]
                    if "slice" in thing.can:
                        commands[f"slice {name} with {held.name}"] = partial(self._slice, thing, held)
        return commands

    def _inventory(self) -> str:
        if self.held is None:
            return "You are not carrying anything."
        return f"You are carrying: a {self.held}."

    def _examine(self, thing: Thing) -> str:
        if "contain" in thing.can:
            contents = listed(self.household.vessels.get(thing.name, ()))
            return f"This is a normal {thing.name}. In it, you see {contents}."
        states = [state for state in ("hot", "cool", "clean") if thing.name in self.states[state]]
        is_sliced = thing.name in self.states["sliced"]
        if states or (is_sliced and "slice" in thing.can):
            adjectives = [" and ".join(states)] if states else []
            if is_sliced:
                adjectives.append("sliced")
            # "cold" is what the original says of something that is cool and nothing else.
            if adjectives == ["cool"]:
                adjectives = ["cold"]
            return f"This is a {' '.join(adjectives)} {thing.name}."
        if "toggle" in thing.can:
            switch = "on" if thing.name in self.states["toggled"] else "off"
            return f"This {thing.name} is {switch}."
        return f"There's nothing special about {thing.name}."

    def _go(self, place: Place) -> str:
        self.spot = place.spot
        return f"You arrive at {place.name}. {self.describe(place)}"

    def _open(self, place: Place) -> str:
        self.opened.add(place.name)
        return f"You open the {place.name}. {self.describe(place)}"

    def _close(self, place: Place) -> str:
        self.opened.remove(place.name)
        return f"You close the {place.name}."

    def _take(self, thing: Thing, place: Place) -> str:
        del self.inside[thing.name]
        self.held = thing.name
        return f"You pick up the {thing.name} from the {place.name}."

    def _move(self, thing: Thing, place: Place) -> str:
        self.inside[thing.name] = place.name
        self.held = None
        return f"You move the {thing.name} to the {place.name}."

    def _use(self, thing: Thing) -> str:
        # The original never says that it is turned off again.
        self.states["toggled"].add(thing.name)
        return f"You turn on the {thing.name}."

    def _clean(self, thing: Thing, place: Place) -> str:
        self.states["clean"].add(thing.name)
        return f"You clean the {thing.name} using the {place.name}."

    def _heat(self, thing: Thing, place: Place) -> str:
        self.states["hot"].add(thing.name)
        self.states["cool"].discard(thing.name)
        return f"You heat the {thing.name} using the {place.name}."

    def _cool(self, thing: Thing, place: Place) -> str:
        self.states["cool"].add(thing.name)
        self.states["hot"].discard(thing.name)
        return f"You cool the {thing.name} using the {place.name}."

    def _slice(self, thing: Thing, knife: Thing) -> str:
        self.states["sliced"].add(thing.name)
        return f"You sliced the {thing.name} with the {knife.name}."
